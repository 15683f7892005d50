"""From retrieved nodes to numbered passages, without repetition and within a limit."""

import threading
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, Final

from llama_index.core.schema import MetadataMode, NodeWithScore
from numpy.typing import NDArray
from rapidfuzz import fuzz

from agentic_retriever import schema
from agentic_retriever.indices.profile import IndexProfile
from agentic_retriever.ingestion.chunking import section_starts
from agentic_retriever.llm.calls import ReplyStream
from agentic_retriever.text import split_sentences
from agentic_retriever.text.numbers import numbers_in

NO_INDEXES: Final[Mapping[str, str]] = schema.frozen({})
MAX_PASSAGES: Final = {schema.Complexity.SIMPLE: 5, schema.Complexity.COMPLEX: 10}  # most that a model reads
_MIN_CUT_CHARS = 200
_NEAR_DUPLICATE = 92
_MAX_COMPARED = 50
_TITLE_KEYS = ("title", "file_name", "filename")
_SECTION_KEYS = ("section", "section_path", "header_path", "heading")
_SOURCE_KEYS = ("url", "source_url", "source", "file_path", "file_name")
_PAGE_KEYS = ("page", "page_number", "page_label")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextPassage:
    number: int
    node: NodeWithScore
    doc_id: str
    text: str
    offset: int
    title: str
    section: str
    page: int | None  # Page number from 1, or None
    page_starts: tuple[tuple[int, int], ...] = ()  # number and first offset of each page, where it lies on several
    section_starts: tuple[tuple[int, str], ...] = ()  # where sections begin in the text, and their paths
    table_header: str = ""  # Head of the table that the text begins inside of

    @property
    def header(self) -> str:
        return self._header(self.section)

    def header_at(self, start: int) -> str:
        """Title, section and page of what begins at a place of the text."""
        return self._header(self.section_at(start))

    def section_at(self, start: int) -> str:
        at = bisect_right(self.section_starts, start, key=itemgetter(0))
        return self.section_starts[at - 1][1] if at else self.section

    def _header(self, section: str) -> str:
        page = schema.pages_text(self._pages(self.offset, self.offset + len(self.text)))
        return " · ".join(" ".join(part.split()) for part in (self.title, section, page) if part.strip())

    @property
    def shown(self) -> str:
        """The text as a model reads it: rows of a table below their head."""
        return f"{self.table_header}\n{self.text}" if self.table_header else self.text

    @property
    def node_id(self) -> str:
        return self.node.node.node_id

    def _pages(self, start: int, end: int) -> tuple[int, ...]:
        if not self.page_starts:
            return () if self.page is None else (self.page,)
        first = max((at for _, at in self.page_starts if at <= start), default=0)
        return tuple(number for number, at in self.page_starts if first <= at < end)

    def cite(self, start: int, end: int, score: float, *, number: int = 0, index: str = "") -> schema.Citation:
        """Make the citation of a stretch of the text; number and index may be filled in later."""
        pages = self._pages(self.offset + start, self.offset + end)
        return schema.Citation(
            number=number,
            doc_id=self.doc_id,
            node_id=self.node_id,
            start=self.offset + start,
            end=self.offset + end,
            quote=self.text[start:end],
            score=score,
            index=index,
            title=self.title,
            section=self.section_at(start),
            page=pages[0] if pages else None,
            pages=pages,
            article=_text_of(self.node.node.metadata, ("article",)),
            source=_text_of(self.node.node.metadata, _SOURCE_KEYS),
        )


def assemble(
    nodes: Sequence[NodeWithScore], *, max_chars: int, max_passages: int | None = None
) -> tuple[ContextPassage, ...]:
    """Turn nodes into passages, best first, as many as there is room for.

    A node that repeats another one's text or lies inside its span is dropped, and the larger one takes the better rank
    of both; so is one that is nearly the same as a better one, with the same numbers. The last passage is cut at a
    sentence when it does not fit and 200 characters or more of it do; what ranks lower is left out.
    """
    kept: list[ContextPassage] = []
    for node in nodes:
        passage = _passage(node)
        if passage is not None:
            _merge(kept, passage)
    kept = _without_near_duplicates(kept)[: None if max_passages is None else max(1, max_passages)]
    fitting: list[ContextPassage] = []
    room = max_chars
    for passage in kept:
        fitted = _fit(passage, room, first=not fitting)
        if fitted is None:
            break
        fitting.append(replace(fitted, number=len(fitting) + 1))
        room -= len(fitted.header) + len(fitted.shown)
        if len(fitted.text) < len(passage.text):
            break
    return tuple(fitting)


def _passage(node: NodeWithScore) -> ContextPassage | None:
    inner = node.node
    text = inner.get_content(metadata_mode=MetadataMode.NONE)
    if not text.strip():
        return None
    start: Any = getattr(inner, "start_char_idx", None)
    end: Any = getattr(inner, "end_char_idx", None)
    placed = isinstance(start, int) and isinstance(end, int) and start >= 0 and end - start == len(text)
    # Readers of PDF files write the page label as text.
    labels = [inner.metadata.get(key) for key in _PAGE_KEYS]
    pages = [int(one) if isinstance(one, str) and one.isdecimal() and len(one) <= 6 else one for one in labels]
    return ContextPassage(
        number=1,
        node=node,
        doc_id=inner.ref_doc_id or inner.node_id,
        text=text,
        offset=start if placed else 0,
        title=_text_of(inner.metadata, _TITLE_KEYS),
        section=_text_of(inner.metadata, _SECTION_KEYS),
        section_starts=section_starts(inner.metadata),
        table_header=_text_of(inner.metadata, ("table_header",)),
        page=next((one for one in pages if isinstance(one, int) and not isinstance(one, bool) and one >= 1), None),
        page_starts=_page_starts(inner.metadata) if placed else (),
    )


