"""Measuring both stages of routing and the judgment of complexity on labelled questions."""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, get_args

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.selectors import EmbeddingSingleSelector
from llama_index.core.tools import ToolMetadata

from agentic_retriever import __version__
from agentic_retriever.embeddings import PackedVectors, text_hash
from agentic_retriever.errors import AgenticRetrieverError, EvaluationError, UnknownIndexError, unknown_name
from agentic_retriever.evaluation.datasets import SAMPLE, DatasetKind, ProblemReport, check_names
from agentic_retriever.evaluation.journal import SilentWatcher, fingerprint
from agentic_retriever.evaluation.measures import compare
from agentic_retriever.evaluation.reliability import measure_reliability
from agentic_retriever.evaluation.results import (
    Abstention,
    Choice,
    ComplexityMeasures,
    Failure,
    Latency,
    StageOneMeasures,
    StageTwoMeasures,
    choose,
    told,
)
from agentic_retriever.evaluation.vectors import (
    SAME_MODEL,
    check_dimensions,
    embed_dataset,
    load_vectors,
    passage,
    vectors_file,
)
from agentic_retriever.indices import embedded_text
from agentic_retriever.indices.profile import SAMPLE_SIZE, ProfiledNode, make_profile, sample_ids
from agentic_retriever.ingestion import ChunkSettings, SourceDocument, chunk_document, discover, read_source
from agentic_retriever.resources import heuristic_selector, make_classifier
from agentic_retriever.retrievers import REGISTRY, cards
from agentic_retriever.routing import AutoSelector, HeuristicSelector, LLMSelector, assess_complexity, query_features
from agentic_retriever.sample import SAMPLE_INDEXES, VECTORS
from agentic_retriever.schema import NO_LIMITS, Selection
from agentic_retriever.show import render, short_text
from agentic_retriever.text import Script, dominant_script, stopwords
from agentic_retriever.text.tokens import stopword_languages

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from agentic_retriever.config import RouterConfig
    from agentic_retriever.embeddings import EmbeddingModel
    from agentic_retriever.evaluation.datasets import Dataset, LabelledQuery
    from agentic_retriever.evaluation.journal import Journal, Watcher
    from agentic_retriever.evaluation.reliability import Reliability
    from agentic_retriever.evaluation.vectors import KnownVectors, Vector
    from agentic_retriever.indices import IndexProfile
    from agentic_retriever.router import AgenticRouter
    from agentic_retriever.routing import DomainTerms, IndexClassifier, StrategySelector
    from agentic_retriever.schema import Budget, Complexity, Strategy, StrategyCard

    Matrix = npt.NDArray[np.float32]


FAILED: Final = "(failed)"
"""Stands for the choice of a question on which something raised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A way to choose the index that is to be measured."""

    classifier: IndexClassifier
    probabilities: bool = True
    peer: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedQuery:
    """A question for both stages, with what is right."""

    query_id: str
    text: str
    dataset: str
    vector: Vector | None  # The embedded question, (dimension,), or None
    index: str | None  # The index that answers it; None where none does
    strategy: Strategy | None = None  # The strategy that suits it, or None where that is not known
    complexity: Complexity | None = None  # How hard it is, or None where that is not known


def measure_choices(
    queries: Sequence[RoutedQuery], choices: Sequence[Choice], contender: Contender
) -> StageOneMeasures:
    """Hold choices against what is right."""
    inside = [(query.index, choice) for query, choice in zip(queries, choices, strict=True) if query.index]
    gold = [index for index, _ in inside]
    outside = [query.index is None for query in queries]
    reliability, macro_ece = _calibration(inside) if contender.probabilities else (None, None)
    return StageOneMeasures(
        outcomes=compare(gold, [choice.name or FAILED for _, choice in inside]),
        reliability=reliability,
        macro_ece=macro_ece,
        reached=_mean([index in choice.names for index, choice in inside]),
        searched=_mean([len(choice.names) for _, choice in inside]),
        abstention=Abstention(
            asked=len(queries),
            out_of_scope=sum(outside),
            abstained=sum(choice.abstained for choice in choices),
            right=sum(choice.abstained and out for choice, out in zip(choices, outside, strict=True)),
        ),
        escalation_rate=sum(choice.escalated for choice in choices) / len(queries),
        latency=_latency([choice.ms for choice in choices]),
        llm_calls=sum(choice.llm_calls for choice in choices),
        failures=tuple(Failure(query_id=choice.query_id, error=choice.error) for choice in choices if choice.error),
        peer=contender.peer,
        note=contender.note,
    )


