"""What routing is measured on: profiles to choose from, and questions with their vectors; no index has to be built."""

import math
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from llama_index.core.base.embeddings.base import BaseEmbedding

from agentic_retriever.embeddings import EmbeddingModel, PackedVectors, embedding_name, text_hash
from agentic_retriever.errors import AgenticRetrieverError, EvaluationError, UnknownIndexError, unknown_name
from agentic_retriever.evaluation.datasets import (
    SAMPLE,
    Dataset,
    DatasetKind,
    LabelledQuery,
    ProblemKind,
    ProblemLog,
    ProblemReport,
    check_names,
    read_documents,
    read_json,
)
from agentic_retriever.evaluation.measures import UNSPACED
from agentic_retriever.indices import IndexProfile, embedded_text
from agentic_retriever.indices.derived import SILENT, Watcher
from agentic_retriever.indices.profile import SAMPLE_SIZE, ProfiledNode, make_profile, sample_ids
from agentic_retriever.ingestion import ChunkSettings, SourceDocument, chunk_document
from agentic_retriever.resources import measured
from agentic_retriever.retrievers import REGISTRY, cards
from agentic_retriever.router import AgenticRouter
from agentic_retriever.sample import SAMPLE_INDEXES, VECTORS
from agentic_retriever.schema import Complexity, StrategyCard
from agentic_retriever.text import dominant_script, stopwords
from agentic_retriever.text.language_files import section

# Vectors of documents and questions: given in ``.npz`` files and held against the model, or computed.

Vector = npt.NDArray[np.float32]

ARRAYS: Final = ("doc_ids", "doc_vectors", "query_ids", "query_vectors")
SAME_MODEL: Final = 0.95  # cosine of two vectors of one text above which they come from the same model
_MIN_NORM: Final = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownVectors:
    documents: Mapping[str, Vector] = field(default_factory=dict)  # By document id, (dimension,) float32 each
    queries: Mapping[str, Vector] = field(default_factory=dict)  # By query id, likewise
    origin: str = ""  # "" where none are given
    problems: ProblemReport = field(default_factory=ProblemReport)


class Asked(NamedTuple):
    queries: tuple[LabelledQuery, ...]
    vectors: Mapping[str, Vector]  # By query id, of length 1
    embedding_ms: tuple[float, ...] = ()  # Milliseconds for each question that had to be embedded


class GivenVectors:
    """Known vectors of passages and questions, by the hash of their text; a ``VectorSource``."""

    def __init__(self, model: str, vectors: Mapping[bytes, Vector]) -> None:
        self._model = model
        self._vectors = vectors

    def get_many(self, model: str, hashes: Sequence[bytes]) -> dict[bytes, Vector]:
        return {key: self._vectors[key] for key in hashes if key in self._vectors} if model == self._model else {}


def passage(document: SourceDocument) -> str:
    return f"{document.title}\n{document.text}".strip()


# Reading what is given.


def vectors_file(place: Path, name: str) -> Path:
    if place.is_dir():
        return place / f"{name}.npz"
    if place.is_file():
        return place
    raise EvaluationError(f"{place} does not exist; name a folder with NAME.npz files, or one such file")


def load_vectors(path: Path, dataset: Dataset, *, rest_computed: bool = False) -> KnownVectors:
    """Read the vectors of a data set; what they do not cover is noted as computed or as missing."""
    arrays, problems = _arrays(path), ProblemLog()
    documents = _by_id(arrays["doc_ids"], arrays["doc_vectors"], path, problems)
    queries = _by_id(arrays["query_ids"], arrays["query_vectors"], path, problems)
    no_document = ProblemKind.COMPUTED_DOCUMENT_VECTOR if rest_computed else ProblemKind.MISSING_DOCUMENT_VECTOR
    no_query = ProblemKind.COMPUTED_QUERY_VECTOR if rest_computed else ProblemKind.MISSING_QUERY_VECTOR
    for document in dataset.documents:
        if document.doc_id not in documents and passage(document):
            problems.add(no_document, path, f"no vector of document {document.doc_id!r}")
    for query in dataset.queries:
        if query.query_id not in queries:
            problems.add(no_query, path, f"no vector of query {query.query_id!r}")
    used = {document.doc_id for document in dataset.documents}
    for doc_id in documents if rest_computed and used else ():
        if doc_id not in used:
            problems.add(ProblemKind.UNUSED_VECTOR, path, f"there is no document {doc_id!r}")
    return KnownVectors(documents=documents, queries=queries, origin=path.name, problems=problems.report())


