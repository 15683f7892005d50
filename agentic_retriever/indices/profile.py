"""What an index is about, taken from its content: the evidence that stage one weighs."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import zipfile
import zlib
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from agentic_retriever.errors import DeadlineExceededError, EmbeddingError, StoreError
from agentic_retriever.indices.people import collect_people
from agentic_retriever.json_files import write_atomically
from agentic_retriever.show import render, short_text
from agentic_retriever.stores.node_text import embedded_text
from agentic_retriever.text import Tokenizer, detect_language
from agentic_retriever.text.tokens import identifiers, kind_of, numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from agentic_retriever.indices.stored import StoredIndex

    Matrix = npt.NDArray[np.float32]


# What a profile keeps of single nodes: identifiers, and how near nodes lie.

MAX_OF_A_KIND: Final = 5_000
"""Identifiers of one kind from which on a profile does not claim to know them all, and keeps none."""
NEIGHBOURS: Final = 3

_EXAMINED_ROWS: Final = 256
_TOO_MANY_KINDS: Final = 200


class _Node(Protocol):
    @property
    def node_id(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def metadata(self) -> Mapping[str, Any]: ...


def collect_identifiers(nodes: Iterable[_Node]) -> dict[str, frozenset[str]]:
    """Collect codes, numbered things and long numbers of all nodes by kind, leaving out kinds that have too many."""
    found: dict[str, set[str]] = {}
    crowded: set[str] = set()
    for node in nodes:
        for name in _named_in(node):
            kind = kind_of(name)
            if kind in crowded or (kind not in found and len(found) >= _TOO_MANY_KINDS):
                continue
            names = found.setdefault(kind, set())
            names.add(name)
            if len(names) > MAX_OF_A_KIND:
                crowded.add(kind)
                del found[kind]
    return {kind: frozenset(names) for kind, names in found.items()}


def _named_in(node: _Node) -> Iterator[str]:
    yield from identifiers(node.text)
    yield from numbers(node.text)
    for value in node.metadata.values():
        if isinstance(value, str):
            yield from identifiers(value)
            yield from numbers(value)


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


PROFILE_FILE = "profile.npz"
PROFILE_FORMAT = 4
SAMPLE_SIZE = 1024
MAX_TERMS = 20_000
MAX_FIELD_VALUES = 200
MAX_VALUE_CHARS = 80
MAX_NUMBER = 1e300
#: Fields that ingestion sets itself; they say nothing about what an index is about.
STRUCTURAL_FIELDS = frozenset(
    {"title", "section", "section_number", "article", "page", "chunk_type", "content_hash", "language", "file_name"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexProfile:
    """The evidence about one index.

    Attributes:
        name: Name of the index.
        description: Its description.
        version: Version of the index that the profile was made from.
        nodes: Number of nodes.
        language: The language most nodes are written in, ISO 639-1, or ``"und"``.
        description_vector: Unit vector of the description, ``(dimension,)``; empty without a description.
        sample: Unit vectors of a fixed sample of nodes, ``(n, dimension)``.
        document_frequency: In how many nodes each term occurs; the commonest terms only.
        field_values: Values of the text fields that have few, by field, case-folded.
        number_ranges: Least and greatest value of every numeric field.
        background_mean: Mean cosine between unrelated nodes of the index.
        background_std: Standard deviation of the same, at least 1e-3.
        terms_total: Sum of all document frequencies, rare terms included.
        people: Words of the names of people, by the field that holds them, without letter case and accents.
        neighbour_mean: Mean cosine of sampled nodes to those nearest to them; 0 when it was not measured.
        identifiers: Codes and numbered things by kind (see ``agentic_retriever.text.tokens``), of kinds that have
            few enough to know them all.
        whole: Whether it was made from all nodes, and not from a description alone; saved profiles always were.
    """

    name: str
    description: str
    version: int
    nodes: int
    language: str
    description_vector: npt.NDArray[np.float32]
    sample: Matrix
    document_frequency: Mapping[str, int]
    field_values: Mapping[str, frozenset[str]] = field(default_factory=dict)
    number_ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    background_mean: float = 0.0
    background_std: float = 1.0
    terms_total: int = 0
    people: Mapping[str, frozenset[str]] = field(default_factory=dict)
    neighbour_mean: float = 0.0
    identifiers: Mapping[str, frozenset[str]] = field(default_factory=dict)
    whole: bool = True

    def _repr_html_(self) -> str:
        """Draw the evidence in Jupyter: escaped, no assets, colours of the theme."""
        return render("profile.html", profile=self)

    _repr_pretty_ = short_text

    def save(self, folder: Path) -> None:
        """Write the profile in one file, without pickle.

        Raises:
            StoreError: If the folder cannot be written.
        """
        facts = {
            "format": PROFILE_FORMAT,
            "name": self.name,
            "description": self.description,
            "version": self.version,
            "nodes": self.nodes,
            "language": self.language,
            "document_frequency": dict(self.document_frequency),
            "field_values": {name: sorted(values) for name, values in self.field_values.items()},
            "number_ranges": {name: list(bounds) for name, bounds in self.number_ranges.items()},
            "background_mean": self.background_mean,
            "background_std": self.background_std,
            "terms_total": self.terms_total,
            "people": {name: sorted(words) for name, words in self.people.items()},
            "neighbour_mean": self.neighbour_mean,
            "identifiers": {kind: sorted(names) for kind, names in self.identifiers.items()},
        }
        buffer = io.BytesIO()
        encoded = np.frombuffer(json.dumps(facts, ensure_ascii=False).encode("utf-8", "surrogatepass"), dtype=np.uint8)
        np.savez(buffer, facts=encoded, sample=self.sample, description_vector=self.description_vector)
        write_atomically(folder / PROFILE_FILE, buffer.getvalue())

    @classmethod
    def load(cls, folder: Path, *, version: int, description: str) -> IndexProfile | None:
        """Read a saved profile; ``None`` when there is none, it cannot be read, or it is not of this version.

        A profile is derived, so one that cannot be read is no damage: it is made again.

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
            facts["field_values"] = {name: frozenset(values) for name, values in facts["field_values"].items()}
            facts["people"] = {name: frozenset(words) for name, words in facts["people"].items()}
            facts["identifiers"] = {kind: frozenset(names) for kind, names in facts["identifiers"].items()}
            facts.pop("specimens", None)  # sentences that earlier versions kept
            facts["number_ranges"] = {name: (low, high) for name, (low, high) in facts["number_ranges"].items()}
            return cls(**facts, sample=sample, description_vector=vector)
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, zlib.error):
            return None


