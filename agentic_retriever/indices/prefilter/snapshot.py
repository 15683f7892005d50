"""One state of a metadata index: what readers see, how a writer makes the next, and its form on disk.

On disk it is one sealed folder of arrays and texts, without pickle.
"""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from pyroaring import BitMap

from agentic_retriever.errors import IndexingError, StoreDamagedError
from agentic_retriever.indices.prefilter.btree import BPlusTree, InvertedIndex, Rows, bitmap_of, rows_of, texts_cost
from agentic_retriever.indices.prefilter.fields import FieldIndex, FieldValues
from agentic_retriever.stores.files import read_files, read_header, write_sealed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt

    Item = tuple[str, Mapping[str, object]]

FORMAT: Final = 1
#: Texts of a field are left out once those of all fields would take more than so many bytes per node: 3 % of 384
#: float32 numbers. Small indexes may take 2 MiB.
TEXT_BYTES_PER_NODE: Final = 48
TEXT_BYTES: Final = 2 * 2**20
_MIN_LOOSE: Final = 4_096
_MIN_CLUSTERED: Final = 2**16  # in fewer rows than one container of a bitmap holds there is nothing to win
_MAX_CLUSTERED: Final = 1_024  # different values of a field
_PROBED: Final = 8_192
_ARRAYS: Final = "arrays.npz"
_FIELDS: Final = "fields.json"
_ORDERED: Final = ("numbers", "days", "moments")


