"""The base of every strategy: a LlamaIndex retriever with checks before a search and promises about its result."""

from __future__ import annotations

import copy
import logging
import math
import time
from abc import abstractmethod
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.bridge.pydantic import BaseModel
from llama_index.core.schema import NodeWithScore, QueryBundle

from agentic_retriever.errors import (
    AgenticRetrieverError,
    ConfigError,
    DeadlineExceededError,
    InvalidQueryError,
    unknown_name,
)
from agentic_retriever.filters import check_filters, is_empty, node_fields, predicate
from agentic_retriever.indices.prefilter import PlanKind
from agentic_retriever.retrievers.fusion import RRF_K, Fusion
from agentic_retriever.schema import MAX_QUERY_CHARS, MAX_TOP_K, check_query, check_top_k
from agentic_retriever.threads import Workers, guarded
from agentic_retriever.tracing import no_callbacks, spanned_by_base

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from concurrent.futures import Future

    from llama_index.core.callbacks.base import CallbackManager
    from llama_index.core.schema import BaseNode, QueryType
    from llama_index.core.vector_stores.types import MetadataFilters

    from agentic_retriever.config import RouterConfig
    from agentic_retriever.indices import Index
    from agentic_retriever.llm import ModelClient
    from agentic_retriever.retrievers.fusion_model import FusionModel
    from agentic_retriever.schema import Degradation, Strategy

    NodeT = TypeVar("NodeT", bound=BaseNode)


# Copies of nodes that share nothing that can change with what they were made from.

UNCHANGING: Final = frozenset({str, int, float, bool, type(None)})
"""Types whose values nobody can change, so that copies may share them."""

_PLAIN_COPIES: Final = (BaseModel.__copy__, BaseModel.__deepcopy__)

# Where pydantic keeps what a model holds; writing there directly passes by the model's own ``__setattr__``.
_FIELDS, _FIELDS_SET, _EXTRA, _PRIVATE = (
    BaseModel.__dict__[slot].__set__
    for slot in ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
)


def copied_node(node: NodeT) -> NodeT:
    """Copy a node with all that hangs on it, as pydantic's deep copy does, in a fifth of the time."""
    left_out: dict[str, Any] = {name: None for name in ("embedding", "obj") if name in node.__dict__}
    try:
        made: NodeT = _of_model(node, left_out)
    except RecursionError:  # metadata that holds itself, which only a copy that remembers its way can end
        made = copy.deepcopy(node.model_copy(update=left_out))
    if node.embedding is not None:
        made.embedding = list(node.embedding)
    return made


def copies_plainly(kind: type[BaseModel]) -> bool:
    """Tell whether a class of models leaves copying to pydantic."""
    return (kind.__copy__, kind.__deepcopy__) == _PLAIN_COPIES


def made_model(
    kind: type[BaseModel],
    fields: dict[str, Any],
    fields_set: set[str],
    extra: dict[str, Any] | None,
    private: Any,  # noqa: ANN401 - as pydantic has it
) -> Any:  # noqa: ANN401 - a model of that kind
    """Make a model of parts that another one has, without pydantic's checks, which cost most of the time."""
    made = kind.__new__(kind)
    _FIELDS(made, fields)
    _FIELDS_SET(made, fields_set)
    _EXTRA(made, extra)
    _PRIVATE(made, private)
    return made


def _of_model(model: BaseModel, changed: Mapping[str, Any]) -> Any:  # noqa: ANN401 - a model of the same kind
    kind = type(model)
    if not copies_plainly(kind):
        return copy.deepcopy(model.model_copy(update=changed) if changed else model)
    fields = model.__dict__
    extra, private = model.__pydantic_extra__, model.__pydantic_private__
    return made_model(
        kind,
        _of_mapping({**fields, **changed} if changed else fields),
        model.__pydantic_fields_set__ | changed.keys(),
        extra and _of_mapping(extra),
        private and _of_mapping(private),
    )


def _of_mapping(values: Mapping[Any, Any]) -> dict[Any, Any]:
    return {key: value if type(value) in UNCHANGING else _of_value(value) for key, value in values.items()}


def _of_value(value: Any) -> Any:  # noqa: ANN401 - any value that a node holds
    kind = type(value)
    if kind is dict:
        return _of_mapping(value)
    if kind is list:
        return [item if type(item) in UNCHANGING else _of_value(item) for item in value]
    if isinstance(value, BaseModel):
        return _of_model(value, {})
    return value if isinstance(value, Enum) else copy.deepcopy(value)


# What the contract of a retriever promises of every result, kept in one place for all strategies.

