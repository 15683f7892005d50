"""What happens between retrieval and the answer: boost, rerank, diversify, cut, expand; all off by default."""

from __future__ import annotations

import importlib
import math
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore, QueryBundle, TextNode
from llama_index.core.vector_stores.types import FilterCondition, MetadataFilter, MetadataFilters

from agentic_retriever.config import RouterConfig, Secret
from agentic_retriever.errors import (
    AgenticRetrieverError,
    ConfigError,
    DeadlineExceededError,
    LLMError,
    LLMOutputError,
    RetrievalError,
)
from agentic_retriever.filters import is_empty, node_fields, predicate
from agentic_retriever.indices import Index
from agentic_retriever.llm import ModelClient, ask, containers, json_values, random_boundary, without_thoughts
from agentic_retriever.llm.prompts import rerank_prompt
from agentic_retriever.retrievers.base import (
    SCORES_KEY,
    fetch_nodes,
    finite_or_least,
    run_guarded,
    source_scores,
    with_hidden_metadata,
)
from agentic_retriever.retrievers.fusion import unit_scores
from agentic_retriever.schema import MAX_TOP_K, Degradation, check_top_k
from agentic_retriever.text import Tokenizer, detect_language
from agentic_retriever.threads import DeadlineCaller, guarded

RERANK_CANDIDATES: Final = 20
"""So many nodes are looked at where there is something to choose, or ``top_k`` if that is more."""

RERANK_TIMEOUT_S: Final = 20.0
"""Half of the time that is left bounds it besides; a local cross-encoder needs some seconds when it is loaded."""

CROSS_ENCODER: Final = "cross-encoder/mmarco-mMiniLMv2-L12-H384-v1"
"""Multilingual and small enough for a processor."""

COHERE_MODEL: Final = "rerank-v3.5"

RETRIEVED: Final = "retrieved"
"""Name in the per-source scores of the score that a node had before anything here changed it."""

Vectors: TypeAlias = Callable[[Sequence[str]], Mapping[str, npt.ArrayLike]]
"""Gives the vectors of nodes by id, as far as they are known."""

Neighbours: TypeAlias = Callable[[BaseNode], Sequence[BaseNode]]
"""Gives the chunks around a chunk, in reading order, perhaps with that chunk itself."""


class Refining:
    """What is done with retrieved nodes, as a configuration asks for it."""

    def __init__(self, config: RouterConfig, client: ModelClient | None) -> None:
        self._config = config
        self._boosts = parse_boosts(config.boost_keywords)
        self._reranker = make_reranker(config, client)

    def final_top_k(self, top_k: int, complexity_score: float) -> int:
        """Return how many nodes to keep for a question of some complexity in [0, 1]."""
        return adaptive_top_k(top_k, complexity_score) if self._config.adaptive_top_k else top_k

    def candidates(self, top_k: int) -> int:
        """Return how many nodes to retrieve so that ``top_k`` can be kept: more when there is something to choose."""
        chooses = self._reranker is not None or bool(self._boosts) or self._config.mmr_trade_off < 1
        return max(top_k, RERANK_CANDIDATES) if chooses else top_k

    def run(
        self,
        query: str,
        nodes: Sequence[NodeWithScore],
        *,
        top_k: int,
        timeout_s: float,
        vectors: Vectors,
        neighbours: Neighbours,
        model: ModelClient | None = None,
    ) -> tuple[list[NodeWithScore], tuple[Degradation, ...]]:
        """Boost, rerank, diversify, cut and expand; ``model`` is asked in place of the reranker's own.

        A step that fails is left out and named; the question is answered all the same.
        """
        config, degraded = self._config, list[Degradation]()
        kept = boost(query, nodes, self._boosts)
        reranker = LLMReranker(model) if config.reranker == "llm" and model is not None else self._reranker
        if reranker is not None:
            seen, limit = kept[: max(RERANK_CANDIDATES, top_k)], min(RERANK_TIMEOUT_S, timeout_s / 2)
            kept = _attempt("rerank", partial(reranker.rerank, query, seen, limit), kept, degraded)
        if config.mmr_trade_off < 1:
            diversify = partial(_diverse, kept, vectors, config.mmr_trade_off, top_k)
            kept = _attempt("mmr", diversify, kept, degraded)
        kept = stop_at_fall(kept[:top_k], config.score_fall)
        if config.expand_neighbours:
            limit_added = 2 * config.expand_neighbours * len(kept)
            kept = _attempt("expand", partial(expand, kept, neighbours, limit=limit_added), kept, degraded)
        return kept, tuple(degraded)


