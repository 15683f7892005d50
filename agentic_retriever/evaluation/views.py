"""Building the views that strategies need before anything is measured, so that no question pays for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from agentic_retriever.evaluation.journal import Watcher
from agentic_retriever.indices import Index
from agentic_retriever.indices.ingest import SilentProgress
from agentic_retriever.indices.views import BUILT_IN_QUERY
from agentic_retriever.retrievers import REGISTRY
from agentic_retriever.schema import Strategy, View

VIEWS_AT_ONCE: Final = frozenset({View.HIERARCHY, View.SUMMARY})
"""Views that are built together."""


def build_views(index: Index, strategies: Iterable[Strategy], watcher: Watcher) -> frozenset[View]:
    """Build what strategies need; summaries are never written by a model here."""
    needed = {view for strategy in strategies for view in REGISTRY[strategy].needs}
    index.profile()
    if index.is_attached:
        return frozenset(needed & index.views)  # what it has was read when it was attached
    if View.KEYWORD in needed:
        watcher.begin(f"words of {index.name}", 1)
        index.keyword()
    if View.HIERARCHY in needed or (View.SUMMARY in needed and index.count() > BUILT_IN_QUERY):
        index.build_views(_Documents(watcher, index))
        needed |= VIEWS_AT_ONCE
    elif View.SUMMARY in needed:
        watcher.begin(f"summaries of {index.name}", 1)
        index.summaries()
    return frozenset(needed)


class _Documents(SilentProgress):
    """Hears of views being built, document by document, and tells a watcher."""

    def __init__(self, watcher: Watcher, index: Index) -> None:
        self._watcher = watcher
        self._name = index.name
        self._total = len(index.doc_ids())
        self._done = 0

    def nodes(self, found: int) -> None:  # noqa: ARG002 - one call a document
        """Tell of one document; leaves come first, then summaries."""
        if self._done in {0, self._total}:
            what = "leaves" if self._done == 0 else "summaries"
            self._watcher.begin(f"{what} of {self._name}", self._total)
        self._done += 1
        self._watcher.advance(1)
