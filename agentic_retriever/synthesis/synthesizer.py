"""From nodes to an answer that can be checked, or an honest "not found"."""

from __future__ import annotations

import re
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from llama_index.core.schema import NodeWithScore, QueryBundle

from agentic_retriever.errors import (
    BudgetExceededError,
    DeadlineExceededError,
    LLMError,
    LLMOutputError,
    StreamBrokenError,
    SynthesisError,
)
from agentic_retriever.llm import (
    LLMReply,
    ModelClient,
    ReplyStream,
    StreamsReplies,
    TierNeeds,
    estimate_tokens,
    spent_on,
    without_thoughts,
)
from agentic_retriever.llm.prompts import NO_ANSWER, answer_prompt, not_found, occurs
from agentic_retriever.schema import Attempt, Complexity, Confidence, Degradation, SentenceCheck, Tier, TierUsage, Usage
from agentic_retriever.synthesis.checking import CitedText, Unsupported, check_citations
from agentic_retriever.synthesis.citations import read_markers
from agentic_retriever.synthesis.confidence import confidence_score, is_answerable, is_written
from agentic_retriever.synthesis.context import (
    MAX_PASSAGES,
    ContextPassage,
    Evidence,
    Limits,
    StreamControl,
    Synthesis,
    assemble,
)
from agentic_retriever.synthesis.extractive import Extraction, ExtractiveSynthesizer, quoted_checks
from agentic_retriever.synthesis.question import coverage
from agentic_retriever.text import Tokenizer, detect_language, split_sentences
from agentic_retriever.threads import DeadlineCaller, guarded

if TYPE_CHECKING:
    from llama_index.core.response_synthesizers import BaseSynthesizer


# An answer by a model, with every citation looked up in the passage that it names.

ANSWER_TOKENS: Final = 1_024
"""Tokens of a model's window that are kept for its answer."""

MAX_ANSWER_CHARS: Final = 10_000
"""Longer answers are cut, and say so."""

_DRAWS: Final = 4
_DEFAULT_S: Final = 60.0
_BLANK: Final = "Empty Response"  # what LlamaIndex says when its model said nothing
_NO_ANSWER: Final = re.compile(rf"[\W_]*{NO_ANSWER.replace('_', '[ _]')}\b", re.IGNORECASE)
_OPEN_TAG: Final = re.compile(r"<[^<>\n]{0,40}\Z")
_OPEN_MARKER: Final = re.compile(r"\s*[\[【［〔].*\Z", re.DOTALL)
_SQUEEZED: Final = re.compile(r"[\W_]+")
_REFUSAL: Final = _SQUEEZED.sub("", NO_ANSWER).casefold()

T = TypeVar("T")


def drained(pieces: Generator[str, None, T]) -> T:
    """Run through pieces that nobody is shown, and return what comes of them."""
    try:
        while True:
            next(pieces)
    except StopIteration as end:
        result: T = end.value
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class LLMAnswer:
    """What a model answered."""

    cited: CitedText | None  # None where it said that the passages do not answer
    reply: LLMReply
    passages: int


@dataclass(frozen=True, slots=True)
class _Ask:
    """One question ready for a model: the passages that it reads, and how to have its reply at once or in pieces."""

    passages: Sequence[ContextPassage]
    whole: Callable[[], LLMReply]
    streamed: Callable[[], ReplyStream] | None = None