def _attempt(
    step: str, call: Callable[[], list[NodeWithScore]], kept: list[NodeWithScore], degraded: list[Degradation]
) -> list[NodeWithScore]:
    try:
        return call()
    except AgenticRetrieverError as err:
        degraded.append(Degradation(step=f"postprocess.{step}", reason=str(err), fallback="the order before it"))
        return kept


# Scores, without a change to the nodes that were given.


def finite_scores(nodes: Iterable[NodeWithScore]) -> list[float]:
    """Return the scores that are numbers."""
    return [entry.score for entry in nodes if entry.score is not None and math.isfinite(entry.score)]


def in_order(nodes: Iterable[NodeWithScore]) -> list[NodeWithScore]:
    """Return nodes by falling score, then by id; those without a finite score last."""
    return sorted(nodes, key=lambda entry: (-finite_or_least(entry.score), entry.node.node_id))


def rescored(entry: NodeWithScore, score: float) -> NodeWithScore:
    """Return a node under another score."""
    known = dict(source_scores(entry.node))
    if entry.score is not None:
        known.setdefault(RETRIEVED, entry.score)
    return NodeWithScore(node=with_hidden_metadata(entry.node, **{SCORES_KEY: known}), score=score)


# How many nodes a question needs: fewer for a look-up, more where facts are combined, none behind a clear gap.

FEWEST: Final = 3
"""A simple question keeps at least so many nodes, where it asked for as many."""

_SIMPLE_SHARE: Final = 0.5
_COMPLEX_SHARE: Final = 1.5


def adaptive_top_k(top_k: int, complexity_score: float, *, maximum: int = MAX_TOP_K) -> int:
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
    values = [finite_or_least(entry.score) for entry in nodes]
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
    values = finite_scores(nodes)
    if not wanted or not values:
        return list(nodes)
    span = (max(values) - min(values)) or 1.0
    return in_order(_lifted(entry, wanted, span, tokenizer) for entry in nodes)


def _lifted(
    entry: NodeWithScore, wanted: Sequence[tuple[float, list[str]]], span: float, tokenizer: Tokenizer
) -> NodeWithScore:
    text = _joined(tokenizer.tokens(entry.node.get_content(metadata_mode=MetadataMode.EMBED)))
    total = math.fsum(weight for weight, forms in wanted if _has(text, forms))
    if total == 0 or finite_or_least(entry.score) == -math.inf:
        return entry
    return rescored(entry, finite_or_least(entry.score) + max(-MAX_WEIGHT, min(MAX_WEIGHT, total)) * span)


def _forms(item: Boost, tokenizer: Tokenizer) -> list[str]:
    """All forms of a keyword as runs of terms; a form of stop words alone has none and never matches."""
    cut = (tokenizer.query_tokens(form) for form in (item.keyword, *item.aliases))
    return [_joined(terms) for terms in cut if terms]


def _joined(terms: Sequence[str]) -> str:
    return f"{_END}{_END.join(terms)}{_END}"


def _has(text: str, forms: Sequence[str]) -> bool:
    return any(form in text for form in forms)


# Reranking: a second, slower look at the first nodes, by a language model, a cross-encoder or Cohere.

MAX_PASSAGE_CHARS: Final = 4_000
"""Most characters of one node that a reranker reads."""


