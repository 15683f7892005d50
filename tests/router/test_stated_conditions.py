"""What a question restricts by a field's value is kept, and a restriction that is not there costs nothing."""

from __future__ import annotations

import pytest
from llama_index.core.schema import Document

from agentic_retriever import AgenticRouter, RouterConfig
from agentic_retriever.schema import Strategy
from agentic_retriever.testing import FakeEmbedding

PAPERS = [
    ("Pooch, U. W.", "A translation of decision tables."),
    ("Prieve, B. G.", "Page replacement algorithms compared."),
    ("Salton, G.", "Clusters of documents in retrieval."),
    ("Knuth, D. E.", "Articles written about the errors of a typesetting program."),
]


@pytest.fixture
def router(tmp_path, monkeypatch):
    # Whatever is found looks poor by its cosine, so that the next strategy is always tried where that decides.
    config = RouterConfig(data_dir=tmp_path / "data")
    monkeypatch.setattr("agentic_retriever.pipeline.query.RETRY_BELOW", 1.0)
    with AgenticRouter(config, embedding=FakeEmbedding(dimension=32)) as made:
        documents = [
            Document(text=text, doc_id=author.split(",")[0], metadata={"author": author}) for author, text in PAPERS
        ]
        made.add_index("papers", documents)
        yield made


def test_what_satisfies_a_stated_condition_is_not_given_up_for_nearer_texts(router):
    found = router.retrieve("I am interested in articles written either by Prieve or Udo Pooch")
    assert found.route.strategy.name == "metadata"
    assert found.strategy is Strategy.METADATA
    assert found.understood
    assert {node.node.ref_doc_id for node in found.nodes} == {"Prieve", "Pooch"}
    assert len(found.tried) == 1


def test_without_a_condition_after_all_the_next_strategy_decides(router):
    found = router.retrieve("Articles by Gerard Salton or others about clusters of documents")
    assert found.route.strategy.name == "metadata"
    assert not found.understood
    assert found.tried[0].strategy is Strategy.METADATA
    assert found.strategy is not Strategy.METADATA


def test_a_pinned_strategy_stays(router):
    found = router.retrieve("Articles by Gerard Salton or others about clusters of documents", strategy="metadata")
    assert found.strategy is Strategy.METADATA
