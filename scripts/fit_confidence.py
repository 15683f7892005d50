"""Fit the confidence of answers, and print how well it is calibrated on questions that it was not fitted on.

Usage: python scripts/fit_confidence.py DATA_FOLDER [--rows FILE] [--write]

Four kinds of questions are asked without a model and with nothing declined beforehand:

- ``sample``: the questions of the sample, answerable or not;
- ``other``: questions of the public collections, asked of the sample;
- ``wiki``: XQuAD questions, asked of one half of the paragraphs in their language, so that half of them cannot be
  answered although much about their topic is there;
- ``across``: the same, asked of the paragraphs in another language.

An answer is right when it cites a gold document and has a figure of the gold answer, or half of its terms when it has
no figure. Questions are split by id: even ids of the sample, and half of the others by their hash, are fitted on; the
rest is reported. DATA_FOLDER holds ``collections/NAME`` and ``embeddings/multilingual-e5-small/NAME.npz``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import random
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from agentic_retriever import AgenticRouter, RouterConfig
from agentic_retriever.embeddings import EmbeddingModel, LocalEmbedding, PackedVectors, embedding_name, text_hash
from agentic_retriever.pipeline.query import relevance
from agentic_retriever.sample import SAMPLE_INDEXES, VECTORS, load_questions
from agentic_retriever.schema import frozen
from agentic_retriever.synthesis import ExtractiveSynthesizer, assemble, unknown_share
from agentic_retriever.synthesis.confidence import SIGNS, AnswerFeatures, ConfidenceModel, confidence_score
from agentic_retriever.text import Tokenizer, detect_language
from agentic_retriever.text.numbers import numbers_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agentic_retriever.synthesis import Extraction

    Array = np.ndarray[Any, np.dtype[np.float64]]

WEIGHTS_FILE = Path(__file__).parents[1] / "agentic_retriever" / "synthesis" / "confidence_weights.json"
LANGUAGES = ("en", "es", "th")
OTHERS = {"xquad-en": 40, "xquad-es": 40, "xquad-th": 40, "cranfield": 20, "cacm": 20, "hotpotqa-100": 20}
PER_LANGUAGE = 160
ACROSS = 40
#: What one question of each kind counts, so that none drowns the others: there are many of ``wiki``.
MASS = {"sample": 1.0, "other": 0.05, "wiki": 0.1, "across": 0.6}
#: What a question that cannot be answered counts beside one that can: there are more of them here than are asked in
#: use, where what is about nothing in the indexes is declined before retrieval.
UNANSWERABLE = 0.1
#: What an answer counts without what only the router knows, beside the same answer with it.
ALONE = 0.2
#: Of the square of every weight but the intercept.
PENALTY = 0.002
#: Most steps of the fit, and the largest move of a weight that ends it.
ROUNDS, STILL = 4_000, 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A question, what was known of its answer, and whether that was right."""

    kind: str
    key: str
    fitted: bool
    answerable: bool
    right: bool
    support: float
    features: dict[str, Any]


class KnownVectors:
    """Vectors of whole documents, by the hash of the text that was embedded."""

    def __init__(self, model: str, vectors: dict[bytes, np.ndarray[Any, Any]]) -> None:
        self._model = model
        self._vectors = vectors

    def get_many(self, model: str, hashes: Sequence[bytes]) -> dict[bytes, np.ndarray[Any, Any]]:
        """Return the vectors known for these hashes."""
        return {key: self._vectors[key] for key in hashes if key in self._vectors} if model == self._model else {}


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def in_first_half(key: str) -> bool:
    """Split ids in two halves that look alike."""
    return int(hashlib.sha256(key.encode()).hexdigest(), 16) % 2 == 0


def is_right(found: Extraction, gold: set[str], answer: str, language: str) -> bool:
    """Judge an answer by its citations and by the figures, or else the terms, of the gold answer."""
    if not {c.doc_id for c in found.citations} & gold:
        return False
    figures = numbers_in(answer)
    if figures:
        return bool(figures & numbers_in(found.text))
    tokenizer = Tokenizer(language)
    terms = set(tokenizer.tokens(answer))
    return len(terms & set(tokenizer.tokens(found.text))) >= len(terms) / 2


