"""Asking every question of everybody who takes part; each result is kept as soon as it is there."""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, NamedTuple, TypeVar

import numpy as np
from llama_index.core import VectorStoreIndex
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import Field
from llama_index.core.llms import MockLLM
from llama_index.core.retrievers import QueryFusionRetriever, RouterRetriever, VectorIndexRetriever
from llama_index.core.retrievers.fusion_retriever import FUSION_MODES
from llama_index.core.schema import BaseNode, NodeWithScore, QueryBundle
from llama_index.core.selectors import EmbeddingSingleSelector
from llama_index.core.tools import RetrieverTool, ToolMetadata

from agentic_retriever.errors import EvaluationError, StoreError
from agentic_retriever.evaluation import measures
from agentic_retriever.evaluation.datasets import LabelledQuery
from agentic_retriever.indices import Index, IndexProfile, StoredIndex
from agentic_retriever.indices.derived import SILENT, SilentProgress, Watcher
from agentic_retriever.indices.profile import Vector
from agentic_retriever.retrievers import REGISTRY, build_adapter, cards
from agentic_retriever.router import AgenticRouter
from agentic_retriever.schema import NO_LIMITS, Answer, Budget, Degradation, Retrieval, Selection, Strategy, View


def fingerprint(facts: object) -> str:
    """Return 32 hexadecimal digits that stand for what a measurement depends on."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:32]


class Journal(AbstractContextManager["Journal"]):
    """Results appended one by one, a line each, so that an interrupted measurement goes on; not for several threads."""

    def __init__(self, path: Path | None = None, key: str = "") -> None:
        self._path, self._file = path, None
        self._head = {"format": 2, "key": key}
        self.records: list[dict[str, Any]] = []
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b")
            kept = self._read(self._file)
            self._file.truncate(kept)
        except OSError as err:
            raise self._error(err) from err
        if not kept:
            self._write(self._head)

    def append(self, record: Mapping[str, Any]) -> None:
        self._write(record)
        self.records.append(dict(record))

    def latest(self, kind: str) -> dict[tuple[str, str], dict[str, Any]]:
        """Return the records of a kind by row and question; of several of one question the last one counts."""
        return {(one["row"], one.get("query", "")): one for one in self.records if one.get("kind") == kind}

    def remove(self) -> None:
        if self._file is not None and self._path is not None:
            self._file.close()
            self._path.unlink(missing_ok=True)

    def __exit__(self, *_: object) -> None:
        if self._file is not None and not self._file.closed:
            os.fsync(self._file.fileno())
            self._file.close()

    def _write(self, record: Mapping[str, Any]) -> None:
        if self._file is None:
            return
        try:
            self._file.write(json.dumps(record, ensure_ascii=True, allow_nan=False).encode() + b"\n")
            self._file.flush()
        except OSError as err:
            raise self._error(err) from err

    def _error(self, err: OSError) -> StoreError:
        return StoreError(f"cannot use {self._path}: {err.strerror or err}; check the permissions and the free space")

    def _read(self, file: BinaryIO) -> int:
        """Read what fits; return how many bytes of the file are whole lines of this measurement."""
        kept = file.seek(0)
        for line in file:
            try:
                record = json.loads(line) if line.endswith(b"\n") else None
            except ValueError:
                break
            if not isinstance(record, dict) or (not kept and record != self._head):
                break
            if kept:
                self.records.append(record)
            kept += len(line)
        return kept


Q = TypeVar("Q", bound=LabelledQuery)
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How whatever is measured is asked: timed, watched, and each result kept as soon as it is there."""

    journal: Journal = field(default_factory=Journal)
    timer: Callable[[], float] = time.perf_counter  # Seconds
    watcher: Watcher = SILENT

    def ask(
        self,
        key: tuple[str, str],  # kind and row of the records
        queries: Sequence[Q],
        ask: Callable[[Q], R],  # may raise anything
        facts: Callable[[Q, R | None], Mapping[str, Any]],  # of what came, None where something raised; is not timed
        *,
        what: str = "",
        opening: Callable[[Q], object] | None = None,
    ) -> dict[str, dict[str, Any]]:
        """Ask every question that the journal has not answered, the first one beforehand by ``opening``."""
        kind, row = key
        done = {query for (name, query), one in self.journal.latest(kind).items() if name == row and not one["error"]}
        waiting = [query for query in queries if query.query_id not in done]
        self.watcher.begin(what or row, len(queries))
        self.watcher.advance(len(queries) - len(waiting))
        if waiting and opening is not None:
            opening(waiting[0])
        for query in waiting:
            found, timing = self.timed(ask, query)
            self.journal.append({"kind": kind, "row": row, "query": query.query_id, **facts(query, found), **timing})
            self.watcher.advance(1)
        records = self.journal.latest(kind)
        return {query.query_id: records[row, query.query_id] for query in queries}

    def timed(self, ask: Callable[[Q], R], query: Q) -> tuple[R | None, dict[str, Any]]:
        """Return what a question gave, with its milliseconds and what it raised."""
        start, found, error = self.timer(), None, ""
        try:
            found = ask(query)
        except Exception as err:  # noqa: BLE001 - the seam to whatever is measured; one question must not end the run
            error = measures.error_text(err)
        return found, {"ms": (self.timer() - start) * 1000, "error": error}


