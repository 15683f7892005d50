"""Running a benchmark: every strategy over every data set, the router's own choice, the oracle and the peers."""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from agentic_retriever import __version__
from agentic_retriever.embeddings import resolve_embedding
from agentic_retriever.errors import EvaluationError, unknown_name
from agentic_retriever.evaluation.answers import ANSWER, measure_answers, run_answers
from agentic_retriever.evaluation.beir import QRELS, QUERIES
from agentic_retriever.evaluation.benchmark_result import Benchmark, TargetResult
from agentic_retriever.evaluation.datasets import Dataset, check_names
from agentic_retriever.evaluation.entrants import Entrants, enter
from agentic_retriever.evaluation.finetune_data import FinetuneDataset, finetune_dataset
from agentic_retriever.evaluation.journal import fingerprint
from agentic_retriever.evaluation.judging import Judge
from agentic_retriever.evaluation.loading import load_dataset
from agentic_retriever.evaluation.machine import machine, peak_mb, resident_mb, versions
from agentic_retriever.evaluation.measures import measure_rankings
from agentic_retriever.evaluation.options import ALL, AUTO, BenchOptions
from agentic_retriever.evaluation.pseudo import documents_below, documents_of, pseudo_dataset
from agentic_retriever.evaluation.regret import oracle_row, routing_quality
from agentic_retriever.evaluation.rows import Against, Row
from agentic_retriever.evaluation.run_log import RunLog
from agentic_retriever.evaluation.runner import COLD, latest, run_contestants
from agentic_retriever.evaluation.stage_one import StageOne
from agentic_retriever.evaluation.targets import Bench, Target, opened_targets
from agentic_retriever.evaluation.watching import SilentWatcher
from agentic_retriever.router import AgenticRouter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.llms import LLM

    from agentic_retriever.config import RouterConfig
    from agentic_retriever.evaluation.watching import Watcher

    Source = Dataset | FinetuneDataset | str | Path

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

    Args:
        router: Its settings, embedding model and indexes are used; or settings alone.
        *sources: BEIR folders, questions files, files or objects of LlamaIndex's ``EmbeddingQAFinetuneDataset``, the
            word ``sample``; a folder of documents or the name of an index gives pseudo-queries.
        options: How to run.
        folder: Where indexes and results are kept; a temporary folder by default, which cannot be gone on with.
        embedding: Embeds, instead of the router's model.
        llm: Writes and judges answers, instead of the model that the settings name.
        timer: Seconds, for latencies.
        watcher: Hears how far it is.
        **settings: Fields of ``BenchOptions``, instead of ``options``: ``strategies``, ``mode``, ``limit``, ``seed``.

    Returns:
        Everything that was measured; but for times, the same seed gives the same figures.

    Raises:
        EvaluationError: If there is nothing to ask, or the vectors do not fit.
        UnknownIndexError: If a questions file names an index that is nowhere.
        ConfigError: If the extra ``bench`` is not installed.
        EmbeddingError: If the embedding model failed; what was done is kept.
        StoreError: If the folder or an index cannot be used.
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
    """Read whatever can be measured with.

    Args:
        source: See :func:`benchmark`.
        live: A router whose indexes may be named.
        seed: Draws the documents that pseudo-queries are made of.

    Returns:
        The data set.

    Raises:
        EvaluationError: If nothing can be asked.
    """
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
