"""Teachers: vectors are those of the teacher with its prompts, computed once, resumed, and stored in two precisions."""

from __future__ import annotations

import gzip
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch

import decoder2vec
from decoder2vec.config import from_table, to_table
from decoder2vec.encoder import Encoder
from decoder2vec.errors import BackboneError, EncoderError, InputError
from decoder2vec.evaluation.baselines import RandomVectors, load_encoder
from decoder2vec.export.sentence_transformers import write_sentence_transformers
from decoder2vec.training import teachers
from decoder2vec.training.data import DataFiles, load_data
from decoder2vec.training.objectives.distill import DistillConfig
from decoder2vec.training.objectives.guided import GuidedConfig
from decoder2vec.training.plan import Plan, Stage
from decoder2vec.training.recipes.adapter import AdapterRecipe
from decoder2vec.training.teachers import Teacher, TeacherVectors
from toys.texts import sentences
from toys.training import small_recipe, toy_data

TEXTS = sentences()
ROWS = np.arange(len(TEXTS))
ONE = Teacher("random:16")


@pytest.fixture(autouse=True)
def empty_store(tmp_path, monkeypatch):
    monkeypatch.setattr("decoder2vec.activations.store.store_root", lambda: tmp_path / "store")


@pytest.fixture
def counted(monkeypatch):
    """Numbers of texts that random teachers have encoded, call by call."""
    calls, embed = [], RandomVectors.embed
    monkeypatch.setattr(RandomVectors, "embed", lambda self, texts: calls.append(len(texts)) or embed(self, texts))
    return calls


@pytest.fixture(scope="module")
def prompted(own_cache, tmp_path_factory):
    """A sentence-transformers folder with prompts."""
    folder = tmp_path_factory.mktemp("st") / "model"
    prompts = {"query": "query: ", "document": "passage: "}
    options = {"template": "plain", "pooling": "lasttoken", "normed": True, "device": "cpu", "prompts": prompts}
    write_sentence_transformers(Encoder.from_pretrained("tiny-llama", **options), folder)
    return folder


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


# --- vectors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("precision", "tolerance"), [("float16", 1e-3), ("int8", 2e-2)])
def test_vectors_are_those_of_the_teacher(precision, tolerance):
    vectors = TeacherVectors(Teacher("random:16", precision=precision), TEXTS)
    rows = np.array([3, 0, 3])
    expected = unit(load_encoder("random:16").encode([TEXTS[row] for row in rows]))
    assert np.allclose(vectors.batch(rows), expected, atol=tolerance)
    assert vectors.dim == 16


def test_int8_takes_half_the_disk(tmp_path):
    for precision in ("float16", "int8"):
        TeacherVectors(Teacher("random:1000", precision=precision), TEXTS)
    small, large = sorted(file.stat().st_size for file in (tmp_path / "store").glob("*/seg-*"))
    assert small < 0.55 * large


def test_interrupted_run_keeps_what_is_finished(monkeypatch, counted):
    monkeypatch.setattr(teachers, "_TEXTS_PER_SEGMENT", 6)
    monkeypatch.setattr(teachers, "_TEXTS_AT_ONCE", 2)
    embed = RandomVectors.embed

    def stop_at_the_fifth(self, texts):
        if len(counted) == 4:
            raise KeyboardInterrupt
        return embed(self, texts)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(RandomVectors, "embed", stop_at_the_fifth)
        TeacherVectors(ONE, TEXTS)
    assert counted == [2, 2, 2, 2]
    TeacherVectors(ONE, TEXTS)
    assert sum(counted) == len(TEXTS), "the first eight are not computed again"
    TeacherVectors(ONE, [*TEXTS[::-1], TEXTS[0]])
    assert sum(counted) == len(TEXTS)


def test_rows_follow_the_texts_whatever_was_encoded_first():
    texts = [f"{'long ' * (n % 7)}text {n}" for n in range(40)]
    TeacherVectors(ONE, texts[::3])
    vectors = TeacherVectors(ONE, [*texts, texts[5]]).batch(np.arange(41))
    assert np.allclose(vectors, unit(load_encoder("random:16").encode([*texts, texts[5]])), atol=1e-3)


def test_renamed_teacher_finds_its_vectors(tmp_path, own_cache):
    encoder = Encoder.from_pretrained("tiny-llama", device="cpu")
    for name in ("one", "other"):
        encoder.save(tmp_path / name)
        TeacherVectors(Teacher(str(tmp_path / name)), TEXTS)
    assert len(list((tmp_path / "store").iterdir())) == 1


def test_vectors_that_are_not_finite_are_refused(monkeypatch):
    monkeypatch.setattr(RandomVectors, "embed", lambda self, texts: np.full((len(texts), 16), np.nan, np.float32))
    with pytest.raises(EncoderError, match="teacher random:16 gives vectors that are not finite"):
        TeacherVectors(ONE, TEXTS)