class Found(NamedTuple):
    nodes: Sequence[NodeWithScore]
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    name: str
    ask: Callable[[LabelledQuery], Found]  # may raise anything
    close: Callable[[], None] | None = None  # closes what a search opens, so that the next one is a cold one
    peer: bool = False
    note: str = ""

    def run(self, queries: Sequence[LabelledQuery], run: Run, *, seed: int) -> measures.Row:
        """Ask the questions; the first one once more beforehand: cold, with everything closed, where that can be."""

        def facts(query: LabelledQuery, found: Found | None) -> dict[str, Any]:
            nodes, more = found or ((), {})
            ranked = measures.fold_to_spans(nodes, query.spans) if query.spans else measures.fold_to_documents(nodes)
            return {**more, "docs": ranked, "nodes": len(nodes)}

        def opening(query: LabelledQuery) -> None:
            if self.close is not None:
                self.close()
            _, timing = run.timed(self.ask, query)
            if self.close is not None and not timing["error"]:
                run.journal.append({"kind": "cold", "row": self.name, "ms": timing["ms"]})

        records = run.ask(("warm", self.name), queries, self.ask, facts, opening=opening)
        cold = run.journal.latest("cold").get((self.name, ""))
        judged = {query.query_id: query.relevance for query in queries}
        found = {query_id: record["docs"] for query_id, record in records.items()}
        return measures.Row(
            name=self.name,
            quality=measures.measure_rankings(judged, found),
            records=records,
            cold_ms=None if cold is None else float(cold["ms"]),
            seed=seed,
            peer=self.peer,
            note=self.note,
        )


def router_contestant(
    router: AgenticRouter, index: str, strategy: str | None, *, name: str, depth: int, owned: bool
) -> Contestant:
    """Make a contestant of the router with a strategy pinned, or choosing it itself, asked as in production."""

    def ask(query: LabelledQuery) -> Found:
        result = router.retrieve(query.text, index=index, strategy=strategy, top_k=depth)
        chosen = result.route.strategy
        return Found(result.nodes, {**spent(result), "confidence": chosen.confidence, "reason": chosen.reason})

    return Contestant(name=name, ask=ask, close=router.resources.release if owned else None)


def spent(result: Retrieval | Answer) -> dict[str, Any]:
    """Return what a question took: its strategy, time, fallbacks, tokens and money."""
    usage = result.usage.to_dict()
    return {
        "strategy": result.route.strategy.name,
        "stages": dict(result.timings_ms),
        "degraded": fallen_back(result.degraded),
        "tokens": usage["prompt_tokens"] + usage["completion_tokens"],
        "usd": usage["usd"],
        "llm_calls": usage["llm_calls"],
    }


def fallen_back(degraded: Sequence[Degradation]) -> list[str]:
    return sorted({lost.step for lost in degraded})


# Building the views that strategies need before anything is measured, so that no question pays for it.

VIEWS_AT_ONCE: Final = frozenset({View.HIERARCHY, View.SUMMARY})  # views that are built together


