"""An answer by a model, with every citation looked up in the passage that it names."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentic_retriever.errors import LLMOutputError, SynthesisError
from agentic_retriever.llm.replies import without_thoughts
from agentic_retriever.prompts import NO_ANSWER, answer_prompt, occurs
from agentic_retriever.synthesis.citations import PassageMatcher, Support, cite
from agentic_retriever.synthesis.markers import Mark, read_markers
from agentic_retriever.text import Tokenizer, split_sentences

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agentic_retriever.llm import LLMReply, ModelClient
    from agentic_retriever.schema import Citation
    from agentic_retriever.synthesis.context import ContextPassage

_ATTACH_FROM = 0.7
_MAX_CHECKED = 60
_DRAWS = 4

_LINE_END = re.compile(r"[ \t]+$", re.MULTILINE)
_NO_ANSWER = re.compile(rf"[\W_]*{NO_ANSWER.replace('_', '[ _]')}\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class CitedText:
    """An answer with its citations.

    Attributes:
        text: The text; each ``[n]`` in it has a citation.
        citations: One for each number, from 1 in order of first use.
        support: Mean over the sentences of the score of their best citation, 0 for a sentence without one; in [0, 1].
    """

    text: str
    citations: tuple[Citation, ...]
    support: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LLMAnswer:
    """What a model answered.

    Attributes:
        cited: Its answer, or ``None`` when it said that the passages do not answer the question.
        reply: The reply as it came.
    """

    cited: CitedText | None
    reply: LLMReply


class LLMSynthesizer:
    """Asks a model for a cited answer and checks what comes back; one model call an answer.

    Args:
        client: The model.
        boundary: Draws what marks the frame of the prompt: 8 or more ASCII letters and digits that nobody can guess.
    """

    def __init__(self, client: ModelClient, *, boundary: Callable[[], str] = lambda: secrets.token_hex(8)) -> None:
        self.client = client
        self._boundary = boundary

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
        return LLMAnswer(cited=check_citations(text, passages, language=language, index_of=index_of), reply=reply)

    def _prompt(self, query: str, passages: Sequence[ContextPassage], language: str) -> str:
        given = [(p.number, p.header, p.text) for p in passages]
        for _ in range(_DRAWS):
            boundary = self._boundary()
            if not occurs(boundary, query, given):
                return answer_prompt(query, given, language, boundary)
        raise SynthesisError(f"{_DRAWS} boundaries in a row occur in the texts; pass a better source of randomness")


def check_citations(
    text: str,
    passages: Sequence[ContextPassage],
    *,
    language: str = "und",
    index_of: Callable[[str], str] = lambda _node_id: "",
) -> CitedText:
    """Look up every citation of a text, add those that are missing, drop those that were invented.

    A sentence keeps the passages that it names, each with the stretch that supports it best, however badly; one that
    names none gets the passage that supports it with 0.7 or more, if there is one. Each distinct stretch has a number
    of its own.

    Args:
        text: An answer with markers in any of the usual forms.
        passages: What the numbers stand for, numbered from 1.
        language: ISO 639-1 code, for stemming.
        index_of: Gives the name of the index that a node id came from.

    Returns:
        The text with markers behind its sentences, and the citations; never an error, whatever the text.
    """
    tokenizer = Tokenizer(language)
    clean, marks = read_markers(text, len(passages))
    numbering = _Numbering([PassageMatcher(p, tokenizer) for p in passages], index_of)
    parts: list[str] = []
    scores: list[float] = []
    at = 0
    sentences = split_sentences(clean)
    for i, sentence in enumerate(sentences):
        following = sentences[i + 1].start if i + 1 < len(sentences) else len(clean)
        named = _named(marks, sentence.start if i else -1, following)
        found = numbering.supports(sentence.text, named) if i < _MAX_CHECKED else []
        markers = numbering.markers(found)
        parts += [clean[at : sentence.end], f" {markers}" if markers else ""]
        at = sentence.end
        if any(char.isalnum() for char in sentence.text):
            scores.append(max((support.score for _, support in found), default=0.0))
    answer = _LINE_END.sub("", "".join([*parts, clean[at:]])).strip()
    return CitedText(text=answer, citations=numbering.citations(), support=sum(scores) / len(scores) if scores else 0.0)


def _named(marks: Sequence[Mark], start: int, following: int) -> list[int]:
    """The passages cited behind the beginning of a sentence and not behind that of the following one."""
    return list(dict.fromkeys(m.number for m in marks if start < m.position <= following))


class _Numbering:
    """Gives out the numbers of one answer: one for each stretch of a passage, in order of first use."""

    def __init__(self, matchers: Sequence[PassageMatcher], index_of: Callable[[str], str]) -> None:
        self._matchers = matchers
        self._index_of = index_of
        self._numbers: dict[tuple[int, int, int], int] = {}
        self._best: dict[int, tuple[PassageMatcher, Support]] = {}

    def supports(self, sentence: str, named: Sequence[int]) -> list[tuple[PassageMatcher, Support]]:
        """Where the named passages support a sentence, or where the best one of all does when none is named."""
        matchers = [self._matchers[number - 1] for number in named]
        if matchers:
            found = [(matcher, matcher.locate(sentence)) for matcher in matchers]
            return [(matcher, support) for matcher, support in found if support is not None]
        tried = [(matcher, matcher.locate(sentence)) for matcher in self._matchers]
        good = [(m, support) for m, support in tried if support is not None and support.score >= _ATTACH_FROM]
        return [max(good, key=lambda pair: pair[1].score)] if good else []

    def markers(self, found: Sequence[tuple[PassageMatcher, Support]]) -> str:
        """The markers of a sentence, such as ``[1][3]``."""
        numbers: list[int] = []
        for matcher, support in found:
            key = (matcher.passage.number, support.start, support.end)
            number = self._numbers.setdefault(key, len(self._numbers) + 1)
            numbers.append(number)
            # Two sentences may rest on one stretch; its citation shows the better fit.
            if number not in self._best or support.score > self._best[number][1].score:
                self._best[number] = (matcher, support)
        return "".join(f"[{number}]" for number in dict.fromkeys(numbers))

    def citations(self) -> tuple[Citation, ...]:
        """One citation for each number given out."""
        return tuple(
            cite(matcher.passage, support, number, self._index_of)
            for number, (matcher, support) in sorted(self._best.items())
        )