class NodeNumbers:
    """Dense numbers for node ids. They are only ever given, never taken back, so readers of any age may share them.

    A node that was updated has a new number, and its old ones as well: at any time one of them at most is in use. The
    ids that are there from the start lie in one run of bytes with a hash table over them: 1,000,000 UUIDs take 48 MB,
    a ``dict`` of as many strings 167 MB, with which the prefilter would take 14 % of the memory of its vectors.
    """

    def __init__(self, ids: Sequence[str] = ()) -> None:
        joined = "".join(ids)
        self.text = _encode(joined)
        # Where every character is one byte, as in most ids, the ids need not be encoded one by one.
        sizes = map(len, ids if len(self.text) == len(joined) else map(_encode, ids))
        starts = np.zeros(len(ids) + 1, dtype=np.int64)
        np.cumsum(np.fromiter(sizes, dtype=np.int64, count=len(ids)), out=starts[1:])
        # Single numbers come faster out of a memoryview than out of an array.
        self.starts = starts.astype(np.uint32 if starts[-1] < 2**32 else np.int64).data
        buckets = max(1, len(ids))
        # Python's own hash is salted per process, so nobody can choose ids that all fall into one bucket.
        hashes = np.fromiter(map(hash, ids), dtype=np.int64, count=len(ids)) % buckets
        self._bucket_numbers = np.argsort(hashes, kind="stable").astype(np.uint32).data
        ends = np.zeros(buckets + 1, dtype=np.uint32)
        np.cumsum(np.bincount(hashes, minlength=buckets), out=ends[1:])
        self._buckets = ends.data
        self.packed = len(ids)
        self._added: list[str] = []
        self._numbers: dict[str, tuple[int, ...]] = {}  # of the added ones

    def __len__(self) -> int:
        return self.packed + len(self._added)

    def __getitem__(self, number: int) -> str:
        if number >= self.packed:
            return self._added[number - self.packed]
        return self.text[self.starts[number] : self.starts[number + 1]].decode("utf-8", "surrogatepass")

    def find(self, node_id: str) -> Sequence[int]:
        """Return every number that an id ever had."""
        bucket = hash(node_id) % (len(self._buckets) - 1)
        numbers = self._bucket_numbers[self._buckets[bucket] : self._buckets[bucket + 1]]
        return (*(number for number in numbers if self[number] == node_id), *self._numbers.get(node_id, ()))

    def append(self, node_ids: Iterable[str]) -> int:
        """Number more ids, and return the first of the new numbers; to be called by one thread at a time."""
        first = len(self)
        for number, node_id in enumerate(node_ids, start=first):
            self._added.append(node_id)
            self._numbers[node_id] = (*self._numbers.get(node_id, ()), number)
        return first


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Snapshot:
    """One state. Never changed once it is published; :class:`NodeNumbers` only grow behind its end."""

    version: int  # of the index that it belongs to
    numbers: NodeNumbers  # row numbers of the node ids
    alive: BitMap  # the rows that are in use
    fields: Mapping[str, FieldIndex] = field(default_factory=dict)

    @classmethod
    def build(cls, items: Iterable[Item], version: int) -> Snapshot:
        """Index many nodes at once."""
        node_ids, columns = _clustered(*_read(items, first=0))
        size = len(node_ids)
        budget = _text_budget(size)
        fields: dict[str, FieldIndex] = {}
        costs = {name: texts_cost(values.words.values) for name, values in columns.items()}
        # The fields of few texts first, so that what is left out does not depend on the order of the fields.
        for name in sorted(columns, key=lambda name: (costs[name], name)):
            whole = costs[name] <= budget
            budget -= costs[name] if whole else 0
            fields[name] = FieldIndex(whole=whole).insert(columns.pop(name))
        return cls(version=version, numbers=NodeNumbers(node_ids), alive=_all_rows(size), fields=_in_use(fields))

    def insert(self, items: Iterable[Item], version: int) -> Snapshot:
        """Return a snapshot in which these nodes are as given; those whose id is known are replaced."""
        if not self.alive:
            return Snapshot.build(items, version)
        node_ids, columns = _read(items, first=len(self.numbers))
        kept = self.delete(node_ids, version)
        first = self.numbers.append(node_ids)
        fields = dict(kept.fields)
        for name, values in columns.items():
            fields[name] = fields.get(name, FieldIndex()).insert(values)
        alive = kept.alive.copy()
        alive.add_range(first, len(self.numbers))
        return _tidied(replace(kept, alive=alive, fields=_within_budget(_in_use(fields), len(alive))))

    def delete(self, node_ids: Iterable[str], version: int) -> Snapshot:
        """Return a snapshot without these nodes; ids that are not there are passed over."""
        numbers = (number for node_id in node_ids for number in self.numbers.find(node_id))
        rows = BitMap(list(numbers)) & self.alive
        if not rows:
            return replace(self, version=version)
        fields = {name: index.delete(rows) for name, index in self.fields.items()}
        return replace(self, version=version, alive=self.alive - rows, fields=_in_use(fields))

    def compact(self) -> Snapshot:
        """Return the same nodes under row numbers without holes."""
        kept = rows_of(self.alive)
        if len(kept) == self.numbers.packed == len(self.numbers):
            return self
        numbers: Rows = np.zeros(len(self.numbers), dtype=np.uint32)
        numbers[kept] = np.arange(len(kept), dtype=np.uint32)
        return replace(
            self,
            numbers=NodeNumbers([self.numbers[row] for row in kept.tolist()]),
            alive=_all_rows(len(kept)),
            fields={name: index.renumber(numbers) for name, index in self.fields.items()},
        )

    def save(self, folder: Path) -> None:
        """Write it into a folder, whole or not at all."""
        snapshot = self.compact()
        writer = _Writer()
        writer.arrays["ids"] = np.frombuffer(snapshot.numbers.text, dtype=np.uint8)
        writer.arrays["id_starts"] = np.asarray(snapshot.numbers.starts)
        fields = [writer.field(name, index) for name, index in snapshot.fields.items()]
        buffer = io.BytesIO()
        np.savez(buffer, **writer.arrays)  # type: ignore[arg-type]  # its stub takes every keyword for allow_pickle
        files = {_ARRAYS: buffer.getvalue(), _FIELDS: json.dumps(fields).encode()}
        write_sealed(folder, {**_identity(snapshot.version), "nodes": len(snapshot.alive)}, files)

    @classmethod
    def load(cls, folder: Path, version: int) -> Snapshot | None:
        """Read it back, if it is there and of this version of the index and of the file format."""
        header = read_header(folder)
        wanted = _identity(version)
        if header is None or {name: header.get(name) for name in wanted} != wanted:
            return None
        files = read_files(folder, (_ARRAYS, _FIELDS))
        try:
            with np.load(io.BytesIO(files[_ARRAYS]), allow_pickle=False) as arrays:
                reader = _Reader(dict(arrays))
            numbers, nodes = NodeNumbers(reader.node_ids()), int(header["nodes"])
            fields = dict(reader.field(facts) for facts in json.loads(files[_FIELDS]))
        except (ValueError, KeyError, TypeError, IndexError, zipfile.BadZipFile) as err:
            raise StoreDamagedError(f"{folder} is damaged: its files cannot be read back; rebuild it") from err
        if len(numbers) != nodes:
            raise StoreDamagedError(f"{folder} is damaged: its files disagree with manifest.json; rebuild it")
        return cls(version=version, numbers=numbers, alive=_all_rows(len(numbers)), fields=fields)


