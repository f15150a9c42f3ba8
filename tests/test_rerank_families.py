"""Families of rerankers: equal sizes, the same groups for all, prompts of the library, and a whole tiny run."""

from __future__ import annotations

import gzip
import json
from argparse import Namespace
from itertools import islice

import families
import numpy as np
import pytest
import torch
from bm25_groups import Groups, make_groups, read_pairs
from family_evaluation import compare, query_metrics, rank_by, score_pairs
from family_models import FAMILIES, VOCABULARY, count_parameters, make_model
from family_training import LENGTH, TEMPLATE, Batch, PairPrompts, draw_batches, group_loss, trapezoid
from pretraining import pack, shuffled_batches, train_tokenizer
from state_space import fast_mixers

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.text.pair_template import PairTemplate, PairTokeniser

ANIMALS = ("cat", "dog", "bird", "horse", "fish", "mouse", "cow", "sheep", "goat", "duck", "hen", "fox")
PLACES = ("kitchen", "garden", "forest", "river", "barn", "street", "meadow", "harbour", "attic", "cellar")
PAIRS = [(f"Where is the {a}?", f"The {a} sleeps in the {p} all day.") for a in ANIMALS for p in PLACES]


@pytest.fixture
def groups():
    return make_groups({"animals": PAIRS, "few": PAIRS[:3]}, hard=4, random=3)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([text for pair in PAIRS for text in pair], 300)


@pytest.mark.parametrize("size", VOCABULARY)
def test_families_have_equally_many_parameters(size):
    counts = [count_parameters(make_model(family, size, VOCABULARY[size], end=0)) for family in FAMILIES]
    assert max(counts) <= (1 + families.TOLERANCE) * min(counts)


def test_state_space_models_begin_with_their_own_time_steps():
    """transformers sets the biases of other linear layers to 0, which would be one time step for all channels."""
    for family, name in (("mamba", "dt_proj.bias"), ("mamba2", "dt_bias")):
        steps = [w for n, w in make_model(family, "tiny", 300, end=0).named_parameters() if n.endswith(name)]
        assert len(steps) == 3
        for values in steps:
            times = torch.nn.functional.softplus(values)
            assert times.min() > 9e-4 and times.max() < 0.11 and times.std() > 1e-3


def test_negatives_are_no_positives(groups):
    assert len(groups.rows) == len(PAIRS)  # a source with too few documents has none
    positives = {(groups.texts[row[0]], groups.texts[row[1]]) for row in groups.rows}
    assert positives == set(PAIRS)
    for query, positive, *negatives in groups.rows:
        assert len({positive, *negatives}) == 8
        assert not any((groups.texts[query], groups.texts[negative]) in positives for negative in negatives)


def test_hard_negatives_share_words_with_the_query():
    documents = [f"about {word} number {n}" for n in range(20) for word in ("apples", "pears")]
    pairs = [("apples", documents[0]), *((f"query {n}", document) for n, document in enumerate(documents[1:]))]
    groups = make_groups({"fruit": pairs}, hard=4, random=0)
    row = next(row for row in groups.rows if groups.texts[row[0]] == "apples")
    assert all("apples" in groups.texts[at] for at in row[2:])


def test_groups_are_repeatable_and_saved(groups, tmp_path):
    again = make_groups({"few": PAIRS[:3], "animals": PAIRS})
    assert again.texts == groups.texts and (again.rows == groups.rows).all()
    groups.save(tmp_path / "groups.json.gz")
    loaded = Groups.load(tmp_path / "groups.json.gz")
    assert loaded.texts == groups.texts and (loaded.rows == groups.rows).all()


def write_pool(folder):
    texts = "source\ttext\n" + "".join(f"animals\t{query} {document}\n" for query, document in 60 * PAIRS)
    pairs = "source\ttext1\ttext2\n" + "".join(f"animals\t{query}\t{document}\n" for query, document in PAIRS)
    folder.mkdir()
    (folder / "texts-1.tsv.gz").write_bytes(gzip.compress((texts).encode()))
    (folder / "pairs-1.tsv.gz").write_bytes(gzip.compress((pairs + "animals\tsame\tsame\n").encode()))


