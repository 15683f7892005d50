"""Fitting the weights of hybrid search without any judgment, on questions made of the index's own documents.

Such questions flatter search by words, so they may move the weights only as far as holds on public collections with
real questions (``UNLABELLED_ALPHAS``); and they fit nothing else: no selector, no confidence.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from agentic_retriever.evaluation.fusion_fitting import MIN_QUESTIONS, UNLABELLED_ALPHAS, fit_fusion, validate_fusion
from agentic_retriever.evaluation.fusion_training import FusionTraining, is_used, measured_table
from agentic_retriever.evaluation.pseudo import PSEUDO_NOTE, documents_of, pseudo_dataset
from agentic_retriever.evaluation.training import TrainingOptions, today_utc
from agentic_retriever.evaluation.watching import SilentWatcher
from agentic_retriever.indices import KeywordIndex
from agentic_retriever.indices.node_text import embedded_text
from agentic_retriever.indices.profile import background, sample_ids
from agentic_retriever.retrievers import FUSION_FILE, FusionTrainedOn, SideLists
from agentic_retriever.retrievers.fusion_model import CosineBackground, dense_excess
from agentic_retriever.retrievers.hybrid import BM25, CALIBRATED_DEPTH
from agentic_retriever.retrievers.vector import DENSE
from agentic_retriever.text import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agentic_retriever.embeddings.model import EmbeddingModel, Vector
    from agentic_retriever.evaluation.datasets import LabelledQuery
    from agentic_retriever.evaluation.fusion_fitting import FusionValidation
    from agentic_retriever.evaluation.watching import Watcher
    from agentic_retriever.indices import Index
    from agentic_retriever.retrievers import FusionModel
    from agentic_retriever.router import AgenticRouter

    Matrix = np.ndarray[Any, np.dtype[np.float32]]

MOST_NODES = 50_000
"""Nodes that are searched; of a larger index whole documents, drawn by the seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnlabelledTraining:
    """What a fit without judgments found, and what became of it.

    Attributes:
        index: Name of the index.
        index_version: Its version.
        queries: Pseudo-queries that were made.
        fusion: The weights of hybrid search, and what became of them; the figures are those on pseudo-queries.
        bounds: The least and the largest weight of the dense side that could be chosen.
        note: What a reader must know.
        seed: Of everything that was drawn.
    """

    index: str
    index_version: int
    queries: int
    fusion: FusionTraining
    bounds: tuple[float, float]
    note: str
    seed: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {
            "format": 1,
            "index": self.index,
            "index_version": self.index_version,
            "pseudo_queries": True,
            "queries": self.queries,
            "fusion": self.fusion.to_dict(),
            "bounds": list(self.bounds),
            "note": self.note,
            "seed": self.seed,
        }


def train_unlabelled(
    router: AgenticRouter,
    name: str,
    options: TrainingOptions | None = None,
    *,
    today: Callable[[], str] = today_utc,
    watcher: Watcher | None = None,
) -> UnlabelledTraining:
    """Fit the weights of hybrid search of an index on pseudo-queries, within bounds, and install them if they help.

    Each question is a sentence of a document, which is left out of that document while it is searched for. The index
    itself is not changed.

    Args:
        router: Holds the index.
        name: Name of the index.
        options: How; ``limit`` is the number of questions, 200 by default, and ``vectors`` is not used.
        today: Gives the date, ISO 8601.
        watcher: Hears how far it is.

    Returns:
        What was found, marked as pseudo.

    Raises:
        EvaluationError: If the documents give no question.
        UnknownIndexError: If there is no such index.
        EmbeddingError: If the embedding model failed.
        StoreError: If the index cannot be read or written.
        ConfigError: If the extra ``bench`` is not installed.
    """
    given, index = options or TrainingOptions(), router.stored_index(name)
    made = pseudo_dataset(name, index.folder, documents_of(index), seed=given.seed).limited(given.limit, given.seed)
    fusion = _fitted(router, index, made.queries, given, today, watcher or SilentWatcher())
    return UnlabelledTraining(
        index=name,
        index_version=index.version,
        queries=len(made.queries),
        fusion=fusion,
        bounds=UNLABELLED_ALPHAS,
        note=PSEUDO_NOTE.format(name=name, made=len(made.queries)),
        seed=given.seed,
    )


def _fitted(
    router: AgenticRouter,
    index: Index,
    queries: Sequence[LabelledQuery],
    options: TrainingOptions,
    today: Callable[[], str],
    watcher: Watcher,
) -> FusionTraining:
    if len(queries) < MIN_QUESTIONS:
        return FusionTraining.left_out(f"{len(queries)} pseudo-queries are too few, {MIN_QUESTIONS} are the least")
    mirror = Mirror.of(index, router.resources.embedding(), queries, seed=options.seed)
    asked = [query for query in queries if mirror.holds(query)]
    if len(asked) < MIN_QUESTIONS:
        return FusionTraining.left_out(f"{len(asked)} pseudo-queries can be asked, {MIN_QUESTIONS} are the least")
    watcher.begin("pseudo-queries", len(asked))
    sides = {}
    for query in asked:
        sides[query.query_id] = mirror.search(query.text, router.resources.embedding().embed_query(query.text))
        watcher.advance(1)
    table = measured_table({query.query_id: query.relevance for query in asked}, sides, mirror.documents)
    validation = validate_fusion(table, seed=options.seed, bounded=True)
    path = index.folder / FUSION_FILE
    had_one, model = path.exists(), None
    if validation.default < validation.learned and validation.gain[1] >= 0:
        origin = FusionTrainedOn(
            dataset=f"pseudo-queries of {index.name}",
            index=index.name,
            index_version=index.version,
            rows=0,
            date=today(),
            pseudo=True,
        )
        model = fit_fusion(table, trained_on=origin, bounded=True)
        if not options.dry_run:
            model.save(path)
    return FusionTraining(
        validation=validation,
        model=model,
        installed=model is not None and not options.dry_run,
        verdict=_verdict(validation, model, dry_run=options.dry_run, used=is_used(router), had_one=had_one),
    )


