"""The keyword view of an index: BM25 over our own tokens, exact under any filter."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Collection, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any

import numpy as np

from agentic_retriever.checks import check_top_k
from agentic_retriever.errors import ConfigError, IndexingError, StoreDamagedError
from agentic_retriever.indices.postings import Postings, batches, best
from agentic_retriever.indices.sealed_folder import read_files, read_header, write_sealed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    import numpy.typing as npt

    from agentic_retriever.indices.postings import Floats, Rows
    from agentic_retriever.text import Tokenizer

Allowed = Callable[[Sequence[str]], Collection[str]] | Collection[str]
"""Ids that may be returned: a collection, or a function that gives those of a batch that may."""

FORMAT = 1
FIRST_BATCH = 64
_ARRAYS = ("scores.npy", "rows.npy", "starts.npy")
_LISTS = ("node_ids.json", "vocabulary.json")
_ANY_TOP_K = 2**31 - 1


class KeywordIndex:
    """BM25 over the nodes of one index version; immutable, so that any number of threads may read it.

    Make one with :meth:`build` or :meth:`load`. Rows are in order of node id, which makes ties come out by node id.

    Attributes:
        version: Version of the index that it was built from.
        tokenizer: Cuts texts and queries alike.
        k1: Saturation of the term frequency.
        b: Strength of the length normalisation, in [0, 1].
    """

    def __init__(
        self,
        *,
        node_ids: Sequence[str],
        vocabulary: Mapping[str, int],
        postings: Postings,
        tokenizer: Tokenizer,
        version: int,
        k1: float,
        b: float,
    ) -> None:
        self.version = version
        self.tokenizer = tokenizer
        self.k1 = k1
        self.b = b
        self._node_ids = tuple(node_ids)
        self._row_of = {node_id: row for row, node_id in enumerate(self._node_ids)}
        self._vocabulary = vocabulary
        self._postings = postings

    def __len__(self) -> int:
        return len(self._node_ids)

    @classmethod
    def build(
        cls,
        items: Iterable[tuple[str, str]],
        *,
        tokenizer: Tokenizer,
        version: int,
        k1: float = 1.5,
        b: float = 0.75,
    ) -> KeywordIndex:
        """Build the view from node ids and texts, in any order.

        Args:
            items: ``(node_id, text)`` pairs; read once, so a generator will do.
            tokenizer: Cuts the texts, and later the queries.
            version: Version of the index that the items come from.
            k1: Saturation of the term frequency, 0 or more.
            b: Strength of the length normalisation, in [0, 1].

        Raises:
            ConfigError: If ``k1`` or ``b`` is out of range.
            IndexingError: If a node id comes twice.
        """
        if not (math.isfinite(k1) and k1 >= 0 and 0 <= b <= 1):
            raise ConfigError(f"BM25 needs k1 of 0 or more and b from 0 to 1, got k1={k1!r}, b={b!r}")
        vocabulary: dict[str, int] = {}
        documents: dict[str, list[int]] = {}
        for node_id, text in items:
            if node_id in documents:
                raise IndexingError(f"node id {node_id[:80]!r} comes twice; node ids must be unique within an index")
            documents[node_id] = [vocabulary.setdefault(token, len(vocabulary)) for token in tokenizer.tokens(text)]
        node_ids = sorted(documents)
        postings = Postings.build([documents[node_id] for node_id in node_ids], len(vocabulary), k1=k1, b=b)
        return cls(
            node_ids=node_ids,
            vocabulary=vocabulary,
            postings=postings,
            tokenizer=tokenizer,
            version=version,
            k1=k1,
            b=b,
        )

    def search(self, query: str, top_k: int, *, allowed: Allowed | None = None) -> list[tuple[str, float]]:
        """Return the best nodes that share a token with the query.

        Args:
            query: The question; blank or without a known token finds nothing.
            top_k: How many at most, from 1.
            allowed: Ids that may be returned; ``None`` for all. A function is given ids in batches, best first, and
                is asked only until ``top_k`` are found. The result is exact either way.

        Returns:
            ``(node_id, score)`` by falling score, then by id; all scores above 0.

        Raises:
            InvalidQueryError: If ``top_k`` is no positive int.
        """
        check_top_k(top_k, maximum=_ANY_TOP_K)
        rows, scores = self._score(query)
        if allowed is None:
            order = best(scores, top_k)
            return self._named(rows[order], scores[order])
        return self._search_allowed(rows, scores, top_k, allowed)

    def save(self, folder: Path) -> None:
        """Write the view into a folder, whole or not at all.

        Raises:
            StoreError: If it cannot be written.
        """
        parts = self._postings
        arrays: tuple[npt.NDArray[Any], ...] = (parts.scores, parts.rows, parts.starts)
        files = {name: _array_bytes(array) for name, array in zip(_ARRAYS, arrays, strict=True)}
        for name, values in zip(_LISTS, (self._node_ids, tuple(self._vocabulary)), strict=True):
            files[name] = json.dumps(values).encode()
        write_sealed(folder, {**_identity(self.tokenizer, self.version), **self._shape()}, files)

    @classmethod
    def load(cls, folder: Path, *, tokenizer: Tokenizer, version: int) -> KeywordIndex | None:
        """Read a view back, if it is there and still fits.

        Args:
            folder: Where it was saved.
            tokenizer: The tokenizer in use now.
            version: The index's version now.

        Returns:
            The view, or ``None`` when there is none, or it is of another version, tokenizer or file format.

        Raises:
            StoreDamagedError: If a file is missing, cut or edited; the message names it.
            StoreError: If a file cannot be read.
        """
        header = read_header(folder)
        wanted = _identity(tokenizer, version)
        if header is None or {name: header.get(name) for name in wanted} != wanted:
            return None
        files = read_files(folder, (*_ARRAYS, *_LISTS))
        try:
            scores, rows, starts = (np.load(io.BytesIO(files[name]), allow_pickle=False) for name in _ARRAYS)
            node_ids, tokens = (json.loads(files[name]) for name in _LISTS)
            index = cls(
                node_ids=node_ids,
                vocabulary={token: i for i, token in enumerate(tokens)},
                postings=Postings(scores, rows, starts),
                tokenizer=tokenizer,
                version=version,
                k1=float(header["k1"]),
                b=float(header["b"]),
            )
        except (ValueError, KeyError, TypeError) as err:
            raise StoreDamagedError(f"{folder} is damaged: its files cannot be read back; rebuild it") from err
        if any(header.get(name) != value for name, value in index._shape().items()):
            raise StoreDamagedError(f"{folder} is damaged: its files disagree with manifest.json; rebuild it")
        return index

    def _shape(self) -> dict[str, Any]:
        return {
            "k1": self.k1,
            "b": self.b,
            "nodes": len(self._node_ids),
            "tokens": len(self._vocabulary),
            "entries": len(self._postings.rows),
        }

    def _score(self, query: str) -> tuple[Rows, Floats]:
        known = (self._vocabulary.get(token) for token in self.tokenizer.query_tokens(query))
        return self._postings.score((token for token in known if token is not None), len(self))

    def _search_allowed(self, rows: Rows, scores: Floats, top_k: int, allowed: Allowed) -> list[tuple[str, float]]:
        """Go through the ranking until enough are found, or pick out the few ids there are once that is less work."""
        members = None if callable(allowed) else _as_set(allowed)
        found: list[tuple[str, float]] = []
        checked = 0
        for order in batches(scores, max(2 * top_k, FIRST_BATCH)):
            node_ids = [self._node_ids[row] for row in rows[order].tolist()]
            # Looked up in the batch, so that a function which answers with other ids cannot bring them in.
            accepted = _as_set(allowed(node_ids)) if callable(allowed) else members or frozenset()
            pairs = zip(node_ids, scores[order].tolist(), strict=True)
            found += [pair for pair in pairs if pair[0] in accepted]
            checked += len(node_ids)
            if len(found) >= top_k:
                break
            if members is not None and 2 * len(members) < len(rows) - checked:
                return self._search_members(rows, scores, top_k, members)
        return found[:top_k]

    def _search_members(
        self, rows: Rows, scores: Floats, top_k: int, members: AbstractSet[str]
    ) -> list[tuple[str, float]]:
        mask = np.zeros(len(self), dtype=np.bool_)
        mask[[row for row in map(self._row_of.get, members) if row is not None]] = True
        keep = mask[rows]
        rows, scores = rows[keep], scores[keep]
        order = best(scores, top_k)
        return self._named(rows[order], scores[order])

    def _named(self, rows: Rows, scores: Floats) -> list[tuple[str, float]]:
        return [(self._node_ids[row], score) for row, score in zip(rows.tolist(), scores.tolist(), strict=True)]


def _as_set(node_ids: Collection[str]) -> AbstractSet[str]:
    return node_ids if isinstance(node_ids, AbstractSet) else frozenset(node_ids)


def _identity(tokenizer: Tokenizer, version: int) -> dict[str, Any]:
    return {"kind": "keyword", "format": FORMAT, "version": version, "fingerprint": tokenizer.fingerprint}


def _array_bytes(array: npt.NDArray[Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()
