"""mteb's own evaluation, offline, of tiny encoders and baselines; its numbers are ours, and scikit-learn's."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from sklearn.cluster import MiniBatchKMeans
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, average_precision_score, v_measure_score

from decoder2vec.config import EncoderSpec, Reading
from decoder2vec.encoder import Encoder
from decoder2vec.errors import EncoderError, InputError
from decoder2vec.evaluation.baselines import load_encoder
from decoder2vec.evaluation.mteb import MTEBCrossEncoder, MTEBEncoder, MTEBSearch, as_mteb_model
from decoder2vec.evaluation.similarity import evaluate_sts, similarities
from decoder2vec.heads.codes import CodeNet, CodeSpec
from decoder2vec.heads.layerwise import LayerwiseHead
from decoder2vec.maths.metrics import pairwise_cos_sim, pearson, spearman
from decoder2vec.text.bm25 import BM25
from decoder2vec.text.files import ScoredPairs
from toys.mteb_tasks import (
    CANDIDATES,
    DOCUMENTS,
    LABELS,
    LEFT,
    QUERIES,
    RIGHT,
    SAME_NOUN,
    SCORES,
    SENTENCES,
    local_tasks,
)

TEXTS = [f"{title} {text}" for title, text in DOCUMENTS.values()]

pytestmark = pytest.mark.usefixtures("offline", "one_thread")


@pytest.fixture(scope="module")
def tasks(mteb):
    return local_tasks()


@pytest.fixture(scope="module")
def encoder(backbone):
    return Encoder(backbone("tiny-llama"), EncoderSpec("tiny-llama", (Reading(2, "mean"),)))


@pytest.fixture(scope="module")
def evaluate(mteb, tasks):
    """evaluate(model, kind, **arguments) -> what mteb says of it."""

    def run(model, kind, **arguments):
        done = mteb.evaluate(
            model, tasks[kind], **{"cache": None, "co2_tracker": False, "show_progress_bar": False, **arguments}
        )
        return done.task_results[0].scores["test"][0]

    return run


def rows_of(encoder, texts):
    unique = list(dict.fromkeys(texts))
    place = {text: row for row, text in enumerate(unique)}
    return np.asarray(encoder.encode(unique))[[place[text] for text in texts]]


def ranked_by_mteb(model, task, candidates):
    """query -> document -> score, as mteb's own evaluator of retrieval collects them."""
    from mteb._evaluators import RetrievalEvaluator
    from mteb.models.search_wrappers import SearchCrossEncoderWrapper, SearchEncoderWrapper
    from mteb.timing import TimingStack

    task.load_data()
    data = task.dataset["default"]["test"]
    evaluator = RetrievalEvaluator(
        corpus=data["corpus"],
        queries=data["queries"],
        task_metadata=task.metadata,
        hf_split="test",
        hf_subset="default",
        top_ranked=candidates,
        top_k=1000,
        timer=TimingStack(),
    )
    wrappers = {MTEBEncoder: SearchEncoderWrapper, MTEBCrossEncoder: SearchCrossEncoderWrapper}
    return evaluator(wrappers.get(type(model), lambda own: own)(model), encode_kwargs={"batch_size": 8}, num_proc=None)


@pytest.mark.parametrize("name", ["tiny", "bm25", "random:32", "static:tiny-llama"])
def test_sts_is_our_own_number(name, encoder, evaluate):
    model = encoder if name == "tiny" else load_encoder(name, device="cpu")
    found = evaluate(as_mteb_model(model, "me/it"), "STS")
    left, right = rows_of(model, LEFT), rows_of(model, RIGHT)
    assert found["main_score"] == found["cosine_spearman"]
    assert abs(found["cosine_pearson"] - pearson(pairwise_cos_sim(left, right), SCORES)) < 1e-6
    own = similarities(model, left, right)
    assert abs(found["pearson"] - pearson(own, SCORES)) < 1e-6
    if name != "bm25":  # pairs that share as many words have equal cosines, which mteb's last digits tell apart
        assert abs(found["cosine_spearman"] - spearman(pairwise_cos_sim(left, right), SCORES)) < 1e-6
        ours = evaluate_sts(model, ScoredPairs("local", LEFT, RIGHT, SCORES))
        assert abs(100 * found["spearman"] - ours["spearman"]) <= 0.005 + 1e-6  # ours is rounded to 2 digits


