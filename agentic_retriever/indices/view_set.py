"""The derived views of one index: its leaves and its summaries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentic_retriever.indices.hierarchy import LEAVES, LEAVES_FORMAT, HierarchyView, Outline, hierarchy_derivation
from agentic_retriever.indices.summaries import SUMMARIES, SUMMARIES_FORMAT, SummaryView, summary_derivation
from agentic_retriever.indices.views import DerivedCollection
from agentic_retriever.schema import View

if TYPE_CHECKING:
    from agentic_retriever.indices.index import Index
    from agentic_retriever.indices.ingest import Progress
    from agentic_retriever.indices.summaries import SummaryWriter
    from agentic_retriever.indices.view_state import ViewState


class ViewSet:
    """Leaves and summaries of an index, each built when it is first asked for. Safe to use from many threads.

    Args:
        index: The index.
    """

    def __init__(self, index: Index) -> None:
        settings = index.chunk_settings
        self._leaves = DerivedCollection(
            index,
            LEAVES,
            made_with=f"{LEAVES_FORMAT}:{settings.fingerprint}",
            derivation=hierarchy_derivation(settings),
        )
        self._summaries = DerivedCollection(
            index, SUMMARIES, made_with=str(SUMMARIES_FORMAT), derivation=summary_derivation()
        )
        self._hierarchy_view: tuple[ViewState, HierarchyView] | None = None
        self._summary_view: tuple[ViewState, SummaryView] | None = None

    def usable(self) -> frozenset[View]:
        """Return the views that a query may use; see :meth:`DerivedCollection.is_usable`."""
        views = {View.HIERARCHY: self._leaves, View.SUMMARY: self._summaries}
        return frozenset(view for view, collection in views.items() if collection.is_usable())

    def hierarchy(self, timeout_s: float | None) -> HierarchyView:
        """Return the leaves; raises as :meth:`DerivedCollection.ready`."""
        state = self._leaves.ready(timeout_s)
        known = self._hierarchy_view
        if known is None or known[0] is not state:
            outlines = {doc_id: Outline(**held.facts) for doc_id, held in state.documents.items()}
            known = self._hierarchy_view = (state, HierarchyView(self._leaves.store, outlines))
        return known[1]

    def summaries(self, timeout_s: float | None) -> SummaryView:
        """Return the summaries; raises as :meth:`DerivedCollection.ready`."""
        state = self._summaries.ready(timeout_s)
        known = self._summary_view
        if known is None or known[0] is not state:
            chunks = {doc_id: held.facts["chunks"] for doc_id, held in state.documents.items()}
            summarised = sum(bool(held.node_ids) for held in state.documents.values())
            known = self._summary_view = (state, SummaryView(self._summaries.store, chunks, summarised))
        return known[1]

    def build(self, progress: Progress | None, write_summary: SummaryWriter | None) -> None:
        """Bring both up to date, however large the index is; raises as :meth:`DerivedCollection.refresh`."""
        self._leaves.refresh(progress)
        derivation = None if write_summary is None else summary_derivation(write_summary)
        self._summaries.refresh(progress, derivation=derivation)

    def close(self) -> None:
        """Close the files; a build under way stops."""
        self._leaves.close()
        self._summaries.close()
