"""The models for mteb: their protocols and prompts, and scores of mteb that equal ours and scikit-learn's."""

from __future__ import annotations

import builtins
import json
import sys
from enum import StrEnum
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.cluster import MiniBatchKMeans
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, average_precision_score, ndcg_score, v_measure_score

from decoder2vec.config import EncoderSpec, Reading
from decoder2vec.encoder import Encoder
from decoder2vec.errors import EncoderError, InputError, MissingExtraError
from decoder2vec.evaluation.baselines import load_encoder
from decoder2vec.evaluation.mteb import MTEBCrossEncoder, MTEBEncoder, MTEBSearch, as_mteb_model
from decoder2vec.evaluation.similarity import evaluate_sts, pairwise_similarities
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
    RELEVANT,
    RIGHT,
    SAME_NOUN,
    SCORES,
    SENTENCES,
    local_tasks,
)

TEXTS = ["A man plays a guitar.", "Two dogs", "", "Bread needs time to rise.", "Two dogs"]
DOCUMENT_TEXTS = [f"{title} {text}" for title, text in DOCUMENTS.values()]
QUERY, DOCUMENT = "Find what this asks for: ", "A page of a book: "


pytestmark = pytest.mark.usefixtures("offline", "one_thread")


class PromptType(StrEnum):
    """As in mteb."""

    query = "query"
    document = "document"


def loader(texts, size=2):
    """Batches as mteb passes them: dicts of lists."""
    return [{"text": texts[i : i + size], "id": list(range(i, i + size))} for i in range(0, len(texts), size)]


def make_encoder(backbone, **prompts):
    spec = EncoderSpec("tiny-llama", (Reading(2, "mean"),), prompts=tuple(prompts.items()))
    return Encoder(backbone("tiny-llama"), spec)


@pytest.fixture
def task():
    """Arguments about the task that mteb passes with the batches."""
    return {"task_metadata": SimpleNamespace(name="STSBenchmark"), "hf_split": "test", "hf_subset": "default"}


@pytest.mark.parametrize("size", [1, 2, 5, 100])
def test_batches_give_the_vectors_of_encode(backbone, task, size):
    encoder = make_encoder(backbone)
    vectors = MTEBEncoder(encoder).encode(loader(TEXTS, size), **task)
    assert isinstance(vectors, np.ndarray) and vectors.shape == (5, encoder.dim)
    assert np.allclose(vectors, np.stack([encoder.encode(text) for text in TEXTS]), atol=1e-5)


def test_loader_is_read_only_once(backbone, task):
    encoder = make_encoder(backbone)
    vectors = MTEBEncoder(encoder).encode((batch for batch in loader(TEXTS)), **task)
    assert np.allclose(vectors, encoder.encode(TEXTS), atol=1e-5)


def test_unknown_arguments_are_ignored(backbone, task):
    encoder = make_encoder(backbone)
    vectors = MTEBEncoder(encoder).encode(loader(TEXTS), **task, batch_size=8, show_progress_bar=False, something_new=1)
    assert np.allclose(vectors, encoder.encode(TEXTS), atol=1e-5)


@pytest.mark.parametrize("prompt_type", [lambda name: PromptType(name), str], ids=["enum", "string"])
@pytest.mark.parametrize(("role", "prompt"), [("query", QUERY), ("document", DOCUMENT)])
def test_each_role_gets_its_own_prompt(backbone, task, role, prompt, prompt_type):
    encoder = make_encoder(backbone, query=QUERY, document=DOCUMENT)
    vectors = MTEBEncoder(encoder).encode(loader(TEXTS), **task, prompt_type=prompt_type(role))
    expected = encoder.encode(TEXTS, prompt=prompt)
    assert np.allclose(vectors, expected, atol=1e-5)
    other = encoder.encode(TEXTS, prompt=DOCUMENT if role == "query" else QUERY)
    assert not np.allclose(vectors, other, atol=1e-2)
    assert not np.allclose(vectors, encoder.encode(TEXTS), atol=1e-2)


