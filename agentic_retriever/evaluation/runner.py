"""Asking every question of every contender, one result after the other, each kept as soon as it is there."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from agentic_retriever.evaluation.choices import told
from agentic_retriever.evaluation.measures import fold_to_documents
from agentic_retriever.evaluation.watching import SilentWatcher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from llama_index.core.schema import NodeWithScore

    from agentic_retriever.evaluation.datasets import LabelledQuery
    from agentic_retriever.evaluation.run_log import RunLog
    from agentic_retriever.evaluation.vectors import Vector
    from agentic_retriever.evaluation.watching import Watcher
    from agentic_retriever.router import AgenticRouter

COLD = "cold"
"""Kind of the record of a first search, in which everything is opened."""
WARM = "warm"
"""Kind of the record of one question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a contender gave for a question.

    Attributes:
        nodes: Best first.
        facts: Whatever else is to be kept of it, plain JSON types.
    """

    nodes: Sequence[NodeWithScore]
    facts: Mapping[str, Any]


class Contestant(Protocol):
    """Somebody who can be asked."""

    @property
    def name(self) -> str:
        """Name of its row."""

    @property
    def peer(self) -> bool:
        """Whether it is somebody else's way."""

    @property
    def note(self) -> str:
        """What to know of it, or ``""``."""

    def ask(self, query: LabelledQuery, vector: Vector) -> Found:
        """Search; may raise anything."""

    def cool(self) -> bool:
        """Close what a search opens, so that the next one is a cold one; ``False`` if that cannot be done."""


class RouterContestant:
    """The router with a strategy pinned, or choosing it itself.

    Args:
        router: Holds the index.
        index: Name of the index.
        strategy: Name of the strategy; ``None`` lets the router choose.
        name: Name of the row.
        depth: Nodes to fetch.
        owned: Whether the router may be closed and opened again.
    """

    peer = False
    note = ""

    def __init__(
        self, router: AgenticRouter, index: str, strategy: str | None, *, name: str, depth: int, owned: bool
    ) -> None:
        self.name = name
        self._router = router
        self._index = index
        self._strategy = strategy
        self._depth = depth
        self._owned = owned

    def ask(self, query: LabelledQuery, vector: Vector) -> Found:  # noqa: ARG002 - the router has the vector at hand
        """Search as in production; see :class:`Contestant`."""
        result = self._router.retrieve(query.text, index=self._index, strategy=self._strategy, top_k=self._depth)
        usage = result.usage.to_dict()
        chosen = result.route.strategy
        return Found(
            nodes=result.nodes,
            facts={
                "stages": dict(result.timings_ms),
                "degraded": sorted({lost.step for lost in result.degraded}),
                "strategy": chosen.name,
                "used": result.strategy.value,
                "confidence": chosen.confidence,
                "reason": chosen.reason,
                "mode": chosen.mode,
                "complexity": result.route.complexity.value,
                "tokens": usage["prompt_tokens"] + usage["completion_tokens"],
                "usd": usage["usd"],
                "llm_calls": usage["llm_calls"],
            },
        )

    def cool(self) -> bool:
        """Close the index, if it is ours to close."""
        if self._owned:
            self._router.resources.close()
        return self._owned


def run_contestants(
    contestants: Sequence[Contestant],
    shares: Mapping[str, Sequence[LabelledQuery]],
    vectors: Mapping[str, Vector],
    log: RunLog,
    *,
    timer: Callable[[], float] = time.perf_counter,
    watcher: Watcher | None = None,
) -> None:
    """Ask the contestants, one after the other; the log takes each result, and what it has is not done again.

    The first question of each is asked once more beforehand: cold, with everything closed, where that can be done.
    What failed in an interrupted run is tried again.

    Args:
        contestants: Whom to ask.
        shares: The questions of each, by its name.
        vectors: Unit vector of each question, by its id.
        log: Keeps the results.
        timer: Seconds.
        watcher: Hears how far it is.

    Raises:
        StoreError: If the log cannot be written.
    """
    watch = watcher or SilentWatcher()
    done = {(one["row"], one["query"]) for one in log.records if one.get("kind") == WARM and not one.get("error")}
    for contestant in contestants:
        queries = shares.get(contestant.name, ())
        waiting = [query for query in queries if (contestant.name, query.query_id) not in done]
        watch.begin(contestant.name, len(queries))
        watch.advance(len(queries) - len(waiting))
        if not waiting:
            continue
        first = waiting[0]
        is_cold = contestant.cool()
        opening = _asked(contestant, first, vectors[first.query_id], timer)
        if is_cold and not opening["error"]:
            log.append({"kind": COLD, "row": contestant.name, "ms": opening["ms"]})
        for query in waiting:
            log.append(_asked(contestant, query, vectors[query.query_id], timer))
            watch.advance(1)


def take_turns(names: Sequence[str], queries: Sequence[LabelledQuery]) -> dict[str, list[LabelledQuery]]:
    """Deal questions out as ``round_robin`` does: each to one strategy, in turn.

    Args:
        names: The strategies.
        queries: The questions, in their order.

    Returns:
        The questions of each strategy.
    """
    return {name: list(queries[at :: len(names)]) for at, name in enumerate(names)}


def latest(records: Iterable[Mapping[str, Any]], kind: str = WARM) -> dict[str, dict[str, Mapping[str, Any]]]:
    """Sort records by row and question; of several of one question the last one counts.

    Args:
        records: As a log has them.
        kind: Which kind.
    """
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for record in records:
        if record.get("kind") == kind:
            found.setdefault(str(record["row"]), {})[str(record.get("query", ""))] = record
    return found


def _asked(contestant: Contestant, query: LabelledQuery, vector: Vector, timer: Callable[[], float]) -> dict[str, Any]:
    record: dict[str, Any] = {"kind": WARM, "row": contestant.name, "query": query.query_id, "docs": [], "error": ""}
    start = timer()
    try:
        found = contestant.ask(query, vector)
    except Exception as err:  # noqa: BLE001 - the seam to any retriever; one question must not end the run
        return {**record, "ms": (timer() - start) * 1000, "error": told(err)}
    spent = (timer() - start) * 1000
    return {**record, **found.facts, "ms": spent, "docs": fold_to_documents(found.nodes), "nodes": len(found.nodes)}