def _calibration(inside: Sequence[tuple[str, Choice]]) -> tuple[Reliability, float | None]:
    """Reliability with each question counting the same, and the error with each index counting the same."""
    made = [(index, choice) for index, choice in inside if choice.name]
    sure = [min(1.0, max(0.0, choice.confidence)) for _, choice in made]
    right = [choice.name == index for index, choice in made]
    sizes = Counter(index for index, _ in made)
    macro = measure_reliability(sure, right, weights=[1 / sizes[index] for index, _ in made])
    return measure_reliability(sure, right), macro.ece


def evaluate_stage_two(
    queries: Sequence[RoutedQuery],
    profiles: Mapping[str, IndexProfile],
    cards: Mapping[str, Sequence[StrategyCard]],
    selector: StrategySelector,
    *,
    domain_terms: DomainTerms | None = None,
    timer: Callable[[], float] = time.perf_counter,
) -> StageTwoMeasures | None:
    """Let one way to choose the strategy answer every question that says which strategy suits it.

    Each is asked of its own index, so that an error of stage one counts once only.
    """
    gold: list[str] = []
    chosen: list[str] = []
    failures: list[Failure] = []
    spent: list[float] = []
    escalated = 0
    for query in queries:
        if query.strategy is None or query.index is None:
            continue
        start = timer()
        try:
            _, score = assess_complexity(query.text)
            features = query_features(query.text, profiles[query.index], score, domain_terms=domain_terms)
            selection = selector.select(query.text, cards[query.index], features=features)
            picked, escalated = selection.name, escalated + selection.escalated
        except Exception as err:  # noqa: BLE001 - the seam to any selector; one question must not end the run
            picked = FAILED
            failures.append(Failure(query_id=query.query_id, error=told(err)))
        spent.append((timer() - start) * 1000)
        gold.append(query.strategy.value)
        chosen.append(picked)
    if not gold:
        return None
    return StageTwoMeasures(
        outcomes=compare(gold, chosen),
        latency=_latency(spent),
        escalation_rate=escalated / len(gold),
        failures=tuple(failures),
    )


def evaluate_complexity(
    queries: Sequence[RoutedQuery],
    *,
    assess: Callable[[str], tuple[Complexity, float]] = assess_complexity,
) -> ComplexityMeasures | None:
    """Judge the complexity of every question that says what it is."""
    labelled = [(query, query.complexity) for query in queries if query.complexity is not None]
    if not labelled:
        return None
    chosen = [assess(query.text)[0] for query, _ in labelled]
    right: dict[str, list[bool]] = {}
    for (query, gold), found in zip(labelled, chosen, strict=True):
        right.setdefault(query.dataset, []).append(found is gold)
    return ComplexityMeasures(
        outcomes=compare([gold.value for _, gold in labelled], [found.value for found in chosen]),
        by_dataset={name: sum(found) / len(found) for name, found in right.items()},
    )


def check_queries(queries: Sequence[RoutedQuery], profiles: Sequence[IndexProfile]) -> None:
    """See that there are questions and that each can be answered rightly."""
    if not queries:
        raise EvaluationError("there is no question to measure with; name a data set that has some")
    known = {profile.name for profile in profiles}
    for query in queries:
        if query.index is not None and query.index not in known:
            raise EvaluationError(
                f"{query.query_id} belongs to the index {query.index[:80]!r}, which is not among those to choose from "
                f"({', '.join(sorted(known))})"
            )


def _latency(spent_ms: Sequence[float]) -> Latency:
    if not spent_ms:
        return Latency(p50_ms=None, p95_ms=None)
    return Latency(p50_ms=float(np.percentile(spent_ms, 50)), p95_ms=float(np.percentile(spent_ms, 95)))


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


# One run over both stages of routing, and its result.