def _page_starts(metadata: Mapping[str, object]) -> tuple[tuple[int, int], ...]:
    numbers, starts = metadata.get("page_numbers"), metadata.get("page_starts")
    if not isinstance(numbers, list) or not isinstance(starts, list) or len(numbers) != len(starts):
        return ()
    whole = all(isinstance(one, int) for one in [*numbers, *starts])
    return tuple(zip(numbers, starts, strict=True)) if whole else ()


def _text_of(metadata: Mapping[str, object], keys: Sequence[str]) -> str:
    for value in map(metadata.get, keys):
        if isinstance(value, str) and value.strip():
            return value.strip()
        if isinstance(value, (list, tuple)) and value:
            return " > ".join(str(part) for part in value)
    return ""


def _merge(kept: list[ContextPassage], new: ContextPassage) -> None:
    """Put a passage behind those that are kept, unless one of them says it already; replace those that it says."""
    if any(_contains(old, new) for old in kept):
        return
    at = next((i for i, old in enumerate(kept) if _contains(new, old)), len(kept))
    kept[at:] = [new, *(old for old in kept[at:] if not _contains(new, old))]


def _contains(outer: ContextPassage, inner: ContextPassage) -> bool:
    if outer.text.strip() == inner.text.strip():
        return True
    return outer.doc_id == inner.doc_id and len(inner.text) < len(outer.text) and inner.text.strip() in outer.text


def _without_near_duplicates(passages: Sequence[ContextPassage]) -> list[ContextPassage]:
    """Leave out what differs from a better passage in a few characters only; in a number they contradict each other."""
    kept: list[ContextPassage] = []
    seen: dict[frozenset[str], list[str]] = {}
    for passage in passages:
        same_numbers = seen.setdefault(numbers_in(passage.text), [])
        if any(fuzz.ratio(passage.text, text, score_cutoff=_NEAR_DUPLICATE) for text in same_numbers[:_MAX_COMPARED]):
            continue
        kept.append(passage)
        same_numbers.append(passage.text)
    return kept


def _fit(passage: ContextPassage, room: int, *, first: bool) -> ContextPassage | None:
    room -= len(passage.header) + len(passage.shown) - len(passage.text)
    if len(passage.text) <= room:
        return passage
    if first:
        # Something must be left to answer from, however little room there is.
        room = max(room, min(_MIN_CUT_CHARS, len(passage.text)))
    elif room < _MIN_CUT_CHARS:
        return None
    ends = [sentence.end for sentence in split_sentences(passage.text[:room])[:-1]]
    cut = ends[-1] if ends and ends[-1] >= room // 2 else room
    return replace(passage, text=passage.text[:cut])


# --- what synthesis is given besides the nodes, and what it gives back ----------------------------------------------


class StreamControl:
    """Lets another thread end a streamed answer while its reader waits for the next piece."""

    def __init__(self) -> None:
        self.nodes: tuple[NodeWithScore, ...] = ()
        self.route: schema.RouteDecision | None = None
        self._lock = threading.RLock()
        self._open: ReplyStream | None = None
        self.cancelled = False

    def watch(self, stream: ReplyStream) -> None:
        """Set what is to be closed; closed at once if the answer was given up already."""
        with self._lock:
            self._open = stream
            if self.cancelled:
                stream.close()

    def found(self, nodes: tuple[NodeWithScore, ...], route: schema.RouteDecision) -> None:
        self.nodes, self.route = nodes, route

    def cancel(self) -> None:
        with self._lock:
            self.cancelled = True
            if self._open is not None:
                self._open.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What retrieval knows about the question besides the nodes."""

    query_vector: Sequence[float] | NDArray[Any] | None = None
    profile: IndexProfile | None = None  # of the index that was searched, or of the first one of several
    unrelated: NDArray[Any] | None = None  # vectors of questions that hardly any document answers, (n, dimension)
    cosines: Mapping[str, float] = field(default_factory=dict)  # of the question with the nodes, by their ids
    by_words: Mapping[str, float] = field(default_factory=dict)  # BM25 scores of the nodes that it found
    looked_up: frozenset[str] = frozenset()  # ids of the nodes that the question names by the number of their part
    settled: tuple[str, ...] = ()  # the words of the question that conditions say, which all nodes satisfy
    expanded: tuple[str, ...] = ()  # terms of the question of which other forms were searched, too

    def left_of(self, query: str) -> str:
        """What a question asks beside its conditions: their words are neither sought in the passages nor missed."""
        for words in self.settled:
            query = query.replace(words, " ")
        return query


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    max_chars: int = 16_000  # Most source text in a prompt, in characters
    max_passages: int | None = None  # Most passages in a prompt, or None for 5, and 10 for a complex question
    budget: schema.Budget = schema.NO_LIMITS
    force_cloud: bool = False
    timeout_s: float | None = None  # Seconds from now until a model must be done, or None for its own limit
    control: StreamControl | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Synthesis:
    """An answer before the router puts its record around it."""

    text: str
    tier: schema.Tier  # Who wrote it; NONE for the message that nothing was found
    confidence: schema.Confidence
    language: str  # ISO 639-1 code of the question
    citations: tuple[schema.Citation, ...] = ()
    usage: schema.Usage = field(
        default_factory=schema.Usage
    )  # Failed calls included; their tokens are not known and count 0
    degraded: tuple[schema.Degradation, ...] = ()
    llm_ms: float = 0.0  # Milliseconds spent on the model
    nodes_left_out: int = 0
    checks: tuple[schema.SentenceCheck, ...] = ()
    attempts: tuple[schema.Attempt, ...] = ()
