"""The suite of tasks: what is encoded, cached, resumed, flagged and refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import sparse

from decoder2vec.config import EncoderSpec, Reading
from decoder2vec.encoder import Encoder
from decoder2vec.errors import DataFileError, EncoderError, InputError
from decoder2vec.evaluation.suite import Suite, summarise
from decoder2vec.evaluation.tasks.layout import find_tasks
from decoder2vec.text.data_check import hash_pairs, hash_texts
from toys.tasks import ConstantEncoder, RandomEncoder, TopicEncoder, write_toy_tasks

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_toy_tasks(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def tasks(folder):
    return find_tasks(folder)


@pytest.fixture(autouse=True)
def own_vectors(tmp_path, monkeypatch):
    """A vector cache for each test."""
    monkeypatch.setenv("D2V_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "vectors"


def unique_texts(tasks):
    return {text for task in tasks for texts in task.texts().values() for text in texts}


@pytest.mark.parametrize("encoder", [RandomEncoder, TopicEncoder], ids=["no fingerprint", "fingerprint"])
def test_every_text_is_encoded_once_over_all_tasks(tasks, encoder):
    encoder = encoder()
    suite = Suite(encoder, tasks)
    estimate = suite.estimate()
    document = suite.run()
    assert len(encoder.encoded) == len(set(encoder.encoded)) == len(unique_texts(tasks)) == estimate.texts
    assert sum(result["texts"] for result in document["tasks"].values()) > 2 * len(unique_texts(tasks))


def test_scores_do_not_depend_on_the_other_tasks(tasks):
    together = Suite(RandomEncoder(), tasks).run()["tasks"]
    for task in tasks:
        alone = Suite(RandomEncoder(), [task]).run()["tasks"][task.name]
        assert {**alone, "seconds": 0} == {**together[task.name], "seconds": 0}


def test_prompts_are_chosen_by_task_kind_and_role(tasks):
    encoder = RandomEncoder()
    encoder.prompts = {"query": "Q: ", "passage": "P: ", "clustering": "C: ", "same": "S: "}
    Suite(encoder, tasks, prompts={"reranking-query": "R: "}).run()
    expected = set()
    for task in tasks:
        for role, texts in task.texts().items():
            kind = {"groups": "C: ", "same": "S: "}.get(task.name, "")
            prompt = {"query": "R: " if task.kind == "reranking" else "Q: ", "document": "P: "}.get(role, kind)
            expected |= {(text, prompt) for text in texts}
    assert len(encoder.encoded) == len(expected) and set(encoder.encoded) == expected


def test_encode_query_and_document_are_used_without_prompts(tasks):
    class QueryDocumentEncoder(RandomEncoder):
        queries, documents = 0, 0

        def encode_query(self, texts):
            self.queries += len(texts)
            return self.encode(texts)

        def encode_document(self, texts):
            self.documents += len(texts)
            return self.encode(texts)

    encoder = QueryDocumentEncoder()
    Suite(encoder, [task for task in tasks if task.name in ("mini", "mine")]).run()
    (mini,) = (task.texts() for task in tasks if task.name == "mini")
    assert (encoder.queries, encoder.documents) == (len(mini["query"]), len(mini["document"]))


def test_encoder_is_described_scored_and_written(tasks, backbone, tmp_path):
    spec = EncoderSpec("tiny-llama", (Reading(2, "mean"),), prompts=(("query", "Find: "),))
    encoder = Encoder(backbone("tiny-llama"), spec)
    document = Suite(encoder, tasks, "tiny", tmp_path / "out.json").run()
    assert set(document) == {"encoder", "tasks", "summary", "cost", "versions", "command"}
    weights = sum(weight.numel() for weight in encoder.backbone.model.parameters())
    description = {"name": "tiny", "fingerprint": encoder.fingerprint, "kind": "decoder2vec", "dim": 32, "layers": 2}
    assert document["encoder"] == {**description, "parameters": weights, "spec": encoder.spec.to_json()}
    cost = document["cost"]
    assert cost["tokens"] == pytest.approx(encoder.stats.tokens, abs=2)
    assert cost["tokens"] / cost["tokens_per_second"] == pytest.approx(cost["seconds"], abs=0.0051)  # two decimals
    assert cost["parameters"] == weights and cost["peak_megabytes"] > 50
    for name, result in document["tasks"].items():
        assert {"kind", "metric", "score", "interval", "constant_score", "scores", "texts", "seconds"} <= set(result), (
            name
        )
        assert result["score"] == result["scores"][result["metric"]]
    assert json.loads((tmp_path / "out.json").read_text(encoding="utf-8")) == document
    items = json.loads((tmp_path / "out.items.json").read_text(encoding="utf-8"))
    assert set(items) == set(document["tasks"])
    assert {tuple(sorted(item)) for item in items.values()} == {("values",), ("gold", "predicted")}


def test_second_run_encodes_and_scores_nothing(tasks, tmp_path):
    first = Suite(TopicEncoder(), tasks, json_file=tmp_path / "out.json").run()
    second_encoder = TopicEncoder()
    suite = Suite(second_encoder, tasks, json_file=tmp_path / "out.json")
    assert suite.unfinished_tasks() == [] and suite.text_count == 0
    scored = []
    assert {**suite.run(on_result=lambda name, _: scored.append(name)), "cost": 0} == {**first, "cost": 0}
    assert (second_encoder.encoded, scored) == ([], [])


def test_cached_vectors_are_reused_with_their_cost(tasks):
    first = Suite(TopicEncoder(), tasks).run()
    second_encoder = TopicEncoder()
    second = Suite(second_encoder, tasks).run()
    assert second_encoder.encoded == []
    assert second["cost"]["seconds"] == pytest.approx(first["cost"]["seconds"], abs=0.01)
    assert second["summary"] == first["summary"]


def test_encoder_without_fingerprint_is_never_resumed(tasks, tmp_path, own_vectors):
    Suite(RandomEncoder(), tasks, "me", tmp_path / "out.json").run()
    second_encoder = RandomEncoder()
    suite = Suite(second_encoder, tasks, "me", tmp_path / "out.json")
    assert len(suite.unfinished_tasks()) == len(tasks)
    suite.run()
    assert len(second_encoder.encoded) == len(unique_texts(tasks))
    assert not own_vectors.exists()


def test_tasks_are_added_to_a_result_file(tasks, tmp_path):
    file = tmp_path / "out.json"
    Suite(TopicEncoder(), tasks[:2], json_file=file).run()
    assert set(Suite(TopicEncoder(), tasks[2:4], json_file=file).run()["tasks"]) == {task.name for task in tasks[:4]}


def test_task_with_changed_data_or_prompt_is_run_again(folder, tmp_path):
    file = tmp_path / "out.json"
    Suite(TopicEncoder(), find_tasks(folder, ["sts"]), json_file=file).run()
    assert Suite(TopicEncoder(), find_tasks(folder, ["sts"], limit=3), json_file=file).unfinished_tasks()
    assert Suite(TopicEncoder(), find_tasks(folder, ["sts"]), json_file=file, prompts={"sts": "new"}).unfinished_tasks()
    assert not Suite(TopicEncoder(), find_tasks(folder, ["sts"]), json_file=file).unfinished_tasks()


def test_results_of_another_encoder_are_not_overwritten(tasks, tmp_path):
    file = tmp_path / "out.json"
    Suite(TopicEncoder(), tasks[:1], json_file=file).run()
    before = file.read_bytes()

    class OtherEncoder(TopicEncoder):
        fingerprint = "other"

    for encoder, name in ((OtherEncoder(), ""), (RandomEncoder(), "me")):
        with pytest.raises(InputError, match="has results of another encoder"):
            Suite(encoder, tasks, name, file)
    assert file.read_bytes() == before


@pytest.mark.parametrize("content", ["", "[]", '{"results": []}'])
def test_unrelated_file_is_not_overwritten(tasks, tmp_path, content):
    file = tmp_path / "out.json"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(DataFileError, match="is not a result of `d2v eval --tasks`"):
        Suite(TopicEncoder(), tasks, json_file=file)
    assert file.read_text(encoding="utf-8") == content


KILLED = """
import os, sys
from pathlib import Path
from toys.tasks import TopicEncoder
from decoder2vec.evaluation.suite import Suite
from decoder2vec.evaluation.tasks.layout import find_tasks