FORMAT: Final = 1
"""Version of the JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingBenchmark:
    """What one run measured."""

    stage_one: Mapping[str, StageOneMeasures]
    stage_two: Mapping[str, StageTwoMeasures] = field(default_factory=dict)
    complexity: ComplexityMeasures | None = None  # The judgment of complexity; None without labelled questions
    indexes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    datasets: tuple[dict[str, Any], ...] = ()
    descriptions: Mapping[str, Description] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    problems: ProblemReport = field(default_factory=ProblemReport)
    notes: tuple[str, ...] = ()
    seed: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types; but for latencies the same questions, settings and seed give the same values."""
        return {
            "format": FORMAT,
            "seed": self.seed,
            "datasets": [dict(facts) for facts in self.datasets],
            "indexes": {
                name: {
                    **facts,
                    "description": self.descriptions[name].text,
                    "description_from": self.descriptions[name].origin,
                }
                for name, facts in self.indexes.items()
            },
            "stage_one": {mode: measures.to_dict() for mode, measures in self.stage_one.items()},
            "stage_two": {mode: measures.to_dict() for mode, measures in self.stage_two.items()},
            "complexity": None if self.complexity is None else self.complexity.to_dict(),
            "left_out": dict(self.left_out),
            "problems": self.problems.to_dict(),
            "notes": list(self.notes),
        }

    def _repr_html_(self) -> str:
        """Draw the tables in Jupyter: escaped, no assets, colours of the theme."""
        return render("routing_benchmark.html", result=self)

    _repr_pretty_ = short_text


def bench_routing(
    material: RoutingMaterial,
    runners: Field,
    selectors: Mapping[str, StrategySelector],
    *,
    domain_terms: DomainTerms | None = None,
    journal: Journal | None = None,
    timer: Callable[[], float] = time.perf_counter,
    watcher: Watcher | None = None,
) -> RoutingBenchmark:
    """Measure both stages of routing and the judgment of complexity."""
    watch = watcher or SilentWatcher()
    profiles = list(material.profiles.values())
    check_queries(material.queries, profiles)
    stage_one = {}
    for name, contender in runners.contenders.items():
        watch.begin(f"stage one, {name}", len(material.queries))
        choices = choose(
            material.queries,
            profiles,
            contender.classifier,
            known=_known(journal, name),
            timer=timer,
            on_progress=watch.advance,
            keep=None if journal is None else partial(_keep, journal, name),
        )
        stage_one[name] = measure_choices(material.queries, choices, contender)
    stage_two = {}
    for name, selector in selectors.items():
        measured = evaluate_stage_two(
            material.queries, material.profiles, material.cards, selector, domain_terms=domain_terms, timer=timer
        )
        if measured is not None:
            stage_two[name] = measured
    return RoutingBenchmark(
        stage_one=stage_one,
        stage_two=stage_two,
        complexity=evaluate_complexity([*material.queries, *material.unlabelled]),
        indexes={p.name: {"nodes": p.nodes, "sampled": len(p.sample), "language": p.language} for p in profiles},
        datasets=material.datasets,
        descriptions=material.descriptions,
        left_out=runners.left_out,
        problems=material.problems,
        notes=material.notes,
        seed=material.seed,
    )


def material_key(material: RoutingMaterial, settings: Mapping[str, Any]) -> str:
    """Stand for all that the choices of one run depend on, so that only such a run goes on with them."""
    profiles = [
        (p.name, p.version, p.nodes, p.terms_total, p.description, hashlib.sha256(p.sample.tobytes()).hexdigest())
        for p in material.profiles.values()
    ]
    return fingerprint([__version__, profiles, [(q.query_id, q.text, q.index) for q in material.queries], settings])


def _keep(journal: Journal, name: str, choices: Sequence[Choice]) -> None:
    journal.keep(name, {"choices": [choice.to_dict() for choice in choices]})


def _known(journal: Journal | None, name: str) -> dict[str, Choice]:
    """Read the choices of an interrupted run; those that failed or cannot be read are made again."""
    part = {} if journal is None else journal.parts.get(name, {})
    try:
        choices = [Choice.from_dict(data) for data in part["choices"]]
    except (KeyError, TypeError):
        return {}
    return {choice.query_id: choice for choice in choices if not choice.error}


# Other people's ways to choose an index, behind the same protocol as ours, so that all run side by side.

UTTERANCES: Final = 5
"""How many of the nearest utterances count; semantic-router's default ``top_k``."""


