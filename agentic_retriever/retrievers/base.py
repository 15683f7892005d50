"""The base of every strategy: a LlamaIndex retriever with checks before a search and promises about its result."""

import copy
import io
import logging
import math
import pickle
import re
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cache, lru_cache, partial
from itertools import chain, islice
from typing import Any, ClassVar, Final, TypeAlias, TypeVar

import ahocorasick
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.bridge.pydantic import BaseModel, Field
from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.schema import BaseNode, NodeWithScore, QueryBundle, QueryType
from llama_index.core.vector_stores.types import MetadataFilters

from agentic_retriever import errors
from agentic_retriever.config import RouterConfig
from agentic_retriever.filters import check_filters, is_empty, node_fields, predicate
from agentic_retriever.indices import Index, KeywordIndex
from agentic_retriever.indices.prefilter.index import FilterPlan, MetadataIndex
from agentic_retriever.llm import ModelClient
from agentic_retriever.schema import Degradation, Strategy, check_query, check_top_k
from agentic_retriever.text import Tokenizer, detect_language
from agentic_retriever.text.tokens import without_asking, without_requests
from agentic_retriever.threads import Workers, guard
from agentic_retriever.tracing import safe_callbacks, spanned_by_base
from agentic_retriever.understanding.references import asked_parts, nearest_numbers, reading_order
from agentic_retriever.understanding.understanding import Understood

logger = logging.getLogger(__name__)

T = TypeVar("T")
NodeT = TypeVar("NodeT", bound=BaseNode)
Scores: TypeAlias = Mapping[str, float | None]  # by node id
Ranking: TypeAlias = Sequence[tuple[str, float | None]]

BM25: Final = "bm25"  # the source in the per-source scores of search by words

# Copies of nodes that share nothing that can change with what they were made from. Texts and numbers are shared; lists,
# mappings and models are copied to the bottom. Pydantic's own deep copy takes four times as long, and ten times as long
# as all else of an answer from the cache.

_UNCHANGING: Final = frozenset({str, int, float, bool, type(None)})
_PYDANTIC_COPIES: Final = (BaseModel.__copy__, BaseModel.__deepcopy__)
# Where pydantic keeps what a model holds; writing there directly passes by its checks, which cost most of the time.
_SLOTS: Final = ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
_SET_VALUES, _SET_NAMES, _SET_EXTRA, _SET_PRIVATE = (BaseModel.__dict__[slot].__set__ for slot in _SLOTS)


def copied_node(node: NodeT) -> NodeT:
    """Copy a node, without the object of an ``IndexNode``."""
    left_out = {name: None for name in ("embedding", "obj") if node.__dict__.get(name) is not None}
    bare = node.model_copy(update=left_out) if left_out else node
    try:
        made: NodeT = _copied(bare)
    except RecursionError:  # metadata that holds itself, which only a copy that remembers its way can end
        made = copy.deepcopy(bare)
    if node.embedding is not None:
        made.embedding = list(node.embedding)
    return made


def copied_nodes(nodes: Iterable[NodeWithScore]) -> tuple[NodeWithScore, ...]:
    """Copy nodes with all that they hold."""
    return tuple([_copied(one) for one in nodes])


def _copied(value: Any) -> Any:  # noqa: ANN401 - any value that a node holds
    kind: Any = type(value)
    if kind is dict or kind is list:
        made = value.copy()
        for place, one in made.items() if kind is dict else enumerate(made):
            if type(one) not in _UNCHANGING:
                made[place] = _copied(one)
        return made
    if not _copies_plainly(kind):  # also a class that copies in a way of its own
        return value if kind in _UNCHANGING or isinstance(value, Enum) else copy.deepcopy(value)
    extra, private = value.__pydantic_extra__, value.__pydantic_private__
    names = value.__pydantic_fields_set__.copy()
    return _made_model(kind, _copied(value.__dict__), names, extra and _copied(extra), private and _copied(private))