def ask(
    router: AgenticRouter, model: EmbeddingModel, query: str, index: str | None
) -> tuple[Extraction, AnswerFeatures]:
    """Answer without a model; return the answer and its features."""
    retrieval = router.retrieve(query, index=index)
    profile = router.index(retrieval.indexes[0]).profile()
    found = ExtractiveSynthesizer(embed=model.embed_sentences).extract(
        query,
        assemble(retrieval.nodes, max_chars=200_000),
        language=detect_language(query),
        complexity=retrieval.route.complexity,
        query_vector=model.embed_query(query),
    )
    unknown = unknown_share(query, profile.document_frequency, language=profile.language)
    near = relevance(retrieval.nodes, profile) if retrieval.nodes else None
    return found, replace(found.features, relevance=near, unknown_share=unknown)


def row_of(
    router: AgenticRouter,
    model: EmbeddingModel,
    question: dict[str, Any],
    *,
    kind: str,
    index: str | None,
    fitted: bool,
) -> Row:
    """Ask one question and judge its answer."""
    found, features = ask(router, model, question["query"], index)
    gold = set(question["doc_ids"])
    right = bool(gold) and is_right(found, gold, question["answer"], question["language"])
    return Row(
        kind=kind,
        key=f"{question['id']}@{index or 'sample'}",
        fitted=fitted,
        answerable=bool(gold),
        right=right,
        support=found.support,
        features=asdict(features),
    )


def sample_rows(data: Path, folder: Path, base: LocalEmbedding) -> Iterator[Row]:
    """Ask the sample its own questions and those of other collections."""
    config = RouterConfig(data_dir=folder, on_abstain="answer")
    model = EmbeddingModel(base, name=embedding_name(base))
    with AgenticRouter(config, embedding=base, packed=[PackedVectors(VECTORS)]) as router:
        for sample in SAMPLE_INDEXES:
            router.add_index(sample.name, sample.folder, description=sample.description)
            router.build_views(sample.name)
        for question in load_questions():
            even = int(str(question["id"])[-3:]) % 2 == 0
            yield row_of(router, model, question, kind="sample", index=None, fitted=even)
        for name, count in OTHERS.items():
            asked = read_lines(data / "collections" / name / "queries.jsonl")
            for query in random.Random(7).sample(asked, count):  # noqa: S311 - a sample, not a secret
                question = {"id": query["_id"], "query": query["text"], "doc_ids": [], "answer": "", "language": ""}
                yield row_of(router, model, question, kind="other", index=None, fitted=in_first_half(query["_id"]))


def wiki_rows(data: Path, folder: Path, base: LocalEmbedding) -> Iterator[Row]:
    """Ask half of the XQuAD paragraphs of each language questions in that and in the next language."""
    model = EmbeddingModel(base, name=embedding_name(base))
    for at, language in enumerate(LANGUAGES):
        name = f"xquad-{language}"
        corpus = [d for d in read_lines(data / "collections" / name / "corpus.jsonl") if in_first_half("d" + d["_id"])]
        folder.mkdir(parents=True, exist_ok=True)
        source = folder / f"{name}.jsonl"
        source.write_text("\n".join(json.dumps(d, ensure_ascii=False) for d in corpus), encoding="utf-8")
        with np.load(data / "embeddings" / "multilingual-e5-small" / f"{name}.npz") as packed:
            vectors = dict(zip(packed["doc_ids"].tolist(), packed["doc_vectors"].astype(np.float32), strict=True))
        known = {
            text_hash(f"{d.get('title', '')}\n{d['text']}".strip()): v / np.linalg.norm(v)
            for d in corpus
            if (v := vectors.get(d["_id"])) is not None
        }
        config = RouterConfig(data_dir=folder / name, on_abstain="answer")
        vector_source = KnownVectors(embedding_name(base), known)
        with AgenticRouter(config, embedding=base, packed=[vector_source]) as router:
            router.add_index(name, source, description=name)
            router.build_views(name)
            there = {d["_id"] for d in corpus}
            for asked, kind, count in (
                (language, "wiki", PER_LANGUAGE),
                (LANGUAGES[(at + 1) % len(LANGUAGES)], "across", ACROSS),
            ):
                for question in _wiki_questions(data, asked, language, count, there):
                    half = in_first_half(str(question["id"]))
                    yield row_of(router, model, question, kind=kind, index=name, fitted=half)


