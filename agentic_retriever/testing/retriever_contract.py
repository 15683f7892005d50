"""The contract of every retriever, as a test class to inherit from.

::

    class TestMyRetriever(RetrieverContract):
        def make_adapter(self, nodes, *, embedding, top_k=10, filters=None):
            return MyRetriever(my_index_of(nodes, embedding), top_k=top_k, filters=filters)

Run it with pytest or any runner that calls methods named ``test_...``; it needs no plug-in.
"""

import asyncio
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import IndexNode, NodeWithScore, QueryBundle, TextNode
from llama_index.core.vector_stores.types import FilterOperator, MetadataFilter, MetadataFilters

from agentic_retriever.errors import InvalidQueryError
from agentic_retriever.testing.fakes import FakeEmbedding

QUERY = "red apple harvest"


class SlowEmbedding(FakeEmbedding):
    """Takes 0.15 s for a question, as a server would, blocking its thread."""

    def _get_query_embedding(self, query: str) -> list[float]:
        time.sleep(0.15)
        return super()._get_query_embedding(query)


def contract_nodes() -> list[TextNode]:
    """Return the nodes that the contract searches; new objects with every call."""
    texts = {
        "n07": ("red apple harvest in the valley", "en", 2021),
        "n03": ("green apple pie for the winter", "en", 2022),
        "n09": ("twice the same words", "en", 2020),
        "n01": ("twice the same words", "en", 2024),
        "n05": ("red brick walls of the harvest hall", "th", 2023),
        "n02": ("the river and the sea", "es", 2019),
        "n08": ("apple harvest and yellow leaves", "th", 2024),
        "n04": ("stars over the desert", "es", 2020),
        "n06": ("a harvest of stars", "es", 2022),
    }
    return [
        TextNode(id_=node_id, text=text, metadata={"lang": lang, "year": year})
        for node_id, (text, lang, year) in texts.items()
    ]


