"""The reranker study: prompts and scores are those of the library, and an interrupted study continues."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace

import numpy as np
import pair_head
import pytest
import study
import torch
from bm25_groups import Groups
from bm25_runs import Candidates, Cosines, Run, difference, fuse, ndcg_at_10, read_runs, search_bm25
from pair_head import WeightedCosines, scored_pairs
from scipy.special import expit
from study import VARIANTS, Results, Trainer, Variant, run_study, with_settings
from train_packed import READING, TEMPLATES, PairPacker, Settings, mine, new_reranker

from decoder2vec.activations.capture import Capture
from decoder2vec.adapters.lora import Lora
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.encoder import Encoder, spec_from_kwargs
from decoder2vec.errors import InputError
from decoder2vec.reranker import Reranker
from decoder2vec.search.rerank import WeightedCosineReranker
from decoder2vec.storage import write_json
from decoder2vec.text.bm25 import BM25
from decoder2vec.text.pair_template import PairTemplate, PairTokeniser
from distill_packed import Pool
from token_table import TokenTable
from toys.texts import sentences

TEXTS = sentences(60)
FAST = ["steps=2", "batch_tokens=512", "negatives=2"]
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def start(own_cache, tmp_path_factory):
    """A folder of an encoder whose LoRA is not zero."""
    backbone = Backbone.load("tiny-qwen2", attention="bidirectional", device="cpu", dtype="float32")
    lora = Lora.initialise(backbone, 2, 4)
    torch.manual_seed(0)
    for upper in lora.upper.values():
        torch.nn.init.normal_(upper, std=0.3)
    spec = spec_from_kwargs("tiny-qwen2", {"pooling": "mean", "normed": True, "template": "plain"})
    return Encoder(backbone.with_adapter(lora.requires_grad_(False)), spec).save(tmp_path_factory.mktemp("e") / "start")


@pytest.fixture
def trainer(start):
    encoder = Encoder.load(start, device="cpu", dtype="float32")
    generator = torch.Generator().manual_seed(0)
    teachers = [torch.nn.functional.normalize(torch.randn(60, dim, generator=generator), dim=1) for dim in (6, 9)]
    groups = {"a": mine(np.column_stack([np.arange(30), np.arange(30, 60)]), teachers, 2)}
    table = TokenTable.of(encoder.backbone, TEXTS, 256)
    between = np.array(2 * list(encoder.backbone.token_ids("\n")), np.int32)
    packer = PairPacker(table, between, encoder.backbone.closing_token_id)
    return Trainer(encoder, groups, packer, torch.device("cpu"))


@pytest.fixture
def candidates():
    corpus = {f"d{row}": text for row, text in enumerate(TEXTS[:12])}
    queries = {f"q{row}": TEXTS[20 + row] for row in range(4)}
    ids = list(corpus)
    run = {query: ids[row:] + ids[:row] for row, query in enumerate(queries)}
    qrels = {query: {ids[(row + 3) % 12]: 1, ids[(row + 7) % 12]: 2} for row, query in enumerate(queries)}
    return Candidates("scifact", Run(queries, qrels, run, ["q0"]), corpus)


# --- prompts and training -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["tiny-qwen2", "tiny-llama", "tiny-gemma3_text"])
def test_prompts_have_the_tokens_before_texts_once(model, own_cache):
    backbone = Backbone.load(model, device="cpu", dtype="float32")
    packer = PairPacker.of(backbone, TokenTable.of(backbone, TEXTS, 256))
    for order, template in TEMPLATES.items():
        tokeniser = PairTokeniser(backbone, PairTemplate(template), 256, [backbone.closing_token_id])
        (prompt,), _ = tokeniser([TEXTS[3]], [TEXTS[40]])
        assert list(prompt.ids) == packer.prompt(3, 40, order).tolist()


def test_a_plain_model_is_trained_from_itself(trainer, own_cache):
    start = study.starting_encoder("tiny-qwen2")
    reranker, _ = replace(trainer, start=start).train(with_settings(Variant(from_encoder=False), FAST))
    assert reranker.backbone.adapter.config == study.LORA_OF_A_MODEL
    with pytest.raises(InputError, match="no LoRA to start from"):
        replace(trainer, start=start).train(with_settings(Variant(), FAST))


@pytest.mark.parametrize("order", TEMPLATES)
def test_packed_prompts_have_the_tokens_of_the_template(order, trainer):
    backbone = trainer.start.backbone
    tokeniser = PairTokeniser(backbone, PairTemplate(TEMPLATES[order]), 256, [backbone.closing_token_id])
    for query, document in ((0, 40), (7, 3)):
        (prompt,), _ = tokeniser([TEXTS[query]], [TEXTS[document]])
        assert list(prompt.ids) == trainer.packer.prompt(query, document, order).tolist()


@pytest.mark.parametrize("attention", ["bidirectional", "causal"])
def test_training_computes_the_scores_of_the_reranker(attention, trainer):
    backbone, lora = trainer.backbone, trainer._new_lora(Variant()).requires_grad_(False)
    backbone.set_attention(attention)
    head = torch.randn(backbone.dim, generator=torch.Generator().manual_seed(1))
    pairs = [(0, 40), (7, 3), (9, 41)]
    batch = trainer.packer.pack([trainer.packer.prompt(*pair, "document first") for pair in pairs])
    with torch.inference_mode():
        packed = Capture(backbone.with_adapter(lora), [READING])(batch)[:, 0].float() @ head
    reranker = new_reranker(backbone, lora, head, Settings())
    expected = reranker.score_pairs([TEXTS[query] for query, _ in pairs], [TEXTS[document] for _, document in pairs])
    assert reranker.spec.attention == attention
    np.testing.assert_allclose(packed.numpy(), expected, atol=1e-4)


def test_all_weights_start_from_the_merged_encoder(trainer):
    merged = Encoder(trainer._merged_model(), trainer.start.spec)
    np.testing.assert_allclose(merged.encode(TEXTS[:5]), trainer.start.encode(TEXTS[:5]), atol=1e-4)


def test_lora_starts_from_the_encoder_or_from_zero(trainer):
    of_encoder, fresh = trainer._new_lora(Variant()), trainer._new_lora(Variant(from_encoder=False))
    merged = trainer._start_lora.merged_weights_by_path()
    for path, weight in of_encoder.merged_weights_by_path().items():
        torch.testing.assert_close(weight, merged[path])
    for path, weight in fresh.merged_weights_by_path().items():
        torch.testing.assert_close(weight, trainer.backbone.model.get_submodule(path).weight)


# --- runs -----------------------------------------------------------------------------------------------------------


def test_bm25_runs_are_those_of_the_search_without_the_query_itself(tmp_path):
    files = {
        "corpus.jsonl": [{"_id": f"d{row}", "title": "", "text": text} for row, text in enumerate(TEXTS[:30])],
        "queries.jsonl": [{"_id": "d3", "text": TEXTS[3]}, {"_id": "q", "text": f"{TEXTS[5]} {TEXTS[8]}"}],
    }
    for name, rows in files.items():
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "qrels-test.tsv").write_text("query-id\tcorpus-id\tscore\nd3\td4\t1\nq\td5\t1\n")
    run = search_bm25(tmp_path)
    assert set(run.run) == {"d3", "q"} and "d3" not in run.run["d3"] and set(run.run["q"][:2]) == {"d5", "d8"}
    scores = BM25(TEXTS[:30]).scores([TEXTS[3]])[0]
    found = [scores[int(document[1:])] for document in run.run["d3"]]
    assert found == sorted(found, reverse=True) and min(found) > 0 and len(found) == (scores > 0).sum() - 1
    write_json(tmp_path / "runs.json", {"scifact": {**vars(run), "documents": []}})
    assert read_runs(tmp_path / "runs.json") == {"scifact": run}


def test_scores_are_those_of_the_reranker(candidates, own_cache):
    reranker = Reranker.from_pretrained("likelihood:tiny-qwen2", device="cpu", dtype="float32")
    for depth in (3, 12):  # the second time some pairs are tokenised already
        scores = candidates.score(reranker, depth)
        for query, of_query in scores.items():
            documents = candidates.run.run[query][:depth]
            expected = reranker.score(candidates.run.queries[query], [candidates.corpus[one] for one in documents])
            np.testing.assert_allclose([of_query[one] for one in documents], expected, atol=1e-4)


def test_an_encoder_sorts_by_its_cosines(candidates, start):
    encoder = Encoder.load(start, device="cpu", dtype="float32")
    for query, of_query in candidates.score(Cosines(encoder), 5).items():
        vectors = encoder.encode([candidates.run.queries[query], *(candidates.corpus[one] for one in of_query)])
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        np.testing.assert_allclose(list(of_query.values()), vectors[1:] @ vectors[0], atol=1e-5)


def test_a_pair_head_sorts_as_the_reranker_of_the_library(candidates, start):
    encoder = Encoder.load(start, device="cpu", dtype="float32")
    groups = Groups(TEXTS[:24], np.arange(24).reshape(8, 3))
    pairs = scored_pairs(groups)
    assert (pairs.left[0], pairs.right[0], pairs.scores[0]) == (TEXTS[0], TEXTS[1], 1)
    assert (pairs.left[8], pairs.right[8], pairs.scores[8]) == (TEXTS[0], TEXTS[2], 0)
    head = WeightedCosineReranker.fit(encoder, pairs)
    for query, of_query in candidates.score(WeightedCosines(encoder, weights=head.weights), 5).items():
        texts = [candidates.corpus[one] for one in of_query]
        logits = head.scale * np.array(list(of_query.values())) + head.offset
        np.testing.assert_allclose(expit(logits), head.rerank(candidates.run.queries[query], texts), atol=1e-4)


def test_the_study_of_the_pair_head_runs(start, candidates, tmp_path, monkeypatch):
    with gzip.open(tmp_path / "pairs-1.tsv.gz", "wt") as file:
        file.write("source\ttext1\ttext2\n" + "".join(f"a\t{TEXTS[row]}\t{TEXTS[row + 30]}\n" for row in range(30)))
    monkeypatch.setattr(pair_head, "read_candidates", lambda *_: {"scifact": candidates})
    out = tmp_path / "results.json"
    options = ["--runs", "runs.json", "--encoder", str(start), "--pairs", "20"]
    monkeypatch.setattr("sys.argv", ["pair_head.py", str(tmp_path), "data", str(out), *options])
    pair_head.main()
    cosine, head = json.loads(out.read_text())["rerankers"].values()
    assert head["training"]["pairs"] == 40 and head["scifact"]["queries"].keys() == cosine["scifact"]["queries"].keys()
    values, others = (np.array(list(of["scifact"]["queries"].values())) for of in (head, cosine))
    assert head["scifact"]["against"][f"cosine:{start}"][0] == pytest.approx((values - others).mean(), abs=0.01)


def test_measures_are_means_over_queries(candidates):
    class Reverse:
        def rerank(self, query, texts):
            return list(range(len(texts)))

    report = candidates.measure(Reverse(), 12)
    run, qrels = candidates.run.run, candidates.run.qrels
    for depth in (10, 12):
        best_last = {query: documents[:depth][::-1] + documents[depth:] for query, documents in run.items()}
        values = ndcg_at_10({}, best_last, qrels, 0)
        assert report[str(depth)]["all"] == pytest.approx(100 * np.mean(list(values.values())), abs=0.01)
        assert report[str(depth)]["dev"] == pytest.approx(100 * values["q0"], abs=0.01)
    assert report["queries"] == pytest.approx({query: 100 * value for query, value in values.items()}, abs=0.01)
    assert report["pairs"] == 48


def test_fused_ranks_and_paired_differences():
    fused = fuse({"q": {"a": 0.0, "b": 5.0}}, {"q": ["a", "b", "c"]}, 0.25)
    assert fused["q"] == pytest.approx({"a": 0.25 / 11 + 0.75 / 12, "b": 0.25 / 12 + 0.75 / 11})
    rng = np.random.default_rng(0)
    others = {str(row): float(value) for row, value in enumerate(rng.normal(50, 30, 200))}
    values = {query: value + 2 + rng.normal(0, 0.5) for query, value in others.items()}
    mean, low, high = difference(values, others)
    assert 1.8 < low < mean < high < 2.2


# --- the whole study ------------------------------------------------------------------------------------------------


def test_study_measures_every_variant_and_continues(trainer, candidates, tmp_path, monkeypatch):
    variants = {name: with_settings(variant, FAST) for name, variant in VARIANTS.items()}
    file = tmp_path / "results.json"
    first = dict(list(variants.items())[:2])
    assert run_study(Results(file, {"scifact": candidates}), lambda: trainer, first, []) == []
    monkeypatch.setattr(study, "train", None)
    assert run_study(Results(file, {"scifact": candidates}), lambda: trainer, first, []) == [], "nothing to train"
    monkeypatch.undo()
    others = ["likelihood:tiny-qwen2", "cosine:random"]
    assert run_study(Results(file, {"scifact": candidates}), lambda: trainer, variants, [*others, "nothing/here"]) == [
        "nothing/here"
    ]
    document = json.loads(file.read_text())
    assert list(document["rerankers"]) == [*variants, *others]
    for result in document["rerankers"].values():
        queries = result["scifact"]["queries"]
        gain = np.mean(list(queries.values())) - np.mean(list(document["bm25"]["scifact"]["queries"].values()))
        assert result["scifact"]["against"]["BM25"][0] == pytest.approx(gain, abs=0.01)
    assert document["rerankers"]["7 negatives"]["scifact"]["against"]["7 negatives"] == [0, 0, 0]
    assert document["rerankers"]["query first"]["variant"]["settings"]["order"] == "query first"
    saved = Reranker.load(tmp_path / "main", device="cpu", dtype="float32")
    assert saved.spec.template == TEMPLATES["document first"] and saved.spec.attention == "bidirectional"


def test_results_of_other_settings_are_not_continued(trainer, candidates, tmp_path):
    variants = {"7 negatives": with_settings(Variant(), FAST)}
    run_study(Results(tmp_path / "results.json", {"scifact": candidates}), lambda: trainer, variants, [])
    changed = {"7 negatives": replace(variants["7 negatives"], attention="causal")}
    with pytest.raises(InputError, match="other settings"):
        run_study(Results(tmp_path / "results.json", {"scifact": candidates}), lambda: trainer, changed, [])


def test_groups_are_mined_from_the_pairs_of_a_pool(start, tmp_path, monkeypatch):
    with gzip.open(tmp_path / "texts-1.tsv.gz", "wt") as file:
        file.write("source\ttext\nother\tin no pair\n")
    with gzip.open(tmp_path / "pairs-1.tsv.gz", "wt") as file:
        file.write("source\ttext1\ttext2\n" + "".join(f"a\t{TEXTS[row]}\t{TEXTS[row + 30]}\n" for row in range(30)))

    def packed(texts, backbone, teachers, device, **_):
        generator = torch.Generator().manual_seed(0)
        vectors = torch.nn.functional.normalize(torch.randn(len(texts), 8, generator=generator), dim=1)
        assert len(texts) == 60
        return TokenTable.of(backbone, texts, 256), [vectors]

    monkeypatch.setattr(study, "pack_texts", packed)
    monkeypatch.setattr(study, "choose_device", lambda _: torch.device("cpu"))
    groups = study.prepare(tmp_path, {}, str(start), negatives=2).groups
    assert list(groups) == ["a"] and groups["a"].documents.shape[1] == 3


def test_tokenizers_that_add_tokens_to_texts_are_refused(backbone):
    llama = backbone("tiny-llama")  # begins every text with a token
    pool = Pool(TEXTS, ["a"] * 60, {"a": np.column_stack([np.arange(30), np.arange(30, 60)])})
    packer = PairPacker(TokenTable.of(llama, TEXTS, 256), np.array([201, 201], np.int32), llama.closing_token_id)
    with pytest.raises(InputError, match="cannot be packed"):
        study.check_prompts(packer, pool, llama)