def test_pairs_are_drawn_by_source(tmp_path):
    write_pool(tmp_path / "pool")
    assert set(read_pairs(tmp_path / "pool", 1000)["animals"]) == set(PAIRS)
    assert len(read_pairs(tmp_path / "pool", 10)["animals"]) == 10


def test_sequences_are_the_texts_one_after_another(tokenizer):
    sequences = pack(["A cat.", "The dog sleeps."], tokenizer, 4)
    decoded = tokenizer.decode(sequences.flatten())
    assert "A cat.<eos>The dog sleeps.<eos>".startswith(decoded) and sequences.shape[1] == 4
    assert pack(["A cat."] * 4, tokenizer, 4).dtype == torch.long


def test_every_epoch_has_every_sequence_once():
    batches = list(islice(shuffled_batches(torch.arange(6)[:, None], 4, seed=0), 3))
    order = torch.cat(batches).flatten().tolist()
    assert sorted(order[:6]) == sorted(order[6:]) == list(range(6)) and order[:6] != order[6:]


def test_prompts_are_those_of_the_library(tokenizer, tmp_path):
    make_model("llama", "tiny", len(tokenizer), tokenizer.eos_token_id).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    backbone = Backbone.load(tmp_path, device="cpu", dtype="float32")
    texts = ["Where is the cat?", "The cat sleeps.", "It sleeps in the garden all day. " * 60]
    prompts = PairPrompts.of(tokenizer, [text.strip() for text in texts])
    library = PairTokeniser(backbone, PairTemplate(TEMPLATE), LENGTH, [backbone.closing_token_id])
    for document in (1, 2):
        (expected,), _ = library([texts[0]], [texts[document].strip()])
        assert prompts(0, document).tolist() == list(expected.ids)
    assert len(prompts(0, 2)) == LENGTH


def test_batches_are_the_same_for_every_family(groups, tokenizer):
    prompts = PairPrompts.of(tokenizer, groups.texts)
    first, again = (list(islice(draw_batches(groups, prompts, 16, seed=3, padding=1), 8)) for _ in range(2))
    assert all(torch.equal(a.ids, b.ids) and torch.equal(a.last, b.last) for a, b in zip(first, again, strict=True))
    assert sum(batch.groups for batch in first) == len(groups.rows)
    queries = {tokenizer.decode(batch.ids[row, : batch.last[row]]) for batch in first for row in range(len(batch.ids))}
    expected = {TEMPLATE.format(document=groups.texts[d], query=groups.texts[r[0]]) for r in groups.rows for d in r[1:]}
    assert queries == expected


def test_loss_is_that_of_the_positive_among_its_own_negatives():
    torch.manual_seed(0)
    model, head = make_model("gpt2", "tiny", 300, end=0).base_model, torch.randn(32)
    rows = [torch.randint(2, 300, (length,)) for length in (5, 7, 4, 6)]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=1)
    batch = Batch(ids, torch.tensor([4, 6, 3, 5]), 2, 22)
    scores = torch.stack([model(input_ids=row[None]).last_hidden_state[0, -1] @ head for row in rows]).view(2, 2)
    expected = -torch.log_softmax(scores, dim=1)[:, 0].mean()
    torch.testing.assert_close(group_loss(model, head, batch), expected, rtol=1e-5, atol=1e-5)


def test_rate_rises_stays_and_falls():
    assert trapezoid(0) < 0.1 and trapezoid(0.1) == trapezoid(0.7) == 1
    assert trapezoid(0.85) == pytest.approx(0.5) and trapezoid(1) == 0


def test_ranking_and_its_metrics():
    ranking = rank_by({"a": 0.1, "b": 0.9}, ["a", "b", "c"])
    assert ranking == ["b", "a", "c"]
    assert query_metrics(ranking, {"a": 1}) == pytest.approx({"ndcg@10": 1 / np.log2(3), "mrr": 0.5})
    assert query_metrics(ranking, {"z": 1}) == {"ndcg@10": 0, "mrr": 0}


