"""Reranking: a second, slower look at the first nodes, by a language model, a cross-encoder or Cohere.

A reranker that fails raises; ``postprocess`` then keeps the order that it had.
"""

from __future__ import annotations

import importlib
import math
import re
import threading
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from llama_index.core.schema import MetadataMode, NodeWithScore

from agentic_retriever.errors import ConfigError, LLMError, LLMOutputError
from agentic_retriever.llm import ask, containers, json_values, random_boundary, without_thoughts
from agentic_retriever.llm.prompts import rerank_prompt
from agentic_retriever.retrievers.base import SCORES_KEY, source_scores
from agentic_retriever.threads import DeadlineCaller, guarded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from agentic_retriever.config import Secret
    from agentic_retriever.llm import ModelClient


# New scores for nodes, without a change to what was given.

RETRIEVED: Final = "retrieved"
"""Name in the per-source scores of the score that a node had before anything here changed it."""


def rescored(entry: NodeWithScore, score: float) -> NodeWithScore:
    """Return a node under another score."""
    node = entry.node.model_copy()
    known = dict(source_scores(entry.node))
    if entry.score is not None:
        known.setdefault(RETRIEVED, entry.score)
    node.metadata = {**entry.node.metadata, SCORES_KEY: known}
    hidden = [SCORES_KEY]
    node.excluded_llm_metadata_keys = list(dict.fromkeys([*entry.node.excluded_llm_metadata_keys, *hidden]))
    node.excluded_embed_metadata_keys = list(dict.fromkeys([*entry.node.excluded_embed_metadata_keys, *hidden]))
    return NodeWithScore(node=node, score=score)


def in_order(nodes: Iterable[NodeWithScore]) -> list[NodeWithScore]:
    """Return nodes by falling score, then by id; those without a finite score last."""
    return sorted(nodes, key=lambda entry: (-value_of(entry), entry.node.node_id))


def value_of(entry: NodeWithScore) -> float:
    """Return a node's score, or minus infinity for none or no finite one."""
    return entry.score if entry.score is not None and math.isfinite(entry.score) else -math.inf


def unit_scores(nodes: Sequence[NodeWithScore]) -> list[float]:
    """Bring scores to [0, 1]: the best becomes 1, the worst 0, all 1 where they are the same; no score gives 0."""
    finite = [value for value in map(value_of, nodes) if value > -math.inf]
    if not finite:
        return [0.0] * len(nodes)
    low, span = min(finite), max(finite) - min(finite)
    if not (span > 0 and math.isfinite(span)):
        return [float(value_of(entry) > -math.inf) for entry in nodes]
    return [max(0.0, (value_of(entry) - low) / span) for entry in nodes]


MAX_PASSAGE_CHARS: Final = 4_000
"""Most characters of one node that a reranker reads."""


class Reranker(Protocol):
    """Orders nodes anew."""

    def rerank(
        self, query: str, nodes: Sequence[NodeWithScore], top_k: int, timeout_s: float | None = None
    ) -> list[NodeWithScore]:
        """Return the best nodes under new scores."""


class NoReranker:
    """Leaves the order as it is."""

    def rerank(
        self,
        query: str,  # noqa: ARG002 - the protocol's signature
        nodes: Sequence[NodeWithScore],
        top_k: int,
        timeout_s: float | None = None,  # noqa: ARG002 - the protocol's signature
    ) -> list[NodeWithScore]:
        """Return the first ``top_k`` nodes; see :class:`Reranker`."""
        return list(nodes[:top_k])


def passage_text(entry: NodeWithScore, max_chars: int = MAX_PASSAGE_CHARS) -> str:
    """Return what a reranker reads of a node: its title, section and the beginning of its text."""
    return entry.node.get_content(metadata_mode=MetadataMode.EMBED)[:max_chars]


def by_scores(nodes: Sequence[NodeWithScore], scores: Sequence[float], top_k: int) -> list[NodeWithScore]:
    """Order nodes by new scores."""
    if len(scores) != len(nodes) or not all(map(math.isfinite, scores)):
        raise LLMOutputError(
            f"the reranker gave {len(scores)} scores for {len(nodes)} nodes, or some that are no numbers"
        )
    return in_order(rescored(entry, float(score)) for entry, score in zip(nodes, scores, strict=True))[:top_k]


# Reranking by a language model that is asked for an order of numbered passages, all in one call.
#
# W. Sun et al., "Is ChatGPT Good at Search? Investigating Large Language Models as Re-Ranking Agents", EMNLP 2023.

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

    def rerank(
        self, query: str, nodes: Sequence[NodeWithScore], top_k: int, timeout_s: float | None = None
    ) -> list[NodeWithScore]:
        """Order nodes anew; see ``Reranker``."""
        judged = min(len(nodes), MAX_PASSAGES)
        if judged < 2:
            return list(nodes[:top_k])
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
        return by_scores(nodes, [1 - places[i] / len(nodes) for i in range(len(nodes))], top_k)


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