class GivenEmbedding(BaseEmbedding):
    """An embedding model that knows its vectors: of the descriptions by text, and of the question asked now.

    Not for several threads.
    """

    model_name: str = "given"
    _texts: dict[str, list[float]] = PrivateAttr(default_factory=dict)
    _query: list[float] = PrivateAttr(default_factory=list)

    def learn(self, texts: Mapping[str, Vector]) -> None:
        """Remember the vectors of texts."""
        self._texts = {text: vector.tolist() for text, vector in texts.items()}

    def ask(self, query_vector: Vector) -> None:
        """Take a vector for the question that comes next, whatever its words."""
        self._query = query_vector.tolist()

    def _get_query_embedding(self, query: str) -> list[float]:  # noqa: ARG002 - of the base
        return self._query

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._texts[text]


class LlamaIndexEmbeddingSelector:
    """LlamaIndex's ``EmbeddingSingleSelector``, the class itself, fed with vectors that are known already.

    It embeds the question and every description, and takes the one of the greatest cosine. Its scores are no
    probabilities.
    """

    mode = "llamaindex_embedding_selector"

    def __init__(self, description_vectors: Mapping[str, Vector]) -> None:
        self._known = frozenset(description_vectors)
        self._embedding = GivenEmbedding()
        # The selector sees texts only; the name of an index is the text under which its vector is known.
        self._embedding.learn(description_vectors)
        self._selector = EmbeddingSingleSelector(self._embedding)

    def classify(
        self,
        query: str,
        profiles: Sequence[IndexProfile],
        *,
        query_vector: Vector | None,
        allowance: Budget = NO_LIMITS,  # noqa: ARG002 - of the protocol
    ) -> Selection:
        """Pick an index; see ``IndexClassifier``."""
        missing = [profile.name for profile in profiles if profile.name not in self._known]
        if query_vector is None or missing:
            what = f"the descriptions of {', '.join(missing)} have" if missing else "the question has"
            raise EvaluationError(f"{what} no vector, and {self.mode} goes by vectors alone")
        self._embedding.ask(query_vector)
        choices = [ToolMetadata(description=profile.name, name=profile.name) for profile in profiles]
        result = self._selector.select(choices, query)
        return _chosen(profiles[result.ind].name, {}, result.reason, self.mode)


class NearestUtteranceRouter:
    """What semantic-router's ``SemanticRouter`` does: the nearest utterances of all routes vote for their route.

    Its logic, written anew: sampled nodes serve as the utterances of an index, the ``top_k`` nearest of all are
    grouped by index, and the greatest mean (its default) or sum of cosines wins. It knows a threshold per route; none
    is set here, so it never abstains. Its scores are no probabilities.
    """

    def __init__(self, aggregation: str = "mean", top_k: int = UTTERANCES) -> None:
        if aggregation not in {"mean", "sum"} or top_k < 1:
            raise EvaluationError(f"aggregation must be mean or sum and top_k from 1, got {aggregation!r} and {top_k}")
        self.mode = f"nearest_utterance_{aggregation}"
        self._mean = aggregation == "mean"
        self._top_k = top_k
        self._stacked: tuple[tuple[int, ...], np.ndarray[tuple[int, int], np.dtype[np.float32]], list[str]] | None = (
            None
        )

    def classify(
        self,
        query: str,  # noqa: ARG002 - of the protocol
        profiles: Sequence[IndexProfile],
        *,
        query_vector: Vector | None,
        allowance: Budget = NO_LIMITS,  # noqa: ARG002 - of the protocol
    ) -> Selection:
        """Pick an index; see ``IndexClassifier``."""
        rows, names = self._utterances(profiles)
        if query_vector is None or not names:
            raise EvaluationError(
                f"the question has no vector or no index a sample, and {self.mode} goes by them alone"
            )
        cosines = rows @ query_vector
        nearest = np.argsort(-cosines, kind="stable")[: self._top_k]
        votes: dict[str, list[float]] = {}
        for at in nearest:
            votes.setdefault(names[at], []).append(float(cosines[at]))
        scores = {name: sum(found) / (len(found) if self._mean else 1) for name, found in votes.items()}
        best = max(scores, key=lambda name: scores[name])
        return _chosen(best, scores, f"nearest {self._top_k} utterances", self.mode)

    def _utterances(
        self, profiles: Sequence[IndexProfile]
    ) -> tuple[np.ndarray[tuple[int, int], np.dtype[np.float32]], list[str]]:
        """Return the samples of all profiles below each other, and the index of each row; made once."""
        key = tuple(id(profile) for profile in profiles)
        if self._stacked is None or self._stacked[0] != key:
            filled = [profile for profile in profiles if len(profile.sample)]
            rows = np.concatenate([profile.sample for profile in filled]) if filled else np.zeros((0, 0), np.float32)
            self._stacked = (key, rows, [profile.name for profile in filled for _ in range(len(profile.sample))])
        return self._stacked[1], self._stacked[2]