def given_vectors(dataset: Dataset, place: Path | None, base: BaseEmbedding) -> KnownVectors:
    """Read the given vectors of a data set, if any, and see that they are of the model that computes the rest."""
    path = None if place is None else vectors_file(place, dataset.name)
    if path is None or (dataset.kind is DatasetKind.QUESTIONS and not path.exists()):
        return KnownVectors()
    known = load_vectors(path, dataset, rest_computed=True)
    other = _other_width(dataset, known, base.get_query_embedding)
    if other is not None:
        raise EvaluationError(
            f"the vectors in {path} ({len(next(iter(known.queries.values())))} dimensions) do not come from the "
            f"embedding model {embedding_name(base)} ({other} dimensions), which has to embed what they do not cover; "
            "set EMBEDDING_MODEL to theirs, or leave --vectors out"
        )
    return known


def _other_width(dataset: Dataset, known: KnownVectors, embed: Callable[[str], Any]) -> int | None:
    """Embed one question whose vector is known; return the width of what the model gives if it is another model."""
    asked = next((query for query in dataset.queries if query.query_id in known.queries), None)
    if asked is None:
        return None
    given, computed = known.queries[asked.query_id], np.asarray(embed(asked.text), dtype=np.float32)
    near = given.shape == computed.shape and float(given @ computed) >= SAME_MODEL * float(np.linalg.norm(computed))
    return None if near else len(computed)


def passage_vectors(dataset: Dataset, known: KnownVectors) -> dict[bytes, Vector]:
    """Return vectors by the hash of the text that was embedded; none for a document that gave a pseudo-query."""
    changed = {doc_id for query in dataset.queries if query.pseudo for doc_id in query.relevance}
    documents = [one for one in dataset.documents if one.doc_id in known.documents and one.doc_id not in changed]
    return {text_hash(passage(document)): known.documents[document.doc_id] for document in documents}


# Computing what is not.


def embed_dataset(
    dataset: Dataset, embedder: EmbeddingModel, *, most_documents: int, watcher: Watcher = SILENT
) -> KnownVectors:
    """Compute the vectors that a profile of a data set needs: of a sample of its documents, and of its questions."""
    texts = {document.doc_id: passage(document) for document in dataset.documents}
    chosen = sample_ids([doc_id for doc_id, text in texts.items() if text], size=most_documents)
    watcher.begin(f"embedding {dataset.name}", len(dataset.queries) + len(chosen))
    matrix, _ = embedder.embed_passages([texts[doc_id] for doc_id in chosen], on_progress=watcher.advance)
    queries: dict[str, Vector] = {}
    for query in dataset.queries:
        queries[query.query_id] = embedder.embed_query(query.text)
        watcher.advance(1)
    return KnownVectors(
        documents=dict(zip(chosen, matrix, strict=True)),
        queries=queries,
        origin=f"computed, {len(chosen):,} of {len(texts):,} documents",
    )


def with_vectors(
    queries: Sequence[LabelledQuery],
    known: KnownVectors,
    embed: Callable[[str], Any],
    *,
    about: str,
    timer: Callable[[], float],
    watcher: Watcher,
) -> Asked:
    """Take the vectors of questions that are known, and embed the others."""
    watcher.begin(f"questions of {about}", len(queries))
    vectors: dict[str, Vector] = {}
    spent = []
    for query in queries:
        if query.query_id in known.queries:
            vectors[query.query_id] = known.queries[query.query_id]
        else:
            start = timer()
            raw = np.asarray(embed(query.text), dtype=np.float32)
            spent.append((timer() - start) * 1000)
            norm = float(np.linalg.norm(raw))
            if not np.isfinite(norm) or norm == 0:
                raise EvaluationError(f"the embedding model gave no usable vector for question {query.query_id!r}")
            vectors[query.query_id] = raw / norm
        watcher.advance(1)
    return Asked(tuple(queries), vectors, tuple(spent))


# What is in a file.