def test_a_pair_head_speaks_through_similarity_pairwise(backbone, evaluate):
    """mteb's headline stays the cosine of the vectors; "spearman" beside it is the head's."""
    torch.manual_seed(0)
    net = CodeNet(CodeSpec(dim=32, widths=(8, 8), head="mlp"))
    with torch.no_grad():
        for weights in net.parameters():
            weights.normal_()
    head, readings = LayerwiseHead(net), (Reading(1, "mean"), Reading(2, "mean"))
    encoder = Encoder(backbone("tiny-llama"), EncoderSpec("tiny-llama", readings), head)
    found = evaluate(as_mteb_model(encoder, "me/pair"), "STS")
    left, right = rows_of(encoder, LEFT), rows_of(encoder, RIGHT)
    assert abs(found["spearman"] - spearman(np.asarray(encoder.similarity_pairwise(left, right)), SCORES)) < 1e-6
    assert abs(found["pearson"] - pearson(encoder.score(LEFT, RIGHT), SCORES)) < 1e-6  # no calibration: the same
    assert abs(found["cosine_spearman"] - spearman(pairwise_cos_sim(left, right), SCORES)) < 1e-6
    assert abs(found["spearman"] - found["cosine_spearman"]) > 1e-3


def test_pair_classification_is_average_precision(encoder, evaluate):
    found = evaluate(as_mteb_model(encoder, "me/it"), "PairClassification")
    left, right = rows_of(encoder, LEFT), rows_of(encoder, RIGHT)
    cosines = pairwise_cos_sim(left, right)
    assert abs(found["cosine_ap"] - average_precision_score(SAME_NOUN, cosines)) < 1e-6
    assert abs(found["similarity_ap"] - average_precision_score(SAME_NOUN, similarities(encoder, left, right))) < 1e-6
    best = max(accuracy_score(SAME_NOUN, cosines >= cut) for cut in cosines)
    assert abs(found["cosine_accuracy"] - best) < 1e-6


def test_classification_is_the_published_protocol(encoder, evaluate):
    """Some draws of so many texts for each label, logistic regression, mean accuracy."""
    found = evaluate(as_mteb_model(encoder, "me/it"), "Classification")
    rows, labels = encoder.encode(SENTENCES), np.array(LABELS)
    order, scores = list(range(len(labels))), []
    for _ in range(3):
        np.random.RandomState(42).shuffle(order)  # as mteb draws
        chosen = [i for label in set(LABELS) for i in [i for i in order if labels[i] == label][:2]]
        chosen = sorted(chosen, key=order.index)
        model = LogisticRegression(max_iter=100, random_state=42).fit(rows[chosen], labels[chosen])
        scores.append(accuracy_score(labels, model.predict(rows)))
    assert abs(found["accuracy"] - np.mean(scores)) < 1e-6 and np.std(scores) > 0


def test_clustering_is_the_published_protocol(encoder, evaluate):
    """Mini-batch k-means of 500 with as many clusters as labels, V-measure, mean over sets."""
    found = evaluate(as_mteb_model(encoder, "me/it"), "Clustering")
    scores = []
    for begin in (0, 3, 10):
        labels = LABELS[begin:]
        means = MiniBatchKMeans(n_clusters=len(set(labels)), batch_size=500, n_init="auto", random_state=42)
        scores.append(v_measure_score(labels, means.fit(encoder.encode(SENTENCES[begin:])).labels_))
    assert abs(found["v_measure"] - np.mean(scores)) < 1e-6