def _chosen(name: str, scores: Mapping[str, float], reason: str, mode: str) -> Selection:
    ranked = dict(sorted(scores.items(), key=lambda item: -item[1])) or {name: 1.0}
    return Selection(name=name, confidence=1.0, scores=ranked, margin=0.0, reason=reason, mode=mode)


# Everybody who is measured: every way of ours that can run here, and the peers.

ASKS_A_MODEL: Final = frozenset({"llm", "auto"})
"""Ways to choose the index that need a language model."""

BY_DESCRIPTION: Final = "embedding"
_NO_DESCRIPTIONS: Final = "not every index has an embedded description"
_NO_MODEL: Final = "no language model is configured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """Who takes part, and who could not and why, each by name."""

    contenders: Mapping[str, Contender]
    left_out: Mapping[str, str]


def stage_one_field(router: AgenticRouter, material: RoutingMaterial) -> Field:
    """Gather the ways to choose the index."""
    contenders: dict[str, Contender] = {}
    left_out: dict[str, str] = {}
    described = all(len(profile.description_vector) for profile in material.profiles.values())
    for mode in _modes(router.config):
        if mode in ASKS_A_MODEL and router.resources.model is None:
            left_out[mode] = _NO_MODEL
        elif mode == BY_DESCRIPTION and not described:
            left_out[mode] = _NO_DESCRIPTIONS
        else:
            config = router.config.with_changes(classifier=mode)
            contenders[mode] = Contender(classifier=make_classifier(config, router.resources.model))
    if material.passages:
        peer = LlamaIndexEmbeddingSelector(material.passages)
        note = "LlamaIndex's class; its latency leaves out that it embeds every description for each question"
        contenders[peer.mode] = Contender(classifier=peer, probabilities=False, peer=True, note=note)
    else:
        left_out[LlamaIndexEmbeddingSelector.mode] = _NO_DESCRIPTIONS
    for aggregation in ("mean", "sum"):
        router_like = NearestUtteranceRouter(aggregation)
        note = "semantic-router's logic written anew: 5 nearest sampled nodes, no threshold"
        contenders[router_like.mode] = Contender(classifier=router_like, probabilities=False, peer=True, note=note)
    return Field(contenders=contenders, left_out=left_out)


def stage_two_field(router: AgenticRouter) -> dict[str, StrategySelector]:
    """Gather the ways to choose the strategy that are the same for every index."""
    heuristic = HeuristicSelector()
    client = router.resources.model
    if client is None:
        return {heuristic.mode: heuristic}
    model = LLMSelector(client, heuristic)
    base = heuristic_selector(router.config.with_changes(selector="auto"))
    both = AutoSelector(base, LLMSelector(client, base))
    return {"heuristic": heuristic, "llm": model, "auto": both}


def _modes(config: RouterConfig) -> tuple[str, ...]:
    return get_args(type(config).model_fields["classifier"].annotation)


# What routing is measured on: profiles to choose from, and questions with their vectors.

MOST_DOCUMENTS: Final = 256
"""Documents of a collection that are embedded when there are no vectors of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingOptions:
    """How routing is to be measured."""

    vectors: Path | None = None  # Folder with NAME.npz, or one such file; None computes what is needed
    descriptions: Mapping[str, str] = field(default_factory=dict)
    also: tuple[str, ...] = ()
    most_documents: int = MOST_DOCUMENTS
    limit: int | None = None  # Most questions of each data set, drawn by the seed; None takes all
    seed: int = 0
    complexity: Mapping[str, Complexity] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingMaterial:
    """What routing is measured on."""

    profiles: Mapping[str, IndexProfile]
    cards: Mapping[str, tuple[StrategyCard, ...]]
    queries: tuple[RoutedQuery, ...]
    unlabelled: tuple[RoutedQuery, ...]
    descriptions: Mapping[str, Description]
    passages: Mapping[str, Vector]
    datasets: tuple[dict[str, Any], ...]
    problems: ProblemReport
    notes: tuple[str, ...]
    seed: int