@dataclass(frozen=True, slots=True)
class ProfiledNode:
    """What a profile needs to know of one node."""

    node_id: str
    text: str
    metadata: Mapping[str, Any]


def dominant_language(nodes: Iterable[ProfiledNode], *, examined: int = 200) -> str:
    """Return the language that most of the first nodes are written in, or ``"und"``."""
    counts: Counter[str] = Counter()
    for _, node in zip(range(examined), nodes, strict=False):
        language = node.metadata.get("language")
        counts[language if isinstance(language, str) and language else detect_language(node.text)] += 1
    known = [(count, language) for language, count in counts.items() if language != "und"]
    return max(known)[1] if known else "und"


def sample_ids(node_ids: Sequence[str], size: int = SAMPLE_SIZE) -> list[str]:
    """Choose a sample that depends only on the ids and hardly changes when a few are added or removed (bottom-k)."""
    if len(node_ids) <= size:
        return sorted(node_ids)
    return sorted(node_ids, key=lambda i: hashlib.sha256(i.encode("utf-8", "surrogatepass")).digest())[:size]


def count_terms(nodes: Iterable[ProfiledNode], tokenizer: Tokenizer) -> Counter[str]:
    """Count in how many nodes each term occurs."""
    frequency: Counter[str] = Counter()
    for node in nodes:
        frequency.update(set(tokenizer.tokens(node.text)))
    return frequency


