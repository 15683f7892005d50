"""Attached indexes under the contract of every retriever."""

from __future__ import annotations

import pytest
from attached_material import ScriptedRetriever, attached, index_on, summary_index, vector_index
from llama_index.core.schema import NodeWithScore

from agentic_retriever.indices import QdrantEdgeVectorStore
from agentic_retriever.retrievers import AdapterSettings, build_adapter
from agentic_retriever.schema import Strategy
from agentic_retriever.testing import FakeEmbedding
from agentic_retriever.testing.retriever_contract import QUERY, RetrieverContract, contract_nodes
from agentic_retriever.threads import Workers


@pytest.fixture(scope="session")
def attached_workers():
    with Workers(4, "attached-tests") as workers:
        yield workers


class Contract(RetrieverContract):
    @pytest.fixture(autouse=True)
    def _given(self, request, attached_workers, tmp_path_factory):
        self.strategy = request.param if hasattr(request, "param") else Strategy.VECTOR
        self.workers, self.folders = attached_workers, tmp_path_factory

    def attach(self, nodes, embedding):
        return attached(vector_index(nodes, embedding=embedding), router=embedding, description="")

    def make_adapter(self, nodes, *, embedding, top_k=10, filters=None):
        # LlamaIndex embeds metadata with the text, while the contract is about texts that are the same.
        nodes = [node.model_copy(update={"excluded_embed_metadata_keys": ["lang", "year"]}) for node in nodes]
        settings = AdapterSettings(workers=self.workers, top_k=top_k, filters=filters)
        return build_adapter(self.strategy, self.attach(nodes, embedding), settings)


DENSE = (Strategy.VECTOR, Strategy.HYBRID, Strategy.METADATA, Strategy.PLANNER)


@pytest.mark.parametrize("_given", DENSE, indirect=True)
class TestInMemoryStore(Contract):
    """SimpleVectorStore and docstore, with the router's own model."""


@pytest.mark.parametrize("_given", [Strategy.VECTOR, Strategy.HYBRID], indirect=True)
class TestOtherModel(Contract):
    """Vectors of another model and dimension than the router's."""

    def attach(self, nodes, embedding):
        return attached(
            vector_index(nodes, embedding=embedding), router=FakeEmbedding(dimension=8, model_name="another")
        )


@pytest.mark.parametrize("_given", [Strategy.VECTOR, Strategy.HYBRID], indirect=True)
class TestEmbeddedStore(Contract):
    """The nodes are in the vector store alone."""

    def attach(self, nodes, embedding):
        store = QdrantEdgeVectorStore(self.folders.mktemp("edge"), dimension=embedding.dimension)
        return attached(index_on(store, nodes, embedding=embedding), router=embedding, description="")


@pytest.mark.parametrize("_given", [Strategy.HYBRID, Strategy.PLANNER], indirect=True)
class TestWordsAlone(Contract):
    """An index without vectors."""

    def attach(self, nodes, embedding):
        return attached(summary_index(nodes), router=FakeEmbedding(), description="")


class TestAskedVectorIndexRetriever(Contract):
    """A retriever of theirs, asked itself."""

    def attach(self, nodes, embedding):
        retriever = vector_index(nodes, embedding=embedding).as_retriever(similarity_top_k=2)
        return attached(retriever, router=FakeEmbedding(), description="Harvest")

    def test_empty_index_gives_nothing(self):
        """Whether there are nodes is the retriever's to know, so it is asked."""
        assert self.make_adapter([], embedding=FakeEmbedding()).retrieve(QUERY) == []


class TestAskedScriptedRetriever(Contract):
    """A retriever that knows no ``similarity_top_k``, gives every node, and hands out its own objects."""

    def attach(self, nodes, embedding):
        kept = [NodeWithScore(node=node) for node in nodes]
        vectors = {one.node.node_id: embedding.get_text_embedding(one.node.text) for one in kept}

        def reply(query):
            if not kept:
                return []
            asked = embedding.get_query_embedding(query)
            for one in kept:
                one.score = sum(a * b for a, b in zip(asked, vectors[one.node.node_id], strict=True))
            return kept

        return attached(ScriptedRetriever(reply), router=FakeEmbedding(), description="Harvest")

    def make_failing_adapter(self, nodes, *, embedding):
        return None


def test_a_failing_side_leaves_the_other(attached_workers):
    """Rows 19: hybrid over an attached index whose store fails goes on by words, and says so."""
    embedding = FakeEmbedding()
    index = vector_index(contract_nodes(), embedding=embedding)
    made = attached(index, router=embedding)
    index.vector_store.data.metadata_dict = None
    index.vector_store.__class__ = type("Broken", (type(index.vector_store),), {"query": _broken})
    found = build_adapter("hybrid", made, AdapterSettings(workers=attached_workers))
    assert found.retrieve(QUERY)[0].node_id == "n07"


def _broken(self, query, **kwargs):
    raise RuntimeError("down")
