"""Views of an index: each derived from its version, and made again when that has moved or what was saved is damaged.

Before a collection is touched, the documents concerned are marked in the catalog, so a kill leaves nothing unknown.
"""

import hashlib
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from llama_index.core.schema import BaseNode, MetadataMode, NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores.types import BasePydanticVectorStore, MetadataFilters, VectorStoreQuery

from agentic_retriever import errors
from agentic_retriever.filters import is_empty
from agentic_retriever.indices.stored_nodes import LEAVES, SUMMARIES, StoredNodes
from agentic_retriever.ingestion.chunking import count_tokens, leaf_nodes
from agentic_retriever.llm import without_thoughts
from agentic_retriever.llm.prompts import summary_prompt
from agentic_retriever.stores.edge import found_facts
from agentic_retriever.stores.node_store import NodeStore
from agentic_retriever.stores.points import KnownPoints
from agentic_retriever.text import Tokenizer, detect_language
from agentic_retriever.text.references import without_titles
from agentic_retriever.text.sentences import central_sentences

logger = logging.getLogger(__name__)

BATCH_NODES: Final = 64  # nodes of a collection that are embedded and written together
SAVED_EVERY: Final = 2_000  # nodes after which the state is saved, so that a crash loses no more work than that
INCOMPLETE: Final = -1  # the version of a collection while it is being brought up to date
CLOSING_PATIENCE_S: Final = 5.0
_FORMAT: Final = 1

V = TypeVar("V")


class Progress(Protocol):
    """Hears how far indexing is; every method may be called often and must return at once."""

    def files(self, total: int) -> None:
        """So many files will be read."""

    def file_done(self, path: str) -> None:
        """One file was read."""

    def nodes(self, found: int) -> None:
        """So many more nodes are to be embedded."""

    def nodes_done(self, done: int) -> None:
        """So many more nodes have their vectors."""


class SilentProgress:
    def files(self, total: int) -> None: ...
    def file_done(self, path: str) -> None: ...
    def nodes(self, found: int) -> None: ...
    def nodes_done(self, done: int) -> None: ...


class Watcher(Protocol):
    """Hears how far a long step is: what begins or goes on and its number of parts, and how many more are done."""

    def begin(self, what: str, total: int) -> None: ...
    def advance(self, done: int) -> None: ...


class SilentWatcher:
    def begin(self, what: str, total: int) -> None: ...
    def advance(self, done: int) -> None: ...


SILENT: Final[Watcher] = SilentWatcher()


@dataclass(eq=False, repr=False)
class DerivedView(Generic[V]):
    """A view made as a whole: the one in memory, else the saved one, else a new one. Safe to use from many threads."""

    what: str
    index_version: Callable[[], int]
    load: Callable[[int], V | None]
    build: Callable[[int], V]
    write: Callable[[V], None]

    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        self._view: V | None = None
        self.version = self._missing = INCOMPLETE  # of the view in memory
        self._unsaved = False

    def ready(self) -> V | None:
        """Return the view of the index's current version if it need not be built; queries take no other."""
        version = self.index_version()
        if self.version == version:
            return self._view
        with self._lock:
            if version not in {self.version, self._missing}:
                try:
                    view = self.load(version)
                except errors.StoreDamagedError as err:
                    logger.warning("%s; the %s has to be built again", err, self.what)
                    view = None
                if view is None:
                    self._missing = version
                else:
                    self._view, self.version = view, version
            return self._view if self.version == version else None

    def current(self) -> V:
        """Return the view of the index's current version, built now if there is none."""
        with self._lock:
            view = self.ready()
            if view is None:
                version = self.index_version()
                self.take(view := self.build(version), version)
            return view

    def take(self, view: V, version: int) -> None:
        """Take over a view that somebody has built for a version."""
        with self._lock:
            self._view, self.version, self._unsaved = view, version, True
            self.save()

    @property
    def last(self) -> V | None:
        """The view in memory, of whatever version."""
        return self._view

    def save(self) -> None:
        """Save what has changed; a disk that refuses costs no more than building it again next time."""
        with self._lock:
            if self._view is None or not self._unsaved:
                return
            try:
                self.write(self._view)
                self._unsaved = False
            except errors.StoreError as err:
                logger.warning("the %s could not be saved (%s); it is built again next time", self.what, err)