@dataclass(slots=True)
class _Writer:
    """Collects arrays under short names, as field names may be anything."""

    arrays: dict[str, npt.NDArray[Any]] = field(default_factory=dict)

    def field(self, name: str, index: FieldIndex) -> dict[str, Any]:
        facts: dict[str, Any] = {"name": name, "whole": index.whole, "values": list(index.words.postings)}
        facts["bitmaps"] = self._bitmaps([index.present, index.unindexed, *index.words.postings.values()])
        for part in _ORDERED:
            keys, rows = getattr(index, part).entries()
            exact = keys.dtype != np.object_
            facts[part] = {
                "rows": self._put(rows),
                "keys": self._put(keys) if exact else None,
                "numbers": None if exact else keys.tolist(),
            }
        return facts

    def _bitmaps(self, bitmaps: Iterable[BitMap]) -> dict[str, str]:
        parts = [bitmap.serialize() for bitmap in bitmaps]
        ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
        return {"bytes": self._put(np.frombuffer(b"".join(parts), dtype=np.uint8)), "ends": self._put(ends)}

    def _put(self, array: npt.NDArray[Any]) -> str:
        name = f"a{len(self.arrays)}"
        self.arrays[name] = array
        return name


@dataclass(frozen=True, slots=True)
class _Reader:
    """Gives back what the writer collected."""

    arrays: Mapping[str, npt.NDArray[Any]]

    def node_ids(self) -> list[str]:
        text, starts = self.arrays["ids"].tobytes(), self.arrays["id_starts"].tolist()
        return [text[start:end].decode("utf-8", "surrogatepass") for start, end in pairwise(starts)]

    def field(self, facts: Mapping[str, Any]) -> tuple[str, FieldIndex]:
        present, text_rows, *postings = self._bitmaps(facts["bitmaps"])
        words = dict(zip(facts["values"], postings, strict=True))
        whole = bool(facts["whole"])
        return str(facts["name"]), FieldIndex(
            whole=whole,
            present=present,
            words=InvertedIndex(words, texts_cost(words)),
            unindexed=BitMap() if whole else text_rows,  # earlier versions wrote those of whole fields, too
            **{part: self._tree(facts[part]) for part in _ORDERED},
        )

    def _tree(self, facts: Mapping[str, Any]) -> BPlusTree:
        rows = self.arrays[facts["rows"]]
        if facts["keys"] is not None:
            return BPlusTree().insert(self.arrays[facts["keys"]], rows)
        keys = np.empty(len(rows), dtype=object)
        keys[:] = facts["numbers"]
        return BPlusTree().insert(keys, rows)

    def _bitmaps(self, facts: Mapping[str, str]) -> list[BitMap]:
        data, ends = self.arrays[facts["bytes"]].tobytes(), self.arrays[facts["ends"]].tolist()
        return [BitMap.deserialize(data[start:end]) for start, end in zip([0, *ends], ends, strict=False)]


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _identity(version: int) -> dict[str, Any]:
    return {"kind": "metadata", "format": FORMAT, "version": version}


