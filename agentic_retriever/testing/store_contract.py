"""The contract of every vector store, as a test class to inherit from.

::

    class TestMyStore(VectorStoreContract):
        def make_store(self, tmp_path, dimension):
            return MyStore(tmp_path, dimension=dimension)

Run it with pytest, or any runner that calls methods named ``test_...`` with a fresh folder as ``tmp_path``. It asks
for what LlamaIndex's vector stores with metadata filters have in common: ids are UUIDs, and filters avoid what the
stores read differently.
"""

from __future__ import annotations

import asyncio
import math
import uuid
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores.types import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
)

if TYPE_CHECKING:
    from pathlib import Path

    from llama_index.core.schema import BaseNode
    from llama_index.core.vector_stores.types import BasePydanticVectorStore

DIMENSION = 8
NODES = 24
_NAMESPACE = uuid.UUID("0d3c1f52-93c3-4d5b-8a51-9c6a5d0f7b11")


def contract_id(number: int) -> str:
    """Return the id of one of the contract's nodes, 0 to 23: a UUID, always the same."""
    return str(uuid.uuid5(_NAMESPACE, str(number)))


def contract_nodes() -> list[TextNode]:
    """Make the contract's nodes: 24 of six sources, with embeddings of 8 dimensions.

    They have the fields ``lang`` (text), ``year`` (number), ``score`` (fraction) and, on every second one, ``note``.
    """
    vectors = np.random.default_rng(11).standard_normal((NODES, DIMENSION))
    nodes = []
    for number in range(NODES):
        metadata: dict[str, Any] = {
            "lang": ("en", "th", "es")[number % 3],
            "year": 2000 + number,
            "score": number / 4,
        }
        if number % 2:
            metadata["note"] = "odd"
        source = RelatedNodeInfo(node_id=f"source-{number // 4}", metadata={"of": "a source"})
        nodes.append(
            TextNode(
                id_=contract_id(number),
                text=f"text of node {number}",
                metadata=metadata,
                embedding=vectors[number].tolist(),
                relationships={NodeRelationship.SOURCE: source},
                start_char_idx=10 * number,
                end_char_idx=10 * number + 9,
                excluded_embed_metadata_keys=["score"],
            )
        )
    return nodes


def where(key: str, operator: FilterOperator, value: Any) -> MetadataFilter:  # noqa: ANN401 - of every type
    return MetadataFilter(key=key, operator=operator, value=value)


def group(
    *parts: MetadataFilter | MetadataFilters, condition: FilterCondition = FilterCondition.AND
) -> MetadataFilters:
    return MetadataFilters(filters=list(parts), condition=condition)