@pytest.mark.parametrize("name", ["document", "passage", "corpus"])
def test_document_prompt_has_several_names(backbone, task, name):
    encoder = make_encoder(backbone, **{name: DOCUMENT})
    vectors = MTEBEncoder(encoder).encode(loader(TEXTS), **task, prompt_type=PromptType.document)
    assert np.allclose(vectors, encoder.encode(TEXTS, prompt=DOCUMENT), atol=1e-5)


def test_task_without_roles_gets_no_prompt(backbone, task):
    """STS, classification and clustering have neither queries nor documents; mteb's own wrapper calls plain encode."""
    encoder = make_encoder(backbone, query=QUERY, document=DOCUMENT)
    vectors = MTEBEncoder(encoder).encode(loader(TEXTS), **task, prompt_type=None)
    assert np.allclose(vectors, encoder.encode(TEXTS), atol=1e-5)


def test_similarities_are_those_of_the_encoder(backbone):
    encoder = make_encoder(backbone)
    model = MTEBEncoder(encoder)
    a, b = encoder.encode(TEXTS[:2]), encoder.encode(TEXTS[2:])
    expected = [[float(x @ y / np.linalg.norm(x) / np.linalg.norm(y)) for y in b] for x in a]
    assert np.allclose(np.asarray(model.similarity(a, b)), expected, atol=1e-5)
    assert np.allclose(np.asarray(model.similarity_pairwise(a, b[:2])), np.diag(np.array(expected)[:, :2]), atol=1e-5)


def test_missing_mteb_names_the_extra(backbone, monkeypatch):
    real_import = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name.split(".")[0] == "mteb":
            raise ModuleNotFoundError("No module named 'mteb'", name="mteb")
        return real_import(name, *args, **kwargs)

    model = MTEBEncoder(make_encoder(backbone))  # neither this nor encoding needs mteb
    for module in [name for name in sys.modules if name.split(".")[0] == "mteb"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingExtraError, match=r"mteb.*pip install 'decoder2vec\[mteb\]'"):
        _ = model.mteb_model_meta


def test_two_encoders_are_two_models_to_mteb(backbone, mteb):
    plain, prompted = make_encoder(backbone), make_encoder(backbone, query=QUERY)
    metas = [MTEBEncoder(encoder, "me/mine").mteb_model_meta for encoder in (plain, prompted)]
    assert [meta.revision for meta in metas] == [plain.fingerprint, prompted.fingerprint]
    assert metas[0].revision != metas[1].revision
    assert metas[0].name == "me/mine"
    assert (metas[0].embed_dim, metas[0].similarity_fn_name.value) == (32, "cosine")
    assert metas[0].adapted_from == "tiny-llama"
    assert metas[0].n_parameters == sum(weights.numel() for weights in plain.backbone.model.parameters())
    assert [meta.use_instructions for meta in metas] == [False, True]


def test_max_tokens_is_the_limit_of_the_model(backbone, mteb):
    """The encoder's limit is 512, but the model has 256 positions."""
    encoder = make_encoder(backbone)
    assert backbone("tiny-llama").model.config.max_position_embeddings == 256
    assert MTEBEncoder(encoder).mteb_model_meta.max_tokens == 256


# evaluation by mteb


@pytest.fixture(scope="module")
def tasks(mteb):
    return local_tasks()


@pytest.fixture(scope="module")
def encoder(backbone):
    return Encoder(backbone("tiny-llama"), EncoderSpec("tiny-llama", (Reading(2, "mean"),)))


@pytest.fixture(scope="module")
def evaluate(mteb, tasks):
    """evaluate(model, kind, **arguments) -> scores by mteb."""

    def run(model, kind, **arguments):
        evaluated = mteb.evaluate(
            model, tasks[kind], **{"cache": None, "co2_tracker": False, "show_progress_bar": False, **arguments}
        )
        return evaluated.task_results[0].scores["test"][0]

    return run


def encode_unique(encoder, texts):
    unique = list(dict.fromkeys(texts))
    row_of = {text: row for row, text in enumerate(unique)}
    return np.asarray(encoder.encode(unique))[[row_of[text] for text in texts]]


