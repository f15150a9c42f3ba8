"""Latents on disk: precision, reuse, and everything that can happen to a file."""

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
    Store,
    delete_damaged_segments,
    delete_space,
    iter_spaces,
    space_name,
    store_root,
    text_key,
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


def assert_as_kept(found, expected):
    """Equal to 11 bits of each vector's largest value."""
    assert found.dtype == np.float32
    assert found.shape == expected.shape
    largest = np.abs(expected).max(axis=-1, keepdims=True).astype(np.float64)
    assert (np.abs(found.astype(np.float64) - expected) <= 2.0**-11 * largest).all()


@pytest.fixture
def small_windows(monkeypatch):
    """256 texts to a window, the fewest there are."""
    monkeypatch.setattr(extract, "_WINDOW_BYTES", 1)


@pytest.fixture
def extractor(backbone):
    return Extractor(backbone("tiny-gpt2"), READINGS)


def filled(extractor, names, root):
    """The texts' vectors by way of the store."""
    store = Store(extractor.space(), root=root)
    extractor.fill(store, names)
    return store.read(keys(names))


# --- what is kept ---------------------------------------------------------------------------------------------------


def test_vectors_of_any_size_come_back_to_eleven_bits_of_their_largest_value(tmp_path):
    sizes = 10.0 ** np.arange(-36, 37, dtype=np.float64)
    expected = (latents(len(sizes)) * sizes[:, None, None]).astype(np.float32)
    names = texts(len(sizes))
    Store(SPACE, root=tmp_path).add(keys(names), expected)
    assert_as_kept(Store(SPACE, root=tmp_path).read(keys(names)), expected)


@pytest.mark.parametrize("value", [1e30, -1e30, 65_504.0, 65_520.0, 1.0, 2.0**-140, 3e38])
def test_extreme_values_are_kept(value, tmp_path):
    expected = np.zeros((1, 1, 4), np.float32)
    expected[0, 0] = value, value / 3, -value / 1000, 0
    store = Store(SPACE, root=tmp_path)
    store.add(keys(["a"]), expected)
    found = store.read(keys(["a"]))
    assert np.isfinite(found).all()
    assert_as_kept(found, expected)


def test_zeros_stay_zeros(tmp_path):
    store = Store(SPACE, root=tmp_path)
    store.add(keys(["a", "b"]), np.zeros((2, 3, 4), np.float32))
    np.testing.assert_array_equal(store.read(keys(["a", "b"])), np.zeros((2, 3, 4)))


def test_a_huge_dimension_in_one_vector_does_not_cost_the_others_their_bits(tmp_path):
    expected = latents(3)
    expected[1, 0, 0] = 1e20
    store = Store(SPACE, root=tmp_path)
    store.add(keys(["a", "b", "c"]), expected)
    assert_as_kept(store.read(keys(["a", "b", "c"])), expected)


def test_vectors_come_back_in_the_order_asked_from_several_segments(tmp_path):
    names, expected = texts(30), latents(30)
    store = Store(SPACE, root=tmp_path)
    for begin in (0, 10, 20):
        store.add(keys(names[begin : begin + 10]), expected[begin : begin + 10])
    asked = [*np.random.default_rng(0).permutation(30)[:17].tolist(), 3, 3]
    for opened in (store, Store(SPACE, root=tmp_path)):
        assert_as_kept(opened.read([text_key(names[n]) for n in asked]), expected[asked])
        assert len(opened) == 30


def test_single_readings_can_be_read(tmp_path):
    expected = latents(5, shape=(4, 8))
    store = Store(SPACE, root=tmp_path)
    store.add(keys(texts(5)), expected)
    assert_as_kept(store.read(keys(texts(5)), [2]), expected[:, [2]])
    assert_as_kept(store.read(keys(texts(5)), [3, 0]), expected[:, [3, 0]])
    assert_as_kept(store.read(keys(texts(5)), slice(1, 3)), expected[:, 1:3])


def test_keys_tell_texts_apart_that_look_alike():
    alike = ["a", "a ", " a", "A", "a\x00", "", "é", "e\u0301"]
    assert len(set(keys(alike))) == len(alike)


def test_a_space_that_was_never_filled_is_empty_and_makes_no_folder(tmp_path):
    store = Store(SPACE, root=tmp_path / "new")
    assert len(store) == 0
    assert text_key("a") not in store
    assert not (tmp_path / "new").exists()


def test_the_store_lives_in_the_users_cache(own_cache):
    assert store_root() == Path(own_cache) / "latents"


# --- reuse ----------------------------------------------------------------------------------------------------------


