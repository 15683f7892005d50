"""The base of every strategy: a LlamaIndex retriever with checks before a search and promises about its result."""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle

from agentic_retriever.checks import check_query, check_top_k
from agentic_retriever.errors import DeadlineExceededError, InvalidQueryError
from agentic_retriever.filters import check_filters, is_empty, node_fields, predicate
from agentic_retriever.indices.prefilter.plan import PlanKind
from agentic_retriever.retrievers.promises import keep_promises
from agentic_retriever.retrievers.search import RetrievalRequest, SearchResult
from agentic_retriever.retrievers.searchable import prefilter_of
from agentic_retriever.retrievers.sides import guarded
from agentic_retriever.tracing import no_callbacks, spanned_by_base

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from llama_index.core.callbacks.base import CallbackManager
    from llama_index.core.schema import BaseNode, QueryType
    from llama_index.core.vector_stores.types import MetadataFilters

    from agentic_retriever.retrievers.search import AdapterSettings, Found
    from agentic_retriever.retrievers.searchable import SearchableIndex
    from agentic_retriever.schema import Strategy

logger = logging.getLogger(__name__)


class RetrieverAdapter(BaseRetriever):
    """A strategy over one index, as a LlamaIndex retriever; safe to use from many threads.

    A strategy implements :meth:`_search`. Everybody else calls :meth:`search` or :meth:`asearch`, or, in a LlamaIndex
    application, ``retrieve`` and ``aretrieve``, which search with the settings' ``top_k`` and filters.

    Args:
        index: What to search.
        settings: How.
        callback_manager: LlamaIndex callbacks; none by default, whatever the process-wide settings say.
    """

    strategy: ClassVar[Strategy]
    #: Whether a search ends by itself when ``timeout_s`` is over; otherwise the router runs it in a thread to abandon.
    keeps_deadlines: ClassVar[bool] = False

    def __init__(
        self, index: SearchableIndex, settings: AdapterSettings, *, callback_manager: CallbackManager | None = None
    ) -> None:
        super().__init__(callback_manager=callback_manager or no_callbacks())
        self._index = index
        self._settings = settings

    @abstractmethod
    def _search(self, request: RetrievalRequest, deadline: float | None) -> Found:
        """Find candidates for a checked request over an index that is not empty.

        Args:
            request: The request.
            deadline: When the time is up, on ``settings.timer``, or ``None``.
        """

    def search(self, request: RetrievalRequest) -> SearchResult:
        """Search the index.

        Args:
            request: What to search for.

        Returns:
            At most ``top_k`` nodes; none for an empty index or when nothing satisfies the filters.

        Raises:
            InvalidQueryError: If the question, ``top_k`` or the query vector cannot be used.
            FilterError: If the filters cannot be evaluated.
            EmbeddingError: If the question could not be embedded.
            StoreError: If the index cannot be read.
            RetrievalError: If every one of several ways failed.
            DeadlineExceededError: If the time ran out.
        """
        timeout_s = self._settings.timeout_s if request.timeout_s is None else request.timeout_s
        deadline = None if timeout_s is None else self._settings.timer() + timeout_s
        self._check(request, timeout_s)
        if guarded(f"index {self._index.name}", self._index.count) == 0 or self._nothing_satisfies(request):
            return SearchResult([])
        found = self._search(request, deadline)
        return SearchResult(keep_promises(found.candidates, request), found.degraded, found.understood)

    async def asearch(self, request: RetrievalRequest) -> SearchResult:
        """Search in a worker thread; the event loop stays free. As :meth:`search` otherwise."""
        return await self._settings.workers.run(self.search, request)

    @spanned_by_base
    def retrieve(self, str_or_query_bundle: QueryType) -> list[NodeWithScore]:
        """Return the nodes for a question, as every LlamaIndex retriever does.

        Raises:
            InvalidQueryError: If the question cannot be used; otherwise as :meth:`search`.
        """
        return super().retrieve(self._bundle(str_or_query_bundle))

    @spanned_by_base
    async def aretrieve(self, str_or_query_bundle: QueryType) -> list[NodeWithScore]:
        """Return the nodes for a question without blocking the event loop; otherwise as :meth:`retrieve`."""
        return await super().aretrieve(self._bundle(str_or_query_bundle))

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self._logged(self.search(self._request(query_bundle)))

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self._logged(await self.asearch(self._request(query_bundle)))

    def _request(self, bundle: QueryBundle) -> RetrievalRequest:
        vector = None if bundle.embedding is None else tuple(bundle.embedding)
        return RetrievalRequest(bundle.query_str, self._settings.top_k, self._settings.filters, vector)

    def _bundle(self, query: QueryType) -> QueryBundle:
        """Check the question here, since LlamaIndex fails on anything but text with an error of its own."""
        bundle = query if isinstance(query, QueryBundle) else QueryBundle(query)
        check_query(bundle.query_str, max_chars=self._settings.max_query_chars)
        return bundle

    def _check(self, request: RetrievalRequest, timeout_s: float | None) -> None:
        check_query(request.query, max_chars=self._settings.max_query_chars)
        check_top_k(request.top_k, maximum=self._settings.max_top_k)
        check_filters(request.filters)
        if request.query_vector is not None and not all(map(math.isfinite, request.query_vector)):
            raise InvalidQueryError("the query vector holds NaN or infinity; pass finite numbers, or none at all")
        if timeout_s is not None and not timeout_s > 0:
            raise DeadlineExceededError("the time budget ran out before the search began; allow more time")

    def _nothing_satisfies(self, request: RetrievalRequest) -> bool:
        """Tell whether the filters leave no node, so that nothing need be embedded or searched."""
        prefilter = prefilter_of(self._index)
        if is_empty(request.filters) or prefilter is None:
            return False
        plan = guarded(f"index {self._index.name}", lambda: prefilter.metadata().plan(request.filters, request.top_k))
        return plan.kind is PlanKind.NONE

    def _logged(self, result: SearchResult) -> list[NodeWithScore]:
        # Plain LlamaIndex callers see nodes only, so the log is the one place where they can learn of it.
        for step in result.degraded:
            logger.warning("index %r: %s fell back to %s: %s", self._index.name, step.step, step.fallback, step.reason)
        return result.nodes