def rank_by_mteb(model, task, candidates):
    """query -> document -> score, by mteb's own retrieval evaluator."""
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
    return evaluator(
        wrappers.get(type(model), lambda model: model)(model), encode_kwargs={"batch_size": 8}, num_proc=None
    )


@pytest.mark.parametrize("name", ["tiny", "bm25", "random:32", "static:tiny-llama"])
def test_sts_of_mteb_equals_ours(name, encoder, evaluate):
    model = encoder if name == "tiny" else load_encoder(name, device="cpu")
    result = evaluate(as_mteb_model(model, "me/it"), "STS")
    left, right = encode_unique(model, LEFT), encode_unique(model, RIGHT)
    assert result["main_score"] == result["cosine_spearman"]
    assert abs(result["cosine_pearson"] - pearson(pairwise_cos_sim(left, right), SCORES)) < 1e-6
    own_similarities = pairwise_similarities(model, left, right)
    assert abs(result["pearson"] - pearson(own_similarities, SCORES)) < 1e-6
    if name != "bm25":  # pairs that share as many words have equal cosines, whose last digits differ in mteb
        assert abs(result["cosine_spearman"] - spearman(pairwise_cos_sim(left, right), SCORES)) < 1e-6
        ours = evaluate_sts(model, ScoredPairs("local", LEFT, RIGHT, SCORES))
        assert abs(100 * result["spearman"] - ours["spearman"]) <= 0.005 + 1e-6  # ours is rounded to 2 digits


def test_pair_head_is_used_by_similarity_pairwise(backbone, evaluate):
    """The main score of mteb is the cosine of the vectors; "spearman" is that of the head."""
    torch.manual_seed(0)
    net = CodeNet(CodeSpec(dim=32, widths=(8, 8), head="mlp"))
    with torch.no_grad():
        for weights in net.parameters():
            weights.normal_()
    head, readings = LayerwiseHead(net), (Reading(1, "mean"), Reading(2, "mean"))
    encoder = Encoder(backbone("tiny-llama"), EncoderSpec("tiny-llama", readings), head)
    result = evaluate(as_mteb_model(encoder, "me/pair"), "STS")
    left, right = encode_unique(encoder, LEFT), encode_unique(encoder, RIGHT)
    assert abs(result["spearman"] - spearman(np.asarray(encoder.similarity_pairwise(left, right)), SCORES)) < 1e-6
    assert (
        abs(result["pearson"] - pearson(encoder.score(LEFT, RIGHT), SCORES)) < 1e-6
    )  # equal, since there is no calibration
    assert abs(result["cosine_spearman"] - spearman(pairwise_cos_sim(left, right), SCORES)) < 1e-6
    assert abs(result["spearman"] - result["cosine_spearman"]) > 1e-3


def test_pair_classification_of_mteb_equals_scikit_learn(encoder, evaluate):
    result = evaluate(as_mteb_model(encoder, "me/it"), "PairClassification")
    left, right = encode_unique(encoder, LEFT), encode_unique(encoder, RIGHT)
    cosines = pairwise_cos_sim(left, right)
    assert abs(result["cosine_ap"] - average_precision_score(SAME_NOUN, cosines)) < 1e-6
    assert (
        abs(result["similarity_ap"] - average_precision_score(SAME_NOUN, pairwise_similarities(encoder, left, right)))
        < 1e-6
    )
    best = max(accuracy_score(SAME_NOUN, cosines >= cut) for cut in cosines)
    assert abs(result["cosine_accuracy"] - best) < 1e-6


def test_classification_of_mteb_equals_scikit_learn(encoder, evaluate):
    """A few texts for each label, logistic regression, mean accuracy over the experiments."""
    result = evaluate(as_mteb_model(encoder, "me/it"), "Classification")
    rows, labels = encoder.encode(SENTENCES), np.array(LABELS)
    order, scores = list(range(len(labels))), []
    for _ in range(3):
        np.random.RandomState(42).shuffle(order)  # as mteb samples
        chosen = [i for label in set(LABELS) for i in [i for i in order if labels[i] == label][:2]]
        chosen = sorted(chosen, key=order.index)
        model = LogisticRegression(max_iter=100, random_state=42).fit(rows[chosen], labels[chosen])
        scores.append(accuracy_score(labels, model.predict(rows)))
    assert abs(result["accuracy"] - np.mean(scores)) < 1e-6 and np.std(scores) > 0