def collect_field_values(nodes: Iterable[ProfiledNode]) -> dict[str, frozenset[str]]:
    """Collect the short text values of every field that has at most 200 of them, case-folded."""
    values: dict[str, set[str]] = {}
    crowded: set[str] = set()
    for node in nodes:
        for name, value in node.metadata.items():
            if name in STRUCTURAL_FIELDS or name in crowded:
                continue
            for item in value if isinstance(value, list) else [value]:
                if isinstance(item, str) and 0 < len(item) <= MAX_VALUE_CHARS:
                    values.setdefault(name, set()).add(item.casefold())
            if len(values.get(name, ())) > MAX_FIELD_VALUES:
                crowded.add(name)
                del values[name]
    return {name: frozenset(found) for name, found in values.items()}


def collect_number_ranges(nodes: Iterable[ProfiledNode]) -> dict[str, tuple[float, float]]:
    """Find the least and greatest finite number of every numeric field."""
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


def background(sample: Matrix) -> tuple[float, float]:
    """Return mean and standard deviation of the cosine between different sampled nodes; (0, 1) for fewer than three."""
    if len(sample) < 3:
        return 0.0, 1.0
    part = sample[:256]
    cosines = (part @ part.T)[np.triu_indices(len(part), k=1)]
    return float(cosines.mean()), max(1e-3, float(cosines.std()))


def make_profile(
    nodes: Sequence[ProfiledNode],
    sample: Matrix,
    *,
    name: str,
    description: str,
    description_vector: npt.NDArray[np.float32],
    version: int,
) -> IndexProfile:
    """Make the profile of an index from its nodes and the vectors of its sample."""
    language = dominant_language(nodes)
    frequency = count_terms(nodes, Tokenizer(language=language))
    mean, std = background(sample)
    return IndexProfile(
        name=name,
        description=description,
        version=version,
        nodes=len(nodes),
        language=language,
        description_vector=description_vector,
        sample=sample,
        document_frequency=dict(sorted(frequency.items(), key=lambda item: (-item[1], item[0]))[:MAX_TERMS]),
        field_values=collect_field_values(nodes),
        number_ranges=collect_number_ranges(nodes),
        background_mean=mean,
        background_std=std,
        terms_total=frequency.total(),
        people=collect_people(nodes),
        neighbour_mean=neighbour_mean(sample),
        identifiers=collect_identifiers(nodes),
    )


# The profile of a stored index, made from its nodes and saved beside them.

logger = logging.getLogger(__name__)


def index_profile(index: StoredIndex, version: int) -> IndexProfile:
    """Return the profile of a version: the saved one, else a new one."""
    saved = IndexProfile.load(index.folder, version=version, description=index.description)
    return saved or _made(index, version)


def _made(index: StoredIndex, version: int) -> IndexProfile:
    nodes = [ProfiledNode(node.node_id, embedded_text(node), node.metadata) for node in index.known_nodes()]
    chosen = sample_ids([node.node_id for node in nodes])
    sample = index.vector_store.vectors(chosen)[1] if chosen else np.empty((0, index.manifest.dimension))
    described = _embedded_description(index)
    profile = make_profile(
        nodes,
        np.asarray(sample, dtype=np.float32),
        name=index.name,
        description=index.description,
        description_vector=np.empty(0, dtype=np.float32) if described is None else described,
        version=version,
    )
    if index.is_remote:
        profile = replace(profile, nodes=index.count())  # it may have been made from a part of them
    if described is not None or not index.description:
        save_derived(index, lambda: profile.save(index.folder), "profile")
    return profile


def _embedded_description(index: StoredIndex) -> npt.NDArray[np.float32] | None:
    """Embed the description; without it the rest of the profile still tells the indexes apart."""
    if not index.description:
        return None
    try:
        return index.embedding.embed_query(index.description)
    except (EmbeddingError, DeadlineExceededError) as err:
        logger.warning("index %r: its description could not be embedded: %s", index.name, err)
        return None


def save_derived(index: StoredIndex, save: Callable[[], None], what: str) -> None:
    """Save a derived view; without it the index works just as well, only the next start is slower."""
    try:
        save()
    except StoreError as err:
        logger.warning("index %r: the %s could not be saved (%s); it is built again next time", index.name, what, err)