def build_views(index: Index, strategies: Iterable[Strategy], watcher: Watcher) -> frozenset[View]:
    """Build what strategies need; summaries are never written by a model here."""
    needed = {view for strategy in strategies for view in REGISTRY[strategy].needs}
    watcher.begin(f"words of {index.name}", 1)
    index.build_search()
    if index.is_attached:
        return frozenset(needed & index.views)  # what it has was read when it was attached
    if needed & VIEWS_AT_ONCE:
        watcher.begin(f"leaves and summaries of {index.name}", 2 * len(index.doc_ids()))
        index.build_views(_Documents(watcher))
        needed |= VIEWS_AT_ONCE
    return frozenset(needed)


class _Documents(SilentProgress):
    """Hears of each document twice, first for its leaves and then for its summaries, and tells a watcher."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher

    def nodes(self, found: int) -> None:  # noqa: ARG002 - one call a document
        self._watcher.advance(1)


# Other people's ways behind the same protocols as ours, so that all run side by side and stand in one table.

UTTERANCES: Final = 5  # how many of the nearest utterances count; semantic-router's default ``top_k``


class GivenEmbedding(BaseEmbedding):
    """An embedding model that knows its vectors: of descriptions by text, and of the next question; not for threads."""

    model_name: str = "given"
    texts: dict[str, list[float]] = Field(default_factory=dict)
    query: list[float] = Field(default_factory=list)

    def _get_query_embedding(self, query: str) -> list[float]:  # noqa: ARG002 - of the base
        return self.query

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)

    def _get_text_embedding(self, text: str) -> list[float]:
        return self.texts[text]


class LlamaIndexEmbeddingSelector:
    """LlamaIndex's EmbeddingSingleSelector, the class itself, fed with vectors that are known already."""

    mode = "llamaindex_embedding_selector"

    def __init__(self, description_vectors: Mapping[str, Vector]) -> None:
        # The selector sees texts only; the name of an index is the text under which its vector is known.
        self._embedding = GivenEmbedding(texts={name: row.tolist() for name, row in description_vectors.items()})
        self._selector = EmbeddingSingleSelector(self._embedding)

    def classify(
        self,
        query: str,
        profiles: Sequence[IndexProfile],
        *,
        query_vector: Vector | None,
        allowance: Budget = NO_LIMITS,  # noqa: ARG002 - of the protocol
    ) -> Selection:
        missing = [profile.name for profile in profiles if profile.name not in self._embedding.texts]
        if query_vector is None or missing:
            what = f"the descriptions of {', '.join(missing)} have" if missing else "the question has"
            raise EvaluationError(f"{what} no vector, and {self.mode} goes by vectors alone")
        self._embedding.query = query_vector.tolist()
        choices = [ToolMetadata(description=profile.name, name=profile.name) for profile in profiles]
        result = self._selector.select(choices, query)
        return _chosen(profiles[result.ind].name, {}, result.reason, self.mode)


class NearestUtteranceRouter:
    """Does as semantic-router without a threshold: the nearest utterances, here sampled nodes, vote for their route."""

    def __init__(self, profiles: Sequence[IndexProfile], aggregation: Literal["mean", "sum"]) -> None:
        self.mode, self._mean = f"nearest_utterance_{aggregation}", aggregation == "mean"
        self._rows = np.array([row for profile in profiles for row in profile.sample])
        self._names = [profile.name for profile in profiles for _ in profile.sample]

    def classify(
        self,
        query: str,  # noqa: ARG002 - of the protocol
        profiles: Sequence[IndexProfile],  # noqa: ARG002 - those it was made for
        *,
        query_vector: Vector | None,
        allowance: Budget = NO_LIMITS,  # noqa: ARG002 - of the protocol
    ) -> Selection:
        if query_vector is None or not self._names:
            lacking = "the question has no vector or no index a sample"
            raise EvaluationError(f"{lacking}, and {self.mode} goes by them alone")
        cosines = self._rows @ query_vector
        votes: dict[str, list[float]] = {}
        for at in np.argsort(-cosines, kind="stable")[:UTTERANCES]:
            votes.setdefault(self._names[at], []).append(float(cosines[at]))
        scores = {name: sum(found) / (len(found) if self._mean else 1) for name, found in votes.items()}
        best = max(scores, key=scores.__getitem__)
        return _chosen(best, scores, f"nearest {UTTERANCES} utterances", self.mode)


