"""The search by words of an index: BM25 (Lucene's variant) over our own tokens, exact under any filter.

``bm25s`` computes postings only: its search knows no stop words but English ones and lets filtered-out nodes through.
"""

from __future__ import annotations

import io
import json
import logging
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import bm25s
import numpy as np
import numpy.typing as npt
from llama_index.core.schema import BaseNode

from agentic_retriever.errors import ConfigError, IndexingError, StoreDamagedError
from agentic_retriever.indices.derived import DerivedView, Progress, SilentProgress
from agentic_retriever.indices.stored_nodes import StoredNodes
from agentic_retriever.schema import check_top_k
from agentic_retriever.stores.files import read_files, read_header, write_sealed
from agentic_retriever.stores.points import searched_text
from agentic_retriever.stores.sparse import SparseBM25
from agentic_retriever.text import Tokenizer
from agentic_retriever.text.references import TITLED_RE

if TYPE_CHECKING:
    from agentic_retriever.stores.server import ServerWords  # its package takes a second to load

Floats: TypeAlias = "npt.NDArray[np.float64]"
Rows: TypeAlias = "npt.NDArray[np.int64]"
# Ids that may be returned: a collection, or a function that gives those of a batch that may.
Allowed: TypeAlias = Callable[[Sequence[str]], Collection[str]] | Collection[str]

# Importing bm25s sets its logger to DEBUG, which would then speak through any handler of the application.
logging.getLogger("bm25s").setLevel(logging.WARNING)

KEYWORD: Final = "keyword"
FORMAT = 3  # before 3, questions in references counted where they stand, and before 2 the titles of sections, too
FIRST_BATCH = 64
LARGEST_BATCH = 4_096
FITTED_ON: Final = 20_000  # most texts that are looked at to choose how words are weighed on a server
MAX_DRIFT: Final = 0.1  # share by which the average length may differ from the stored vectors' before these are remade
_ARRAYS = ("scores.npy", "rows.npy", "starts.npy")
_LISTS = ("node_ids.json", "vocabulary.json")
_ANY_TOP_K = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Postings:
    """Posting lists by column: token ``t`` has the entries ``starts[t]`` to ``starts[t + 1]``."""

    scores: npt.NDArray[np.float32]  # What the token adds to the row's score, (entries,) float32, all above 0
    rows: npt.NDArray[np.int32]  # (entries,) int32, without repetition within a token
    starts: npt.NDArray[np.int64]  # (tokens + 1,) int64

    def __post_init__(self) -> None:
        for array in (self.scores, self.rows, self.starts):
            array.setflags(write=False)

    @classmethod
    def build(cls, documents: list[list[int]], tokens: int, *, k1: float, b: float) -> Postings:
        if not tokens:  # which bm25s cannot do
            return cls(np.empty(0, np.float32), np.empty(0, np.int32), np.zeros(1, np.int64))
        model = bm25s.BM25(k1=k1, b=b, method="lucene", backend="numpy", csc_backend="numpy")
        built = model.build_index_from_ids(list(range(tokens)), documents, show_progress=False)
        scores, rows, starts = built["data"], built["indices"], built["indptr"]
        return cls(np.asarray(scores, np.float32), np.asarray(rows, np.int32), np.asarray(starts, np.int64))

    def score(self, tokens: Iterable[int], rows: int) -> tuple[Rows, Floats]:
        """Score the rows that have any of the tokens; a token that comes twice counts twice."""
        totals = np.zeros(rows, dtype=np.float64)
        for token, count in Counter(tokens).items():
            span = slice(self.starts[token], self.starts[token + 1])
            totals[self.rows[span]] += self.scores[span] * np.float64(count)
        found = np.flatnonzero(totals)
        return found, totals[found]


def best(scores: Floats, top_k: int) -> Rows:
    """Return the positions of the ``top_k`` highest scores, best first, ties by position."""
    if top_k >= len(scores):
        return np.argsort(-scores, kind="stable")
    lowest = np.partition(scores, len(scores) - top_k)[len(scores) - top_k]
    above = np.flatnonzero(scores > lowest)
    ties = np.flatnonzero(scores == lowest)[: top_k - len(above)]
    # The ties go last and are in order of position already.
    return np.concatenate((above[np.argsort(-scores[above], kind="stable")], ties))


def batches(scores: Floats, first: int) -> Iterator[Rows]:
    """Yield the positions of all scores, best first, ties by position, in growing batches."""
    yield best(scores, first)
    if first >= len(scores):
        return
    order, start, size = np.argsort(-scores, kind="stable"), first, first
    while start < len(order):
        size = min(4 * size, max(LARGEST_BATCH, first))
        yield order[start : start + size]
        start += size


