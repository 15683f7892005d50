"""Dense numbers for node ids, and the way back, in about as many bytes as the ids have characters."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt


@dataclass(frozen=True, slots=True, eq=False)
class PackedIds:
    """Many ids in one run of bytes, numbered from 0, with a hash table over them.

    Attributes:
        text: The ids in UTF-8, one after another.
        starts: ``(n + 1,)`` where each begins.
        bucket_starts: Where each bucket of the hash table begins in ``bucket_rows``.
        bucket_rows: ``(n,)`` the numbers of the ids in each bucket.
    """

    text: bytes
    starts: memoryview
    bucket_starts: memoryview
    bucket_rows: memoryview

    @classmethod
    def of(cls, ids: Sequence[str]) -> PackedIds:
        """Pack ids.

        Args:
            ids: Any strings.

        Returns:
            The packed ids; the first has number 0.
        """
        joined = "".join(ids)
        text = _encode(joined)
        # Where every character is one byte, as in most ids, the ids need not be encoded one by one.
        sizes = map(len, ids) if len(text) == len(joined) else (len(_encode(node_id)) for node_id in ids)
        starts = np.zeros(len(ids) + 1, dtype=np.int64)
        np.cumsum(np.fromiter(sizes, dtype=np.int64, count=len(ids)), out=starts[1:])
        return cls._with_buckets(text, _small(starts), ids)

    @classmethod
    def read(cls, text: bytes, starts: npt.NDArray[np.integer]) -> PackedIds:
        """Take ids as they were saved.

        Args:
            text: The ids in UTF-8, one after another.
            starts: ``(n + 1,)`` where each begins.

        Returns:
            The packed ids.

        Raises:
            ValueError: The two do not fit.
        """
        places = starts.tolist()
        if not places or places[0] != 0 or places[-1] != len(text) or (np.diff(starts.astype(np.int64)) < 0).any():
            message = "the node ids and where they begin do not fit"
            raise ValueError(message)
        ids = [_decode(text[start:end]) for start, end in pairwise(places)]
        return cls._with_buckets(text, _small(starts), ids)

    @classmethod
    def _with_buckets(cls, text: bytes, starts: npt.NDArray[np.integer], ids: Sequence[str]) -> PackedIds:
        buckets = max(1, len(ids))
        # Python's own hash is salted per process, so nobody can choose ids that all fall into one bucket.
        hashes = np.fromiter(map(hash, ids), dtype=np.int64, count=len(ids)) % buckets
        order = np.argsort(hashes, kind="stable").astype(np.uint32)
        ends = np.zeros(buckets + 1, dtype=np.uint32)
        np.cumsum(np.bincount(hashes, minlength=buckets), out=ends[1:])
        return cls(text, starts.data, ends.data, order.data)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, number: int) -> str:
        return _decode(self.text[self.starts[number] : self.starts[number + 1]])

    def find(self, node_id: str) -> list[int]:
        """Return every number that an id has."""
        bucket = hash(node_id) % (len(self.bucket_starts) - 1)
        start, end = self.bucket_starts[bucket], self.bucket_starts[bucket + 1]
        return [number for number in self.bucket_rows[start:end] if self[number] == node_id]


@dataclass(frozen=True, slots=True, eq=False)
class NodeNumbers:
    """Numbers of node ids. Numbers are only ever given, never taken back, so that readers of any age may share it.

    A node that was updated has a new number, and its old ones as well: at any time one of them at most is in use.

    Attributes:
        packed: The ids that were there from the start.
        added: The ids that came later; the first has the number ``len(packed)``.
        numbers: Their numbers.
    """

    packed: PackedIds
    added: list[str] = field(default_factory=list)
    numbers: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.packed) + len(self.added)

    def __getitem__(self, number: int) -> str:
        first_added = len(self.packed)
        return self.packed[number] if number < first_added else self.added[number - first_added]

    def find(self, node_id: str) -> Sequence[int]:
        """Return every number that an id ever had."""
        later = self.numbers.get(node_id, ())
        return (*self.packed.find(node_id), *later) if len(self.packed) else later

    def append(self, node_ids: Iterable[str]) -> int:
        """Number more ids; to be called by one thread at a time.

        Args:
            node_ids: The ids, in the order of their numbers.

        Returns:
            The first of the new numbers.
        """
        first = number = len(self)
        for node_id in node_ids:
            self.added.append(node_id)
            self.numbers[node_id] = (*self.numbers.get(node_id, ()), number)
            number += 1
        return first


def _encode(node_id: str) -> bytes:
    return node_id.encode("utf-8", "surrogatepass")


def _decode(text: bytes) -> str:
    return text.decode("utf-8", "surrogatepass")


def _small(starts: npt.NDArray[np.integer]) -> npt.NDArray[np.integer]:
    return starts.astype(np.uint32 if int(starts[-1]) < 2**32 else np.int64)
