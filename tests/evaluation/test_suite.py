"""Every task for one encoder: what is encoded, kept, taken over, flagged and refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from decoder2vec.config import EncoderSpec, Reading
from decoder2vec.encoder import Encoder
from decoder2vec.errors import EncoderError, InputError
from decoder2vec.evaluation.suite import Suite, summary
from decoder2vec.evaluation.tasks.layout import find_tasks
from decoder2vec.text.data_check import hash_pairs
from toys.tasks import Constant, Knowing, Random, write_all

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return write_all(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def tasks(home):
    return find_tasks(home)


@pytest.fixture(autouse=True)
def own_vectors(tmp_path, monkeypatch):
    """No test finds the vectors of another."""
    monkeypatch.setenv("D2V_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "vectors"


def different(tasks):
    return {text for task in tasks for texts in task.texts().values() for text in texts}


@pytest.mark.parametrize("encoder", [Random, Knowing], ids=["no fingerprint", "fingerprint"])
def test_every_text_is_encoded_once_over_all_tasks(tasks, encoder):
    encoder = encoder()
    suite = Suite(encoder, tasks)
    estimate = suite.estimate()
    document = suite.run()
    assert len(encoder.asked) == len(set(encoder.asked)) == len(different(tasks)) == estimate.texts
    assert sum(result["texts"] for result in document["tasks"].values()) > 2 * len(different(tasks))


def test_scores_do_not_depend_on_what_else_is_measured(tasks):
    together = Suite(Random(), tasks).run()["tasks"]
    for task in tasks:
        alone = Suite(Random(), [task]).run()["tasks"][task.name]
        assert {**alone, "seconds": 0} == {**together[task.name], "seconds": 0}


def test_prompts_of_a_task_a_kind_or_a_role_are_used_and_each_is_encoded_once(tasks):
    encoder = Random()
    encoder.prompts = {"query": "Q: ", "passage": "P: ", "clustering": "C: ", "same": "S: "}
    Suite(encoder, tasks, prompts={"reranking-query": "R: "}).run()
    expected = set()
    for task in tasks:
        for role, texts in task.texts().items():
            kind = {"groups": "C: ", "same": "S: "}.get(task.name, "")
            prompt = {"query": "R: " if task.kind == "reranking" else "Q: ", "document": "P: "}.get(role, kind)
            expected |= {(text, prompt) for text in texts}
    assert len(encoder.asked) == len(expected) and set(encoder.asked) == expected


def test_methods_for_queries_and_documents_are_used_where_there_are_no_prompts(tasks):
    class Sided(Random):
        queries, documents = 0, 0

        def encode_query(self, texts):
            self.queries += len(texts)
            return self.encode(texts)

        def encode_document(self, texts):
            self.documents += len(texts)
            return self.encode(texts)

    encoder = Sided()
    Suite(encoder, [task for task in tasks if task.name in ("mini", "mine")]).run()
    (mini,) = (task.texts() for task in tasks if task.name == "mini")
    assert (encoder.queries, encoder.documents) == (len(mini["query"]), len(mini["document"]))


def test_our_own_encoder_goes_through_all_of_it(tasks, backbone, tmp_path):
    spec = EncoderSpec("tiny-llama", (Reading(2, "mean"),), prompts=(("query", "Find: "),))
    encoder = Encoder(backbone("tiny-llama"), spec)
    document = Suite(encoder, tasks, "tiny", tmp_path / "out.json").run()
    assert set(document) == {"encoder", "tasks", "summary", "cost", "versions", "command"}
    weights = sum(weight.numel() for weight in encoder.backbone.model.parameters())
    described = {"name": "tiny", "fingerprint": encoder.fingerprint, "kind": "decoder2vec", "dim": 32, "layers": 2}
    assert document["encoder"] == {**described, "parameters": weights, "spec": encoder.spec.to_json()}
    cost = document["cost"]
    assert cost["tokens"] == pytest.approx(encoder.stats.tokens, abs=2)
    assert cost["tokens_per_second"] == pytest.approx(cost["tokens"] / cost["seconds"], rel=0.1)
    assert cost["parameters"] == weights and cost["peak_megabytes"] > 50
    for name, result in document["tasks"].items():
        assert {"kind", "metric", "score", "interval", "scores", "texts", "seconds"} <= set(result), name
        assert result["score"] == result["scores"][result["metric"]]
    assert json.loads((tmp_path / "out.json").read_text(encoding="utf-8")) == document
    items = json.loads((tmp_path / "out.items.json").read_text(encoding="utf-8"))
    assert set(items) == set(document["tasks"])
    assert {tuple(sorted(each)) for each in items.values()} == {("values",), ("gold", "predicted")}


def test_a_second_run_encodes_nothing_and_scores_nothing(tasks, tmp_path):
    first = Suite(Knowing(), tasks, json_file=tmp_path / "out.json").run()
    again = Knowing()
    suite = Suite(again, tasks, json_file=tmp_path / "out.json")
    assert suite.open_tasks() == [] and suite.work == 0
    finished = []
    assert {**suite.run(finished=lambda name, _: finished.append(name)), "cost": 0} == {**first, "cost": 0}
    assert (again.asked, finished) == ([], [])


def test_vectors_are_found_again_by_another_result_file_and_cost_what_they_cost(tasks):
    first = Suite(Knowing(), tasks).run()
    again = Knowing()
    second = Suite(again, tasks).run()
    assert again.asked == []
    assert second["cost"]["seconds"] == pytest.approx(first["cost"]["seconds"], abs=0.01)
    assert second["summary"] == first["summary"]


def test_what_has_no_fingerprint_is_never_taken_over(tasks, tmp_path, own_vectors):
    Suite(Random(), tasks, "me", tmp_path / "out.json").run()
    again = Random()
    suite = Suite(again, tasks, "me", tmp_path / "out.json")
    assert len(suite.open_tasks()) == len(tasks)
    suite.run()
    assert len(again.asked) == len(different(tasks))
    assert not own_vectors.exists()


def test_tasks_are_added_to_a_result_file(tasks, tmp_path):
    file = tmp_path / "out.json"
    Suite(Knowing(), tasks[:2], json_file=file).run()
    assert set(Suite(Knowing(), tasks[2:4], json_file=file).run()["tasks"]) == {task.name for task in tasks[:4]}


def test_a_task_whose_data_or_prompt_changed_is_done_again(home, tmp_path):
    file = tmp_path / "out.json"
    Suite(Knowing(), find_tasks(home, ["sts"]), json_file=file).run()
    assert Suite(Knowing(), find_tasks(home, ["sts"], limit=3), json_file=file).open_tasks()
    assert Suite(Knowing(), find_tasks(home, ["sts"]), json_file=file, prompts={"sts": "new"}).open_tasks()
    assert not Suite(Knowing(), find_tasks(home, ["sts"]), json_file=file).open_tasks()


def test_results_of_another_encoder_are_not_overwritten(tasks, tmp_path):
    file = tmp_path / "out.json"
    Suite(Knowing(), tasks[:1], json_file=file).run()
    before = file.read_bytes()

    class Other(Knowing):
        fingerprint = "other"

    for encoder, name in ((Other(), ""), (Random(), "me")):
        with pytest.raises(InputError, match="holds results of another encoder"):
            Suite(encoder, tasks, name, file)
    assert file.read_bytes() == before


@pytest.mark.parametrize("content", ["", "[]", '{"results": []}'])
def test_a_file_that_is_something_else_is_not_overwritten(tasks, tmp_path, content):
    file = tmp_path / "out.json"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match="is not a result of this command"):
        Suite(Knowing(), tasks, json_file=file)
    assert file.read_text(encoding="utf-8") == content


KILLED = """
import os, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from toys.tasks import Knowing
from decoder2vec.evaluation.suite import Suite
from decoder2vec.evaluation.tasks.layout import find_tasks

