"""From a data set to an index that can be asked, with the questions and their vectors."""

from __future__ import annotations

import json
import re
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from agentic_retriever.embeddings import KnownQueryEmbedding, PackedVectors, embedding_name
from agentic_retriever.errors import EvaluationError, UnknownIndexError, unknown_name
from agentic_retriever.evaluation.bench_vectors import PassageVectors, given_vectors, passage_vectors, query_vectors
from agentic_retriever.evaluation.datasets import DatasetKind
from agentic_retriever.evaluation.problems import ProblemKind, ProblemLog, ProblemReport
from agentic_retriever.evaluation.pseudo import PSEUDO_NOTE
from agentic_retriever.router import AgenticRouter
from agentic_retriever.sample import SAMPLE_INDEXES, VECTORS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.llms import LLM

    from agentic_retriever.config import RouterConfig
    from agentic_retriever.evaluation.datasets import Dataset, LabelledQuery
    from agentic_retriever.evaluation.options import BenchOptions
    from agentic_retriever.evaluation.vectors import KnownVectors, Vector
    from agentic_retriever.evaluation.watching import Watcher

_SAMPLE: Final = {index.name: index for index in SAMPLE_INDEXES}
_UNSAFE: Final = re.compile(r"[^\w.-]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One index with the questions to ask of it.

    Attributes:
        name: Name of its row in the results.
        router: Holds the index.
        index: Name of the index.
        queries: Judged questions.
        unanswerable: Questions that nothing in the index answers; asked only where answers are measured.
        vectors: Unit vector of each question, by its id.
        embedding_ms: Milliseconds for each question that had to be embedded.
        pseudo: Whether the questions were made of the corpus.
        owned: Whether the index was made for this benchmark.
        vectors_from: Where the vectors of documents come from.
        problems: What was wrong with the data set and its vectors.
        notes: What a reader of the result must know.
    """

    name: str
    router: AgenticRouter
    index: str
    queries: tuple[LabelledQuery, ...]
    unanswerable: tuple[LabelledQuery, ...]
    vectors: Mapping[str, Vector]
    embedding_ms: tuple[float, ...]
    pseudo: bool
    owned: bool
    vectors_from: str
    problems: ProblemReport
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What all targets share.

    Attributes:
        config: Settings of the routers that are made.
        options: How to run.
        folder: Where indexes are made.
        embedding: Gives the embedding model when it is needed.
        live: The user's own router, whose indexes answer for questions files; ``None`` makes one when needed.
        llm: Writes answers, instead of the model that the settings name.
        watcher: Hears how far it is.
        timer: Seconds.
    """

    config: RouterConfig
    options: BenchOptions
    folder: Path
    embedding: Callable[[], BaseEmbedding]
    watcher: Watcher
    live: AgenticRouter | None = None
    llm: LLM | None = None
    timer: Callable[[], float] = time.perf_counter


@contextmanager
def opened_targets(bench: Bench, dataset: Dataset) -> Iterator[list[Target]]:
    """Make or open the indexes of a data set; they are closed behind the block unless they are the user's own.

    Args:
        bench: What all share.
        dataset: The data set, with all of its questions.

    Yields:
        One target for a data set with documents, one for each index that a questions file names.

    Raises:
        EvaluationError: If nothing can be asked, or the vectors do not fit.
        UnknownIndexError: If a questions file names an index that is nowhere.
        EmbeddingError: If the embedding model failed; what was done is kept in the folder.
        StoreError: If an index cannot be written or read.
    """
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
