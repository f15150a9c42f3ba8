"""Tests of `decoder2vec.activations.store`: precision, reuse, interruptions, full disks and damaged files."""

from __future__ import annotations

import errno
import logging
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from decoder2vec.activations import extract
from decoder2vec.activations import store as store_module
from decoder2vec.activations.extract import Extractor
from decoder2vec.activations.store import (
    KeyIndex,
    Segment,
    Store,
    delete_damaged_segments,
    delete_space,
    iter_spaces,
    space_name,
    store_root,
    text_key,
    text_keys,
)
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.tiny import build_tiny, tiny_folder
from decoder2vec.config import Reading, fingerprint
from decoder2vec.errors import InputError
from decoder2vec.text.template import Template

READINGS = [Reading(2), Reading(4, "lasttoken", True)]
SPACE = {"weights": "abc", "readings": [[2, "mean", False]]}


def texts(count, begin=0):
    return [f"Loaf {number}" for number in range(begin, begin + count)]


def keys(names):
    return [text_key(name) for name in names]


def latents(count, seed=0, shape=(2, 8)):
    return np.random.default_rng(seed).normal(size=(count, *shape)).astype(np.float32)


def assert_stored(vectors, expected):
    """Equal up to 11 bits of each vector's largest value."""
    assert vectors.dtype == np.float32
    assert vectors.shape == expected.shape
    largest = np.abs(expected).max(axis=-1, keepdims=True).astype(np.float64)
    assert (np.abs(vectors.astype(np.float64) - expected) <= 2.0**-11 * largest).all()


@pytest.fixture
def small_windows(monkeypatch):
    """Windows of 256 texts, the minimum."""
    monkeypatch.setattr(extract, "_WINDOW_BYTES", 1)


@pytest.fixture
def extractor(backbone):
    return Extractor(backbone("tiny-gpt2"), READINGS)


def fill_and_read(extractor, names, root):
    """Fill a store with the texts and read their vectors."""
    store = Store(extractor.space(), root=root)
    extractor.fill(store, names)
    return store.read(keys(names))


# --- precision ------------------------------------------------------------------------------------------------------


def test_vectors_of_any_magnitude_keep_eleven_bits(tmp_path):
    sizes = 10.0 ** np.arange(-36, 37, dtype=np.float64)
    expected = (latents(len(sizes)) * sizes[:, None, None]).astype(np.float32)
    names = texts(len(sizes))
    Store(SPACE, root=tmp_path).add(keys(names), expected)
    assert_stored(Store(SPACE, root=tmp_path).read(keys(names)), expected)


@pytest.mark.parametrize("value", [1e30, -1e30, 65_504.0, 65_520.0, 1.0, 2.0**-140, 3e38])
def test_extreme_values_are_stored(value, tmp_path):
    expected = np.zeros((1, 1, 4), np.float32)
    expected[0, 0] = value, value / 3, -value / 1000, 0
    store = Store(SPACE, root=tmp_path)
    store.add(keys(["a"]), expected)
    vectors = store.read(keys(["a"]))
    assert np.isfinite(vectors).all()
    assert_stored(vectors, expected)


def test_values_are_rounded_as_by_numpy(tmp_path):
    """What earlier versions wrote with NumPy and what torch writes now are the same bits, in the file and as read."""
    rng = np.random.default_rng(0)
    latents = (rng.standard_normal((9, 5, 64)) * 10.0 ** rng.integers(-6, 6, (9, 5, 1))).astype(np.float32)
    segment = Segment.pack([text_key(str(n)) for n in range(9)], latents)
    by_reading = latents.swapaxes(0, 1)
    scales = np.exp2(np.ceil(np.log2(np.abs(by_reading).max(axis=2))))
    expected = (by_reading / scales[..., None]).astype(np.float16)
    assert segment.values.tobytes() == expected.tobytes() and segment.values.dtype == np.float16
    np.testing.assert_array_equal(segment.scales, scales)
    rows = np.array([3, 0, 8])
    read = expected.astype(np.float32)[:, rows] * scales[:, rows, None].astype(np.float32)
    np.testing.assert_array_equal(segment.read(rows, slice(None)), read.swapaxes(0, 1))


