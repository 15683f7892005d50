"""Print how calibrated hybrid search does on public collections beside each of its sides.

Usage: python scripts/fusion_tables.py DATA_FOLDER [NAME ...] [--limit N] [--json FILE]

DATA_FOLDER holds ``collections/NAME`` in BEIR form and ``embeddings/multilingual-e5-small/NAME.npz`` with vectors by
id. A document is a node; both sides are searched 100 deep, as the strategy searches them. nDCG@10 of each side alone,
of hybrid as it comes, and of hybrid with constants that were chosen on the other collections only, with what it gains
over the better side (95 % bootstrap interval over questions).
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from agentic_retriever.evaluation import load_dataset, ndcg_by_query
from agentic_retriever.evaluation.datasets import load_vectors, passage
from agentic_retriever.evaluation.measures import bootstrap_interval
from agentic_retriever.indices import KeywordIndex
from agentic_retriever.indices.profile import background, sample_ids
from agentic_retriever.retrievers import DEFAULT_FUSION, FusionModel
from agentic_retriever.retrievers.hybrid import CALIBRATED_DEPTH, SideLists, dense_excess
from agentic_retriever.text import Tokenizer, detect_language

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentic_retriever.evaluation import Dataset

NAMES = ("cranfield", "cacm", "cisi", "xquad-en", "xquad-es", "xquad-th", "hotpotqa-100")
MODEL = "multilingual-e5-small"
GRID = tuple(
    FusionModel(alpha=alpha, slope=slope, pivot=pivot, reach=reach)
    for alpha in (0.4, 0.5, 0.6)
    for slope, pivot, reach in product((0.0, 0.07, 0.14, 0.21), (-4.0, -3.5, -3.0), (0.1, 0.2, 0.3))
    if slope or (pivot, reach) == (-3.5, 0.2)
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
    known: Any = SimpleNamespace(background_mean=mean, background_std=std, nodes=len(ids))
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
            excess=dense_excess(dense[0][1], known, hits[0][1]) if hits else None,
        )
    return Searched(relevance, found)


def read(data: Path, name: str, limit: int | None) -> tuple[Dataset, Mapping[str, Any], Mapping[str, Any]]:
    """Read a collection and its vectors."""
    dataset = load_dataset(data / "collections" / name).limited(limit, 0)
    vectors = load_vectors(data / "embeddings" / MODEL / f"{name}.npz", dataset)
    return dataset, vectors.documents, vectors.queries


def _merged(sides: SideLists, model: FusionModel) -> Sequence[tuple[str, float | None]]:
    if len(sides.lists) > 1:
        return sides.merged(model.weight(sides.excess))
    return next(iter(sides.lists.values()), ())


def main_table(collections: Mapping[str, Searched]) -> list[dict[str, Any]]:
    """Measure every collection, and print it."""
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
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    collections = {name: search(*read(args.data, name, args.limit)) for name in args.names}
    _say("| collection | questions | BM25 | dense | hybrid | over the better side | hybrid, left out "
         "| over the better side | alpha, slope, pivot, reach |\n|---|---|---|---|---|---|---|---|---|")  # fmt: skip
    told: dict[str, Any] = {"main": main_table(collections)}
    if args.json is not None:
        args.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