class _Writer(ABC):
    """Has a model write a cited answer and checks what comes back; one call an answer."""

    def __init__(self, unsupported: Unsupported) -> None:
        self._unsupported = unsupported

    @abstractmethod
    def _ask(
        self,
        query: str,
        passages: Sequence[ContextPassage],
        language: str,
        timeout_s: float | None,
        needs: TierNeeds | None,
    ) -> _Ask:
        """Prepare the question."""

    def write(
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
        """Answer a question from passages: piece by piece where the model can and ``control`` is given to end it."""
        ask = self._ask(query, passages, language, timeout_s, needs)
        check = partial(
            check_citations,
            passages=ask.passages,
            language=language,
            index_of=index_of,
            unsupported=self._unsupported,
        )
        shown = StreamedText(check, len(ask.passages), whole_sentences=self._unsupported == "drop")
        if control is not None and ask.streamed is not None:
            reply = yield from _shown(ask.streamed(), shown, control)
        else:
            reply = ask.whole()
        answer = _read_answer(reply, check, len(ask.passages))
        rest = shown.finish(answer.cited.text) if answer.cited is not None else ""
        if rest:
            yield rest
        return answer


class LLMSynthesizer(_Writer):
    """Asks a model for a cited answer."""

    def __init__(
        self,
        client: ModelClient,
        *,
        boundary: Callable[[], str] = lambda: secrets.token_hex(8),
        unsupported: Unsupported = "flag",
    ) -> None:
        super().__init__(unsupported)
        self.client = client
        self._boundary = boundary

    def _ask(
        self,
        query: str,
        passages: Sequence[ContextPassage],
        language: str,
        timeout_s: float | None,
        needs: TierNeeds | None,
    ) -> _Ask:
        client = self.client
        prompt, given = self._prompt(query, passages, language)
        whole = partial(client.complete, prompt, timeout_s=timeout_s, needs=needs)
        if isinstance(client, StreamsReplies):
            return _Ask(given, whole, partial(client.stream, prompt, timeout_s=timeout_s, needs=needs))
        return _Ask(given, whole)

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


class ForeignModel:
    """How the model behind a response synthesizer is named in the accounts."""

    tier = Tier.PRIMARY

    def __init__(self, synthesizer: BaseSynthesizer) -> None:
        metadata = getattr(getattr(synthesizer, "_llm", None), "metadata", None)
        name = getattr(metadata, "model_name", None) or "unknown"
        self.model = f"{type(synthesizer).__name__}:{name}"


class ForeignSynthesizer(_Writer):
    """Lets a LlamaIndex response synthesizer write the answers.

    It reads the passages numbered ``[1]``, ``[2]`` and so on, so that its model may cite them; sentences that cite
    nothing get the passage that supports them. Its call counts as one call of one model with tokens that are estimated
    and a price that is not known. A streamed answer comes as one piece, since the call cannot be cut.
    """

    def __init__(
        self,
        synthesizer: BaseSynthesizer,
        *,
        unsupported: Unsupported = "flag",
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(unsupported)
        self.client = ForeignModel(synthesizer)
        self._synthesizer = synthesizer
        self._timer = timer
        self._caller = DeadlineCaller(f"the response synthesizer {type(synthesizer).__name__}", max_calls=32)

    def _ask(
        self,
        query: str,
        passages: Sequence[ContextPassage],
        language: str,  # noqa: ARG002 - its own prompt says in which language to write
        timeout_s: float | None,
        needs: TierNeeds | None,
    ) -> _Ask:
        if needs is not None and needs.budget.max_usd is not None:
            raise BudgetExceededError(f"what {self.client.model} costs is not known, so a budget in USD forbids it")
        return _Ask(passages, partial(self._reply, query, passages, _DEFAULT_S if timeout_s is None else timeout_s))

    def _reply(self, query: str, passages: Sequence[ContextPassage], timeout_s: float) -> LLMReply:
        nodes = [_numbered(passage) for passage in passages]

        def write() -> str:
            response = self._synthesizer.synthesize(QueryBundle(query), nodes)
            text = "" if getattr(response, "response", "") is None else str(response)  # reads a stream to its end
            return "" if text.strip() == _BLANK else text

        started = self._timer()
        text = guarded(self._caller.what, partial(self._caller.call, write, timeout_s), error=SynthesisError)
        return LLMReply(
            text=text,
            model=self.client.model,
            tier=self.client.tier,
            prompt_tokens=sum(estimate_tokens(passage.text) for passage in passages) + estimate_tokens(query),
            completion_tokens=estimate_tokens(text),
            truncated=False,
            seconds=self._timer() - started,
            priced=False,
        )


def _numbered(passage: ContextPassage) -> NodeWithScore:
    """Return a copy of the passage's node that shows a model its number and header, and no other metadata."""
    node = passage.node.node.model_copy()
    node.metadata = dict(node.metadata)
    node.excluded_llm_metadata_keys = list(node.metadata)
    node.set_content("\n".join(part for part in (f"[{passage.number}] {passage.header}".strip(), passage.text) if part))
    return NodeWithScore(node=node, score=passage.node.score)


def _read_answer(reply: LLMReply, check: Callable[[str], CitedText], passages: int) -> LLMAnswer:
    """Read what a model answered."""
    text = without_thoughts(reply.text)
    if not text:
        raise LLMOutputError(f"{reply.tier.value} model {reply.model}: the reply is blank; take another model")
    if _NO_ANSWER.match(text):
        return LLMAnswer(cited=None, reply=reply, passages=passages)
    if len(text) > MAX_ANSWER_CHARS:
        text, reply = text[:MAX_ANSWER_CHARS], replace(reply, truncated=True)
    return LLMAnswer(cited=check(text), reply=reply, passages=passages)


def _shown(stream: ReplyStream, shown: StreamedText, control: StreamControl) -> Generator[str, None, LLMReply]:
    """Yield what can be shown of a stream, and return the whole reply."""
    with stream as pieces:
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


class StreamedText:
    """Turns the pieces that a model writes into pieces to show.

    Words are shown as they come. What the model thinks aloud is not, nor its own markers: behind each finished sentence
    stand the citations that hold, numbered as in the finished answer. Joined, the pieces are the beginning of the
    finished text, or all of it, unless what follows changes how the text falls into sentences; then nothing more is
    shown, and only the finished answer counts.
    """

    def __init__(self, check: Callable[[str], CitedText], known: int, *, whole_sentences: bool = False) -> None:
        self._check = check
        self._known = known
        self._whole = whole_sentences
        self._raw = ""
        self._base = ""
        self._finished = 0
        self.shown = ""

    def feed(self, piece: str) -> str:
        """Take a piece of the reply."""
        self._raw += piece
        text = without_thoughts(_OPEN_TAG.sub("", self._raw))
        if _may_refuse(text):
            return ""
        clean, _ = read_markers(_OPEN_MARKER.sub("", text) if text.count("[") > text.count("]") else text, self._known)
        sentences = split_sentences(clean)
        if not sentences:
            return ""
        last = sentences[-1].text
        if len(sentences) != self._finished + 1:
            self._finished = len(sentences) - 1
            self._base = self._before(text, last)
        return self._more(self._base.rstrip() if self._whole else self._base + last)

    def finish(self, final: str) -> str:
        """Return what is left to show of the finished text."""
        return self._more(final)

    def _before(self, text: str, last: str) -> str:
        """The finished text up to the sentence that is still being written."""
        if not self._finished:
            return ""
        cited = self._check(text).text
        at = cited.rfind(last)
        return cited[:at] if at >= 0 else self._base

    def _more(self, target: str) -> str:
        if not target.startswith(self.shown):
            return ""
        more = target[len(self.shown) :]
        self.shown = target
        return more


def _may_refuse(text: str) -> bool:
    """Tell whether a text is, or may still become, the word for "no answer"."""
    begun = _SQUEEZED.sub("", text[:40]).casefold()
    return begun.startswith(_REFUSAL) or _REFUSAL.startswith(begun)


MAX_READ_CHARS: Final = 200_000
"""Most text that the extractor reads, in characters; lower-ranked nodes are left out."""

_FAILURES: Final = (LLMError, DeadlineExceededError, SynthesisError)

IndexOf = Callable[[str], str] | Mapping[str, str] | None
"""What gives the name of the index of a node, or their names by node id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """One question with what is known of it."""

    query: str
    language: str
    evidence: Evidence
    index_of: Callable[[str], str]
    passages: tuple[ContextPassage, ...]
    nodes: int
    extraction: Extraction
    complexity: Complexity

    def score(self, *, coverage: float, support: float) -> float:
        """Return the confidence in an answer."""
        features = self.extraction.features(unknown_share=self.evidence.unknown_share)
        return confidence_score(
            coverage=coverage, relevance=self.evidence.relevance, support=support, features=features
        )


class Synthesizer:
    """Answers by a model where there is one, else by extraction, and says so when the nodes do not answer."""

    def __init__(
        self,
        extractive: ExtractiveSynthesizer,
        llm: LLMSynthesizer | ForeignSynthesizer | None = None,
        *,
        answer_threshold: float = 0.5,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._extractive = extractive
        self._llm = llm
        self._threshold = answer_threshold
        self._clock = clock

    def synthesize(
        self,
        query: str,
        nodes: Sequence[NodeWithScore],
        *,
        complexity: Complexity = Complexity.SIMPLE,
        language: str | None = None,
        evidence: Evidence | None = None,
        limits: Limits | None = None,
        index_of: IndexOf = None,
    ) -> Synthesis:
        """Answer a question from nodes."""
        task = self._task(query, nodes, complexity, language, evidence or Evidence(), index_of)
        return drained(self._answer(task, limits or Limits(), in_pieces=False))

    def stream(
        self,
        query: str,
        nodes: Sequence[NodeWithScore],
        *,
        complexity: Complexity = Complexity.SIMPLE,
        language: str | None = None,
        evidence: Evidence | None = None,
        limits: Limits | None = None,
        index_of: IndexOf = None,
    ) -> Generator[str, None, Synthesis]:
        """Answer piece by piece; arguments and result as :meth:`synthesize`."""
        task = self._task(query, nodes, complexity, language, evidence or Evidence(), index_of)
        return (yield from self._answer(task, limits or Limits(), in_pieces=True))

    def _task(
        self,
        query: str,
        nodes: Sequence[NodeWithScore],
        complexity: Complexity,
        language: str | None,
        evidence: Evidence,
        index_of: IndexOf,
    ) -> _Task:
        names: Mapping[str, str] = {} if index_of is None or callable(index_of) else index_of
        named = index_of if callable(index_of) else lambda node_id: names.get(node_id, "")
        language = language or detect_language(query)
        passages = assemble(nodes, max_chars=MAX_READ_CHARS)
        extraction = self._extractive.extract(
            query,
            passages,
            language=language,
            complexity=complexity,
            query_vector=evidence.query_vector,
            index_of=named,
        )
        return _Task(
            query=query,
            language=language,
            evidence=evidence,
            index_of=named,
            passages=passages,
            nodes=len(nodes),
            extraction=extraction,
            complexity=complexity,
        )

    def _answer(self, task: _Task, limits: Limits, *, in_pieces: bool) -> Generator[str, None, Synthesis]:
        done = self._without_model(task, limits)
        if done is not None or self._llm is None:
            done = done or _extracted(task)
            yield done.text
            return done
        most = MAX_PASSAGES[task.complexity] if limits.max_passages is None else limits.max_passages
        passages = assemble([p.node for p in task.passages], max_chars=limits.max_chars, max_passages=most)
        started = self._clock()
        try:
            answer = yield from self._llm.write(
                task.query,
                passages,
                language=task.language,
                timeout_s=limits.timeout_s,
                needs=TierNeeds(
                    complexity=task.complexity,
                    context_chars=sum(len(passage.text) for passage in passages),
                    force_cloud=limits.force_cloud,
                    budget=limits.budget,
                ),
                index_of=task.index_of,
                control=(limits.control or StreamControl()) if in_pieces else None,
            )
        except StreamBrokenError:
            raise
        except _FAILURES as err:
            usage = _usage_of_failure(self._llm.client, err)
            done = _extracted(task, failure=err, usage=usage, llm_ms=self._since(started))
            yield done.text
            return done
        done = _answered(task, answer, self._since(started))
        if done.tier is Tier.NONE:
            yield done.text
        return done

    def _without_model(self, task: _Task, limits: Limits) -> Synthesis | None:
        """Answer what needs no model: nothing found, or no model to ask."""
        extraction = task.extraction
        asks_model = self._llm is not None and limits.budget.may_ask
        if asks_model:
            score = task.score(coverage=extraction.reachable, support=1.0)
        else:
            score = task.score(coverage=extraction.coverage, support=extraction.support)
        if not is_answerable(extraction.text, score, threshold=self._threshold, asks_model=asks_model):
            return _nothing_found(task, score if extraction.text else 0.0)
        return None if asks_model else _extracted(task)

    def _since(self, started: float) -> float:
        return (self._clock() - started) * 1_000


# --- the ways in which synthesis ends: nothing found, an extract, or an answer by a model ----------------------------


def _nothing_found(
    task: _Task,
    score: float,
    reply: LLMReply | None = None,
    llm_ms: float = 0.0,
    checks: tuple[SentenceCheck, ...] = (),
) -> Synthesis:
    return Synthesis(
        text=not_found(task.language),
        tier=Tier.NONE,
        usage=Usage() if reply is None else Usage(reply.spent),
        confidence=Confidence.of(score),
        degraded=task.extraction.degraded,
        llm_ms=llm_ms,
        language=task.language,
        checks=checks,
        attempts=() if reply is None else reply.attempts,
    )


def _extracted(
    task: _Task, *, failure: Exception | None = None, usage: Usage | None = None, llm_ms: float = 0.0
) -> Synthesis:
    """Answer with the sentences that were found, the failure of the model noted where there was one."""
    found = task.extraction
    fallback = Degradation(step="synthesis.llm", reason=str(failure), fallback="extractive")
    attempts: tuple[Attempt, ...] = tuple(getattr(failure, "attempts", ()))
    return Synthesis(
        text=found.text,
        citations=found.citations,
        tier=Tier.EXTRACTIVE,
        usage=usage or Usage(),
        confidence=Confidence.of(task.score(coverage=found.coverage, support=found.support)),
        degraded=(*found.degraded, *((fallback,) if failure else ())),
        llm_ms=llm_ms,
        language=task.language,
        checks=quoted_checks(found.text, found.citations),
        attempts=attempts,
    )


def _answered(task: _Task, answer: LLMAnswer, llm_ms: float) -> Synthesis:
    """Put what a model answered together with what is known of it."""
    reply, cited = answer.reply, answer.cited
    if cited is None or not is_written(cited.text):
        checks = () if cited is None else cited.checks
        return _nothing_found(task, 0.0, reply, llm_ms, checks)  # below every threshold for answering
    quotes = "\n".join(f"{c.title}\n{c.section}\n{c.quote}" for c in cited.citations)
    covered = coverage(task.extraction.weights, frozenset(Tokenizer(task.language).tokens(quotes)))
    return Synthesis(
        text=cited.text,
        citations=cited.citations,
        tier=reply.tier,
        usage=Usage(reply.spent),
        confidence=Confidence.of(task.score(coverage=covered, support=cited.support)),
        degraded=(*task.extraction.degraded, *_degraded(reply)),
        llm_ms=llm_ms,
        language=task.language,
        nodes_left_out=task.nodes - answer.passages,
        checks=cited.checks,
        attempts=reply.attempts,
    )


def _degraded(reply: LLMReply) -> list[Degradation]:
    found: list[Degradation] = []
    failed = [attempt for attempt in reply.attempts if attempt.failure is not None]
    if failed:
        why, instead = "; ".join(map(str, failed)), f"{reply.tier.value} model {reply.model}"
        found.append(Degradation(step="synthesis.tier", reason=why, fallback=instead))
    if reply.truncated:
        why = "the answer was cut off: output limit, filter, or a stream without an end"
        found.append(Degradation(step="synthesis.llm", reason=why, fallback="truncated answer"))
    if reply.prompt_cut:
        why = "the server cut the prompt to its window"
        found.append(Degradation(step="synthesis.prompt", reason=why, fallback="what it read"))
    return found


def _usage_of_failure(client: ModelClient | ForeignModel, err: Exception) -> Usage:
    """Return the accounts of a call that brought nothing."""
    attempts = getattr(err, "attempts", None)
    if attempts is not None:
        return Usage(spent_on(attempts))
    if isinstance(err, BudgetExceededError):
        return Usage()
    lost = TierUsage(tier=client.tier, model=client.model, calls=1, prompt_tokens=0, completion_tokens=0, usd=0.0)
    return Usage.of([lost])
