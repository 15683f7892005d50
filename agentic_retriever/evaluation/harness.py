"""Running a benchmark: every strategy over every data set, the router's own choice, the oracle and the peers."""

from __future__ import annotations

import importlib
import json
import re
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
from llama_index.core import VectorStoreIndex
from llama_index.core.llms import MockLLM
from llama_index.core.retrievers import QueryFusionRetriever, RouterRetriever, VectorIndexRetriever
from llama_index.core.retrievers.fusion_retriever import FUSION_MODES
from llama_index.core.schema import QueryBundle
from llama_index.core.selectors import EmbeddingSingleSelector
from llama_index.core.tools import RetrieverTool

from agentic_retriever import __version__
from agentic_retriever.embeddings import KnownQueryEmbedding, PackedVectors, embedding_name, resolve_embedding
from agentic_retriever.errors import ConfigError, EvaluationError, UnknownIndexError, unknown_name
from agentic_retriever.evaluation.datasets import (
    PSEUDO_NOTE,
    QRELS,
    QUERIES,
    Dataset,
    DatasetKind,
    FinetuneDataset,
    ProblemKind,
    ProblemLog,
    ProblemReport,
    check_names,
    documents_below,
    documents_of,
    finetune_dataset,
    load_dataset,
    pseudo_dataset,
)
from agentic_retriever.evaluation.journal import RunLog, SilentWatcher, fingerprint
from agentic_retriever.evaluation.measures import BENCH_HINT, fold_to_documents, measure_rankings
from agentic_retriever.evaluation.options import ALL, AUTO, BenchOptions
from agentic_retriever.evaluation.results import (
    ANSWER,
    Against,
    Benchmark,
    Judge,
    Row,
    TargetResult,
    machine,
    measure_answers,
    oracle_row,
    peak_mb,
    resident_mb,
    routing_quality,
    run_answers,
    told,
    versions,
)
from agentic_retriever.evaluation.routing import (
    ASKS_A_MODEL,
    Description,
    Field,
    GivenEmbedding,
    RoutedQuery,
    RoutingBenchmark,
    RoutingMaterial,
    bench_routing,
    stage_one_field,
)
from agentic_retriever.evaluation.vectors import PassageVectors, given_vectors, passage_vectors, query_vectors
from agentic_retriever.indices.views import BUILT_IN_QUERY
from agentic_retriever.retrievers import REGISTRY, AdapterSettings, build_adapter, cards
from agentic_retriever.router import AgenticRouter
from agentic_retriever.sample import SAMPLE_INDEXES, VECTORS
from agentic_retriever.schema import View

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from llama_index.core.base.base_retriever import BaseRetriever
    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.llms import LLM
    from llama_index.core.schema import BaseNode, NodeWithScore

    from agentic_retriever.config import RouterConfig
    from agentic_retriever.evaluation.datasets import LabelledQuery
    from agentic_retriever.evaluation.journal import Watcher
    from agentic_retriever.evaluation.vectors import KnownVectors, Vector
    from agentic_retriever.indices import Index, IndexProfile, StoredIndex
    from agentic_retriever.schema import Strategy

    Source = Dataset | FinetuneDataset | str | Path


# From a data set to an index that can be asked, with the questions and their vectors.

