"""Reranking by models that score a question with a passage: a local cross-encoder, or Cohere's service."""

from __future__ import annotations

import importlib
import math
import threading
from typing import TYPE_CHECKING, Any, Final, TypeVar

from agentic_retriever.errors import ConfigError, LLMError, LLMOutputError
from agentic_retriever.retrievers.postprocess.rerank import by_scores, passage_text
from agentic_retriever.threads import DeadlineCaller, guarded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from llama_index.core.schema import NodeWithScore

    from agentic_retriever.config import Secret

DEFAULT_TIMEOUT_S: Final = 20.0

T = TypeVar("T")

_HINT: Final = "needs the extra 'rerank': pip install 'agentic-retriever[rerank]'"


class CrossEncoderReranker:
    """Scores each node with the question by a cross-encoder of ``sentence-transformers``, loaded with the first call.

    R. Nogueira and K. Cho, "Passage Re-ranking with BERT", 2019 (arXiv:1901.04085).

    Args:
        model: Name or folder of the model.
        timeout_s: Total seconds for one call, when its caller names none.
        load: Makes the model; it has ``predict(pairs, show_progress_bar=False)``, one score a pair.
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
        """Order nodes anew; see ``Reranker``.

        Raises:
            ConfigError: If the extra ``rerank`` is not installed.
            LLMError: If the model could not be loaded or failed.
            DeadlineExceededError: If it did not end in time.
        """
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
    """Has nodes ordered by Cohere's rerank service.

    Args:
        api_key: The key; it appears in no message and no ``repr``.
        model: Name of the model.
        timeout_s: Total seconds for one call, when its caller names none.
        connect: Makes the client from the key; it has ``rerank(model=, query=, documents=, top_n=, request_options=)``.

    Raises:
        ConfigError: If the key is missing.
    """

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
        """Order nodes anew; see ``Reranker``.

        Raises:
            ConfigError: If the extra ``rerank`` is not installed.
            LLMError: If the service failed; only the kind of error is told, since its text may hold the key.
            LLMOutputError: If its reply does not fit the nodes.
            DeadlineExceededError: If it did not answer in time.
        """
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