# Reranking by models that score a question with a passage: a local cross-encoder, or Cohere's service.

DEFAULT_TIMEOUT_S: Final = 20.0

T = TypeVar("T")

_HINT: Final = "needs the extra 'rerank': pip install 'agentic-retriever[rerank]'"


class CrossEncoderReranker:
    """Scores each node with the question by a cross-encoder of ``sentence-transformers``, loaded with the first call.

    R. Nogueira and K. Cho, "Passage Re-ranking with BERT", 2019 (arXiv:1901.04085).
    """

    def __init__(
        self, model: str, *, timeout_s: float = DEFAULT_TIMEOUT_S, load: Callable[[str], Any] | None = None
    ) -> None:
        self._name = model
        self._timeout_s = timeout_s
        self._load = load or _load_cross_encoder
        self._lock = threading.Lock()
        self._model: Any = None
        self._caller = DeadlineCaller(f"cross-encoder {model}", max_calls=2)

    def rerank(
        self, query: str, nodes: Sequence[NodeWithScore], top_k: int, timeout_s: float | None = None
    ) -> list[NodeWithScore]:
        """Order nodes anew; see ``Reranker``."""
        if not nodes:
            return []
        pairs = [(query, passage_text(entry)) for entry in nodes]
        limit = self._timeout_s if timeout_s is None else timeout_s
        scores = _translated(
            f"cross-encoder {self._name}", lambda: self._caller.call(lambda: self._scored(pairs), limit)
        )
        return by_scores(nodes, scores, top_k)

    def _scored(self, pairs: list[tuple[str, str]]) -> list[float]:
        # One at a time: a call spreads over all cores, and the tokenizers are not made for several threads.
        with self._lock:
            if self._model is None:
                self._model = self._load(self._name)
            return [float(score) for score in self._model.predict(pairs, show_progress_bar=False)]


class CohereReranker:
    """Has nodes ordered by Cohere's rerank service."""

    def __init__(
        self,
        api_key: Secret,
        model: str,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        connect: Callable[[str], Any] | None = None,
    ) -> None:
        if not api_key:
            raise ConfigError("reranking by Cohere needs a key; set cohere_api_key, or reranker to none")
        self._key = api_key
        self._model = model
        self._timeout_s = timeout_s
        self._connect = connect or _connect_cohere
        self._client: Any = None
        self._lock = threading.Lock()
        self._caller = DeadlineCaller(f"Cohere model {model}")

    def rerank(
        self, query: str, nodes: Sequence[NodeWithScore], top_k: int, timeout_s: float | None = None
    ) -> list[NodeWithScore]:
        """Order nodes anew; see ``Reranker``."""
        if not nodes:
            return []
        documents = [passage_text(entry) for entry in nodes]
        limit = self._timeout_s if timeout_s is None else timeout_s
        what = f"Cohere model {self._model}"
        found = _translated(what, lambda: self._caller.call(lambda: self._asked(query, documents, limit), limit))
        if {index for index, _ in found} != set(range(len(nodes))) or len(found) != len(nodes):
            raise LLMOutputError(f"{what}: its reply does not rank each of the {len(nodes)} nodes once")
        scores = dict(found)
        return by_scores(nodes, [scores[i] for i in range(len(nodes))], top_k)

    def _asked(self, query: str, documents: list[str], limit: float) -> list[tuple[int, float]]:
        with self._lock:
            if self._client is None:
                self._client = self._connect(self._key.reveal())
            client = self._client
        reply = client.rerank(
            model=self._model,
            query=query,
            documents=documents,
            top_n=len(documents),
            request_options={"timeout_in_seconds": max(1, math.ceil(limit)), "max_retries": 0},
        )
        return [(int(result.index), float(result.relevance_score)) for result in reply.results]


def _translated(what: str, call: Callable[[], T]) -> T:
    return guarded(what, call, error=LLMError, advice="see the cause, or set reranker to none")


def _load_cross_encoder(model: str) -> Any:  # noqa: ANN401 - an optional package
    try:
        package = importlib.import_module("sentence_transformers")
    except ImportError as err:
        raise ConfigError(f"the cross-encoder {_HINT}, or set reranker to none") from err
    return package.CrossEncoder(model)


def _connect_cohere(key: str) -> Any:  # noqa: ANN401 - an optional package
    try:
        package = importlib.import_module("cohere")
    except ImportError as err:
        raise ConfigError(f"reranking by Cohere {_HINT}, or set reranker to none") from err
    return package.ClientV2(api_key=key)