_SAMPLE: Final = {index.name: index for index in SAMPLE_INDEXES}
_UNSAFE: Final = re.compile(r"[^\w.-]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One index with the questions to ask of it."""

    name: str
    router: AgenticRouter
    index: str
    queries: tuple[LabelledQuery, ...]
    unanswerable: tuple[LabelledQuery, ...]
    vectors: Mapping[str, Vector]
    embedding_ms: tuple[float, ...]  # Milliseconds for each question that had to be embedded
    pseudo: bool
    owned: bool
    vectors_from: str
    problems: ProblemReport
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What all targets share."""

    config: RouterConfig
    options: BenchOptions
    folder: Path
    embedding: Callable[[], BaseEmbedding]
    watcher: Watcher
    live: AgenticRouter | None = None
    llm: LLM | None = None
    timer: Callable[[], float] = time.perf_counter  # Seconds


@contextmanager
def opened_targets(bench: Bench, dataset: Dataset) -> Iterator[list[Target]]:
    """Make or open the indexes of a data set; they are closed behind the block unless they are the user's own."""
    if dataset.kind is DatasetKind.BEIR:
        with _own_index(bench, dataset) as target:
            yield [target]
        return
    with _router_for_questions(bench, dataset) as (router, owned):
        yield [_of_questions(bench, dataset, router, name, owned=owned) for name in _named(dataset, router)]


@contextmanager
def _own_index(bench: Bench, dataset: Dataset) -> Iterator[Target]:
    base = bench.embedding()
    known = given_vectors(dataset, bench.options.vectors, base)
    limited = dataset.limited(bench.options.limit, bench.options.seed)
    vectors, embedding_ms = _vectors(bench, limited.name, limited.queries, known, base.get_query_embedding)
    texts = {query.text: vectors[query.query_id] for query in limited.queries}
    config = _quiet(bench.config, bench.folder / _safe(dataset.name))
    source = PassageVectors(embedding_name(base), passage_vectors(dataset, known))
    with AgenticRouter(config, embedding=KnownQueryEmbedding(base, texts), llm=bench.llm, packed=[source]) as router:
        name = _safe(dataset.name)
        bench.watcher.begin(f"indexing {dataset.name}", len(dataset.documents))
        report = router.add_index(
            name, _corpus(bench, dataset), description=dataset.description, progress=_Nodes(bench.watcher)
        )
        made = len(dataset.queries)
        origin = f"{known.origin}, and {report.embedded:,} computed" if known is not None else "computed"
        yield Target(
            name=dataset.name,
            router=router,
            index=name,
            queries=limited.queries,
            unanswerable=(),
            vectors=vectors,
            embedding_ms=embedding_ms,
            pseudo=dataset.pseudo,
            owned=True,
            vectors_from=origin,
            problems=ProblemReport.merged([dataset.problems, *([] if known is None else [known.problems])]),
            notes=(PSEUDO_NOTE.format(name=dataset.name, made=made),) if dataset.pseudo else (),
        )


def _vectors(
    bench: Bench, name: str, queries: Sequence[LabelledQuery], known: KnownVectors | None, embed: Callable[[str], Any]
) -> tuple[dict[str, Vector], tuple[float, ...]]:
    bench.watcher.begin(f"questions of {name}", len(queries))
    return query_vectors(queries, known, embed, timer=bench.timer, on_progress=bench.watcher.advance)


def _corpus(bench: Bench, dataset: Dataset) -> Path:
    """Return the file to index: the data set's own, or one that is written from its documents."""
    own = dataset.path / "corpus.jsonl"
    if own.is_file() and not dataset.pseudo:
        return own
    path = bench.folder / f"{_safe(dataset.name)}-corpus" / "corpus.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", errors="replace") as file:
        for d in dataset.documents:
            record: dict[str, Any] = {"_id": d.doc_id, "title": d.title, "text": d.text, "metadata": dict(d.metadata)}
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
    return path


@contextmanager
def _router_for_questions(bench: Bench, dataset: Dataset) -> Iterator[tuple[AgenticRouter, bool]]:
    """Open the router whose indexes a questions file is about: the user's, or one over the sample."""
    named = {query.index for query in dataset.queries if query.index is not None}
    held = set() if bench.live is None else set(bench.live.index_names())
    if named and named <= set(_SAMPLE) and not named <= held:
        config = _quiet(bench.config, bench.folder / "sample").with_changes(embedding_model="local")
        with AgenticRouter(config, llm=bench.llm, packed=[PackedVectors(VECTORS)]) as router:
            for name in sorted(named):
                sample = _SAMPLE[name]
                bench.watcher.begin(f"indexing {name}", 0)
                router.add_index(name, sample.folder, description=sample.description)
            yield router, True
        return
    if bench.live is None:
        raise UnknownIndexError(unknown_name("index", ", ".join(sorted(named)) or "(none named)", []))
    yield bench.live, False


def _named(dataset: Dataset, router: AgenticRouter) -> list[str]:
    """Name the indexes that a questions file is about, in order of their first question."""
    existing = router.index_names()
    names = list(dict.fromkeys(query.index for query in dataset.queries if query.index is not None))
    for name in names:
        if name not in existing:
            raise UnknownIndexError(unknown_name("index", name, existing))
    if names or len(existing) != 1:
        if not names:
            raise EvaluationError(f"the questions of {dataset.path} name no index, and there are {len(existing)}")
        return names
    return existing