@dataclass(frozen=True, eq=False, kw_only=True)
class KeywordIndex:
    """BM25 over the nodes of one index version; immutable, so that any number of threads may read it.

    Make one with :meth:`build` or :meth:`load`. Rows are in order of node id, which makes ties come out by node id.
    """

    node_ids: Sequence[str]
    vocabulary: Mapping[str, int]
    postings: Postings
    tokenizer: Tokenizer
    version: int
    k1: float
    b: float
    _row_of: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_row_of", {node_id: row for row, node_id in enumerate(self.node_ids)})

    def __len__(self) -> int:
        return len(self.node_ids)

    @classmethod
    def build(
        cls,
        items: Iterable[tuple[str, str]],
        *,
        tokenizer: Tokenizer,
        version: int,
        k1: float = 1.5,
        b: float = 0.75,
        said: Callable[[], Iterable[tuple[str, str]]] = tuple,
    ) -> KeywordIndex:
        """Index the text of each node, and what is ``said`` of some of them, which is asked once all were read."""
        if not (math.isfinite(k1) and k1 >= 0 and 0 <= b <= 1):
            raise ConfigError(f"BM25 needs k1 of 0 or more and b from 0 to 1, got k1={k1!r}, b={b!r}")
        vocabulary: dict[str, int] = {}
        documents: dict[str, list[int]] = {}
        for node_id, text in items:
            if node_id in documents:
                raise IndexingError(f"node id {node_id[:80]!r} comes twice; node ids must be unique within an index")
            documents[node_id] = [vocabulary.setdefault(token, len(vocabulary)) for token in tokenizer.tokens(text)]
        for node_id, text in said():
            documents[node_id] += [vocabulary.setdefault(token, len(vocabulary)) for token in tokenizer.tokens(text)]
        node_ids = sorted(documents)
        postings = Postings.build([documents[node_id] for node_id in node_ids], len(vocabulary), k1=k1, b=b)
        shared: dict[str, Any] = {"tokenizer": tokenizer, "version": version, "k1": k1, "b": b}
        return cls(node_ids=node_ids, vocabulary=vocabulary, postings=postings, **shared)

    def search(self, query: str, top_k: int, *, allowed: Allowed | None = None) -> list[tuple[str, float]]:
        """Return the best nodes that share a term with the query."""
        check_top_k(top_k, maximum=_ANY_TOP_K)
        rows, scores = self._score(query)
        if allowed is None:
            return self._best(rows, scores, top_k)
        return self._search_allowed(rows, scores, top_k, allowed)

    def known_share(self, query: str) -> float:
        """Tell which share of a query's terms any node has, in [0, 1], each weighed by how few have it."""
        columns = [self.vocabulary.get(term) for term in set(self.tokenizer.weighed_tokens(query))]
        starts, size = self.postings.starts, len(self)
        counts = [0 if column is None else int(starts[column + 1] - starts[column]) for column in columns]
        rarity = [math.log1p((size - count + 0.5) / (count + 0.5)) for count in counts]
        known = math.fsum(rare for rare, count in zip(rarity, counts, strict=True) if count)
        return known / math.fsum(rarity) if rarity else 0.0

    def save(self, folder: Path) -> None:
        files: dict[str, bytes] = {}
        for name in _ARRAYS:
            buffer = io.BytesIO()
            np.save(buffer, getattr(self.postings, name.removesuffix(".npy")), allow_pickle=False)
            files[name] = buffer.getvalue()
        for name, values in zip(_LISTS, (self.node_ids, tuple(self.vocabulary)), strict=True):
            files[name] = json.dumps(values).encode()
        write_sealed(folder, {**_identity(self.tokenizer, self.version), **self._shape()}, files)

    @classmethod
    def load(cls, folder: Path, *, tokenizer: Tokenizer, version: int) -> KeywordIndex | None:
        header = read_header(folder)
        if header is None or not _identity(tokenizer, version).items() <= header.items():
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
        sizes = {"nodes": len(self), "tokens": len(self.vocabulary), "entries": len(self.postings.rows)}
        return {"k1": self.k1, "b": self.b, **sizes}

    def _score(self, query: str) -> tuple[Rows, Floats]:
        known = (self.vocabulary.get(token) for token in self.tokenizer.weighed_tokens(query))
        return self.postings.score((token for token in known if token is not None), len(self))

    def _search_allowed(self, rows: Rows, scores: Floats, top_k: int, allowed: Allowed) -> list[tuple[str, float]]:
        """Go through the ranking until enough are found, or pick out the few ids there are once that is less work."""
        members = None if callable(allowed) else _as_set(allowed)
        found: list[tuple[str, float]] = []
        checked = 0
        for order in batches(scores, max(2 * top_k, FIRST_BATCH)):
            node_ids = [self.node_ids[row] for row in rows[order].tolist()]
            # Looked up in the batch, so that a function which answers with other ids cannot bring them in.
            accepted = _as_set(allowed(node_ids)) if callable(allowed) else members or frozenset()
            pairs = zip(node_ids, scores[order].tolist(), strict=True)
            found += [pair for pair in pairs if pair[0] in accepted]
            checked += len(node_ids)
            if len(found) >= top_k:
                break
            if members is not None and 2 * len(members) < len(rows) - checked:
                mask = np.zeros(len(self), dtype=np.bool_)
                mask[[row for row in map(self._row_of.get, members) if row is not None]] = True
                return self._best(rows[mask[rows]], scores[mask[rows]], top_k)
        return found[:top_k]

    def _best(self, rows: Rows, scores: Floats, top_k: int) -> list[tuple[str, float]]:
        order = best(scores, top_k)
        found = zip(rows[order].tolist(), scores[order].tolist(), strict=True)
        return [(self.node_ids[row], score) for row, score in found]


