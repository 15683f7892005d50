"""What happens between retrieval and the answer: boost, rerank, diversify, cut, expand; all off by default."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

import numpy as np
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore, QueryBundle, TextNode
from llama_index.core.vector_stores.types import FilterCondition, MetadataFilter, MetadataFilters

from agentic_retriever.errors import AgenticRetrieverError, ConfigError, DeadlineExceededError, RetrievalError
from agentic_retriever.filters import is_empty, node_fields, predicate
from agentic_retriever.retrievers.base import fetch_nodes, run_guarded
from agentic_retriever.retrievers.rerank import (
    CohereReranker,
    CrossEncoderReranker,
    LLMReranker,
    Reranker,
    in_order,
    rescored,
    unit_scores,
    value_of,
)
from agentic_retriever.schema import Degradation, check_top_k
from agentic_retriever.text import Tokenizer, detect_language
from agentic_retriever.threads import DeadlineCaller, guarded

if TYPE_CHECKING:
    import numpy.typing as npt

    from agentic_retriever.config import RouterConfig
    from agentic_retriever.indices import Index
    from agentic_retriever.llm import ModelClient


# How many nodes a question needs: fewer for a look-up, more where facts are combined, none behind a clear gap.

FEWEST: Final = 3
"""A simple question keeps at least so many nodes, where it asked for as many."""

_SIMPLE_SHARE: Final = 0.5
_COMPLEX_SHARE: Final = 1.5


def adaptive_top_k(top_k: int, complexity_score: float, *, maximum: int) -> int:
    """Return how many nodes to use for a question.

    Half of ``top_k`` at complexity 0 (but three, if it is no less), one and a half times ``top_k`` at 1, in a straight
    line between.
    """
    check_top_k(top_k)
    score = min(1.0, max(0.0, complexity_score))
    wanted = math.ceil(top_k * (_SIMPLE_SHARE + score * (_COMPLEX_SHARE - _SIMPLE_SHARE)))
    return max(1, min(max(wanted, min(FEWEST, top_k)), maximum))


def stop_at_fall(nodes: Sequence[NodeWithScore], fall: float, *, fewest: int = FEWEST) -> list[NodeWithScore]:
    """Leave out the nodes behind the first clear gap."""
    if not 0 <= fall <= 1:
        raise ConfigError(f"the fall of the score must be from 0 to 1, got {fall!r}")
    values = [value_of(entry) for entry in nodes]
    if fall == 0 or len(values) < 2 or not math.isfinite(values[0] - values[-1]):
        return list(nodes)
    limit = fall * (values[0] - values[-1])
    for i in range(max(1, fewest), len(values)):
        if values[i - 1] - values[i] > limit:
            return list(nodes[:i])
    return list(nodes)


# Keyword boosting: what the configuration calls important lifts the nodes that have it.

MAX_WEIGHT: Final = 1.0
MAX_BOOSTS: Final = 500
_END: Final = "\0"


@dataclass(frozen=True, slots=True)
class Boost:
    """A keyword that matters."""

    keyword: str
    weight: float
    aliases: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not all(any(map(str.isalnum, form)) for form in (self.keyword, *self.aliases)):
            raise ConfigError(f"a boosted keyword and its aliases need a letter or digit, got {self.keyword[:80]!r}")
        if not (math.isfinite(self.weight) and abs(self.weight) <= MAX_WEIGHT):
            raise ConfigError(f"the weight of {self.keyword[:80]!r} must be from -1 to 1, got {self.weight!r}")


def parse_boosts(text: str) -> tuple[Boost, ...]:
    """Read a map of keywords."""
    entries = [entry.strip() for line in text.splitlines() for entry in line.split(";") if entry.strip()]
    if len(entries) > MAX_BOOSTS:
        raise ConfigError(f"boost_keywords has {len(entries):,} keywords, at most {MAX_BOOSTS} are allowed")
    return tuple(map(_parsed, entries))


def _parsed(entry: str) -> Boost:
    words, _, weight = entry.rpartition("=")
    try:
        value = float(weight)
    except ValueError:
        value = math.nan
    if not words.strip() or math.isnan(value):
        raise ConfigError(f"boost_keywords needs KEYWORD = WEIGHT or KEYWORD | ALIAS = WEIGHT, got {entry[:80]!r}")
    keyword, *aliases = (form.strip() for form in words.split("|"))
    try:
        return Boost(keyword, value, tuple(aliases))
    except ConfigError as err:
        raise ConfigError(f"boost_keywords: {err}") from err


def boost(query: str, nodes: Sequence[NodeWithScore], boosts: Sequence[Boost]) -> list[NodeWithScore]:
    """Lift the nodes that have a keyword which the question has, too.

    A keyword counts once, in whichever form the question and the node have it, with its endings and letter case
    ignored; the weights of several add up, within -1 and 1.
    """
    tokenizer = Tokenizer(detect_language(query))
    asked = _joined(tokenizer.tokens(query))
    wanted = [(item.weight, forms) for item in boosts if (forms := _forms(item, tokenizer)) and _has(asked, forms)]
    values = [value for value in map(value_of, nodes) if value > -math.inf]
    if not wanted or not values:
        return list(nodes)
    span = (max(values) - min(values)) or 1.0
    return in_order(_lifted(entry, wanted, span, tokenizer) for entry in nodes)


def _lifted(
    entry: NodeWithScore, wanted: Sequence[tuple[float, list[str]]], span: float, tokenizer: Tokenizer
) -> NodeWithScore:
    text = _joined(tokenizer.tokens(entry.node.get_content(metadata_mode=MetadataMode.EMBED)))
    total = math.fsum(weight for weight, forms in wanted if _has(text, forms))
    if total == 0 or value_of(entry) == -math.inf:
        return entry
    return rescored(entry, value_of(entry) + max(-MAX_WEIGHT, min(MAX_WEIGHT, total)) * span)


def _forms(item: Boost, tokenizer: Tokenizer) -> list[str]:
    """All forms of a keyword as runs of terms; a form of stop words alone has none and never matches."""
    cut = (tokenizer.query_tokens(form) for form in (item.keyword, *item.aliases))
    return [_joined(terms) for terms in cut if terms]


def _joined(terms: Sequence[str]) -> str:
    return f"{_END}{_END.join(terms)}{_END}"


def _has(text: str, forms: Sequence[str]) -> bool:
    return any(form in text for form in forms)


# Parent expansion: the chunks around a hit, from the same section of the same document.

Neighbours = Callable[[BaseNode], Sequence[BaseNode]]
"""Gives the chunks around a chunk, in reading order, perhaps with that chunk itself."""

EXPANDED_KEY: Final = "expanded_from"
"""Metadata key of a node that was not found but stands beside one that was: the id of that one."""

SECTION: Final = "section"


def expand(nodes: Sequence[NodeWithScore], neighbours: Neighbours, *, limit: int) -> list[NodeWithScore]:
    """Add the chunks around the hits."""
    result = list(nodes)
    known = {entry.node.node_id for entry in nodes}
    floor = min((value for value in map(value_of, nodes) if value > -math.inf), default=0.0)
    for hit in nodes:
        if len(result) - len(nodes) >= limit:
            break
        for node in neighbours(hit.node):
            if node.node_id not in known and len(result) - len(nodes) < limit:
                known.add(node.node_id)
                floor = math.nextafter(floor, -math.inf)
                result.append(NodeWithScore(node=_beside(node, hit.node.node_id), score=floor))
    return result


def section_neighbours(index: Index, *, width: int, filters: MetadataFilters | None = None) -> Neighbours:
    """Return what reads the chunks around a chunk from an index."""
    satisfies = predicate(filters)
    documents: dict[str, list[BaseNode]] = {}

    def read(doc_id: str) -> list[BaseNode]:
        clause = MetadataFilter(key="doc_id", value=doc_id)
        wanted = MetadataFilters(filters=[clause], condition=FilterCondition.AND)
        if filters is not None and not is_empty(filters):
            wanted.filters.append(filters)
        found = run_guarded(f"the store of index {index.name}", lambda: index.vector_store.get_nodes(filters=wanted))
        # Some stores know no such field, or let others through.
        mine = [node for node in found if node.ref_doc_id == doc_id and satisfies(node_fields(node))]
        return sorted(mine, key=_place)

    def around(node: BaseNode) -> list[BaseNode]:
        doc_id = node.ref_doc_id
        if not doc_id:
            return []
        if doc_id not in documents:
            documents[doc_id] = read(doc_id)
        chunks = [other for other in documents[doc_id] if other.metadata.get(SECTION) == node.metadata.get(SECTION)]
        at = next((i for i, other in enumerate(chunks) if other.node_id == node.node_id), None)
        return [] if at is None else chunks[max(0, at - width) : at + width + 1]

    return around


def _place(node: BaseNode) -> tuple[int, str]:
    start = node.start_char_idx if isinstance(node, TextNode) else None
    return (start if start is not None else -1, node.node_id)


def _beside(node: BaseNode, hit_id: str) -> BaseNode:
    copy = node.model_copy()
    copy.metadata = {**node.metadata, EXPANDED_KEY: hit_id}
    copy.excluded_llm_metadata_keys = [*node.excluded_llm_metadata_keys, EXPANDED_KEY]
    copy.excluded_embed_metadata_keys = [*node.excluded_embed_metadata_keys, EXPANDED_KEY]
    return copy


# Maximal marginal relevance: results that are not all the same.
#
# J. Carbonell and J. Goldstein, "The Use of MMR, Diversity-Based Reranking for Reordering Documents and Producing
# Summaries", SIGIR 1998.


def mmr(
    nodes: Sequence[NodeWithScore],
    vectors: Mapping[str, npt.ArrayLike],
    *,
    top_k: int,
    trade_off: float,
) -> list[NodeWithScore]:
    """Choose nodes one by one, each relevant and unlike those chosen before.

    The next node is the one with the largest ``trade_off x relevance - (1 - trade_off) x similarity``: relevance is its
    score brought to [0, 1], similarity its largest cosine with a chosen node.
    """
    if not 0 <= trade_off <= 1:
        raise ConfigError(f"the trade-off of MMR must be from 0 to 1, got {trade_off!r}")
    if trade_off == 1:
        return list(nodes[:top_k])
    relevance = np.asarray(unit_scores(nodes))
    cosines = _cosines([vectors.get(entry.node.node_id) for entry in nodes])
    nearest = np.zeros(len(nodes))
    left = np.ones(len(nodes), dtype=bool)
    chosen: list[int] = []
    while len(chosen) < min(top_k, len(nodes)):
        gain = np.where(left, trade_off * relevance - (1 - trade_off) * nearest, -math.inf)
        best = int(np.argmax(gain))  # the first of equals, which is the better one
        nearest = np.maximum(nearest, cosines[best]) if chosen else cosines[best]
        left[best] = False
        chosen.append(best)
    return [nodes[i] for i in chosen]


def _cosines(vectors: Sequence[npt.ArrayLike | None]) -> npt.NDArray[np.float64]:
    """Cosines of all pairs, ``(n, n)``; 0 where a vector is missing, zero or not finite."""
    given = [None if vector is None else np.asarray(vector, dtype=np.float64).ravel() for vector in vectors]
    size = next((len(vector) for vector in given if vector is not None), 1)
    matrix = np.zeros((len(given), size))
    for row, vector in enumerate(given):
        if vector is not None and len(vector) == size and np.isfinite(vector).all():
            matrix[row] = vector / (np.linalg.norm(vector) or 1.0)
    product: npt.NDArray[np.float64] = matrix @ matrix.T
    return product


Vectors = Callable[["Sequence[str]"], Mapping[str, "npt.ArrayLike"]]
"""Gives the vectors of nodes by id, as far as they are known."""


RERANK_TIMEOUT_S = 20.0
"""Half of the time that is left bounds it besides; a local cross-encoder needs some seconds when it is loaded."""

CROSS_ENCODER = "cross-encoder/mmarco-mMiniLMv2-L12-H384-v1"
"""Multilingual and small enough for a processor."""

COHERE_MODEL = "rerank-v3.5"


@dataclass(frozen=True, slots=True, kw_only=True)
class PostprocessSettings:
    """What is done with retrieved nodes; the defaults change nothing."""

    boosts: tuple[Boost, ...] = ()
    rerank_candidates: int = 20
    rerank_timeout_s: float = RERANK_TIMEOUT_S  # Most seconds for reranking
    mmr_trade_off: float = 1.0  # Lambda of MMR in [0, 1]; 1 for relevance alone
    adaptive: bool = False
    fall: float = 0.0
    neighbours: int = 0
    max_top_k: int = 10_000

    def __post_init__(self) -> None:
        if not (0 <= self.mmr_trade_off <= 1 and 0 <= self.fall <= 1):
            raise ConfigError(f"mmr_trade_off and fall must be 0 to 1, got {self.mmr_trade_off!r} and {self.fall!r}")
        if self.rerank_candidates < 1 or self.neighbours < 0 or not self.rerank_timeout_s > 0:
            raise ConfigError("rerank_candidates must be 1 or more, neighbours 0 or more, rerank_timeout_s above 0")

    @classmethod
    def from_config(cls, config: RouterConfig) -> PostprocessSettings:
        """Take the settings from a router's configuration."""
        return cls(
            boosts=parse_boosts(config.boost_keywords),
            mmr_trade_off=config.mmr_trade_off,
            adaptive=config.adaptive_top_k,
            fall=config.score_fall,
            neighbours=config.expand_neighbours,
        )

    def final_top_k(self, top_k: int, complexity_score: float) -> int:
        """Return how many nodes to keep for a question of some complexity in [0, 1]."""
        return adaptive_top_k(top_k, complexity_score, maximum=self.max_top_k) if self.adaptive else top_k

    def candidates(self, top_k: int, *, reranks: bool) -> int:
        """Return how many nodes to retrieve so that ``top_k`` can be kept: more when there is something to choose."""
        chooses = reranks or bool(self.boosts) or self.mmr_trade_off < 1
        return min(max(top_k, self.rerank_candidates), max(top_k, self.max_top_k)) if chooses else top_k


