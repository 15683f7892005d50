"""Print how calibrated hybrid search does on public collections beside each of its sides.

Usage: python scripts/fusion_tables.py DATA_FOLDER [NAME ...] [--limit N] [--pseudo N] [--json FILE]

DATA_FOLDER holds ``collections/NAME`` in BEIR form and ``embeddings/multilingual-e5-small/NAME.npz`` with vectors by
id. A document is a node; both sides are searched 100 deep, as the strategy searches them. Three tables, nDCG@10:

1. each side alone, hybrid as it comes, and hybrid with constants that were chosen on the other collections only, with
   what it gains over the better side (95 % bootstrap interval over questions);
2. by weight of the dense side, what hybrid gains over the better side, and the weights that are not below it on any
   collection, for all collections and for all but one each: the bounds of a fit without judgments;
3. with ``--pseudo N``, what a fit on N pseudo-queries of each collection chooses, freely and within the bounds, and how
   that does on judged questions (the packaged model embeds what has changed, which takes a while).
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from agentic_retriever.embeddings import EmbeddingModel, LocalE5Embedding, embedding_name
from agentic_retriever.evaluation import load_dataset, ndcg_by_query
from agentic_retriever.evaluation.fusion_fitting import fit_fusion, validate_fusion
from agentic_retriever.evaluation.fusion_training import measured_table
from agentic_retriever.evaluation.pseudo import pseudo_dataset
from agentic_retriever.evaluation.statistics import bootstrap_interval
from agentic_retriever.evaluation.vectors import load_vectors, passage
from agentic_retriever.indices import KeywordIndex
from agentic_retriever.indices.profile import background, sample_ids
from agentic_retriever.retrievers import DEFAULT_FUSION, FusionTrainedOn, SideLists
from agentic_retriever.retrievers.fusion_model import CosineBackground, FusionModel, dense_excess
from agentic_retriever.retrievers.hybrid import CALIBRATED_DEPTH
from agentic_retriever.text import Tokenizer, detect_language

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentic_retriever.evaluation import Dataset

NAMES = ("cranfield", "cacm", "cisi", "xquad-en", "xquad-es", "xquad-th", "hotpotqa-100")
MODEL = "multilingual-e5-small"
STEPS = tuple(round(at / 20, 2) for at in range(21))
GRID = tuple(
    FusionModel(alpha=alpha, slope=slope, pivot=pivot, reach=reach)
    for alpha, slope, pivot, reach in product((0.4, 0.5, 0.6), (0.0, 0.05, 0.1, 0.2), (0.0, 0.4, 0.8), (0.1, 0.2, 0.3))
    if slope or (pivot, reach) == (0.4, 0.2)
)
WORDS, DENSE = "bm25", "dense"


@dataclass(frozen=True, slots=True)
class Searched:
    """What both sides found for each question of a collection, and what is relevant."""

    relevance: Mapping[str, Mapping[str, int]]
    found: Mapping[str, SideLists]

    def quality(self, model: FusionModel) -> np.ndarray[Any, Any]:
        """Return nDCG@10 of hybrid search by question."""
        return self._measured({i: [d for d, _ in _merged(one, model)] for i, one in self.found.items()})

    def side(self, name: str) -> np.ndarray[Any, Any]:
        """Return nDCG@10 of one side alone by question."""
        return self._measured({i: [d for d, _ in one.lists.get(name, ())] for i, one in self.found.items()})

    def _measured(self, rankings: Mapping[str, list[str]]) -> np.ndarray[Any, Any]:
        reached = ndcg_by_query(self.relevance, rankings)
        return np.array([reached[query_id] for query_id in self.relevance])


def search(dataset: Dataset, documents: Mapping[str, Any], queries: Mapping[str, Any]) -> Searched:
    """Search both sides for every question that has a vector."""
    held = [document for document in dataset.documents if document.doc_id in documents]
    ids = [document.doc_id for document in held]
    matrix = np.stack([documents[doc_id] for doc_id in ids])
    texts = [(document.doc_id, passage(document)) for document in held]
    language = detect_language(" ".join(text for _, text in texts[:20]))
    words = KeywordIndex.build(texts, tokenizer=Tokenizer(language), version=1)
    row_of = {doc_id: row for row, doc_id in enumerate(ids)}
    mean, std = background(matrix[[row_of[i] for i in sample_ids(ids)]])
    known = CosineBackground(mean=mean, std=std, nodes=len(ids))
    relevance, found = {}, {}
    for query in dataset.queries:
        if query.query_id not in queries:
            continue
        cosines = matrix @ queries[query.query_id]
        order = np.argsort(-cosines, kind="stable")[:CALIBRATED_DEPTH]
        dense = [(ids[row], float(cosines[row])) for row in order]
        hits = words.search(query.text, CALIBRATED_DEPTH)
        relevance[query.query_id] = query.relevance
        found[query.query_id] = SideLists(
            lists={name: entries for name, entries in ((DENSE, dense), (WORDS, hits)) if entries},
            floors={WORDS: 0.0} if 0 < len(hits) < CALIBRATED_DEPTH else {},
            excess=dense_excess(dense[0][1], known) if hits else None,
        )
    return Searched(relevance, found)


def read(data: Path, name: str, limit: int | None) -> tuple[Dataset, Mapping[str, Any], Mapping[str, Any]]:
    """Read a collection and its vectors."""
    dataset = load_dataset(data / "collections" / name).limited(limit, 0)
    vectors = load_vectors(data / "embeddings" / MODEL / f"{name}.npz", dataset)
    return dataset, vectors.documents, vectors.queries


def _merged(sides: SideLists, model: FusionModel) -> Sequence[tuple[str, float | None]]:
    return sides.merged(model) if len(sides.lists) > 1 else next(iter(sides.lists.values()), ())


def main_table(collections: Mapping[str, Searched]) -> list[dict[str, Any]]:
    """Measure table 1."""
    reached = {name: np.array([one.quality(model).mean() for model in GRID]) for name, one in collections.items()}
    rows = []
    for name, one in collections.items():
        sides = {side: one.side(side) for side in (WORDS, DENSE)}
        better = max(sides.values(), key=lambda quality: float(quality.mean()))
        others = [means for other, means in reached.items() if other != name]
        chosen = GRID[int(np.mean(others, axis=0).argmax())] if others else DEFAULT_FUSION
        row: dict[str, Any] = {"collection": name, "questions": len(better)}
        row |= {side: float(quality.mean()) for side, quality in sides.items()}
        for label, model in (("default", DEFAULT_FUSION), ("left out", chosen)):
            quality = one.quality(model)
            gain = quality - better
            row[label] = float(quality.mean())
            row[f"{label} gains"] = (float(gain.mean()), *bootstrap_interval(gain.tolist(), seed=0))
        row["constants"] = {k: v for k, v in asdict(chosen).items() if k != "trained_on"}
        rows.append(row)
        _say(
            f"| {name} | {row['questions']} | {row[WORDS]:.3f} | {row[DENSE]:.3f} | {row['default']:.3f} | "
            f"{_told(row['default gains'])} | {row['left out']:.3f} | {_told(row['left out gains'])} | "
            f"{chosen.alpha:g}, {chosen.slope:g}, {chosen.pivot:g}, {chosen.reach:g} |"
        )
    return rows


def bounds_table(collections: Mapping[str, Searched]) -> dict[str, Any]:
    """Measure table 2."""
    gains: dict[str, list[float]] = {}
    for name, one in collections.items():
        better = max(one.side(WORDS).mean(), one.side(DENSE).mean())
        gains[name] = [float(one.quality(replace(DEFAULT_FUSION, alpha=a)).mean() - better) for a in STEPS]
        _say(f"| {name} | " + " | ".join(f"{gain:+.3f}" for gain in gains[name]) + " |")
    every = bounds(list(gains.values()))
    _say(f"\nnot below the better side on any collection: {every[0]:g} to {every[1]:g}")
    left_out = {}
    for name, own in gains.items():
        low, high = bounds([other for key, other in gains.items() if key != name] or [own])
        worst = min(gain for alpha, gain in zip(STEPS, own, strict=True) if low <= alpha <= high)
        left_out[name] = {"bounds": [low, high], "least gain": worst}
        _say(f"without {name}: {low:g} to {high:g}; there at least {worst:+.3f} on it")
    return {"alphas": STEPS, "gains": gains, "bounds": every, "left out": left_out}


def bounds(gains: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the stretch of weights around the default on which no gain is below 0."""
    holds = (np.array(gains) >= -1e-9).all(axis=0)
    middle = STEPS.index(DEFAULT_FUSION.alpha)
    low = high = middle
    while low > 0 and holds[low - 1]:
        low -= 1
    while high < len(STEPS) - 1 and holds[high + 1]:
        high += 1
    return STEPS[low], STEPS[high]