def prepared_copies(nodes: Sequence[NodeWithScore]) -> Callable[[], tuple[NodeWithScore, ...]]:
    """Return what copies nodes as they are now, kept as bytes: garbage collection of many nodes holds all threads."""
    try:
        data = io.BytesIO()
        _NodePickler(data, pickle.HIGHEST_PROTOCOL).dump(copied_nodes(nodes))  # each shares nothing with the next
        read = partial(pickle.loads, data.getvalue())
        read()  # what can be written cannot always be read
    except Exception:  # noqa: BLE001 - metadata may hold any object, and those without a form in bytes raise anything
        return partial(copy.deepcopy, copy.deepcopy(tuple(nodes)))
    return read


class _NodePickler(pickle.Pickler):
    """Writes models as they are; LlamaIndex's own way checks them again, which takes ten times as long."""

    def reducer_override(self, value: Any) -> Any:  # noqa: ANN401 - any value that a node holds
        kind: Any = type(value)
        if _copies_plainly(kind):
            return _made_model, (kind, *(getattr(value, slot) for slot in _SLOTS))
        if hasattr(kind, "__deepcopy__") and not isinstance(value, Enum):
            raise TypeError(f"{kind.__name__} has its own way to be copied")
        return NotImplemented


def _made_model(kind: type[object], values: object, names: object, extra: object, private: object) -> object:
    model: object = object.__new__(kind)
    _SET_VALUES(model, values)
    _SET_NAMES(model, names)
    _SET_EXTRA(model, extra)
    _SET_PRIVATE(model, private)
    return model


@cache  # asked for each model of each node, where a look at the class takes as long as the copy
def _copies_plainly(kind: type) -> bool:
    return issubclass(kind, BaseModel) and (kind.__copy__, kind.__deepcopy__) == _PYDANTIC_COPIES


def expanded_text(query: str, forms: Sequence[str]) -> str:
    """Return what is embedded of a question: with the other forms of its terms."""
    return f"{query} ({'; '.join(forms)})" if forms else query


