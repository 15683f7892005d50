"""The metadata prefilter: which nodes satisfy a filter, known before any vector or text is looked at."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from agentic_retriever.checks import MAX_TOP_K, check_top_k
from agentic_retriever.filters import check_filters, is_empty
from agentic_retriever.indices.prefilter.candidates import CandidateSet
from agentic_retriever.indices.prefilter.compile import Compiler
from agentic_retriever.indices.prefilter.files import load_snapshot, save_snapshot
from agentic_retriever.indices.prefilter.plan import FilterPlan, PlanKind, ids_limit
from agentic_retriever.indices.prefilter.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from llama_index.core.vector_stores.types import MetadataFilters
    from pyroaring import BitMap

    from agentic_retriever.indices.prefilter.clauses import Test
    from agentic_retriever.indices.prefilter.fields import FieldIndex, FieldInfo
    from agentic_retriever.indices.prefilter.numbers import NodeNumbers
    from agentic_retriever.indices.prefilter.snapshot import Item


class MetadataIndex:
    """Answers metadata filters from bitmaps, with the meaning of :mod:`agentic_retriever.filters`.

    Texts, booleans and lists of them have inverted lists, numbers and ISO 8601 dates a B+-tree, over roaring bitmaps
    (Lemire et al. 2018, "Roaring Bitmaps: Implementation of an Optimized Software Library") of dense row numbers. Kinds
    of fields are found out, not declared. Texts of very many different values, long ones above all, are left out where
    they would take too much memory; filters on them give candidates that are not exact.

    Safe for any number of threads: a reader sees the state of one moment, writers wait for each other.

    Example:
        >>> from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters
        >>> index = MetadataIndex.build([("n1", {"year": 2020}), ("n2", {"year": 2024})], version=1)
        >>> after_2021 = MetadataFilters(filters=[MetadataFilter(key="year", operator=">", value=2021)])
        >>> index.candidates(after_2021).node_ids()
        ['n2']
    """

    def __init__(self, snapshot: Snapshot, aliases: Mapping[str, str] | None = None) -> None:
        self._snapshot = snapshot
        self._aliases = dict(aliases or {})
        self._writing = threading.Lock()

    @classmethod
    def build(cls, items: Iterable[Item], version: int, *, aliases: Mapping[str, str] | None = None) -> MetadataIndex:
        """Build the index of many nodes at once.

        Args:
            items: ``(node_id, metadata)`` pairs; read once, so a generator will do.
            version: Version of the index that the items come from.
            aliases: Other names of fields that filters may use.

        Returns:
            The index.

        Raises:
            IndexingError: A node id comes twice.
        """
        return cls(Snapshot.build(items, version), aliases)

    @classmethod
    def load(cls, folder: Path, version: int, *, aliases: Mapping[str, str] | None = None) -> MetadataIndex | None:
        """Read an index back, if it is there and still fits.

        Args:
            folder: Where it was saved.
            version: The version now.
            aliases: As for :meth:`build`.

        Returns:
            The index, or ``None`` when there is none, or it is of another version or file format.

        Raises:
            StoreDamagedError: A file is missing, cut or edited; the message names it.
            StoreError: A file cannot be read.
        """
        snapshot = load_snapshot(folder, version)
        return None if snapshot is None else cls(snapshot, aliases)

    def save(self, folder: Path) -> None:
        """Write the index into a folder, whole or not at all.

        Args:
            folder: Where to; what was there is replaced.

        Raises:
            StoreError: It cannot be written.
        """
        save_snapshot(self._snapshot, folder)

    @property
    def version(self) -> int:
        """Version of the index that it was made from."""
        return self._snapshot.version

    def __len__(self) -> int:
        return len(self._snapshot.alive)

    @property
    def numbering(self) -> NodeNumbers:
        """The node ids by number: an object that only grows, until the prefilter is built or compacted anew."""
        return self._snapshot.numbers

    def fields(self) -> list[FieldInfo]:
        """Describe the fields, in order of their names."""
        return [index.info(name) for name, index in sorted(self._snapshot.fields.items())]

    def values(self, field: str) -> dict[str | bool, int]:
        """Count the nodes of each text and boolean of a field; empty where there are none or they are left out."""
        index = self._snapshot.fields.get(self._aliases.get(field, field))
        return {} if index is None else {value: len(rows) for value, rows in index.words.postings.items()}

    def candidates(self, filters: MetadataFilters | None, *, known_only: bool = False) -> CandidateSet:
        """Find the nodes that satisfy filters.

        Args:
            filters: The filters; ``None`` or empty for all nodes.
            known_only: Whether a field that no node has is an error. Otherwise it is missing in every node.

        Returns:
            The nodes' ids, as a set.

        Raises:
            FilterError: The filters cannot be evaluated, or name an unknown field.
        """
        snapshot, test = self._test(filters, known_only=known_only)
        return CandidateSet(snapshot.numbers, test.rows(), exact=test.exact)

    def estimate(self, filters: MetadataFilters | None, *, known_only: bool = False) -> tuple[int, int]:
        """Tell about how many nodes satisfy filters, without finding them.

        Args:
            filters: As for :meth:`candidates`.
            known_only: As for :meth:`candidates`.

        Returns:
            At least and at most how many.

        Raises:
            FilterError: As for :meth:`candidates`.
        """
        _, test = self._test(filters, known_only=known_only)
        return test.low, test.high

    def plan(self, filters: MetadataFilters | None, top_k: int, *, known_only: bool = False) -> FilterPlan:
        """Decide how a filtered vector search is best run.

        Args:
            filters: As for :meth:`candidates`.
            top_k: How many nodes are wanted.
            known_only: As for :meth:`candidates`.

        Returns:
            The plan.

        Raises:
            FilterError: As for :meth:`candidates`.
            InvalidQueryError: ``top_k`` is no positive int.
        """
        check_top_k(top_k, maximum=MAX_TOP_K)
        snapshot, test = self._test(filters, known_only=known_only)
        low, high = test.low, test.high
        if is_empty(filters):
            return FilterPlan(kind=PlanKind.ALL, filters=None, node_ids=None, low=low, high=high)
        limit = ids_limit(filters, nodes=len(snapshot.alive), top_k=top_k)
        rows: BitMap | None = None
        if low <= limit:
            rows = test.rows()
            low, high = (len(rows) if test.exact else 0), len(rows)
        if high == 0:
            return FilterPlan(kind=PlanKind.NONE, filters=filters, node_ids=None, low=0, high=0)
        if rows is None or high > limit:
            return FilterPlan(kind=PlanKind.PUSH_DOWN, filters=filters, node_ids=None, low=low, high=high)
        node_ids = tuple(snapshot.numbers[row] for row in rows)
        return FilterPlan(kind=PlanKind.IDS, filters=filters, node_ids=node_ids, low=low, high=high)

    def add(self, items: Iterable[Item], *, version: int | None = None) -> None:
        """Add nodes; those whose id is there already are replaced.

        Args:
            items: ``(node_id, metadata)`` pairs.
            version: Version of the index with them; by default the same as before.

        Raises:
            IndexingError: A node id comes twice.
        """
        self.update(items, (), version=version)

    def delete(self, node_ids: Iterable[str], *, version: int | None = None) -> None:
        """Remove nodes; ids that are not there are passed over.

        Args:
            node_ids: Which.
            version: Version of the index without them; by default the same as before.
        """
        self.update((), node_ids, version=version)

    def update(self, items: Iterable[Item], deleted: Iterable[str] = (), *, version: int | None = None) -> None:
        """Remove nodes, then add or replace others, as one change that no reader sees half of.

        Args:
            items: ``(node_id, metadata)`` pairs.
            deleted: Ids of the nodes to remove.
            version: Version of the index after it; by default the same as before.

        Raises:
            IndexingError: A node id comes twice; nothing is changed then.
        """
        with self._writing:
            before = self._snapshot
            after = before.version if version is None else version
            self._snapshot = before.delete(deleted, after).insert(items, after)

    def _test(self, filters: MetadataFilters | None, *, known_only: bool) -> tuple[Snapshot, Test]:
        snapshot = self._snapshot
        fields: Mapping[str, FieldIndex] = snapshot.fields
        if self._aliases:
            known = {alias: fields[name] for alias, name in self._aliases.items() if name in fields}
            fields = {**known, **fields}
        check_filters(filters, known_fields=fields if known_only else None)
        return snapshot, Compiler(fields, snapshot.alive).compile(filters)