def _arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as packed:
            missing = [name for name in ARRAYS if name not in packed.files]
            arrays = {name: packed[name] for name in ARRAYS if name not in missing}
    except FileNotFoundError as err:
        raise EvaluationError(f"{path} is missing; it holds the vectors of that data set") from err
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile, zlib.error) as err:
        raise EvaluationError(f"{path} cannot be read as .npz without pickled objects: {type(err).__name__}") from err
    if missing:
        raise EvaluationError(f"{path} lacks the arrays {', '.join(missing)}; it needs {', '.join(ARRAYS)}")
    for ids, vectors in (ARRAYS[:2], ARRAYS[2:]):
        if arrays[ids].ndim != 1 or arrays[vectors].ndim != 2 or len(arrays[ids]) != len(arrays[vectors]):
            shapes = f"{arrays[ids].shape} and {arrays[vectors].shape}"
            raise EvaluationError(f"{path}: {ids} and {vectors} must be (n,) and (n, dimension), got {shapes}")
        if arrays[vectors].dtype.kind not in "fiu":
            raise EvaluationError(f"{path}: {vectors} must hold numbers, got {arrays[vectors].dtype}")
    wide, long = arrays["doc_vectors"].shape[1], arrays["query_vectors"].shape[1]
    if wide != long and len(arrays["doc_vectors"]):
        raise EvaluationError(f"{path}: documents have {wide} dimensions, questions {long}; take one embedding model")
    return arrays


def _by_id(ids: npt.NDArray[Any], vectors: npt.NDArray[Any], path: Path, problems: ProblemLog) -> dict[str, Vector]:
    """Unit vectors by id; what is not finite or has no length is left out."""
    wide = vectors.astype(np.float32)
    norms = np.linalg.norm(wide.astype(np.float64), axis=1)
    usable = np.isfinite(norms) & (norms > _MIN_NORM)
    found: dict[str, Vector] = {}
    for at, raw in enumerate(ids.tolist()):
        name = raw.decode("utf-8", errors="replace") if isinstance(raw, bytes) else str(raw)
        if not usable[at]:
            problems.add(ProblemKind.UNUSABLE_VECTOR, path, f"the vector of {name!r} is zero or not finite")
        elif name in found:
            problems.add(ProblemKind.DUPLICATE_VECTOR, path, f"{name!r} has a vector already")
        else:
            found[name] = (wide[at] / norms[at]).astype(np.float32)
    return found


