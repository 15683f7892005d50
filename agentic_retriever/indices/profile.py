"""What is known of an index: the evidence of its content that stage one weighs, and what was measured for stage two."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import math
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass as checked_dataclass

from agentic_retriever.embeddings import EmbeddingModel
from agentic_retriever.errors import DeadlineExceededError, EmbeddingError
from agentic_retriever.indices.derived import DerivedView
from agentic_retriever.indices.stored_nodes import StoredNodes
from agentic_retriever.json_files import Count, FileTable, NotNegative, Share, load_model, model_bytes, write_atomically
from agentic_retriever.schema import Strategy
from agentic_retriever.show import drawn_by
from agentic_retriever.stores.points import embedded_text
from agentic_retriever.text import UNDETERMINED, Tokenizer, detect_language
from agentic_retriever.text.language_files import packaged_json
from agentic_retriever.text.tokens import identifiers, kind_of, numbers

Vector: TypeAlias = npt.NDArray[np.float32]
Matrix: TypeAlias = npt.NDArray[np.float32]

logger = logging.getLogger(__name__)

PROFILE_FILE = "profile.npz"
PROFILE_FORMAT = 6
SAMPLE_SIZE = 1024
MAX_TERMS = 20_000
MAX_FIELD_VALUES = 200
MAX_VALUE_CHARS = 80
MAX_NUMBER = 1e300
MAX_OF_A_KIND: Final = 5_000  # of more identifiers of one kind a profile does not claim to know all, and keeps none
NEIGHBOURS: Final = 3
# Words in names of fields and particles of the names of people, for ``fields.py``.
FIELD_WORDS: Final = packaged_json("indices/field_words.json")
#: Fields that ingestion sets itself; they say nothing about what an index is about.
STRUCTURAL_FIELDS: Final = frozenset({
    "title", "section", "section_number", "section_starts", "heading_hierarchy", "parent", "article_number",
    "cross_references", "table_header", "page", "page_numbers", "page_starts", "chunk_type", "content_hash", "language",
    "file_name", "mapped_section",
})  # fmt: skip
_EXAMINED_ROWS: Final = 256
_EXAMINED_NODES: Final = 400
_ENOUGH_TEXT: Final = 200  # characters of which the language is told well
_LEAST_OF_LANGUAGE: Final = 0.05
_TOO_MANY_KINDS: Final = 200
_SETS: Final = ("field_values", "identifiers")
DESCRIPTION_S: Final = 1.0  # a question may wait for a profile, and it has embedded itself just before
_NOT_FACTS: Final = frozenset({"description_vector", "sample", "whole"})


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexProfile:
    """The evidence about one index."""

    name: str
    description: str
    version: int  # of the index that the profile was made from
    nodes: int
    language: str  # the one that most nodes are written in, ISO 639-1, or "und"
    description_vector: Vector  # unit vector, (dimension,); empty without a description
    sample: Matrix  # unit vectors of a fixed sample of nodes, (n, dimension)
    document_frequency: Mapping[str, int]  # in how many nodes each term occurs; the commonest terms only
    #: Values of the text fields that have few, by field, case-folded.
    field_values: Mapping[str, frozenset[str]] = field(default_factory=dict)
    #: Least and greatest value of every numeric field.
    number_ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    background_mean: float = 0.0  # mean cosine between unrelated nodes of the index
    background_std: float = 1.0  # standard deviation of the same, at least 1e-3
    terms_total: int = 0  # sum of all document frequencies, rare terms included
    neighbour_mean: float = 0.0  # mean cosine of sampled nodes to those nearest to them; 0 when it was not measured
    #: Codes and numbered things by kind (see ``agentic_retriever.text.tokens``), of kinds that have few enough.
    identifiers: Mapping[str, frozenset[str]] = field(default_factory=dict)
    whole: bool = True  # made from all nodes, and not from a description alone; saved profiles always were
    languages: Sequence[str] = ()  # each that at least one node in twenty is written in; () where it was not counted

    _repr_html_, _repr_pretty_ = drawn_by("profile.html", "profile")

    def save(self, folder: Path) -> None:
        """Write the profile in one file, without pickle."""
        facts = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in _NOT_FACTS}
        for name in _SETS:
            facts[name] = {key: sorted(values) for key, values in facts[name].items()}
        text = json.dumps({"format": PROFILE_FORMAT, **facts}, ensure_ascii=False)
        buffer = io.BytesIO()
        encoded = np.frombuffer(text.encode("utf-8", "surrogatepass"), dtype=np.uint8)
        np.savez(buffer, facts=encoded, sample=self.sample, description_vector=self.description_vector)
        write_atomically(folder / PROFILE_FILE, buffer.getvalue())

    @classmethod
    def load(cls, folder: Path, *, version: int, description: str) -> IndexProfile | None:
        """Read a saved profile; ``None`` for none of this version and description that can be read.

        Args:
            folder: Where :meth:`save` wrote it.
            version: The version of the index that it has to be of.
            description: The description of the index that it has to be of.
        """
        try:
            content = (folder / PROFILE_FILE).read_bytes()
            with np.load(io.BytesIO(content), allow_pickle=False) as data:
                facts: dict[str, Any] = json.loads(data["facts"].tobytes().decode("utf-8", "surrogatepass"))
                sample, vector = data["sample"], data["description_vector"]
            stale = facts.pop("format") != PROFILE_FORMAT or facts["version"] != version
            if stale or facts["description"] != description:
                return None
            for name in ("specimens", "people"):  # what earlier versions kept
                facts.pop(name, None)
            for name in _SETS:
                facts[name] = {key: frozenset(values) for key, values in facts[name].items()}
            facts["languages"] = tuple(facts["languages"])
            facts["number_ranges"] = {name: (low, high) for name, (low, high) in facts["number_ranges"].items()}
            return cls(**facts, sample=sample, description_vector=vector)
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, zlib.error):
            return None


_Also: TypeAlias = Callable[[int, Iterable[Mapping[str, Any]]], None]


class ProfiledNode(NamedTuple):
    node_id: str
    text: str
    metadata: Mapping[str, Any]


def make_profile(
    nodes: Sequence[ProfiledNode], sample: Matrix, name: str, description: str, description_vector: Vector, version: int
) -> IndexProfile:
    languages = count_languages(nodes)
    tokenizer = Tokenizer(language=dominant_language(languages))
    frequency: Counter[str] = Counter()
    for node in nodes:
        frequency.update(set(tokenizer.tokens(node.text)))
    mean, std = background(sample)
    return IndexProfile(
        name=name,
        description=description,
        version=version,
        nodes=len(nodes),
        language=tokenizer.language,
        languages=tuple(one for one, count in languages.items() if count >= _LEAST_OF_LANGUAGE * languages.total()),
        description_vector=description_vector,
        sample=sample,
        document_frequency=dict(sorted(frequency.items(), key=lambda item: (-item[1], item[0]))[:MAX_TERMS]),
        field_values=collect_field_values(nodes),
        number_ranges=collect_number_ranges(nodes),
        background_mean=mean,
        background_std=std,
        terms_total=frequency.total(),
        neighbour_mean=neighbour_mean(sample),
        identifiers=collect_identifiers(nodes, name, description),
    )


def profile_view(index: StoredNodes, also: _Also) -> DerivedView[IndexProfile]:
    """The profile of a stored index; metadata that is read for it is handed on, as reading takes longest."""

    def save(profile: IndexProfile) -> None:
        # One without the vector of its description is made again at the next start.
        if len(profile.description_vector) or not profile.description:
            profile.save(index.folder)

    return DerivedView(
        f"profile of index {index.name!r}",
        index.catalog.version,
        load=lambda version: IndexProfile.load(index.folder, version=version, description=index.description),
        build=lambda version: _profile_of(index, version, also),
        write=save,
    )


def _profile_of(index: StoredNodes, version: int, also: _Also) -> IndexProfile:
    nodes = [ProfiledNode(node.node_id, embedded_text(node), node.metadata) for node in index.known_nodes()]
    also(version, (node.metadata for node in nodes))
    chosen = sample_ids([node.node_id for node in nodes])
    sample = index.vector_store.vectors(chosen)[1] if chosen else np.empty((0, index.manifest.dimension))
    # A model in this process is only slow where it is being loaded, and no question waits for this.
    limit = None if index.embedding.is_local else DESCRIPTION_S
    vector = embed_description(index.embedding, index.name, index.description, timeout_s=limit)
    rows = np.asarray(sample, dtype=np.float32)
    profile = make_profile(nodes, rows, index.name, index.description, vector, version)
    # It may have been made from a part of the nodes on a server.
    return replace(profile, nodes=index.count()) if index.is_remote else profile


def unprofiled(index: StoredNodes) -> IndexProfile:
    """Return what can be told of an index while its profile is being made."""
    nothing = np.empty((0, index.manifest.dimension), dtype=np.float32)
    known = make_profile((), nothing, index.name, index.description, np.empty(0, dtype=np.float32), index.version)
    return replace(known, nodes=index.count(), whole=False)


def embed_description(model: EmbeddingModel, name: str, description: str, *, timeout_s: float | None = None) -> Vector:
    """Embed a description; without its vector the rest of the profile still tells the indexes apart."""
    if description:
        try:
            return model.embed_query(description, timeout_s=timeout_s)
        except (EmbeddingError, DeadlineExceededError) as err:
            logger.warning("index %r: its description could not be embedded: %s", name, err)
    return np.empty(0, dtype=np.float32)


def sample_ids(node_ids: Sequence[str], size: int = SAMPLE_SIZE) -> list[str]:
    """Choose a sample that depends only on the ids and hardly changes when a few are added or removed (bottom-k)."""
    if len(node_ids) <= size:
        return sorted(node_ids)
    return sorted(node_ids, key=lambda i: hashlib.sha256(i.encode("utf-8", "surrogatepass")).digest())[:size]


def background(sample: Matrix) -> tuple[float, float]:
    """Return mean and standard deviation of the cosine between different sampled nodes; (0, 1) for fewer than three."""
    if len(sample) < 3:
        return 0.0, 1.0
    part = sample[:256]
    cosines = (part @ part.T)[np.triu_indices(len(part), k=1)]
    return float(cosines.mean()), max(1e-3, float(cosines.std()))


def neighbour_mean(sample: Matrix) -> float:
    """Return the mean cosine of sampled nodes to the three nearest others; 0.0 for fewer than five nodes."""
    if sample.ndim != 2 or len(sample) < NEIGHBOURS + 2:
        return 0.0
    asked = sample[:: max(1, -(-len(sample) // _EXAMINED_ROWS))]
    cosines = asked @ sample.T
    # The nearest of all is the node itself.
    nearest = np.partition(cosines, -NEIGHBOURS - 1, axis=1)[:, -NEIGHBOURS - 1 :]
    mean = float((nearest.sum(axis=1) - nearest.max(axis=1)).mean() / NEIGHBOURS)
    return mean if np.isfinite(mean) else 0.0


def count_languages(nodes: Sequence[ProfiledNode]) -> Counter[str]:
    """Count nodes by language, of many those at equal distances; none whose language cannot be told."""
    counts: Counter[str] = Counter()
    for node in nodes[:: -(-len(nodes) // _EXAMINED_NODES) or 1]:
        told = node.metadata.get("language")  # of the document, of which parts may be in another one
        is_short = len(node.text) < _ENOUGH_TEXT
        counts[told if isinstance(told, str) and told and is_short else detect_language(node.text)] += 1
    del counts[UNDETERMINED]
    return counts


def dominant_language(languages: Counter[str]) -> str:
    return max(languages, key=lambda one: (languages[one], one), default=UNDETERMINED)


def _short_texts(nodes: Iterable[ProfiledNode]) -> Iterator[tuple[str, str]]:
    """Yield field and value of every short text in metadata, those in lists included."""
    for node in nodes:
        for name, value in node.metadata.items():
            for item in value if isinstance(value, list) else [value]:
                if isinstance(item, str) and 0 < len(item) <= MAX_VALUE_CHARS:
                    yield name, item


def _by_key(pairs: Iterable[tuple[str, str]], most: int, most_keys: float = math.inf) -> dict[str, frozenset[str]]:
    """Collect values by key, of so many keys at most, leaving out those that have too many values."""
    found: dict[str, set[str]] = {}
    crowded: set[str] = set()
    for key, value in pairs:
        if key in crowded or (key not in found and len(found) >= most_keys):
            continue
        found.setdefault(key, set()).add(value)
        if len(found[key]) > most:
            crowded.add(key)
            del found[key]
    return {key: frozenset(values) for key, values in found.items()}


def collect_field_values(nodes: Iterable[ProfiledNode]) -> dict[str, frozenset[str]]:
    """Collect the short text values of every field that has at most 200 of them, case-folded."""
    texts = ((name, text.casefold()) for name, text in _short_texts(nodes) if name not in STRUCTURAL_FIELDS)
    return _by_key(texts, MAX_FIELD_VALUES)


def collect_number_ranges(nodes: Iterable[ProfiledNode]) -> dict[str, tuple[float, float]]:
    ranges: dict[str, tuple[float, float]] = {}
    for node in nodes:
        for name, value in node.metadata.items():
            if name in STRUCTURAL_FIELDS or isinstance(value, bool) or not isinstance(value, (int, float)):
                continue
            if not -MAX_NUMBER < value < MAX_NUMBER:  # also refuses NaN
                continue
            low, high = ranges.get(name, (float(value), float(value)))
            ranges[name] = min(low, float(value)), max(high, float(value))
    return ranges


def collect_identifiers(nodes: Iterable[ProfiledNode], *about: str) -> dict[str, frozenset[str]]:
    """Collect codes, numbered things and long numbers of all nodes by kind, leaving out kinds that have too many."""
    texts = (t for n in nodes for t in (n.text, *(v for v in n.metadata.values() if isinstance(v, str))))
    names = (name for text in chain(about, texts) for name in chain(identifiers(text), numbers(text)))
    return _by_key(((kind_of(name), name) for name in names), MAX_OF_A_KIND, _TOO_MANY_KINDS)


# What a benchmark measured of each strategy on one index, in a small JSON file beside it.

MEASURED_FILE: Final = "strategies.json"


@checked_dataclass(frozen=True, slots=True, kw_only=True)
class StrategyMeasure(FileTable):
    quality: Share  # Mean nDCG@10 over all questions
    p50_ms: NotNegative  # Median latency of one search in milliseconds, the embedding of the question excluded


@checked_dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStrategies(FileTable):
    """The result of one benchmark run on one index, by strategy."""

    format: Literal[1] = field(default=1, repr=False)
    dataset: str
    index: str
    index_version: Count
    queries: Annotated[Count, Field(ge=1)]
    measured_on: str  # Date, ISO 8601
    strategies: Annotated[Mapping[Strategy, StrategyMeasure], AfterValidator(MappingProxyType)]

    def to_dict(self) -> dict[str, Any]:
        strategies = {strategy.value: asdict(found) for strategy, found in self.strategies.items()}
        return {one.name: getattr(self, one.name) for one in fields(self)} | {"strategies": strategies}

    def save(self, folder: Path) -> None:
        write_atomically(folder / MEASURED_FILE, model_bytes(self.to_dict()))

    @classmethod
    def load(cls, folder: Path) -> MeasuredStrategies | None:
        """Read the file of an index; ``None`` when nothing was measured yet."""
        return load_model(folder / MEASURED_FILE, cls.from_dict, advice="remove it or measure the index again")