def _read(items: Iterable[Item], *, first: int) -> tuple[list[str], dict[str, FieldValues]]:
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
    fields: dict[str, FieldValues] = {}
    for name in list(columns):
        values, rows = columns.pop(name)
        fields[name] = FieldValues.of(values, np.asarray(rows, dtype=np.uint32))
    return node_ids, fields


def _tidied(snapshot: Snapshot) -> Snapshot:
    """Renumber once most rows are gone, or most ids came after the start and so are not packed."""
    numbers, alive = snapshot.numbers, len(snapshot.alive)
    slack = max(_MIN_LOOSE, alive // 2)
    loose = len(numbers) - alive > slack or len(numbers) - numbers.packed > max(slack, numbers.packed)
    return snapshot.compact() if loose else snapshot


def _clustered(node_ids: list[str], columns: dict[str, FieldValues]) -> tuple[list[str], dict[str, FieldValues]]:
    """Number nodes anew so that those that are alike stand together, by the fields of the fewest values first.

    Their bitmaps are then of few runs, which are joined in little time (Lemire, Kaser and Aouiche 2010, "Sorting
    improves word-aligned bitmap indexes"): three clauses over 1,000,000 nodes take 0.04 ms. Without it they take
    0.25 ms, and 0.38 ms in one of twenty queries where other processes keep the machine busy, beside a target of 0.3.
    """
    size = len(node_ids)
    if size < _MIN_CLUSTERED:
        return node_ids, columns
    codes = [found for found in map(_few_codes, columns.values()) if found is not None]
    if not codes:
        return node_ids, columns
    keys = np.zeros((len(codes), size), dtype=np.uint16)
    for key, (_, rows, of_rows) in zip(keys, sorted(codes, key=lambda one: -one[0]), strict=True):
        key[rows] = of_rows + 1
    order = np.lexsort(keys)
    numbers = np.empty(size, dtype=np.uint32)
    numbers[order] = np.arange(size, dtype=np.uint32)
    columns = {name: values.renumber(numbers) for name, values in columns.items()}
    return [node_ids[row] for row in order.tolist()], columns


def _few_codes(values: FieldValues) -> tuple[int, Rows, npt.NDArray[np.integer]] | None:
    """Number the values of a field that has one in a row and few in all: how many they are, rows, numbers."""
    words, (keys, rows) = values.words, values.numbers
    few, codes = len(words.values), words.codes
    if len(rows) and not few and len(np.unique(keys[:_PROBED])) <= _MAX_CLUSTERED:
        different, codes = np.unique(keys, return_inverse=True)
        few = len(different)
    else:
        rows = words.rows
    one_in_a_row = bool((rows[1:] > rows[:-1]).all())
    return (few, rows, codes) if 0 < few <= _MAX_CLUSTERED and one_in_a_row else None


def _all_rows(size: int) -> BitMap:
    return bitmap_of(np.arange(size, dtype=np.uint32))


def _in_use(fields: Mapping[str, FieldIndex]) -> dict[str, FieldIndex]:
    return {name: index for name, index in fields.items() if index.present}


def _text_budget(nodes: int) -> int:
    """How many bytes the texts of all fields may take."""
    return max(TEXT_BYTES, TEXT_BYTES_PER_NODE * nodes)


def _within_budget(fields: dict[str, FieldIndex], nodes: int) -> dict[str, FieldIndex]:
    """Leave out the texts that take the most, until the others take no more than they may."""
    while sum(index.words.cost for index in fields.values()) > _text_budget(nodes):
        _, name = max((index.words.cost, name) for name, index in fields.items() if index.whole)
        fields[name] = fields[name].without_texts()
    return fields
