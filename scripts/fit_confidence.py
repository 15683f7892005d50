"""Fit the two judgments of an answer, and print how good they are on corpora that they were not fitted on.

Usage: python scripts/fit_confidence.py DATA_FOLDER --data FOLDER [--rows FILE] [--write]

Asks questions without a model, notes the figures of ``synthesis/evidence.py`` with what is right, and fits in seconds.
With ``--rows`` the notes are kept and read again; ``--data`` keeps indexes and vectors (remove ``indexes`` in its
folders when chunks have changed). DATA_FOLDER holds ``collections/NAME`` and ``longdocs/NAME``. The kinds of questions:

- ``sample``: those of the sample, answerable or not; ``other``: those of other collections, asked of the sample;
- ``long``: those of the long documents; ``cut``: the same where half of the sections with the answers were taken out,
  of which those are asked; ``far``: those of another corpus;
- ``wiki``: XQuAD, asked of one half of the paragraphs of their language, so that half of them has no answer;
- ``across``: questions in another language than the documents;
- ``facts``: HotpotQA, where all have an answer.

An answer is right when a citation of it lies in a gold document, or in the gold section of a long one. What is
reported of a corpus is judged by a fit on the other families of corpora (translations are one family), the threshold
of the gate included; that of ``high`` is one number, chosen on all of these judgments but ``cut``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from llama_index.core.schema import NodeWithScore
from numpy.typing import NDArray
from typing_extensions import Unpack

from agentic_retriever import AgenticRouter, RouterConfig
from agentic_retriever.embeddings import EmbeddingModel, LocalEmbedding, PackedVectors, embedding_name
from agentic_retriever.sample import SAMPLE_INDEXES, VECTORS, load_questions
from agentic_retriever.schema import Citation, frozen
from agentic_retriever.synthesis import ConfidenceModel, ConfidenceModels, ExtractiveSynthesizer, Synthesizer
from agentic_retriever.synthesis.evidence import AS_NEAR, Figures, figures_of
from agentic_retriever.synthesis.extractive import Embed
from agentic_retriever.synthesis.synthesizer import Asked, Task

Array = NDArray[np.float64]

WEIGHTS_FILE = Path(__file__).parents[1] / "agentic_retriever" / "synthesis" / "confidence_weights.json"
LONG = {"python-faq": "python", "debian-faq": "debian", "debian-faq-fr": "debian"}
FAR = (("python-faq", "debian-faq"), ("debian-faq", "python-faq"), ("debian-faq-fr", "python-faq"))
#: The figures, and whether more of each may only raise (1) or lower (-1) a probability, or either (0).
SIGNS: Mapping[str, int] = frozen(
    {"reachable": 1, "ahead": 1, "heard": 1, "absent": -1, "unknown": -1, "documents": -1}
    | {"absent_names": -1, "absent_codes": -1}
    | {"beyond": 1, "contrast": 1, "tailored": 1, "margin": 1, "behind": -1, "unseen": 0}
)
LANGUAGES = ("en", "es", "th")
COLLECTIONS = ("xquad-en", "xquad-es", "xquad-th", "cranfield", "cacm", "hotpotqa-100")
#: How many questions of each kind are asked of one corpus.
MOST = {"sample": 200, "other": 40, "long": 200, "cut": 100, "far": 60, "across": 40, "wiki": 160, "facts": 60}
#: What all questions of one kind and corpus count together, once as answerable and once as not.
MASS = {"cut": 0.3, "facts": 0.5, "across": 0.4, "long": 2.0}
#: What a question that cannot be answered counts in the fit of what is right: in use there are fewer of them.
UNANSWERABLE = 0.1
#: What an answer counts without what vectors tell, beside the same answer with it.
BLIND = 0.3
BY_VECTORS = ("beyond", "contrast", "tailored", "margin", "behind", "unknown")
#: What tells whether there is an answer, and not whether the cited passage has it: cosines stand above those of
#: unrelated questions by 3 to 6 standard deviations, as the language is, and as far where the passage is a wrong one.
OF_THE_GATE = ("tailored", "beyond")
#: The other way round.
OF_THE_PLACE = ("heard",)
PENALTY = 0.01  # of the square of every weight, in standard deviations of its figure
ROUNDS, STILL = 4_000, 1e-8
#: So many answerable questions may be declined; so many answers that are called high are right.
DECLINED, RIGHT_WHEN_HIGH = 0.048, 0.94
#: From which probabilities of being right an answer may be called high.
HIGH = (0.8, 0.85, 0.88, 0.9, 0.92, 0.94, 0.95, 0.96, 0.97, 0.98)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A question, the figures of its answer, and whether that was right."""

    corpus: str
    family: str
    kind: str
    answerable: bool
    right: bool
    figures: dict[str, float | None]


