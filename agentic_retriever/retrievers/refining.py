"""What happens between retrieval and the answer: lift, rerank, diversify, cut, expand; all off by default."""

from __future__ import annotations

import importlib
import math
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Any, ClassVar, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import BaseNode, NodeWithScore, QueryBundle, TextNode
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters

from agentic_retriever import errors
from agentic_retriever.config import RouterConfig, Secret
from agentic_retriever.filters import merge_and, node_fields, predicate
from agentic_retriever.indices import Index, searched_text
from agentic_retriever.llm import ModelClient, ask, containers, json_values, random_boundary, without_thoughts
from agentic_retriever.llm.prompts import rerank_prompt
from agentic_retriever.retrievers import base
from agentic_retriever.retrievers.hybrid import FUSED, unit_scores
from agentic_retriever.schema import MAX_TOP_K, Degradation
from agentic_retriever.text import Tokenizer, detect_language
from agentic_retriever.threads import DeadlineCaller, guarded

RERANK_CANDIDATES: Final = 20  # looked at where there is something to choose, or top_k if that is more
# Half of the time that is left bounds it besides; a local cross-encoder needs some seconds when it is loaded.
RERANK_TIMEOUT_S: Final = 20.0
CROSS_ENCODER: Final = "cross-encoder/mmarco-mMiniLMv2-L12-H384-v1"  # multilingual and small enough for a processor
COHERE_MODEL: Final = "rerank-v3.5"

FEWEST: Final = 3  # what a simple question keeps at least, where it asked for as many
RETRIEVED: Final = "retrieved"  # in the per-source scores: what a node had before anything here changed it

Vectors: TypeAlias = Callable[[Sequence[str]], Mapping[str, npt.ArrayLike]]  # of nodes by id, as far as they are known
Neighbours: TypeAlias = Callable[[BaseNode], Sequence[BaseNode]]  # of a chunk in reading order, perhaps with itself


class Refining:
    """What is done with retrieved nodes, as a configuration asks for it."""

    def __init__(self, config: RouterConfig, client: ModelClient | None) -> None:
        self._config = config
        self._reranker = make_reranker(config, client)

    def final_top_k(self, top_k: int, complexity_score: float) -> int:
        """Return how many nodes to keep: fewer for a look-up, more where facts are combined; the score is in [0, 1]."""
        if not self._config.adaptive_top_k:
            return top_k
        wanted = math.ceil(top_k * (0.5 + min(1.0, max(0.0, complexity_score))))
        return min(max(wanted, min(FEWEST, top_k)), MAX_TOP_K)

    def candidates(self, top_k: int, *, lifts: bool = False) -> int:
        """Return how many nodes to retrieve so that ``top_k`` can be kept: more when there is something to choose."""
        chooses = lifts or self._reranker is not None or self._config.mmr_trade_off < 1
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
        """Rerank, diversify, cut and expand; a step that fails is left out and named."""
        config, degraded, kept = self._config, list[Degradation](), list(nodes)
        reranker = LLMReranker(model) if config.reranker == "llm" and model is not None else self._reranker
        if reranker is not None:
            seen, limit = kept[: max(RERANK_CANDIDATES, top_k)], min(RERANK_TIMEOUT_S, timeout_s / 2)
            kept = _attempt("rerank", partial(reranker.rerank, query, seen, limit), kept, degraded)
        if config.mmr_trade_off < 1:
            found, trade_off = kept, config.mmr_trade_off

            def diversify() -> list[NodeWithScore]:
                known = vectors([entry.node.node_id for entry in found])
                # In the order of their scores, which readers take for their rank.
                return in_order(mmr(found, known, top_k=top_k, trade_off=trade_off))

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
    except errors.AgenticRetrieverError as err:
        degraded.append(Degradation(step=f"postprocess.{step}", reason=str(err), fallback="the order before it"))
        return kept


# Scores, without a change to the nodes that were given.


def in_order(nodes: Iterable[NodeWithScore]) -> list[NodeWithScore]:
    """Return nodes by falling score, then by id; those without a finite score last."""
    return sorted(nodes, key=lambda entry: (-base.finite_or_least(entry.score), entry.node.node_id))


def rescored(entry: NodeWithScore, score: float) -> NodeWithScore:
    known = dict(base.source_scores(entry))
    if entry.score is not None:
        known.setdefault(RETRIEVED, entry.score)
    return base.detailed(entry, score, **{base.SCORES_KEY: known})


def stop_at_fall(nodes: Sequence[NodeWithScore], fall: float) -> list[NodeWithScore]:
    """Leave out the nodes behind the first gap that is a larger share of the range of scores; 0 leaves out none."""
    values = [base.finite_or_least(entry.score) for entry in nodes]
    if fall == 0 or len(values) < 2 or not math.isfinite(values[0] - values[-1]):
        return list(nodes)
    limit = fall * (values[0] - values[-1])
    gaps = (i for i in range(FEWEST, len(values)) if values[i - 1] - values[i] > limit)
    return list(nodes[: next(gaps, None)])


