"""Having answers judged by a language model, through LlamaIndex's evaluators."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from llama_index.core.base.llms.types import CompletionResponse, LLMMetadata
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.evaluation import FaithfulnessEvaluator, RelevancyEvaluator
from llama_index.core.llms.custom import CustomLLM

from agentic_retriever.evaluation.choices import told

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from agentic_retriever.llm import ModelClient

MOST_CONTEXTS: Final = 5
"""Nodes whose relevance is judged, from the best down; each costs a call."""


class JudgeLLM(CustomLLM):
    """The router's own model as a LlamaIndex LLM, with its tiers, retries and breakers.

    Args:
        client: The model.
    """

    model_name: str = "judge"
    _client: Any = PrivateAttr()

    def __init__(self, client: ModelClient) -> None:
        super().__init__(model_name=client.model)
        self._client = client

    @property
    def metadata(self) -> LLMMetadata:
        """Name and window of the model."""
        return LLMMetadata(model_name=self.model_name, context_window=self._client.context_tokens, num_output=256)

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:  # noqa: ANN401, ARG002 - LlamaIndex's signature
        """Answer a prompt; raises ``LLMError`` if no tier answered."""
        return CompletionResponse(text=self._client.complete(prompt).text)

    def stream_complete(
        self,
        prompt: str,
        formatted: bool = False,  # noqa: ARG002 - LlamaIndex's signature
        **kwargs: Any,  # noqa: ANN401, ARG002 - LlamaIndex's signature
    ) -> Generator[CompletionResponse, None, None]:
        """Yield the whole answer at once."""
        reply = self.complete(prompt)
        yield CompletionResponse(text=reply.text, delta=reply.text)


class Judge:
    """Judges answers by a model: whether they follow from their sources, and whether these are about the question.

    Args:
        client: The model.
    """

    def __init__(self, client: ModelClient) -> None:
        model = JudgeLLM(client)
        self.name = model.model_name
        self._faithful = FaithfulnessEvaluator(llm=model)
        self._relevant = RelevancyEvaluator(llm=model)

    def judge(self, query: str, answer: str, contexts: Sequence[str]) -> dict[str, Any]:
        """Judge one answer.

        Args:
            query: The question.
            answer: The answer.
            contexts: Texts of the nodes that it was written from, best first.

        Returns:
            ``judge`` (name of the model), ``faithful`` (``FaithfulnessEvaluator``: 0 or 1), ``context_precision``
            (``RelevancyEvaluator`` for each of the best five nodes, averaged as average precision), and
            ``judge_error``, by which the others may be missing.
        """
        found: dict[str, Any] = {"judge": self.name, "judge_error": ""}
        try:
            faithful = _aside(lambda: self._faithful.evaluate(query=query, response=answer, contexts=list(contexts)))
            found["faithful"] = float(faithful.score or 0.0)
            verdicts = [
                bool(_aside(lambda c=one: self._relevant.evaluate(query=query, response=answer, contexts=[c])).passing)  # type: ignore[misc]  # mypy cannot infer a lambda with a default
                for one in contexts[:MOST_CONTEXTS]
            ]
            found["context_precision"] = average_precision(verdicts)
        except Exception as err:  # noqa: BLE001 - the seam to LlamaIndex's evaluators; an unjudged answer is counted
            found["judge_error"] = told(err)
        return found


def average_precision(verdicts: Sequence[bool]) -> float:
    """Return the mean of the precision at every relevant place, in [0, 1]; 0 without any."""
    right, total = 0, 0.0
    for at, relevant in enumerate(verdicts, start=1):
        if relevant:
            right += 1
            total += right / at
    return total / right if right else 0.0


def _aside(call: Callable[[], Any]) -> Any:  # noqa: ANN401 - of LlamaIndex
    """Call in a thread without an event loop: the evaluators start one, which Jupyter's would forbid."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()