def _chosen(name: str, scores: Mapping[str, float], reason: str, mode: str) -> Selection:
    ranked = dict(sorted(scores.items(), key=lambda item: -item[1])) or {name: 1.0}
    return Selection(name=name, confidence=1.0, scores=ranked, margin=0.0, reason=reason, mode=mode)


# LlamaIndex's own retrievers over the same nodes and the same vectors.

_ROUTER: Final = "llamaindex_router"
_NOTES: Final = {
    "llamaindex_vector": "VectorIndexRetriever over the in-memory store that VectorStoreIndex makes",
    "llamaindex_bm25": "BM25Retriever with its defaults: English stemmer and stop words",
    "llamaindex_fusion_rrf": "QueryFusionRetriever, reciprocal_rerank, over the two above, no generated queries",
    "llamaindex_fusion_relative_score": "the same by relative_score",
    _ROUTER: "RouterRetriever, EmbeddingSingleSelector over our descriptions; embedding these is not in its latency",
}


def peer_contestants(
    router: AgenticRouter, index_name: str, strategies: Sequence[Strategy], vectors: Mapping[str, Vector], *, depth: int
) -> list[Contestant]:
    """Make the peers over the nodes and vectors of an index, asked with the vector of the question at hand."""
    index = router.stored_index(index_name)
    nodes, embedding, model = _nodes(index), GivenEmbedding(), MockLLM()
    store = VectorStoreIndex(nodes, embed_model=embedding)
    vector = VectorIndexRetriever(store, similarity_top_k=depth, embed_model=embedding)
    library = measures.optional("llama_index.retrievers.bm25", "the peer BM25Retriever")
    bm25: BaseRetriever = library.BM25Retriever.from_defaults(nodes=nodes, similarity_top_k=min(depth, len(nodes)))
    options: dict[str, Any] = {"llm": model, "similarity_top_k": depth, "num_queries": 1, "use_async": False}
    modes = FUSION_MODES.RECIPROCAL_RANK, FUSION_MODES.RELATIVE_SCORE
    fused = [QueryFusionRetriever([vector, bm25], mode=mode, **options) for mode in modes]
    ways = dict(zip(_NOTES, [vector, bm25, *fused], strict=False))
    selector = _RememberingSelector(embedding)

    @cache  # made when it is asked first, when no row before it closes the index any more
    def routed() -> BaseRetriever:
        return RouterRetriever(selector, _tools(router, index_name, strategies, embedding, depth), llm=model)

    def ask(name: str, query: LabelledQuery) -> Found:
        embedding.query = vectors[query.query_id].tolist()
        way = routed() if name == _ROUTER else ways[name]
        nodes = way.retrieve(QueryBundle(query.text, embedding=embedding.query))
        return Found(nodes, {"strategy": selector.last} if name == _ROUTER else {})

    names = [*ways, _ROUTER] if strategies else [*ways]
    return [Contestant(name=name, ask=partial(ask, name), peer=True, note=_NOTES[name]) for name in names]


class _RememberingSelector(EmbeddingSingleSelector):
    last: str = ""

    def _select(self, choices: Any, query: Any) -> Any:  # noqa: ANN401 - LlamaIndex's signature
        result = super()._select(choices, query)
        self.last = str(choices[result.ind].name)
        return result


def _nodes(index: StoredIndex) -> list[BaseNode]:
    nodes = sorted(index.nodes(), key=lambda node: node.node_id)
    by_id = dict(zip(*index.vector_store.vectors([node.node_id for node in nodes]), strict=True))
    return [node.model_copy(update={"embedding": np.asarray(by_id[node.node_id]).tolist()}) for node in nodes]


def _tools(
    router: AgenticRouter, index_name: str, strategies: Sequence[Strategy], embedding: GivenEmbedding, depth: int
) -> list[RetrieverTool]:
    """One tool per strategy; the selector knows the vectors of their descriptions."""
    resources, index = router.resources, router.index(index_name)
    settings = replace(resources.adapter_settings(), top_k=depth)
    served = [card for card in cards(index) if card.strategy in strategies]
    described = resources.embedding().embed_sentences([card.description for card in served])
    embedding.texts = {card.description: row.tolist() for card, row in zip(served, described, strict=True)}
    made = [(card, build_adapter(card.strategy, index, settings)) for card in served]
    tool = RetrieverTool.from_defaults
    return [tool(way, name=card.strategy.value, description=card.description) for card, way in made]
