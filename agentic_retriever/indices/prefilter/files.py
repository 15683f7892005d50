"""A metadata index on disk: one sealed folder of arrays and texts, without pickle."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from pyroaring import BitMap

from agentic_retriever.errors import StoreDamagedError
from agentic_retriever.indices.prefilter.fields import FieldIndex
from agentic_retriever.indices.prefilter.inverted import InvertedIndex, bitmap_of, inverted_cost
from agentic_retriever.indices.prefilter.numbers import NodeNumbers, PackedIds
from agentic_retriever.indices.prefilter.ordered import OrderedKeys
from agentic_retriever.indices.prefilter.snapshot import Snapshot
from agentic_retriever.indices.prefilter.values import Entries
from agentic_retriever.stores.files import read_files, read_header, write_sealed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    import numpy.typing as npt

FORMAT: Final = 1
_ARRAYS: Final = "arrays.npz"
_FIELDS: Final = "fields.json"
_ORDERED: Final = ("numbers", "days", "moments")


def save_snapshot(snapshot: Snapshot, folder: Path) -> None:
    """Write a snapshot into a folder, whole or not at all.

    Args:
        snapshot: What to write.
        folder: Where to; what was there is replaced.

    Raises:
        StoreError: It cannot be written.
    """
    snapshot = snapshot.compact()
    writer = _Writer()
    packed = snapshot.numbers.packed
    writer.arrays["ids"] = np.frombuffer(packed.text, dtype=np.uint8)
    writer.arrays["id_starts"] = np.asarray(packed.starts)
    fields = [writer.field(name, index) for name, index in snapshot.fields.items()]
    buffer = io.BytesIO()
    np.savez(buffer, **writer.arrays)  # type: ignore[arg-type]  # its stub takes every keyword for allow_pickle
    files = {_ARRAYS: buffer.getvalue(), _FIELDS: json.dumps(fields).encode()}
    write_sealed(folder, {**_identity(snapshot.version), "nodes": len(snapshot.alive)}, files)


def load_snapshot(folder: Path, version: int) -> Snapshot | None:
    """Read a snapshot back, if it is there and of this version.

    Args:
        folder: Where it was saved.
        version: The index's version now.

    Returns:
        The snapshot, or ``None`` when there is none, or it is of another version or file format.

    Raises:
        StoreDamagedError: A file is missing, cut or edited; the message names it.
        StoreError: A file cannot be read.
    """
    header = read_header(folder)
    wanted = _identity(version)
    if header is None or {name: header.get(name) for name in wanted} != wanted:
        return None
    files = read_files(folder, (_ARRAYS, _FIELDS))
    try:
        with np.load(io.BytesIO(files[_ARRAYS]), allow_pickle=False) as arrays:
            reader = _Reader(dict(arrays), int(header["nodes"]))
        packed = PackedIds.read(reader.arrays["ids"].tobytes(), reader.arrays["id_starts"])
        fields = dict(reader.field(facts) for facts in json.loads(files[_FIELDS]))
    except (ValueError, KeyError, TypeError, IndexError, zipfile.BadZipFile) as err:
        raise StoreDamagedError(f"{folder} is damaged: its files cannot be read back; rebuild it") from err
    if len(packed) != reader.nodes:
        raise StoreDamagedError(f"{folder} is damaged: its files disagree with manifest.json; rebuild it")
    alive = bitmap_of(np.arange(reader.nodes, dtype=np.uint32))
    return Snapshot(version=version, numbers=NodeNumbers(packed), alive=alive, fields=fields)


@dataclass(slots=True)
class _Writer:
    """Collects arrays under short names, as field names may be anything."""

    arrays: dict[str, npt.NDArray[Any]] = field(default_factory=dict)

    def field(self, name: str, index: FieldIndex) -> dict[str, Any]:
        facts: dict[str, Any] = {"name": name, "whole": index.whole, "values": list(index.words.postings)}
        facts["bitmaps"] = self._bitmaps([index.present, index.text_rows, *index.words.postings.values()])
        for part in _ORDERED:
            keys, rows = getattr(index, part).tree.entries()
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
    """Gives them back."""

    arrays: Mapping[str, npt.NDArray[Any]]
    nodes: int

    def field(self, facts: Mapping[str, Any]) -> tuple[str, FieldIndex]:
        present, text_rows, *postings = self._bitmaps(facts["bitmaps"])
        words = dict(zip(facts["values"], postings, strict=True))
        numbers, days, moments = (self._ordered(facts[part]) for part in _ORDERED)
        return str(facts["name"]), FieldIndex(
            present=present,
            words=InvertedIndex(words, inverted_cost(words)),
            text_rows=text_rows,
            whole=bool(facts["whole"]),
            numbers=numbers,
            days=days,
            moments=moments,
        )

    def _ordered(self, facts: Mapping[str, Any]) -> OrderedKeys:
        rows = self.arrays[facts["rows"]]
        if facts["keys"] is None:
            keys = np.empty(len(rows), dtype=object)
            keys[:] = facts["numbers"]
        else:
            keys = self.arrays[facts["keys"]]
        return OrderedKeys.build(Entries(keys, rows), self.nodes)

    def _bitmaps(self, facts: Mapping[str, str]) -> Iterable[BitMap]:
        data, ends = self.arrays[facts["bytes"]].tobytes(), self.arrays[facts["ends"]].tolist()
        return [BitMap.deserialize(data[start:end]) for start, end in zip([0, *ends], ends, strict=False)]


def _identity(version: int) -> dict[str, Any]:
    return {"kind": "metadata", "format": FORMAT, "version": version}