def _as_set(node_ids: Collection[str]) -> AbstractSet[str]:
    return node_ids if isinstance(node_ids, AbstractSet) else frozenset(node_ids)


def _identity(tokenizer: Tokenizer, version: int) -> dict[str, Any]:
    return {"kind": "keyword", "format": FORMAT, "version": version, "fingerprint": tokenizer.fingerprint}


# By its words alone the chunk that refers to a section by its title would be found before the one that answers it.

_SECTION_NUMBER: Final = re.compile(r"\d{1,3}(?:\.\d{1,3}){1,4}(?![\d.]*\w)")


class TitledReferences:
    """The titles that references give to numbered sections: of their own document, or of the only other that has it."""

    def __init__(self) -> None:
        self._sections: dict[str, dict[str, tuple[int, str]]] = {}  # by number and document: its first node
        self._titles: list[tuple[str, str, str, str]] = []  # number, document and node of the reference, title

    def without(self, node: BaseNode, text: str) -> str:
        """Take the references out of a node's text, and remember them."""
        doc_id, start = node.ref_doc_id or "", getattr(node, "start_char_idx", None) or 0
        number = _SECTION_NUMBER.match(str(node.metadata.get("section", "")).rpartition(" > ")[2])
        if number is not None:
            known = self._sections.setdefault(number[0], {})
            known[doc_id] = min(known.get(doc_id, (start, node.node_id)), (start, node.node_id))

        def taken(found: re.Match[str]) -> str:
            if found[1]:
                title = next(filter(None, found.groups()[1:]))
                self._titles.append((found[1], doc_id, node.node_id, " ".join(title.split())))
            return found[1] or ""

        return TITLED_RE.sub(taken, text)

    def said(self) -> Iterator[tuple[str, str]]:
        """Yield the titles with the nodes that they belong to, each once; those of no known section stay."""
        found = dict[tuple[str, str], None]()
        for number, doc_id, node_id, title in self._titles:
            known = self._sections.get(number, {})
            place = known.get(doc_id) or (next(iter(known.values())) if len(known) == 1 else None)
            found.setdefault((node_id if place is None else place[1], title))
        yield from found


def keyword_view(index: StoredNodes, language: Callable[[], str]) -> DerivedView[KeywordIndex]:
    """Return the keyword index of a stored index, saved in a folder of its own."""
    folder = index.folder / KEYWORD

    def load(version: int) -> KeywordIndex | None:
        return KeywordIndex.load(folder, tokenizer=Tokenizer(language=language()), version=version)

    def build(version: int) -> KeywordIndex:
        titles = TitledReferences()
        items = ((node.node_id, titles.without(node, searched_text(node))) for node in index.nodes())
        return KeywordIndex.build(items, tokenizer=Tokenizer(language=language()), version=version, said=titles.said)

    what = f"keyword index of index {index.name!r}"
    return DerivedView(what, index.catalog.version, load=load, build=build, write=lambda view: view.save(folder))


def server_words(index: StoredNodes) -> ServerWords | None:
    """Return the sparse vectors on the index's server, or ``None`` where its nodes are in this process."""
    if not index.is_remote:
        return None
    from agentic_retriever.stores.server import QdrantServerVectorStore  # noqa: PLC0415 - takes a second to load

    store = index.vector_store
    words = store.words if isinstance(store, QdrantServerVectorStore) else None
    held = index.catalog.row.words
    if words is not None and held is not None and held != index.words_seen:  # another process has decided anew
        words.sparse, index.words_seen = SparseBM25.from_dict(held), held
    return words


def fitted_words(index: StoredNodes) -> SparseBM25:
    return SparseBM25.fitted([searched_text(node) for node in islice(index.known_nodes(), FITTED_ON)])


def revise_words(index: StoredNodes, progress: Progress | None) -> None:
    """Make the sparse vectors on the index's server again where they no longer fit its texts."""
    words = server_words(index)
    if words is None or not index.count():
        return
    fitted, known = fitted_words(index), words.sparse
    is_alike = known is not None and (known.language, known.fingerprint) == (fitted.language, fitted.fingerprint)
    if known is not None and is_alike and abs(known.average - fitted.average) <= MAX_DRIFT * fitted.average:
        return
    progress = progress or SilentProgress()
    progress.nodes(index.count())
    words.revise(fitted, progress.nodes_done)