def _of_questions(bench: Bench, dataset: Dataset, router: AgenticRouter, name: str, *, owned: bool) -> Target:
    held, log = set(router.index(name).doc_ids()), ProblemLog()
    judged = []
    for query in dataset.queries:
        if query.index not in {None, name} or not query.answerable:
            continue
        for doc_id in query.relevance:
            if doc_id not in held:
                log.add(ProblemKind.UNKNOWN_DOCUMENT, dataset.path, f"index {name} has no document {doc_id!r}")
        relevance = {doc_id: grade for doc_id, grade in query.relevance.items() if doc_id in held}
        if any(grade > 0 for grade in relevance.values()):
            judged.append(replace(query, relevance=relevance))
        else:
            log.add(ProblemKind.UNJUDGED_QUERY, dataset.path, f"no document of {query.query_id!r} is in index {name}")
    if not judged:
        raise EvaluationError(
            f"no question of {dataset.path} can be asked of index {name!r}: none names a document of it; "
            "the ids of documents must be those of the index (agentic-retriever index show NAME)"
            + ("" if owned else f"; without judgments, bench {name} asks pseudo-queries made of the index")
        )
    limited = replace(dataset, queries=tuple(judged)).limited(bench.options.limit, bench.options.seed)
    model = router.resources.embedding()
    known = given_vectors(dataset, bench.options.vectors, model.base)
    vectors, embedding_ms = _vectors(bench, name, limited.queries, known, model.embed_query)
    several = len({query.index for query in dataset.queries if query.index is not None}) > 1
    return Target(
        name=f"{dataset.name}/{name}" if several else dataset.name,
        router=router,
        index=name,
        queries=limited.queries,
        unanswerable=tuple(query for query in dataset.queries if not query.answerable),
        vectors=vectors,
        embedding_ms=embedding_ms,
        pseudo=False,
        owned=owned,
        vectors_from="the index",
        problems=ProblemReport.merged([dataset.problems, log.report()]),
    )


def _quiet(config: RouterConfig, folder: Path) -> RouterConfig:
    """Return the settings for a router of our own: no history, no answers from the cache."""
    return config.with_changes(data_dir=folder, query_log="none", cache_max_entries=0)


def _safe(name: str) -> str:
    """Return a name that an index may have."""
    return _UNSAFE.sub("-", name).strip("-._")[:64] or "dataset"


class _Nodes:
    """Hears of indexing and tells a watcher how many nodes have their vectors."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher

    def files(self, total: int) -> None:
        """Ignore it: one file is one corpus."""

    def file_done(self, path: str) -> None:
        """Ignore it."""

    def nodes(self, found: int) -> None:
        """Ignore it: about one a document."""

    def nodes_done(self, done: int) -> None:
        """Pass it on."""
        self._watcher.advance(done)


# Asking every question of every contender, one result after the other, each kept as soon as it is there.

COLD = "cold"
"""Kind of the record of a first search, in which everything is opened."""
WARM = "warm"
"""Kind of the record of one question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a contender gave for a question."""

    nodes: Sequence[NodeWithScore]
    facts: Mapping[str, Any]


class Contestant(Protocol):
    """Somebody who can be asked."""

    @property
    def name(self) -> str:
        """Name of its row."""

    @property
    def peer(self) -> bool:
        """Whether it is somebody else's way."""

    @property
    def note(self) -> str:
        """What to know of it, or ``""``."""

    def ask(self, query: LabelledQuery, vector: Vector) -> Found:
        """Search; may raise anything."""

    def cool(self) -> bool:
        """Close what a search opens, so that the next one is a cold one; ``False`` if that cannot be done."""


class RouterContestant:
    """The router with a strategy pinned, or choosing it itself."""

    peer = False
    note = ""

    def __init__(
        self, router: AgenticRouter, index: str, strategy: str | None, *, name: str, depth: int, owned: bool
    ) -> None:
        self.name = name
        self._router = router
        self._index = index
        self._strategy = strategy
        self._depth = depth
        self._owned = owned

    def ask(self, query: LabelledQuery, vector: Vector) -> Found:  # noqa: ARG002 - the router has the vector at hand
        """Search as in production; see :class:`Contestant`."""
        result = self._router.retrieve(query.text, index=self._index, strategy=self._strategy, top_k=self._depth)
        usage = result.usage.to_dict()
        chosen = result.route.strategy
        return Found(
            nodes=result.nodes,
            facts={
                "stages": dict(result.timings_ms),
                "degraded": sorted({lost.step for lost in result.degraded}),
                "strategy": chosen.name,
                "used": result.strategy.value,
                "confidence": chosen.confidence,
                "reason": chosen.reason,
                "mode": chosen.mode,
                "complexity": result.route.complexity.value,
                "tokens": usage["prompt_tokens"] + usage["completion_tokens"],
                "usd": usage["usd"],
                "llm_calls": usage["llm_calls"],
            },
        )

    def cool(self) -> bool:
        """Close the index, if it is ours to close."""
        if self._owned:
            self._router.resources.close()
        return self._owned