def test_zeros_stay_zeros(tmp_path):
    store = Store(SPACE, root=tmp_path)
    store.add(keys(["a", "b"]), np.zeros((2, 3, 4), np.float32))
    np.testing.assert_array_equal(store.read(keys(["a", "b"])), np.zeros((2, 3, 4)))


def test_huge_value_does_not_affect_other_vectors(tmp_path):
    expected = latents(3)
    expected[1, 0, 0] = 1e20
    store = Store(SPACE, root=tmp_path)
    store.add(keys(["a", "b", "c"]), expected)
    assert_stored(store.read(keys(["a", "b", "c"])), expected)


def test_vectors_of_several_segments_keep_the_order(tmp_path):
    names, expected = texts(30), latents(30)
    store = Store(SPACE, root=tmp_path)
    for begin in (0, 10, 20):
        store.add(keys(names[begin : begin + 10]), expected[begin : begin + 10])
    order = [*np.random.default_rng(0).permutation(30)[:17].tolist(), 3, 3]
    for opened in (store, Store(SPACE, root=tmp_path)):
        assert_stored(opened.read([text_key(names[n]) for n in order]), expected[order])
        assert len(opened) == 30


def test_single_readings_can_be_read(tmp_path):
    expected = latents(5, shape=(4, 8))
    store = Store(SPACE, root=tmp_path)
    store.add(keys(texts(5)), expected)
    assert_stored(store.read(keys(texts(5)), [2]), expected[:, [2]])
    assert_stored(store.read(keys(texts(5)), [3, 0]), expected[:, [3, 0]])
    assert_stored(store.read(keys(texts(5)), slice(1, 3)), expected[:, 1:3])


def test_similar_texts_have_different_keys():
    alike = ["a", "a ", " a", "A", "a\x00", "", "é", "e\u0301"]
    assert len(set(keys(alike))) == len(alike)


def test_empty_space_creates_no_folder(tmp_path):
    store = Store(SPACE, root=tmp_path / "new")
    assert len(store) == 0
    assert text_key("a") not in store
    assert not (tmp_path / "new").exists()


def test_store_is_in_the_users_cache(own_cache):
    assert store_root() == Path(own_cache) / "latents"


# --- reuse ----------------------------------------------------------------------------------------------------------


def test_stored_vectors_equal_computed_ones(extractor, tmp_path):
    assert_stored(fill_and_read(extractor, texts(40), tmp_path), extractor(texts(40)))


def test_only_new_texts_are_computed(extractor, computed, tmp_path):
    fill_and_read(extractor, texts(30), tmp_path)
    assert sum(computed) == 30
    computed.clear()
    overlapping = fill_and_read(extractor, texts(30, begin=20), tmp_path)
    assert sum(computed) == 20
    computed.clear()
    fill_and_read(extractor, texts(50)[::-1], tmp_path)
    assert computed == []
    assert_stored(overlapping, extractor(texts(30, begin=20)))


def test_duplicates_are_computed_and_stored_once(extractor, computed, tmp_path):
    names = ["b", "a", "b", "a", "a"]
    vectors = fill_and_read(extractor, names, tmp_path)
    assert sum(computed) == 2
    assert len(Store(extractor.space(), root=tmp_path)) == 2
    assert_stored(vectors, extractor(names))


def test_progress_of_fill_adds_up_to_all_texts(extractor, tmp_path, small_windows):
    fill_and_read(extractor, texts(100), tmp_path)
    steps = []
    extractor.fill(Store(extractor.space(), root=tmp_path), texts(600), steps.append)
    assert steps[0] == 100
    assert sum(steps) == 600


def test_invalid_text_is_refused_before_computation(extractor, computed, tmp_path):
    with pytest.raises(InputError, match="Text 1 is int"):
        fill_and_read(extractor, ["a", 7], tmp_path)
    assert computed == []


@pytest.mark.parametrize(
    "change",
    [
        {"template": Template.of("echo")},
        {"max_length": 100},
        {"on_overflow": "chunk"},
        {"readings": [Reading(2)]},
        {"readings": [Reading(2), Reading(4, "mean", True)]},
        {"readings": [Reading(2), Reading(4, "lasttoken", False)]},
        {"readings": READINGS[::-1]},
    ],
)
def test_changed_setting_is_another_space(change, backbone, extractor):
    other = Extractor(**{"backbone": backbone("tiny-gpt2"), "readings": READINGS, **change})
    assert space_name(other.space()) != space_name(extractor.space())