def test_stored_vectors_equal_computed_ones(extractor, tmp_path):
    assert_as_kept(filled(extractor, texts(40), tmp_path), extractor(texts(40)))


def test_only_texts_that_no_corpus_had_before_are_computed(extractor, computed, tmp_path):
    filled(extractor, texts(30), tmp_path)
    assert sum(computed) == 30
    computed.clear()
    both = filled(extractor, texts(30, begin=20), tmp_path)
    assert sum(computed) == 20
    computed.clear()
    filled(extractor, texts(50)[::-1], tmp_path)
    assert computed == []
    assert_as_kept(both, extractor(texts(30, begin=20)))


def test_duplicates_are_computed_and_kept_once(extractor, computed, tmp_path):
    names = ["b", "a", "b", "a", "a"]
    found = filled(extractor, names, tmp_path)
    assert sum(computed) == 2
    assert len(Store(extractor.space(), root=tmp_path)) == 2
    assert_as_kept(found, extractor(names))


def test_progress_of_a_fill_adds_up_to_all_texts(extractor, tmp_path, small_windows):
    filled(extractor, texts(100), tmp_path)
    steps = []
    extractor.fill(Store(extractor.space(), root=tmp_path), texts(600), steps.append)
    assert steps[0] == 100
    assert sum(steps) == 600


def test_what_is_no_text_is_refused_before_anything_is_computed(extractor, computed, tmp_path):
    with pytest.raises(InputError, match="Text 1 is int"):
        filled(extractor, ["a", 7], tmp_path)
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
def test_another_choice_is_another_space(change, backbone, extractor):
    other = Extractor(**{"backbone": backbone("tiny-gpt2"), "readings": READINGS, **change})
    assert space_name(other.space()) != space_name(extractor.space())


def test_another_direction_is_another_space(backbone, extractor):
    other = Extractor(backbone("tiny-gpt2", "bidirectional"), READINGS)
    assert space_name(other.space()) != space_name(extractor.space())


def test_another_dtype_is_another_space_of_the_same_weights(extractor):
    other = Extractor(Backbone.load("tiny-gpt2", device="cpu", dtype="bfloat16"), READINGS)
    assert space_name(other.space()) != space_name(extractor.space())
    assert other.backbone.fingerprint == extractor.backbone.fingerprint


def test_other_weights_under_the_same_name_are_another_space(tmp_path):
    names = []
    for seed in (0, 1):
        build_tiny("gpt2", tmp_path / "model", seed=seed)
        names.append(space_name(Extractor(Backbone.load(tmp_path / "model"), READINGS).space()))
    assert names[0] != names[1]


def test_the_name_of_the_backbone_is_not_part_of_the_space(extractor):
    here = Extractor(Backbone.load(tiny_folder("tiny-gpt2"), device="cpu"), READINGS)
    assert here.space() != extractor.space()
    assert space_name(here.space()) == space_name(extractor.space())


def test_the_same_choices_are_the_same_space(backbone, extractor):
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