# The profile of an index that is not built: what stage one would know of a collection.

SAMPLE_EMBEDDING: Final = "local:multilingual-e5-small-q4"
"""Identity of the embedding model that the sample's vectors come from."""

_NONE: Final = np.zeros(0, np.float32)


def dataset_profile(
    dataset: Dataset,
    known: KnownVectors | None,
    *,
    description: str = "",
    description_vector: Vector | None = None,
    sample_size: int = SAMPLE_SIZE,
) -> IndexProfile:
    """Make the profile of a BEIR folder: one node a document, as an index of short documents would have."""
    texts = {document.doc_id: passage(document) for document in dataset.documents}
    nodes = [
        ProfiledNode(document.doc_id, texts[document.doc_id], document.metadata)
        for document in dataset.documents
        if texts[document.doc_id]
    ]
    vectors = known.documents if known is not None else {}
    chosen = sample_ids([node.node_id for node in nodes if node.node_id in vectors], size=sample_size)
    dimension = known.dimension if known is not None else 0
    sample = np.stack([vectors[doc_id] for doc_id in chosen]) if chosen else np.zeros((0, dimension), np.float32)
    return make_profile(
        nodes,
        sample,
        name=dataset.name,
        description=description,
        description_vector=_NONE if description_vector is None else description_vector,
        version=1,
    )


def sample_profile(name: str, *, description_vector: Vector | None = None) -> IndexProfile:
    """Make the profile of an index of the sample corpus from the vectors that ship with it; nothing is built."""
    sample = next((index for index in SAMPLE_INDEXES if index.name == name), None)
    if sample is None:
        known = ", ".join(index.name for index in SAMPLE_INDEXES)
        raise EvaluationError(f"the sample has no index {name[:80]!r} (it has {known})")
    found = [document for file in discover(sample.folder) for document in read_source(file, root=sample.folder)]
    documents = [document for document in found if isinstance(document, SourceDocument)]
    nodes = [node for document in documents for node in chunk_document(document, ChunkSettings())]
    texts = {node.node_id: embedded_text(node) for node in nodes}
    chosen = sample_ids(list(texts))
    hashes = [text_hash(texts[node_id]) for node_id in chosen]
    packed = PackedVectors(VECTORS).get_many(SAMPLE_EMBEDDING, hashes)
    if not all(key in packed for key in hashes):
        raise EvaluationError(f"the packed vectors of the sample index {name!r} are not those of its text; pack anew")
    return make_profile(
        [ProfiledNode(node.node_id, texts[node.node_id], node.metadata) for node in nodes],
        np.stack([packed[key] for key in hashes]),
        name=name,
        description=sample.description,
        description_vector=_NONE if description_vector is None else description_vector,
        version=1,
    )


# What an index is said to hold, for the ways of routing that go by descriptions.

TERMS: Final = 15
"""How many terms a description of terms has."""

# What stands between words; combining marks are no word characters for Python, so words cannot be asked for as such.
_BETWEEN: Final = re.compile(r"[\s\d!-/:-@\[-`{-~¡«»¿।॥،؛؟\u2000-\u206f\u3000-\u303f]+")
_UNSPACED: Final = frozenset({Script.THAI, Script.LAO, Script.KHMER, Script.MYANMAR, Script.HAN, Script.KANA})
_MIN_LETTERS: Final = 3
_TITLE_CHARS: Final = 60
_EXAMINED: Final = 2_000
_MAX_RUN: Final = 30


@dataclass(frozen=True, slots=True)
class Description:
    """A description and where it comes from."""

    text: str
    origin: str


def read_descriptions(path: Path) -> dict[str, str]:
    """Read a file of descriptions."""
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as err:
        raise EvaluationError(f"cannot read {path} as JSON: {type(err).__name__}; check the path and the file") from err
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
    """Find a description for each of several collections."""
    described: dict[str, Description] = {}
    bare = []
    for dataset in datasets:
        if given.get(dataset.name):
            described[dataset.name] = Description(given[dataset.name], "file")
        elif dataset.description:
            described[dataset.name] = Description(dataset.description, "dataset.json")
        else:
            bare.append(dataset.name)
    if bare:
        shares = {dataset.name: _word_shares(dataset) for dataset in datasets}
        described |= {name: _made(dataset, shares) for dataset in datasets if (name := dataset.name) in bare}
    return described