class Reranker(Protocol):
    """Orders nodes anew; one that fails raises, and the order stays as it was."""

    def rerank(self, query: str, nodes: Sequence[NodeWithScore], timeout_s: float) -> list[NodeWithScore]:
        """Return the nodes under new scores, best first."""


def make_reranker(config: RouterConfig, client: ModelClient | None) -> Reranker | None:
    """Return the reranker that the settings name, or ``None`` for none; it connects and loads with its first call."""
    if config.reranker == "llm":
        if client is None:
            raise ConfigError("reranker llm needs a model; set llm to ollama:MODEL or openrouter:MODEL")
        return LLMReranker(client)
    kind, _, model = config.reranker.partition(":")
    if kind == "cross_encoder":
        return CrossEncoderReranker(model or CROSS_ENCODER)
    return CohereReranker(config.cohere_api_key, model or COHERE_MODEL) if kind == "cohere" else None


def passage_text(entry: NodeWithScore, max_chars: int = MAX_PASSAGE_CHARS) -> str:
    """Return what a reranker reads of a node: its title, section and the beginning of its text."""
    return entry.node.get_content(metadata_mode=MetadataMode.EMBED)[:max_chars]


def by_scores(nodes: Sequence[NodeWithScore], scores: Sequence[float]) -> list[NodeWithScore]:
    """Order nodes by new scores."""
    if len(scores) != len(nodes) or not all(map(math.isfinite, scores)):
        raise LLMOutputError(
            f"the reranker gave {len(scores)} scores for {len(nodes)} nodes, or some that are no numbers"
        )
    return in_order(rescored(entry, float(score)) for entry, score in zip(nodes, scores, strict=True))


# By a language model that is asked for an order of numbered passages, all in one call: W. Sun et al., "Is ChatGPT Good
# at Search? Investigating Large Language Models as Re-Ranking Agents", EMNLP 2023.

MAX_PASSAGES: Final = 20
MAX_PROMPT_CHARS: Final = 16_000
MIN_PASSAGE_CHARS: Final = 200

_NUMBER: Final = re.compile(r"(?<![\w.])\d{1,3}(?!\w|\.\d)")
_WHOLE: Final = re.compile(r"-?\d{1,3}")
# A line of numbers and signs only, such as "[3] > [1] > [2]" or "3, 1, 2".
_ORDER_LINE: Final = re.compile(r"^[\s\d\[\](){}<>,;:.|=→\"'`*-]*\d[\s\d\[\](){}<>,;:.|=→\"'`*-]*$")