def test_clustering_of_mteb_equals_scikit_learn(encoder, evaluate):
    """Mini-batch k-means with as many clusters as labels, V-measure, mean over the subsets."""
    result = evaluate(as_mteb_model(encoder, "me/it"), "Clustering")
    scores = []
    for start in (0, 3, 10):
        labels = LABELS[start:]
        kmeans = MiniBatchKMeans(n_clusters=len(set(labels)), batch_size=500, n_init="auto", random_state=42)
        scores.append(v_measure_score(labels, kmeans.fit(encoder.encode(SENTENCES[start:])).labels_))
    assert abs(result["v_measure"] - np.mean(scores)) < 1e-6


def test_retrieval_ranks_by_our_similarities(encoder, tasks):
    prompted = Encoder(
        encoder.backbone,
        EncoderSpec("tiny-llama", (Reading(2, "mean"),), prompts=(("query", "Find: "), ("document", "Page: "))),
    )
    for model in (encoder, prompted):
        result = rank_by_mteb(as_mteb_model(model, "me/it"), tasks["Retrieval"], None)
        expected = model.similarity(
            model.encode_query(list(QUERIES.values())), model.encode_document(DOCUMENT_TEXTS)
        ).numpy()
        for row, query in zip(expected, QUERIES, strict=True):
            assert set(result[query]) == set(DOCUMENTS)
            assert np.allclose([result[query][name] for name in DOCUMENTS], row, atol=1e-6)


def test_bm25_searches_by_bm25_scores(tasks):
    model = as_mteb_model(load_encoder("bm25"), "me/bm25")
    assert isinstance(model, MTEBSearch)
    expected = BM25(DOCUMENT_TEXTS).scores(list(QUERIES.values()))
    assert np.count_nonzero(expected)
    for candidates in (None, CANDIDATES):
        result = rank_by_mteb(model, tasks["Retrieval"], candidates)
        for row, query in zip(expected, QUERIES, strict=True):
            scores = {n: row[d] for d, n in enumerate(DOCUMENTS) if not candidates or n in candidates[query]}
            assert result[query] == pytest.approx(scores, abs=1e-6)


def test_bm25_equals_bm25_of_mteb(tasks):
    """The same words, formula and scores as `mteb/baseline-bm25s`, which joins title and text by a newline."""
    from mteb.models.model_implementations.bm25 import BM25Search

    expected = rank_by_mteb(BM25Search(), tasks["Retrieval"], None)
    ours = rank_by_mteb(as_mteb_model(load_encoder("bm25"), "me/bm25"), tasks["Retrieval"], None)
    for query in QUERIES:
        assert ours[query] == pytest.approx(expected[query], abs=1e-6)


def test_search_returns_the_top_k_documents(tasks):
    model, task = MTEBSearch(load_encoder("bm25"), "me/bm25"), tasks["Retrieval"]
    task.load_data()
    data = task.dataset["default"]["test"]
    arguments = {"task_metadata": task.metadata, "hf_split": "test", "hf_subset": "default", "encode_kwargs": {}}
    model.index(data["corpus"], **arguments, num_proc=None)
    result = model.search(data["queries"], **arguments, top_k=3, num_proc=None, something_new=1)
    scores = BM25(DOCUMENT_TEXTS).scores(list(QUERIES.values()))
    for query, row in zip(QUERIES, scores, strict=True):
        assert sorted(result[query].values()) == pytest.approx(sorted(row)[-3:])


