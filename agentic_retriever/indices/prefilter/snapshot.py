"""One state of a metadata index: what readers see, and how a writer makes the next."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from pyroaring import BitMap

from agentic_retriever.errors import IndexingError
from agentic_retriever.indices.prefilter.clustering import clustered_order, field_codes, raw_codes, reordered
from agentic_retriever.indices.prefilter.fields import FieldIndex, RawField
from agentic_retriever.indices.prefilter.inverted import bitmap_of, rows_of
from agentic_retriever.indices.prefilter.numbers import NodeNumbers, PackedIds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agentic_retriever.indices.prefilter.inverted import Rows

    Item = tuple[str, Mapping[str, object]]

#: Texts of a field are left out once those of all fields would take more than so many bytes per node: 3 % of 384
#: float32 numbers. Small indexes may take 2 MiB.
TEXT_BYTES_PER_NODE: Final = 48
TEXT_BYTES: Final = 2 * 2**20
_MIN_LOOSE: Final = 4_096


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Snapshot:
    """One state. Never changed once it is published; :class:`NodeNumbers` and columns only grow behind its end.

    Attributes:
        version: Version of the index that it belongs to.
        numbers: Row numbers of the node ids.
        alive: The rows that are in use.
        fields: The indexed fields.
    """

    version: int
    numbers: NodeNumbers
    alive: BitMap
    fields: Mapping[str, FieldIndex] = field(default_factory=dict)

    @classmethod
    def build(cls, items: Iterable[Item], version: int) -> Snapshot:
        """Index many nodes at once.

        Args:
            items: Node ids and metadata; read once.
            version: Version of the index that they come from.

        Returns:
            The snapshot.

        Raises:
            IndexingError: A node id comes twice.
        """
        node_ids, raw = _read(items, first=0)
        size = len(node_ids)
        order = clustered_order((raw_codes(values, size) for values in raw.values()), size)
        if order is not None:
            raw = {name: reordered(values, order) for name, values in raw.items()}
            node_ids = [node_ids[row] for row in order.tolist()]
        budget = text_budget(size)
        fields: dict[str, FieldIndex] = {}
        # The fields of few texts first, so that what is left out does not depend on the order of the fields.
        for name in sorted(raw, key=lambda name: (raw[name].words.cost, name)):
            whole = raw[name].words.cost <= budget
            budget -= raw[name].words.cost if whole else 0
            fields[name] = raw.pop(name).index(size, whole=whole)
        alive = bitmap_of(np.arange(size, dtype=np.uint32))
        return cls(version=version, numbers=NodeNumbers(PackedIds.of(node_ids)), alive=alive, fields=_there(fields))

    def row(self, node_id: str) -> int | None:
        """Return the row of a node, or ``None``."""
        return next((number for number in self.numbers.find(node_id) if number in self.alive), None)

    def insert(self, items: Iterable[Item], version: int) -> Snapshot:
        """Return a snapshot in which these nodes are as given; those whose id is known are replaced.

        Args:
            items: Node ids and metadata; read once.
            version: Version of the index after it.

        Returns:
            The snapshot.

        Raises:
            IndexingError: A node id comes twice.
        """
        if not self.alive:
            return Snapshot.build(items, version)
        node_ids, raw = _read(items, first=len(self.numbers))
        kept = self.delete(node_ids, version)
        first = self.numbers.append(node_ids)
        size = len(self.numbers)
        fields = dict(kept.fields)
        for name, values in raw.items():
            known = fields.get(name)
            fields[name] = values.index(size) if known is None else known.insert(values, size)
        alive = kept.alive.copy()
        alive.add_range(first, size)
        return _tidied(replace(kept, alive=alive, fields=_within_budget(_there(fields), len(alive))))

    def delete(self, node_ids: Iterable[str], version: int) -> Snapshot:
        """Return a snapshot without these nodes; ids that are not there are passed over.

        Args:
            node_ids: Which.
            version: Version of the index after it.

        Returns:
            The snapshot.
        """
        rows = BitMap([row for row in map(self.row, node_ids) if row is not None])
        if not rows:
            return replace(self, version=version)
        fields = {name: index.delete(rows) for name, index in self.fields.items()}
        return replace(self, version=version, alive=self.alive - rows, fields=_there(fields))

    def compact(self) -> Snapshot:
        """Return the same nodes under row numbers without holes, those that are alike together."""
        kept = rows_of(self.alive)
        if len(kept) == len(self.numbers) and not self.numbers.added:
            return self
        codes = (field_codes(index, len(self.numbers)) for index in self.fields.values())
        order = clustered_order((column.of_rows(kept) for column in codes if column is not None), len(kept))
        kept = kept if order is None else kept[order]
        numbers: Rows = np.zeros(len(self.numbers), dtype=np.uint32)
        numbers[kept] = np.arange(len(kept), dtype=np.uint32)
        return replace(
            self,
            numbers=NodeNumbers(PackedIds.of([self.numbers[row] for row in kept.tolist()])),
            alive=bitmap_of(np.arange(len(kept), dtype=np.uint32)),
            fields={name: index.renumber(numbers, len(kept)) for name, index in self.fields.items()},
        )


def text_budget(nodes: int) -> int:
    """Return how many bytes the texts of all fields may take."""
    return max(TEXT_BYTES, TEXT_BYTES_PER_NODE * nodes)


def _read(items: Iterable[Item], *, first: int) -> tuple[list[str], dict[str, RawField]]:
    """Turn nodes with fields into fields with nodes, numbered from ``first``."""
    node_ids: list[str] = []
    columns: dict[str, tuple[list[object], list[int]]] = {}
    for number, (node_id, metadata) in enumerate(items, start=first):
        node_ids.append(node_id)
        for name, value in metadata.items():
            column = columns.get(name)
            if column is None:
                column = columns[name] = ([], [])
            column[0].append(value)
            column[1].append(number)
    if len(set(node_ids)) < len(node_ids):
        raise IndexingError("a node id comes twice; node ids must be unique within an index")
    fields: dict[str, RawField] = {}
    for name in list(columns):
        values, rows = columns.pop(name)
        fields[name] = RawField.of(values, np.asarray(rows, dtype=np.uint32))
    return node_ids, fields


def _tidied(snapshot: Snapshot) -> Snapshot:
    """Renumber once most rows are gone, or most ids came after the start and so are not packed."""
    numbers, alive = snapshot.numbers, len(snapshot.alive)
    slack = max(_MIN_LOOSE, alive // 2)
    loose = len(numbers) - alive > slack or len(numbers.added) > max(slack, len(numbers.packed))
    return snapshot.compact() if loose else snapshot


def _there(fields: Mapping[str, FieldIndex]) -> dict[str, FieldIndex]:
    return {name: index for name, index in fields.items() if index.present}


def _within_budget(fields: dict[str, FieldIndex], nodes: int) -> dict[str, FieldIndex]:
    """Leave out the texts that take the most, until the others take no more than they may."""
    while sum(index.cost for index in fields.values()) > text_budget(nodes):
        name: Any = max((name for name in fields if fields[name].whole), key=lambda name: (fields[name].cost, name))
        fields[name] = fields[name].without_texts()
    return fields