# --- prompts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "queries", "expected"),
    [
        ({}, False, "passage: "),
        ({}, True, "query: "),
        ({"prompt": "text: "}, False, "text: "),
        ({"prompt": ""}, False, ""),
        ({"prompt": "text: "}, True, "query: "),
        ({"query_prompt": "ask: "}, True, "ask: "),
    ],
)
def test_prompts_of_teacher_and_user_are_used(settings, queries, expected, prompted):
    from sentence_transformers import SentenceTransformer

    vectors = TeacherVectors(Teacher(str(prompted), **settings), TEXTS, queries=queries)
    reference = SentenceTransformer(str(prompted), device="cpu").encode([expected + text for text in TEXTS], prompt="")
    assert np.allclose(vectors.batch(ROWS), unit(reference), atol=2e-3)


def test_prompts_roles_and_precisions_are_kept_apart(tmp_path, prompted):
    name = str(prompted)
    variants = [Teacher(name), Teacher(name, prompt="x"), Teacher(name, precision="int8"), Teacher("random:17")]
    batches = [TeacherVectors(teacher, TEXTS).batch(ROWS) for teacher in variants]
    batches.append(TeacherVectors(variants[0], TEXTS, queries=True).batch(ROWS))
    assert len(list((tmp_path / "store").iterdir())) == 5
    assert not torch.allclose(batches[0], batches[1], atol=1e-3) and batches[3].shape == (len(TEXTS), 17)


# --- kinds of teachers ----------------------------------------------------------------------------------------------


def test_file_of_vectors_is_a_teacher(tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    expected = np.random.default_rng(0).normal(size=(len(TEXTS), 12)).astype(np.float32)
    np.save(tmp_path / "texts.npy", expected)
    settings = ["training.epochs=1", "training.batch=8"]
    teacher = str(tmp_path / "texts.npy")
    options = {"teachers": [teacher], "settings": settings, "device": "cpu"}
    result = decoder2vec.train("distill", tmp_path / "texts.txt", "tiny-llama", tmp_path / "enc", **options)
    assert result.results["seeds"][0]["notes"]["teachers"][0]["name"] == teacher
    assert np.allclose(TeacherVectors(Teacher(teacher), TEXTS).batch(ROWS), unit(expected), atol=1e-3)
    with pytest.raises(InputError, match="has no vector for 1 of 1 texts, such as 'Another'"):
        TeacherVectors(Teacher(teacher), [*TEXTS, "Another"])


def test_hub_id_without_network_is_a_plain_sentence(monkeypatch):
    import huggingface_hub

    def fail(*_, **__):
        raise ConnectionError

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    for name in ("someone/encoder", "minilm"):
        with pytest.raises(BackboneError) as raised:
            Teacher(name).load()
        message = str(raised.value)
        assert message.startswith(f"There is no teacher {name!r}, neither here nor on the model hub; give ")
        for possible in ("all-minilm-l6-v2", "folder", "OWNER/NAME", "https://host/v1#model", ".npy"):
            assert possible in message


def test_hub_id_of_sentence_transformers_is_loaded(monkeypatch, prompted):
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda name, file: str(prompted / file))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **_: str(prompted))
    teacher = Teacher("someone/encoder").load()
    assert teacher.kind == "sentence-transformers" and teacher.prompts["query"] == "query: "


def test_choices_reach_the_encoder(own_cache):
    assert Teacher("tiny-llama", pooling="mean").load().spec.readings[0].pooling == "mean"
    for name in ("random:16", "tiny-llama"):
        with pytest.raises(InputError, match="leave out requests_per_minute"):
            Teacher(name, requests_per_minute=60).load()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": ""}, "A teacher needs a name"),
        ({"name": "x", "precision": "int4"}, "Unknown precision 'int4'"),
        ({"name": "x", "pooling": "middle"}, "Unknown pooling 'middle'"),
    ],
)
def test_unfit_teachers_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        Teacher(**settings)


def test_teacher_survives_a_plan():
    teacher = Teacher("x", 0.5, prompt="a: ", precision="int8")
    for written in (teacher, Teacher("y")):
        assert from_table(Teacher, json.loads(json.dumps(to_table(written)))) == written


# --- texts ----------------------------------------------------------------------------------------------------------


def test_gzipped_table_with_other_columns_is_read(tmp_path):
    rows = ["source\ttext", *(f'wiki\t"{text}' for text in TEXTS), f'web\t"{TEXTS[0]}']
    (tmp_path / "texts-1.tsv.gz").write_bytes(gzip.compress("\n".join(rows).encode()))
    data = load_data(tmp_path, DataFiles(texts="texts-1.tsv.gz"), needs=["corpus"])
    assert data.texts == tuple(f'"{text}' for text in TEXTS)


