"""Measuring both stages of routing and the judgment of complexity on labelled questions."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from agentic_retriever import __version__, routing
from agentic_retriever.errors import EvaluationError
from agentic_retriever.evaluation import measures, peers
from agentic_retriever.evaluation.datasets import Asked, LabelledQuery, ProblemReport, Vector
from agentic_retriever.evaluation.peers import Run
from agentic_retriever.indices import IndexProfile
from agentic_retriever.resources import make_classifier, make_selector, measured
from agentic_retriever.retrievers import REGISTRY, cards
from agentic_retriever.router import AgenticRouter
from agentic_retriever.routing import DomainTerms, StrategySelector, assess_complexity
from agentic_retriever.schema import Record, Selection, StrategyCard
from agentic_retriever.show import Cell, Section, figure_text, render, short_text, shortened

FORMAT: Final = 1  # version of the JSON
FAILED: Final = "(failed)"  # stands for the choice of a question on which something raised
ASKS_A_MODEL: Final = frozenset({"llm", "auto"})  # ways to choose the index that need a language model
CHOICE: Final = "choice"  # kind of the record of a choice in a journal
_WAYS: Final = ("auto", "profile", "embedding", "llm")
_NO_DESCRIPTIONS: Final = "not every index has an embedded description"
_NO_MODEL: Final = "no language model is configured"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedQuery(LabelledQuery):
    """A question as routing is asked it: its text, its vector, and the labels that routing is measured by."""

    dataset: str
    vector: Vector | None  # The embedded question, (dimension,)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingMaterial:
    """What routing is measured on."""

    profiles: dict[str, IndexProfile] = field(default_factory=dict)
    cards: dict[str, Sequence[StrategyCard]] = field(default_factory=dict)
    passages: dict[str, Vector] = field(default_factory=dict)  # the descriptions, embedded as passages
    queries: list[RoutedQuery] = field(default_factory=list)
    unlabelled: list[RoutedQuery] = field(default_factory=list)  # whose index is not known
    datasets: list[dict[str, Any]] = field(default_factory=list)
    problems: list[ProblemReport] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seed: int = 0

    def add_index(self, router: AgenticRouter, name: str, *, owned: bool) -> None:
        """Take what stage one and stage two know of an index; one of the benchmark's own is offered every strategy."""
        index = router.index(name)
        profile = self.profiles[name] = index.profile()
        self.cards[name] = tuple(REGISTRY.values()) if owned else cards(index, measured=measured(index)[0])
        if profile.description:
            embedded = router.resources.embedding().embed_sentences([profile.description])
            self.passages[name] = embedded.astype(np.float32)[0]

    def add_queries(self, dataset: str, asked: Asked, *, index: str | None = None) -> None:
        """Take questions, of one index or of those that they name."""
        for query in asked.queries:
            wanted = (index or query.index) if query.answerable else None
            routed = RoutedQuery(
                query_id=f"{dataset}/{query.query_id}", text=query.text, dataset=dataset, index=wanted,
                vector=asked.vectors.get(query.query_id), answerable=query.answerable, strategy=query.strategy,
                complexity=query.complexity,
            )  # fmt: skip
            (self.queries if wanted is not None or not query.answerable else self.unlabelled).append(routed)

    @property
    def widths(self) -> dict[str, int]:
        """Dimensions of the sample of every index that has one."""
        return {name: p.sample.shape[1] for name, p in self.profiles.items() if len(p.sample)}


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOneMeasures(Record):
    outcomes: measures.Outcomes
    reliability: measures.Reliability | None  # None where its scores are no probabilities
    macro_ece: float | None  # Expected calibration error with each index counting the same
    reached: float | None
    searched: float | None
    abstention: measures.Abstention
    escalation_rate: float
    latency_ms: Mapping[str, float | None]  # p50 and p95 of one choice, the embedding of the question excluded
    llm_calls: int = 0
    failures: tuple[measures.Failure, ...] = ()
    peer: bool = False
    note: str = ""

    @property
    def ece(self) -> float | None:
        """Expected calibration error, each question counting the same."""
        return self.reliability.ece if self.reliability is not None else None

    def to_dict(self) -> dict[str, Any]:
        told = Record.to_dict(self)
        made = told.pop("outcomes")
        bins = None if self.reliability is None else told["reliability"]["bins"]
        by_index = {"queries": made.pop("count"), "by_index": made.pop("by_label")}
        return {**made, **told, **by_index, "ece": self.ece, "reliability": bins}

    def column(self) -> dict[str, str]:
        right, silent = self.outcomes, self.abstention
        chosen = (right.accuracy, right.macro_accuracy, right.macro_f1, self.reached)
        return {
            **{what: figure_text(value, 4) for what, value in zip(_MORE_IS_BETTER, chosen, strict=True)},
            "calibration error": figure_text(self.ece, 4),
            "calibration error, macro": figure_text(self.macro_ece, 4),
            "abstention precision": figure_text(silent.precision),
            "abstention recall": figure_text(silent.recall),
            "abstained though answerable": figure_text(silent.false_rate),
            "escalated to a model": figure_text(self.escalation_rate),
            **{f"{at} ms": figure_text(ms, 2) for at, ms in self.latency_ms.items()},
        }


