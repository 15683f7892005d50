"""Every query into the history, without getting in its way."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentic_retriever.llm import TieredClient
    from agentic_retriever.querylog import QueryLog
    from agentic_retriever.router.timing import QueryClock
    from agentic_retriever.schema import Answer


class Recorder:
    """Hands queries to the history, if there is one; never raises and never waits.

    Args:
        log: The history, or ``None``.
        client: The models, which know what the cloud alone would have cost; or ``None``.
    """

    def __init__(self, log: QueryLog | None, client: TieredClient | None) -> None:
        self._log = log
        self._client = client

    def answered(self, answer: Answer) -> None:
        """Record an answer."""
        if self._log is None:
            return
        # A cached answer cost nothing, whoever might have written it.
        asked = None if answer.cached else self._client
        cloud_usd = None if asked is None else asked.costs(answer.usage.tiers).cloud_only_usd
        self._log.record_answer(answer, cloud_only_usd=cloud_usd)

    def failed(self, query: str, err: BaseException, clock: QueryClock, query_id: str) -> None:
        """Record a query that ended in an error."""
        if self._log is not None:
            self._log.record_answer(None, error=err, query=query, query_id=query_id, timings_ms=clock.timings_ms())