def run_contestants(
    contestants: Sequence[Contestant],
    shares: Mapping[str, Sequence[LabelledQuery]],
    vectors: Mapping[str, Vector],
    log: RunLog,
    *,
    timer: Callable[[], float] = time.perf_counter,
    watcher: Watcher | None = None,
) -> None:
    """Ask the contestants, one after the other; the log takes each result, and what it has is not done again.

    The first question of each is asked once more beforehand: cold, with everything closed, where that can be done.
    What failed in an interrupted run is tried again.
    """
    watch = watcher or SilentWatcher()
    done = {(one["row"], one["query"]) for one in log.records if one.get("kind") == WARM and not one.get("error")}
    for contestant in contestants:
        queries = shares.get(contestant.name, ())
        waiting = [query for query in queries if (contestant.name, query.query_id) not in done]
        watch.begin(contestant.name, len(queries))
        watch.advance(len(queries) - len(waiting))
        if not waiting:
            continue
        first = waiting[0]
        is_cold = contestant.cool()
        opening = _asked(contestant, first, vectors[first.query_id], timer)
        if is_cold and not opening["error"]:
            log.append({"kind": COLD, "row": contestant.name, "ms": opening["ms"]})
        for query in waiting:
            log.append(_asked(contestant, query, vectors[query.query_id], timer))
            watch.advance(1)


def take_turns(names: Sequence[str], queries: Sequence[LabelledQuery]) -> dict[str, list[LabelledQuery]]:
    """Deal questions out as ``round_robin`` does: each to one strategy, in turn."""
    return {name: list(queries[at :: len(names)]) for at, name in enumerate(names)}


def latest(records: Iterable[Mapping[str, Any]], kind: str = WARM) -> dict[str, dict[str, Mapping[str, Any]]]:
    """Sort records by row and question; of several of one question the last one counts."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for record in records:
        if record.get("kind") == kind:
            found.setdefault(str(record["row"]), {})[str(record.get("query", ""))] = record
    return found


def _asked(contestant: Contestant, query: LabelledQuery, vector: Vector, timer: Callable[[], float]) -> dict[str, Any]:
    record: dict[str, Any] = {"kind": WARM, "row": contestant.name, "query": query.query_id, "docs": [], "error": ""}
    start = timer()
    try:
        found = contestant.ask(query, vector)
    except Exception as err:  # noqa: BLE001 - the seam to any retriever; one question must not end the run
        return {**record, "ms": (timer() - start) * 1000, "error": told(err)}
    spent = (timer() - start) * 1000
    return {**record, **found.facts, "ms": spent, "docs": fold_to_documents(found.nodes), "nodes": len(found.nodes)}


# LlamaIndex's own retrievers over the same nodes and the same vectors, so that they stand in the same table.

VECTOR: Final = "llamaindex_vector"
BM25: Final = "llamaindex_bm25"
FUSION_RRF: Final = "llamaindex_fusion_rrf"
FUSION_RELATIVE: Final = "llamaindex_fusion_relative_score"
ROUTER: Final = "llamaindex_router"

NOTES: Final = {
    VECTOR: "VectorIndexRetriever over the in-memory store that VectorStoreIndex makes",
    BM25: "BM25Retriever with its defaults: English stemmer and stop words",
    FUSION_RRF: "QueryFusionRetriever, reciprocal_rerank, over the two above, no generated queries",
    FUSION_RELATIVE: "QueryFusionRetriever, relative_score, over the two above, no generated queries",
    ROUTER: "RouterRetriever with EmbeddingSingleSelector over one tool per strategy of ours, with our descriptions; "
    "embedding these anew for each question, as it does, is not in its latency",
}


class PeerContestant:
    """One retriever of LlamaIndex, asked with the vector of the question at hand."""

    peer = True

    def __init__(
        self,
        name: str,
        make: Callable[[], BaseRetriever],
        embedding: GivenEmbedding,
        chosen: Callable[[], str] | None = None,
    ) -> None:
        self.name = name
        self.note = NOTES[name]
        self._make = make
        self._retriever: BaseRetriever | None = None
        self._embedding = embedding
        self._chosen = chosen

    def ask(self, query: LabelledQuery, vector: Vector) -> Found:
        """Search; see ``Contestant``."""
        if self._retriever is None:
            self._retriever = self._make()
        self._embedding.ask(vector)
        nodes = self._retriever.retrieve(QueryBundle(query.text, embedding=vector.tolist()))
        return Found(nodes=nodes, facts={} if self._chosen is None else {"strategy": self._chosen()})

    def cool(self) -> bool:
        """Return ``False``: it holds everything in memory."""
        return False


def peer_contestants(
    router: AgenticRouter, index_name: str, strategies: Sequence[Strategy], *, depth: int
) -> list[PeerContestant]:
    """Make the peers over the nodes and vectors of an index."""
    index = router.stored_index(index_name)
    nodes, embedding, model = _nodes(index), GivenEmbedding(), MockLLM()
    vector = VectorIndexRetriever(
        VectorStoreIndex(nodes, embed_model=embedding), similarity_top_k=depth, embed_model=embedding
    )
    bm25 = _bm25(nodes, depth)

    def fusion(mode: FUSION_MODES) -> QueryFusionRetriever:
        return QueryFusionRetriever(
            [vector, bm25], llm=model, mode=mode, similarity_top_k=depth, num_queries=1, use_async=False
        )

    selector = _RememberingSelector(embedding)
    peers = [
        PeerContestant(VECTOR, lambda: vector, embedding),
        PeerContestant(BM25, lambda: bm25, embedding),
        PeerContestant(FUSION_RRF, lambda: fusion(FUSION_MODES.RECIPROCAL_RANK), embedding),
        PeerContestant(FUSION_RELATIVE, lambda: fusion(FUSION_MODES.RELATIVE_SCORE), embedding),
    ]
    if strategies:
        peers.append(
            PeerContestant(
                ROUTER,
                lambda: RouterRetriever(selector, _tools(router, index_name, strategies, embedding, depth), llm=model),
                embedding,
                lambda: selector.last,
            )
        )
    return peers


class _RememberingSelector(EmbeddingSingleSelector):
    """LlamaIndex's selector; it keeps the name of what it chose last."""

    last: str = ""

    def _select(self, choices: Any, query: Any) -> Any:  # noqa: ANN401 - LlamaIndex's signature
        result = super()._select(choices, query)
        self.last = str(choices[result.ind].name)
        return result