class LLMReranker:
    """Asks a model for the order of the first 20 nodes; one call, of at most 16,000 characters of passages.

    Nodes that the model leaves out, and those behind the 20th, follow in their old order. Scores fall evenly from 1.
    """

    def __init__(self, client: ModelClient, *, boundary: Callable[[], str] = random_boundary) -> None:
        self._client = client
        self._boundary = boundary

    def rerank(self, query: str, nodes: Sequence[NodeWithScore], timeout_s: float) -> list[NodeWithScore]:
        """Order nodes anew; see ``Reranker``."""
        judged = min(len(nodes), MAX_PASSAGES)
        if judged < 2:
            return list(nodes)
        share = max(MIN_PASSAGE_CHARS, MAX_PROMPT_CHARS // judged)
        passages = [(i, "", passage_text(entry, share)) for i, entry in enumerate(nodes[:judged], start=1)]
        reply = ask(
            self._client,
            lambda mark: rerank_prompt(query, passages, mark),
            timeout_s=timeout_s,
            boundary=self._boundary,
        )
        named = [number - 1 for number in parse_order(reply.text, judged)]
        order = [*named, *(i for i in range(len(nodes)) if i not in set(named))]
        places = {i: place for place, i in enumerate(order)}
        return by_scores(nodes, [1 - places[i] / len(nodes) for i in range(len(nodes))])


def parse_order(reply: str, count: int) -> list[int]:
    """Read an order of passages out of a reply."""
    text = without_thoughts(reply)
    numbers = dict.fromkeys(_listed_numbers(text) or _written_numbers(text))
    order = [number for number in numbers if 1 <= number <= count]
    if not order:
        raise LLMOutputError(f"the reply names none of the {count} passages ({len(reply):,} characters)")
    return order


def _listed_numbers(text: str) -> list[int]:
    for container in containers(json_values(text)):
        if isinstance(container, list):
            found = [int(str(item)) for item in container if _WHOLE.fullmatch(str(item))]
            if len(found) > 1 and len(found) == len(container):
                return found
    return []


def _written_numbers(text: str) -> list[int]:
    lines = [line for line in text.splitlines() if _ORDER_LINE.match(line)]
    # A list down the page has one number a line; a list across it has several.
    across = [line for line in lines if len(_NUMBER.findall(line)) > 1]
    chosen = across[0] if across else "\n".join(lines) or text
    return [int(match) for match in _NUMBER.findall(chosen)]


# By models that score a question with a passage: a local cross-encoder, or Cohere's service.


class _ScoringReranker(ABC):
    """Scores each node with the question by a model that the first call makes ready."""

    def __init__(self, what: str, *, max_calls: int | None = None) -> None:
        self._what = what
        self._lock = threading.Lock()
        self._made: Any = None
        self._caller = DeadlineCaller(what) if max_calls is None else DeadlineCaller(what, max_calls=max_calls)

    def rerank(self, query: str, nodes: Sequence[NodeWithScore], timeout_s: float) -> list[NodeWithScore]:
        """Order nodes anew; see ``Reranker``."""
        if not nodes:
            return []
        texts = [passage_text(entry) for entry in nodes]
        call = partial(self._caller.call, partial(self._scores, query, texts, timeout_s), timeout_s)
        scores = guarded(self._what, call, error=LLMError, advice="see the cause, or set reranker to none")
        return by_scores(nodes, scores)

    @abstractmethod
    def _scores(self, query: str, texts: Sequence[str], timeout_s: float) -> list[float]:
        """Score every text."""


class CrossEncoderReranker(_ScoringReranker):
    """Scores by a cross-encoder of ``sentence-transformers``.

    R. Nogueira and K. Cho, "Passage Re-ranking with BERT", 2019 (arXiv:1901.04085).
    """

    def __init__(self, model: str, *, load: Callable[[str], Any] | None = None) -> None:
        super().__init__(f"cross-encoder {model}", max_calls=2)
        self._model = model
        self._load = load or _load_cross_encoder

    def _scores(self, query: str, texts: Sequence[str], timeout_s: float) -> list[float]:  # noqa: ARG002 - of the base
        # One at a time: a call spreads over all cores, and the tokenizers are not made for several threads.
        with self._lock:
            if self._made is None:
                self._made = self._load(self._model)
            pairs = [(query, text) for text in texts]
            return [float(score) for score in self._made.predict(pairs, show_progress_bar=False)]


class CohereReranker(_ScoringReranker):
    """Scores by Cohere's rerank service."""

    def __init__(self, api_key: Secret, model: str, *, connect: Callable[[str], Any] | None = None) -> None:
        if not api_key:
            raise ConfigError("reranking by Cohere needs a key; set cohere_api_key, or reranker to none")
        super().__init__(f"Cohere model {model}")
        self._key = api_key
        self._model = model
        self._connect = connect or _connect_cohere

    def _scores(self, query: str, texts: Sequence[str], timeout_s: float) -> list[float]:
        with self._lock:
            if self._made is None:
                self._made = self._connect(self._key.reveal())
        reply = self._made.rerank(
            model=self._model,
            query=query,
            documents=texts,
            top_n=len(texts),
            request_options={"timeout_in_seconds": max(1, math.ceil(timeout_s)), "max_retries": 0},
        )
        found = [(int(result.index), float(result.relevance_score)) for result in reply.results]
        if sorted(index for index, _score in found) != list(range(len(texts))):
            raise LLMOutputError(f"{self._what}: its reply does not rank each of the {len(texts)} nodes once")
        return [score for _index, score in sorted(found)]


def _load_cross_encoder(model: str) -> Any:  # noqa: ANN401 - an optional package
    return _optional("sentence_transformers", "the cross-encoder").CrossEncoder(model)


def _connect_cohere(key: str) -> Any:  # noqa: ANN401 - an optional package
    return _optional("cohere", "reranking by Cohere").ClientV2(api_key=key)


def _optional(package: str, what: str) -> Any:  # noqa: ANN401 - an optional package
    try:
        return importlib.import_module(package)
    except ImportError as err:
        raise ConfigError(
            f"{what} needs the extra 'rerank': pip install 'agentic-retriever[rerank]', or set reranker to none"
        ) from err


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
    units = unit_scores([(entry.node.node_id, entry.score) for entry in nodes])
    relevance = np.array([units[entry.node.node_id] for entry in nodes])
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


def _diverse(nodes: list[NodeWithScore], vectors: Vectors, trade_off: float, top_k: int) -> list[NodeWithScore]:
    """Choose diverse nodes, and put them back in the order of their scores, which readers take for their rank."""
    known = vectors([entry.node.node_id for entry in nodes])
    return in_order(mmr(nodes, known, top_k=top_k, trade_off=trade_off))


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


# Parent expansion: the chunks around a hit, from the same section of the same document.

EXPANDED_KEY: Final = "expanded_from"
"""Metadata key of a node that was not found but stands beside one that was: the id of that one."""

SECTION: Final = "section"


def expand(nodes: Sequence[NodeWithScore], neighbours: Neighbours, *, limit: int) -> list[NodeWithScore]:
    """Add the chunks around the hits."""
    result = list(nodes)
    known = {entry.node.node_id for entry in nodes}
    floor = min(finite_scores(nodes), default=0.0)
    for hit in nodes:
        if len(result) - len(nodes) >= limit:
            break
        for node in neighbours(hit.node):
            if node.node_id not in known and len(result) - len(nodes) < limit:
                known.add(node.node_id)
                floor = math.nextafter(floor, -math.inf)
                beside = with_hidden_metadata(node, **{EXPANDED_KEY: hit.node.node_id})
                result.append(NodeWithScore(node=beside, score=floor))
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


# LlamaIndex node postprocessors after our own steps: bounded in time, and left out when they fail.


class NodePostprocessors:
    """Runs node postprocessors one after another; safe to use from many threads as far as they are."""

    def __init__(self, given: Sequence[Any] = (), *, timer: Callable[[], float] = time.monotonic) -> None:
        wrong = [one for one in given if not isinstance(one, BaseNodePostprocessor)]
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


def _called(caller: DeadlineCaller, call: Callable[[], object], left_s: float) -> object:
    if left_s <= 0:
        raise DeadlineExceededError(f"the time ran out before {caller.what} began; allow more time")
    return guarded(caller.what, partial(caller.call, call, left_s), error=RetrievalError)


def _checked(returned: object, before: Sequence[NodeWithScore], filters: MetadataFilters | None) -> list[NodeWithScore]:
    """Hold the result to what is promised of every retrieval."""
    if not isinstance(returned, (list, tuple)) or not all(isinstance(one, NodeWithScore) for one in returned):
        raise RetrievalError(f"it must return a list of NodeWithScore, got {type(returned).__name__}", {})
    scores = {scored.node.node_id: finite_or_least(scored.score) for scored in before}
    allowed = predicate(filters)
    unique: dict[str, NodeWithScore] = {}
    for scored in returned:
        node_id = scored.node.node_id
        if node_id in unique or (node_id not in scores and not allowed(node_fields(scored.node))):
            continue
        given, earlier = finite_or_least(scored.score), scores.get(node_id, 0.0)
        score = next((value for value in (given, earlier) if value > -math.inf), 0.0)
        unique[node_id] = scored if score == given else NodeWithScore(node=scored.node, score=score)
    return list(unique.values())