def not_built(what: str, name: str) -> errors.StoreError:
    return errors.StoreError(
        f"the {what} of index {name!r} are not built for its present state; if nothing is building them now, run: "
        f"agentic-retriever index build {name}"
    )


class DocumentState(NamedTuple):
    """What a collection holds of one document, under the names that the catalog has."""

    hash: str  # of its content; empty while that is to be done again
    ids: Sequence[str]
    facts: Mapping[str, Any]


class ViewState(NamedTuple):
    """What a collection holds."""

    version: int
    documents: Mapping[str, DocumentState]


# What a collection gets of one document: nodes with ids that stay the same, and facts in plain JSON types.
Derived: TypeAlias = tuple[Sequence[TextNode], Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Derivation:
    """How the nodes of a collection are made of a document's chunks, and which are to be made again."""

    derive: Callable[[str, Sequence[TextNode]], Derived]
    is_outdated: Callable[[Mapping[str, Any]], bool] = lambda _facts: False
    batch_nodes: int = BATCH_NODES

    def differs(self, known: DocumentState | None, content_hash: str) -> bool:
        # A document without a hash is being written; whether it is as before cannot be told.
        return known is None or known.hash != content_hash or not content_hash or self.is_outdated(known.facts)


@dataclass(eq=False, repr=False)
class DerivedCollection(Generic[V]):
    """A view with nodes of its own; safe to use from many threads, of which one builds while the others wait."""

    _index: StoredNodes
    name: str
    _derivation: Derivation
    _view_of: Callable[[NodeStore, ViewState], V]
    _made_with: str

    def __post_init__(self) -> None:
        self._building = threading.RLock()
        self._opening = threading.Lock()
        self._store: NodeStore | None = None
        self._state: ViewState | None = None
        self._view: tuple[ViewState, V] | None = None
        self._saved_version: int | None = None
        self._closed = False

    @property
    def store(self) -> NodeStore:
        """The collection, opened with its first use; one that is damaged is made anew."""
        with self._opening:
            if self._store is None:
                self._check_open()  # a build under way may still write down what it has
                opening = partial(self._index.stores.open, self.name, self._index.manifest.dimension)
                try:
                    self._store = opening()
                except errors.StoreDamagedError as err:
                    logger.warning("%s; making the %s of index %r again", err, self.name, self._index.name)
                    self._index.stores.discard(self.name)
                    self._store = opening()
            return self._store

    def is_usable(self) -> bool:
        """Tell whether a query may use it: no query builds it."""
        return self._built_version() == self._index.version

    def current(self) -> V:
        """Return the view, read from the disk where it is not in memory."""
        state = self._state
        if state is None or state.version != self._index.version:
            state = self._read_back() if self.is_usable() else None
            if state is None:
                raise not_built(self.name, self._index.name)
        known = self._view
        if known is None or known[0] is not state:
            known = self._view = state, self._view_of(self.store, state)
        return known[1]

    def refresh(self, progress: Progress | None = None, *, derivation: Derivation | None = None) -> ViewState:
        with self._building, self._index.exclusive(self.name):
            try:
                version = self._index.version
                state = self._known() or self._recovered()
                if state.version != version or derivation is not None:
                    state = self._updated(state, version, progress or SilentProgress(), derivation or self._derivation)
                self._state = state
                return state
            finally:
                if self._closed:
                    self._close_store()

    def _read_back(self) -> ViewState | None:
        """Return the saved state if what is stored agrees with it; else it has to be built again."""
        with self._building, self._index.exclusive(self.name):
            state = self._known() or self._recovered()
            is_whole = state.version == self._index.version
            self._state, self._saved_version = (state, state.version) if is_whole else (None, INCOMPLETE)
            return self._state

    def close(self) -> None:
        """Close the files; a build under way stops after its batch."""
        self._closed = True
        if self._building.acquire(timeout=CLOSING_PATIENCE_S):
            try:
                self._close_store()
            finally:
                self._building.release()

    def _close_store(self) -> None:
        with self._opening:
            if self._store is not None:
                self._store.close()
            self._store = None

    def _check_open(self) -> None:
        if self._closed:
            raise errors.StoreClosedError(f"index {self._index.name!r} is closed; open it again")

    def _known(self) -> ViewState | None:
        """Return the state in memory, unless another process may have brought the view further than this one knows."""
        state = self._state
        is_old = state is not None and self._index.is_remote and state.version != self._index.version
        return None if is_old else state

    def _built_version(self) -> int:
        known = self._known()
        if known is not None:
            return known.version
        if self._saved_version is None or self._index.is_remote:
            try:
                found = self._version_kept()
            except errors.StoreError as err:  # whoever uses the view will be told
                logger.warning("%s", err)
                found = None
            self._saved_version = INCOMPLETE if found is None else found
        return self._saved_version

    def _version_kept(self) -> int | None:
        """Return the version of the saved state without reading it, or ``None`` where there is none to use."""
        header = self._index.catalog.row.views.get(self.name, {})
        if (header.get("format"), header.get("made_with")) != (_FORMAT, self._made_with):
            return None
        return int(header["version"])

    def _load(self) -> ViewState:
        """Read the state back; empty where there is none, or it was made with something else."""
        version, catalog = self._version_kept(), self._index.catalog
        saved = None if version is None else catalog.indexes.view(catalog.row, self.name)
        if version is None or saved is None:
            return ViewState(INCOMPLETE, {})
        return ViewState(version, {doc_id: DocumentState(**known) for doc_id, known in saved.items()})

    def _save(self, state: ViewState) -> None:
        documents = {doc_id: known._asdict() for doc_id, known in state.documents.items()}
        header = {"format": _FORMAT, "version": state.version, "made_with": self._made_with}
        catalog = self._index.catalog
        catalog.indexes.save_view(catalog.row, self.name, header, documents)

    def _recovered(self) -> ViewState:
        """Read the saved state and hold it against what is stored; only what agrees counts as done."""
        state = self._load()
        expected = {node_id for document in state.documents.values() for node_id in document.ids}
        if state.version != INCOMPLETE and self.store.count() == len(expected):
            return state
        present = set(self.store.node_ids())
        documents = state.documents.items()
        kept = {i: d if present.issuperset(d.ids) else d._replace(hash="") for i, d in documents}
        if state.version != INCOMPLETE:
            self._save(ViewState(INCOMPLETE, kept))  # or what is left could look whole the next time
        orphans = sorted(present - expected)
        if orphans:
            self.store.delete_nodes(node_ids=orphans)
        return ViewState(INCOMPLETE, kept)

    def _updated(self, state: ViewState, version: int, progress: Progress, derivation: Derivation) -> ViewState:
        """Make what differs between the index and the collection the same."""
        documents = dict(state.documents)
        wanted = self._index.catalog.hashes()
        gone = [doc_id for doc_id in documents if doc_id not in wanted]
        changed = [doc_id for doc_id, digest in wanted.items() if derivation.differs(documents.get(doc_id), digest)]
        if gone or changed:
            self._state = None  # until it is whole again
            for doc_id in documents.keys() & {*gone, *changed}:
                documents[doc_id] = documents[doc_id]._replace(hash="")
            self._save(ViewState(INCOMPLETE, documents))
            try:
                for doc_id in gone:
                    self._delete(documents[doc_id].ids)
                    del documents[doc_id]
                self._write(documents, changed, derivation, progress)
            except BaseException:
                with suppress(errors.StoreError):  # the first error is the one to tell
                    self._save(ViewState(INCOMPLETE, documents))
                raise
        state = ViewState(version, documents)
        try:
            self.store.flush()
            self._save(state)
        except errors.StoreError as err:
            self._check_open()  # what is closed meanwhile is no fault to tell of
            what = "the state of the %s could not be saved (%s); they are checked again next time"
            logger.warning(what, self.name, err)
        return state

    def _write(
        self, documents: dict[str, DocumentState], changed: Sequence[str], derivation: Derivation, progress: Progress
    ) -> None:
        batch: dict[str, tuple[str, Derived]] = {}
        waiting = unsaved = 0
        for doc_id in changed:
            self._check_open()
            content_hash, chunks = self._chunks(doc_id)
            derived = derivation.derive(doc_id, chunks)
            batch[doc_id] = content_hash, derived
            waiting += len(derived[0])
            progress.nodes(len(derived[0]))
            if waiting >= derivation.batch_nodes:
                self._flush(documents, batch, progress)
                unsaved, waiting, batch = unsaved + waiting, 0, {}
            if unsaved >= SAVED_EVERY:
                self._save(ViewState(INCOMPLETE, documents))
                unsaved = 0
        self._flush(documents, batch, progress)

    def _chunks(self, doc_id: str) -> tuple[str, list[TextNode]]:
        """Read a document's chunks in order, and the hash of its content, ``""`` while that is changing."""
        catalog = self._index.catalog
        before = catalog.get(doc_id)
        node_ids = catalog.node_ids(doc_id)
        nodes = self._index.vector_store.get_nodes(node_ids=node_ids) if node_ids else []
        after = catalog.get(doc_id)
        is_settled = before is not None and after is not None and before.content_hash == after.content_hash
        texts = [node for node in nodes if isinstance(node, TextNode)]
        # By their place in the source, as far as they know it.
        texts.sort(key=lambda node: (node.start_char_idx or 0, node.node_id))
        return (before.content_hash if before is not None and is_settled else ""), texts

    def _flush(
        self, documents: dict[str, DocumentState], batch: Mapping[str, tuple[str, Derived]], progress: Progress
    ) -> None:
        """Write a batch: new nodes, removal of old ones, what is now held; each step can be done twice."""
        nodes = [node for _, (derived, _facts) in batch.values() for node in derived]
        if nodes:
            texts = [without_titles(node.get_content(metadata_mode=MetadataMode.EMBED)) for node in nodes]
            vectors, _ = self._index.embedding.embed_passages(texts, on_progress=progress.nodes_done)
            pairs = zip(nodes, vectors, strict=True)
            self.store.add([node.model_copy(update={"embedding": vector.tolist()}) for node, vector in pairs])
        new = {node.node_id for node in nodes}
        self._delete([i for doc_id in batch if doc_id in documents for i in documents[doc_id].ids if i not in new])
        for doc_id, (content_hash, (derived, facts)) in batch.items():
            documents[doc_id] = DocumentState(content_hash, [node.node_id for node in derived], facts)

    def _delete(self, node_ids: Sequence[str]) -> None:
        if node_ids:
            self.store.delete_nodes(node_ids=list(node_ids))


# The hierarchy of an index: leaves below its chunks, and where the numbered parts of its documents are.

LEAVES_FORMAT: Final = 1  # raised whenever the same chunks would give other leaves or outlines than before
_NUMBERS: Final = {"sections": "section_number", "articles": "article_number"}


class LeafHit(NamedTuple):
    """A leaf that was found; all but its score stay as long as its chunk does."""

    leaf_id: str
    chunk_id: str
    start: int  # Where the leaf begins in the chunk's text, in characters
    end: int
    siblings: int
    score: float


_Place: TypeAlias = tuple[str, str, int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    title: str
    sections: Mapping[str, Sequence[str]]
    articles: Mapping[str, Sequence[str]]


class HierarchyView:
    """Leaves to search, and outlines to look numbered parts up in. Safe to use from many threads."""

    def __init__(self, store: BasePydanticVectorStore, outlines: Mapping[str, Outline]) -> None:
        self._store = store
        self._places: KnownPoints[_Place] = KnownPoints(_place)
        self.outlines = outlines

    def search(self, vector: Sequence[float], top_k: int, *, filters: MetadataFilters | None = None) -> list[LeafHit]:
        wanted = None if is_empty(filters) else filters
        query = VectorStoreQuery(query_embedding=list(vector), similarity_top_k=top_k, filters=wanted)
        found = found_facts(self._store, query, self._places)
        hits = [LeafHit(*place, score) for place, score in found if score == score]  # noqa: PLR0124 - not for NaN
        return sorted(hits, key=lambda hit: (-hit.score, hit.leaf_id))


def hierarchy_collection(index: StoredNodes) -> DerivedCollection[HierarchyView]:
    settings = index.manifest.chunk_settings

    def derive(_doc_id: str, chunks: Sequence[TextNode]) -> Derived:
        return [leaf for chunk in chunks for leaf in leaf_nodes(chunk, settings)], outline_of(chunks)

    def view_of(store: NodeStore, state: ViewState) -> HierarchyView:
        return HierarchyView(store, {doc_id: Outline(**held.facts) for doc_id, held in state.documents.items()})

    made_with = f"{LEAVES_FORMAT}:{settings.fingerprint}"
    return DerivedCollection(index, LEAVES, Derivation(derive=derive), view_of, made_with)


def outline_of(chunks: Iterable[TextNode]) -> dict[str, Any]:
    """Collect where the numbered parts of a document are, in plain JSON types."""
    facts: dict[str, Any] = {"title": "", "sections": {}, "articles": {}}
    for chunk in chunks:
        title = chunk.metadata.get("title")
        if not facts["title"] and isinstance(title, str):
            facts["title"] = title.strip()
        for part, key in _NUMBERS.items():
            told = chunk.metadata.get(key) or ()
            for number in told if isinstance(told, (list, tuple)) else (told,):
                facts[part].setdefault(str(number).strip().casefold(), []).append(chunk.node_id)
    return facts


def _place(leaf: BaseNode) -> _Place | None:
    parent = leaf.relationships.get(NodeRelationship.PARENT)
    if not isinstance(parent, RelatedNodeInfo):
        return None
    place = parent.metadata
    siblings = max(1, int(place.get("leaves", 1)))
    return leaf.node_id, parent.node_id, int(place.get("start", 0)), int(place.get("end", 0)), siblings


# The summaries of an index: one node a document, with its most central sentences or what a model wrote.

SUMMARIES_FORMAT: Final = 1  # raised whenever the same chunks would give another summary without a model than before
SUMMARY_TOKENS: Final = 512  # largest summary; a document that is no longer is its own summary
PROMPT_TOKENS: Final = 4_000  # most of a document that a model is given; of a longer one, its most central sentences
MAX_WRITTEN_CHARS: Final = 4_000
MAX_FAILURES: Final = 3  # after so many failures in a row the model is left alone for the rest of the run

SummaryWriter = Callable[[str], str]  # completes a prompt; what it raises must be an error of this package


class SummaryHit(NamedTuple):
    """A document whose summary was found, and the cosine of that with the question, in [-1, 1]."""

    doc_id: str
    score: float


class SummaryView:
    """Summaries to search, and the chunks of each document. Safe to use from many threads."""

    def __init__(self, store: BasePydanticVectorStore, chunks: Mapping[str, Sequence[str]], summarised: int) -> None:
        self._store = store
        self._documents: KnownPoints[str] = KnownPoints(lambda summary: summary.ref_doc_id)
        self.chunks = chunks
        self.summarised = summarised

    @property
    def coverage(self) -> float:
        """Share of the documents that have a summary, in [0, 1]; 0 without documents."""
        return self.summarised / len(self.chunks) if self.chunks else 0.0

    def search(self, vector: Sequence[float], top_k: int) -> list[SummaryHit]:
        query = VectorStoreQuery(query_embedding=list(vector), similarity_top_k=top_k)
        found = found_facts(self._store, query, self._documents)
        hits = [SummaryHit(doc_id, score) for doc_id, score in found if doc_id in self.chunks]
        return sorted(hits, key=lambda hit: (-hit.score, hit.doc_id))


def summary_collection(index: StoredNodes) -> DerivedCollection[SummaryView]:
    def view_of(store: NodeStore, state: ViewState) -> SummaryView:
        chunks = {doc_id: held.facts["chunks"] for doc_id, held in state.documents.items()}
        return SummaryView(store, chunks, sum(bool(held.ids) for held in state.documents.values()))

    return DerivedCollection(index, SUMMARIES, summary_derivation(), view_of, str(SUMMARIES_FORMAT))


def summary_node(doc_id: str, chunks: Sequence[TextNode], text: str) -> TextNode:
    shared = dict(chunks[0].metadata)
    for chunk in chunks[1:]:
        shared = {key: value for key, value in shared.items() if key in chunk.metadata and chunk.metadata[key] == value}
    return TextNode(
        id_=f"{doc_id}/S",
        text=text,
        metadata=shared,
        excluded_embed_metadata_keys=[key for key in shared if key != "title"],
        metadata_template="{value}",
        text_template="{metadata_str}\n{content}",
        relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=doc_id)},
    )


