"""Measures: of rankings by ``ir_measures``, of answers by words, of choices, and how sure all these are."""

import importlib
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from llama_index.core.schema import NodeWithScore

from agentic_retriever.errors import AgenticRetrieverError, ConfigError, EvaluationError
from agentic_retriever.schema import Record
from agentic_retriever.show import Cell, Section, figure_text
from agentic_retriever.text.scripts import Script, script_of

# The measures of a benchmark, as ``ir_measures`` writes them; the first one is what strategies are compared by.
MEASURES: Final = ("nDCG@10", "R@10", "R@100", "RR", "AP")
AUTO: Final = "auto"  # name of the row in which the router chooses the strategy itself
ORACLE: Final = "oracle"  # name of the row that takes for each question the strategy that did best on it
RESAMPLES: Final = 2_000  # samples of a bootstrap
PERMUTATIONS: Final = 10_000  # random sign changes of a test; with up to 13 differences all of them are tried instead
BINS: Final = 15  # bins of equal width for calibration, as in the paper
STAGES: Final = ("embedding", "routing", "retrieval", "rerank", "total")  # of a query, where a row tells them apart
_EXACT_UP_TO: Final = 13
_BLOCK: Final = 1_000
_TOLERANCE: Final = 1e-12
_OVERLAP: Final = 60  # characters


def fold_to_documents(nodes: Iterable[NodeWithScore]) -> list[str]:
    """Rank documents by the best of their nodes."""
    best: dict[str, float] = {}
    for node in nodes:
        doc_id = str(node.node.ref_doc_id or node.node.node_id)
        best[doc_id] = max(best.get(doc_id, -math.inf), -math.inf if node.score is None else float(node.score))
    # The sort is stable, so equals stay in the order in which a reader meets them.
    return sorted(best, key=lambda doc_id: -best[doc_id])


class Span(NamedTuple):
    """What a question wants: characters ``start`` to ``end`` of the source text of a document."""

    doc_id: str
    start: int
    end: int

    @property
    def name(self) -> str:
        return f"{self.doc_id}[{self.start}:{self.end}]"

    def is_found_by(self, doc_id: str | None, start: int | None, end: int | None) -> bool:
        """Tell whether a passage overlaps by 60 characters (by all, if the span is shorter) or by half of itself."""
        if doc_id != self.doc_id or start is None or end is None:
            return False
        shared = min(self.end, end) - max(self.start, start)
        return shared > 0 and (shared >= min(_OVERLAP, self.end - self.start) or 2 * shared >= end - start)


def fold_to_spans(nodes: Iterable[NodeWithScore], spans: Sequence[Span]) -> list[str]:
    """Rank spans by the first node that finds them; a node that finds nothing new takes a place of its own."""
    ranked: list[str] = []
    for at, node in enumerate((one.node for one in nodes), start=1):
        place = node.ref_doc_id, getattr(node, "start_char_idx", None), getattr(node, "end_char_idx", None)
        new = [span.name for span in spans if span.is_found_by(*place) and span.name not in ranked]
        ranked += new or [f"{place[0]} ({at})"]
    return ranked


def measure_rankings(
    qrels: Mapping[str, Mapping[str, int]], rankings: Mapping[str, Sequence[str]], measures: Sequence[str] = MEASURES
) -> dict[str, dict[str, float]]:
    """Measure each ranking; a question without one counts 0."""
    library = optional("ir_measures", "measuring retrieval")
    wanted = {library.parse_measure(name): name for name in measures}
    judged = {query: dict(grades) for query, grades in qrels.items()}
    # Ranks as scores, so that ties are not broken anew by the ids of documents.
    ranked = {query: ranking for query, ranking in rankings.items() if ranking}
    run = {query: {doc_id: float(len(ids) - at) for at, doc_id in enumerate(ids)} for query, ids in ranked.items()}
    found = {query: dict.fromkeys(measures, 0.0) for query in qrels}
    for metric in library.iter_calc(list(wanted), judged, run) if run else ():
        value = float(metric.value)
        if metric.query_id in found and math.isfinite(value):
            found[metric.query_id][wanted[metric.measure]] = value
    return found