_MORE_IS_BETTER: Final = ("accuracy", "macro accuracy", "macro F1", "index among those searched")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTwoMeasures(Record):
    outcomes: measures.Outcomes
    latency_ms: Mapping[str, float | None]
    escalation_rate: float
    failures: tuple[measures.Failure, ...]

    def to_dict(self) -> dict[str, Any]:
        told = Record.to_dict(self)
        return {**told.pop("outcomes"), **told}


@dataclass(frozen=True, slots=True, kw_only=True)
class ComplexityMeasures(Record):
    outcomes: measures.Outcomes
    by_dataset: Mapping[str, float]

    def to_dict(self) -> dict[str, Any]:
        told = Record.to_dict(self)
        return {**told.pop("outcomes"), **told, "balanced_accuracy": self.outcomes.macro_accuracy}


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingBenchmark(Record):
    stage_one: Mapping[str, StageOneMeasures]
    stage_two: Mapping[str, StageTwoMeasures]
    complexity: ComplexityMeasures | None  # None without labelled questions
    indexes: Mapping[str, Mapping[str, Any]]
    datasets: tuple[dict[str, Any], ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    problems: ProblemReport = field(default_factory=ProblemReport)
    notes: tuple[str, ...] = ()
    seed: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types; but for latencies the same questions, settings and seed give the same values."""
        return {"format": FORMAT, **Record.to_dict(self)}

    def tables(self) -> list[Section]:
        sections = [self._indexes(), *self.stage_one_tables()]
        first = next(iter(self.stage_one))
        sections.append(measures.confusion_section(f"confusion, {first}", self.stage_one[first].outcomes))
        for name, one in self.stage_one.items():
            sections += [] if one.reliability is None else [measures.reliability_section(name, one.reliability)]
        for name, two in self.stage_two.items():
            sections += measures.outcomes_sections(f"strategy, {name}", two.outcomes)
        if self.complexity is not None:
            sections += measures.outcomes_sections("complexity", self.complexity.outcomes)
        return sections

    def stage_one_tables(self) -> list[Section]:
        made = list(self.stage_one.values())
        silent = made[0].abstention
        ways = [measures.row_name(name, peer=one.peer) for name, one in self.stage_one.items()]
        by_index = [one.outcomes.by_label() for one in made]
        shares = [
            [name, *(figure_text(table[name]["recall"]) if name in table else "-" for table in by_index)]
            for name in dict.fromkeys(name for table in by_index for name in table)
        ]
        title = f"stage one: {silent.asked:,} questions, {silent.out_of_scope:,} of them out of scope"
        columns, rows = [one.column() for one in made], []
        for what in columns[0]:
            texts = [column[what] for column in columns]
            best = max(texts) if what in _MORE_IS_BETTER else ""
            rows.append([what, *(Cell(text, best=text == best) for text in texts)])
        return [Section(title, ["measure", *ways], rows), Section("accuracy by index", ["index", *ways], shares)]

    @property
    def remarks(self) -> list[str]:
        return [*(f"{name} was left out: {why}" for name, why in self.left_out.items()), *self.notes]

    @property
    def warnings(self) -> list[str]:
        failing = measures.failure_lines({name: one.failures for name, one in self.stage_one.items()})
        return [*self.problems.summary(), *failing]

    def _indexes(self) -> Section:
        headers = ["index", "nodes", "sampled", "language", "description"]
        rows = [
            [name, *list(facts.values())[:3], shortened(facts["description"], 70)]
            for name, facts in self.indexes.items()
        ]
        return Section("indexes to choose from", headers, rows)

    def _repr_html_(self) -> str:
        return render("sections.html", parts=[(self.tables(), self.warnings, self.remarks)])

    _repr_pretty_ = short_text


def measure_routing(material: RoutingMaterial, router: AgenticRouter, run: Run) -> RoutingBenchmark:
    profiles = list(material.profiles.values())
    check_queries(material.queries, profiles)
    contenders, left_out = stage_one_field(router, material)
    stage_one = {
        way: evaluate_stage_one(material.queries, profiles, contender, run, way=way)
        for way, contender in contenders.items()
    }
    terms = DomainTerms.parse(router.config.domain_terms)
    stage_two = {
        way: evaluate_stage_two(material, selector, run, way=way, terms=terms)
        for way, selector in stage_two_field(router).items()
    }
    return RoutingBenchmark(
        stage_one=stage_one,
        stage_two={way: measured for way, measured in stage_two.items() if measured is not None},
        complexity=evaluate_complexity([*material.queries, *material.unlabelled]),
        indexes={
            p.name: {"nodes": p.nodes, "sampled": len(p.sample), "language": p.language, "description": p.description}
            for p in profiles
        },
        datasets=tuple(material.datasets),
        left_out=left_out,
        problems=ProblemReport.merged(material.problems),
        notes=tuple(material.notes),
        seed=material.seed,
    )


def material_key(material: RoutingMaterial, settings: Mapping[str, Any]) -> str:
    """Stand for all that the choices of one run depend on, so that only such a run goes on with them."""
    profiles = [
        (p.name, p.version, p.nodes, p.terms_total, p.description, hashlib.sha256(p.sample.tobytes()).hexdigest())
        for p in material.profiles.values()
    ]
    questions = [(q.query_id, q.text, q.index) for q in material.queries]
    return peers.fingerprint([__version__, profiles, questions, settings])


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


# Each stage: who takes part, what each chose, and how right that was.


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    classifier: routing.IndexClassifier
    peer: bool = False  # whose confidence does not mean to be a probability
    note: str = ""


def stage_one_field(router: AgenticRouter, material: RoutingMaterial) -> tuple[dict[str, Contender], dict[str, str]]:
    """Gather the ways to choose the index, ours and the peers', and say which could not take part and why."""
    contenders: dict[str, Contender] = {}
    left_out: dict[str, str] = {}
    described = all(len(profile.description_vector) for profile in material.profiles.values())
    for way in _WAYS:
        if way in ASKS_A_MODEL and router.resources.model is None:
            left_out[way] = _NO_MODEL
        elif way == "embedding" and not described:
            left_out[way] = _NO_DESCRIPTIONS
        else:
            config = router.config.with_changes(classifier=way)
            contenders[way] = Contender(classifier=make_classifier(config, router.resources))
    if described and material.passages.keys() == material.profiles.keys():
        selector = peers.LlamaIndexEmbeddingSelector(material.passages)
        note = "LlamaIndex's class; its latency leaves out that it embeds every description for each question"
        contenders[selector.mode] = Contender(classifier=selector, peer=True, note=note)
    else:
        left_out[peers.LlamaIndexEmbeddingSelector.mode] = _NO_DESCRIPTIONS
    for aggregation in ("mean", "sum"):
        nearest = peers.NearestUtteranceRouter(list(material.profiles.values()), aggregation)
        note = "semantic-router's logic written anew: 5 nearest sampled nodes, no threshold"
        contenders[nearest.mode] = Contender(classifier=nearest, peer=True, note=note)
    return contenders, left_out


def evaluate_stage_one(
    queries: Sequence[RoutedQuery], profiles: Sequence[IndexProfile], contender: Contender, run: Run, *, way: str
) -> StageOneMeasures:
    """Ask one way for the index of every question, the first one twice, as it fills the caches; measure the choices."""

    def ask(query: RoutedQuery) -> Selection:
        return contender.classifier.classify(query.text, profiles, query_vector=query.vector)

    what = f"stage one, {way}"
    choices = run.ask((CHOICE, way), queries, ask, _facts, what=what, opening=lambda query: run.timed(ask, query))
    pairs = [(query, choices[query.query_id]) for query in queries]
    inside = [(query.index, choice) for query, choice in pairs if query.index]
    reliability = macro = None  # with each question counting the same, and with each index counting the same
    if not contender.peer:
        made = [(index, choice) for index, choice in inside if choice["name"]]
        sure = measures.clamped(choice["confidence"] for _, choice in made)
        right = [choice["name"] == index for index, choice in made]
        sizes = Counter(index for index, _ in made)
        reliability = measures.measure_reliability(sure, right)
        macro = measures.measure_reliability(sure, right, weights=[1 / sizes[index] for index, _ in made])
    return StageOneMeasures(
        outcomes=measures.compare([index for index, _ in inside], [choice["name"] or FAILED for _, choice in inside]),
        reliability=reliability,
        macro_ece=None if macro is None else macro.ece,
        reached=measures.mean([index in choice["names"] for index, choice in inside]),
        searched=measures.mean([len(choice["names"]) for _, choice in inside]),
        abstention=measures.Abstention(
            asked=len(queries),
            out_of_scope=sum(query.index is None for query in queries),
            abstained=sum(choice["abstained"] for choice in choices.values()),
            right=sum(choice["abstained"] and query.index is None for query, choice in pairs),
        ),
        **_costs(choices),
        llm_calls=sum(choice["llm_calls"] for choice in choices.values()),
        peer=contender.peer,
        note=contender.note,
    )


def _facts(_: RoutedQuery, selection: Selection | None) -> dict[str, Any]:
    if selection is None:
        return {"name": "", "names": [], "confidence": 0.0, "abstained": False, "escalated": False, "llm_calls": 0}
    alike = ("name", "names", "confidence", "abstained", "escalated")
    calls = sum(usage.calls for usage in selection.spent)
    return {**{name: getattr(selection, name) for name in alike}, "llm_calls": calls}


def _costs(choices: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "escalation_rate": sum(one["escalated"] for one in choices.values()) / len(choices),
        "latency_ms": measures.p50_p95([one["ms"] for one in choices.values()]),
        "failures": measures.failures_of(choices),
    }


def stage_two_field(router: AgenticRouter) -> dict[str, StrategySelector]:
    """Gather the ways to choose the strategy that are the same for every index."""
    heuristic = routing.HeuristicSelector()
    client = router.resources.model
    if client is None:
        return {heuristic.mode: heuristic}
    both = make_selector(router.config.with_changes(selector="auto"), client)
    return {"heuristic": heuristic, "llm": routing.LLMSelector(client, heuristic), "auto": both}


def evaluate_stage_two(
    material: RoutingMaterial, selector: StrategySelector, run: Run, *, way: str, terms: DomainTerms | None = None
) -> StageTwoMeasures | None:
    """Let one way to choose the strategy answer every question that says which suits it, each of its own index."""
    labelled = [query for query in material.queries if query.index is not None and query.strategy is not None]
    if not labelled:
        return None

    def select(query: RoutedQuery) -> Selection:
        score, index = assess_complexity(query.text)[1], str(query.index)
        features = routing.query_features(query.text, material.profiles[index], score, domain_terms=terms)
        return selector.select(query.text, material.cards[index], features=features)

    choices = run.ask(("strategy", way), labelled, select, _facts, what=f"stage two, {way}")
    gold = [query.strategy.value for query in labelled if query.strategy is not None]
    chosen = [choices[query.query_id]["name"] or FAILED for query in labelled]
    return StageTwoMeasures(outcomes=measures.compare(gold, chosen), **_costs(choices))


def evaluate_complexity(queries: Sequence[RoutedQuery]) -> ComplexityMeasures | None:
    judged = [(q.dataset, q.complexity, assess_complexity(q.text)[0]) for q in queries if q.complexity is not None]
    if not judged:
        return None
    right: dict[str, list[bool]] = {}
    for dataset, gold, found in judged:
        right.setdefault(dataset, []).append(found is gold)
    return ComplexityMeasures(
        outcomes=measures.compare([gold.value for _, gold, _ in judged], [found.value for _, _, found in judged]),
        by_dataset={name: sum(found) / len(found) for name, found in right.items()},
    )