# Lifting: what the configuration calls important lifts the nodes that have it.

_END: Final = "\0"
LIFT: Final = 0.05
LIFTED_BY: Final = "lifted_by"  # in the details: the words for which a node was lifted


def lift(nodes: Sequence[NodeWithScore], words: Sequence[str]) -> list[NodeWithScore]:
    """Add ``LIFT`` for each of some words that a node has: of the score where it was fused, else of their range."""
    values = base.finite_scores(nodes)
    if not words or not values:
        return list(nodes)
    span, lifted = (max(values) - min(values)) or 1.0, []
    for entry in nodes:
        text, score = searched_text(entry.node), base.finite_or_least(entry.score)
        tokenizer = Tokenizer(detect_language(text))
        cut = _joined(tokenizer.tokens(text))
        had = [word for word in words if (run := tokenizer.query_tokens(word)) and _joined(run) in cut]
        gain = LIFT * len(had) * (1.0 if FUSED in base.source_scores(entry) else span)
        is_lifted = bool(had) and score > -math.inf
        better = base.detailed(rescored(entry, score + gain), score + gain, **{LIFTED_BY: had}) if is_lifted else entry
        lifted.append(better)
    return in_order(lifted)


def _joined(terms: Sequence[str]) -> str:
    return f"{_END}{_END.join(terms)}{_END}"


# Reranking: a second, slower look at the first nodes, by a language model, a cross-encoder or Cohere.

MAX_PASSAGE_CHARS: Final = 4_000  # of one node


def make_reranker(config: RouterConfig, client: ModelClient | None) -> LLMReranker | ScoringReranker | None:
    """Return the reranker that the settings name, or ``None`` for none; it connects and loads with its first call."""
    if config.reranker == "llm":
        if client is None:
            raise errors.ConfigError("reranker llm needs a model; set llm to ollama:MODEL or openrouter:MODEL")
        return LLMReranker(client)
    kind, _, model = config.reranker.partition(":")
    if kind == "cross_encoder":
        return CrossEncoderReranker(model or CROSS_ENCODER)
    return CohereReranker(config.cohere_api_key, model or COHERE_MODEL) if kind == "cohere" else None


