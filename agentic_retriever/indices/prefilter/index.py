"""Answers of the metadata prefilter: the nodes that satisfy a filter, and how a filtered vector search is best run.

Decided by how many nodes satisfy the filter. Measured with the embedded store on 50,000 nodes of 384 dimensions, ten
results, medians on two cores:

==========  ==================  ====  ==============  =======================
candidates  filter pushed down   ids  ids and filter  filter not translatable
==========  ==================  ====  ==============  =======================
1                       0.2 ms   0.2          0.3 ms                   500 ms
16                      0.6 ms   0.5          0.6 ms                   460 ms
64                      0.8 ms   0.8          1.1 ms                   530 ms
256                     1.0 ms   3.0          2.1 ms                   530 ms
1,000                   0.9 ms   5.6          8.6 ms                    56 ms
5,000                   2.5 ms    20           25 ms                    16 ms
==========  ==================  ====  ==============  =======================

So ids cost about 5 µs each. They win for a handful, and for thousands where the engine cannot check a clause itself and
the store reads node after node until it has enough: about 0.16 ms for each node of the index that one result takes.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters
from pyroaring import BitMap

from agentic_retriever.errors import AgenticRetrieverError
from agentic_retriever.filters import RANGE_OPERATORS, check_filters, is_empty, parse_moment, walk_clauses
from agentic_retriever.indices.derived import DerivedView
from agentic_retriever.indices.prefilter.btree import rows_of
from agentic_retriever.indices.prefilter.clauses import Compiler
from agentic_retriever.indices.prefilter.snapshot import Snapshot
from agentic_retriever.schema import MAX_TOP_K, check_top_k
from agentic_retriever.stores.node_store import NodeStore
from agentic_retriever.stores.points import push_down

if TYPE_CHECKING:
    from agentic_retriever.indices.prefilter.btree import Rows
    from agentic_retriever.indices.prefilter.clauses import Matcher
    from agentic_retriever.indices.prefilter.snapshot import FieldIndex, Item, NodeNumbers

logger = logging.getLogger(__name__)

IDS_LIMIT: Final = 16  # up to so many candidates the store gets their ids, whatever the filter
MAX_IDS: Final = 5_000  # the most ids that the store gets
_READS_PER_ID: Final = 32  # nodes read one after another in place of an id looked up, at equal cost; from the table

#: What filters may call a node's source, as LlamaIndex's stores do, beside ``doc_id``.
SOURCE_ALIASES: Final = {"document_id": "doc_id", "ref_doc_id": "doc_id"}

# Of vectors in memory. Smaller indexes are as fast without; larger ones would take more than about 150 MB at 384
# dimensions. Above so many candidates the engine is as fast.
MIN_NODES: Final = 2_000
MAX_NODES: Final = 100_000
MAX_CANDIDATES: Final = 5_000


class CandidateSet(AbstractSet[str]):
    """Ids of the nodes that satisfy a filter, at one moment: a set that is only written out where somebody asks.

    Where ``exact`` is false, the nodes that satisfy it are among them, and the rest is for the store to sort out.
    """

    __slots__ = ("_rows", "exact", "numbering")

    def __init__(self, numbering: NodeNumbers, rows: BitMap, *, exact: bool = True) -> None:
        self.numbering = numbering  # grows only, until the prefilter is built or compacted anew: another object then
        self._rows = rows
        self.exact = exact

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, node_id: object) -> bool:
        return isinstance(node_id, str) and any(number in self._rows for number in self.numbering.find(node_id))

    def __iter__(self) -> Iterator[str]:
        return map(self.numbering.__getitem__, self._rows)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(count={len(self)}, exact={self.exact})"

    def numbers(self) -> Rows:
        return rows_of(self._rows)

    def narrowed(self, node_ids: Iterable[str]) -> CandidateSet:
        """Keep those that somebody who can tell found to satisfy the filter: an exact set of what is in both."""
        rows = (number for node_id in node_ids for number in self.numbering.find(node_id))
        return CandidateSet(self.numbering, BitMap(list(rows)) & self._rows)

    @classmethod
    def _from_iterable(cls, node_ids: Iterable[str]) -> AbstractSet[str]:  # type: ignore[override]  # what "&" makes
        return frozenset(node_ids)


class PlanKind(str, Enum):
    NONE = "none"  # nothing satisfies the filter, so no query is made
    IDS = "ids"  # few nodes do, and the query gets their ids beside the filter
    PUSH_DOWN = "push_down"  # the query gets the filter
    ALL = "all"  # there is no filter


class FilterPlan(NamedTuple):
    """How to run a filtered vector search, and at least and at most how many nodes satisfy the filter."""

    kind: PlanKind
    filters: MetadataFilters | None  # sent with ids, too: a node that changed meanwhile is then judged as it is now
    node_ids: tuple[str, ...] | None  # never empty; None where the query is not to be restricted by ids
    low: int
    high: int


class MetadataIndex:
    """Answers metadata filters from bitmaps, with the meaning of :mod:`agentic_retriever.filters`.

    Texts, booleans and lists of them have inverted lists, numbers and ISO 8601 dates a B+-tree, over roaring bitmaps
    (Lemire et al. 2018, "Roaring Bitmaps: Implementation of an Optimized Software Library") of dense row numbers. Kinds
    of fields are found out, not declared. Texts of very many different values, long ones above all, are left out where
    they would take too much memory; filters on them give candidates that are not exact.

    Safe for any number of threads: a reader sees the state of one moment, writers wait for each other.
    """

    def __init__(self, snapshot: Snapshot, aliases: Mapping[str, str] | None = None) -> None:
        self._snapshot = snapshot
        self._aliases = dict(aliases or {})
        self._writing = threading.Lock()

    @classmethod
    def build(cls, items: Iterable[Item], version: int, *, aliases: Mapping[str, str] | None = None) -> MetadataIndex:
        """Build the index of ``(node_id, metadata)`` pairs; ``aliases`` are other names of fields in filters."""
        return cls(Snapshot.build(items, version), aliases)

    @classmethod
    def load(cls, folder: Path, version: int, *, aliases: Mapping[str, str] | None = None) -> MetadataIndex | None:
        """Read an index back, or give ``None`` when there is none, or it is of another version or file format."""
        snapshot = Snapshot.load(folder, version)
        return None if snapshot is None else cls(snapshot, aliases)

    def save(self, folder: Path) -> None:
        self._snapshot.save(folder)

    @property
    def version(self) -> int:
        return self._snapshot.version

    @property
    def numbering(self) -> NodeNumbers:
        return self._snapshot.numbers

    def __len__(self) -> int:
        return len(self._snapshot.alive)

    def candidates(self, filters: MetadataFilters | None, *, known_only: bool = False) -> CandidateSet:
        """Find the nodes that satisfy filters; with ``known_only`` a field that no node has is an error."""
        snapshot, matcher = self._matcher(filters, known_only=known_only)
        return CandidateSet(snapshot.numbers, matcher.rows(None), exact=matcher.exact)

    def plan(self, filters: MetadataFilters | None, top_k: int) -> FilterPlan:
        """Decide how a vector search for ``top_k`` nodes is best run."""
        check_top_k(top_k, maximum=MAX_TOP_K)
        snapshot, matcher = self._matcher(filters)
        low, high = matcher.low, matcher.high
        if is_empty(filters):
            return FilterPlan(PlanKind.ALL, None, None, low, high)
        limit = ids_limit(filters, nodes=len(snapshot.alive), top_k=top_k)
        kind, node_ids = PlanKind.PUSH_DOWN, None
        if low <= limit:
            rows = matcher.rows(None)
            low, high = (len(rows) if matcher.exact else 0), len(rows)
            if high <= limit:
                kind, node_ids = PlanKind.IDS, tuple(snapshot.numbers[row] for row in rows)
        return FilterPlan(kind if high else PlanKind.NONE, filters, node_ids or None, low, high)

    def update(self, items: Iterable[Item] = (), deleted: Iterable[str] = (), *, version: int | None = None) -> None:
        """Remove nodes, then add or replace others, as one change that no reader sees half of.

        Ids to remove that are not there are passed over. The version of the index after it is by default the same.
        """
        with self._writing:
            before = self._snapshot
            after = before.version if version is None else version
            self._snapshot = before.delete(deleted, after).insert(items, after)

    def _matcher(self, filters: MetadataFilters | None, *, known_only: bool = False) -> tuple[Snapshot, Matcher]:
        snapshot = self._snapshot
        fields: Mapping[str, FieldIndex] = snapshot.fields
        if self._aliases:
            known = {alias: fields[name] for alias, name in self._aliases.items() if name in fields}
            fields = {**known, **fields}
        check_filters(filters, known_fields=fields if known_only else None)
        return snapshot, Compiler(fields, snapshot.alive).compile(filters)


def ids_limit(filters: MetadataFilters | None, *, nodes: int, top_k: int) -> int:
    """Say up to how many candidates, from 16 to 5,000, the store is better off with their ids."""
    if not any(map(_is_untranslatable, walk_clauses(filters))):
        return IDS_LIMIT
    # With c candidates the store reads about nodes * top_k / c nodes, or looks up c ids.
    return min(MAX_IDS, max(IDS_LIMIT, math.isqrt(_READS_PER_ID * nodes * top_k)))


def _is_untranslatable(clause: MetadataFilter) -> bool:
    if push_down(MetadataFilters(filters=[clause]), {}).exact:
        return False
    # A range of dates is not taken at the engine's word, but what it lets through is hardly more than is wanted.
    return not (clause.operator in RANGE_OPERATORS and isinstance(clause.value, str) and parse_moment(clause.value))


class MetadataView(DerivedView[MetadataIndex]):
    """The prefilter of a stored index: read, built, kept true while nodes change, and saved in a folder."""

    def __init__(self, store: NodeStore, folder: Path, version: Callable[[], int]) -> None:
        super().__init__(
            "metadata index",
            version,
            load=lambda version: MetadataIndex.load(folder, version, aliases=SOURCE_ALIASES),
            build=lambda version: MetadataIndex.build(_items(store.iter_nodes()), version, aliases=SOURCE_ALIASES),
            save=lambda view: view.save(folder),
        )
        self._store = store

    def candidates(self, filters: MetadataFilters | None, *, known_only: bool = False) -> CandidateSet:
        """Find the nodes that satisfy filters, exactly; where texts are not indexed the store has the last word."""
        found = self.current().candidates(filters, known_only=known_only)
        if found.exact or not found:
            return found
        node_ids = list(found) if len(found) <= MAX_IDS else None
        return found.narrowed(node.node_id for node in self._store.get_nodes(node_ids=node_ids, filters=filters))

    @contextmanager
    def changing(self, written: Sequence[BaseNode], removed: Sequence[str]) -> Iterator[None]:
        """Change the prefilter together with the index's version, which is to be raised inside.

        ``written`` are nodes that are in the store by now, ``removed`` ids of nodes that are not any more.
        """
        with self._lock:
            before = self._index_version()
            yield
            after = self._index_version()
            if after != before and self._view is not None and self._made_from == before:
                self._view.update(_items(written), removed, version=after)
                self._made_from, self._unsaved = after, True


def _items(nodes: Iterable[BaseNode]) -> Iterator[tuple[str, Mapping[str, object]]]:
    return ((node.node_id, {**node.metadata, "doc_id": node.ref_doc_id}) for node in nodes)


# The vectors of an index in memory, for exact search among the nodes that satisfy a filter. The engine checks a filter
# node by node while it scores, which takes 2 to 5 ms for a three-clause filter that leaves 3 % of 50,000 nodes. The
# prefilter knows those nodes in 0.05 ms, and their cosines are one small matrix product: 0.4 ms.


class VectorRows:
    """Unit vectors by node id, for one version of an index; immutable."""

    def __init__(
        self,
        node_ids: Sequence[str],
        matrix: npt.NDArray[np.float32],
        version: int,
        numbering: NodeNumbers | None = None,
    ) -> None:
        self.version = version
        self._ids = list(node_ids)
        self._rows = {node_id: row for row, node_id in enumerate(self._ids)}
        self._matrix = matrix
        self._numbering = numbering
        known = () if numbering is None else (self._rows.get(numbering[i], -1) for i in range(len(numbering)))
        self._row_of_number = np.fromiter(known, dtype=np.int64)

    def nearest(self, vector: Sequence[float], among: Iterable[str], top_k: int) -> list[tuple[str, float]] | None:
        query = np.asarray(vector, dtype=np.float32)
        norm = float(np.linalg.norm(query))
        if query.shape != self._matrix.shape[1:] or not np.isfinite(norm) or norm == 0:
            return None
        rows = self._rows_of(among)
        if not len(rows):
            return []
        cosines = self._matrix[rows] @ (query / norm)
        at_least = np.partition(cosines, -top_k)[-top_k] if top_k < len(rows) else -np.inf
        # All that tie with the last one are looked at, so that the id decides between them.
        best = [(self._ids[rows[i]], float(cosines[i])) for i in np.flatnonzero(cosines >= at_least)]
        return sorted(best, key=lambda pair: (-pair[1], pair[0]))[:top_k]

    def _rows_of(self, among: Iterable[str]) -> npt.NDArray[np.int64]:
        if isinstance(among, CandidateSet) and among.numbering is self._numbering:
            numbers = among.numbers()
            # Numbers that were given since belong to a later version of the index.
            rows = self._row_of_number[numbers[numbers < len(self._row_of_number)]]
            return rows[rows >= 0]
        known = (self._rows[node_id] for node_id in among if node_id in self._rows)
        return np.fromiter(known, dtype=np.int64)


class VectorRowsView:
    """Keeps the rows of the current version, read in the background when a search could use them."""

    def __init__(self, store: NodeStore, version: Callable[[], int], numbering: Callable[[], NodeNumbers]) -> None:
        self._store = store
        self._version = version
        self._numbering = numbering
        self._lock = threading.Lock()
        self._rows: VectorRows | None = None
        self._reader: threading.Thread | None = None

    def current(self, nodes: int) -> VectorRows | None:
        """Return the rows of the current version, or ``None`` and begin to read them if that is worth it."""
        version = self._version()
        rows = self._rows
        if rows is not None and rows.version == version:
            return rows
        with self._lock:
            reading = self._reader is not None and self._reader.is_alive()
            if not reading and MIN_NODES <= nodes <= MAX_NODES:
                self._rows = None  # the old ones are of no use, and need not lie beside the new ones
                self._reader = threading.Thread(target=self._read, args=(version,), name="vector-rows", daemon=True)
                self._reader.start()
        return None

    def wait(self, timeout_s: float) -> None:
        if self._reader is not None:
            self._reader.join(timeout_s)

    def _read(self, version: int) -> None:
        try:
            numbering = self._numbering()
            node_ids, matrix = self._store.vectors(self._store.node_ids())
            # Vectors read while the index changed may be of either version, so they are not used.
            if self._version() == version:
                self._rows = VectorRows(node_ids, matrix, version, numbering)
        except AgenticRetrieverError as err:  # the index may have been closed meanwhile
            logger.debug("vectors were not read into memory: %s", err)
