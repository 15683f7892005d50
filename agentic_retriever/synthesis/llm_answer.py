"""An answer by a model, with every citation looked up in the passage that it names."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentic_retriever.errors import LLMOutputError, SynthesisError
from agentic_retriever.llm.replies import without_thoughts
from agentic_retriever.prompts import NO_ANSWER, answer_prompt, occurs
from agentic_retriever.synthesis.checking import CitedText, Unsupported, check_citations

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agentic_retriever.llm import LLMReply, ModelClient
    from agentic_retriever.synthesis.context import ContextPassage

_DRAWS = 4

_NO_ANSWER = re.compile(rf"[\W_]*{NO_ANSWER.replace('_', '[ _]')}\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class LLMAnswer:
    """What a model answered.

    Attributes:
        cited: Its answer, or ``None`` when it said that the passages do not answer the question or when all that it
            said was left out.
        reply: The reply as it came.
    """

    cited: CitedText | None
    reply: LLMReply


class LLMSynthesizer:
    """Asks a model for a cited answer and checks what comes back; one model call an answer.

    Args:
        client: The model.
        boundary: Draws what marks the frame of the prompt: 8 or more ASCII letters and digits that nobody can guess.
        unsupported: What becomes of sentences that the passages do not support: ``flag`` leaves them in the text,
            ``mark`` puts a ``[?]`` behind them, ``drop`` leaves them out.
    """

    def __init__(
        self,
        client: ModelClient,
        *,
        boundary: Callable[[], str] = lambda: secrets.token_hex(8),
        unsupported: Unsupported = "flag",
    ) -> None:
        self.client = client
        self._boundary = boundary
        self._unsupported = unsupported

    def answer(
        self,
        query: str,
        passages: Sequence[ContextPassage],
        *,
        language: str = "und",
        timeout_s: float | None = None,
        index_of: Callable[[str], str] = lambda _node_id: "",
    ) -> LLMAnswer:
        """Answer a question from passages.

        Args:
            query: The question.
            passages: Best first, numbered from 1.
            language: ISO 639-1 code of the question.
            timeout_s: Total seconds for the call, or ``None`` for the client's own limit.
            index_of: Gives the name of the index that a node id came from.

        Returns:
            The answer with its citations, and the model's reply for the accounts.

        Raises:
            LLMError: If the model failed, or answered with nothing but its thoughts.
            DeadlineExceededError: If it did not answer in time.
            SynthesisError: If no boundary could be drawn that the texts do not contain.
        """
        prompt = self._prompt(query, passages, language)
        reply = self.client.complete(prompt, timeout_s=timeout_s)
        text = without_thoughts(reply.text)
        if not text:
            raise LLMOutputError(f"{reply.tier.value} model {reply.model}: the reply is blank; take another model")
        if _NO_ANSWER.match(text):
            return LLMAnswer(cited=None, reply=reply)
        cited = check_citations(
            text, passages, language=language, index_of=index_of, unsupported=self._unsupported
        )
        return LLMAnswer(cited=cited if cited.text else None, reply=reply)

    def _prompt(self, query: str, passages: Sequence[ContextPassage], language: str) -> str:
        given = [(p.number, p.header, p.text) for p in passages]
        for _ in range(_DRAWS):
            boundary = self._boundary()
            if not occurs(boundary, query, given):
                return answer_prompt(query, given, language, boundary)
        raise SynthesisError(f"{_DRAWS} boundaries in a row occur in the texts; pass a better source of randomness")