@dataclass(frozen=True, slots=True)
class RetrievalRequest:
    query: str
    top_k: int
    filters: MetadataFilters | None = None
    query_vector: tuple[float, ...] | None = None
    timeout_s: float | None = None  # for the whole search, or None for the configuration's deadline
    model: ModelClient | None = None
    words_only: bool = False  # the question could not be embedded, which is not to be tried again
    by_number: bool = False  # whether parts that the question names by number come first, as in ``recursive`` always
    forms: tuple[str, ...] = ()  # other forms of its terms
    read: Understood | None = None  # the conditions that its words state, where they were read before

    @property
    def words(self) -> str:
        """What is searched by words: the question and the other forms."""
        return "\n".join((self.query, *self.forms))

    @property
    def meaning(self) -> str:
        return expanded_text(self.query, self.forms)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search found.

    A strategy hands back nodes in any order, as often as it found them, and what each source gave them; after
    :func:`keep_promises` the sources stand in the nodes' metadata.
    """

    nodes: list[NodeWithScore] = field(default_factory=list)
    degraded: tuple[Degradation, ...] = ()
    understood: tuple[str, ...] = ()  # how the question was read, in words
    sources: Mapping[str, Scores] = field(default_factory=dict)  # scores by source
    settled: tuple[str, ...] = ()  # the words of the question that conditions say, which all nodes satisfy


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSettings:
    """What retrievers are built with; ``top_k`` and ``filters`` are of searches by ``retrieve``."""

    config: RouterConfig = field(default_factory=RouterConfig)
    top_k: int = 5
    filters: MetadataFilters | None = None
    workers: Workers = field(default_factory=lambda: Workers(8, "retrieval"))
    model: ModelClient | None = None
    dense_weight: Callable[[float | None], float] | None = None  # of hybrid, in place of the model beside the index
    timer: Callable[[], float] = time.monotonic  # seconds that only grow


class CheckedRetriever(BaseRetriever):
    """A LlamaIndex retriever that checks a question where it comes in; LlamaIndex fails on anything but text."""

    @spanned_by_base
    def retrieve(self, str_or_query_bundle: QueryType) -> list[NodeWithScore]:
        """Return the nodes for a question, best first.

        Raises:
            InvalidQueryError: If the question or how many nodes are wanted cannot be used.
            AgenticRetrieverError: If the search failed.
        """
        return super().retrieve(checked_bundle(str_or_query_bundle))

    @spanned_by_base
    async def aretrieve(self, str_or_query_bundle: QueryType) -> list[NodeWithScore]:
        """The asynchronous twin of :meth:`retrieve`."""
        return await super().aretrieve(checked_bundle(str_or_query_bundle))


def checked_bundle(query: Any) -> QueryBundle:  # noqa: ANN401 - whatever a caller passes
    bundle = query if isinstance(query, QueryBundle) else QueryBundle(query)
    check_query(bundle.query_str)
    return bundle


class RetrieverAdapter(CheckedRetriever):
    """A strategy over one index, as a LlamaIndex retriever; safe to use from many threads.

    A strategy implements :meth:`_search`; where that ends with ``EmbeddingError``, words alone are searched. Everybody
    else calls :meth:`search` or :meth:`asearch`, or, in a LlamaIndex application, ``retrieve`` and ``aretrieve``, which
    search with the settings' ``top_k`` and filters.

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
        super().__init__(callback_manager=callback_manager or safe_callbacks())
        self._index = index
        self._settings = settings

    @abstractmethod
    def _search(self, request: RetrievalRequest, deadline: float) -> SearchResult:
        """Search for a checked request over an index that is not empty, until a time on ``settings.timer``."""

    def search(self, request: RetrievalRequest) -> SearchResult:
        """Search the index.

        Args:
            request: What to search for.

        Returns:
            At most ``top_k`` nodes; none for an empty index or when nothing satisfies the filters.

        Raises:
            InvalidQueryError: If the question, ``top_k`` or the query vector cannot be used.
            FilterError: If the filters cannot be evaluated.
            StoreError: If the index cannot be read.
            RetrievalError: If every one of several ways failed, such as embedding the question and search by words.
            DeadlineExceededError: If the time ran out.
        """
        timeout_s = self._settings.config.deadline_s if request.timeout_s is None else request.timeout_s
        deadline = self._settings.timer() + timeout_s
        check_request(request)
        if not timeout_s > 0:
            raise errors.DeadlineExceededError("the time budget ran out before the search began; allow more time")
        if run_guarded(f"index {self._index.name}", self._index.count) == 0:
            return SearchResult()
        plan = filter_plan(self._index, request.filters, request.top_k)
        if plan is not None and plan.high == 0:
            return SearchResult()  # nothing satisfies the filters, so nothing need be embedded or searched
        try:
            found = self._search(request, deadline)
        except errors.EmbeddingError as err:
            found = self._by_words(request, err)
        by_title = self.strategy in {Strategy.RECURSIVE, Strategy.SUMMARY}
        if request.by_number or by_title:
            found = with_asked_parts(self._index, request, found, by_title=by_title)
        return keep_promises(found, request)

    def _by_words(self, request: RetrievalRequest, err: errors.EmbeddingError) -> SearchResult:
        """Search by words alone, and say why."""
        index, what = self._index, self.strategy.value
        try:
            with store_guard(f"the words of index {index.name}"):
                ranking, nodes = search_words(index, request, 2 * request.top_k)
                found = take_nodes(index, ranking, nodes, request.top_k)
        except errors.AgenticRetrieverError as none:
            told = f"both sides of {what} search failed: dense: {err}; {BM25}: {none}"
            raise errors.RetrievalError(told, {"dense": err, BM25: none}) from err
        lost = Degradation(step=f"{what}.dense", reason=str(err), fallback="BM25 search alone")
        return SearchResult(found, (lost,), sources={BM25: dict(ranking)})

    async def asearch(self, request: RetrievalRequest) -> SearchResult:
        """The asynchronous twin of :meth:`search`, in a worker thread."""
        return await self._settings.workers.run(self.search, request)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self._logged(self.search(self._request(query_bundle)))

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self._logged(await self.asearch(self._request(query_bundle)))

    def _request(self, bundle: QueryBundle) -> RetrievalRequest:
        vector = None if bundle.embedding is None else tuple(bundle.embedding)
        return RetrievalRequest(bundle.query_str, self._settings.top_k, self._settings.filters, vector)

    def _left_s(self, deadline: float) -> float:
        return deadline - self._settings.timer()

    def _logged(self, result: SearchResult) -> list[NodeWithScore]:
        # Plain LlamaIndex callers see nodes only, so the log is the one place where they can learn of it.
        for step in result.degraded:
            logger.warning("index %r: %s fell back to %s: %s", self._index.name, step.step, step.fallback, step.reason)
        return result.nodes


