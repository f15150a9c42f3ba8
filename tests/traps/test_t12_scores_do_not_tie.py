"""T12: close similarities that tie in 16 bits."""

import numpy as np
import pytest
import torch
from sentence_transformers import util
from torch.nn.functional import normalize

from decoder2vec.encoder import Encoder
from decoder2vec.maths.similarity import SIMILARITIES, pairwise_similarity, similarity_matrix

REFERENCE = {
    "cosine": lambda a, b: a @ b / np.linalg.norm(a) / np.linalg.norm(b),
    "dot": lambda a, b: a @ b,
    "euclidean": lambda a, b: -np.sqrt(((a - b) ** 2).sum()),
    "manhattan": lambda a, b: -np.abs(a - b).sum(),
}
SIXTEEN_BITS = {
    "cosine": lambda a, b: (normalize(a, dim=-1) * normalize(b, dim=-1)).sum(-1),
    "dot": lambda a, b: (a * b).sum(-1),
    "euclidean": lambda a, b: -(a - b).pow(2).sum(-1).sqrt(),
    "manhattan": lambda a, b: -(a - b).abs().sum(-1),
}


@pytest.fixture(scope="module")
def query_and_documents():
    """One query and 50 documents in bfloat16, each document a little farther away than the one before."""
    generator = torch.Generator().manual_seed(0)
    query, noise = torch.randn(1, 256, generator=generator), torch.randn(1, 256, generator=generator)
    documents = torch.cat([query + (0.5 + 0.002 * step) * noise for step in range(50)])
    return query.bfloat16(), documents.bfloat16()


@pytest.mark.parametrize("name", SIMILARITIES)
def test_bfloat16_embeddings_are_compared_in_float32(name, query_and_documents, gap):
    """All documents have different scores, in the order of float64; in bfloat16, the faulty variant, they tie."""
    query, documents = query_and_documents
    exact = np.array([REFERENCE[name](query[0].double().numpy(), row.double().numpy()) for row in documents])
    assert len(np.unique(exact)) == len(exact)

    faulty = SIXTEEN_BITS[name](query.expand_as(documents), documents)
    assert len(faulty.unique()) < len(exact)

    for ours in (
        similarity_matrix(name, query, documents)[0],
        pairwise_similarity(name, query.expand_as(documents), documents),
    ):
        assert ours.dtype == torch.float32
        assert gap(ours, exact) < 1e-5
        assert len(ours.unique()) == len(exact)
        assert ours.argsort().tolist() == exact.argsort().tolist()


def test_scores_equal_sentence_transformers(query_and_documents):
    """It compares in float32 since version 6."""
    query, documents = (vectors.float() for vectors in query_and_documents)
    for name, theirs in {
        "cosine": util.cos_sim,
        "dot": util.dot_score,
        "euclidean": util.euclidean_sim,
        "manhattan": util.manhattan_sim,
    }.items():
        torch.testing.assert_close(
            similarity_matrix(name, query, documents), theirs(query, documents), rtol=1e-5, atol=1e-5
        )


def test_encoder_similarity_does_not_tie(query_and_documents):
    """The public API, on tensors that a user may have stored in bfloat16."""
    query, documents = query_and_documents
    encoder = Encoder.from_pretrained("tiny-gpt2", template="plain", pooling="mean", device="cpu")
    assert len(encoder.similarity(query, documents).unique()) == len(documents)
    assert len(encoder.similarity_pairwise(query.expand_as(documents), documents).unique()) == len(documents)


@pytest.mark.parametrize("name", ["euclidean", "manhattan"])
@pytest.mark.parametrize("count", [20, 40])
def test_distances_are_exact_beside_a_huge_dimension(name, count, gap):
    """|a|^2 + |b|^2 - 2ab, the faulty variant, cancels if all vectors share a large component, as raw states do."""
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, 64, generator=generator)
    query[0, 3] += 1000
    near = torch.cat([query + 0.01 * (step + 1) * torch.randn(1, 64, generator=generator) for step in range(count)])
    exact = np.array([REFERENCE[name](query[0].double().numpy(), row.double().numpy()) for row in near])
    assert gap(pairwise_similarity(name, query.expand_as(near), near), exact) < 1e-5
    assert gap(similarity_matrix(name, query, near)[0], exact) < 1e-5

    expanded = (query**2).sum() + (near**2).sum(1) - 2 * (query @ near.T)[0]
    faulty = -expanded.clamp(min=0).sqrt().numpy()
    assert name != "euclidean" or gap(faulty, exact) > 1e-2
