"""The contract of every vector store, as a test class to inherit from.

::

    class TestMyStore(VectorStoreContract):
        def make_store(self, tmp_path, dimension):
            return MyStore(tmp_path, dimension=dimension)

Run it with pytest, or any runner that calls methods named ``test_...`` with a fresh folder as ``tmp_path``. It asks
for what LlamaIndex's vector stores with metadata filters have in common: ids are UUIDs, and filters avoid what the
stores read differently.
"""

import asyncio
import math
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from llama_index.core.schema import BaseNode, NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
)

DIMENSION = 8
NODES = 24
_NAMESPACE = uuid.UUID("0d3c1f52-93c3-4d5b-8a51-9c6a5d0f7b11")


def contract_id(number: int) -> str:
    """Return the id of one of the contract's nodes, 0 to 23: a UUID, always the same."""
    return str(uuid.uuid5(_NAMESPACE, str(number)))


def contract_nodes() -> list[TextNode]:
    """Make the contract's 24 nodes of six sources, with embeddings of 8 dimensions and four fields."""
    vectors = np.random.default_rng(11).standard_normal((NODES, DIMENSION))
    nodes = []
    for number, vector in enumerate(vectors):
        metadata = {"lang": ("en", "th", "es")[number % 3], "year": 2000 + number, "score": number / 4}
        source = RelatedNodeInfo(node_id=f"source-{number // 4}", metadata={"of": "a source"})
        node = TextNode(
            id_=contract_id(number),
            text=f"text of node {number}",
            metadata={**metadata, "note": "odd"} if number % 2 else metadata,
            embedding=vector.tolist(),
            relationships={NodeRelationship.SOURCE: source},
            start_char_idx=10 * number,
            end_char_idx=10 * number + 9,
            excluded_embed_metadata_keys=["score"],
        )
        nodes.append(node)
    return nodes


def where(key: str, operator: FilterOperator, value: Any) -> MetadataFilter:
    return MetadataFilter(key=key, operator=operator, value=value)


def group(
    *parts: MetadataFilter | MetadataFilters, condition: FilterCondition = FilterCondition.AND
) -> MetadataFilters:
    return MetadataFilters(filters=list(parts), condition=condition)