def test_families_are_compared_on_the_same_queries():
    def document(value):
        return {"tasks": {"scifact": {"by_query": {"bm25": {"1": [0.5, 0], "2": [0.5, 0]}, "reranked": value}}}}

    better = document({"2": [0.7, 0], "1": [0.9, 0]})
    gaps = compare({"llama": document({"1": [0.5, 0], "2": [0.5, 0]}), "mamba": better})["scifact"]
    assert gaps["mamba minus llama"]["value"] == pytest.approx(30) and gaps["mamba minus llama"]["low"] >= 20
    assert gaps["llama minus bm25"] == {"value": 0, "low": 0, "high": 0}


def write_tasks(folder):
    runs = {}
    for task in ("scifact", "quora-mini"):
        (folder / task).mkdir(parents=True)
        documents = {f"d{n}": document for n, (_, document) in enumerate(PAIRS)}
        queries = {"q0": PAIRS[0][0], "q1": PAIRS[15][0]}
        for name, texts in (("corpus", documents), ("queries", queries)):
            lines = [json.dumps({"_id": key, "title": "", "text": text}) + "\n" for key, text in texts.items()]
            (folder / task / f"{name}.jsonl").write_text("".join(lines))
        run, qrels = {query: list(documents) for query in queries}, {"q0": {"d0": 1}, "q1": {"d15": 1}}
        runs[task] = {"run": run, "queries": queries, "qrels": qrels, "dev": ["q1"]}
    (folder / "runs.json").write_text(json.dumps(runs))


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_those_of_single_plain_passes(family, tokenizer, tmp_path, one_thread):
    torch.manual_seed(0)
    model = make_model(family, "tiny", len(tokenizer), tokenizer.eos_token_id).base_model.eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1 and "A_log" not in name:
                weight.mul_(3)  # or the last state hardly depends on the document
    head = torch.randn(32)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    np.save(tmp_path / "score.npy", head.numpy())
    prompts = PairPrompts.of(tokenizer, [PAIRS[0][0], *(document for _, document in PAIRS[:9])])
    with fast_mixers():
        scores = score_pairs(families.load_reranker(tmp_path, "cpu"), prompts, [(0, row) for row in range(1, 10)])
    with torch.no_grad():
        ids = [torch.tensor(prompts(0, row)[None], dtype=torch.long) for row in range(1, 10)]
        expected = [float(model(input_ids=row, use_cache=False).last_hidden_state[0, -1] @ head) for row in ids]
    assert np.std(expected) > 1e-3
    np.testing.assert_allclose(scores, expected, atol=1e-4)


def test_a_tiny_study_runs_through_and_resumes(tmp_path, one_thread, capsys):
    write_pool(tmp_path / "pool")
    write_tasks(tmp_path / "data")
    arguments = Namespace(
        **{"pool": tmp_path / "pool", "file": tmp_path / "groups.json.gz", "pairs": 100, "out": tmp_path / "out"},
        **{"size": "tiny", "texts": None, "device": "cpu", "seconds": 0.1, "batch": 2, "rate": 1e-3, "seed": 0},
        **{"groups": tmp_path / "groups.json.gz", "data": tmp_path / "data", "runs": tmp_path / "data" / "runs.json"},
        **{"results": tmp_path / "results", "limit": None, "lengths": [16], "families": ["gpt2", "mamba"]},
    )
    arguments.results.mkdir()
    for step in (families.write_groups, families.write_tokens, families.pretrain, families.rerank, families.speed):
        step(arguments)
    capsys.readouterr()
    families.pretrain(arguments)
    assert "gpt2 is pre-trained already" in capsys.readouterr().out
    arguments.file = tmp_path / "families.json"
    families.write_comparison(arguments)
    results = json.loads(arguments.file.read_text())
    assert set(results["families"]) == {"gpt2", "mamba"}
    for document in results["families"].values():
        assert document["pretraining"]["tokens"] > 0 and document["reranking"]["groups"] > 0
        assert document["tasks"]["scifact"]["difference_from_library"] < 1e-5
        assert document["tasks"]["scifact"]["pairs"] == 200 and document["tasks"]["quora-mini"]["pairs"] == 50
    assert set(results["families"]["mamba"]["speed"]) >= {"chunked torch", "transformers"}
    assert set(results["differences"]["scifact"]) == {"gpt2 minus bm25", "mamba minus bm25", "mamba minus gpt2"}