done = []
def finished(name, result):
    done.append(name)
    if len(done) == 3:
        os.kill(os.getpid(), 9)

Suite(Knowing(), find_tasks(sys.argv[2]), json_file=Path(sys.argv[3])).run(finished=finished)
"""


def test_after_a_kill_it_goes_on_where_it_was(home, tasks, tmp_path):
    file = tmp_path / "out.json"
    args = [sys.executable, "-c", KILLED, str(Path(__file__).parents[1]), str(home), str(file)]
    assert subprocess.run(args, env=dict(os.environ), capture_output=True).returncode == -9
    encoder = Knowing()
    suite = Suite(encoder, tasks, json_file=file)
    assert [task.name for task in suite.open_tasks()] == [task.name for task in tasks[3:]]
    document = suite.run()
    seen = different(tasks[:3])
    assert {text for text, _ in encoder.asked} == different(tasks) - seen
    whole = Suite(Knowing(), tasks).run()
    assert document["summary"] == whole["summary"] and set(document["tasks"]) == set(whole["tasks"])


def test_a_damaged_file_of_vectors_costs_only_time(tasks, own_vectors):
    expected = Suite(Knowing(), tasks).run()["summary"]
    for file in own_vectors.glob("*.npy"):
        file.write_bytes(file.read_bytes()[:100])
    encoder = Knowing()
    assert Suite(encoder, tasks).run()["summary"] == expected
    assert len(encoder.asked) == len(different(tasks))


def test_a_disk_that_refuses_costs_the_cache_and_not_the_work(tasks, own_vectors):
    own_vectors.parent.mkdir()
    own_vectors.write_text("a file where the folder should be", encoding="utf-8")
    encoder = Knowing()
    assert set(Suite(encoder, tasks).run()["tasks"]) == {task.name for task in tasks}
    assert len(encoder.asked) == len(different(tasks))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_vectors_that_are_not_finite_are_refused_and_what_is_finished_stays(tasks, tmp_path, value):
    class Broken(Knowing):
        def vector(self, text):
            found = super().vector(text)
            return np.full_like(found, value) if text.startswith("What of") else found

    order = sorted(tasks, key=lambda task: task.name in ("mini", "mini-reranking"))
    with pytest.raises(EncoderError, match=r"not finite for 1[0-9] of 1[0-9] texts; run `d2v doctor`"):
        Suite(Broken(), order, json_file=tmp_path / "out.json").run()
    done = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["tasks"]
    assert set(done) == {task.name for task in tasks} - {"mini", "mini-reranking"}


def test_an_encoder_that_changes_its_dimension_is_refused(tasks, monkeypatch):
    monkeypatch.setattr("decoder2vec.evaluation.vector_cache._TEXTS", 10)

    class Growing(Random):
        def encode(self, texts, **options):
            self.dim += 1
            return super().encode(texts, **options)

    with pytest.raises(InputError, match="vectors of 18 dimensions after some of 17"):
        Suite(Growing(), tasks).run()


def test_queries_and_documents_must_have_the_same_dimension(tasks):
    class Uneven(Random):
        def encode_query(self, texts):
            return self.encode(texts)[:, :5]

    with pytest.raises(InputError, match=r"mini: the encoder gave queries and documents of \[5, 16\] dimensions"):
        Suite(Uneven(), [task for task in tasks if task.name == "mini"]).run()


@pytest.mark.parametrize("found", [np.ones(3), np.ones((1, 4)), np.ones((3, 2, 2))])
def test_what_is_no_row_for_each_text_is_refused(tasks, found):
    class Wrong:
        def encode(self, texts):
            return found

    with pytest.raises(InputError, match="gave an array of shape"):
        Suite(Wrong(), tasks).run()


def test_sparse_vectors_are_kept_in_memory(tasks, own_vectors, monkeypatch):
    monkeypatch.setattr("decoder2vec.evaluation.vector_cache._TEXTS", 7)

    class Sparse(Knowing):
        def encode(self, texts, **options):
            return sparse.csr_array(super().encode(texts, **options))

    encoder = Sparse()
    found = Suite(encoder, tasks).run()["summary"]
    assert len(encoder.asked) == len(different(tasks)) and not own_vectors.exists()
    assert found == pytest.approx(Suite(Knowing(), tasks).run()["summary"], abs=0.01)


def test_pairs_seen_in_training_are_flagged(tasks):
    by_name = {task.name: task for task in tasks}
    left, right = by_name["mine"].pairs()
    query, document = by_name["mini"].pairs()
    seen = np.concatenate([hash_pairs(right[:5], left[:5]), hash_pairs([query[0].upper()], document[:1])])
    results = Suite(Constant(), tasks, seen=seen).run()["tasks"]
    assert results["mine"]["flags"] == [f"the encoder was trained on 5 of its {len(left)} pairs"]
    assert results["mini"]["flags"] == [f"the encoder was trained on 1 of its {len(query)} pairs"]
    assert "flags" not in results["topics"]


def test_the_summary_is_the_mean_of_each_kind_and_of_the_papers_four():
    def result(kind, score):
        return {"kind": kind, "score": score}

    four = {"a": result("sts", 10.0), "b": result("sts", 20.0), "a-dev": result("sts", 99.0)}
    four |= {"c": result("retrieval", 30.0), "d": result("clustering", 40.0), "e": result("classification", 50.0)}
    found = summary(four | {"f": result("pair_classification", 80.0)})
    means = {"sts": 15.0, "retrieval": 30.0, "clustering": 40.0, "classification": 50.0, "pair_classification": 80.0}
    assert found == {**means, "average": (15 + 30 + 40 + 50) / 4}
    assert summary({"a": result("sts", 10.0)}) == {"sts": 10.0}