@dataclass(frozen=True, slots=True, kw_only=True)
class PostprocessTools:
    """What the steps work with."""

    reranker: Reranker | None = None  # Orders anew; None for none
    vectors: Vectors | None = None
    neighbours: Neighbours | None = None


def postprocess(
    query: str,
    nodes: Sequence[NodeWithScore],
    settings: PostprocessSettings,
    tools: PostprocessTools,
    *,
    top_k: int,
    timeout_s: float | None = None,
) -> tuple[list[NodeWithScore], tuple[Degradation, ...]]:
    """Boost, rerank, diversify, cut and expand, as far as the settings ask for it.

    A step that fails is left out and named; the question is answered all the same.
    """
    degraded: list[Degradation] = []
    kept = boost(query, nodes, settings.boosts)
    if tools.reranker is not None:
        seen = kept[: max(settings.rerank_candidates, top_k)]
        limit = settings.rerank_timeout_s if timeout_s is None else min(settings.rerank_timeout_s, timeout_s / 2)
        kept = _attempt("rerank", partial(tools.reranker.rerank, query, seen, len(seen), limit), kept, degraded)
    if settings.mmr_trade_off < 1 and tools.vectors is not None:
        kept = _attempt("mmr", partial(_diverse, kept, tools.vectors, settings.mmr_trade_off, top_k), kept, degraded)
    kept = stop_at_fall(kept[:top_k], settings.fall)
    if settings.neighbours and tools.neighbours is not None:
        limit_added = 2 * settings.neighbours * len(kept)
        kept = _attempt("expand", partial(expand, kept, tools.neighbours, limit=limit_added), kept, degraded)
    return kept, tuple(degraded)


