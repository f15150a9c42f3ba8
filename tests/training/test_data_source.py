"""Files of the data: which stage learns from which, sources, and files of the pool's columns."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from scipy.stats import spearmanr

from decoder2vec.encoder import Encoder
from decoder2vec.errors import DataFileError, InputError
from decoder2vec.maths.metrics import pairwise_cos_sim
from decoder2vec.text.data_check import count_shared_texts
from decoder2vec.training import api
from decoder2vec.training.api import train
from decoder2vec.training.card import find_licence
from decoder2vec.training.data import DataFiles, load_data
from decoder2vec.training.data_source import DataSource
from decoder2vec.training.plan import load_plan
from decoder2vec.training.results import Improvement
from toys.texts import sentences
from toys.training import TOPICS, WHEN, toy_data, toy_pairs

TEXTS = {
    "texts-1.tsv.gz": [("source", "text"), *(("wiki", text) for text in sentences(20)), ("web", "One more text.")],
    "texts-2.tsv.gz": [("source", "text"), *(("web", f"{text} again") for text in sentences(20))],
}
PAIRS = [("source", "text1", "text2")] + [
    (source, f"the {topic} {here} ({source})", f"{topic} {there} ({source})")
    for source in ("qa", "titles")
    for topic in TOPICS
    for here, there in pairwise(WHEN)
]
TRIPLETS = [("anchor", "positive", "negative")] + [
    (f"a {topic} {when}", f"it {topic} {when}", f"not {TOPICS[index - 1]}")
    for index, topic in enumerate(TOPICS)
    for when in WHEN
]
TEACHERS = ["static:tiny-gpt2"]


def write_tables(folder, tables):
    for name, rows in tables.items():
        content = "".join("\t".join(row) + "\n" for row in rows).encode()
        (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return folder


@pytest.fixture
def folder(tmp_path):
    """Texts in two gzipped files, pairs and triplets; not named after their roles."""
    return write_tables(tmp_path, {**TEXTS, "mined.tsv.gz": PAIRS, "nli.tsv": TRIPLETS})


def load(folder, *names, plan="general"):
    messages = []
    source = DataSource.of([folder / name for name in names])
    stages = source.load(load_plan(plan), messages.append)
    return {stage.name: (stage, data) for stage, data in stages}, messages


def test_every_file_goes_to_the_stages_of_its_kind(folder):
    stages, messages = load(folder, "nli.tsv", "texts-1.tsv.gz", "mined.tsv.gz", "texts-2.tsv.gz")
    assert list(stages) == ["distill", "contrastive", "triplets"]
    files = [stage.data for stage, _ in stages.values()]
    assert files[0].texts == ("texts-1.tsv.gz", "texts-2.tsv.gz")
    assert (files[1].pairs, files[2].triplets) == ("mined.tsv.gz", "nli.tsv")
    assert len(stages["distill"][1].texts) == 41 and not any("left out" in message for message in messages)


def test_an_optional_stage_without_a_file_is_left_out(folder):
    stages, messages = load(folder, "texts-1.tsv.gz", "mined.tsv.gz")
    assert list(stages) == ["distill", "contrastive"]
    assert "triplets: left out, the data have no file for it" in messages
    (folder / "nli.tsv").rename(folder / "triplets.tsv")
    assert list(load(folder, "texts-1.tsv.gz", "mined.tsv.gz")[0]) == ["distill", "contrastive"]  # it was not named
    named = load(folder, "texts-1.tsv.gz", "mined.tsv.gz", "triplets.tsv")[0]
    assert list(named) == ["distill", "contrastive", "triplets"]


@pytest.mark.parametrize("in_memory", [False, True])
def test_a_plan_without_data_for_any_stage_is_refused(in_memory, tmp_path):
    plan = load_plan("general")
    plan = replace(plan, stages=tuple(replace(stage, optional=True) for stage in plan.stages[1:]))
    source = DataSource.of(toy_data() if in_memory else tmp_path)
    with pytest.raises(InputError, match=r"contrastive, triplets are optional, and .* choose a stage with --stages"):
        source.load(plan, lambda _: None)


@pytest.mark.parametrize("value", ['"yes"', "1"])
def test_optional_is_true_or_false(value, tmp_path):
    stage = f'[[stages]]\nname = "one"\nrecipe = "lora"\noptional = {value}\n'
    (tmp_path / "plan.toml").write_text(stage)
    with pytest.raises(InputError, match="optional must be true or false, not"):
        load_plan(tmp_path / "plan.toml")


def test_a_stage_that_is_named_is_not_optional():
    assert [stage.optional for stage in load_plan("general").stages] == [False, False, True]
    assert not load_plan("general", stages=["triplets"]).stages[0].optional


def test_missing_and_unsuitable_files_fail(folder):
    with pytest.raises(DataFileError, match="No file of pairs was named"):
        load(folder, "texts-1.tsv.gz")
    with pytest.raises(InputError, match=r"mined.tsv.gz holds pairs, and nothing here learns from those"):
        load(folder, "texts-1.tsv.gz", "mined.tsv.gz", plan="bidirectional")
    with pytest.raises(InputError, match="one folder or several files"):
        DataSource.of([folder, folder / "nli.tsv"])
    with pytest.raises(DataFileError, match=r"There is no file or folder .*none.tsv"):
        DataSource.of([folder / "none.tsv"])


def test_sources_of_texts_and_pairs_are_counted(folder):
    files = DataFiles(texts=("texts-1.tsv.gz", "texts-2.tsv.gz"), pairs="mined.tsv.gz")
    data = load_data(folder, files, needs=["corpus", "positive_pairs"])
    assert data.describe()["plain texts"] == "41 (web 21, wiki 20)"
    names = [data.contrastive.source_names[source] for source in data.contrastive.sources]
    assert Counter(names) == data.contrastive.source_sizes() and set(names) == {"qa", "titles"}
    for anchor, name in zip(data.contrastive.anchors, names, strict=True):
        assert f"({name})" in data.contrastive.texts[anchor]


def test_examples_set_aside_are_not_seen_in_training(folder):
    data = load_data(folder, DataFiles(pairs="mined.tsv.gz"), needs=["positive_pairs"])
    assert count_shared_texts(data.dev[0].left, data.hash_texts())[0] == 0
    assert count_shared_texts(data.contrastive.pairs()[0], data.hash_texts()) == (2, 2)


def test_files_without_a_column_are_sources_themselves(folder):
    for name in ("one", "two"):
        lines = [f"{name} {n}\t{name} {n} b" for n in range(20)]
        (folder / f"{name}.tsv").write_text("\n".join(["anchor\tpositive", *lines]))
    both = load_data(folder, DataFiles(pairs=("one.tsv", "two.tsv")), needs=["positive_pairs"]).contrastive
    assert both.source_names == ("one", "two")
    assert not both.known_positives(list(range(len(both)))).any(), "lines of different files are different groups"
    alone = load_data(folder, DataFiles(pairs="one.tsv"), needs=["positive_pairs"]).contrastive
    assert alone.source_sizes() == {}


# --- the recipe -----------------------------------------------------------------------------------------------------


SETTINGS = [
    "distill.training.epochs=4",
    "distill.training.batch=10",
    "distill.training.rate=3e-3",
    "distill.training.evaluate_every=4",
    "contrastive.training.batch=12",
    "contrastive.training.epochs=3",
    "contrastive.training.rate=2e-3",
    "contrastive.training.evaluate_every=4",
    "triplets.training.batch=16",
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory, own_cache):
    """(encoder folder, result) of the recipe on a tiny model; a test file shares two texts with the training texts."""
    folder, pairs = tmp_path_factory.mktemp("general"), toy_pairs()
    (folder / "tasks" / "sts").mkdir(parents=True)
    columns = ("sentence1", "sentence2", "score")
    seen = [sentences(20)[3].upper() + "!", "one more text"]
    test = [columns, (seen[0], "A new text.", "1"), (seen[1], "Another new text.", "0")]
    dev = [columns, *zip(pairs.left, pairs.right, map(str, pairs.scores), strict=True)]
    data = {**TEXTS, "mined.tsv.gz": PAIRS, "nli.tsv": TRIPLETS}
    write_tables(folder, {**data, "dev.tsv": dev, "own.tsv": test, "tasks/sts/mine-test.tsv": test})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "cache_root", lambda: folder / "notes")
        result = train(
            "general",
            [folder / name for name in data],
            "tiny-llama",
            folder / "enc",
            dev=[folder / "dev.tsv"],
            test=[folder / "own.tsv"],
            tasks=folder / "tasks",
            teachers=TEACHERS,
            settings=SETTINGS,
            device="cpu",
        )
    return folder / "enc", result


def test_the_recipe_general_trains_all_stages(finished):
    folder, result = finished
    summaries = {stage["name"]: stage for stage in result.results["stages"]}
    assert list(summaries) == ["distill", "contrastive", "triplets"]
    assert all(summaries[name]["teachers"][0]["name"] == TEACHERS[0] for name in ("distill", "contrastive"))
    assert "teachers" not in summaries["triplets"]
    stages = folder.with_name("enc-stages")
    first, second = (
        json.loads((stages / name / "results.json").read_text())["seeds"][0]["notes"]
        for name in ("1-distill", "2-contrastive")
    )
    assert first["training"]["losses"][-1] < first["training"]["losses"][0]
    assert second["training"]["losses"][-1] < second["training"]["losses"][0]
    assert second["mined"]["negatives"] > 0
    loaded = Encoder.load(folder, device="cpu")
    assert loaded.fingerprint == result.encoder.fingerprint and loaded.spec.attention == "bidirectional"


def test_general_is_named_and_compared_with_the_untrained_model(finished):
    folder, result = finished
    first = json.loads((folder.with_name("enc-stages") / "1-distill" / "results.json").read_text())
    untrained = Encoder.from_pretrained(
        "tiny-llama", pooling="mean", attention="bidirectional", template="plain", device="cpu", normed=True
    )
    pairs = toy_pairs()
    cosines = pairwise_cos_sim(untrained.encode(pairs.left), untrained.encode(pairs.right))
    expected = 100 * spearmanr(cosines, pairs.scores)[0]
    improvement = Improvement.of(result.results)
    assert improvement.start == pytest.approx(expected, abs=0.02) and improvement.start_name == "untrained"
    assert result.results["plan"] == result.record["name"] == "general" and first["plan"] == "general, stage distill"
    assert (folder / "README.md").read_text().startswith("# general: an encoder made of tiny-llama")


def test_later_stage_with_dev_of_its_own_names_its_start(tmp_path, monkeypatch):
    """Dev pairs set aside from the triplets: the first stage had none, so the untrained model has no score."""
    monkeypatch.setattr(api, "cache_root", lambda: tmp_path / "notes")
    data = {**TEXTS, "nli.tsv": TRIPLETS}
    write_tables(tmp_path, data)
    settings = [setting for setting in SETTINGS if not setting.startswith("contrastive")]
    files, stages = [tmp_path / name for name in data], ["distill", "triplets"]
    options = {"teachers": TEACHERS, "settings": settings, "stages": stages, "device": "cpu"}
    result = train("general", files, "tiny-llama", tmp_path / "enc", **options)
    assert "the model after distill" in str(Improvement.of(result.results)) + result.results["headline"]


def test_card_and_results_name_teacher_texts_and_overlap(finished):
    folder, result = finished
    card = (folder / "README.md").read_text()
    assert "| teacher | static:tiny-gpt2 (licence: unknown) |" in card
    assert "- stage distill, plain texts: 41 (web 21, wiki 20)\n" in card
    assert "- stage contrastive, examples: 48 (qa 24, titles 24)\n" in card
    overlap = result.results["overlap"]
    assert overlap["own"] == overlap["mine"] == {"shared": 2, "texts": 4}, "texts of the first stage"
    assert "| own | 4 | 2 |" in card and "| mine | 4 | 2 |" in card
    assert overlap["dev"]["shared"] == 0


def test_licences_are_read_from_the_folder_of_a_model(tmp_path):
    assert find_licence("random:16") == find_licence(str(tmp_path)) == "unknown"
    (tmp_path / "config.json").write_text('{"license": "mit"}')
    assert find_licence(str(tmp_path)) == "mit"
    (tmp_path / "README.md").write_text('---\nlanguage: en\nlicense: "apache-2.0"\n---\n# A model\nlicense: none\n')
    assert find_licence(str(tmp_path)) == "apache-2.0"


def test_folder_with_scored_pairs_alone_names_the_objective_for_them(tmp_path):
    write_tables(tmp_path, {"train.tsv": [("sentence1", "sentence2", "score"), ("a", "b", "1.0")]})
    source = DataSource.of(tmp_path)
    assert source.has_scored_pairs()
    with pytest.raises(DataFileError, match=r"objective\.name=cosent to learn from the scored pairs of train\.tsv"):
        source.load(load_plan("lora", []), lambda _: None)