class Mirror:
    """The nodes of an index as they are without the sentences that became questions, searched from memory.

    Args:
        documents: The document of each node.
        texts: What is searched by words, by node.
        vectors: Unit vectors of the nodes, in the order of ``texts``, ``(n, dimension)``.
        language: ISO 639-1 code of the index.
    """

    def __init__(
        self, documents: Mapping[str, str], texts: Mapping[str, str], vectors: Matrix, *, language: str
    ) -> None:
        self.documents, self.texts = documents, texts
        self._ids = list(texts)
        self._vectors = vectors
        self._held = set(documents.values())
        self._words = KeywordIndex.build(texts.items(), tokenizer=Tokenizer(language), version=1)
        row_of = {node_id: row for row, node_id in enumerate(self._ids)}
        mean, std = background(vectors[[row_of[node_id] for node_id in sample_ids(self._ids)]])
        self._background = CosineBackground(mean=mean, std=std, nodes=len(self._ids))

    @classmethod
    def of(cls, index: Index, model: EmbeddingModel, queries: Sequence[LabelledQuery], *, seed: int) -> Mirror:
        """Read an index, leave the questions out of their documents, and embed what that has changed.

        Args:
            index: The index.
            model: Its embedding model.
            queries: Pseudo-queries; each is a sentence of its only relevant document.
            seed: Draws the documents of an index that is too large.

        Raises:
            EmbeddingError: If the embedding model failed.
            StoreError: If the index cannot be read.
        """
        taken = {next(iter(query.relevance)): _pattern(query.text) for query in queries}
        share = MOST_NODES / max(1, index.count())
        documents: dict[str, str] = {}
        texts: dict[str, str] = {}
        changed: list[str] = []
        for node in index.nodes():
            doc_id, text = str(node.ref_doc_id or node.node_id), embedded_text(node)
            if doc_id not in taken and share < 1 and _drawn(doc_id, seed) >= share:
                continue
            left = taken[doc_id].sub(" ", text).strip() if doc_id in taken else text
            if left:
                documents[node.node_id], texts[node.node_id] = doc_id, left
                changed += [node.node_id] if left != text else []
        held, matrix = index.vector_store.vectors(list(texts))
        rows = {node_id: row for row, node_id in enumerate(held)}
        replaced = [node_id for node_id in changed if node_id in rows]
        if replaced:
            matrix[[rows[node_id] for node_id in replaced]], _ = model.embed_passages([texts[i] for i in replaced])
        kept = {node_id: texts[node_id] for node_id in held}
        return cls({i: documents[i] for i in held}, kept, matrix, language=index.language)

    def holds(self, query: LabelledQuery) -> bool:
        """Tell whether anything is left of the document of a question."""
        return not self._held.isdisjoint(query.relevance)

    def search(self, text: str, vector: Vector) -> SideLists:
        """Search both sides, as calibrated fusion does."""
        cosines = self._vectors @ np.asarray(vector, dtype=np.float32)
        order = np.argsort(-cosines, kind="stable")[:CALIBRATED_DEPTH]
        dense = [(self._ids[row], float(cosines[row])) for row in order.tolist()]
        words = self._words.search(text, CALIBRATED_DEPTH)
        lists = {name: entries for name, entries in ((DENSE, dense), (BM25, words)) if entries}
        return SideLists(
            lists=lists,
            floors={BM25: 0.0} if 0 < len(words) < CALIBRATED_DEPTH else {},
            excess=dense_excess(dense[0][1] if dense else None, self._background),
        )


def _pattern(sentence: str) -> re.Pattern[str]:
    """Find a sentence whatever the white space in it."""
    return re.compile(r"\s+".join(map(re.escape, sentence.split())))


def _drawn(doc_id: str, seed: int) -> float:
    digest = hashlib.sha256(f"{seed}:{doc_id}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def _verdict(
    validation: FusionValidation, model: FusionModel | None, *, dry_run: bool, used: bool, had_one: bool
) -> str:
    low, high = UNLABELLED_ALPHAS
    mean, least, most = validation.gain
    gain = f"{mean:+.3f} [{least:+.3f}, {most:+.3f}] nDCG@10 over the default on pseudo-queries"
    if model is None:
        stays = "; the weights that were there stay" if had_one else ""
        return f"weights of hybrid not installed, since they do not help even there: {gain}{stays}"
    done = "would be installed, but this is a dry run" if dry_run else "installed"
    what = f"weights of hybrid (dense side {model.alpha:g}, chosen from {low:g} to {high:g} without judgments) {done}"
    return f"{what}: {gain}{'' if used else '; counts once the setting fusion is calibrated'}"