def ndcg_by_query(
    qrels: Mapping[str, Mapping[str, int]], rankings: Mapping[str, Sequence[str]], *, cutoff: int = 10
) -> dict[str, float]:
    """Measure each ranking by normalised discounted cumulative gain (K. Järvelin and J. Kekäläinen, TOIS 2002)."""
    name = f"nDCG@{cutoff}"
    return {query: values[name] for query, values in measure_rankings(qrels, rankings, [name]).items()}


def optional(module: str, what: str) -> Any:  # noqa: ANN401 - a module without types
    """Return a module of the extra ``bench``; its absence says what needs it."""
    try:
        return importlib.import_module(module)
    except ImportError as err:
        raise ConfigError(f"{what} needs the extra 'bench': pip install 'agentic-retriever[bench]'") from err


# Answers, word by word.

_MARKER: Final = re.compile(r"\[\d+\]")
_ARTICLES: Final = frozenset({"a", "an", "the"})
# Scripts that put no spaces between words
UNSPACED: Final = frozenset({Script.THAI, Script.LAO, Script.KHMER, Script.MYANMAR, Script.HAN, Script.KANA})


def answer_f1(answer: str, gold: str) -> float:
    """Return the F1 of an answer's words (as SQuAD), or of its characters in ``UNSPACED`` scripts (as MLQA)."""
    found, right = answer_tokens(answer), answer_tokens(gold)
    if not found or not right:
        return float(found == right)
    shared = sum((Counter(found) & Counter(right)).values())
    return 2 * shared / (len(found) + len(right))


def answer_recall(answer: str, gold: str) -> float:
    """Return the share of the words of a right answer that an answer has; unlike F1, saying more costs nothing."""
    right = Counter(answer_tokens(gold))
    return (Counter(answer_tokens(answer)) & right).total() / right.total() if right else 1.0


def exact_match(answer: str, gold: str) -> bool:
    return answer_tokens(answer) == answer_tokens(gold)


def answer_tokens(text: str) -> list[str]:
    """Return the words that are compared; single characters in scripts without spaces."""
    plain = unicodedata.normalize("NFKC", _MARKER.sub(" ", text)).casefold()
    return [word for word in "".join(map(_apart, plain)).split() if word not in _ARTICLES]


def _apart(char: str) -> str:
    if unicodedata.category(char)[0] in "PSC":
        return " "
    return f" {char} " if script_of(char) in UNSPACED else char


# How sure a mean is, and whether two ways differ.


def bootstrap_interval(values: Sequence[float], *, seed: int, resamples: int = RESAMPLES) -> tuple[float, float]:
    """Return the 95 % percentile bootstrap interval of a mean (B. Efron, Annals of Statistics 7, 1979)."""
    if not len(values) or resamples < 1:
        raise EvaluationError(f"a bootstrap needs a value and a sample; got {len(values)} and {resamples}")
    numbers, rng = np.asarray(values, dtype=np.float64), np.random.default_rng(seed)
    means = [
        numbers[rng.integers(0, len(numbers), size=(min(_BLOCK, resamples - start), len(numbers)))].mean(axis=1)
        for start in range(0, resamples, _BLOCK)
    ]
    low, high = np.quantile(np.concatenate(means), [0.025, 0.975])
    return float(low), float(high)