def test_retrieval_ranks_by_our_similarities(encoder, tasks):
    prompted = Encoder(
        encoder.backbone,
        EncoderSpec("tiny-llama", (Reading(2, "mean"),), prompts=(("query", "Find: "), ("document", "Page: "))),
    )
    for model in (encoder, prompted):
        found = ranked_by_mteb(as_mteb_model(model, "me/it"), tasks["Retrieval"], None)
        expected = model.similarity(model.encode_query(list(QUERIES.values())), model.encode_document(TEXTS)).numpy()
        for row, query in zip(expected, QUERIES, strict=True):
            assert set(found[query]) == set(DOCUMENTS)
            assert np.allclose([found[query][name] for name in DOCUMENTS], row, atol=1e-6)


def test_bm25_searches_with_its_real_scores(tasks):
    model = as_mteb_model(load_encoder("bm25"), "me/bm25")
    assert isinstance(model, MTEBSearch)
    expected = BM25(TEXTS).scores(list(QUERIES.values()))
    assert np.count_nonzero(expected)
    for candidates in (None, CANDIDATES):
        found = ranked_by_mteb(model, tasks["Retrieval"], candidates)
        for row, query in zip(expected, QUERIES, strict=True):
            wanted = {n: row[d] for d, n in enumerate(DOCUMENTS) if not candidates or n in candidates[query]}
            assert found[query] == pytest.approx(wanted, abs=1e-6)


def test_bm25_is_mtebs_own(tasks):
    """The same words, formula and scores as `mteb/baseline-bm25s`, which joins title and text by a new line."""
    from mteb.models.model_implementations.bm25 import BM25Search

    theirs = ranked_by_mteb(BM25Search(), tasks["Retrieval"], None)
    ours = ranked_by_mteb(as_mteb_model(load_encoder("bm25"), "me/bm25"), tasks["Retrieval"], None)
    for query in QUERIES:
        assert ours[query] == pytest.approx(theirs[query], abs=1e-6)


def test_a_search_gives_as_many_as_are_asked_for(tasks):
    model, task = MTEBSearch(load_encoder("bm25"), "me/bm25"), tasks["Retrieval"]
    task.load_data()
    data = task.dataset["default"]["test"]
    said = {"task_metadata": task.metadata, "hf_split": "test", "hf_subset": "default", "encode_kwargs": {}}
    model.index(data["corpus"], **said, num_proc=None)
    found = model.search(data["queries"], **said, top_k=3, num_proc=None, something_new=1)
    whole = BM25(TEXTS).scores(list(QUERIES.values()))
    assert all(
        sorted(found[q].values()) == pytest.approx(sorted(row)[-3:]) for q, row in zip(QUERIES, whole, strict=True)
    )


@pytest.mark.parametrize("kind", ["plain", "prompted", "bm25", "encode only"])
def test_a_cross_encoder_scores_the_pairs_to_rerank(kind, encoder, tasks):
    class EncodeOnly:
        fingerprint, dim, encode = "f" * 16, encoder.dim, staticmethod(encoder.encode)

    prompts = (("query", "Find: "), ("document", "Page: "))
    prompted = Encoder(encoder.backbone, EncoderSpec("tiny-llama", (Reading(2, "mean"),), prompts=prompts))
    model = {"plain": encoder, "prompted": prompted, "bm25": load_encoder("bm25"), "encode only": EncodeOnly()}[kind]
    found = ranked_by_mteb(MTEBCrossEncoder(model, "me/cross"), tasks["Reranking"], CANDIDATES)
    for query, names in CANDIDATES.items():
        documents = [" ".join(DOCUMENTS[name]) for name in names]
        left = [QUERIES[query]] * len(documents)
        if kind == "plain":
            expected = model.score(left, documents)
        elif kind == "bm25":
            rows = {name: f"{' '.join(DOCUMENTS[name])}" for own in CANDIDATES.values() for name in own}
            scores = dict(zip(rows, BM25(list(rows.values())).scores([QUERIES[query]])[0], strict=True))
            expected = [scores[name] for name in names]
        else:
            a = encoder.encode(left, prompt="Find: " if kind == "prompted" else None)
            b = encoder.encode(documents, prompt="Page: " if kind == "prompted" else None)
            expected = pairwise_cos_sim(a, b)
        assert [found[query][name] for name in names] == pytest.approx(expected, abs=1e-6)