def check_request(request: RetrievalRequest) -> None:
    check_query(request.query)
    check_top_k(request.top_k)
    check_filters(request.filters)
    if request.query_vector is not None and not all(map(math.isfinite, request.query_vector)):
        raise errors.InvalidQueryError("the query vector holds NaN or infinity; pass finite numbers, or none at all")


# What the contract of a retriever promises of every result, kept in one place for all strategies.

SCORES_KEY: Final = "retrieval"  # of details: the score of each source, such as {"dense": 0.8, "bm25": 3.1}


class RetrievedNode(NodeWithScore):
    """A node of a result as it is stored, since ``node.hash`` counts all metadata, and beside it what is said of it."""

    details: dict[str, Any] = Field(default_factory=dict)


def details(one: NodeWithScore) -> dict[str, Any]:
    """Return what retrieval says of a node beside its score: ``retrieval``, the scores by source, ``route`` and more.

    Nothing of it is in the node's metadata, so that hashes, prompts and stores see the node as it is stored.
    """
    return one.details if isinstance(one, RetrievedNode) else {}


def detailed(one: NodeWithScore, score: float | None, **more: object) -> RetrievedNode:
    return RetrievedNode(node=one.node, score=score, details={**details(one), **more})


def keep_promises(found: SearchResult, request: RetrievalRequest) -> SearchResult:
    """Order what was found, leave out what must not be in a result, and copy the rest, whatever the strategy did."""
    unique: dict[str, NodeWithScore] = {}
    for one in found.nodes:
        known = unique.get(one.node.node_id)
        if known is None or finite_or_least(one.score) > finite_or_least(known.score):
            unique[one.node.node_id] = one
    kept = satisfying(unique.values(), request.filters)
    finite = finite_scores(kept)
    # Just below the lowest real score, so that the order by score stays true.
    unscored = math.nextafter(min(finite), -math.inf) if finite else 0.0
    scored = [(max(finite_or_least(one.score), unscored), one) for one in kept]
    scored.sort(key=lambda pair: (-pair[0], pair[1].node.node_id))
    nodes: list[NodeWithScore] = []
    for score, one in scored[: request.top_k]:
        given = {name: finite_or_least(scores.get(one.node.node_id)) for name, scores in found.sources.items()}
        by_source = {name: value for name, value in given.items() if value > -math.inf}
        said = {**details(one), SCORES_KEY: by_source}
        nodes.append(RetrievedNode(node=copied_node(one.node), score=score, details=said))
    return SearchResult(nodes, found.degraded, found.understood, settled=found.settled)


def satisfying(nodes: Iterable[NodeWithScore], filters: MetadataFilters | None) -> list[NodeWithScore]:
    if is_empty(filters):
        return list(nodes)
    allowed = predicate(filters)
    return [one for one in nodes if allowed(node_fields(one.node))]


def finite_or_least(score: float | None) -> float:
    """Return a score, or minus infinity for none or no finite one."""
    return float(score) if score is not None and math.isfinite(score) else -math.inf


def finite_scores(nodes: Iterable[NodeWithScore]) -> list[float]:
    return [score for score in (finite_or_least(one.score) for one in nodes) if score > -math.inf]


def source_scores(one: NodeWithScore) -> Mapping[str, float]:
    """Return the score of each source that found a node of a result, by the source's name."""
    scores: Mapping[str, float] = details(one).get(SCORES_KEY, {})
    return scores


def scores_of(nodes: Iterable[NodeWithScore]) -> dict[str, float | None]:
    return {one.node.node_id: one.score for one in nodes}


def by_source(nodes: Sequence[NodeWithScore]) -> dict[str, dict[str, float | None]]:
    """Return what sources gave the nodes of a result, by source."""
    found: dict[str, dict[str, float | None]] = {}
    for one in nodes:
        for name, score in source_scores(one).items():
            found.setdefault(name, {})[one.node.node_id] = score
    return found