def randomisation_test(first: Sequence[float], second: Sequence[float], *, seed: int) -> float:
    """Return how probable so large a mean difference is if it does not matter which of two ways was taken.

    Paired and two-sided (M. Smucker et al., CIKM 2007); exact with up to 13 questions that differ, else by chance.
    """
    if len(first) != len(second) or not len(first):
        raise EvaluationError(f"a paired test needs as many values of both, got {len(first)} and {len(second)}")
    gaps = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    gaps = gaps[gaps != 0]
    if not len(gaps):
        return 1.0
    seen = abs(float(gaps.sum())) - _TOLERANCE
    if len(gaps) <= _EXACT_UP_TO:
        bits = (np.arange(2 ** len(gaps))[:, None] >> np.arange(len(gaps))) & 1
        return float(np.mean(np.abs((1 - 2 * bits) @ gaps) >= seen))
    rng, extreme = np.random.default_rng(seed), 0
    for start in range(0, PERMUTATIONS, _BLOCK):
        signs = 1 - 2 * rng.integers(0, 2, size=(min(_BLOCK, PERMUTATIONS - start), len(gaps)))
        extreme += int(np.count_nonzero(np.abs(signs @ gaps) >= seen))
    # The observed assignment counts as one of the random ones, so that p is never 0.
    return (extreme + 1) / (PERMUTATIONS + 1)


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Correct p-values of several comparisons (S. Holm, Scandinavian Journal of Statistics 6, 1979)."""
    ordered = sorted(p_values, key=p_values.__getitem__)
    scaled = [min(1.0, left * p_values[name]) for left, name in zip(range(len(ordered), 0, -1), ordered, strict=True)]
    corrected = dict(zip(ordered, accumulate(scaled, max), strict=True))
    return {name: corrected[name] for name in p_values}


def clamped(values: Iterable[float]) -> list[float]:
    return [min(1.0, max(0.0, float(value))) for value in values]


def counted(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items()))


def mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if len(values) else None


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile; 0.0 of nothing."""
    return float(np.percentile(values, percent)) if len(values) else 0.0


def p50_p95(values: Sequence[float]) -> dict[str, float | None]:
    """Return the median and the 95th percentile; ``None`` of nothing."""
    return {f"p{at}": percentile(values, at) if len(values) else None for at in (50, 95)}


def stage_percentiles(records: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float | None]]:
    """Return p50 and p95 milliseconds of every stage that records tell apart."""
    found: dict[str, list[float]] = {}
    for record in records:
        for stage, spent in (record.get("stages") or {}).items():
            found.setdefault(stage, []).append(float(spent))
    return {name: p50_p95(found[name]) for name in [*STAGES, *sorted(found.keys() - set(STAGES))] if name in found}


# Choices among names, and what was said to be sure of them.


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure(Record):
    """A question on which something raised; it counts as answered wrongly."""

    query_id: str
    error: str


def failures_of(records: Mapping[str, Mapping[str, Any]]) -> tuple[Failure, ...]:
    failed = ((query, record.get("error")) for query, record in records.items())
    return tuple(Failure(query_id=query, error=str(error)) for query, error in failed if error)


def failure_lines(by_name: Mapping[str, tuple[Failure, ...]]) -> list[str]:
    failing = ((name, found) for name, found in by_name.items() if found)
    return [f"{name} failed on {len(found)} questions, first: {found[0].error}" for name, found in failing]


def error_text(err: Exception) -> str:
    """Say what happened; the text of a foreign error may hold anything, so only its type is named."""
    return f"{type(err).__name__}: {err}" if isinstance(err, AgenticRetrieverError) else type(err).__name__


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes(Record):
    labels: tuple[str, ...]
    matrix: npt.NDArray[np.int64]  # (right, chosen)

    @property
    def total(self) -> int:
        return int(self.matrix.sum())

    @property
    def accuracy(self) -> float | None:
        return float(self.matrix.trace() / self.total) if self.total else None

    @property
    def macro_accuracy(self) -> float | None:
        """Mean over the right names of the share of right choices, so that each counts the same: balanced accuracy."""
        return self._mean("recall")

    @property
    def macro_f1(self) -> float | None:
        return self._mean("f1")

    def _mean(self, figure: str) -> float | None:
        return mean([row[figure] for row in self.by_label().values()])

    def by_label(self) -> dict[str, dict[str, float]]:
        """Return count, precision, recall and F1 of every name that was ever right."""
        rows = {}
        counts = zip(self.labels, np.diag(self.matrix), self.matrix.sum(axis=0), self.matrix.sum(axis=1), strict=True)
        for label, right, answered, asked in counts:
            if asked:
                precision = float(right / answered) if answered else 0.0
                f1 = float(2 * right / (asked + answered))
                rows[label] = {"count": int(asked), "precision": precision, "recall": float(right / asked), "f1": f1}
        return rows

    def confusion(self) -> dict[str, dict[str, int]]:
        """Return how often each right name was answered by each name; what never happened is left out."""
        return {
            gold: {label: int(self.matrix[row, at]) for at, label in enumerate(self.labels) if self.matrix[row, at]}
            for row, gold in enumerate(self.labels)
            if self.matrix[row].any()
        }

    def to_dict(self) -> dict[str, Any]:
        shares = {name: getattr(self, name) for name in ("accuracy", "macro_accuracy", "macro_f1")}
        return {"count": self.total, **shares, "by_label": self.by_label(), "confusion": self.confusion()}