@pytest.mark.parametrize("recipe", ["lora", "freeze"])
def test_a_replaced_teacher_is_another_training(recipe, tmp_path, monkeypatch, data, training):
    monkeypatch.setattr("decoder2vec.training.api.cache_root", lambda: tmp_path / "notes")
    if recipe == "lora":
        distilled = small_recipe("lora", epochs=1, objective=DistillConfig())
    else:
        distilled = replace(training().recipe, pretrain="distill")
    teacher = tmp_path / "teacher.jsonl"

    def run(out, seed):
        numbers = np.random.default_rng(seed).normal(size=(len(data.texts), 3)).tolist()
        rows = zip(data.texts, numbers, strict=True)
        teacher.write_text("".join(json.dumps({"text": t, "embedding": v}) + "\n" for t, v in rows), "utf-8")
        options = {"teachers": [teacher], "overwrite": True, "device": "cpu", "dtype": "float32"}
        result = decoder2vec.train(distilled, data, "tiny-llama", tmp_path / out, **options)
        notes = result.results["seeds"][0]["notes"]
        return result.trained, notes.get("pretraining", notes)["teachers"][0]["fingerprint"]

    _, first = run("a", 0)
    assert run("a", 0) == (False, first), "the same teacher is not trained on again"
    second = run("a", 1)
    assert second == (True, load_encoder(teacher).fingerprint) and second[1] != first
    assert run("b", 0) == (True, first)


def test_missing_teacher_is_found_before_data_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr("decoder2vec.training.data_source.DataSource.load", lambda *_: pytest.fail("read"))
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    with pytest.raises(BackboneError, match="There is no teacher 'not/a/teacher'"):
        decoder2vec.train("distill", tmp_path / "texts.txt", "tiny-llama", tmp_path / "a", teachers=["not/a/teacher"])


# --- loads ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def loads(monkeypatch):
    """Names of the teachers whose encoders were loaded, load by load."""
    names = []
    monkeypatch.setattr(teachers, "load_encoder", lambda name, **kw: names.append(name) or load_encoder(name, **kw))
    return names


@pytest.mark.parametrize("recipe", ["lora", "guided", "freeze"])
@pytest.mark.parametrize("saved", [True, False], ids=["saved encoder", "plain model"])
def test_a_run_loads_each_teacher_once(recipe, saved, loads, tmp_path, monkeypatch, data, training, own_pretrained):
    monkeypatch.setattr("decoder2vec.training.api.cache_root", lambda: tmp_path / "notes")
    folder = str(Encoder.from_pretrained("tiny-gpt2", device="cpu").save(tmp_path / "teacher"))
    teacher = Teacher(folder) if saved else Teacher("tiny-gpt2", pooling="mean")
    if recipe == "freeze":
        distilled = replace(training().recipe, pretrain="distill", teachers=(teacher,))
    else:
        config = DistillConfig if recipe == "lora" else GuidedConfig
        distilled = small_recipe("lora", epochs=1, objective=config(teachers=(teacher,)))
    used = toy_data() if recipe == "guided" else data

    def run(out):
        loads.clear()
        decoder2vec.train(distilled, used, "tiny-llama", tmp_path / out, seeds=(0, 1), device="cpu", dtype="float32")
        return loads

    assert run("a") == [teacher.name]
    shutil.rmtree(own_pretrained, ignore_errors=True)
    assert run("b") == ([] if saved else [teacher.name]), "the vectors of the first run are found on disk"


@pytest.mark.parametrize("found", [False, True], ids=["trained", "found"])
def test_teachers_are_released_after_the_last_stage(found, tmp_path, monkeypatch, data):
    """Each holds memory or a connection; one that was loaded for its fingerprint alone is let go, too."""
    monkeypatch.setattr("decoder2vec.training.api.cache_root", lambda: tmp_path / "notes")
    distilled = small_recipe("lora", epochs=1, objective=DistillConfig(teachers=(ONE,)))
    plan = Plan("both", (Stage("first", distilled), Stage("second", small_recipe("lora", epochs=1))))
    held = {}

    def run(out):
        return decoder2vec.train(plan, replace(toy_data(), texts=data.texts), "tiny-llama", tmp_path / out)

    def record(self, *args, **kwargs):
        held["teachers"] = list(teachers._shared.get().encoders)
        return attach(self, *args, **kwargs)

    attach = AdapterRecipe.attach
    monkeypatch.setattr(AdapterRecipe, "attach", record)
    run("a")
    if found:
        run("b")
    assert held == {"teachers": []}


def test_runs_in_two_threads_share_no_teachers():
    with teachers.share_teachers(), ThreadPoolExecutor(1) as workers:
        encoder = ONE.load()
        assert ONE.load() is encoder
        assert workers.submit(ONE.load).result() is not encoder