def test_another_direction_is_another_space(backbone, extractor):
    other = Extractor(backbone("tiny-gpt2", "bidirectional"), READINGS)
    assert space_name(other.space()) != space_name(extractor.space())


def test_another_dtype_is_another_space(extractor):
    other = Extractor(Backbone.load("tiny-gpt2", device="cpu", dtype="bfloat16"), READINGS)
    assert space_name(other.space()) != space_name(extractor.space())
    assert other.backbone.fingerprint == extractor.backbone.fingerprint


def test_other_weights_of_the_same_name_are_another_space(tmp_path):
    names = []
    for seed in (0, 1):
        build_tiny("gpt2", tmp_path / "model", seed=seed)
        names.append(space_name(Extractor(Backbone.load(tmp_path / "model"), READINGS).space()))
    assert names[0] != names[1]


def test_name_of_the_backbone_is_not_part_of_the_space(extractor):
    here = Extractor(Backbone.load(tiny_folder("tiny-gpt2"), device="cpu"), READINGS)
    assert here.space() != extractor.space()
    assert space_name(here.space()) == space_name(extractor.space())


def test_equal_settings_are_the_same_space(backbone, extractor):
    same = Extractor(Backbone.load("tiny-gpt2", device="cpu"), [Reading(2), Reading(-1, "lasttoken", True)], budget=64)
    assert space_name(same.space()) == space_name(extractor.space())


# --- interruptions --------------------------------------------------------------------------------------------------

FILL = """
import sys
from pathlib import Path
from decoder2vec.activations import extract
from decoder2vec.activations.extract import Extractor
from decoder2vec.activations.store import Store
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.config import Reading

extract._WINDOW_BYTES = 1
extractor = Extractor(Backbone.load("tiny-gpt2", device="cpu"), [Reading(2), Reading(4, "lasttoken", True)])
store = Store(extractor.space(), root=Path(sys.argv[1]))
names = [f"Loaf {number}" for number in range(int(sys.argv[2]))]
extractor.fill(store, names, lambda count: print(count, flush=True))
"""


def test_killed_process_keeps_finished_windows(extractor, computed, tmp_path, quick_python):
    tiny_folder("tiny-gpt2")
    process = quick_python.start(FILL, tmp_path, 3000)
    done = 0
    while done <= 512:  # so at least two windows of 256 texts are finished
        done += int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    n_stored = len(Store(extractor.space(), root=tmp_path))
    assert 512 <= n_stored < 3_000
    assert all(not report.damaged for report in iter_spaces(verify=True, root=tmp_path))
    vectors = fill_and_read(extractor, texts(3_000), tmp_path)
    assert sum(computed) == 3_000 - n_stored
    assert_stored(vectors, extractor(texts(3_000)))


ADD_MANY = """
import sys
from pathlib import Path
import numpy as np
from decoder2vec.activations.store import Store, text_key

store = Store({"weights": "abc", "readings": [[2, "mean", False]]}, root=Path(sys.argv[1]))
latents = np.random.default_rng(0).normal(size=(400, 2, 8)).astype(np.float32)
print("ready", flush=True)
sys.stdin.readline()
for begin in range(0, 400, 4):
    rows = range(begin, begin + 4)
    store.add([text_key(f"Loaf {row}") for row in rows], latents[begin : begin + 4])
    store.refresh()
"""


def test_two_processes_write_one_space_concurrently(tmp_path):
    command = [sys.executable, "-c", ADD_MANY, str(tmp_path)]
    pipe = subprocess.PIPE
    processes = [subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) for _ in range(2)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        _, stderr = process.communicate(timeout=60)
        assert (process.returncode, stderr) == (0, "")
    (report,) = iter_spaces(verify=True, root=tmp_path)
    assert (report.texts, report.damaged) == (400, ())
    store = Store(SPACE, root=tmp_path)
    assert len(list(store.folder.glob("seg-*"))) == 200
    assert list(store.folder.glob(".tmp*")) == []
    assert_stored(store.read(keys(texts(400))), latents(400))