def compare(gold: Sequence[str], chosen: Sequence[str]) -> Outcomes:
    if len(gold) != len(chosen):
        raise ValueError(f"gold has {len(gold)} names, chosen {len(chosen)}; they must be as many")
    labels = tuple(sorted({*gold, *chosen}))
    place = {label: at for at, label in enumerate(labels)}
    matrix = np.zeros((len(labels), len(labels)), dtype=np.int64)
    np.add.at(matrix, ([place[name] for name in gold], [place[name] for name in chosen]), 1)
    return Outcomes(labels=labels, matrix=matrix)


@dataclass(frozen=True, slots=True, kw_only=True)
class Abstention(Record):
    """Whether questions that nothing answers were told from the others."""

    asked: int
    out_of_scope: int
    abstained: int
    right: int

    @property
    def precision(self) -> float | None:
        return self.right / self.abstained if self.abstained and self.out_of_scope else None

    @property
    def recall(self) -> float | None:
        return self.right / self.out_of_scope if self.out_of_scope else None

    @property
    def false_rate(self) -> float | None:
        inside = self.asked - self.out_of_scope
        return (self.abstained - self.right) / inside if inside else None

    def to_dict(self) -> dict[str, Any]:
        names = ("out_of_scope", "abstained", "right", "precision", "recall", "false_rate")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliabilityBin(Record):
    low: float
    high: float
    count: int
    weight: float  # Their share of all, in [0, 1]
    confidence: float | None  # Their mean confidence, or None without any
    accuracy: float | None  # The share that was right, or None without any


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability(Record):
    ece: float | None
    bins: tuple[ReliabilityBin, ...]