# --- the questions, with what is right -------------------------------------------------------------------------------


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def some(kind: str, questions: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return as many questions as are asked of this kind, the same every time."""
    return random.Random(7).sample(questions, min(len(questions), MOST[kind]))  # noqa: S311 - a sample, not a secret


def in_first_half(key: str) -> bool:
    """Split ids in two halves that look alike."""
    return int(hashlib.sha256(key.encode()).hexdigest(), 16) % 2 == 0


def is_right(cited: Sequence[Citation], gold: Mapping[str, Any]) -> bool:
    """Judge citations by the gold documents, or by the section: 60 characters of it, or half of the quote."""
    return any(_lies_in(one, gold) for one in cited)


def _lies_in(cited: Citation, gold: Mapping[str, Any]) -> bool:
    if "start" not in gold:
        return bool({cited.doc_id, Path(cited.doc_id).name} & set(gold["doc_ids"]))
    shared = min(cited.end, gold["end"]) - max(cited.start, gold["start"])
    return (
        Path(cited.doc_id).name == gold["doc"]
        and shared > 0
        and (shared >= 60 or shared >= (cited.end - cited.start) / 2)
    )


class NotingSynthesizer(Synthesizer):
    """Notes what an answer is judged by, and answers whatever it is."""

    def __init__(self, embed: Embed) -> None:
        super().__init__(ExtractiveSynthesizer(embed=embed), answered_from=0.0)
        self.noted: tuple[Figures, Sequence[Citation]] = {}, ()

    def read(self, query: str, nodes: Sequence[NodeWithScore], **asked: Unpack[Asked]) -> Task:
        task = super().read(query, nodes, **asked)
        cited = task.extraction.citations
        self.noted = figures_of(query, task.passages, cited, task.evidence), cited
        return task


class Asker:
    """Asks the questions of one data folder."""

    def __init__(self, folder: Path, base: LocalEmbedding, packed: Sequence[PackedVectors] = ()) -> None:
        self._model = EmbeddingModel(base, name=embedding_name(base), packed=packed)
        self._writer = NotingSynthesizer(self._model.embed_sentences)
        config = RouterConfig(data_dir=folder, cache_max_entries=0, query_log="none")
        self.router = AgenticRouter(config, embedding=base, packed=packed, synthesizer=self._writer)
        self.rows: list[Row] = []

    def add(self, name: str, source: Path, description: str = "") -> None:
        """Add an index, unless it is there from an earlier run."""
        if name not in self.router.index_names():
            self.router.add_index(name, source, description=description)
            self.router.build_views(name)

    def ask(self, query: str, gold: Mapping[str, Any] | None, index: str | None, *names: str) -> None:
        """Ask one question, of one index or of all; ``names`` are those of corpus, family and kind."""
        self.router.query(query, index=index)
        figures, cited = self._writer.noted
        corpus, family, kind = names
        right = gold is not None and is_right(cited, gold)
        row = Row(
            corpus=corpus, family=family, kind=kind, answerable=gold is not None, right=right, figures=dict(figures)
        )
        self.rows.append(row)


def sample_rows(data: Path, folder: Path, base: LocalEmbedding) -> list[Row]:
    """Ask the sample its own questions and those of other collections."""
    asker = Asker(folder, base, [PackedVectors(VECTORS)])
    with asker.router:
        for sample in SAMPLE_INDEXES:
            asker.add(sample.name, sample.folder, sample.description)
        for question in some("sample", load_questions()):
            gold = question if question["doc_ids"] else None
            asker.ask(str(question["query"]), gold, None, "sample", "sample", "sample")
        others = [line for name in COLLECTIONS for line in read_lines(data / "collections" / name / "queries.jsonl")]
        for question in some("other", others):
            asker.ask(question["text"], None, None, "sample", "sample", "other")
    return asker.rows


def long_rows(data: Path, folder: Path, base: LocalEmbedding) -> list[Row]:
    """Ask the long documents what they answer, what was cut out of them, and what is about something else."""
    asker, names = Asker(folder, base), sorted(path.parent.name for path in data.glob("longdocs/*/questions.jsonl"))
    asked = {name: read_lines(data / "longdocs" / name / "questions.jsonl") for name in names}
    with asker.router:
        for name in names:
            family = LONG.get(name, name)
            asker.add(name, data / "longdocs" / name / "docs")
            for question in some("long", asked[name]):
                asker.ask(question["question"], question, name, name, family, "long")
            gone = [question for question in asked[name] if in_first_half(question["id"])]
            cut = _cut(data / "longdocs" / name / "docs", gone, folder / "cut" / name)
            asker.add(f"{name}-cut", cut)
            for question in some("cut", gone):
                asker.ask(question["question"], None, f"{name}-cut", name, family, "cut")
        for of, at in (*FAR, *(("debian-faq", name) for name in names if name not in LONG)):
            for question in some("far", asked[of]):
                asker.ask(question["question"], None, at, at, LONG.get(at, at), "far")
        for of, at in (("debian-faq", "debian-faq-fr"), ("debian-faq-fr", "debian-faq")):
            for question, gold in some("across", _translated(asked[of], asked[at])):
                asker.ask(question["question"], gold, at, at, LONG[at], "across")
    return asker.rows


def _cut(folder: Path, gone: Sequence[dict[str, Any]], target: Path) -> Path:
    """Write the documents without some of their sections."""
    target.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        text = path.read_text(encoding="utf-8")
        spans = sorted((q["start"], q["end"]) for q in gone if q["doc"] == path.name)
        for start, end in reversed(spans):
            text = text[:start] + text[end:]
        (target / path.name).write_text(text, encoding="utf-8")
    return target


def _translated(asked: Sequence[dict[str, Any]], gold: Sequence[dict[str, Any]]) -> list[Any]:
    """Pair the questions of documents that have as many of them in both languages: the same, in the same order."""
    pairs: list[Any] = []
    for doc in sorted({question["doc"] for question in asked}):
        own, other = ([q for q in questions if q["doc"] == doc] for questions in (asked, gold))
        pairs += zip(own, other, strict=True) if len(own) == len(other) else ()
    return pairs


def wiki_rows(data: Path, folder: Path, base: LocalEmbedding) -> list[Row]:
    """Ask half of the XQuAD paragraphs of each language questions in that and in the next language."""
    asker = Asker(folder, base)
    with asker.router:
        for at, language in enumerate(LANGUAGES):
            name, following = f"xquad-{language}", f"xquad-{LANGUAGES[(at + 1) % len(LANGUAGES)]}"
            corpus = read_lines(data / "collections" / name / "corpus.jsonl")
            there = [one for one in corpus if in_first_half("d" + one["_id"])]
            asker.add(name, _written(there, folder / f"{name}.jsonl"))
            for of, kind in ((name, "wiki"), (following, "across")):
                for query, gold in some(kind, _judged_questions(data / "collections" / of)):
                    known = {"doc_ids": gold & {one["_id"] for one in there}}
                    asker.ask(query["text"], known if known["doc_ids"] else None, name, name, "xquad", kind)
        name = "hotpotqa-100"
        asker.add(name, _written(read_lines(data / "collections" / name / "corpus.jsonl"), folder / f"{name}.jsonl"))
        for query, gold in some("facts", _judged_questions(data / "collections" / name)):
            asker.ask(query["text"], {"doc_ids": gold}, name, name, name, "facts")
    return asker.rows


def _written(documents: Sequence[dict[str, Any]], path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(json.dumps(one, ensure_ascii=False) for one in documents), encoding="utf-8")
    return path


def _judged_questions(folder: Path) -> list[Any]:
    lines = (folder / "qrels" / "test.tsv").read_text(encoding="utf-8").splitlines()[1:]
    gold: dict[str, set[str]] = {}
    for query_id, doc_id, grade in (line.split("\t")[:3] for line in lines):
        if float(grade) > 0:
            gold.setdefault(query_id, set()).add(doc_id)
    return [(query, gold[query["_id"]]) for query in read_lines(folder / "queries.jsonl") if query["_id"] in gold]


# --- the fit ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedAnswer:
    """The figures of an answer, whether it was right, and how much it counts."""

    figures: Mapping[str, float | None]
    right: bool
    weight: float = 1.0


def fit_confidence(rows: Sequence[JudgedAnswer], *, generous: bool = False) -> ConfidenceModel:
    """Fit the weights by maximum likelihood with a quadratic penalty, under the signs that are fixed.

    The same rows always give the same weights. A figure that is not known is filled with its weighted mean over the
    rows where it is; of the right ones alone when ``generous``, so that want of evidence speaks against nothing.

    Raises:
        ValueError: If the rows do not hold both right and wrong answers.
    """
    if len({row.right for row in rows}) < 2:
        raise ValueError(f"got {len(rows)} judged answers; right and wrong ones are needed to fit a confidence")
    names = list(SIGNS)
    mass = np.array([row.weight for row in rows]) / math.fsum(row.weight for row in rows)
    got = [[row.figures.get(name) for name in names] for row in rows]
    raw = np.array([[math.nan if value is None else value for value in line] for line in got], dtype=float)
    right = np.array([row.right for row in rows], dtype=float)
    neutral = np.array([_known_mean(column, mass * right if generous else mass) for column in raw.T])
    filled = np.where(np.isnan(raw), neutral, raw)
    spread = np.sqrt(((filled - neutral) ** 2 * mass[:, None]).sum(axis=0))
    scale = np.where(spread > STILL, spread, 1.0)
    weights, intercept = _ascend((filled - neutral) / scale, right, mass)
    weights /= scale
    return ConfidenceModel(
        intercept=round(float(intercept - weights @ neutral), 4),
        weights=frozen({name: round(float(weight), 4) for name, weight in zip(names, weights, strict=True)}),
        neutral=frozen({name: round(float(value), 4) for name, value in zip(names, neutral, strict=True)}),
    )


def _ascend(figures: Array, right: Array, mass: Array) -> tuple[Array, float]:
    """Projected gradient ascent; the step is one over a bound of the curvature, so it converges."""
    design = np.hstack([figures, np.ones((len(figures), 1))])
    penalty = np.array([PENALTY] * figures.shape[1] + [0.0])
    signs = np.array([*SIGNS.values(), 0])
    step = 1 / (0.25 * float(np.linalg.eigvalsh((design * mass[:, None]).T @ design).max()) + PENALTY)
    weights = np.zeros(design.shape[1])
    ahead, momentum = weights.copy(), 1.0
    for _ in range(ROUNDS):
        odds = 1 / (1 + np.exp(-np.clip(design @ ahead, -30, 30)))
        moved = ahead + step * (design.T @ (mass * (right - odds)) - penalty * ahead)
        moved = np.where(signs * moved < 0, 0.0, moved)
        following = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        ahead = moved + (momentum - 1) / following * (moved - weights)
        still = float(np.abs(moved - weights).max()) < STILL
        weights, momentum = moved, following
        if still:
            break
    return weights[:-1], float(weights[-1])


def _known_mean(column: Array, mass: Array) -> float:
    known = ~np.isnan(column)
    return float((column[known] * mass[known]).sum() / mass[known].sum()) if mass[known].any() else 0.0


def masses(rows: Sequence[Row], unanswerable: float) -> list[float]:
    """Let all questions of one kind and corpus count the same together, however many there are."""
    groups = Counter((row.corpus, row.kind, row.answerable) for row in rows)
    return [
        MASS.get(row.kind, 1.0)
        * (1.0 if row.answerable else unanswerable)
        / groups[row.corpus, row.kind, row.answerable]
        for row in rows
    ]


def fit(rows: Sequence[Row]) -> ConfidenceModels:
    """Fit both judgments, their thresholds not yet set."""
    answered, right = [], []
    for row, here, there in zip(rows, masses(rows, 1.0), masses(rows, UNANSWERABLE), strict=True):
        by_words = AS_NEAR * (row.figures.get("reachable") or 0.0)
        blind = row.figures | dict.fromkeys(BY_VECTORS) | {"unseen": 1.0, "beyond": by_words}
        for figures, share in ((row.figures, 1.0), (blind, BLIND)):
            of_topic = figures | dict.fromkeys(OF_THE_PLACE)
            answered.append(JudgedAnswer(figures=of_topic, right=row.answerable, weight=share * here))
            of_place = figures | dict.fromkeys(OF_THE_GATE)
            right.append(JudgedAnswer(figures=of_place, right=row.right, weight=share * there))
    return ConfidenceModels(
        answered=fit_confidence(answered, generous=True), right=fit_confidence(right), answered_from=0.5, high_from=0.75
    )


def held_out(rows: Sequence[Row]) -> tuple[Array, Array]:
    """Judge every row by a fit on the other families: that it is answered, and right; ``(len(rows),)`` each."""
    answered, right = np.zeros(len(rows)), np.zeros(len(rows))
    for family in {row.family for row in rows}:
        models = fit([row for row in rows if row.family != family])
        for at, row in enumerate(rows):
            if row.family == family:
                answered[at] = models.answered.probability(row.figures)
                right[at] = models.right.probability(row.figures)
    return answered, right


def gate_of(rows: Sequence[Row], answered: Array) -> float:
    """Choose where the gate begins, from judgments of rows that they were not fitted on."""
    mass = np.array(masses(rows, 1.0))
    there = [at for at in np.argsort(answered) if rows[at].answerable]
    return float(answered[there][np.searchsorted(np.cumsum(mass[there]), DECLINED * mass[there].sum())])


def high_of(rows: Sequence[Row], right: Array, declined: Array) -> float:
    """Choose where ``high`` begins: the lowest threshold from which, by fits on others, it is as right as promised."""

    def share(limit: float) -> float:
        called = [
            row.right for at, row in enumerate(rows) if row.kind != "cut" and not declined[at] and right[at] >= limit
        ]
        return float(np.mean(called)) if called else 1.0

    return next((limit for limit in HIGH if share(limit) >= RIGHT_WHEN_HIGH), HIGH[-1])


def judged(rows: Sequence[Row]) -> tuple[ConfidenceModels, Array, Array]:
    """Fit on all rows, and tell which rows are declined and high when each family is judged by the others alone."""
    answered, right = held_out(rows)
    declined = np.zeros(len(rows), dtype=bool)
    for family in {row.family for row in rows}:
        own = np.array([row.family == family for row in rows])
        declined |= own & (answered < gate_of([rows[at] for at in np.flatnonzero(~own)], answered[~own]))
    high_from = high_of(rows, right, declined)
    models = replace(fit(rows), answered_from=round(gate_of(rows, answered), 4), high_from=high_from)
    return models, declined, ~declined & (right >= high_from)


def report(rows: Sequence[Row], declined: Array, high: Array) -> dict[str, dict[str, float | None]]:
    """Print, by corpus and kind of question, what is declined, and how right what is called high is."""
    table: dict[str, dict[str, float | None]] = {}
    groups: dict[str, list[int]] = {}
    for at, row in enumerate(rows):
        for name in (f"{row.corpus} {row.kind}", "all"):
            groups.setdefault(name, []).append(at)
    for name, members in sorted(groups.items(), key=lambda item: item[0] == "all"):
        there = [at for at in members if rows[at].answerable]
        called = [at for at in members if high[at]]
        table[name] = {
            "questions": len(members),
            "right": _mean([rows[at].right for at in there]),
            "high": _mean([high[at] for at in members]),
            "right_when_high": _mean([rows[at].right for at in called]),
            "declined_answerable": _mean([declined[at] for at in there]),
            "declined_unanswerable": _mean([declined[at] for at in members if not rows[at].answerable]),
        }
        figures = "  ".join(f"{key} {value}" for key, value in table[name].items() if value is not None)
        sys.stdout.write(f"{name:22}{figures}\n")
    return table


def _mean(values: Sequence[Any]) -> float | None:
    return round(float(np.mean(values)), 3) if values else None


def collect(data: Path, folder: Path, kept: Path | None) -> list[Row]:
    """Ask all questions, or read the rows of an earlier run."""
    if kept is not None and kept.exists():
        return [Row(**line) for line in read_lines(kept)]
    base, rows = LocalEmbedding(), []
    for name, ask in (("sample", sample_rows), ("long", long_rows), ("wiki", wiki_rows)):
        started = time.monotonic()
        rows += ask(data, folder / name, base)
        sys.stdout.write(f"{name}: {len(rows)} questions, {time.monotonic() - started:.0f} s\n")
        sys.stdout.flush()
    if kept is not None:
        kept.write_text("\n".join(json.dumps(asdict(row)) for row in rows), encoding="utf-8")
    return rows


def main() -> None:
    """Fit, report, and write the weights if asked to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("collections", type=Path, help="folder with collections/NAME and longdocs/NAME")
    parser.add_argument("--data", type=Path, required=True, help="where indexes and vectors are kept between runs")
    parser.add_argument("--rows", type=Path, help="where the judged answers are kept between runs")
    parser.add_argument("--write", action="store_true", help="write the weights into the package")
    args = parser.parse_args()
    rows = collect(args.collections, args.data, args.rows)
    models, declined, high = judged(rows)
    for name in SIGNS:
        of_both = (models.answered.weights[name], models.right.weights[name])
        sys.stdout.write(f"{name:16}" + "".join(f"{weight:+9.3f}" for weight in of_both) + "\n")
    sys.stdout.write("\neach family by the others:\n")
    table = report(rows, declined, high)
    if args.write:
        content = {"models": models.to_dict(), "held_out": table}
        WEIGHTS_FILE.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
