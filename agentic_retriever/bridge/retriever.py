"""The router as a LlamaIndex retriever."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, Protocol

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import NodeWithScore

from agentic_retriever.bridge.pins import Pins, checked_bundle
from agentic_retriever.tracing import safe_callbacks, spanned_by_base

if TYPE_CHECKING:
    from llama_index.core.callbacks.base import CallbackManager
    from llama_index.core.schema import QueryBundle, QueryType

    from agentic_retriever.schema import Retrieval

logger = logging.getLogger(__name__)

ROUTE_KEY: Final = "route"
"""Metadata key of a node under which its route stands: ``index``, ``indexes`` (all that were searched), ``strategy``,
``index_confidence``, ``strategy_confidence`` and ``degraded``, in plain JSON types. Prompts and embeddings do not show
it. A field of that name in the stored node is hidden by it, in results only.
"""

#: What tells a model nothing.
_NOISE: Final = ("content_hash", "chunk_type")


class FindsNodes(Protocol):
    """What a retriever needs of the router."""

    def retrieve(self, query: str, *args: Any, **options: Any) -> Retrieval:  # noqa: ANN401 - any pins
        """Route a question and fetch its nodes."""

    async def aretrieve(self, query: str, *args: Any, **options: Any) -> Retrieval:  # noqa: ANN401 - any pins
        """Do as :meth:`retrieve`, off the event loop."""


class RoutedRetriever(BaseRetriever):
    """Retrieves through the router: which index and which strategy is decided anew for every question.

    It keeps nothing between questions, so one serves many threads and event loops. Each node tells its route in its
    metadata under ``ROUTE_KEY``. The vector of a ``QueryBundle`` is not used, for each index has its own model.

    Args:
        router: The router.
        pins: What is fixed for every question.
        callback_manager: LlamaIndex callbacks, which can never end a query; none by default, whatever the process-wide
            settings say.
    """

    def __init__(
        self, router: FindsNodes, pins: Pins | None = None, *, callback_manager: CallbackManager | None = None
    ) -> None:
        super().__init__(callback_manager=safe_callbacks(callback_manager))
        self._router = router
        self.pins = pins or Pins()

    @spanned_by_base
    def retrieve(self, str_or_query_bundle: QueryType) -> list[NodeWithScore]:
        """Return the nodes for a question, best first; none for one that is declined as out of scope.

        Args:
            str_or_query_bundle: The question.

        Raises:
            InvalidQueryError: If the question cannot be used.
            RetrievalError: If every strategy failed.
            DeadlineExceededError: If the time ran out.
            RoutingError: If there is nothing to choose from.
        """
        return super().retrieve(checked_bundle(str_or_query_bundle))

    @spanned_by_base
    async def aretrieve(self, str_or_query_bundle: QueryType) -> list[NodeWithScore]:
        """Do as :meth:`retrieve` without blocking the event loop."""
        return await super().aretrieve(checked_bundle(str_or_query_bundle))

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return _told(self._router.retrieve(query_bundle.query_str, **self.pins.options()))

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return _told(await self._router.aretrieve(query_bundle.query_str, **self.pins.options()))


def _told(retrieval: Retrieval) -> list[NodeWithScore]:
    """Return new nodes that tell their route."""
    for step in retrieval.degraded:
        # Plain LlamaIndex callers often see nothing but texts.
        logger.info("%s fell back to %s: %s", step.step, step.fallback, step.reason)
    return [_with_route(scored, _route_of(retrieval)) for scored in retrieval.nodes]  # each a record of its own


def _route_of(retrieval: Retrieval) -> dict[str, Any]:
    decision = retrieval.route
    return {
        "index": decision.index.name,
        "indexes": list(retrieval.indexes),
        "index_confidence": decision.index.confidence,
        "strategy": retrieval.strategy.value,
        "strategy_confidence": decision.strategy.confidence,
        "degraded": [step.to_dict() for step in retrieval.degraded],
    }


def _with_route(scored: NodeWithScore, route: dict[str, Any]) -> NodeWithScore:
    node = scored.node.model_copy()
    node.metadata = {**node.metadata, ROUTE_KEY: route}
    node.excluded_llm_metadata_keys = list(dict.fromkeys([*node.excluded_llm_metadata_keys, ROUTE_KEY, *_NOISE]))
    node.excluded_embed_metadata_keys = [*node.excluded_embed_metadata_keys, ROUTE_KEY]
    return NodeWithScore(node=node, score=scored.score)