# Calls into stores and views, and running several sides of one search next to each other.


def store_guard(what: str) -> AbstractContextManager[None]:
    """Guard calls into a store or view; as a block on the way of every query, where each frame counts."""
    return guard(what, advice="see the cause, and check that the store is up and intact")


def run_guarded(what: str, call: Callable[[], T]) -> T:
    """Call into a store or view; what it raises comes out as an error of this package."""
    with store_guard(what):
        return call()


def filter_plan(index: Index, filters: MetadataFilters | None, depth: int) -> FilterPlan | None:
    """Ask the prefilter, if the index has one, how a filtered search is best run."""
    if is_empty(filters) or not index.has_prefilter:
        return None
    return run_guarded(f"the prefilter of index {index.name}", lambda: index.metadata().plan(filters, depth))


def run_sides(
    workers: Workers, sides: Mapping[str, Callable[[], T]], *, timeout_s: Callable[[], float]
) -> tuple[dict[str, T], dict[str, errors.AgenticRetrieverError]]:
    """Run the sides at the same time; one that fails never fails the others, one that no worker began is run here."""
    futures: dict[str, Future[T]] = {}
    for name in [*sides][1:]:
        with suppress(errors.AgenticRetrieverError):  # the pool is closed or full; the calling thread can do it
            futures[name] = workers.submit(run_guarded, name, sides[name])
    results: dict[str, T] = {}
    failed: dict[str, errors.AgenticRetrieverError] = {}
    for name, call in sides.items():
        try:
            if name not in futures or futures[name].cancel():
                with store_guard(name):
                    results[name] = call()
            else:
                results[name] = futures[name].result(timeout=max(0.0, timeout_s()))
        except errors.AgenticRetrieverError as err:  # noqa: PERF203 - each side fails by itself
            failed[name] = err
        except FutureTimeoutError as err:
            failed[name] = errors.DeadlineExceededError(f"{name} did not end in time; allow more time")
            failed[name].__cause__ = err
    return results, failed


def merge_sides(
    what: str,
    sides: dict[str, T],
    failed: dict[str, errors.AgenticRetrieverError],
    merge: Callable[[Mapping[str, T]], SearchResult],
    *,
    reread: str,
    lost: Mapping[str, tuple[str, str]],  # the step and the fallback, by side
) -> SearchResult:
    """Merge two sides of a search; ``reread`` is the one whose hits are only now read from the store, and may fail."""
    try:
        result = merge(sides)
    except errors.AgenticRetrieverError as err:
        failed[reread] = err
        sides.pop(reread, None)
        result = merge(sides)
    if not sides:
        causes = "; ".join(f"{side}: {err}" for side, err in failed.items())
        first = next(err for side, err in failed.items() if side != reread)
        raise errors.RetrievalError(f"both sides of {what} failed: {causes}", failed) from first
    told = [Degradation(step=lost[side][0], reason=str(err), fallback=lost[side][1]) for side, err in failed.items()]
    return replace(result, degraded=tuple(told))


# Parts that the question names by their number, which are looked up before anything is compared.

NUMBERED: Final = "numbered"  # the source in the per-source scores of what was looked up
_NUMBER_FIELDS: Final = {"section": ("section_number",), "article": ("article_number", "article")}
_MAX_PARTS: Final = 200  # nodes that are read of parts of one number
_SHORT_TITLE, _MAX_TITLES, _LEAST_SHARE = 3, 20_000, 0.4  # of the terms that are asked about
_HARDLY_MORE: Final = 0.75  # of them, where nothing but the title is asked about
MIN_CHUNKS: Final = 3  # of a part that is asked for by its title alone
_LABEL: Final = re.compile(r"^\W*(?:\w+\s+)?(?:\d{1,3}(?:\.\d{1,3})*|[ivxlc]+)[.:)]?\s+")  # "2.1 ", "artículo 8. "
_LETTER: Final = re.compile(r"[^\W\u0e00-\u9fff]")  # of a script with spaces between words
_ABOVE: Final = 1e-6  # by how much the score of each is above the next, and all above what was searched


