"""Our store and LlamaIndex's own Qdrant store pass one contract."""

from __future__ import annotations

import pytest

from agentic_retriever.stores.edge.store import QdrantEdgeVectorStore
from agentic_retriever.testing.store_contract import VectorStoreContract, contract_nodes


class TestQdrantEdgeVectorStore(VectorStoreContract):
    @pytest.fixture(autouse=True)
    def _closing(self):
        self.opened = []
        yield
        for store in self.opened:
            store.close()

    def make_store(self, tmp_path, dimension):
        store = QdrantEdgeVectorStore(tmp_path, dimension=dimension)
        self.opened.append(store)
        return store

    def test_a_collection_of_the_other_store_can_be_read_here(self, tmp_path):
        """The payloads of the two stores are the same, so collections can move between them."""
        qdrant = pytest.importorskip("llama_index.vector_stores.qdrant")
        client = pytest.importorskip("qdrant_client").QdrantClient(":memory:")
        theirs = qdrant.QdrantVectorStore("c", client=client, dense_vector_name="")
        theirs.add(contract_nodes())
        ours = self.make_store(tmp_path, 8)
        ours.add(contract_nodes())
        records, _ = client.scroll("c", limit=100)
        from qdrant_edge import ScrollRequest

        mine, _ = ours.client.scroll(ScrollRequest(limit=100, with_payload=True))
        assert {str(record.id): record.payload for record in mine} == {str(r.id): r.payload for r in records}
        client.close()


class TestQdrantVectorStore(VectorStoreContract):
    @pytest.fixture(autouse=True)
    def _closing(self):
        self.clients = []
        yield
        for client in self.clients:
            client.close()

    def make_store(self, tmp_path, dimension):
        qdrant = pytest.importorskip("llama_index.vector_stores.qdrant")
        client = pytest.importorskip("qdrant_client").QdrantClient(":memory:")
        from qdrant_client.models import Distance, VectorParams

        client.create_collection("contract", VectorParams(size=dimension, distance=Distance.COSINE))
        self.clients.append(client)
        return qdrant.QdrantVectorStore("contract", client=client)

    @pytest.mark.skip(reason="its async client in memory is another store, which shares no data with the sync one")
    def test_async_twins(self, tmp_path):
        pass