@pytest.mark.parametrize("kind", ["plain", "prompted", "bm25", "encode only"])
def test_cross_encoder_scores_pairs_for_reranking(kind, encoder, tasks):
    class EncodeOnly:
        fingerprint, dim, encode = "f" * 16, encoder.dim, staticmethod(encoder.encode)

    prompts = (("query", "Find: "), ("document", "Page: "))
    prompted = Encoder(encoder.backbone, EncoderSpec("tiny-llama", (Reading(2, "mean"),), prompts=prompts))
    model = {"plain": encoder, "prompted": prompted, "bm25": load_encoder("bm25"), "encode only": EncodeOnly()}[kind]
    result = rank_by_mteb(MTEBCrossEncoder(model, "me/cross"), tasks["Reranking"], CANDIDATES)
    for query, names in CANDIDATES.items():
        documents = [" ".join(DOCUMENTS[name]) for name in names]
        left = [QUERIES[query]] * len(documents)
        if kind == "plain":
            expected = model.score(left, documents)
        elif kind == "bm25":
            rows = {name: f"{' '.join(DOCUMENTS[name])}" for documents_ in CANDIDATES.values() for name in documents_}
            scores = dict(zip(rows, BM25(list(rows.values())).scores([QUERIES[query]])[0], strict=True))
            expected = [scores[name] for name in names]
        else:
            a = encoder.encode(left, prompt="Find: " if kind == "prompted" else None)
            b = encoder.encode(documents, prompt="Page: " if kind == "prompted" else None)
            expected = pairwise_cos_sim(a, b)
        assert [result[query][name] for name in names] == pytest.approx(expected, abs=1e-6)


def test_cross_encoder_is_refused_for_vector_tasks(encoder, evaluate):
    with pytest.raises(TypeError, match="does not support CrossEncoders"):
        evaluate(MTEBCrossEncoder(encoder, "me/cross"), "STS")


@pytest.mark.parametrize("kind", ["Retrieval", "Reranking"])
def test_retrieval_metrics_of_mteb_are_computed(kind, encoder, evaluate):
    for model in (encoder, load_encoder("bm25"), load_encoder("random:32")):
        result = evaluate(as_mteb_model(model, "me/it"), kind)
        assert 0 <= result["main_score"] <= 1
    scores = encoder.similarity(encoder.encode(list(QUERIES.values())), encoder.encode(DOCUMENT_TEXTS)).numpy()
    truth = np.array([[int(name in RELEVANT[query]) for name in DOCUMENTS] for query in QUERIES])
    if kind == "Retrieval":
        result = evaluate(as_mteb_model(encoder, "me/it"), kind)
        assert abs(result["ndcg_at_10"] - ndcg_score(truth, scores, k=10)) < 1e-4  # mteb rounds to 5 digits


def test_mock_tasks_of_mteb_run(encoder, mteb):
    """The sanity check of mteb for models."""
    from mteb.mocks.mock_run import mock_run
    from mteb.results.task_result import TaskError

    finished = {
        name: status for name, status in mock_run(as_mteb_model(encoder, "me/it")).items() if status is not None
    }
    failed = {name: status.exception for name, status in finished.items() if isinstance(status, TaskError)}
    assert len(finished) >= 20 and failed == {}


def test_models_implement_the_protocols_of_mteb(encoder, mteb):
    from mteb.models.models_protocols import CrossEncoderProtocol, EncoderProtocol, SearchProtocol

    plain, search, cross = as_mteb_model(encoder), as_mteb_model(load_encoder("bm25")), MTEBCrossEncoder(encoder)
    protocols = (EncoderProtocol, SearchProtocol, CrossEncoderProtocol)
    implemented = [[isinstance(model, protocol) for protocol in protocols] for model in (plain, search, cross)]
    assert implemented == [[True, False, False], [True, True, False], [False, False, True]]


