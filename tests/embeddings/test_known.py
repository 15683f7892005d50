from __future__ import annotations

import numpy as np
import pytest

from agentic_retriever.embeddings import KnownQueryEmbedding, embedding_name
from agentic_retriever.testing import FakeEmbedding


def test_known_questions_are_not_computed():
    base = FakeEmbedding(dimension=4)
    model = KnownQueryEmbedding(base, {"known": np.array([1, 0, 0, 0], dtype=np.float32)})
    assert model.get_query_embedding("known") == [1.0, 0.0, 0.0, 0.0]
    assert base.calls == []
    assert model.get_query_embedding("other") == base.get_query_embedding("other")
    # What is known of a question says nothing of a passage with the same text.
    assert model.get_text_embedding_batch(["known"]) == [base.get_text_embedding("known")]


def test_it_passes_for_the_model_itself():
    base = FakeEmbedding(dimension=4)
    assert embedding_name(KnownQueryEmbedding(base, {})) == embedding_name(base)


@pytest.mark.asyncio
async def test_it_answers_asynchronously():
    model = KnownQueryEmbedding(FakeEmbedding(dimension=2), {"a": np.array([0, 1], dtype=np.float32)})
    assert await model.aget_query_embedding("a") == [0.0, 1.0]