class VectorStoreContract(ABC):
    """Tests that every vector store passes."""

    @abstractmethod
    def make_store(self, tmp_path: Path, dimension: int) -> BasePydanticVectorStore:
        """Make an empty store.

        Args:
            tmp_path: A folder of its own.
            dimension: Length of the vectors that it will hold.

        Returns:
            The store.
        """

    def filled(self, tmp_path: Path) -> BasePydanticVectorStore:
        store = self.make_store(tmp_path, DIMENSION)
        store.add(contract_nodes())
        return store

    def find(
        self,
        store: BasePydanticVectorStore,
        top_k: int = NODES,
        **restrictions: Any,  # noqa: ANN401 - as of the query
    ) -> list[int]:
        """Search for the first node's embedding, and return the numbers of the nodes found, best first."""
        query = VectorStoreQuery(query_embedding=contract_nodes()[0].embedding, similarity_top_k=top_k, **restrictions)
        return _numbers(store.query(query).ids or [])

    def accepted(self, store: BasePydanticVectorStore, filters: MetadataFilters) -> list[int]:
        """Return the numbers of all nodes that a search with the filters finds, in order."""
        return sorted(self.find(store, filters=filters))

    def test_add_returns_the_ids(self, tmp_path: Path) -> None:
        nodes = contract_nodes()
        assert self.make_store(tmp_path, DIMENSION).add(nodes) == [node.node_id for node in nodes]

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

    def test_top_k_beyond_the_corpus_gives_everything(self, tmp_path: Path) -> None:
        assert sorted(self.find(self.filled(tmp_path), 10 * NODES)) == list(range(NODES))

    def test_an_empty_store_finds_nothing(self, tmp_path: Path) -> None:
        assert self.find(self.make_store(tmp_path, DIMENSION)) == []

    def test_equality(self, tmp_path: Path) -> None:
        store = self.filled(tmp_path)
        thai = list(range(1, NODES, 3))
        assert self.accepted(store, group(where("lang", FilterOperator.EQ, "th"))) == thai
        assert self.accepted(store, group(where("year", FilterOperator.EQ, 2005))) == [5]
        assert self.accepted(store, group(where("lang", FilterOperator.EQ, "xx"))) == []
        rest = [number for number in range(NODES) if number not in thai]
        assert self.accepted(store, group(where("lang", FilterOperator.NE, "th"))) == rest

    def test_in_and_not_in(self, tmp_path: Path) -> None:
        store = self.filled(tmp_path)
        expected = [number for number in range(NODES) if number % 3 in {0, 2}]
        assert self.accepted(store, group(where("lang", FilterOperator.IN, ["en", "es", "xx"]))) == expected
        assert self.accepted(store, group(where("lang", FilterOperator.NIN, ["th"]))) == expected

    def test_ranges(self, tmp_path: Path) -> None:
        """``>``, ``>=``, ``<`` and ``<=`` on whole numbers and fractions."""
        store = self.filled(tmp_path)
        assert self.accepted(store, group(where("year", FilterOperator.GT, 2020))) == [21, 22, 23]
        assert self.accepted(store, group(where("year", FilterOperator.GTE, 2020))) == [20, 21, 22, 23]
        assert self.accepted(store, group(where("score", FilterOperator.LT, 0.5))) == [0, 1]
        assert self.accepted(store, group(where("score", FilterOperator.LTE, 0.5))) == [0, 1, 2]

    def test_missing_fields(self, tmp_path: Path) -> None:
        store = self.filled(tmp_path)
        assert self.accepted(store, group(where("note", FilterOperator.IS_EMPTY, None))) == list(range(0, NODES, 2))

    def test_groups(self, tmp_path: Path) -> None:
        store = self.filled(tmp_path)
        early = where("year", FilterOperator.LT, 2004)
        late = where("year", FilterOperator.GTE, 2022)
        either = group(early, late, condition=FilterCondition.OR)
        assert self.accepted(store, group(early, late)) == []
        assert self.accepted(store, either) == [0, 1, 2, 3, 22, 23]
        english = where("lang", FilterOperator.EQ, "en")
        assert self.accepted(store, group(english, either)) == [0, 3]
        or_nothing = group(english, group(early, late), condition=FilterCondition.OR)
        assert self.accepted(store, or_nothing) == list(range(0, NODES, 3))

    def test_a_filter_does_not_shorten_the_list(self, tmp_path: Path) -> None:
        """As many as asked for come back, if as many satisfy the filter."""
        store = self.filled(tmp_path)
        odd = group(where("note", FilterOperator.EQ, "odd"))
        assert self.find(store, 6, filters=odd) == [number for number in self.find(store) if number % 2][:6]

    def test_node_ids_restrict(self, tmp_path: Path) -> None:
        """Only the given nodes are searched."""
        store = self.filled(tmp_path)
        assert sorted(self.find(store, node_ids=[contract_id(3), contract_id(8)])) == [3, 8]

    def test_delete_by_source(self, tmp_path: Path) -> None:
        store = self.filled(tmp_path)
        store.delete("source-1")
        assert sorted(self.find(store)) == [number for number in range(NODES) if number // 4 != 1]

    def test_delete_nodes(self, tmp_path: Path) -> None:
        """Deleting by ids, and by a filter."""
        store = self.filled(tmp_path)
        store.delete_nodes([contract_id(0), contract_id(5)])
        assert sorted(self.find(store)) == [number for number in range(NODES) if number not in {0, 5}]
        store.delete_nodes(filters=group(where("lang", FilterOperator.EQ, "th")))
        assert sorted(self.find(store)) == [
            number for number in range(NODES) if number % 3 != 1 and number not in {0, 5}
        ]

    def test_get_nodes(self, tmp_path: Path) -> None:
        """Reading by ids, by a filter, and everything."""
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
        assert self.accepted(store, group(where("lang", FilterOperator.EQ, "fr"))) == [3]

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

    def test_the_callers_nodes_stay_as_they_are(self, tmp_path: Path) -> None:
        nodes = contract_nodes()
        self.make_store(tmp_path, DIMENSION).add(nodes)
        assert [node.to_dict() for node in nodes] == [node.to_dict() for node in contract_nodes()]

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
            assert _sorted_numbers(await store.aget_nodes(filters=late)) == _sorted_numbers(
                store.get_nodes(filters=late)
            )
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
