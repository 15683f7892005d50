from __future__ import annotations

import pytest

from agentic_retriever.embeddings import EmbeddingModel
from agentic_retriever.indices import IndexStorage
from agentic_retriever.testing import FakeEmbedding


@pytest.fixture
def base():
    return FakeEmbedding()


@pytest.fixture(scope="module")
def embedding():
    model = EmbeddingModel(FakeEmbedding(), name="fake")
    yield model
    model.close()


@pytest.fixture
def storage(tmp_path):
    opened = IndexStorage(tmp_path / "data")
    yield opened
    opened.close()
