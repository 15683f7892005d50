"""What one way to choose the index chose for each question, as a record that can be kept and read again."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from agentic_retriever.errors import AgenticRetrieverError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agentic_retriever.evaluation.routing import RoutedQuery
    from agentic_retriever.indices import IndexProfile
    from agentic_retriever.routing import IndexClassifier
    from agentic_retriever.schema import Selection

KEEP_EVERY_S: Final = 5.0
"""Seconds after which what was chosen so far is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The choice for one question.

    Attributes:
        query_id: The question.
        ms: Milliseconds that it took.
        name: The index; ``""`` when it raised.
        names: All that were to be searched.
        confidence: Of the first, in [0, 1].
        abstained: Whether no index was probable enough.
        escalated: Whether a model was asked because the evidence was not clear.
        llm_calls: Calls of models.
        error: What it raised, or ``""``.
    """

    query_id: str
    ms: float
    name: str = ""
    names: tuple[str, ...] = ()
    confidence: float = 0.0
    abstained: bool = False
    escalated: bool = False
    llm_calls: int = 0
    error: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {**{name: getattr(self, name) for name in self.__slots__}, "names": list(self.names)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Choice:
        """Read what ``to_dict`` returned.

        Raises:
            TypeError: If it is something else.
        """
        return cls(**{**data, "names": tuple(data["names"])}) if "names" in data else cls(**data)


def choose(
    queries: Sequence[RoutedQuery],
    profiles: Sequence[IndexProfile],
    classifier: IndexClassifier,
    *,
    known: Mapping[str, Choice] | None = None,
    timer: Callable[[], float] = time.perf_counter,
    on_progress: Callable[[int], None] | None = None,
    keep: Callable[[Sequence[Choice]], None] | None = None,
) -> list[Choice]:
    """Ask for the index of every question.

    Args:
        queries: The questions, at least one.
        profiles: The indexes to choose from.
        classifier: The way to choose.
        known: Choices of an earlier run by query id; they are not made again.
        timer: Seconds, for latencies.
        on_progress: Hears how many questions were finished since the last call.
        keep: Hears all choices so far, every five seconds and in the end, an interruption included.

    Returns:
        One choice per question, in their order; what was raised is in it.
    """
    report, made = on_progress or (lambda _done: None), list[Choice]()
    done = known or {}
    if any(query.query_id not in done for query in queries):
        _warm_up(lambda: classifier.classify(queries[0].text, profiles, query_vector=queries[0].vector))
    kept_at = timer()
    try:
        for query in queries:
            made.append(done.get(query.query_id) or _choice(query, profiles, classifier, timer))
            report(1)
            if keep is not None and timer() - kept_at >= KEEP_EVERY_S:
                keep(made)
                kept_at = timer()
    finally:
        if keep is not None:
            keep(made)
    return made


def told(err: Exception) -> str:
    """Say what happened; the text of a foreign error may hold anything, so only its type is told."""
    return f"{type(err).__name__}: {err}" if isinstance(err, AgenticRetrieverError) else type(err).__name__


def _choice(
    query: RoutedQuery, profiles: Sequence[IndexProfile], classifier: IndexClassifier, timer: Callable[[], float]
) -> Choice:
    start = timer()
    try:
        selection = classifier.classify(query.text, profiles, query_vector=query.vector)
    except Exception as err:  # noqa: BLE001 - the seam to any classifier; one question must not end the run
        return Choice(query_id=query.query_id, ms=(timer() - start) * 1000, error=told(err))
    return _recorded(query.query_id, selection, (timer() - start) * 1000)


def _recorded(query_id: str, selection: Selection, ms: float) -> Choice:
    return Choice(
        query_id=query_id,
        ms=ms,
        name=selection.name,
        names=selection.names,
        confidence=selection.confidence,
        abstained=selection.abstained,
        escalated=selection.escalated,
        llm_calls=sum(usage.calls for usage in selection.spent),
    )


def _warm_up(call: Callable[[], object]) -> None:
    """Fill the caches that a first call fills, so that they are not part of the latencies."""
    try:
        call()
    except Exception:  # noqa: BLE001 - the same question is asked again, and its failure is counted then
        return