def _wiki_questions(
    data: Path, language: str, index_language: str, count: int, there: set[str]
) -> Iterator[dict[str, Any]]:
    folder = data / "collections" / f"xquad-{language}"
    lines = (folder / "qrels" / "test.tsv").read_text(encoding="utf-8").splitlines()[1:]
    gold = {line.split("\t")[0]: line.split("\t")[1] for line in lines}
    # The gold answer in the language of the paragraphs, since the same questions were asked in all languages.
    read = {q["_id"]: q for q in read_lines(data / "collections" / f"xquad-{index_language}" / "queries.jsonl")}
    for query in random.Random(11).sample(read_lines(folder / "queries.jsonl"), count):  # noqa: S311 - a sample
        yield {
            "id": query["_id"],
            "query": query["text"],
            "doc_ids": [gold[query["_id"]]] if gold[query["_id"]] in there else [],
            "answer": read[query["_id"]]["metadata"]["answer"],
            "language": index_language,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedAnswer:
    """What was known of an answer, whether it was right, and how much it counts."""

    features: AnswerFeatures
    right: bool
    weight: float = 1.0


def fit_confidence(rows: Sequence[JudgedAnswer]) -> ConfidenceModel:
    """Fit the weights by maximum likelihood with a quadratic penalty, under the signs that are fixed.

    The same rows always give the same weights. A feature that is not known is filled with its weighted mean over the
    rows where it is.

    Raises:
        ValueError: If the rows do not hold both right and wrong answers.
    """
    if len({row.right for row in rows}) < 2:
        raise ValueError(f"got {len(rows)} judged answers; right and wrong ones are needed to fit a confidence")
    names = list(SIGNS)
    mass = np.array([row.weight for row in rows])
    mass = mass / mass.sum()
    raw = np.array(
        [
            [math.nan if (v := values[name]) is None else v for name in names]
            for values in (r.features.values() for r in rows)
        ]
    )
    neutral = [_known_mean(raw[:, at], mass) for at in range(len(names))]
    right = np.array([row.right for row in rows], dtype=float)
    weights, intercept = _ascend(np.where(np.isnan(raw), neutral, raw), right, mass)
    return ConfidenceModel(
        intercept=round(intercept, 4),
        weights=frozen({name: round(float(weights[at]), 4) for at, name in enumerate(names)}),
        neutral=frozen({name: round(value, 4) for name, value in zip(names, neutral, strict=True)}),
    )


def _ascend(filled: Array, right: Array, mass: Array) -> tuple[Array, float]:
    """Projected gradient ascent; the step is one over a bound of the curvature, so it converges."""
    design = np.hstack([filled, np.ones((len(filled), 1))])
    penalty = np.array([PENALTY] * filled.shape[1] + [0.0])
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
    return float((column[known] * mass[known]).sum() / mass[known].sum()) if known.any() else 0.0


def scores(rows: Sequence[Row], model: ConfidenceModel) -> np.ndarray[Any, Any]:
    """Return the confidence of each row."""
    return np.array(
        [confidence_score(AnswerFeatures(**row.features), support=row.support, model=model) for row in rows]
    )


def calibration_error(
    given: np.ndarray[Any, Any], right: np.ndarray[Any, Any], mass: np.ndarray[Any, Any], bins: int = 5
) -> float:
    """Return the expected calibration error over bins of equal width (M. Naeini et al., AAAI 2015), weighted."""
    at = np.minimum((given * bins).astype(int), bins - 1)
    off = mass * (given - right)
    return float(sum(abs(off[at == b].sum()) for b in range(bins)) / mass.sum())


def report(rows: Sequence[Row], model: ConfidenceModel) -> dict[str, dict[str, float]]:
    """Print, by kind of question, calibration and what is declined below 0.5."""
    table: dict[str, dict[str, float]] = {}
    for label, kinds in [*((kind, (kind,)) for kind in MASS), ("all", tuple(MASS))]:
        part = [row for row in rows if row.kind in kinds]
        if not part:
            continue
        given = scores(part, model)
        right = np.array([row.right for row in part], dtype=float)
        answerable = np.array([row.answerable for row in part])
        declined = given < 0.5
        high = given >= 0.75
        figures = {
            "questions": len(part),
            "unanswerable": int((~answerable).sum()),
            "ece": round(calibration_error(given, right, np.array([mass_of(row) for row in part])), 3),
            "declined_unanswerable": round(float(declined[~answerable].mean()), 3) if (~answerable).any() else 0.0,
            "declined_precision": round(float((~answerable)[declined].mean()), 3) if declined.any() else 0.0,
            "declined_answerable": round(float(declined[answerable].mean()), 3) if answerable.any() else 0.0,
            "declined_right": round(float(declined[right > 0].mean()), 3) if right.any() else 0.0,
            "right_when_high": round(float(right[high].mean()), 3) if high.any() else 0.0,
            "high": round(float(high.mean()), 3),
        }
        table[label] = figures
        sys.stdout.write(f"{label:8}" + "  ".join(f"{name} {value}" for name, value in figures.items()) + "\n")
    return table


def collect(data: Path, kept: Path | None) -> list[Row]:
    """Ask all questions, or read the rows of an earlier run."""
    if kept is not None and kept.exists():
        return [Row(**line) for line in read_lines(kept)]
    with tempfile.TemporaryDirectory() as folder:
        base = LocalEmbedding()
        rows = [*sample_rows(data, Path(folder) / "sample", base), *wiki_rows(data, Path(folder) / "wiki", base)]
    if kept is not None:
        kept.write_text("\n".join(json.dumps(asdict(row)) for row in rows), encoding="utf-8")
    return rows


def mass_of(row: Row) -> float:
    """Return what a question counts."""
    return MASS[row.kind] * (1.0 if row.answerable else UNANSWERABLE)


def judged(rows: Sequence[Row]) -> list[JudgedAnswer]:
    """Return the answers to fit on, each once more without what only the router knows."""
    found = []
    for row in rows:
        if row.fitted:
            features = AnswerFeatures(**row.features)
            alone = replace(features, relevance=None, unknown_share=None)
            mass = mass_of(row)
            found.append(JudgedAnswer(features=features, right=row.right, weight=mass))
            found.append(JudgedAnswer(features=alone, right=row.right, weight=ALONE * mass))
    return found


def main() -> None:
    """Fit, report, and write the weights if asked to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--rows", type=Path, help="where the judged answers are kept between runs")
    parser.add_argument("--write", action="store_true", help="write the weights into the package")
    args = parser.parse_args()
    rows = collect(args.data, args.rows)
    model = fit_confidence(judged(rows))
    for name, weight in model.weights.items():
        sys.stdout.write(f"{name:22}{weight:+.3f}  neutral {model.neutral[name]:.3f}\n")
    sys.stdout.write("\nfitted on:\n")
    report([row for row in rows if row.fitted], model)
    sys.stdout.write("\nheld out:\n")
    held_out = report([row for row in rows if not row.fitted], model)
    if args.write:
        content = {
            "model": model.to_dict(),
            "held_out": held_out,
            "fitted_on": {kind: sum(r.fitted and r.kind == kind for r in rows) for kind in MASS},
        }
        WEIGHTS_FILE.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