def make_reranker(config: RouterConfig, client: ModelClient | None) -> Reranker | None:
    """Return the reranker that the settings name, or ``None`` for none; it connects and loads with its first call."""
    if config.reranker == "llm":
        if client is None:
            raise ConfigError("reranker llm needs a model; set llm to ollama:MODEL or openrouter:MODEL")
        return LLMReranker(client)
    kind, _, model = config.reranker.partition(":")
    if kind == "cross_encoder":
        return CrossEncoderReranker(model or CROSS_ENCODER, timeout_s=RERANK_TIMEOUT_S)
    if kind == "cohere":
        return CohereReranker(config.cohere_api_key, model or COHERE_MODEL, timeout_s=RERANK_TIMEOUT_S)
    return None


@runtime_checkable
class _HasVectors(Protocol):
    def vectors(self, node_ids: Sequence[str]) -> tuple[list[str], npt.NDArray[Any]]: ...


def store_vectors(index: Index) -> Vectors:
    """Return what reads the vectors of an index's nodes from its store."""

    def read(node_ids: Sequence[str]) -> Mapping[str, npt.ArrayLike]:
        store = index.vector_store
        if isinstance(store, _HasVectors):
            found, matrix = run_guarded(f"the store of index {index.name}", lambda: store.vectors(node_ids))
            return dict(zip(found, matrix, strict=True))
        nodes = fetch_nodes(index, node_ids)
        return {node_id: node.embedding for node_id, node in nodes.items() if node.embedding is not None}

    return read


