"""An answer by a model, with every citation looked up in the passage that it names."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from agentic_retriever.errors import LLMOutputError, StreamBrokenError, SynthesisError
from agentic_retriever.llm import StreamsReplies, estimate_tokens, without_thoughts
from agentic_retriever.prompts import NO_ANSWER, answer_prompt, occurs
from agentic_retriever.synthesis.checking import CitedText, check_citations
from agentic_retriever.synthesis.streamed import StreamedText

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from agentic_retriever.llm import LLMReply, ModelClient, ReplyStream, TierNeeds
    from agentic_retriever.synthesis.context import ContextPassage
    from agentic_retriever.synthesis.rewriting import Unsupported
    from agentic_retriever.synthesis.values import StreamControl

ANSWER_TOKENS = 1_024
"""Tokens of a model's window that are kept for its answer."""

MAX_ANSWER_CHARS = 10_000
"""Longer answers are cut, and say so."""

_DRAWS = 4

_NO_ANSWER = re.compile(rf"[\W_]*{NO_ANSWER.replace('_', '[ _]')}\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class LLMAnswer:
    """What a model answered.

    Attributes:
        cited: Its answer, or ``None`` when it said that the passages do not answer the question. Its text is ``""``
            when every sentence was left out.
        reply: The reply as it came.
        passages: How many passages the model was given.
    """

    cited: CitedText | None
    reply: LLMReply
    passages: int


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
        needs: TierNeeds | None = None,
        index_of: Callable[[str], str] = lambda _node_id: "",
    ) -> LLMAnswer:
        """Answer a question from passages.

        Args:
            query: The question.
            passages: Best first, numbered from 1; the last ones are left out when the model's window is too small.
            language: ISO 639-1 code of the question.
            timeout_s: Total seconds for the call, or ``None`` for the client's own limit.
            needs: What decides which model is asked first.
            index_of: Gives the name of the index that a node id came from.

        Returns:
            The answer with its citations, and the model's reply for the accounts.

        Raises:
            LLMError: If the model failed, or answered with nothing but its thoughts.
            DeadlineExceededError: If it did not answer in time.
            SynthesisError: If no boundary could be drawn that the texts do not contain.
        """
        prompt, given = self._prompt(query, passages, language)
        reply = self.client.complete(prompt, timeout_s=timeout_s, needs=needs)
        return read_answer(reply, citation_check(given, language, index_of, self._unsupported), len(given))

    def stream(
        self,
        query: str,
        passages: Sequence[ContextPassage],
        *,
        language: str = "und",
        timeout_s: float | None = None,
        needs: TierNeeds | None = None,
        index_of: Callable[[str], str] = lambda _node_id: "",
        control: StreamControl | None = None,
    ) -> Generator[str, None, LLMAnswer]:
        """Answer piece by piece; arguments and result as :meth:`answer`, and ``control`` to end it from elsewhere.

        Yields:
            What can be shown, citations numbered as in the finished answer; see ``StreamedText``.

        Raises:
            StreamBrokenError: If the reply broke off after something was shown; before that as :meth:`answer`.
        """
        client = self.client
        prompt, given = self._prompt(query, passages, language)
        check = citation_check(given, language, index_of, self._unsupported)
        shown = StreamedText(check, len(given), whole_sentences=self._unsupported == "drop")
        if isinstance(client, StreamsReplies):
            reply = yield from _shown(client.stream(prompt, timeout_s=timeout_s, needs=needs), shown, control)
        else:
            reply = client.complete(prompt, timeout_s=timeout_s, needs=needs)
        answer = read_answer(reply, check, len(given))
        rest = shown.finish(answer.cited.text) if answer.cited is not None else ""
        if rest:
            yield rest
        return answer

    def _prompt(
        self, query: str, passages: Sequence[ContextPassage], language: str
    ) -> tuple[str, Sequence[ContextPassage]]:
        """Write the prompt with as many passages, best first, as the models' window holds beside the answer."""
        room = self.client.context_tokens - ANSWER_TOKENS
        for count in range(len(passages), 0, -1):
            prompt = self._framed(query, passages[:count], language)
            if count == 1 or estimate_tokens(prompt) <= room:
                return prompt, passages[:count]
        return self._framed(query, (), language), ()

    def _framed(self, query: str, passages: Sequence[ContextPassage], language: str) -> str:
        given = [(p.number, p.header, p.text) for p in passages]
        for _ in range(_DRAWS):
            boundary = self._boundary()
            if not occurs(boundary, query, given):
                return answer_prompt(query, given, language, boundary)
        raise SynthesisError(f"{_DRAWS} boundaries in a row occur in the texts; pass a better source of randomness")


def citation_check(
    passages: Sequence[ContextPassage], language: str, index_of: Callable[[str], str], unsupported: Unsupported
) -> Callable[[str], CitedText]:
    """Return what looks up the citations of an answer from these passages; arguments as ``check_citations``."""
    return partial(check_citations, passages=passages, language=language, index_of=index_of, unsupported=unsupported)


def read_answer(reply: LLMReply, check: Callable[[str], CitedText], passages: int) -> LLMAnswer:
    """Read what a model answered.

    Args:
        reply: Its reply.
        check: Looks up the citations of a text.
        passages: How many passages it was given.

    Raises:
        LLMOutputError: If there is nothing but thoughts in it.
    """
    text = without_thoughts(reply.text)
    if not text:
        raise LLMOutputError(f"{reply.tier.value} model {reply.model}: the reply is blank; take another model")
    if _NO_ANSWER.match(text):
        return LLMAnswer(cited=None, reply=reply, passages=passages)
    if len(text) > MAX_ANSWER_CHARS:
        text, reply = text[:MAX_ANSWER_CHARS], replace(reply, truncated=True)
    return LLMAnswer(cited=check(text), reply=reply, passages=passages)


def _shown(stream: ReplyStream, shown: StreamedText, control: StreamControl | None) -> Generator[str, None, LLMReply]:
    """Yield what can be shown of a stream, and return the whole reply."""
    with stream as pieces:
        if control is not None:
            control.watch(pieces)
        try:
            for piece in pieces:
                text = shown.feed(piece)
                if text:
                    yield text
        except StreamBrokenError as err:
            if shown.shown:
                raise
            # Only thoughts came so far, so that another way to answer can still be taken.
            raise LLMOutputError(str(err)) from err
        if pieces.reply is None:
            raise LLMOutputError("the stream was closed before its end; ask again")
        return pieces.reply