def with_asked_parts(
    index: Index, request: RetrievalRequest, found: SearchResult, *, by_title: bool = False
) -> SearchResult:
    """Put the parts that a question names by number or title first, with what lies below them, in reading order."""
    asked = asked_parts(request.query) if index.has_prefilter else []
    if not index.has_prefilter or not (asked or by_title):
        return found
    metadata = run_guarded(f"the prefilter of index {index.name}", index.metadata)
    nodes: dict[str, BaseNode] = {}
    told: list[str] = []
    for kind, number in asked:
        fields = chain(_NUMBER_FIELDS[kind], *(names for other, names in _NUMBER_FIELDS.items() if other != kind))
        tables = [{text.strip().casefold(): ids for text, ids in metadata.texts(name).items()} for name in fields]
        inside = ({one: ids for one, ids in known.items() if f"{one}.".startswith(f"{number}.")} for known in tables)
        parts = next(filter(None, inside), {})
        if parts:
            ids = [node_id for one in sorted(parts, key=reading_order) for node_id in sorted(parts[one])][:_MAX_PARTS]
            meant = _meant(request, ids, fetch_nodes(index, ids), found)
            nodes |= {node.node_id: node for node in meant}
            told += [f"{kind} {number}, looked up by its number"] if meant else []
        elif (known := next(filter(None, tables), None)) is not None:
            nearest = " and ".join(nearest_numbers(number, known))
            told.append(f"there is no {kind} {number}; the nearest numbers are {nearest}")
    if by_title and not asked:
        title, ids = named_part(request.query, metadata)
        ids = ids if _named_share(request.query, title) >= _LEAST_SHARE else []
        meant = _meant(request, ids, fetch_nodes(index, ids), found)
        nodes = {node.node_id: node for node in _in_turn(meant, title)}
        told = [f"{title!r}, looked up by its title"] if nodes else []
    if not (nodes or told):
        return found
    top = max([1.0, *finite_scores(found.nodes)])
    steps = zip(nodes.values(), range(len(nodes), 0, -1), strict=True)
    first = [NodeWithScore(node=node, score=top + _ABOVE * step) for node, step in steps]
    sources = {**found.sources, NUMBERED: dict.fromkeys(nodes, 1.0)}
    return SearchResult([*first, *found.nodes], found.degraded, (*told, *found.understood), sources)


def named_part(question: str, metadata: MetadataIndex) -> tuple[str, list[str]]:
    """Return the longest title of a document or section that stands in a question, and the nodes of the part."""
    asked, best, found = " ".join(question.casefold().split()), ("", ""), list[str]()
    titles = _titles(metadata, metadata.version)
    for last, (title, text, ids) in titles.iter(asked) if len(titles) else ():
        edges = asked[last - len(title) : last - len(title) + 1] * (last >= len(title)), asked[last + 1 : last + 2]
        if len(title) > len(best[0]) and len(ids) <= _MAX_PARTS and not any(map(_LETTER.match, edges)):
            best, found = (title, text), [*ids]
    return best[1], found


def _named_share(question: str, title: str) -> float:
    tokens = Tokenizer(language=detect_language(question))
    asked = set(tokens.query_tokens(without_requests(without_asking(question))))
    return len(asked.intersection(tokens.query_tokens(title))) / max(1, len(asked))


@lru_cache(16)
def _titles(metadata: MetadataIndex, _version: int) -> ahocorasick.Automaton:
    automaton = ahocorasick.Automaton()
    for name in ("title", "heading_hierarchy"):
        for text, ids in islice(metadata.texts(name).items(), _MAX_TITLES):
            title = _LABEL.sub("", " ".join(text.casefold().split())).strip(" .:…")
            if len(title) > _SHORT_TITLE:
                automaton.add_word(title, (title, text, ids))
    automaton.make_automaton()
    return automaton


def asks_for_part(index: Index, question: str) -> bool:
    """Tell whether a question is hardly more than the title of a part of several chunks, which the prefilter knows."""
    title, ids = named_part(question, run_guarded(f"the prefilter of index {index.name}", index.metadata))
    return len(ids) >= MIN_CHUNKS and _named_share(question, title) >= _HARDLY_MORE


