"""LlamaIndex node postprocessors after our own steps: bounded in time, and left out when they fail."""

from __future__ import annotations

import math
import time
from functools import partial
from typing import TYPE_CHECKING

from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle

from agentic_retriever.errors import AgenticRetrieverError, ConfigError, DeadlineExceededError, RetrievalError
from agentic_retriever.filters import node_fields, predicate
from agentic_retriever.retrievers.postprocess.scores import value_of
from agentic_retriever.schema import Degradation
from agentic_retriever.threads import DeadlineCaller, guarded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from llama_index.core.vector_stores.types import MetadataFilters


class NodePostprocessors:
    """Runs node postprocessors one after another; safe to use from many threads as far as they are.

    Args:
        given: In the order in which they run.
        timer: Monotonic time in seconds.

    Raises:
        ConfigError: If one is no ``BaseNodePostprocessor``.
    """

    def __init__(
        self, given: Sequence[BaseNodePostprocessor] = (), *, timer: Callable[[], float] = time.monotonic
    ) -> None:
        wrong = [one for one in given if not _is_postprocessor(one)]
        if wrong:
            raise ConfigError(
                f"postprocessors must be LlamaIndex node postprocessors (BaseNodePostprocessor), got "
                f"{type(wrong[0]).__name__}"
            )
        self._callers = [(one, DeadlineCaller(f"the node postprocessor {type(one).__name__}")) for one in given]
        self._timer = timer

    def __bool__(self) -> bool:
        return bool(self._callers)

    def run(
        self, query: str, nodes: Sequence[NodeWithScore], *, filters: MetadataFilters | None, timeout_s: float
    ) -> tuple[list[NodeWithScore], tuple[Degradation, ...]]:
        """Postprocess nodes.

        Args:
            query: The question.
            nodes: Best first; neither the list nor a node is changed.
            filters: Conditions that nodes which a postprocessor adds must meet, too.
            timeout_s: Seconds for all of them together.

        Returns:
            The nodes in the order that the postprocessors gave them, unique by id, with finite scores; and those of
            them that failed, whose step is left out.
        """
        deadline = self._timer() + timeout_s
        kept, degraded = list(nodes), []
        for one, caller in self._callers:
            # Copies, since many change what they are given, even when they then fail or come too late.
            copies = [scored.model_copy(deep=True) for scored in kept]
            call = partial(one.postprocess_nodes, copies, query_bundle=QueryBundle(query))
            try:
                kept = _checked(_called(caller, call, deadline - self._timer()), kept, filters)
            except AgenticRetrieverError as err:
                step = f"postprocess.{type(one).__name__}"
                degraded.append(Degradation(step=step, reason=str(err), fallback="the nodes before it"))
        return kept, tuple(degraded)


def _is_postprocessor(one: object) -> bool:
    return isinstance(one, BaseNodePostprocessor)


def _called(caller: DeadlineCaller, call: Callable[[], object], left_s: float) -> object:
    if left_s <= 0:
        raise DeadlineExceededError(f"the time ran out before {caller.what} began; allow more time")
    return guarded(caller.what, partial(caller.call, call, left_s), error=RetrievalError)


def _checked(returned: object, before: Sequence[NodeWithScore], filters: MetadataFilters | None) -> list[NodeWithScore]:
    """Hold the result to what is promised of every retrieval."""
    if not isinstance(returned, (list, tuple)) or not all(isinstance(one, NodeWithScore) for one in returned):
        raise RetrievalError(f"it must return a list of NodeWithScore, got {type(returned).__name__}", {})
    scores = {scored.node.node_id: value_of(scored) for scored in before}
    allowed = predicate(filters)
    unique: dict[str, NodeWithScore] = {}
    for scored in returned:
        node_id = scored.node.node_id
        if node_id in unique or (node_id not in scores and not allowed(node_fields(scored.node))):
            continue
        if not math.isfinite(value_of(scored)):
            earlier = scores.get(node_id, 0.0)
            scored = NodeWithScore(node=scored.node, score=earlier if math.isfinite(earlier) else 0.0)  # noqa: PLW2901 - the same node
        unique[node_id] = scored
    return list(unique.values())