def _nodes(index: StoredIndex) -> list[BaseNode]:
    """Copy the nodes of an index with their vectors, in the order of their ids."""
    nodes = sorted(index.nodes(), key=lambda node: node.node_id)
    ids, matrix = index.vector_store.vectors([node.node_id for node in nodes])
    by_id = dict(zip(ids, matrix, strict=True))
    missing = [node.node_id for node in nodes if node.node_id not in by_id]
    if missing:
        raise EvaluationError(f"index {index.name!r} has no vector of {len(missing)} nodes, first {missing[0]!r}")
    return [node.model_copy(update={"embedding": np.asarray(by_id[node.node_id]).tolist()}) for node in nodes]


def _bm25(nodes: list[BaseNode], depth: int) -> BaseRetriever:
    try:
        library = importlib.import_module("llama_index.retrievers.bm25")
    except ImportError as err:
        raise ConfigError(f"the peer BM25Retriever {BENCH_HINT}") from err
    made: BaseRetriever = library.BM25Retriever.from_defaults(nodes=nodes, similarity_top_k=min(depth, len(nodes)))
    return made


def _tools(
    router: AgenticRouter, index_name: str, strategies: Sequence[Strategy], embedding: GivenEmbedding, depth: int
) -> list[RetrieverTool]:
    """One tool per strategy; the selector knows the vectors of their descriptions."""
    resources, index = router.resources, router.index(index_name)
    config = router.config.with_changes(top_k=depth)
    settings = AdapterSettings.from_config(config, resources.workers(), model=resources.model)
    served = [card for card in cards(index) if card.strategy in strategies]
    described = resources.embedding().embed_sentences([card.description for card in served])
    embedding.learn({card.description: row for card, row in zip(served, described, strict=True)})
    return [
        RetrieverTool.from_defaults(
            build_adapter(card.strategy, index, settings), description=card.description, name=card.strategy.value
        )
        for card in served
    ]


# Who takes part in a benchmark, which questions each is asked, and who cannot take part and why.