def test_results_are_stored_by_name_and_fingerprint(encoder, mteb, evaluate, tmp_path):
    """Two encoders with one name do not share results, and stored results are not computed again."""
    cache = mteb.ResultCache(cache_path=tmp_path)
    other = Encoder(encoder.backbone, EncoderSpec("tiny-llama", (Reading(0, "mean"),)))
    first, second = (evaluate(as_mteb_model(model, "me/it"), "STS", cache=cache) for model in (encoder, other))
    assert first["cosine_spearman"] != second["cosine_spearman"]
    assert {folder.name for folder in tmp_path.glob("results/*/*/")} == {encoder.fingerprint, other.fingerprint}
    meta = json.loads(next(tmp_path.glob(f"results/*/{encoder.fingerprint}/model_meta.json")).read_text())
    assert (meta["name"], meta["revision"], meta["embed_dim"]) == ("me/it", encoder.fingerprint, encoder.dim)
    assert meta["similarity_fn_name"] == "cosine" and meta["n_parameters"] > 0

    class RefusingEncoder(MTEBEncoder):
        def encode(self, *_, **__):
            raise AssertionError("encoded again")

    stored = evaluate(RefusingEncoder(encoder, "me/it"), "STS", cache=cache)
    assert stored["main_score"] == pytest.approx(first["main_score"], abs=1e-6)  # files hold six digits


def test_instruction_is_a_separate_experiment(encoder, mteb, evaluate, tmp_path):
    cache = mteb.ResultCache(cache_path=tmp_path)
    plain = evaluate(as_mteb_model(encoder, "me/it"), "STS", cache=cache)
    instructed = evaluate(as_mteb_model(encoder, "me/it", "Instruct: {instruction}\nText: "), "STS", cache=cache)
    left = encoder.encode(LEFT, prompt="Instruct: Retrieve semantically similar text.\nText: ")
    right = encoder.encode(RIGHT, prompt="Instruct: Retrieve semantically similar text.\nText: ")
    assert abs(instructed["cosine_spearman"] - spearman(pairwise_cos_sim(left, right), SCORES)) < 1e-6
    assert plain["cosine_spearman"] != instructed["cosine_spearman"]


def test_dtype_is_a_separate_experiment(mteb):
    encoders = [Encoder.from_pretrained("tiny-llama", device="cpu", dtype=dtype) for dtype in ("float64", "float32")]
    metas = [as_mteb_model(encoder, "me/it").mteb_model_meta for encoder in encoders]
    assert metas[0].revision == metas[1].revision
    assert [meta.experiment_kwargs for meta in metas] == [{"dtype": "float64"}, None]


def test_prompts_are_chosen_in_the_order_of_mteb(encoder, tasks, mteb):
    """The order is task-role, task, type-role, type, role; the expected name comes from mteb's function."""
    from mteb.models.abs_encoder import get_prompt_name
    from mteb.types import PromptType

    names = ("LocalSTS-query", "LocalSTS", "STS-query", "STS", "query", "document", "LocalSTS-document")
    for chosen in product((False, True), repeat=len(names)):
        prompts = {name: f"{name}: " for name, used in zip(names, chosen, strict=True) if used}
        used = {}

        class RecordingEncoder:
            fingerprint, dim = "f" * 16, 2

            def encode(self, texts, prompt_name=None, used=used):
                used["name"] = prompt_name
                return np.zeros((len(texts), 2))

            def encode_query(self, texts, prompt_name=None, prompts=prompts):
                return self.encode(texts, prompt_name or ("query" if "query" in prompts else None))

            def encode_document(self, texts, prompt_name=None, prompts=prompts):
                return self.encode(texts, prompt_name or ("document" if "document" in prompts else None))

        RecordingEncoder.prompts = prompts
        for role in (None, PromptType.query, PromptType.document):
            model = as_mteb_model(RecordingEncoder())
            model.encode([{"text": ["a"]}], task_metadata=tasks["STS"].metadata, prompt_type=role)
            assert used["name"] == get_prompt_name(prompts, tasks["STS"].metadata, role), (prompts, role)


def test_vectors_that_are_not_finite_are_refused(encoder):
    class BrokenEncoder:
        fingerprint, dim = "f" * 16, 2

        def encode(self, texts):
            return np.full((len(texts), 2), np.nan)

    with pytest.raises(EncoderError, match="not finite"):
        as_mteb_model(BrokenEncoder(), "me/broken").encode([{"text": ["a"]}])


def test_invalid_name_or_instruction_is_refused(encoder):
    with pytest.raises(InputError, match="me/mine"):
        as_mteb_model(encoder, "mine")
    with pytest.raises(InputError, match=r"\{instruction\}"):
        as_mteb_model(encoder, "me/mine", "Find: ")