SCORES_KEY = "retrieval"
"""Metadata key of a result under which the score of each source stands, such as ``{"dense": 0.8, "bm25": 3.1}``.

A field of that name in the stored node is hidden by it, in results only.
"""


def keep_promises(candidates: Iterable[Candidate], request: RetrievalRequest) -> list[NodeWithScore]:
    """Turn candidates into a result, whatever the strategy or its store did."""
    allowed = predicate(request.filters)
    unique: dict[str, Candidate] = {}
    for candidate in candidates:
        known = unique.get(candidate.node.node_id)
        if known is None or _rank_value(candidate.score) > _rank_value(known.score):
            unique[candidate.node.node_id] = candidate
    kept = list(unique.values())
    if not is_empty(request.filters):
        kept = [c for c in kept if allowed(node_fields(c.node))]
    finite = [c.score for c in kept if c.score is not None and math.isfinite(c.score)]
    # Just below the lowest real score, so that the order by score stays true.
    unscored = math.nextafter(min(finite), -math.inf) if finite else 0.0
    scored = [(c, float(c.score) if c.score is not None and math.isfinite(c.score) else unscored) for c in kept]
    scored.sort(key=lambda pair: (-pair[1], pair[0].node.node_id))
    return [NodeWithScore(node=_copied(c), score=score) for c, score in scored[: request.top_k]]


def _rank_value(score: float | None) -> float:
    return score if score is not None and math.isfinite(score) else -math.inf


def _copied(candidate: Candidate) -> BaseNode:
    """Copy a node and note what each source gave it."""
    copy = copied_node(candidate.node)
    copy.metadata[SCORES_KEY] = {
        name: float(s) for name, s in candidate.sources.items() if s is not None and math.isfinite(s)
    }
    # A model should neither read the scores in its prompt nor embed them.
    for excluded in (copy.excluded_llm_metadata_keys, copy.excluded_embed_metadata_keys):
        if SCORES_KEY not in excluded:
            excluded.append(SCORES_KEY)
    return copy


def source_scores(node: BaseNode) -> Mapping[str, float]:
    """Return the score of each source that found a node of a result, by the source's name."""
    scores: Mapping[str, float] = node.metadata.get(SCORES_KEY, {})
    return scores


# What goes into a search and comes out of it.

DEFAULT_WORKERS = 8


@dataclass(frozen=True, slots=True)
class RetrievalRequest:
    """One search."""

    query: str
    top_k: int
    filters: MetadataFilters | None = None
    query_vector: tuple[float, ...] | None = None
    timeout_s: float | None = None  # Seconds for the whole search, or None for the adapter's own limit
    model: ModelClient | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that a strategy found, before the promises about results are kept."""

    node: BaseNode
    score: float | None
    sources: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Found:
    """What a strategy hands back: candidates in any order, the steps that fell back, and how it read the question."""

    candidates: tuple[Candidate, ...] = ()
    degraded: tuple[Degradation, ...] = ()
    understood: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The result of one search."""

    nodes: list[NodeWithScore]
    degraded: tuple[Degradation, ...] = ()
    understood: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSettings:
    """What retrievers are built with."""

    workers: Workers = field(default_factory=lambda: Workers(DEFAULT_WORKERS, "retrieval"))
    top_k: int = 5
    max_top_k: int = MAX_TOP_K
    max_query_chars: int = MAX_QUERY_CHARS  # Longest question allowed, in characters
    filters: MetadataFilters | None = None
    timeout_s: float | None = None  # Seconds for one search, or None for no limit beyond the models' own
    fusion: Fusion = Fusion.CALIBRATED
    alpha: float = 0.7
    rrf_k: int = RRF_K
    weights: FusionModel | None = None
    planner_parts: int = 4
    model: ModelClient | None = None
    timer: Callable[[], float] = time.monotonic  # Gives seconds that only grow

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "fusion", Fusion(self.fusion))
        except ValueError as err:
            raise ConfigError(unknown_name("fusion", str(self.fusion), (fusion.value for fusion in Fusion))) from err
        if not 0 <= self.alpha <= 1 or self.rrf_k < 1:
            raise ConfigError(f"alpha must be 0 to 1 and rrf_k 1 or more, got {self.alpha!r} and {self.rrf_k!r}")
        if not 2 <= self.planner_parts <= 5:
            raise ConfigError(f"planner_parts must be 2 to 5, got {self.planner_parts!r}")

    @classmethod
    def from_config(
        cls, config: RouterConfig, workers: Workers, *, model: ModelClient | None = None
    ) -> AdapterSettings:
        """Take the settings from a router's configuration, and the model that strategies may ask."""
        return cls(
            workers=workers,
            top_k=config.top_k,
            timeout_s=config.deadline_s,
            fusion=Fusion(config.fusion),
            alpha=config.hybrid_alpha,
            model=model,
        )