def fetch_nodes(
    index: SearchableIndex, node_ids: Iterable[str], filters: MetadataFilters | None = None
) -> dict[str, BaseNode]:
    """Read nodes by id; ids that the store does not have are left out.

    Args:
        index: Where from.
        node_ids: Which.
        filters: Lets the store leave out nodes that do not satisfy them. Some stores let others through, so whoever
            needs to be sure checks again.

    Raises:
        StoreError: If the store cannot be read.
    """
    wanted = list(node_ids)
    if not wanted:
        return {}  # a store given no ids returns everything
    store = index.vector_store
    nodes = guarded(f"the store of index {index.name}", lambda: store.get_nodes(node_ids=wanted, filters=filters))
    return {node.node_id: node for node in nodes}


def take_nodes(
    index: SearchableIndex,
    ranking: Sequence[tuple[str, float | None]],
    nodes: Mapping[str, BaseNode],
    top_k: int,
    *,
    filters: MetadataFilters | None = None,
) -> list[tuple[BaseNode, float | None]]:
    """Take the first nodes of a ranking, and read no others.

    Args:
        index: Where nodes that are not at hand are read from.
        ranking: Node ids and scores, best first.
        nodes: Nodes that are at hand, by id.
        top_k: How many at most, from 1.
        filters: What nodes must satisfy; those that do not, and those that were deleted meanwhile, make room for the
            next.

    Raises:
        StoreError: If the store cannot be read.
    """
    allowed = predicate(filters)
    taken: list[tuple[BaseNode, float | None]] = []
    for start in range(0, len(ranking), top_k):
        batch = ranking[start : start + top_k]
        known = {**nodes, **fetch_nodes(index, [node_id for node_id, _score in batch if node_id not in nodes])}
        found = [(known[node_id], score) for node_id, score in batch if node_id in known]
        taken += found if is_empty(filters) else [pair for pair in found if allowed(node_fields(pair[0]))]
        if len(taken) >= top_k:
            break
    return taken[:top_k]