def test_a_cross_encoder_is_refused_where_mteb_wants_vectors(encoder, evaluate):
    with pytest.raises(TypeError, match="does not support CrossEncoders"):
        evaluate(MTEBCrossEncoder(encoder, "me/cross"), "STS")


@pytest.mark.parametrize("kind", ["Retrieval", "Reranking"])
@pytest.mark.usefixtures("real_pytrec")
def test_with_the_real_pytrec_eval_retrieval_runs_to_the_end(kind, encoder, evaluate):
    from sklearn.metrics import ndcg_score

    from toys.mteb_tasks import RELEVANT

    for model in (encoder, load_encoder("bm25"), load_encoder("random:32")):
        found = evaluate(as_mteb_model(model, "me/it"), kind)
        assert 0 <= found["main_score"] <= 1
    scores = encoder.similarity(encoder.encode(list(QUERIES.values())), encoder.encode(TEXTS)).numpy()
    truth = np.array([[int(name in RELEVANT[query]) for name in DOCUMENTS] for query in QUERIES])
    if kind == "Retrieval":
        found = evaluate(as_mteb_model(encoder, "me/it"), kind)
        assert abs(found["ndcg_at_10"] - ndcg_score(truth, scores, k=10)) < 1e-4  # mteb rounds to 5 digits


def test_the_stand_in_refuses_retrieval_metrics_in_one_sentence(encoder, evaluate, mteb):
    import pytrec_eval

    if "stand_in" not in pytrec_eval.__file__:
        pytest.skip("the real pytrec_eval is installed")
    with pytest.raises(RuntimeError, match="Retrieval metrics need the real pytrec_eval"):
        evaluate(as_mteb_model(encoder, "me/it"), "Retrieval")


def test_every_mock_task_for_texts_runs(encoder, mteb):
    """mteb's own sanity check of a model; only what needs the real pytrec_eval may be refused."""
    from mteb.mocks.mock_run import mock_run
    from mteb.results.task_result import TaskError

    done = {name: status for name, status in mock_run(as_mteb_model(encoder, "me/it")).items() if status is not None}
    failed = {name: status.exception for name, status in done.items() if isinstance(status, TaskError)}
    assert len(done) >= 20 and len(done) - len(failed) >= 12
    assert all("Retrieval metrics need the real pytrec_eval" in reason for reason in failed.values()), failed


def test_the_protocols_are_mtebs(encoder, mteb):
    from mteb.models.models_protocols import CrossEncoderProtocol, EncoderProtocol, SearchProtocol

    plain, search, cross = as_mteb_model(encoder), as_mteb_model(load_encoder("bm25")), MTEBCrossEncoder(encoder)
    protocols = (EncoderProtocol, SearchProtocol, CrossEncoderProtocol)
    told = [[isinstance(model, protocol) for protocol in protocols] for model in (plain, search, cross)]
    assert told == [[True, False, False], [True, True, False], [False, False, True]]