_BUILT: Final = frozenset({View.HIERARCHY, View.SUMMARY})
_UNBUILT_WHY: Final = "its views are not built; leave out --no-views"
_AUTO_WHY: Final = (
    "the router would build the missing views within a question, and their time would count as its own; leave out "
    "--no-views"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrants:
    """Who takes part."""

    contestants: tuple[Contestant, ...]
    shares: Mapping[str, Sequence[LabelledQuery]]
    not_served: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


def enter(target: Target, options: BenchOptions, watcher: Watcher) -> Entrants:
    """Gather who takes part, and build the views that they need."""
    index = target.router.index(target.index)
    wanted = [s for s in REGISTRY if options.strategies is None or s.value in options.strategies]
    not_served = {s.value: _UNBUILT_WHY for s in wanted if not options.views and _BUILT & {*REGISTRY[s].needs}}
    not_served |= _refused(index, wanted)
    served = [strategy for strategy in wanted if strategy.value not in not_served]
    with_auto = options.mode == ALL and (options.strategies is None or AUTO in options.strategies)
    if with_auto and not options.views and _BUILT & index.views:
        not_served[AUTO], with_auto = _AUTO_WHY, False
    views_ms = _prepare(index, list(REGISTRY) if with_auto and options.views else served, watcher)
    names: list[str | None] = [strategy.value for strategy in served]
    contestants: list[Contestant] = [
        RouterContestant(target.router, target.index, name, name=name or AUTO, depth=options.depth, owned=target.owned)
        for name in (*names, *([None] if with_auto else []))
    ]
    if options.peers:
        contestants += peer_contestants(target.router, target.index, served, depth=options.depth)
    order = [contestant.name for contestant in contestants]
    shares = (
        {name: list(target.queries) for name in order} if options.mode == ALL else take_turns(order, target.queries)
    )
    return Entrants(
        contestants=tuple(contestants),
        shares=shares,
        not_served=not_served,
        facts={
            "documents": len(index.doc_ids()),
            "nodes": index.count(),
            "language": index.language,
            "embedding": index.embedding.name,
            "index_version": index.version,
            "views": sorted(view.value for view in views_ms),
        },
    )


def _refused(index: Index, wanted: Sequence[Strategy]) -> dict[str, str]:
    """Say which strategies an attached index cannot serve."""
    served = {card.strategy for card in cards(index)}
    unserved = [] if not index.is_attached else [strategy for strategy in wanted if strategy not in served]
    return {strategy.value: "the attached index cannot serve it" for strategy in unserved}


def _prepare(index: Index, strategies: Sequence[Strategy], watcher: Watcher) -> frozenset[View]:
    """Build what strategies need, so that no question pays for it; summaries are never written by a model here."""
    needed = {view for strategy in strategies for view in REGISTRY[strategy].needs}
    index.profile()
    if index.is_attached:
        return frozenset(needed & index.views)  # what it has was read when it was attached
    if View.KEYWORD in needed:
        watcher.begin(f"words of {index.name}", 1)
        index.keyword()
    if View.HIERARCHY in needed or (View.SUMMARY in needed and index.count() > BUILT_IN_QUERY):
        index.build_views(_Documents(watcher, index))
        needed |= _BUILT
    elif View.SUMMARY in needed:
        watcher.begin(f"summaries of {index.name}", 1)
        index.summaries()
    return frozenset(needed)


class _Documents:
    """Hears of views being built, document by document, and tells a watcher."""

    def __init__(self, watcher: Watcher, index: Index) -> None:
        self._watcher = watcher
        self._name = index.name
        self._total = len(index.doc_ids())
        self._done = 0

    def files(self, total: int) -> None:
        """Ignore it."""

    def file_done(self, path: str) -> None:
        """Ignore it."""

    def nodes(self, found: int) -> None:  # noqa: ARG002 - one call a document
        """Tell of one document; leaves come first, then summaries."""
        if self._done in {0, self._total}:
            what = "leaves" if self._done == 0 else "summaries"
            self._watcher.begin(f"{what} of {self._name}", self._total)
        self._done += 1
        self._watcher.advance(1)

    def nodes_done(self, done: int) -> None:
        """Ignore it."""


# Choosing the index, measured on the indexes and questions of one benchmark.

_LATER: Final = "it asks a model; agentic-retriever bench-routing measures it"
_NO_MODEL: Final = {"llm": "none", "llm_cloud": "none", "llm_small": "none"}


class StageOne:
    """Gathers the profiles and questions of several indexes, and measures how well the right index is chosen."""

    def __init__(self) -> None:
        self._profiles: dict[str, IndexProfile] = {}
        self._passages: dict[str, Vector] = {}
        self._queries: dict[str, RoutedQuery] = {}
        self._pseudo: list[str] = []

    def add(self, target: Target) -> None:
        """Take what is needed of an index that is open."""
        profile = target.router.index(target.index).profile()
        self._profiles[profile.name] = profile
        if profile.description:
            matrix = target.router.resources.embedding().embed_sentences([profile.description])
            self._passages[profile.name] = np.asarray(matrix, dtype=np.float32)[0]
        if target.pseudo:
            self._pseudo.append(target.name)
        for query in target.queries:
            query_id = f"{target.name}/{query.query_id}"
            self._queries[query_id] = RoutedQuery(
                query_id=query_id,
                text=query.text,
                dataset=target.name,
                vector=target.vectors.get(query.query_id),
                index=profile.name,
            )

    def measured(self, bench: Bench) -> RoutingBenchmark | None:
        """Measure every way to choose the index that asks no model."""
        widths = {profile.sample.shape[1] for profile in self._profiles.values() if len(profile.sample)}
        if len(self._profiles) < 2 or len(widths) > 1:
            return None
        material = self._material(bench.options.seed)
        with AgenticRouter(_modest(bench.config, bench), embedding=bench.embedding()) as router:
            found = stage_one_field(router, material)
            left_out = {name: _LATER if name in ASKS_A_MODEL else why for name, why in found.left_out.items()}
            field = Field(contenders=found.contenders, left_out=left_out)
            return bench_routing(material, field, {}, timer=bench.timer, watcher=bench.watcher)

    def _material(self, seed: int) -> RoutingMaterial:
        described = {name: Description(profile.description, "index") for name, profile in self._profiles.items()}
        pseudo = ", ".join(self._pseudo)
        return RoutingMaterial(
            profiles=self._profiles,
            cards={},
            queries=tuple(self._queries.values()),
            unlabelled=(),
            descriptions=described,
            passages=self._passages if len(self._passages) == len(self._profiles) else {},
            datasets=(),
            problems=ProblemReport(),
            notes=(f"the questions of {pseudo} are pseudo-queries; their own words tell the index",) if pseudo else (),
            seed=seed,
        )


def _modest(config: RouterConfig, bench: Bench) -> RouterConfig:
    """Return the settings for a router that holds no index and asks no model."""
    return config.with_changes(data_dir=bench.folder / "routing", query_log="none", cache_max_entries=0, **_NO_MODEL)


_RUNS = "runs"


def benchmark(
    router: AgenticRouter | RouterConfig,
    *sources: Source,
    options: BenchOptions | None = None,
    folder: Path | None = None,
    embedding: BaseEmbedding | None = None,
    llm: LLM | None = None,
    timer: Callable[[], float] = time.perf_counter,
    watcher: Watcher | None = None,
    **settings: Any,  # noqa: ANN401 - the fields of BenchOptions
) -> Benchmark:
    """Measure every strategy on one or several data sets.

    The documents of a data set are indexed by the router's own ingestion into a folder of the benchmark; a questions
    file is asked of the indexes that it names. What was done is kept in the folder, so an interrupted run with the same
    folder goes on where it was.
    """
    chosen = _options(options, settings)
    measure_rankings({}, {})  # a missing extra shows now, not when the work is done
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory())) if folder is None else folder
        bench = _bench(router, chosen, place, embedding, llm, timer, watcher)
        datasets = [resolve_source(source, bench.live, seed=chosen.seed) for source in sources]
        check_names(datasets)
        if not datasets:
            raise EvaluationError("name a data set: a BEIR folder, a questions file, or the word sample")
        bench = _with_live(bench, datasets, stack)
        return _run(bench, datasets)