def _diverse(nodes: list[NodeWithScore], vectors: Vectors, trade_off: float, top_k: int) -> list[NodeWithScore]:
    """Choose diverse nodes, and put them back in the order of their scores, which readers take for their rank."""
    known = vectors([entry.node.node_id for entry in nodes])
    return in_order(mmr(nodes, known, top_k=top_k, trade_off=trade_off))


def _attempt(
    step: str, call: Callable[[], list[NodeWithScore]], kept: list[NodeWithScore], degraded: list[Degradation]
) -> list[NodeWithScore]:
    try:
        return call()
    except AgenticRetrieverError as err:
        degraded.append(Degradation(step=f"postprocess.{step}", reason=str(err), fallback="the order before it"))
        return kept


# LlamaIndex node postprocessors after our own steps: bounded in time, and left out when they fail.


class NodePostprocessors:
    """Runs node postprocessors one after another; safe to use from many threads as far as they are."""

    def __init__(
        self, given: Sequence[BaseNodePostprocessor] = (), *, timer: Callable[[], float] = time.monotonic
    ) -> None:
        wrong = [one for one in given if not _is_postprocessor(one)]
        if wrong:
            raise ConfigError(
                f"postprocessors must be LlamaIndex node postprocessors (BaseNodePostprocessor), got "
                f"{type(wrong[0]).__name__}"
            )
        self._callers = [(one, DeadlineCaller(f"the node postprocessor {type(one).__name__}")) for one in given]
        self._timer = timer

    def __bool__(self) -> bool:
        return bool(self._callers)

    def run(
        self, query: str, nodes: Sequence[NodeWithScore], *, filters: MetadataFilters | None, timeout_s: float
    ) -> tuple[list[NodeWithScore], tuple[Degradation, ...]]:
        """Postprocess nodes."""
        deadline = self._timer() + timeout_s
        kept, degraded = list(nodes), []
        for one, caller in self._callers:
            # Copies, since many change what they are given, even when they then fail or come too late.
            copies = [scored.model_copy(deep=True) for scored in kept]
            call = partial(one.postprocess_nodes, copies, query_bundle=QueryBundle(query))
            try:
                kept = _checked(_called(caller, call, deadline - self._timer()), kept, filters)
            except AgenticRetrieverError as err:
                step = f"postprocess.{type(one).__name__}"
                degraded.append(Degradation(step=step, reason=str(err), fallback="the nodes before it"))
        return kept, tuple(degraded)