# Running the sides of one search next to each other, so that one that fails never fails the whole.

T = TypeVar("T")


def run_guarded(what: str, call: Callable[[], T]) -> T:
    """Call into a store or view; what it raises comes out as an error of this package."""
    return guarded(what, call, advice="see the cause, and check that the store is up and intact")


def run_sides(
    workers: Workers,
    sides: Mapping[str, Callable[[], T]],
    *,
    timeout_s: Callable[[], float | None] = lambda: None,
) -> tuple[dict[str, T], dict[str, AgenticRetrieverError]]:
    """Run the sides at the same time, the first one in the calling thread.

    A side that no worker has begun by the time it is needed is taken back and run here. So it is safe to call this from
    a thread of the same pool, and a pool that is full of slow calls only makes the search sequential.
    """
    futures: dict[str, Future[T] | None] = {
        name: _submitted(workers, name, call) if i else None for i, (name, call) in enumerate(sides.items())
    }
    results: dict[str, T] = {}
    errors: dict[str, AgenticRetrieverError] = {}
    for name, future in futures.items():
        outcome = _outcome(name, sides[name], future, timeout_s)
        if isinstance(outcome, _Failed):
            errors[name] = outcome.error
        else:
            results[name] = outcome
    return results, errors


@dataclass(frozen=True, slots=True)
class _Failed:
    error: AgenticRetrieverError


def _outcome(
    name: str, call: Callable[[], T], future: Future[T] | None, timeout_s: Callable[[], float | None]
) -> T | _Failed:
    try:
        if future is None or future.cancel():
            return run_guarded(name, call)
        return _awaited(name, future, timeout_s())
    except AgenticRetrieverError as err:
        return _Failed(err)


def _submitted(workers: Workers, name: str, call: Callable[[], T]) -> Future[T] | None:
    try:
        return workers.submit(run_guarded, name, call)
    except AgenticRetrieverError:  # the pool is closed or full; the calling thread can do it
        return None


def _awaited(name: str, future: Future[T], timeout_s: float | None) -> T:
    try:
        return future.result(timeout=None if timeout_s is None else max(0.0, timeout_s))
    except FutureTimeoutError as err:
        raise DeadlineExceededError(f"{name} did not end in time; allow more time") from err


logger = logging.getLogger(__name__)