def test_a_process_killed_while_filling_loses_nothing_that_was_done(extractor, computed, tmp_path):
    tiny_folder("tiny-gpt2")
    command = [sys.executable, "-c", FILL, str(tmp_path), "3000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    done = 0
    while done <= 512:  # so at least two windows of 256 texts are finished
        done += int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    kept = len(Store(extractor.space(), root=tmp_path))
    assert 512 <= kept < 3_000
    assert all(not report.damaged for report in iter_spaces(verify=True, root=tmp_path))
    found = filled(extractor, texts(3_000), tmp_path)
    assert sum(computed) == 3_000 - kept
    assert_as_kept(found, extractor(texts(3_000)))


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


def test_two_processes_write_one_space_at_once(tmp_path):
    command = [sys.executable, "-c", ADD_MANY, str(tmp_path)]
    pipe = subprocess.PIPE
    processes = [subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) for _ in range(2)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        _, complaints = process.communicate(timeout=60)
        assert (process.returncode, complaints) == (0, "")
    (report,) = iter_spaces(verify=True, root=tmp_path)
    assert (report.texts, report.damaged) == (400, ())
    store = Store(SPACE, root=tmp_path)
    assert len(list(store.folder.glob("seg-*"))) == 200
    assert list(store.folder.glob(".tmp*")) == []
    assert_as_kept(store.read(keys(texts(400))), latents(400))


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


def test_a_kill_in_the_middle_of_writing_leaves_the_segments_whole(tmp_path):
    done = subprocess.run([sys.executable, "-c", KILLED_IN_WRITE, str(tmp_path)], capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL
    store = Store(SPACE, root=tmp_path)
    assert (text_key("a") in store, text_key("b") in store) == (True, False)
    store.add(keys(["b"]), latents(1))
    (report,) = iter_spaces(verify=True, root=tmp_path)
    assert (report.texts, report.damaged) == (2, ())


def test_ctrl_c_in_the_middle_keeps_the_finished_windows(extractor, computed, tmp_path, small_windows):
    steps = []

    def interrupt(count):
        steps.append(count)
        if sum(steps) > 512:  # in the third window of 256 texts
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extractor.fill(Store(extractor.space(), root=tmp_path), texts(900), interrupt)
    assert len(Store(extractor.space(), root=tmp_path)) == 512
    computed.clear()
    found = filled(extractor, texts(900), tmp_path)
    assert sum(computed) == 900 - 512
    assert_as_kept(found, extractor(texts(900)))


def test_a_store_sees_what_others_add_once_it_looks_again(tmp_path):
    ours, theirs = Store(SPACE, root=tmp_path), Store(SPACE, root=tmp_path)
    theirs.add(keys(["a"]), latents(1))
    assert len(ours) == 0
    ours.refresh()
    assert_as_kept(ours.read(keys(["a"])), latents(1))


# --- disks that refuse ----------------------------------------------------------------------------------------------


def assert_works_without_the_cache(extractor, root, caplog):
    names = texts(600)
    store = Store(extractor.space(), root=root)
    extractor.fill(store, names)
    assert not store.writable
    assert caplog.text.count("going on without the cache") == 1
    assert "D2V_CACHE" in caplog.text
    assert_as_kept(store.read(keys(names)), extractor(names))
    assert len(Store(extractor.space(), root=root)) == 0
    assert [file for file in root.rglob("*") if file.name.startswith(".tmp")] == []


def test_a_folder_that_cannot_be_made_costs_the_cache_not_the_work(extractor, tmp_path, caplog, small_windows):
    (tmp_path / "file").write_text("in the way")
    assert_works_without_the_cache(extractor, tmp_path / "file" / "latents", caplog)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_costs_the_cache_not_the_work(extractor, tmp_path, caplog, small_windows):
    root = tmp_path / "latents"
    root.mkdir(mode=0o555)
    assert_works_without_the_cache(extractor, root, caplog)


def test_a_read_only_disk_costs_the_cache_not_the_work(extractor, tmp_path, caplog, small_windows, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    assert_works_without_the_cache(extractor, tmp_path, caplog)


def test_a_full_disk_costs_the_cache_not_the_work(extractor, tmp_path, caplog, small_windows, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(store_module, "save_file", full)
    assert_works_without_the_cache(extractor, tmp_path, caplog)
    assert "No space left on device" in caplog.text


def test_a_disk_that_really_refuses_the_bytes_costs_the_cache_not_the_work(tmp_path, caplog):
    """The writer of safetensors files has an exception of its own for what the disk says."""
    store, expected = Store(SPACE, root=tmp_path), latents(2_000, shape=(2, 64))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    try:
        store.add(keys(texts(2_000)), expected)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "going on without the cache" in caplog.text
    assert_as_kept(store.read(keys(texts(2_000))), expected)


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
def test_damage_is_found_dropped_and_computed_again(damage, extractor, computed, tmp_path, small_windows):
    expected = filled(extractor, texts(600), tmp_path)
    store = Store(extractor.space(), root=tmp_path)
    segments = sorted(store.folder.glob("seg-*"))
    assert len(segments) == 3
    damage(segments[1])
    (report,) = iter_spaces(verify=True, root=tmp_path)
    assert report.damaged == (segments[1].name,)
    delete_damaged_segments(report, root=tmp_path)
    assert not segments[1].exists()
    assert [again.damaged for again in iter_spaces(verify=True, root=tmp_path)] == [()]
    lost = 600 - len(Store(extractor.space(), root=tmp_path))
    assert lost in (256, 88)
    computed.clear()
    np.testing.assert_array_equal(filled(extractor, texts(600), tmp_path), expected)
    assert sum(computed) == lost


@pytest.mark.parametrize("damage", [cut, cut_to_header, empty, garbage, another_writer])
def test_a_segment_that_cannot_be_opened_is_passed_over_with_a_warning(damage, tmp_path, caplog):
    store = Store(SPACE, root=tmp_path)
    store.add(keys(["a"]), latents(1))
    store.add(keys(["b"]), latents(1, seed=1))
    damage(next(file for file in store.folder.glob("seg-*") if text_key("a") in file.read_bytes()))
    again = Store(SPACE, root=tmp_path)
    assert "computed again" in caplog.text
    assert (text_key("a") in again, text_key("b") in again) == (False, True)
    again.add(keys(["a"]), latents(1))
    assert_as_kept(again.read(keys(["a", "b"])), np.concatenate([latents(1), latents(1, seed=1)]))


def test_no_changed_byte_goes_unseen_or_stops_the_store_from_opening(tmp_path, caplog):
    caplog.set_level(logging.ERROR, logger=store_module.__name__)
    store = Store(SPACE, root=tmp_path)
    store.add(keys(texts(3)), latents(3))
    (file,) = store.folder.glob("seg-*")
    sound = file.read_bytes()
    header = 8 + int.from_bytes(sound[:8], "little")
    padding = len(sound[:header].rstrip())
    vectors = store.read(keys(texts(3)))
    crashed, unseen = [], []
    for place in [*range(padding), *range(header, len(sound), 7)]:
        for value in {sound[place] ^ 1, ord("e"), ord("-")} - {sound[place]}:
            file.write_bytes(sound[:place] + bytes([value]) + sound[place + 1 :])
            try:
                (report,) = iter_spaces(verify=True, root=tmp_path)
                opened = Store(SPACE, root=tmp_path)
                if not report.damaged and not np.array_equal(opened.read(keys(texts(3))), vectors):
                    unseen.append((place, chr(value)))
            except Exception as error:
                crashed.append((place, chr(value), repr(error)))
    assert unseen == []
    assert crashed == []


def test_a_sound_space_is_reported_with_its_size_and_description(tmp_path):
    store = Store(SPACE, root=tmp_path)
    store.add(keys(texts(5)), latents(5))
    store.add(keys(texts(5, begin=5)), latents(5))
    (report,) = iter_spaces(root=tmp_path)
    assert report.name == store.folder.name == fingerprint(SPACE)
    assert report.space == SPACE
    assert report.texts == 10
    assert report.size == sum(file.stat().st_size for file in store.folder.glob("seg-*"))
    assert report.damaged == ()


def test_an_empty_or_missing_cache_has_no_spaces(tmp_path):
    assert list(iter_spaces(root=tmp_path)) == []
    assert list(iter_spaces(root=tmp_path / "none", verify=True)) == []


def test_a_space_that_lost_its_description_is_still_listed_and_still_serves(tmp_path):
    store = Store(SPACE, root=tmp_path)
    store.add(keys(["a"]), latents(1))
    (store.folder / "space.json").unlink()
    (report,) = iter_spaces(verify=True, root=tmp_path)
    assert (report.name, report.damaged) == (store.folder.name, ())
    assert len(Store(SPACE, root=tmp_path)) == 1


# what this package and the writer of safetensors files call their temporary files
STRAYS = [".tmp-k2x8.safetensors", ".tmpiBesZO"]


@pytest.mark.parametrize("name", STRAYS)
def test_old_stray_files_are_removed_and_young_ones_are_left_to_their_owner(name, tmp_path):
    store = Store(SPACE, root=tmp_path)
    store.add(keys(["a"]), latents(1))
    young, old = store.folder / name, store.folder / name.replace("k2x8", "zzzz").replace("iBesZO", "aaaaaa")
    for file in (young, old):
        file.write_bytes(b"half a segment")
    yesterday = time.time() - 86_400
    os.utime(old, (yesterday, yesterday))
    assert len(Store(SPACE, root=tmp_path)) == 1
    (report,) = iter_spaces(verify=True, root=tmp_path)
    assert (report.texts, report.damaged) == (1, ())
    assert (young.exists(), old.exists()) == (True, False)


def test_one_space_can_be_removed(tmp_path):
    first, second = Store({"n": 1}, root=tmp_path), Store({"n": 2}, root=tmp_path)
    for store in (first, second):
        store.add(keys(["a"]), latents(1))
    delete_space(first.folder.name, root=tmp_path)
    assert [report.name for report in iter_spaces(root=tmp_path)] == [second.folder.name]


def test_all_spaces_can_be_removed(tmp_path):
    for number in range(3):
        Store({"n": number}, root=tmp_path).add(keys(["a"]), latents(1))
    delete_space("all", root=tmp_path)
    assert list(iter_spaces(root=tmp_path)) == []
    delete_space("all", root=tmp_path)


def test_removing_what_is_not_there_suggests_the_nearest(tmp_path):
    store = Store(SPACE, root=tmp_path)
    store.add(keys(["a"]), latents(1))
    with pytest.raises(InputError, match=store.folder.name):
        delete_space(store.folder.name[:-2], root=tmp_path)
    with pytest.raises(InputError, match="empty"):
        delete_space("x", root=tmp_path / "none")
    with pytest.raises(InputError):
        delete_space("..", root=tmp_path)
    assert len(Store(SPACE, root=tmp_path)) == 1