def _in_turn(nodes: Sequence[BaseNode], title: str) -> list[BaseNode]:
    """Put the first chunk of each section right below a title first, then the second of each, and so on."""
    seen: Counter[object] = Counter()

    def turn(node: BaseNode) -> int:
        path = node.metadata.get("heading_hierarchy") or []
        at = path.index(title) + 1 if title in path else 0
        section = node.ref_doc_id, tuple(path[at : at + 1])
        seen[section] += 1
        return seen[section]

    return sorted(nodes, key=turn)


def _meant(
    request: RetrievalRequest, ids: Sequence[str], read: Mapping[str, BaseNode], found: SearchResult
) -> list[BaseNode]:
    """Keep the nodes of the documents that the question names, or else those first that the search found, too."""
    nodes = satisfying((NodeWithScore(node=read[node_id]) for node_id in ids if node_id in read), request.filters)
    tokens = Tokenizer(language=detect_language(request.query))
    terms = set(tokens.query_tokens(request.query))
    titles = {one.node.ref_doc_id: str(one.node.metadata.get("title") or "") for one in nodes}
    named = {doc_id: len(terms.intersection(tokens.tokens(title))) for doc_id, title in titles.items()}
    most, places = max(named.values(), default=0), {one.node.node_id: at for at, one in enumerate(found.nodes)}
    by_document: dict[str | None, list[BaseNode]] = {}
    for one in nodes:
        if named[one.node.ref_doc_id] == most:
            by_document.setdefault(one.node.ref_doc_id, []).append(one.node)
    for part in by_document.values():  # by number, and within a number as they stand in the document
        part.sort(key=lambda node: getattr(node, "start_char_idx", None) or 0)
    last = len(places)
    ranked = sorted(by_document.values(), key=lambda part: min(places.get(node.node_id, last) for node in part))
    return list(chain.from_iterable(ranked))


# Reading nodes.


def fetch_nodes(index: Index, node_ids: Iterable[str]) -> dict[str, BaseNode]:
    """Read nodes by id; ids that the store does not have are left out."""
    wanted = list(node_ids)
    if not wanted:
        return {}  # a store given no ids returns everything
    nodes = run_guarded(f"the store of index {index.name}", lambda: index.vector_store.get_nodes(node_ids=wanted))
    return {node.node_id: node for node in nodes}


def take_nodes(
    index: Index,
    ranking: Sequence[tuple[str, float | None]],
    nodes: Mapping[str, BaseNode],
    top_k: int,
    *,
    filters: MetadataFilters | None = None,
) -> list[NodeWithScore]:
    """Take the first nodes of a ranking that satisfy the filters, and read no others."""
    taken: list[NodeWithScore] = []
    for start in range(0, len(ranking), top_k):
        batch = ranking[start : start + top_k]
        read = fetch_nodes(index, [node_id for node_id, _score in batch if node_id not in nodes])
        pairs = [(nodes.get(node_id) or read.get(node_id), score) for node_id, score in batch]
        found = (NodeWithScore(node=node, score=score) for node, score in pairs if node is not None)
        taken += satisfying(found, filters)
        if len(taken) >= top_k:
            break
    return taken[:top_k]


def search_words(index: Index, request: RetrievalRequest, depth: int) -> tuple[Ranking, Mapping[str, BaseNode]]:
    """Search by words, under the request's filters; the nodes are those that it has read."""
    view, filters = index.keyword(), request.filters
    nodes: dict[str, BaseNode] = {}
    if not isinstance(view, KeywordIndex):
        hits = view.search_words(request.words, depth, filters)
        nodes = {hit.node.node_id: hit.node for hit in hits}
        return sorted(((hit.node.node_id, hit.score) for hit in hits), key=lambda one: (-one[1], one[0])), nodes
    if filters is None or is_empty(filters):
        return view.search(request.words, depth), nodes
    if index.has_prefilter:
        return view.search(request.words, depth, allowed=index.candidates(filters)), nodes
    # An index of somebody's own: what the words find is read by id and tested, batch by batch.
    satisfies = predicate(filters)

    def allowed(node_ids: Sequence[str]) -> Collection[str]:
        nodes.update(item for item in fetch_nodes(index, node_ids).items() if satisfies(node_fields(item[1])))
        return nodes.keys()

    return view.search(request.words, depth, allowed=allowed), nodes