MOST_DOCUMENTS: Final = 256  # documents of a collection that are embedded when there are no vectors of it
SAMPLE_EMBEDDING: Final = "local:multilingual-e5-small-q4"  # the embedding model that the sample's vectors come from
TERMS: Final = 15  # how many terms a description of terms has
SAMPLES: Final = {index.name: index for index in SAMPLE_INDEXES}
_NO_VECTOR: Final = np.zeros(0, np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingOptions:
    vectors: Path | None = None  # Folder with NAME.npz, or one such file; None computes what is needed
    descriptions: Mapping[str, str] = field(default_factory=dict)
    also: tuple[str, ...] = ()
    most_documents: int = MOST_DOCUMENTS
    limit: int | None = None  # Most questions of each data set, drawn by the seed; None takes all
    seed: int = 0
    complexity: Mapping[str, Complexity] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedQuery(LabelledQuery):
    """A question as routing is asked it: its text, its vector, and the labels that routing is measured by."""

    dataset: str
    vector: Vector | None  # The embedded question, (dimension,)


@dataclass(frozen=True, slots=True)
class Description:
    text: str
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingMaterial:
    profiles: Mapping[str, IndexProfile]
    queries: tuple[RoutedQuery, ...]
    descriptions: Mapping[str, Description]
    passages: Mapping[str, Vector]  # Vectors of the descriptions as passages; none where one is missing
    cards: Mapping[str, tuple[StrategyCard, ...]] = field(default_factory=dict)
    unlabelled: tuple[RoutedQuery, ...] = ()
    datasets: tuple[dict[str, Any], ...] = ()
    problems: ProblemReport = field(default_factory=ProblemReport)
    notes: tuple[str, ...] = ()
    seed: int = 0


def sample_indexes_of(datasets: Sequence[Dataset], existing: Sequence[str]) -> set[str]:
    """Return the indexes of the sample that data sets are about: those of ``sample``, and those that nobody made."""
    found: set[str] = set()
    for dataset in datasets:
        if dataset.kind is DatasetKind.QUESTIONS:
            named = {query.index for query in dataset.queries if query.index in SAMPLES}
            found |= {name for name in named if name and (dataset.name == SAMPLE or name not in existing)}
    return found


def prepare(
    datasets: Sequence[Dataset], router: AgenticRouter, options: RoutingOptions, *, watcher: Watcher = SILENT
) -> RoutingMaterial:
    """Gather what routing is measured on.

    Every BEIR folder is an index of its own; a questions file is asked of the indexes that it names.
    """
    check_names(datasets)
    return _Preparation(datasets, router, options, watcher).run()


class _Preparation:
    def __init__(
        self, datasets: Sequence[Dataset], router: AgenticRouter, options: RoutingOptions, watcher: Watcher
    ) -> None:
        self._datasets = [dataset.limited(options.limit, options.seed) for dataset in datasets]
        self._collections = [dataset for dataset in self._datasets if dataset.kind is DatasetKind.BEIR]
        self._router = router
        self._options = options
        self._watcher = watcher
        self._from_sample = sample_indexes_of(datasets, router.index_names())
        self._known: dict[str, KnownVectors] = {}
        self._notes: list[str] = []

    def run(self) -> RoutingMaterial:
        known = self._known = {dataset.name: self._vectors_of(dataset) for dataset in self._datasets}
        descriptions = describe(self._collections, self._options.descriptions)
        names = self._index_names()
        embedded = self._embedded(descriptions)
        profiles = {
            dataset.name: dataset_profile(
                dataset, known[dataset.name], descriptions[dataset.name].text, embedded.get(dataset.name)
            )
            for dataset in self._collections
        }
        every: tuple[StrategyCard, ...] = tuple(REGISTRY.values())
        offered = dict.fromkeys(profiles, every)
        for name in names:
            if name in self._from_sample:
                vector = self._embedder().embed_query(SAMPLES[name].description)
                profiles[name], offered[name] = sample_profile(name, description_vector=vector), every
            else:
                index = self._router.index(name)
                profiles[name], offered[name] = index.profile(), cards(index, measured=measured(index)[0])
            origin = SAMPLE if name in self._from_sample else "index"
            descriptions[name] = Description(profiles[name].description, origin)
        labelled, unlabelled = self._queries()
        _check_dimensions(profiles, labelled)
        return RoutingMaterial(
            profiles=profiles,
            cards=offered,
            queries=labelled,
            unlabelled=unlabelled,
            descriptions=descriptions,
            passages=self._passages(profiles),
            datasets=tuple({**d.facts(), "vectors": known[d.name].origin} for d in self._datasets),
            problems=ProblemReport.merged([r for d in self._datasets for r in (d.problems, known[d.name].problems)]),
            notes=tuple(self._notes),
            seed=self._options.seed,
        )

    def _embedder(self) -> EmbeddingModel:
        model = self._router.resources.embedding()
        if self._from_sample and model.name != SAMPLE_EMBEDDING:
            raise EvaluationError(
                f"the sample's vectors come from {SAMPLE_EMBEDDING}, the router uses {model.name}; set "
                "EMBEDDING_MODEL=local, or leave the sample out"
            )
        return model

    def _vectors_of(self, dataset: Dataset) -> KnownVectors:
        if self._options.vectors is not None:
            path = vectors_file(self._options.vectors, dataset.name)
            if path.exists() or dataset.kind is DatasetKind.BEIR:
                return load_vectors(path, dataset)
        most = self._options.most_documents
        return embed_dataset(dataset, self._embedder(), most_documents=most, watcher=self._watcher)

    def _index_names(self) -> list[str]:
        taken = {dataset.name for dataset in self._collections}
        asked = [query.index for dataset in self._datasets for query in dataset.queries if query.index is not None]
        names = [name for name in dict.fromkeys([*asked, *self._options.also]) if name not in taken]
        existing = self._router.index_names()
        for name in names:
            if name not in existing and name not in self._from_sample:
                raise UnknownIndexError(unknown_name("index", name, {*existing, *taken, *SAMPLES}))
        return names

    def _embedded(self, descriptions: Mapping[str, Description]) -> dict[str, Vector]:
        """Embed the descriptions as questions, as an index does; nothing when the model is not that of the vectors."""
        if not descriptions:
            return {}
        try:
            embedder = self._embedder()
            widths = (_other_width(one, self._known[one.name], embedder.embed_query) for one in self._collections)
            if self._options.vectors is not None and any(widths):
                self._notes.append(
                    f"the vectors do not come from the embedding model {embedder.name}, so what goes by descriptions "
                    "was left out; set EMBEDDING_MODEL to theirs"
                )
                return {}
            return {name: embedder.embed_query(found.text) for name, found in descriptions.items() if found.text}
        except AgenticRetrieverError as err:
            if self._options.vectors is None:
                raise
            self._notes.append(f"descriptions could not be embedded ({err}), so what goes by them was left out")
            return {}

    def _passages(self, profiles: Mapping[str, IndexProfile]) -> dict[str, Vector]:
        """Embed the descriptions as passages, as LlamaIndex's selector does."""
        if not all(len(profile.description_vector) for profile in profiles.values()):
            return {}
        matrix = self._embedder().embed_sentences([profile.description for profile in profiles.values()])
        return dict(zip(profiles, np.asarray(matrix, dtype=np.float32), strict=True))

    def _queries(self) -> tuple[tuple[RoutedQuery, ...], tuple[RoutedQuery, ...]]:
        """Return the questions with a vector: those that say which index answers them, and the others."""
        labelled: list[RoutedQuery] = []
        unlabelled: list[RoutedQuery] = []
        for dataset in self._datasets:
            vectors = self._known[dataset.name].queries
            for query in (one for one in dataset.queries if one.query_id in vectors):
                told = labelled if query.index is not None or not query.answerable else unlabelled
                told.append(
                    RoutedQuery(
                        query_id=f"{dataset.name}/{query.query_id}",
                        text=query.text,
                        dataset=dataset.name,
                        vector=vectors[query.query_id],
                        index=query.index if query.answerable else None,
                        answerable=query.answerable,
                        strategy=query.strategy,
                        complexity=query.complexity or self._options.complexity.get(dataset.name),
                    )
                )
        if not labelled:
            paths = ", ".join(str(dataset.path) for dataset in self._datasets)
            raise EvaluationError(f"no question of {paths} can be asked: none has both a label and a vector")
        return tuple(labelled), tuple(unlabelled)


def _check_dimensions(profiles: Mapping[str, IndexProfile], queries: Sequence[RoutedQuery]) -> None:
    """See that every question can be compared with every sample, or routing would go by words without saying so."""
    widths = {f"index {name}": profile.sample.shape[1] for name, profile in profiles.items() if len(profile.sample)}
    for query in queries:
        if query.vector is not None:
            widths.setdefault(f"questions of {query.dataset}", len(query.vector))
    if len(set(widths.values())) > 1:
        found = ", ".join(f"{what} {width}" for what, width in widths.items())
        raise EvaluationError(f"vectors of different dimensions cannot be compared: {found}; take one embedding model")


# The profile of an index that is not built: what stage one would know of a collection.


def dataset_profile(
    dataset: Dataset,
    known: KnownVectors,
    description: str = "",
    description_vector: Vector | None = None,
    *,
    sample_size: int = SAMPLE_SIZE,
) -> IndexProfile:
    """Make the profile of a BEIR folder: one node a document, as an index of short documents would have."""
    nodes = [
        ProfiledNode(document.doc_id, passage(document), document.metadata)
        for document in dataset.documents
        if passage(document)
    ]
    chosen = sample_ids([node.node_id for node in nodes if node.node_id in known.documents], size=sample_size)
    dimension = len(next(iter(known.queries.values()), _NO_VECTOR))
    rows = [known.documents[doc_id] for doc_id in chosen]
    sampled = np.stack(rows) if rows else np.zeros((0, dimension), np.float32)
    vector = _NO_VECTOR if description_vector is None else description_vector
    return make_profile(nodes, sampled, dataset.name, description, vector, 1)


def sample_profile(name: str, *, description_vector: Vector) -> IndexProfile:
    """Make the profile of an index of the sample corpus from the vectors that ship with it; nothing is built."""
    sample = SAMPLES[name]
    documents = read_documents(sample.folder, ProblemLog())
    nodes = [node for document in documents for node in chunk_document(document, ChunkSettings())]
    texts = {node.node_id: embedded_text(node) for node in nodes}
    hashes = [text_hash(texts[node_id]) for node_id in sample_ids(list(texts))]
    packed = PackedVectors(VECTORS).get_many(SAMPLE_EMBEDDING, hashes)
    if not all(key in packed for key in hashes):
        raise EvaluationError(f"the packed vectors of the sample index {name!r} are not those of its text; pack anew")
    profiled = [ProfiledNode(node.node_id, texts[node.node_id], node.metadata) for node in nodes]
    sampled = np.stack([packed[key] for key in hashes])
    return make_profile(profiled, sampled, name, sample.description, description_vector, 1)


# What an index is said to hold, for the ways of routing that go by descriptions.

# What stands between words; combining marks are no word characters for Python, so words cannot be asked for as such.
_BETWEEN: Final = re.compile(r"[\s\d!-/:-@\[-`{-~¡«»¿।॥،؛؟\u2000-\u206f\u3000-\u303f]+")
_MIN_LETTERS: Final = 3
_TITLE_CHARS: Final = 60
_EXAMINED: Final = 2_000
_MAX_RUN: Final = 30


def read_descriptions(path: Path) -> dict[str, str]:
    data = read_json(path)
    if not isinstance(data, dict):
        raise EvaluationError(
            f"{path} must be an object from the names of data sets to descriptions, got {str(data)[:40]!r}"
        )
    for name, text in data.items():
        if not isinstance(text, str):
            raise EvaluationError(
                f"{path}: the description of {name[:80]!r} must be a text, got {str(text)[:40]!r}; write one or two "
                "sentences, or leave the name out"
            )
    return {name: text.strip() for name, text in data.items()}


def describe(datasets: Sequence[Dataset], given: Mapping[str, str]) -> dict[str, Description]:
    described = {one.name: Description(one.description, "dataset.json") for one in datasets if one.description}
    described |= {one.name: Description(given[one.name], "file") for one in datasets if given.get(one.name)}
    bare = [dataset for dataset in datasets if dataset.name not in described]
    shares = {dataset.name: _word_shares(dataset) for dataset in datasets} if bare else {}
    return described | {dataset.name: _made(dataset, shares) for dataset in bare}


def _made(dataset: Dataset, shares: Mapping[str, Mapping[str, float]]) -> Description:
    step = max(1, len(dataset.documents) // TERMS)
    some = [document for document in dataset.documents[::step] if passage(document)][:TERMS]
    if dominant_script(" ".join(passage(document) for document in some)) in UNSPACED:
        titles = ((document.title or document.text).strip()[:_TITLE_CHARS] for document in some)
        return Description(", ".join(dict.fromkeys(titles)), "titles")
    return Description(", ".join(_characteristic(dataset.name, shares)), "terms")


def _word_shares(dataset: Dataset) -> dict[str, float]:
    """Share of the documents that each word occurs in, by word; of large collections evenly spaced documents."""
    step = max(1, math.ceil(len(dataset.documents) / _EXAMINED))
    texts = [passage(document).casefold() for document in dataset.documents[::step]]
    frequency: Counter[str] = Counter()
    for text in texts:
        frequency.update({word for word in _BETWEEN.split(text) if _MIN_LETTERS <= len(word) <= _MAX_RUN})
    return {word: count / max(1, len(texts)) for word, count in frequency.items()}


def _characteristic(name: str, shares: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Words by their part of the divergence between a collection and the others; the commonest when there are none."""
    own, others = shares[name], [table for other, table in shares.items() if other != name]
    stop = frozenset().union(*(stopwords(language) for language in section("stopwords")))

    def weight(word: str) -> float:
        if not others:
            return own[word]
        elsewhere = sum(table.get(word, 0.0) for table in others) / len(others)
        return own[word] * math.log((own[word] + 0.01) / (elsewhere + 0.01))

    ranked = sorted((word for word in own if word not in stop), key=lambda word: (-weight(word), word))
    return ranked[:TERMS]