def resolve_source(source: Source, live: AgenticRouter | None = None, *, seed: int = 0) -> Dataset:
    """Read whatever can be measured with."""
    if isinstance(source, Dataset):
        return source
    if not isinstance(source, (str, Path)):
        if not isinstance(source, FinetuneDataset):
            raise EvaluationError(
                f"a data set must be a path, a Dataset or an EmbeddingQAFinetuneDataset, got {type(source).__name__}"
            )
        return finetune_dataset(source)
    path = Path(source)
    if path.is_dir() and not (path / QUERIES).exists():
        documents, problems = documents_below(path)
        return pseudo_dataset(path.resolve().name, path, documents, seed=seed, problems=problems)
    if path.is_dir() and not any((path / QRELS).glob("*.tsv")):
        raise EvaluationError(
            f"{path / QRELS} holds no *.tsv; a BEIR folder needs judgments. Without any, name a folder of the "
            f"documents alone, without {QUERIES}, or an index of them: pseudo-queries are made of it"
        )
    if live is not None and not path.exists() and str(source) in live.index_names():
        return pseudo_dataset(str(source), path, documents_of(live.index(str(source))), seed=seed)
    return load_dataset(source)


def _options(options: BenchOptions | None, settings: Mapping[str, Any]) -> BenchOptions:
    if options is not None and settings:
        raise EvaluationError(f"give options, or {', '.join(settings)} by name; not both")
    known = [field.name for field in fields(BenchOptions)]
    for name in settings:
        if name not in known:
            raise EvaluationError(unknown_name("setting of a benchmark", name, known))
    given = dict(settings)
    if given.get("strategies") is not None:
        given["strategies"] = tuple(given["strategies"])
    return options or BenchOptions(**given)


def _bench(
    router: AgenticRouter | RouterConfig,
    options: BenchOptions,
    folder: Path,
    embedding: BaseEmbedding | None,
    llm: LLM | None,
    timer: Callable[[], float],
    watcher: Watcher | None,
) -> Bench:
    live = router if isinstance(router, AgenticRouter) else None
    config = router.config if isinstance(router, AgenticRouter) else router
    held: list[BaseEmbedding] = [] if embedding is None else [embedding]

    def model() -> BaseEmbedding:
        if not held:
            held.append(live.resources.embedding().base if live is not None else resolve_embedding(config))
        return held[0]

    return Bench(
        config=config,
        options=options,
        folder=folder,
        embedding=model,
        live=live,
        llm=llm,
        watcher=watcher or SilentWatcher(),
        timer=timer,
    )