class VectorStoreContract(ABC):
    """Tests that every vector store passes."""

    @abstractmethod
    def make_store(self, tmp_path: Path, dimension: int) -> BasePydanticVectorStore:
        """Make an empty store of vectors of this length; ``tmp_path`` is a folder of its own."""

    def filled(self, tmp_path: Path) -> BasePydanticVectorStore:
        store = self.make_store(tmp_path, DIMENSION)
        store.add(contract_nodes())
        return store

    def find(self, store: BasePydanticVectorStore, top_k: int = NODES, **restrictions: Any) -> list[int]:
        """Search for the first node's embedding, and return the numbers of the nodes found, best first."""
        query = VectorStoreQuery(query_embedding=contract_nodes()[0].embedding, similarity_top_k=top_k, **restrictions)
        return _numbers(store.query(query).ids or [])

    def accepts(self, store: BasePydanticVectorStore, filters: MetadataFilters, expected: Iterable[int]) -> None:
        """Assert which nodes, in order of their numbers, a search with the filters finds."""
        found = sorted(self.find(store, filters=filters))
        assert found == list(expected), f"{filters} found {found}"

    def test_what_is_added_is_found(self, tmp_path: Path) -> None:
        """All of it with a ``top_k`` beyond it, and nothing before; ids come back, and the caller's nodes stay."""
        store, nodes = self.make_store(tmp_path, DIMENSION), contract_nodes()
        assert self.find(store) == []
        assert store.add(nodes) == [node.node_id for node in nodes]
        assert [node.to_dict() for node in nodes] == [node.to_dict() for node in contract_nodes()]
        assert sorted(self.find(store, 10 * NODES)) == list(range(NODES))

    def test_best_first_with_cosines(self, tmp_path: Path) -> None:
        """Results come by falling cosine, with finite scores, ids and nodes side by side."""
        store = self.filled(tmp_path)
        matrix = np.array([node.embedding for node in contract_nodes()])
        unit = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
        cosines = unit @ unit[0]
        result = store.query(VectorStoreQuery(query_embedding=matrix[0].tolist(), similarity_top_k=5))
        assert _numbers(result.ids or []) == np.argsort(-cosines)[:5].tolist()
        assert [node.node_id for node in result.nodes or []] == result.ids
        scores = result.similarities or []
        assert all(math.isfinite(score) for score in scores)
        assert np.allclose(scores, sorted(cosines, reverse=True)[:5], atol=1e-5)

    def test_clauses(self, tmp_path: Path) -> None:
        """Equality, lists, missing fields, and ranges of whole numbers and fractions."""
        store = self.filled(tmp_path)
        not_thai = [number for number in range(NODES) if number % 3 != 1]
        cases: list[tuple[str, FilterOperator, Any, Iterable[int]]] = [
            ("lang", FilterOperator.EQ, "th", range(1, NODES, 3)),
            ("year", FilterOperator.EQ, 2005, [5]),
            ("lang", FilterOperator.EQ, "xx", []),
            ("lang", FilterOperator.NE, "th", not_thai),
            ("lang", FilterOperator.IN, ["en", "es", "xx"], not_thai),
            ("lang", FilterOperator.NIN, ["th"], not_thai),
            ("year", FilterOperator.GT, 2020, [21, 22, 23]),
            ("year", FilterOperator.GTE, 2020, [20, 21, 22, 23]),
            ("score", FilterOperator.LT, 0.5, [0, 1]),
            ("score", FilterOperator.LTE, 0.5, [0, 1, 2]),
            ("note", FilterOperator.IS_EMPTY, None, range(0, NODES, 2)),
        ]
        for key, operator, value, expected in cases:
            self.accepts(store, group(where(key, operator, value)), expected)

    def test_groups(self, tmp_path: Path) -> None:
        store = self.filled(tmp_path)
        early, late = where("year", FilterOperator.LT, 2004), where("year", FilterOperator.GTE, 2022)
        either = group(early, late, condition=FilterCondition.OR)
        english = where("lang", FilterOperator.EQ, "en")
        self.accepts(store, group(early, late), [])
        self.accepts(store, either, [0, 1, 2, 3, 22, 23])
        self.accepts(store, group(english, either), [0, 3])
        or_nothing = group(english, group(early, late), condition=FilterCondition.OR)
        self.accepts(store, or_nothing, range(0, NODES, 3))

    def test_restrictions_do_not_shorten_the_list(self, tmp_path: Path) -> None:
        """As many as asked for come back, if as many satisfy the filter, and of given ids all."""
        store = self.filled(tmp_path)
        odd = group(where("note", FilterOperator.EQ, "odd"))
        assert self.find(store, 6, filters=odd) == [number for number in self.find(store) if number % 2][:6]
        assert sorted(self.find(store, node_ids=[contract_id(3), contract_id(8)])) == [3, 8]

    def test_delete(self, tmp_path: Path) -> None:
        """By source, by ids, and by a filter."""
        store, left = self.filled(tmp_path), set(range(NODES))
        store.delete("source-1")
        left -= {4, 5, 6, 7}
        assert sorted(self.find(store)) == sorted(left)
        store.delete_nodes([contract_id(0), contract_id(9)])
        left -= {0, 9}
        assert sorted(self.find(store)) == sorted(left)
        store.delete_nodes(filters=group(where("lang", FilterOperator.EQ, "th")))
        assert sorted(self.find(store)) == sorted(left - set(range(1, NODES, 3)))

    def test_get_nodes(self, tmp_path: Path) -> None:
        store = self.filled(tmp_path)
        assert _sorted_numbers(store.get_nodes([contract_id(4), contract_id(2)])) == [2, 4]
        late = group(where("year", FilterOperator.GTE, 2021))
        assert _sorted_numbers(store.get_nodes(filters=late)) == [21, 22, 23]
        assert _sorted_numbers(store.get_nodes()) == list(range(NODES))

    def test_the_same_id_replaces(self, tmp_path: Path) -> None:
        store = self.filled(tmp_path)
        newer = contract_nodes()[3]
        newer.text = "newer text"
        newer.metadata["lang"] = "fr"
        store.add([newer])
        assert sorted(self.find(store)) == list(range(NODES))
        assert [node.get_content() for node in store.get_nodes([contract_id(3)])] == ["newer text"]
        self.accepts(store, group(where("lang", FilterOperator.EQ, "fr")), [3])

    def test_nodes_come_back_whole(self, tmp_path: Path) -> None:
        """Text, metadata, relations, offsets and templates survive."""
        store = self.filled(tmp_path)
        result = store.query(VectorStoreQuery(query_embedding=contract_nodes()[7].embedding, similarity_top_k=1))
        for found in (*(result.nodes or []), *store.get_nodes([contract_id(7)])):
            expected = contract_nodes()[7]
            expected.embedding = found.embedding
            assert isinstance(found, TextNode)
            assert found.to_dict() == expected.to_dict()
            assert found.ref_doc_id == "source-1"

    def test_async_twins(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path, DIMENSION)
        late = group(where("year", FilterOperator.GTE, 2010))
        query = VectorStoreQuery(query_embedding=contract_nodes()[0].embedding, similarity_top_k=5, filters=late)

        async def run() -> tuple[list[str], list[str]]:
            added = await store.async_add(contract_nodes())
            await store.adelete("source-3")
            await store.adelete_nodes([contract_id(20)])
            found = await store.aquery(query)
            assert found.similarities == store.query(query).similarities
            read = await store.aget_nodes(filters=late)
            assert _sorted_numbers(read) == _sorted_numbers(store.get_nodes(filters=late))
            return added, found.ids or []

        added, found = asyncio.run(run())
        assert added == [node.node_id for node in contract_nodes()]
        assert found == store.query(query).ids
        assert sorted(self.find(store)) == [n for n in range(NODES) if n // 4 != 3 and n != 20]


def _numbers(ids: list[str]) -> list[int]:
    known = {contract_id(number): number for number in range(NODES)}
    return [known[node_id] for node_id in ids]


def _sorted_numbers(nodes: list[BaseNode]) -> list[int]:
    return sorted(_numbers([node.node_id for node in nodes]))