class RetrieverAdapter(BaseRetriever):
    """A strategy over one index, as a LlamaIndex retriever; safe to use from many threads.

    A strategy implements :meth:`_search`. Everybody else calls :meth:`search` or :meth:`asearch`, or, in a LlamaIndex
    application, ``retrieve`` and ``aretrieve``, which search with the settings' ``top_k`` and filters.

    Args:
        index: What to search.
        settings: How.
        callback_manager: LlamaIndex callbacks; none by default, whatever the process-wide settings say.
    """

    strategy: ClassVar[Strategy]
    #: Whether a search ends by itself when ``timeout_s`` is over; otherwise the router runs it in a thread to abandon.
    keeps_deadlines: ClassVar[bool] = False

    def __init__(
        self, index: Index, settings: AdapterSettings, *, callback_manager: CallbackManager | None = None
    ) -> None:
        super().__init__(callback_manager=callback_manager or no_callbacks())
        self._index = index
        self._settings = settings

    @abstractmethod
    def _search(self, request: RetrievalRequest, deadline: float | None) -> Found:
        """Find candidates for a checked request over an index that is not empty.

        Args:
            request: The request.
            deadline: When the time is up, on ``settings.timer``, or ``None``.
        """

    def search(self, request: RetrievalRequest) -> SearchResult:
        """Search the index.

        Args:
            request: What to search for.

        Returns:
            At most ``top_k`` nodes; none for an empty index or when nothing satisfies the filters.

        Raises:
            InvalidQueryError: If the question, ``top_k`` or the query vector cannot be used.
            FilterError: If the filters cannot be evaluated.
            EmbeddingError: If the question could not be embedded.
            StoreError: If the index cannot be read.
            RetrievalError: If every one of several ways failed.
            DeadlineExceededError: If the time ran out.
        """
        timeout_s = self._settings.timeout_s if request.timeout_s is None else request.timeout_s
        deadline = None if timeout_s is None else self._settings.timer() + timeout_s
        self._check(request, timeout_s)
        if run_guarded(f"index {self._index.name}", self._index.count) == 0 or self._nothing_satisfies(request):
            return SearchResult([])
        found = self._search(request, deadline)
        return SearchResult(keep_promises(found.candidates, request), found.degraded, found.understood)

    async def asearch(self, request: RetrievalRequest) -> SearchResult:
        """Search in a worker thread; the event loop stays free. As :meth:`search` otherwise."""
        return await self._settings.workers.run(self.search, request)

    @spanned_by_base
    def retrieve(self, str_or_query_bundle: QueryType) -> list[NodeWithScore]:
        """Return the nodes for a question, as every LlamaIndex retriever does.

        Raises:
            InvalidQueryError: If the question cannot be used; otherwise as :meth:`search`.
        """
        return super().retrieve(self._bundle(str_or_query_bundle))

    @spanned_by_base
    async def aretrieve(self, str_or_query_bundle: QueryType) -> list[NodeWithScore]:
        """Return the nodes for a question without blocking the event loop; otherwise as :meth:`retrieve`."""
        return await super().aretrieve(self._bundle(str_or_query_bundle))

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self._logged(self.search(self._request(query_bundle)))

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self._logged(await self.asearch(self._request(query_bundle)))

    def _request(self, bundle: QueryBundle) -> RetrievalRequest:
        vector = None if bundle.embedding is None else tuple(bundle.embedding)
        return RetrievalRequest(bundle.query_str, self._settings.top_k, self._settings.filters, vector)

    def _bundle(self, query: QueryType) -> QueryBundle:
        """Check the question here, since LlamaIndex fails on anything but text with an error of its own."""
        bundle = query if isinstance(query, QueryBundle) else QueryBundle(query)
        check_query(bundle.query_str, max_chars=self._settings.max_query_chars)
        return bundle

    def _check(self, request: RetrievalRequest, timeout_s: float | None) -> None:
        check_query(request.query, max_chars=self._settings.max_query_chars)
        check_top_k(request.top_k, maximum=self._settings.max_top_k)
        check_filters(request.filters)
        if request.query_vector is not None and not all(map(math.isfinite, request.query_vector)):
            raise InvalidQueryError("the query vector holds NaN or infinity; pass finite numbers, or none at all")
        if timeout_s is not None and not timeout_s > 0:
            raise DeadlineExceededError("the time budget ran out before the search began; allow more time")

    def _nothing_satisfies(self, request: RetrievalRequest) -> bool:
        """Tell whether the filters leave no node, so that nothing need be embedded or searched."""
        index = self._index
        if is_empty(request.filters) or not index.has_prefilter:
            return False
        plan = run_guarded(f"index {index.name}", lambda: index.metadata().plan(request.filters, request.top_k))
        return plan.kind is PlanKind.NONE

    def _logged(self, result: SearchResult) -> list[NodeWithScore]:
        # Plain LlamaIndex callers see nodes only, so the log is the one place where they can learn of it.
        for step in result.degraded:
            logger.warning("index %r: %s fell back to %s: %s", self._index.name, step.step, step.fallback, step.reason)
        return result.nodes


def fetch_nodes(index: Index, node_ids: Iterable[str], filters: MetadataFilters | None = None) -> dict[str, BaseNode]:
    """Read nodes by id; ids that the store does not have are left out."""
    wanted = list(node_ids)
    if not wanted:
        return {}  # a store given no ids returns everything
    store = index.vector_store
    nodes = run_guarded(f"the store of index {index.name}", lambda: store.get_nodes(node_ids=wanted, filters=filters))
    return {node.node_id: node for node in nodes}


def take_nodes(
    index: Index,
    ranking: Sequence[tuple[str, float | None]],
    nodes: Mapping[str, BaseNode],
    top_k: int,
    *,
    filters: MetadataFilters | None = None,
) -> list[tuple[BaseNode, float | None]]:
    """Take the first nodes of a ranking, and read no others."""
    allowed = predicate(filters)
    taken: list[tuple[BaseNode, float | None]] = []
    for start in range(0, len(ranking), top_k):
        batch = ranking[start : start + top_k]
        known = {**nodes, **fetch_nodes(index, [node_id for node_id, _score in batch if node_id not in nodes])}
        found = [(known[node_id], score) for node_id, score in batch if node_id in known]
        taken += found if is_empty(filters) else [pair for pair in found if allowed(node_fields(pair[0]))]
        if len(taken) >= top_k:
            break
    return taken[:top_k]