def _with_live(bench: Bench, datasets: Sequence[Dataset], stack: ExitStack) -> Bench:
    """Open the indexes of the settings' data directory where a questions file needs them."""
    needed = any(not dataset.documents for dataset in datasets)
    if bench.live is not None or not needed:
        return bench
    return replace(bench, live=stack.enter_context(AgenticRouter(bench.config, llm=bench.llm)))


def _run(bench: Bench, datasets: Sequence[Dataset]) -> Benchmark:
    results: dict[str, TargetResult] = {}
    logs: list[RunLog] = []
    stage_one = StageOne()
    for dataset in datasets:
        with opened_targets(bench, dataset) as targets:
            for target in targets:
                entrants = enter(target, bench.options, bench.watcher)
                key = _key(bench, target)
                log = RunLog(bench.folder / _RUNS / f"{key}.jsonl", key)
                with log:
                    results[target.name] = _measured(bench, target, entrants, log)
                logs.append(log)
                stage_one.add(target)
    choosing = stage_one.measured(bench)
    for log in logs:
        log.remove()
    return Benchmark(
        results=results,
        options=bench.options,
        settings=bench.config.to_dict(),
        machine=machine(),
        versions=versions(),
        stage_one=choosing,
    )


def _key(bench: Bench, target: Target) -> str:
    """Stand for all that a single result depends on; which rows are wanted is not part of it."""
    index, options = target.router.index(target.index), bench.options
    asked = [(q.query_id, q.text, dict(q.relevance)) for q in (*target.queries, *target.unanswerable)]
    how = [options.mode, options.depth, options.seed]
    created = index.created
    return fingerprint([__version__, target.name, index.version, created, how, target.router.config.to_dict(), asked])


def _measured(bench: Bench, target: Target, entrants: Entrants, log: RunLog) -> TargetResult:
    options, start = bench.options, bench.timer()
    run_contestants(
        entrants.contestants, entrants.shares, target.vectors, log, timer=bench.timer, watcher=bench.watcher
    )
    rows = _rows(entrants, log, options.seed)
    answered = [*target.queries, *target.unanswerable] if options.answers else []
    judge = None
    if answered:
        client = target.router.resources.model
        judge = None if client is None else Judge(client)
        run_answers(target.router, target.index, answered, log, judge=judge, timer=bench.timer, watcher=bench.watcher)
    strategies = [row for row in rows.values() if row.name != AUTO and not row.peer]
    routing = None
    if options.mode == ALL:
        oracle = oracle_row(strategies, seed=options.seed)
        if oracle is not None:
            rows = {name: row for name, row in rows.items() if not row.peer} | {oracle.name: oracle} | {
                name: row for name, row in rows.items() if row.peer
            }  # fmt: skip
        if AUTO in rows and len(strategies) > 1:
            routing = routing_quality(strategies, rows[AUTO], seed=options.seed)
    return TargetResult(
        target=target.name,
        index=target.index,
        facts={**entrants.facts, "queries": len(target.queries), "vectors": target.vectors_from},
        pseudo=target.pseudo,
        rows=rows,
        against=Against.of(rows, options.baseline, seed=options.seed) if options.mode == ALL else None,
        routing=routing,
        answers=measure_answers(
            answered, latest(log.records, ANSWER).get(ANSWER, {}), seed=options.seed,
            judge="" if judge is None else judge.name,
        ) if answered else None,
        queries={query.query_id: query for query in target.queries},
        embedding_ms=target.embedding_ms,
        not_served=entrants.not_served,
        problems=target.problems,
        notes=target.notes,
        seconds=bench.timer() - start,
        memory_mb={"resident": resident_mb(), "peak": peak_mb()},
    )  # fmt: skip


def _rows(entrants: Entrants, log: RunLog, seed: int) -> dict[str, Row]:
    records, cold = latest(log.records), latest(log.records, COLD)
    rows = {}
    for contestant in entrants.contestants:
        asked = entrants.shares[contestant.name]
        if not asked:
            continue
        mine = {query.query_id: records[contestant.name][query.query_id] for query in asked}
        qrels = {query.query_id: query.relevance for query in asked}
        opening = cold.get(contestant.name, {}).get("")
        rows[contestant.name] = Row(
            name=contestant.name,
            quality=measure_rankings(qrels, {query_id: one["docs"] for query_id, one in mine.items()}),
            records=mine,
            cold_ms=None if opening is None else float(opening["ms"]),
            seed=seed,
            peer=contestant.peer,
            note=contestant.note,
        )
    return rows