def _is_postprocessor(one: object) -> bool:
    return isinstance(one, BaseNodePostprocessor)


def _called(caller: DeadlineCaller, call: Callable[[], object], left_s: float) -> object:
    if left_s <= 0:
        raise DeadlineExceededError(f"the time ran out before {caller.what} began; allow more time")
    return guarded(caller.what, partial(caller.call, call, left_s), error=RetrievalError)


def _checked(returned: object, before: Sequence[NodeWithScore], filters: MetadataFilters | None) -> list[NodeWithScore]:
    """Hold the result to what is promised of every retrieval."""
    if not isinstance(returned, (list, tuple)) or not all(isinstance(one, NodeWithScore) for one in returned):
        raise RetrievalError(f"it must return a list of NodeWithScore, got {type(returned).__name__}", {})
    scores = {scored.node.node_id: value_of(scored) for scored in before}
    allowed = predicate(filters)
    unique: dict[str, NodeWithScore] = {}
    for scored in returned:
        node_id = scored.node.node_id
        if node_id in unique or (node_id not in scores and not allowed(node_fields(scored.node))):
            continue
        if not math.isfinite(value_of(scored)):
            earlier = scores.get(node_id, 0.0)
            scored = NodeWithScore(node=scored.node, score=earlier if math.isfinite(earlier) else 0.0)  # noqa: PLW2901 - the same node
        unique[node_id] = scored
    return list(unique.values())