def measure_reliability(
    confidences: Sequence[float], right: Sequence[bool], *, bins: int = BINS, weights: Sequence[float] | None = None
) -> Reliability:
    """Hold the confidence of choices against how often they were right."""
    sure, hits = np.asarray(confidences, dtype=np.float64), np.asarray(right, dtype=np.float64)
    load = np.ones(len(sure)) if weights is None else np.asarray(weights, dtype=np.float64)
    if not len(sure) == len(hits) == len(load):
        raise ValueError(f"{len(sure)} confidences, {len(hits)} outcomes, {len(load)} weights; they must be as many")
    if not ((sure >= 0) & (sure <= 1)).all():
        raise ValueError("a confidence must be in [0, 1]")
    place = np.minimum((sure * bins).astype(np.int64), bins - 1)
    added = partial(np.bincount, place, minlength=bins)
    counts, mass, total = added(), added(weights=load), float(load.sum())
    all_sure, all_right = added(weights=load * sure), added(weights=load * hits)
    made = tuple(
        ReliabilityBin(
            low=at / bins,
            high=(at + 1) / bins,
            count=int(counts[at]),
            weight=float(mass[at] / total) if total else 0.0,
            confidence=float(all_sure[at] / mass[at]) if mass[at] else None,
            accuracy=float(all_right[at] / mass[at]) if mass[at] else None,
        )
        for at in range(bins)
    )
    ece = float(np.abs(added(weights=load * (hits - sure))).sum() / total) if total else None
    return Reliability(ece=ece, bins=made)


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one strategy, the router itself, the oracle or a peer did on the questions of one index."""

    name: str
    quality: Mapping[str, Mapping[str, float]]  # by question and measure
    records: Mapping[str, Mapping[str, Any]]  # by question, as the journal holds them
    cold_ms: float | None = None
    seed: int = 0
    peer: bool = False
    note: str = ""

    @property
    def failures(self) -> tuple[Failure, ...]:
        return failures_of(self.records)

    @property
    def latency_ms(self) -> dict[str, float]:
        return {query: float(record["ms"]) for query, record in self.records.items()}

    @property
    def degraded(self) -> dict[str, int]:
        return counted(step for record in self.records.values() for step in record.get("degraded", ()))

    def values(self, measure: str) -> list[float]:
        return [by_name[measure] for by_name in self.quality.values()]

    def mean(self, measure: str = MEASURES[0]) -> float:
        return float(np.mean(self.values(measure)))

    @cached_property
    def intervals(self) -> dict[str, tuple[float, float]]:
        return {name: bootstrap_interval(self.values(name), seed=self.seed) for name in MEASURES}

    def percentile_ms(self, percent: float) -> float:
        return percentile(list(self.latency_ms.values()), percent)

    def total(self, fact: str) -> float:
        return float(sum(float(record.get(fact) or 0.0) for record in self.records.values()))

    @property
    def per_second(self) -> float | None:
        spent = sum(self.latency_ms.values())
        return len(self.records) * 1000 / spent if spent > 0 else None

    def to_dict(self) -> dict[str, Any]:
        latency = self.latency_ms
        return {
            **{name: self.mean(name) for name in MEASURES},
            "intervals": {name: list(ends) for name, ends in self.intervals.items()},
            "queries": len(self.quality),
            "failed": len(self.failures),
            "failures": [failure.to_dict() for failure in self.failures],
            "without_result": sum(not record.get("docs") for record in self.records.values()),
            "degraded": self.degraded,
            "p50_ms": self.percentile_ms(50),
            "p95_ms": self.percentile_ms(95),
            "cold_ms": self.cold_ms,
            "queries_per_second": self.per_second,
            "stages_ms": stage_percentiles(self.records.values()),
            "llm_calls": int(self.total("llm_calls")),
            "tokens": int(self.total("tokens")),
            "usd": self.total("usd"),
            "peer": self.peer,
            "note": self.note,
            "per_query": {query: {**values, "ms": latency[query]} for query, values in self.quality.items()},
        }


# Results as tables: what the terminal, the report and a notebook draw alike.


def best_marked(rows: Sequence[Sequence[float | None]], compared: Sequence[bool]) -> list[list[Cell]]:
    """Write figures, the best of each column in bold, all of them where several are equal as written."""
    marked: list[list[Cell]] = [[] for _ in rows]
    for column in zip(*rows, strict=True):
        known = [value for value, counts in zip(column, compared, strict=True) if counts and value is not None]
        best = figure_text(max(known)) if known else None
        for row, value, counts in zip(marked, column, compared, strict=True):
            row.append(Cell(figure_text(value), best=counts and figure_text(value) == best))
    return marked


def row_name(name: str, *, peer: bool) -> str:
    return f"{name} (peer)" if peer else name


def interval_text(ends: tuple[float, float]) -> str:
    return f"[{ends[0]:.3f}, {ends[1]:.3f}]"


def share_text(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def outcomes_sections(title: str, outcomes: Outcomes) -> list[Section]:
    line = (
        f"{outcomes.total:,} questions: accuracy {figure_text(outcomes.accuracy)}, balanced accuracy "
        f"{figure_text(outcomes.macro_accuracy)}, macro F1 {figure_text(outcomes.macro_f1)}"
    )
    return [Section(title, lines=[line]), confusion_section(f"confusion, {title}", outcomes)]


def confusion_section(title: str, outcomes: Outcomes, *, corner: str = "right \\ chosen") -> Section:
    table = outcomes.confusion()
    rows = [[gold, *(table[gold].get(label, 0) for label in outcomes.labels)] for gold in table]
    return Section(title, [corner, *outcomes.labels], rows)


def reliability_section(name: str, reliability: Reliability) -> Section:
    rows = [
        (f"{one.low:.2f}-{one.high:.2f}", one.count, figure_text(one.confidence), figure_text(one.accuracy))
        for one in reliability.bins
        if one.count
    ]
    title = f"reliability, {name}: expected calibration error {figure_text(reliability.ece, 4)}"
    return Section(title, ["confidence", "questions", "mean confidence", "share right"], rows)