def by_scores(nodes: Sequence[NodeWithScore], scores: Sequence[float]) -> list[NodeWithScore]:
    if len(scores) != len(nodes) or not all(map(math.isfinite, scores)):
        raise errors.LLMOutputError(f"the reranker gave {len(scores)} scores for {len(nodes)} nodes, or no numbers")
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
    """Asks a model once for the order of the first 20 nodes, in 16,000 characters; those that it leaves out follow."""

    def __init__(self, client: ModelClient, *, boundary: Callable[[], str] = random_boundary) -> None:
        self._client = client
        self._boundary = boundary

    def rerank(self, query: str, nodes: Sequence[NodeWithScore], timeout_s: float) -> list[NodeWithScore]:
        judged = min(len(nodes), MAX_PASSAGES)
        if judged < 2:
            return list(nodes)
        share = max(MIN_PASSAGE_CHARS, MAX_PROMPT_CHARS // judged)
        passages = [(i, "", searched_text(entry.node)[:share]) for i, entry in enumerate(nodes[:judged], start=1)]
        write = partial(rerank_prompt, query, passages)
        reply = ask(self._client, write, timeout_s=timeout_s, boundary=self._boundary)
        named = [number - 1 for number in parse_order(reply.text, judged)]
        order = dict.fromkeys([*named, *range(len(nodes))])
        return by_scores([nodes[i] for i in order], [1 - place / len(nodes) for place in range(len(nodes))])


def parse_order(reply: str, count: int) -> list[int]:
    text = without_thoughts(reply)
    numbers = dict.fromkeys(_listed_numbers(text) or _written_numbers(text))
    order = [number for number in numbers if 1 <= number <= count]
    if not order:
        raise errors.LLMOutputError(f"the reply names none of the {count} passages ({len(reply):,} characters)")
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


class ScoringReranker(ABC):
    """Scores each node with the question by a model of an optional package, made ready by the first call."""

    package: ClassVar[str]
    needed_by: ClassVar[str]

    def __init__(self, what: str, model: str, *, max_calls: int = 8) -> None:
        self._what = what
        self._model = model
        self._made: Any = None
        self._lock = threading.Lock()
        self._caller = DeadlineCaller(what, max_calls=max_calls)

    def rerank(self, query: str, nodes: Sequence[NodeWithScore], timeout_s: float) -> list[NodeWithScore]:
        if not nodes:
            return []
        texts = [searched_text(entry.node)[:MAX_PASSAGE_CHARS] for entry in nodes]
        call = partial(self._caller.call, partial(self._scores, query, texts, timeout_s), timeout_s)
        scores = guarded(self._what, call, error=errors.LLMError, advice="see the cause, or set reranker to none")
        return by_scores(nodes, scores)

    def _ready(self) -> Any:  # noqa: ANN401 - of an optional package
        if self._made is None:
            try:
                package = importlib.import_module(self.package)
            except ImportError as err:
                how = "pip install 'agentic-retriever[rerank]', or set reranker to none"
                raise errors.ConfigError(f"{self.needed_by} needs the extra 'rerank': {how}") from err
            self._made = self._make(package)
        return self._made

    @abstractmethod
    def _make(self, package: Any) -> Any:  # noqa: ANN401 - of an optional package
        """Make the model ready."""

    @abstractmethod
    def _scores(self, query: str, texts: Sequence[str], timeout_s: float) -> list[float]:
        """Score every text."""


class CrossEncoderReranker(ScoringReranker):
    """Scores by a cross-encoder: R. Nogueira and K. Cho, "Passage Re-ranking with BERT", 2019 (arXiv:1901.04085)."""

    package = "sentence_transformers"
    needed_by = "the cross-encoder"

    def __init__(self, model: str) -> None:
        super().__init__(f"cross-encoder {model}", model, max_calls=2)

    def _make(self, package: Any) -> Any:  # noqa: ANN401 - of an optional package
        return package.CrossEncoder(self._model)

    def _scores(self, query: str, texts: Sequence[str], timeout_s: float) -> list[float]:  # noqa: ARG002 - of the base
        # One at a time: a call spreads over all cores, and the tokenizers are not made for several threads.
        with self._lock:
            found = self._ready().predict([(query, text) for text in texts], show_progress_bar=False)
        return [float(score) for score in found]


class CohereReranker(ScoringReranker):
    """Scores by Cohere's rerank service."""

    package = "cohere"
    needed_by = "reranking by Cohere"

    def __init__(self, api_key: Secret, model: str) -> None:
        if not api_key:
            raise errors.ConfigError("reranking by Cohere needs a key; set cohere_api_key, or reranker to none")
        super().__init__(f"Cohere model {model}", model)
        self._key = api_key

    def _make(self, package: Any) -> Any:  # noqa: ANN401 - of an optional package
        return package.ClientV2(api_key=self._key.reveal())

    def _scores(self, query: str, texts: Sequence[str], timeout_s: float) -> list[float]:
        with self._lock:
            client = self._ready()
        limits = {"timeout_in_seconds": max(1, math.ceil(timeout_s)), "max_retries": 0}
        reply = client.rerank(model=self._model, query=query, documents=texts, top_n=len(texts), request_options=limits)
        found = sorted((int(result.index), float(result.relevance_score)) for result in reply.results)
        if [index for index, _score in found] != list(range(len(texts))):
            raise errors.LLMOutputError(f"{self._what}: its reply does not rank each of the {len(texts)} nodes once")
        return [score for _index, score in found]


# Maximal marginal relevance: results that are not all the same.
# J. Carbonell and J. Goldstein, "The Use of MMR, Diversity-Based Reranking for Reordering Documents and Producing
# Summaries", SIGIR 1998.


def mmr(
    nodes: Sequence[NodeWithScore], vectors: Mapping[str, npt.ArrayLike], *, top_k: int, trade_off: float
) -> list[NodeWithScore]:
    """Choose nodes by ``trade_off x relevance - (1 - trade_off) x`` the largest cosine with a chosen one."""
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


def store_vectors(index: Index, node_ids: Sequence[str]) -> Mapping[str, npt.ArrayLike]:
    read = getattr(index.vector_store, "vectors", None)  # our own stores and attached ones
    if read is not None:
        found, matrix = base.run_guarded(f"the store of index {index.name}", lambda: read(node_ids))
        return dict(zip(found, matrix, strict=True))
    nodes = base.fetch_nodes(index, node_ids)
    return {node_id: node.embedding for node_id, node in nodes.items() if node.embedding is not None}


# Parent expansion: the chunks around a hit, from the same section of the same document.

# Key in the details of a node that was not found but stands beside one that was: the id of that one.
EXPANDED_KEY: Final = "expanded_from"
SECTION: Final = "section"


def expand(nodes: Sequence[NodeWithScore], neighbours: Neighbours, *, limit: int) -> list[NodeWithScore]:
    added: list[NodeWithScore] = []
    known = {entry.node.node_id for entry in nodes}
    floor = min(base.finite_scores(nodes), default=0.0)
    for hit in nodes:
        if len(added) >= limit:
            break
        for node in neighbours(hit.node):
            if node.node_id not in known and len(added) < limit:
                known.add(node.node_id)
                floor = math.nextafter(floor, -math.inf)
                said = {EXPANDED_KEY: hit.node.node_id}
                added.append(base.RetrievedNode(node=node, score=floor, details=said))
    return [*nodes, *added]


def section_neighbours(index: Index, *, width: int, filters: MetadataFilters | None = None) -> Neighbours:
    """Return what reads the chunks around a chunk from an index."""
    satisfies = predicate(filters)

    @cache
    def read(doc_id: str) -> list[BaseNode]:
        if not doc_id:
            return []
        wanted = merge_and(MetadataFilters(filters=[MetadataFilter(key="doc_id", value=doc_id)]), filters)
        found = base.run_guarded(
            f"the store of index {index.name}", lambda: index.vector_store.get_nodes(filters=wanted)
        )
        # Some stores know no such field, or let others through.
        mine = [node for node in found if node.ref_doc_id == doc_id and satisfies(node_fields(node))]
        return sorted(mine, key=lambda node: (_start(node), node.node_id))

    def around(node: BaseNode) -> list[BaseNode]:
        section = node.metadata.get(SECTION)
        chunks = [other for other in read(node.ref_doc_id or "") if other.metadata.get(SECTION) == section]
        at = next((i for i, other in enumerate(chunks) if other.node_id == node.node_id), None)
        return [] if at is None else chunks[max(0, at - width) : at + width + 1]

    return around


def _start(node: BaseNode) -> int:
    start = node.start_char_idx if isinstance(node, TextNode) else None
    return -1 if start is None else start


# LlamaIndex node postprocessors after our own steps: bounded in time, and left out when they fail.


class NodePostprocessors:
    """Runs node postprocessors one after another; safe to use from many threads as far as they are."""

    def __init__(self, given: Sequence[Any] = (), *, timer: Callable[[], float] = time.monotonic) -> None:
        wrong = [one for one in given if not isinstance(one, BaseNodePostprocessor)]
        if wrong:
            expected = "LlamaIndex node postprocessors (BaseNodePostprocessor)"
            raise errors.ConfigError(f"postprocessors must be {expected}, got {type(wrong[0]).__name__}")
        self._callers = [(one, DeadlineCaller(f"the node postprocessor {type(one).__name__}")) for one in given]
        self._timer = timer

    def __bool__(self) -> bool:
        return bool(self._callers)

    def run(
        self, query: str, nodes: Sequence[NodeWithScore], *, filters: MetadataFilters | None, timeout_s: float
    ) -> tuple[list[NodeWithScore], tuple[Degradation, ...]]:
        deadline = self._timer() + timeout_s
        kept, degraded = list(nodes), []
        for one, caller in self._callers:
            # Copies, since many change what they are given, even when they then fail or come too late.
            copies = [scored.model_copy(deep=True) for scored in kept]
            call = partial(one.postprocess_nodes, copies, query_bundle=QueryBundle(query))
            left_s = deadline - self._timer()
            try:
                if left_s <= 0:
                    raise errors.DeadlineExceededError(f"the time ran out before {caller.what} began; allow more time")
                returned = guarded(caller.what, partial(caller.call, call, left_s), error=errors.RetrievalError)
                kept = _checked(returned, kept, filters)
            except errors.AgenticRetrieverError as err:
                step = f"postprocess.{type(one).__name__}"
                degraded.append(Degradation(step=step, reason=str(err), fallback="the nodes before it"))
        return kept, tuple(degraded)


def _checked(returned: object, before: Sequence[NodeWithScore], filters: MetadataFilters | None) -> list[NodeWithScore]:
    """Hold the result to what is promised of every retrieval."""
    if not isinstance(returned, (list, tuple)) or not all(isinstance(one, NodeWithScore) for one in returned):
        raise errors.RetrievalError(f"it must return a list of NodeWithScore, got {type(returned).__name__}", {})
    scores = {scored.node.node_id: base.finite_or_least(scored.score) for scored in before}
    said = {scored.node.node_id: base.details(scored) for scored in before}  # many make a NodeWithScore of their own
    allowed = predicate(filters)
    unique: dict[str, NodeWithScore] = {}
    for scored in returned:
        node_id = scored.node.node_id
        if node_id in unique or (node_id not in scores and not allowed(node_fields(scored.node))):
            continue
        given, earlier = base.finite_or_least(scored.score), scores.get(node_id, 0.0)
        score = next((value for value in (given, earlier) if value > -math.inf), 0.0)
        unique[node_id] = base.detailed(scored, score, **said.get(node_id, {}))
    return list(unique.values())