def test_results_are_kept_by_name_and_fingerprint(encoder, mteb, evaluate, tmp_path):
    """Two encoders under one name: the second is not given the scores of the first, and what is done is not redone."""
    cache = mteb.ResultCache(cache_path=tmp_path)
    other = Encoder(encoder.backbone, EncoderSpec("tiny-llama", (Reading(0, "mean"),)))
    first, second = (evaluate(as_mteb_model(model, "me/it"), "STS", cache=cache) for model in (encoder, other))
    assert first["cosine_spearman"] != second["cosine_spearman"]
    assert {folder.name for folder in tmp_path.glob("results/*/*/")} == {encoder.fingerprint, other.fingerprint}
    meta = json.loads(next(tmp_path.glob(f"results/*/{encoder.fingerprint}/model_meta.json")).read_text())
    assert (meta["name"], meta["revision"], meta["embed_dim"]) == ("me/it", encoder.fingerprint, encoder.dim)
    assert meta["similarity_fn_name"] == "cosine" and meta["n_parameters"] > 0

    class Refuses(MTEBEncoder):
        def encode(self, *_, **__):
            raise AssertionError("encoded again")

    again = evaluate(Refuses(encoder, "me/it"), "STS", cache=cache)
    assert again["main_score"] == pytest.approx(first["main_score"], abs=1e-6)  # files hold six digits


def test_an_instruction_makes_another_experiment(encoder, mteb, evaluate, tmp_path):
    cache = mteb.ResultCache(cache_path=tmp_path)
    plain = evaluate(as_mteb_model(encoder, "me/it"), "STS", cache=cache)
    told = evaluate(as_mteb_model(encoder, "me/it", "Instruct: {instruction}\nText: "), "STS", cache=cache)
    said = encoder.encode(LEFT, prompt="Instruct: Retrieve semantically similar text.\nText: ")
    right = encoder.encode(RIGHT, prompt="Instruct: Retrieve semantically similar text.\nText: ")
    assert abs(told["cosine_spearman"] - spearman(pairwise_cos_sim(said, right), SCORES)) < 1e-6
    assert plain["cosine_spearman"] != told["cosine_spearman"]


def test_prompts_are_chosen_in_mtebs_order(encoder, tasks, mteb):
    """A prompt is looked for by task and role, task, kind and role, kind, role; mteb's own function says which."""
    from itertools import product

    from mteb.models.abs_encoder import get_prompt_name
    from mteb.types import PromptType

    names = ("LocalSTS-query", "LocalSTS", "STS-query", "STS", "query", "document", "LocalSTS-document")
    for chosen in product((False, True), repeat=len(names)):
        prompts = {name: f"{name}: " for name, used in zip(names, chosen, strict=True) if used}
        used = {}

        class Listens:
            fingerprint, dim = "f" * 16, 2

            def encode(self, texts, prompt_name=None, used=used):
                used["name"] = prompt_name
                return np.zeros((len(texts), 2))

            def encode_query(self, texts, prompt_name=None, prompts=prompts):
                return self.encode(texts, prompt_name or ("query" if "query" in prompts else None))

            def encode_document(self, texts, prompt_name=None, prompts=prompts):
                return self.encode(texts, prompt_name or ("document" if "document" in prompts else None))

        Listens.prompts = prompts
        for role in (None, PromptType.query, PromptType.document):
            as_mteb_model(Listens()).encode([{"text": ["a"]}], task_metadata=tasks["STS"].metadata, prompt_type=role)
            assert used["name"] == get_prompt_name(prompts, tasks["STS"].metadata, role), (prompts, role)


def test_vectors_that_are_not_finite_are_refused(encoder):
    class Broken:
        fingerprint, dim = "f" * 16, 2

        def encode(self, texts):
            return np.full((len(texts), 2), np.nan)

    with pytest.raises(EncoderError, match="not finite"):
        as_mteb_model(Broken(), "me/broken").encode([{"text": ["a"]}])


def test_a_name_without_organisation_or_an_instruction_without_its_place_is_refused(encoder):
    with pytest.raises(InputError, match="me/mine"):
        as_mteb_model(encoder, "mine")
    with pytest.raises(InputError, match=r"\{instruction\}"):
        as_mteb_model(encoder, "me/mine", "Find: ")
