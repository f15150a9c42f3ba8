"""Texts in memory for experiments: tokens and teachers' vectors are those of the libraries; runs end in encoders."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

import ablations
import continue_training
import packed_pool
from continue_training import SETTINGS, fit_maps
from decoder2vec.adapters.lora import Lora
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.encoder import Encoder, spec_from_kwargs
from decoder2vec.errors import InputError
from decoder2vec.merging import merge
from distill_packed import DistillationLoss, Pool, Settings
from packed_pool import Teacher, pack_texts, read_teachers, some_pairs, texts_of_pairs
from token_table import TokenTable
from toys.texts import sentences

TEXTS = [*sentences(40), "", "a", " ".join(sentences(12))]
CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def llama(own_cache):
    return Backbone.load("tiny-llama", attention="bidirectional", device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def teacher_folders(tmp_path_factory):
    """sentence-transformers folders of a tiny BERT with random weights, by pooling."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    root = tmp_path_factory.mktemp("teachers")
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    tokenizer.train_from_iterator(TEXTS, trainers.WordPieceTrainer(vocab_size=200, special_tokens=special))
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(root / "bert")
    config = BertConfig(
        vocab_size=200, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=30,
    )  # fmt: skip
    torch.manual_seed(0)
    BertModel(config).save_pretrained(root / "bert")
    for pooling in ("mean", "cls", "max"):
        modules = [Transformer(str(root / "bert"), max_seq_length=30), Pooling(16, pooling)]
        SentenceTransformer(modules=modules, device="cpu").save(str(root / pooling))
    return {pooling: root / pooling for pooling in ("mean", "cls", "max")}


@pytest.fixture
def teachers(teacher_folders):
    return read_teachers([f"{name}={teacher_folders[name]}" for name in ("mean", "cls")])


@pytest.mark.parametrize("processes", [0, 2])
def test_vectors_and_tokens_are_those_of_the_libraries(processes, teachers, llama, monkeypatch):
    from sentence_transformers import SentenceTransformer

    monkeypatch.setattr(packed_pool, "_TEXTS_AT_ONCE", 7)
    monkeypatch.setattr(packed_pool, "_BATCH_TOKENS", 100)
    table, vectors = pack_texts(TEXTS, llama, teachers, CPU, processes=processes)
    for teacher, found in zip(teachers.values(), vectors, strict=True):
        model = SentenceTransformer(str(teacher.folder), device="cpu")
        expected = model.encode(TEXTS, normalize_embeddings=True)
        np.testing.assert_allclose(found.float().numpy(), expected, atol=2e-3)
    reference = TokenTable.of(llama, TEXTS, 256)  # the model's context
    for name in ("token_ids", "lengths", "starts"):
        np.testing.assert_array_equal(getattr(table, name), getattr(reference, name))
    assert table.pack(np.arange(8)).packing.groups is None


def test_cached_results_are_read_for_the_same_texts_and_teacher(teachers, llama, tmp_path, monkeypatch):
    table, vectors = pack_texts(TEXTS, llama, teachers, CPU, cache=tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Teacher, "vectors", None)
        patch.setattr(packed_pool, "_tokenise_chunk", None)
        again, same = pack_texts(TEXTS, llama, teachers, CPU, cache=tmp_path)
    np.testing.assert_array_equal(again.token_ids, table.token_ids)
    assert all(torch.equal(first, second) for first, second in zip(vectors, same, strict=True))
    others, other_vectors = pack_texts(TEXTS[::-1], llama, teachers, CPU, cache=tmp_path)
    np.testing.assert_array_equal(others.lengths, table.lengths[::-1])
    np.testing.assert_allclose(other_vectors[0].float(), vectors[0].flip(0).float(), atol=2e-3)


def test_other_poolings_and_folders_are_refused(teacher_folders, tmp_path):
    with pytest.raises(InputError, match="mean or CLS"):
        Teacher(teacher_folders["max"])
    with pytest.raises(InputError, match=r"modules\.json"):
        Teacher(tmp_path)
    with pytest.raises(InputError, match="NAME=FOLDER"):
        read_teachers([str(teacher_folders["mean"])])


def test_texts_of_pairs_keep_the_pairs():
    texts = [f"text {row}" for row in range(50)]
    pairs = {"a": np.array([[1, 2], [3, 4], [5, 6], [1, 6]]), "b": np.array([[40, 41]])}
    pool = some_pairs(Pool(texts, ["x"] * 50, pairs), 3)
    assert {source: len(of) for source, of in pool.pairs.items()} == {"a": 3, "b": 1}
    small = texts_of_pairs(pool)
    for source, of in pool.pairs.items():
        assert [[small.texts[row] for row in pair] for pair in small.pairs[source]] == [
            [texts[row] for row in pair] for pair in of
        ]
    assert sorted(small.texts) == sorted({texts[row] for of in pool.pairs.values() for row in of.ravel()})


def test_fitted_maps_find_a_linear_relation():
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(400, 6, generator=generator)
    targets = [vectors @ torch.randn(6, dim, generator=generator) + 0.5 for dim in (5, 3)]
    loss = DistillationLoss(6, targets, [1.0, 1.0], Settings())
    assert min(fit_maps(loss, vectors, torch.arange(400))) > 0.999
    for linear in loss.maps:
        assert linear.weight.square().mean().sqrt().item() == pytest.approx(0.1, rel=1e-3)