class RetrieverContract(ABC):
    """What every retriever must do; inherit, and say how to make one."""

    @abstractmethod
    def make_adapter(
        self,
        nodes: Sequence[TextNode],
        *,
        embedding: FakeEmbedding,
        top_k: int = 10,
        filters: MetadataFilters | None = None,
    ) -> BaseRetriever:
        """Return the retriever over a new index of these nodes, which come without vectors and stay as they are."""

    def make_failing_adapter(self, nodes: Sequence[TextNode], *, embedding: FakeEmbedding) -> BaseRetriever | None:
        """Return a retriever one of whose several parts fails, or ``None`` if it has one part only."""
        return None

    def test_results_are_ordered_unique_finite_and_at_most_top_k(self) -> None:
        for top_k in (1, 3, 50):
            found = self._adapter(top_k=top_k).retrieve(QUERY)
            check_result(found, top_k)
            assert found, "nothing was found for words that stand in the nodes"
        first = self._adapter().retrieve(QUERY)[0].node_id
        assert first == "n07", f"the node with all words of the question must come first, got {first}"

    def test_same_text_is_kept_twice_and_ordered_by_id(self) -> None:
        """Nodes are told apart by id, and ties broken by it, whatever order they were added in."""
        for nodes in (contract_nodes(), contract_nodes()[::-1]):
            ties = [n.node_id for n in self._adapter(nodes).retrieve("twice the same words")][:2]
            assert ties == ["n01", "n09"], f"ties must be ordered by id, got {ties}"
        twins = [TextNode(id_=f"twin{i}", text="the very same text") for i in range(4)]
        ids = {n.node_id for n in self._adapter(twins).retrieve("the very same text")}
        assert ids == {"twin0", "twin1", "twin2", "twin3"}, f"nodes with the same text were dropped: {ids}"

    def test_empty_index_gives_nothing(self) -> None:
        embedding = FakeEmbedding()
        assert self.make_adapter([], embedding=embedding).retrieve(QUERY) == []
        assert embedding.calls == [], "an empty index must not embed the question"

    def test_unknown_words_are_no_error(self) -> None:
        """A question without a known word, or without any letter, keeps the contract too."""
        for query in ("zzzqqq xyzzy", "?!", "\N{PILE OF POO}", "\x00", "\ud800", "แมว", "a" * 5_000):
            check_result(self._adapter(top_k=4).retrieve(query), 4)

    def test_filters_are_honoured(self) -> None:
        """Only nodes that satisfy them, and all of those that fit into top_k."""
        thai = MetadataFilter(key="lang", value="th")
        recent = MetadataFilter(key="year", operator=FilterOperator.GT, value=2023)
        two_languages = MetadataFilter(key="lang", operator=FilterOperator.IN, value=["th", "es"])
        cases: list[tuple[list[MetadataFilter | MetadataFilters], set[str]]] = [
            ([thai], {"n05", "n08"}),
            ([thai, recent], {"n08"}),
            ([two_languages], {"n02", "n04", "n05", "n06", "n08"}),
            ([MetadataFilter(key="lang", value="fr")], set()),
            ([MetadataFilter(key="no such field", value="x")], set()),
        ]
        for clauses, allowed in cases:
            found = self._adapter(filters=MetadataFilters(filters=clauses)).retrieve(QUERY)
            check_result(found, 10)
            ids = {n.node_id for n in found}
            assert ids <= allowed, f"{ids - allowed} do not satisfy the filter"
            assert ids or not allowed, f"none of {allowed} was found"
        assert self._adapter(filters=MetadataFilters(filters=[])).retrieve(QUERY), "a filter without clauses allows all"

    def test_inputs_are_not_changed(self) -> None:
        """Neither the nodes nor the question change, and results are copies."""
        nodes, bundle = contract_nodes(), QueryBundle(QUERY)
        before = [node.to_json() for node in nodes]
        adapter = self._adapter(nodes)
        indexed = [node.to_json() for node in nodes]
        first = adapter.retrieve(bundle)
        assert [node.to_json() for node in nodes] in (indexed, before)
        assert bundle == QueryBundle(QUERY)
        expected = _contents(first)
        for found in first:
            found.score = -1.0
            found.node.metadata.clear()
            found.node.set_content("overwritten")
        assert _contents(adapter.retrieve(bundle)) == expected, "a caller's changes to a result show in the next one"

    def test_aretrieve_equals_retrieve(self) -> None:
        """Both twins return the same each time, in several event loops, one after another, and inside a running one."""
        adapter = self._adapter()
        expected = _summary(adapter.retrieve(QUERY))
        assert _summary(adapter.retrieve(QUERY)) == expected

        async def call() -> list[NodeWithScore]:
            return adapter.retrieve(QUERY)

        for twin in (adapter.aretrieve(QUERY), adapter.aretrieve(QUERY), adapter.aretrieve(QUERY), call()):
            assert _summary(asyncio.run(twin)) == expected

    def test_aretrieve_does_not_block_the_loop(self) -> None:
        adapter = self.make_adapter(contract_nodes(), embedding=SlowEmbedding())

        async def largest_gap(query: str) -> float:
            search = asyncio.ensure_future(adapter.aretrieve(query))
            gap, last = 0.0, time.perf_counter()
            while not search.done():
                await asyncio.sleep(0.005)
                now = time.perf_counter()
                gap, last = max(gap, now - last), now
            check_result(await search, 10)
            return gap

        # The best of three, since a busy machine makes gaps of its own; new questions, since models may have a cache.
        gap = min(asyncio.run(largest_gap(f"{QUERY} {i}")) for i in range(3))
        assert gap < 0.1, f"the event loop stood still for {gap:.3f} s"

    def test_bad_questions_are_refused(self) -> None:
        embedding = FakeEmbedding()
        adapter = self.make_adapter(contract_nodes(), embedding=embedding)
        embedding.calls.clear()
        for query in (None, 7, b"bytes", ["red"], "", "  \n", "x" * 1_000_000, QueryBundle("")):
            _refused(adapter.retrieve, query)
            _refused(lambda asked: asyncio.run(adapter.aretrieve(asked)), query)
        assert embedding.calls == [], "a bad question reached the model"

    def test_bad_top_k_is_refused(self) -> None:
        for top_k in (0, -1, 10**9, "5", True, None, 2.0):
            _refused(lambda asked: self._adapter(top_k=asked).retrieve(QUERY), top_k)

    def test_index_nodes_come_back_as_plain_results(self) -> None:
        """LlamaIndex would go on into the object of an ``IndexNode`` and replace a score of 0 by 1."""
        node = IndexNode(id_="pointer", text=QUERY, index_id="elsewhere")
        found = self._adapter([*contract_nodes(), node]).retrieve(QUERY)
        assert "pointer" in [n.node_id for n in found]
        assert all(getattr(n.node, "obj", None) is None for n in found)

    def test_one_failing_part_does_not_fail_the_whole(self) -> None:
        adapter = self.make_failing_adapter(contract_nodes(), embedding=FakeEmbedding())
        if adapter is not None:
            for found in (adapter.retrieve(QUERY), asyncio.run(adapter.aretrieve(QUERY))):
                check_result(found, 10)
                assert found, "the part that works found nothing"

    def _adapter(
        self, nodes: Sequence[TextNode] | None = None, *, top_k: int = 10, filters: MetadataFilters | None = None
    ) -> BaseRetriever:
        chosen = contract_nodes() if nodes is None else nodes
        return self.make_adapter(chosen, embedding=FakeEmbedding(), top_k=top_k, filters=filters)


def check_result(found: Sequence[NodeWithScore], top_k: int) -> None:
    """Assert what holds of every result: order, uniqueness, number, finite scores."""
    for n in found:
        assert n.score is not None, f"{n.node_id} has no score"
        assert math.isfinite(n.score), f"{n.node_id} has the score {n.score}"
    keys = [(-(n.score or 0.0), n.node_id) for n in found]
    assert keys == sorted(keys), f"not by falling score and then by id: {keys}"
    assert len({node_id for _, node_id in keys}) == len(keys), f"an id comes twice: {keys}"
    assert len(keys) <= top_k, f"{len(keys)} nodes for top_k={top_k}"


def _contents(found: Sequence[NodeWithScore]) -> list[tuple[str, float | None, str, dict[str, Any]]]:
    return [(n.node_id, n.score, n.text, dict(n.metadata)) for n in found]


def _summary(found: Sequence[NodeWithScore]) -> list[tuple[str, float | None]]:
    return [(n.node_id, n.score) for n in found]


def _refused(call: Callable[[Any], object], value: object) -> None:
    try:
        call(value)
    except InvalidQueryError:
        return
    raise AssertionError(f"{str(value)[:40]!r} was not refused with an InvalidQueryError")