def pseudo_table(data: Mapping[str, tuple[Dataset, Any, Any]], collections: Mapping[str, Searched], most: int) -> Any:  # noqa: ANN401 - rows for a JSON file
    """Measure table 3."""
    base = LocalE5Embedding()
    model = EmbeddingModel(base, name=embedding_name(base), batch_size=8, timeout_s=900.0)
    rows = []
    for name, (dataset, documents, _) in data.items():
        made = pseudo_dataset(name, dataset.path, dataset.documents, most=most)
        asked = {doc_id for query in made.queries for doc_id in query.relevance}
        changed = [document for document in made.documents if document.doc_id in asked]
        matrix, _ = model.embed_passages([passage(document) for document in changed])
        vectors = {**documents, **{d.doc_id: row for d, row in zip(changed, matrix, strict=True)}}
        found = search(made, vectors, {query.query_id: model.embed_query(query.text) for query in made.queries})
        table = measured_table(found.relevance, found.found, {doc_id: doc_id for doc_id in vectors})
        origin = FusionTrainedOn(dataset=name, index=name, index_version=0, rows=0, date="", pseudo=True)
        one = collections[name]
        better = max(float(one.side(WORDS).mean()), float(one.side(DENSE).mean()))
        row: dict[str, Any] = {"collection": name, "pseudo-queries": len(found.found)}
        for label, bounded in (("free", False), ("bounded", True)):
            fitted = fit_fusion(table, trained_on=origin, bounded=bounded)
            seen = validate_fusion(table, bounded=bounded)
            reached = float(one.quality(replace(fitted, trained_on=None)).mean())
            row[label] = {
                "alpha": fitted.alpha,
                "slope": fitted.slope,
                "installed": bool(seen.learned > seen.default and seen.gain[1] >= 0),
                "judged": reached,
                "over better side": reached - better,
                "over default": reached - float(one.quality(DEFAULT_FUSION).mean()),
            }
        rows.append(row)
        free, kept = row["free"], row["bounded"]
        _say(
            f"| {name} | {row['pseudo-queries']} | {free['alpha']:g} | {free['over better side']:+.3f} | "
            f"{kept['alpha']:g} | {'yes' if kept['installed'] else 'no'} | {kept['over better side']:+.3f} | "
            f"{kept['over default']:+.3f} |"
        )
    return rows