@pytest.fixture
def small_pool(tmp_path):
    """A folder with 40 texts and 20 pairs."""
    pairs = [f"wikipedia\t{text}\tAnother text about {text.lower()}" for text in TEXTS[:20]]
    for name, lines in (
        ("texts-1", ["source\ttext", *(f"wikipedia\t{text}" for text in TEXTS[:40])]),
        ("pairs-1", ["source\ttext1\ttext2", *pairs]),
    ):
        with gzip.open(tmp_path / f"{name}.tsv.gz", "wt", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
    return tmp_path


@pytest.fixture
def start(tmp_path, own_cache):
    """The folder of an encoder with LoRA of rank 2."""
    backbone = Backbone.load("tiny-llama", attention="bidirectional", device="cpu", dtype="float32")
    spec = spec_from_kwargs("tiny-llama", {"pooling": "mean", "normed": True, "template": "plain"})
    Encoder(backbone.with_adapter(Lora.initialise(backbone, 2, 4)), spec).save(tmp_path / "start")
    return tmp_path / "start"


@pytest.mark.parametrize("rank", [4, 0])
def test_training_is_continued(rank, teachers, small_pool, start, tmp_path, monkeypatch):
    monkeypatch.setattr("distill_packed._COMPILING_STEPS", 3)
    monkeypatch.setattr(continue_training, "choose_device", lambda _: CPU)
    small = {"rank": rank, "alpha": 8, "max_length": 64, "batch_tokens": 256, "batch_texts": 16, "long_documents": 5}
    settings = Settings(**{**vars(SETTINGS), **small})
    out, other = tmp_path / "out", tmp_path / "other"
    continue_training.continue_training(small_pool, teachers, str(start), {1: out, 2: other}, settings, 0.3)
    record = json.loads((out / "distillation.json").read_text())
    assert record["log"][-1]["step"] > 3 and record["documents"] == 5 and len(record["cosines of the maps"]) == 2
    encoder = Encoder.load(out, device="cpu", dtype="float32")
    assert encoder.spec.readings[0].pooling == "mean" and encoder.backbone.attention == "bidirectional"
    if rank:
        assert encoder.backbone.adapter.config.rank == 4
    else:
        assert encoder.backbone.adapter is None
    before = Encoder.load(start, device="cpu", dtype="float32").encode(TEXTS[:3])
    assert np.abs(encoder.encode(TEXTS[:3]) - before).max() > 1e-4
    assert record["settings"]["seed"] == 1
    mean = merge([out, other], tmp_path / "mean")
    of_other = Encoder.load(other, device="cpu", dtype="float32").encode(TEXTS[:3])
    assert np.abs(of_other - encoder.encode(TEXTS[:3])).max() > 1e-5
    assert np.isfinite(mean.encode(TEXTS[:3])).all()
    if not rank:
        saved = Encoder.load(other, device="cpu", dtype="float32")
        weights = [dict(one.backbone.model.named_parameters()) for one in (encoder, saved, mean)]
        for name, averaged in weights[2].items():
            torch.testing.assert_close(averaged, (weights[0][name] + weights[1][name]) / 2)


@pytest.mark.parametrize("optimiser", ["adamw", "muon"])
def test_training_starts_from_a_model(optimiser, teachers, small_pool, tmp_path, own_cache, monkeypatch):
    monkeypatch.setattr(continue_training, "choose_device", lambda _: CPU)
    small = {"max_length": 64, "batch_tokens": 256, "batch_texts": 16, "long_documents": 5, "rank": 0, "rate": 1e-3}
    settings = Settings(**{**vars(SETTINGS), **small, "optimiser": optimiser, "embeddings": False})
    out = tmp_path / "out"
    continue_training.continue_training(small_pool, teachers, "tiny-gemma3_text", {1: out}, settings, 0.3)
    encoder = Encoder.load(out, device="cpu", dtype="float32")
    before = Backbone.load("tiny-gemma3_text", device="cpu", dtype="float32").model
    after = encoder.backbone.model
    torch.testing.assert_close(after.get_input_embeddings().weight, before.get_input_embeddings().weight)
    changed = dict(after.named_parameters())
    for name, weight in before.named_parameters():
        assert torch.equal(weight, changed[name]) == ("embed_tokens" in name), name
    assert encoder.backbone.attention == "bidirectional"


def test_lora_starts_from_a_model(teachers, small_pool, tmp_path, own_cache, monkeypatch):
    monkeypatch.setattr(continue_training, "choose_device", lambda _: CPU)
    small = {"max_length": 64, "batch_tokens": 256, "batch_texts": 16, "long_documents": 5, "rank": 4, "alpha": 8}
    settings = Settings(**{**vars(SETTINGS), **small})
    out = tmp_path / "out"
    continue_training.continue_training(small_pool, teachers, "tiny-llama", {1: out}, settings, 0.3)
    encoder = Encoder.load(out, device="cpu", dtype="float32")
    assert encoder.backbone.adapter.config.rank == 4 and encoder.backbone.attention == "bidirectional"
    assert encoder.spec.normalize == "rms" and str(encoder.spec.readings[0].pooling) == "mean"
    plain = {"pooling": "mean", "normed": True, "template": "plain", "attention": "bidirectional"}
    before = Encoder.from_pretrained("tiny-llama", device="cpu", dtype="float32", normalize="rms", **plain)
    assert np.abs(encoder.encode(TEXTS[:3]) - before.encode(TEXTS[:3])).max() > 1e-4


def test_lora_is_not_continued_where_there_is_none(teachers, small_pool, tmp_path, own_cache, monkeypatch):
    """The encoder might be read in another way than the one that is trained here."""
    monkeypatch.setattr(continue_training, "choose_device", lambda _: CPU)
    Encoder.from_pretrained("tiny-llama", device="cpu", dtype="float32").save(tmp_path / "start")
    settings = Settings(**{**vars(SETTINGS), "rank": 4, "max_length": 64, "batch_tokens": 256, "long_documents": 5})
    with pytest.raises(InputError, match="LoRA grows from a LoRA"):
        continue_training.continue_training(
            small_pool, teachers, str(tmp_path / "start"), {1: tmp_path / "out"}, settings, 0.3
        )
    assert not (tmp_path / "out").exists()


def test_unknown_optimiser_is_refused():
    with pytest.raises(InputError, match="adamw or muon"):
        Settings(optimiser="sgd")


def test_losses_of_prefixes_and_rounded_vectors_are_those_of_the_vectors_themselves():
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(8, 6, generator=generator)
    targets = [torch.nn.functional.normalize(torch.randn(8, 5, generator=generator), dim=1)]
    plain = DistillationLoss(6, targets, [1.0], Settings())
    both = DistillationLoss(6, targets, [1.0], Settings(dims=(2, 4), precisions=("binary",)))
    both.load_state_dict(plain.state_dict())
    rows = np.arange(8)
    signs = torch.where(vectors > 0, 1.0, -1.0)  # cosines do not see their size; the bias of the map does
    expected = []
    for view in (vectors, vectors[:, :2], vectors[:, :4], signs * vectors.abs().mean(1, keepdim=True)):
        padded = torch.nn.functional.pad(view, (0, 6 - view.shape[1]))  # zeros add nothing to products
        expected.append(plain(padded, rows, 0)[0])
    torch.testing.assert_close(both(vectors, rows, 0)[0], torch.stack(expected).mean())


def test_ablations_are_scored_in_every_view(teachers, teacher_folders, small_pool, start, tmp_path, monkeypatch):
    (tmp_path / "sts").mkdir()
    lines = [f"{left}\t{right}\t{n % 5}" for n, (left, right) in enumerate(zip(TEXTS[:10], TEXTS[10:20], strict=True))]
    for name in ("stsb-dev", "sickr-dev"):
        (tmp_path / "sts" / f"{name}.tsv").write_text("\n".join(["sentence1\tsentence2\tscore", *lines]))
    for name in ("scifact", "quora-mini"):
        folder = tmp_path / "retrieval" / name
        folder.mkdir(parents=True)
        for file, texts in (("corpus", TEXTS[:20]), ("queries", TEXTS[20:40])):
            rows = (json.dumps({"_id": f"{file}{n}", "text": text}) for n, text in enumerate(texts))
            (folder / f"{file}.jsonl").write_text("\n".join(rows))
        qrels = [f"queries{n}\tcorpus{n}\t1" for n in range(20)]
        (folder / "qrels-test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *qrels]))
    small = {"steps": 3, "rank": 2, "batch_tokens": 256, "batch_texts": 16, "max_length": 64}
    for name in ("SETTINGS", "CONTRASTIVE"):
        monkeypatch.setattr(ablations, name, Settings(**{**vars(getattr(ablations, name)), **small}))
    monkeypatch.setattr(ablations, "choose_device", lambda _: CPU)
    monkeypatch.setitem(ablations.ROWS, "contrastive", ablations.Row(start=ablations.CONTRASTIVE))
    monkeypatch.setitem(ablations.ROWS, "small", ablations.Row({"dims": (8,), "precisions": ("int8",)}))
    out = tmp_path / "ablations.json"
    names = [f"{name}={folder}" for name, folder in teacher_folders.items() if name != "max"]
    command = ["ablations", str(small_pool), str(tmp_path), str(out), "--start", str(start), "--processes", "0"]
    monkeypatch.setattr("sys.argv", [*command, "--teachers", *names, "--rows", "none", "small", "contrastive"])
    ablations.main()
    rows = json.loads(out.read_text())["rows"]
    assert list(rows) == ["none", "small", "contrastive"]
    for row in rows.values():
        assert list(row["dev"]) == list(ablations.VIEWS)
        assert list(row["dev"]["int8"]) == ["stsb", "sickr", "scifact", "quora-mini"]
    assert rows["contrastive"]["dev"] != rows["none"]["dev"]
    assert rows["none"]["dev"]["binary"] != rows["none"]["dev"]["float32"]
