from __future__ import annotations

import pytest
from evaluation_material import BOAT_QUERIES, BOATS, BREAD, BREAD_QUERIES, DIMENSION, write_beir, write_vectors

from agentic_retriever.config import RouterConfig
from agentic_retriever.router import AgenticRouter
from agentic_retriever.testing import FakeEmbedding


@pytest.fixture
def boats(tmp_path):
    return write_beir(tmp_path / "boats", BOATS, BOAT_QUERIES, description="boats and the harbour")


@pytest.fixture
def bread(tmp_path):
    return write_beir(tmp_path / "bread", BREAD, BREAD_QUERIES, description="bread, dough and the oven")


@pytest.fixture
def vectors(tmp_path):
    write_vectors(tmp_path / "vectors" / "boats.npz", BOATS, BOAT_QUERIES)
    write_vectors(tmp_path / "vectors" / "bread.npz", BREAD, BREAD_QUERIES)
    return tmp_path / "vectors"


@pytest.fixture
def router(tmp_path):
    with AgenticRouter(
        RouterConfig(data_dir=tmp_path / "data"), embedding=FakeEmbedding(dimension=DIMENSION)
    ) as router:
        yield router
