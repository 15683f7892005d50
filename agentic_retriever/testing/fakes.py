"""Stand-ins for models: deterministic, offline, recording what they were asked."""

import hashlib
import re
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeAlias

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.llms.types import CompletionResponse, LLMMetadata
from llama_index.core.bridge.pydantic import Field, PrivateAttr
from llama_index.core.llms.custom import CustomLLM

_WORD = re.compile(r"[^\W_]+")


class FakeEmbedding(BaseEmbedding):
    """Embeds a text as the normalised sum of one fixed random vector per word, so that shared words mean nearness.

    Attributes:
        dimension: Length of the vectors.
        calls: Texts embedded so far, queries included.
    """

    model_name: str = "fake-embedding"
    dimension: int = Field(default=32, ge=2)
    calls: list[str] = Field(default_factory=list)

    def _vector(self, text: str) -> list[float]:
        self.calls.append(text)
        words = _WORD.findall(text.casefold()) or [text or "\0"]
        seeds = [int.from_bytes(hashlib.sha256(word.encode("utf-8", "replace")).digest()[:8], "big") for word in words]
        total = np.sum([np.random.default_rng(seed).standard_normal(self.dimension) for seed in seeds], axis=0)
        norm = float(np.linalg.norm(total)) or 1.0
        vector: list[float] = (total / norm).tolist()
        return vector

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._vector(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._vector(query)

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._vector(text)


_Reply: TypeAlias = str | Exception


class FakeLLM(CustomLLM):
    """Answers from a script: a list of replies in turn (the last repeats) or a function of the prompt.

    A reply that is an exception is raised instead. ``prompts`` records what was asked.
    """

    model_name: str = "fake-llm"
    prompts: list[str] = Field(default_factory=list)
    _reply: Callable[[str], _Reply] = PrivateAttr()

    def __init__(self, replies: Sequence[_Reply] | Callable[[str], _Reply], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if callable(replies):
            self._reply = replies
        else:
            script = list(replies)
            self._reply = lambda _prompt: script.pop(0) if len(script) > 1 else script[0]

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(model_name=self.model_name, context_window=8192, num_output=512)

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        self.prompts.append(prompt)
        reply = self._reply(prompt)
        if isinstance(reply, Exception):
            raise reply
        return CompletionResponse(text=reply)

    def stream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> Generator[CompletionResponse, None, None]:
        """Yield the next reply word by word."""
        so_far = ""
        for word in re.findall(r"\S+\s*", self.complete(prompt).text):
            so_far += word
            yield CompletionResponse(text=so_far, delta=word)
