"""Views derived from the chunks of an index and kept beside them, each in a collection of its own.

A view is brought up to date by difference: only documents whose content has changed are derived and embedded again, and
what belongs to documents that are gone is deleted. Before the collection is touched, the documents concerned are marked
in the view's sealed state; so a process killed in between leaves a view that knows what it has to do again.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from agentic_retriever.errors import DeadlineExceededError, StoreClosedError, StoreDamagedError, StoreError
from agentic_retriever.indices.hierarchy import LEAVES, LEAVES_FORMAT, HierarchyView, Outline, hierarchy_derivation
from agentic_retriever.indices.summaries import SUMMARIES, SUMMARIES_FORMAT, SummaryView, summary_derivation
from agentic_retriever.indices.view_update import (
    INCOMPLETE,
    ViewState,
    ViewUpdate,
    load_state,
    save_state,
    saved_version,
)
from agentic_retriever.schema import View
from agentic_retriever.threads import DeadlineCaller

if TYPE_CHECKING:
    from agentic_retriever.indices.ingest import Progress
    from agentic_retriever.indices.stored import StoredIndex
    from agentic_retriever.indices.summaries import SummaryWriter
    from agentic_retriever.indices.view_update import Derivation
    from agentic_retriever.stores.node_store import NodeStore


logger = logging.getLogger(__name__)

BUILT_IN_QUERY: Final = 2_000
"""Most nodes that an index may have for its views to be built by the first query that needs them."""

_CLOSING_PATIENCE_S: Final = 5.0


class DerivedCollection:
    """One derived view of one index: its collection, its state, and bringing both up to date.

    Safe to use from many threads; one of them builds while the others wait.
    """

    def __init__(self, index: StoredIndex, name: str, *, made_with: str, derivation: Derivation) -> None:
        self.name = name
        self._index = index
        self._made_with = made_with
        self._derivation = derivation
        self._folder = index.folder / f"{name}-state"
        self._building = threading.RLock()
        self._opening = threading.Lock()
        self._caller = DeadlineCaller(f"building the {name} of index {index.name}")
        self._store: NodeStore | None = None
        self._state: ViewState | None = None
        self._saved_version: int | None = None
        self._closed = False

    @property
    def store(self) -> NodeStore:
        """The collection, opened with its first use; one that is damaged is made anew."""
        with self._opening:
            self._check_open()
            if self._store is None:
                try:
                    self._store = self._opened()
                except StoreDamagedError as err:
                    logger.warning("%s; making the %s of index %r again", err, self.name, self._index.name)
                    self._index.stores.discard(self.name)
                    self._store = self._opened()
            return self._store

    def is_usable(self) -> bool:
        """Tell whether a query may use it: it is built for this version, or cheap enough to be built by the query."""
        return self._built_version() == self._index.version or self._index.count() <= BUILT_IN_QUERY

    def ready(self, timeout_s: float | None = None) -> ViewState:
        """Return the state of the view, built now where it is missing or old and the index is small enough."""
        state = self._state
        if state is not None and state.version == self._index.version:
            return state
        if not self.is_usable():
            raise StoreError(
                f"the {self.name} of index {self._index.name!r} are not built for its present state, and it has more "
                f"than {BUILT_IN_QUERY:,} nodes; build its views first"
            )
        if timeout_s is None:
            return self.refresh()
        try:
            return self._caller.call(self.refresh, timeout_s)
        except DeadlineExceededError as err:
            raise DeadlineExceededError(
                f"the {self.name} of index {self._index.name!r} are still being built; a later query can use them"
            ) from err

    def refresh(self, progress: Progress | None = None, *, derivation: Derivation | None = None) -> ViewState:
        """Bring the view up to date, however large the index is."""
        with self._building, self._index.exclusive(self.name):
            try:
                version = self._index.version
                state = self._recovered() if self._state is None or self._is_old(self._state) else self._state
                if state.version != version or derivation is not None:
                    state = self._updated(state, version, progress, derivation or self._derivation)
                self._state = state
                return state
            finally:
                if self._closed:
                    self._close_store()

    def close(self) -> None:
        """Close the files; a build under way stops after its batch."""
        self._closed = True
        if self._building.acquire(timeout=_CLOSING_PATIENCE_S):
            try:
                self._close_store()
            finally:
                self._building.release()

    def _opened(self) -> NodeStore:
        return self._index.stores.open(self.name, self._index.manifest.dimension)

    def _close_store(self) -> None:
        with self._opening:
            store, self._store = self._store, None
        if store is not None:
            store.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError(f"index {self._index.name!r} is closed; open it again")

    def _built_version(self) -> int:
        if self._state is not None and not self._is_old(self._state):
            return self._state.version
        if self._saved_version is None or self._index.is_remote:
            try:
                found = saved_version(self._folder, made_with=self._made_with)
            except StoreError as err:  # whoever uses the view will be told
                logger.warning("%s", err)
                found = None
            self._saved_version = INCOMPLETE if found is None else found
        return self._saved_version

    def _is_old(self, state: ViewState) -> bool:
        """Tell whether another process may have brought the view further than this one knows."""
        return self._index.is_remote and state.version != self._index.version

    def _recovered(self) -> ViewState:
        """Read the saved state and hold it against what is stored; only what agrees counts as done."""
        state = load_state(self._folder, made_with=self._made_with)
        expected = state.node_ids()
        if state.version != INCOMPLETE and self.store.count() == len(expected):
            return state
        present = set(self.store.node_ids())
        orphans = sorted(present - expected)
        if orphans:
            self.store.delete_nodes(node_ids=orphans)
        documents = {
            doc_id: known if present.issuperset(known.node_ids) else replace(known, content_hash="")
            for doc_id, known in state.documents.items()
        }
        return ViewState(INCOMPLETE, documents)

    def _updated(self, state: ViewState, version: int, progress: Progress | None, derivation: Derivation) -> ViewState:
        update = ViewUpdate(self._index, state, self.store, derivation, progress)
        if update.changes:
            self._state = None  # until it is whole again
            update.run(save=self._save, check=self._check_open)
        state = ViewState(version, update.documents)
        try:
            self.store.flush()
            self._save(state)
        except StoreError as err:
            logger.warning(
                "the state of the %s could not be saved (%s); they are checked again next time", self.name, err
            )
        return state

    def _save(self, state: ViewState) -> None:
        save_state(self._folder, state, made_with=self._made_with)


# The derived views of one index: its leaves and its summaries.


class ViewSet:
    """Leaves and summaries of an index, each built when it is first asked for. Safe to use from many threads."""

    def __init__(self, index: StoredIndex) -> None:
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
