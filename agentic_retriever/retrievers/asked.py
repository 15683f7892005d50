"""Strategy ``vector`` over an index that can only be asked: somebody else's retriever, held to the contract of ours."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from agentic_retriever.errors import StoreError
from agentic_retriever.filters import is_empty, node_fields, predicate
from agentic_retriever.retrievers.base import RetrieverAdapter
from agentic_retriever.retrievers.search import Candidate, Found
from agentic_retriever.retrievers.searchable import AnswersItself
from agentic_retriever.retrievers.sides import guarded
from agentic_retriever.schema import Strategy
from agentic_retriever.threads import DeadlineCaller

if TYPE_CHECKING:
    from llama_index.core.callbacks.base import CallbackManager
    from llama_index.core.schema import NodeWithScore

    from agentic_retriever.retrievers.search import AdapterSettings, RetrievalRequest
    from agentic_retriever.retrievers.searchable import SearchableIndex

ASKED: Final = "retriever"
"""Name of the source in the per-source scores; the score is the retriever's own, on a scale of its own."""

MAX_DEPTH: Final = 1_000
_FACTOR: Final = 4
_MAX_CALLS: Final = 8


class AskedRetriever(RetrieverAdapter):
    """Asks the index itself, gives up on it when the time is over, and looks through its answer.

    Filters are applied to what it gives, so it is asked for more, up to 1,000, while too few satisfy them.

    Args:
        index: What to ask.
        settings: How.
        callback_manager: As for every adapter.

    Raises:
        StoreError: If the index cannot be asked.
    """

    strategy = Strategy.VECTOR
    keeps_deadlines = True

    def __init__(
        self, index: SearchableIndex, settings: AdapterSettings, *, callback_manager: CallbackManager | None = None
    ) -> None:
        super().__init__(index, settings, callback_manager=callback_manager)
        if not isinstance(index, AnswersItself):
            raise StoreError(f"index {index.name!r} cannot be asked in words")
        self._asked = index
        # Of its own, so that a retriever that hangs takes no thread from others.
        self._caller = DeadlineCaller(f"index {index.name}", max_calls=_MAX_CALLS)

    def _search(self, request: RetrievalRequest, deadline: float | None) -> Found:
        is_filtered, satisfies = not is_empty(request.filters), predicate(request.filters)
        depth = min(_FACTOR * request.top_k, MAX_DEPTH) if is_filtered else request.top_k
        before = -1
        while True:
            given = self._ask(request.query, depth, deadline)
            kept = [one for one in given if satisfies(node_fields(one.node))]
            is_all = len(given) < depth or len(given) <= before or depth >= MAX_DEPTH
            if not is_filtered or len(kept) >= request.top_k or is_all:
                return Found(tuple(Candidate(one.node, one.score, {ASKED: one.score}) for one in kept))
            before, depth = len(given), min(_FACTOR * depth, MAX_DEPTH)

    def _ask(self, query: str, depth: int, deadline: float | None) -> list[NodeWithScore]:
        call = partial(guarded, f"index {self._index.name}", lambda: list(self._asked.ask(query, depth)))
        if deadline is None:
            return call()
        return self._caller.call(call, deadline - self._settings.timer())