scored = []
def on_result(name, result):
    scored.append(name)
    if len(scored) == 3:
        os.kill(os.getpid(), 9)

Suite(TopicEncoder(), find_tasks(sys.argv[1]), json_file=Path(sys.argv[2])).run(on_result=on_result)
"""


def test_killed_run_is_resumed(folder, tasks, tmp_path, quick_python):
    file = tmp_path / "out.json"
    assert quick_python.run(KILLED, folder, file).returncode == -9
    encoder = TopicEncoder()
    suite = Suite(encoder, tasks, json_file=file)
    assert [task.name for task in suite.unfinished_tasks()] == [task.name for task in tasks[3:]]
    document = suite.run()
    finished = unique_texts(tasks[:3])
    assert {text for text, _ in encoder.encoded} == unique_texts(tasks) - finished
    uninterrupted = Suite(TopicEncoder(), tasks).run()
    assert document["summary"] == uninterrupted["summary"]
    assert set(document["tasks"]) == set(uninterrupted["tasks"])


def test_damaged_vector_files_are_encoded_again(tasks, own_vectors):
    expected = Suite(TopicEncoder(), tasks).run()["summary"]
    for file in own_vectors.glob("*.npy"):
        file.write_bytes(file.read_bytes()[:100])
    encoder = TopicEncoder()
    assert Suite(encoder, tasks).run()["summary"] == expected
    assert len(encoder.encoded) == len(unique_texts(tasks))


def test_unwritable_cache_does_not_stop_the_run(tasks, own_vectors):
    own_vectors.parent.mkdir()
    own_vectors.write_text("a file where the folder should be", encoding="utf-8")
    encoder = TopicEncoder()
    assert set(Suite(encoder, tasks).run()["tasks"]) == {task.name for task in tasks}
    assert len(encoder.encoded) == len(unique_texts(tasks))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_vectors_that_are_not_finite_stop_the_run(tasks, tmp_path, value):
    class BrokenEncoder(TopicEncoder):
        def vector(self, text):
            vector = super().vector(text)
            return np.full_like(vector, value) if text.startswith("What of") else vector

    order = sorted(tasks, key=lambda task: task.name in ("mini", "mini-reranking"))
    with pytest.raises(EncoderError, match=r"not finite for 1[0-9] of 1[0-9] texts; run `d2v doctor`"):
        Suite(BrokenEncoder(), order, json_file=tmp_path / "out.json").run()
    finished = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["tasks"]
    assert set(finished) == {task.name for task in tasks} - {"mini", "mini-reranking"}


def test_error_of_a_score_names_the_task(tasks):
    class BrokenSimilarity(RandomEncoder):
        def similarity_pairwise(self, left, right):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        Suite(BrokenSimilarity(), [task for task in tasks if task.name == "mine"]).run()
    assert caught.value.__notes__ == ["The error occurred while mine was scored."]


def test_changing_dimension_is_refused(tasks, monkeypatch):
    monkeypatch.setattr("decoder2vec.evaluation.vector_cache._CHUNK_TEXTS", 10)

    class GrowingEncoder(RandomEncoder):
        def encode(self, texts, **options):
            self.dim += 1
            return super().encode(texts, **options)

    with pytest.raises(EncoderError, match="vectors of 18 dimensions after vectors of 17"):
        Suite(GrowingEncoder(), tasks).run()


def test_query_and_document_dimensions_must_be_equal(tasks):
    class UnevenEncoder(RandomEncoder):
        def encode_query(self, texts):
            return self.encode(texts)[:, :5]

    with pytest.raises(EncoderError, match=r"mini: the encoder returned queries and documents of \[5, 16\] dimensions"):
        Suite(UnevenEncoder(), [task for task in tasks if task.name == "mini"]).run()


@pytest.mark.parametrize("vectors", [np.ones(3), np.ones((1, 4)), np.ones((3, 2, 2))])
def test_array_of_the_wrong_shape_is_refused(tasks, vectors):
    class WrongShapeEncoder:
        def encode(self, texts):
            return vectors

    with pytest.raises(EncoderError, match="returned an array of shape"):
        Suite(WrongShapeEncoder(), tasks).run()


def test_sparse_vectors_are_cached_in_memory(tasks, own_vectors, monkeypatch):
    monkeypatch.setattr("decoder2vec.evaluation.vector_cache._CHUNK_TEXTS", 7)

    class SparseEncoder(TopicEncoder):
        def encode(self, texts, **options):
            return sparse.csr_array(super().encode(texts, **options))

    encoder = SparseEncoder()
    summary = Suite(encoder, tasks).run()["summary"]
    assert len(encoder.encoded) == len(unique_texts(tasks)) and not own_vectors.exists()
    assert summary == pytest.approx(Suite(TopicEncoder(), tasks).run()["summary"], abs=0.01)


def test_pairs_seen_in_training_are_flagged(tasks):
    by_name = {task.name: task for task in tasks}
    left, right = by_name["mine"].gold_pairs()
    query, document = by_name["mini"].gold_pairs()
    training_pairs = np.concatenate([hash_pairs(right[:5], left[:5]), hash_pairs([query[0].upper()], document[:1])])
    results = Suite(ConstantEncoder(), tasks, training_pairs=training_pairs).run()["tasks"]
    assert results["mine"]["flags"] == [f"the encoder was trained on 5 of its {len(left)} pairs"]
    assert results["mini"]["flags"] == [f"the encoder was trained on 1 of its {len(query)} pairs"]
    assert "flags" not in results["topics"]


def test_texts_seen_in_training_are_flagged(tasks):
    texts = next(task for task in tasks if task.name == "topics").texts()["plain"]
    seen = hash_texts([f"{text.upper()}!" for text in texts[:2]])
    flags = Suite(ConstantEncoder(), tasks, training_texts=seen).run()["tasks"]["topics"]["flags"]
    assert flags == [f"the encoder was trained on 2 of its {len(texts)} texts"]


def test_summary_has_means_of_kinds_and_of_the_four():
    def result(kind, score):
        return {"kind": kind, "score": score}

    results = {"a": result("sts", 10.0), "b": result("sts", 20.0), "a-dev": result("sts", 99.0)}
    results |= {"c": result("retrieval", 30.0), "d": result("clustering", 40.0), "e": result("classification", 50.0)}
    summary = summarise(results | {"f": result("pair_classification", 80.0)})
    means = {"sts": 15.0, "retrieval": 30.0, "clustering": 40.0, "classification": 50.0, "pair_classification": 80.0}
    assert summary == {**means, "average": (15 + 30 + 40 + 50) / 4}
    assert summarise({"a": result("sts", 10.0)}) == {"sts": 10.0}