def _made(dataset: Dataset, shares: Mapping[str, Mapping[str, float]]) -> Description:
    step = max(1, len(dataset.documents) // TERMS)
    some = [document for document in dataset.documents[::step] if passage(document)][:TERMS]
    if dominant_script(" ".join(passage(document) for document in some)) in _UNSPACED:
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
    stop = frozenset().union(*(stopwords(language) for language in stopword_languages()))

    def weight(word: str) -> float:
        elsewhere = sum(table.get(word, 0.0) for table in others) / len(others) if others else 0.0
        return own[word] * math.log((own[word] + 0.01) / (elsewhere + 0.01)) if others else own[word]

    ranked = sorted((word for word in own if word not in stop), key=lambda word: (-weight(word), word))
    return ranked[:TERMS]


# From data sets to what routing is measured on.

_SAMPLE_NAMES: Final = frozenset(index.name for index in SAMPLE_INDEXES)


def sample_indexes_of(datasets: Sequence[Dataset], existing: Sequence[str]) -> set[str]:
    """Return the indexes of the sample that data sets are about: those of ``sample``."""
    found: set[str] = set()
    for dataset in datasets:
        if dataset.kind is DatasetKind.QUESTIONS:
            named = {query.index for query in dataset.queries if query.index is not None} & _SAMPLE_NAMES
            found |= named if dataset.name == SAMPLE else named - set(existing)
    return found


def prepare(
    datasets: Sequence[Dataset],
    router: AgenticRouter,
    options: RoutingOptions,
    *,
    watcher: Watcher | None = None,
) -> RoutingMaterial:
    """Gather what routing is measured on.

    Every BEIR folder is an index of its own; a questions file is asked of the indexes that it names.
    """
    check_names(datasets)
    return _Preparation(datasets, router, options, watcher or SilentWatcher()).run()


class _Preparation:
    """One run of :func:`prepare`."""

    def __init__(
        self, datasets: Sequence[Dataset], router: AgenticRouter, options: RoutingOptions, watcher: Watcher
    ) -> None:
        self._datasets = [dataset.limited(options.limit, options.seed) for dataset in datasets]
        self._collections = [dataset for dataset in self._datasets if dataset.kind is DatasetKind.BEIR]
        self._router = router
        self._options = options
        self._watcher = watcher
        self._from_sample = sample_indexes_of(datasets, router.index_names())
        self._notes: list[str] = []

    def run(self) -> RoutingMaterial:
        known = {dataset.name: self._vectors_of(dataset) for dataset in self._datasets}
        collections = {dataset.name: known[dataset.name] for dataset in self._collections}
        check_dimensions(collections)
        descriptions = describe(self._collections, self._options.descriptions)
        names = self._index_names()
        as_query = self._described(descriptions, collections)
        profiles = {
            dataset.name: dataset_profile(
                dataset,
                collections[dataset.name],
                description=descriptions[dataset.name].text,
                description_vector=as_query.get(dataset.name),
            )
            for dataset in self._collections
        }
        offered = {name: tuple(spec.card() for spec in REGISTRY.values()) for name in profiles}
        for name in names:
            profiles[name], offered[name] = self._existing(name)
            origin = SAMPLE if name in self._from_sample else "index"
            descriptions[name] = Description(profiles[name].description, origin)
        labelled, unlabelled = self._queries(known)
        _check_widths(profiles, labelled)
        return RoutingMaterial(
            profiles=profiles,
            cards=offered,
            queries=tuple(labelled),
            unlabelled=tuple(unlabelled),
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
        place = self._options.vectors
        if place is not None:
            path = vectors_file(place, dataset.name)
            if path.exists() or dataset.kind is DatasetKind.BEIR:
                return load_vectors(path, dataset)
        embedder = self._embedder()
        total = len(dataset.queries) + min(len(dataset.documents), self._options.most_documents)
        self._watcher.begin(f"embedding {dataset.name}", total)
        return embed_dataset(
            dataset, embedder, most_documents=self._options.most_documents, on_progress=self._watcher.advance
        )

    def _index_names(self) -> list[str]:
        """Name the existing indexes that are to be chosen from, in order of their first question."""
        taken = {dataset.name for dataset in self._collections}
        asked = [query.index for dataset in self._datasets for query in dataset.queries if query.index is not None]
        names = [name for name in dict.fromkeys([*asked, *self._options.also]) if name not in taken]
        existing = self._router.index_names()
        for name in names:
            if name not in existing and name not in self._from_sample:
                raise UnknownIndexError(unknown_name("index", name, {*existing, *taken, *_SAMPLE_NAMES}))
        return names

    def _existing(self, name: str) -> tuple[IndexProfile, tuple[StrategyCard, ...]]:
        if name in self._from_sample:
            description = next(index.description for index in SAMPLE_INDEXES if index.name == name)
            vector = self._embedder().embed_query(description)
            return sample_profile(name, description_vector=vector), tuple(spec.card() for spec in REGISTRY.values())
        index = self._router.index(name)
        return index.profile(), cards(index, measured=self._router.resources.trained(index).measured)

    def _described(
        self, descriptions: Mapping[str, Description], known: Mapping[str, KnownVectors]
    ) -> dict[str, Vector]:
        """Embed the descriptions as questions, as an index does; nothing when the model is not that of the vectors."""
        if not descriptions:
            return {}
        try:
            embedder = self._embedder()
            if self._options.vectors is not None and not self._same_model(embedder, known):
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

    def _same_model(self, embedder: EmbeddingModel, known: Mapping[str, KnownVectors]) -> bool:
        """Embed one question whose vector is known and compare."""
        for dataset in self._collections:
            for query in dataset.queries:
                vector = known[dataset.name].queries.get(query.query_id)
                if vector is not None:
                    found = embedder.embed_query(query.text)
                    return found.shape == vector.shape and float(found @ vector) >= SAME_MODEL
        return True

    def _passages(self, profiles: Mapping[str, IndexProfile]) -> dict[str, Vector]:
        """Embed the descriptions as passages, as LlamaIndex's selector does."""
        names = [name for name, profile in profiles.items() if len(profile.description_vector)]
        if len(names) < len(profiles):
            return {}
        matrix = self._embedder().embed_sentences([profiles[name].description for name in names])
        return dict(zip(names, np.asarray(matrix, dtype=np.float32), strict=True))

    def _queries(self, known: Mapping[str, KnownVectors]) -> tuple[list[RoutedQuery], list[RoutedQuery]]:
        labelled: list[RoutedQuery] = []
        unlabelled: list[RoutedQuery] = []
        for dataset in self._datasets:
            vectors = known[dataset.name].queries
            for query in dataset.queries:
                if query.query_id in vectors:
                    made = self._routed(query, dataset, vectors[query.query_id])
                    (labelled if query.index is not None or not query.answerable else unlabelled).append(made)
        if not labelled:
            paths = ", ".join(str(dataset.path) for dataset in self._datasets)
            raise EvaluationError(f"no question of {paths} can be asked: none has both a label and a vector")
        return labelled, unlabelled

    def _routed(self, query: LabelledQuery, dataset: Dataset, vector: Vector) -> RoutedQuery:
        made = RoutedQuery(
            query_id=f"{dataset.name}/{query.query_id}",
            text=query.text,
            dataset=dataset.name,
            vector=vector,
            index=query.index if query.answerable else None,
            strategy=query.strategy,
            complexity=query.complexity,
        )
        given = self._options.complexity.get(dataset.name)
        return replace(made, complexity=given) if made.complexity is None and given is not None else made


def _check_widths(profiles: Mapping[str, IndexProfile], queries: Sequence[RoutedQuery]) -> None:
    """See that every question can be compared with every sample, or routing would go by words without saying so."""
    widths = {f"index {name}": profile.sample.shape[1] for name, profile in profiles.items() if len(profile.sample)}
    for query in queries:
        if query.vector is not None:
            widths.setdefault(f"questions of {query.dataset}", len(query.vector))
    if len(set(widths.values())) > 1:
        told = ", ".join(f"{what} {width}" for what, width in widths.items())
        raise EvaluationError(f"vectors of different dimensions cannot be compared: {told}; take one embedding model")