KILLED_IN_WRITE = """
import os, signal, sys
from pathlib import Path
import numpy as np
from decoder2vec.activations import store as module

def half(tensors, file, metadata):
    Path(file).write_bytes(b"x" * 100)
    os.kill(os.getpid(), signal.SIGKILL)

store = module.Store({"weights": "abc", "readings": [[2, "mean", False]]}, root=Path(sys.argv[1]))
store.add([module.text_key("a")], np.ones((1, 2, 8), np.float32))
module.save_file = half
store.add([module.text_key("b")], np.ones((1, 2, 8), np.float32))
"""


def test_kill_during_a_write_leaves_segments_intact(tmp_path):
    done = subprocess.run([sys.executable, "-c", KILLED_IN_WRITE, str(tmp_path)], capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL
    store = Store(SPACE, root=tmp_path)
    assert (text_key("a") in store, text_key("b") in store) == (True, False)
    store.add(keys(["b"]), latents(1))
    (report,) = iter_spaces(verify=True, root=tmp_path)
    assert (report.texts, report.damaged) == (2, ())


def test_keyboard_interrupt_keeps_finished_windows(extractor, computed, tmp_path, small_windows):
    steps = []

    def interrupt(count):
        steps.append(count)
        if sum(steps) > 512:  # in the third window of 256 texts
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extractor.fill(Store(extractor.space(), root=tmp_path), texts(900), interrupt)
    assert len(Store(extractor.space(), root=tmp_path)) == 512
    computed.clear()
    vectors = fill_and_read(extractor, texts(900), tmp_path)
    assert sum(computed) == 900 - 512
    assert_stored(vectors, extractor(texts(900)))


def test_refresh_finds_segments_of_other_stores(tmp_path):
    ours, theirs = Store(SPACE, root=tmp_path), Store(SPACE, root=tmp_path)
    theirs.add(keys(["a"]), latents(1))
    assert len(ours) == 0
    ours.refresh()
    assert_stored(ours.read(keys(["a"])), latents(1))


# --- write errors ---------------------------------------------------------------------------------------------------


def assert_works_without_the_cache(extractor, root, caplog):
    names = texts(600)
    store = Store(extractor.space(), root=root)
    extractor.fill(store, names)
    assert not store.writable
    assert caplog.text.count("going on without the cache") == 1
    assert "D2V_CACHE" in caplog.text
    assert_stored(store.read(keys(names)), extractor(names))
    assert len(Store(extractor.space(), root=root)) == 0
    assert [file for file in root.rglob("*") if file.name.startswith(".tmp")] == []


def test_folder_that_cannot_be_created_only_costs_the_cache(extractor, tmp_path, caplog, small_windows):
    (tmp_path / "file").write_text("in the way")
    assert_works_without_the_cache(extractor, tmp_path / "file" / "latents", caplog)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_folder_only_costs_the_cache(extractor, tmp_path, caplog, small_windows):
    root = tmp_path / "latents"
    root.mkdir(mode=0o555)
    assert_works_without_the_cache(extractor, root, caplog)


def test_read_only_disk_only_costs_the_cache(extractor, tmp_path, caplog, small_windows, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    assert_works_without_the_cache(extractor, tmp_path, caplog)


def test_full_disk_only_costs_the_cache(extractor, tmp_path, caplog, small_windows, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(store_module, "save_file", full)
    assert_works_without_the_cache(extractor, tmp_path, caplog)
    assert "No space left on device" in caplog.text


def test_real_write_error_only_costs_the_cache(tmp_path, caplog):
    """safetensors raises an exception of its own for write errors."""
    store, expected = Store(SPACE, root=tmp_path), latents(2_000, shape=(2, 64))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    try:
        store.add(keys(texts(2_000)), expected)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "going on without the cache" in caplog.text
    assert_stored(store.read(keys(texts(2_000))), expected)


# --- damage ---------------------------------------------------------------------------------------------------------


def flip(file):
    content = bytearray(file.read_bytes())
    content[-20] ^= 0x55
    file.write_bytes(content)


def cut(file):
    file.write_bytes(file.read_bytes()[:-50])


def cut_to_header(file):
    file.write_bytes(file.read_bytes()[:30])


def empty(file):
    file.write_bytes(b"")


def garbage(file):
    file.write_bytes(os.urandom(500))


def another_writer(file):
    save_file({"weights": np.zeros(3, np.float32)}, file)


@pytest.mark.parametrize("damage", [flip, cut, cut_to_header, empty, garbage, another_writer])
def test_damaged_segment_is_deleted_and_recomputed(damage, extractor, computed, tmp_path, small_windows):
    expected = fill_and_read(extractor, texts(600), tmp_path)
    store = Store(extractor.space(), root=tmp_path)
    segments = sorted(store.folder.glob("seg-*"))
    assert len(segments) == 3
    damage(segments[1])
    (report,) = iter_spaces(verify=True, root=tmp_path)
    assert report.damaged == (segments[1].name,)
    delete_damaged_segments(report, root=tmp_path)
    assert not segments[1].exists()
    assert [reopened.damaged for reopened in iter_spaces(verify=True, root=tmp_path)] == [()]
    n_lost = 600 - len(Store(extractor.space(), root=tmp_path))
    assert n_lost in (256, 88)
    computed.clear()
    np.testing.assert_array_equal(fill_and_read(extractor, texts(600), tmp_path), expected)
    assert sum(computed) == n_lost


@pytest.mark.parametrize("damage", [cut, cut_to_header, empty, garbage, another_writer])
def test_unreadable_segment_is_skipped_with_a_warning(damage, tmp_path, caplog):
    store = Store(SPACE, root=tmp_path)
    store.add(keys(["a"]), latents(1))
    store.add(keys(["b"]), latents(1, seed=1))
    damage(next(file for file in store.folder.glob("seg-*") if text_key("a") in file.read_bytes()))
    reopened = Store(SPACE, root=tmp_path)
    assert "computed again" in caplog.text
    assert (text_key("a") in reopened, text_key("b") in reopened) == (False, True)
    reopened.add(keys(["a"]), latents(1))
    assert_stored(reopened.read(keys(["a", "b"])), np.concatenate([latents(1), latents(1, seed=1)]))


def test_every_changed_byte_is_detected_without_a_crash(tmp_path, caplog):
    caplog.set_level(logging.ERROR, logger=store_module.__name__)
    store = Store(SPACE, root=tmp_path)
    store.add(keys(texts(3)), latents(3))
    (file,) = store.folder.glob("seg-*")
    intact = file.read_bytes()
    header = 8 + int.from_bytes(intact[:8], "little")
    padding = len(intact[:header].rstrip())
    vectors = store.read(keys(texts(3)))
    crashed, undetected = [], []
    for offset in [*range(padding), *range(header, len(intact), 7)]:
        for value in {intact[offset] ^ 1, ord("e"), ord("-")} - {intact[offset]}:
            file.write_bytes(intact[:offset] + bytes([value]) + intact[offset + 1 :])
            try:
                (report,) = iter_spaces(verify=True, root=tmp_path)
                opened = Store(SPACE, root=tmp_path)
                if not report.damaged and not np.array_equal(opened.read(keys(texts(3))), vectors):
                    undetected.append((offset, chr(value)))
            except Exception as error:
                crashed.append((offset, chr(value), repr(error)))
    assert undetected == []
    assert crashed == []


def test_report_has_size_and_description_of_a_space(tmp_path):
    store = Store(SPACE, root=tmp_path)
    store.add(keys(texts(5)), latents(5))
    store.add(keys(texts(5, begin=5)), latents(5))
    (report,) = iter_spaces(root=tmp_path)
    assert report.name == store.folder.name == fingerprint(SPACE)
    assert report.space == SPACE
    assert report.texts == 10
    assert report.size == sum(file.stat().st_size for file in store.folder.glob("seg-*"))
    assert report.damaged == ()


def test_empty_or_missing_cache_has_no_spaces(tmp_path):
    assert list(iter_spaces(root=tmp_path)) == []
    assert list(iter_spaces(root=tmp_path / "none", verify=True)) == []


def test_space_without_description_is_listed_and_readable(tmp_path):
    store = Store(SPACE, root=tmp_path)
    store.add(keys(["a"]), latents(1))
    (store.folder / "space.json").unlink()
    (report,) = iter_spaces(verify=True, root=tmp_path)
    assert (report.name, report.damaged) == (store.folder.name, ())
    assert len(Store(SPACE, root=tmp_path)) == 1


# names of temporary files of this package and of safetensors
STRAYS = [".tmp-k2x8.safetensors", ".tmpiBesZO"]


@pytest.mark.parametrize("name", STRAYS)
def test_only_old_stray_files_are_removed(name, tmp_path):
    store = Store(SPACE, root=tmp_path)
    store.add(keys(["a"]), latents(1))
    recent, old = store.folder / name, store.folder / name.replace("k2x8", "zzzz").replace("iBesZO", "aaaaaa")
    for file in (recent, old):
        file.write_bytes(b"half a segment")
    yesterday = time.time() - 86_400
    os.utime(old, (yesterday, yesterday))
    assert len(Store(SPACE, root=tmp_path)) == 1
    (report,) = iter_spaces(verify=True, root=tmp_path)
    assert (report.texts, report.damaged) == (1, ())
    assert (recent.exists(), old.exists()) == (True, False)


def test_one_space_can_be_deleted(tmp_path):
    first, second = Store({"n": 1}, root=tmp_path), Store({"n": 2}, root=tmp_path)
    for store in (first, second):
        store.add(keys(["a"]), latents(1))
    delete_space(first.folder.name, root=tmp_path)
    assert [report.name for report in iter_spaces(root=tmp_path)] == [second.folder.name]


def test_all_spaces_can_be_deleted(tmp_path):
    for number in range(3):
        Store({"n": number}, root=tmp_path).add(keys(["a"]), latents(1))
    delete_space("all", root=tmp_path)
    assert list(iter_spaces(root=tmp_path)) == []
    delete_space("all", root=tmp_path)


def test_deleting_an_unknown_space_suggests_the_nearest(tmp_path):
    store = Store(SPACE, root=tmp_path)
    store.add(keys(["a"]), latents(1))
    with pytest.raises(InputError, match=store.folder.name):
        delete_space(store.folder.name[:-2], root=tmp_path)
    with pytest.raises(InputError, match="empty"):
        delete_space("x", root=tmp_path / "none")
    with pytest.raises(InputError):
        delete_space("..", root=tmp_path)
    assert len(Store(SPACE, root=tmp_path)) == 1


# --- keys and precision ---------------------------------------------------------------------------------------------


def test_index_finds_the_first_of_equal_keys():
    names = [f"text {n % 40}" for n in range(100)]
    index = KeyIndex(text_keys(names))
    wanted = ["text 3", "nothing", "text 39", "text 3"]
    expected = [names.index(name) if name in names else -1 for name in wanted]
    assert index.find(text_keys(wanted)).tolist() == expected
    assert index.n_unique == 40 and KeyIndex(text_keys([])).n_unique == 0
    assert KeyIndex(text_keys([])).find(text_keys(wanted)).tolist() == [-1] * 4


def test_missing_keys_are_named_once_in_order(tmp_path):
    store = Store(SPACE, root=tmp_path)
    store.add(keys(["b"]), latents(1))
    assert store.missing(text_keys(["c", "b", "a", "c", "a", "d"])).tolist() == [0, 2, 5]
    with pytest.raises(KeyError, match="1 of 2 keys"):
        store.positions(keys(["b", "c"]))


def test_int8_keeps_each_vector_within_a_254th(tmp_path):
    sizes = 10.0 ** np.arange(-30, 31, dtype=np.float64)
    expected = (latents(len(sizes)) * sizes[:, None, None]).astype(np.float32)
    expected[3] = 0
    names = texts(len(sizes))
    Store(SPACE, root=tmp_path, precision="int8").add(keys(names), expected)
    reopened = Store(SPACE, root=tmp_path)
    vectors = reopened.read(keys(names)).astype(np.float64)
    largest = np.abs(expected).max(axis=2, keepdims=True)
    assert (np.abs(vectors - expected) <= largest * (1 / 254 + 1e-6)).all()
    assert reopened._segments[0].values.dtype == np.int8