def central_summary(chunks: Sequence[TextNode], *, room: int = SUMMARY_TOKENS) -> str:
    """Return the most central sentences of a document, or all of it where that fits."""
    texts = [chunk.text for chunk in chunks]
    if len(texts) == 1 and count_tokens(texts[0]) <= room:
        return texts[0].strip()
    tokenizer = Tokenizer(detect_language("\n".join(texts)[:20_000]))
    return "\n".join(central_sentences(texts, tokenizer=tokenizer, room=room, measure=count_tokens))


def summary_derivation(write: SummaryWriter | None = None) -> Derivation:
    failures = 0

    def written(chunks: Sequence[TextNode]) -> str:
        """Return a written summary, or ``""``: a model that keeps failing is given up on."""
        nonlocal failures
        if write is None or not chunks or failures >= MAX_FAILURES:
            return ""
        text = "\n\n".join(chunk.text for chunk in chunks)
        if count_tokens(text) > PROMPT_TOKENS:
            text = central_summary(chunks, room=PROMPT_TOKENS)
        # Nobody can write a text that holds its own hash, so the text cannot forge the frame around it.
        boundary = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        prompt = summary_prompt(str(chunks[0].metadata.get("title", "")), text, boundary)
        try:
            summary = without_thoughts(write(prompt))
        except errors.AgenticRetrieverError as err:
            failures += 1
            logger.warning("a summary could not be written (%s); using central sentences", err)
            return ""
        failures = 0
        return summary[:MAX_WRITTEN_CHARS]

    def derive(doc_id: str, chunks: Sequence[TextNode]) -> Derived:
        own = written(chunks)
        text = own or central_summary(chunks)
        nodes = [summary_node(doc_id, chunks, text)] if text else []
        return nodes, {"chunks": [chunk.node_id for chunk in chunks], "written": bool(own)}

    if write is None:
        return Derivation(derive=derive)
    # A model takes seconds for each, so each is kept at once.
    batch_nodes = max(1, BATCH_NODES // 16)
    return Derivation(derive=derive, is_outdated=lambda facts: not facts.get("written"), batch_nodes=batch_nodes)