def _told(gain: tuple[float, float, float]) -> str:
    return f"{gain[0]:+.3f} [{gain[1]:+.3f}, {gain[2]:+.3f}]"


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--limit", type=int, help="most questions of a collection, drawn by a seed")
    parser.add_argument("--pseudo", type=int, default=0, help="pseudo-queries of a collection to fit on")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    read_ones = {name: read(args.data, name, args.limit) for name in args.names}
    collections = {name: search(*one) for name, one in read_ones.items()}
    _say("| collection | questions | BM25 | dense | hybrid | over the better side | hybrid, left out "
         "| over the better side | alpha, slope, pivot, reach |\n|---|---|---|---|---|---|---|---|---|")  # fmt: skip
    told: dict[str, Any] = {"main": main_table(collections)}
    _say("\n| collection | " + " | ".join(f"{a:g}" for a in STEPS) + " |\n|---|" + "---|" * len(STEPS))
    told["bounds"] = bounds_table(collections)
    if args.pseudo:
        head = ["collection", "pseudo-queries", "free: alpha", "judged, over the better side", "bounded: alpha",
                "installed", "judged, over the better side", "over the default"]  # fmt: skip
        _say(f"\n| {' | '.join(head)} |\n|{'---|' * len(head)}")
        told["pseudo"] = pseudo_table(read_ones, collections, args.pseudo)
    if args.json is not None:
        args.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
