"""From nodes to an answer that can be checked, or an honest "not found"."""

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypedDict

from llama_index.core.response_synthesizers import BaseSynthesizer
from llama_index.core.schema import NodeWithScore, QueryBundle
from typing_extensions import Unpack

from agentic_retriever import errors
from agentic_retriever.embeddings.model import embedding_time_s
from agentic_retriever.llm import calls
from agentic_retriever.llm.client import MAX_ANSWER_TOKENS
from agentic_retriever.llm.prompts import NO_ANSWER, answer_prompt
from agentic_retriever.llm.replies import OPEN_TAG, SpokenText, without_thoughts
from agentic_retriever.schema import Complexity, Confidence, Degradation, Tier, Usage
from agentic_retriever.synthesis import context
from agentic_retriever.synthesis.checking import CitationChecker, CitedText, Unsupported
from agentic_retriever.synthesis.citations import quoted_checks, read_markers
from agentic_retriever.synthesis.evidence import Figures, default_models, figures_of, supported_share
from agentic_retriever.synthesis.extractive import Extraction, ExtractiveSynthesizer
from agentic_retriever.text import detect_language, split_sentences
from agentic_retriever.text.language_files import section
from agentic_retriever.threads import DeadlineCaller, guarded

# --- an answer by a model, with every citation looked up in the passage that it names -------------------------------

MAX_ANSWER_CHARS: Final = 10_000  # longer answers are cut, and say so
_DEFAULT_S: Final = 60.0
_BLANK: Final = "Empty Response"  # what LlamaIndex says when its model said nothing
_COUNTED: Final = re.compile(r"^Response \d+: ", re.MULTILINE)  # what it writes before each of several
_NO_ANSWER: Final = re.compile(rf"[\W_]*{NO_ANSWER.replace('_', '[ _]')}\b", re.IGNORECASE)
_SETTLED_CHARS: Final = 12
_OPEN_MARKER: Final = re.compile(r"\s*[\[【［〔].*\Z", re.DOTALL)
_SQUEEZED: Final = re.compile(r"[\W_]+")
_REFUSAL: Final = _SQUEEZED.sub("", NO_ANSWER).casefold()


@dataclass(frozen=True, slots=True, kw_only=True)
class LLMAnswer:
    cited: CitedText | None  # None where it said that the passages do not answer
    reply: calls.LLMReply
    passages: int


Passages = Sequence[context.ContextPassage]
# One question ready for a model: the passages that it reads, and how to have its reply at once or in pieces.
_Ask = tuple[Passages, Callable[[], calls.LLMReply], Callable[[], calls.ReplyStream] | None]


class _Writer(ABC):
    """Has a model write a cited answer and checks what comes back; one call an answer."""

    def __init__(self, unsupported: Unsupported) -> None:
        self._unsupported = unsupported

    @abstractmethod
    def _ask(
        self, query: str, passages: Passages, language: str, timeout_s: float | None, needs: calls.TierNeeds | None
    ) -> _Ask: ...

    def write(
        self,
        query: str,
        passages: Passages,
        *,
        language: str = "und",
        timeout_s: float | None = None,
        needs: calls.TierNeeds | None = None,
        index_of: Mapping[str, str] = context.NO_INDEXES,
        control: context.StreamControl | None = None,
    ) -> Generator[str, None, LLMAnswer]:
        """Answer a question from passages: piece by piece where the model can and ``control`` is given to end it."""
        read, whole, streamed = self._ask(query, passages, language, timeout_s, needs)
        policy = self._unsupported
        make = partial(CitationChecker, read, language=language, index_of=index_of, unsupported=policy)
        checker = make()
        shown = StreamedText(checker, len(read), whole_sentences=policy == "drop")
        if control is not None and streamed is not None:
            reply = yield from _shown(streamed(), shown, control)
            checker = make()  # the whole is read anew, as it is without a stream
        else:
            reply = whole()
        answer = _read_answer(reply, checker.finish, len(read))
        rest = shown.finish(answer.cited.text) if answer.cited is not None else ""
        if rest:
            yield rest
        return answer


class LLMSynthesizer(_Writer):
    def __init__(
        self,
        client: calls.ModelClient,
        *,
        boundary: Callable[[], str] = calls.random_boundary,
        unsupported: Unsupported = "flag",
    ) -> None:
        super().__init__(unsupported)
        self.client = client
        self._boundary = boundary

    def _ask(
        self, query: str, passages: Passages, language: str, timeout_s: float | None, needs: calls.TierNeeds | None
    ) -> _Ask:
        client = self.client
        room = client.context_tokens - MAX_ANSWER_TOKENS
        # As many passages, best first, as the models' window holds beside the answer.
        for count in range(len(passages), -1, -1):
            given = passages[:count]
            rows = [(p.number, p.header, p.shown) for p in given]
            prompt = calls.framed(partial(answer_prompt, query, rows, language), self._boundary)
            if count <= 1 or calls.estimate_tokens(prompt) <= room:
                break
        whole = partial(client.complete, prompt, timeout_s=timeout_s, needs=needs)
        if isinstance(client, calls.StreamsReplies):
            return given, whole, partial(client.stream, prompt, timeout_s=timeout_s, needs=needs)
        return given, whole, None


class ForeignModel:
    tier = Tier.PRIMARY

    def __init__(self, synthesizer: BaseSynthesizer) -> None:
        metadata = getattr(getattr(synthesizer, "_llm", None), "metadata", None)
        name = getattr(metadata, "model_name", None) or "unknown"
        self.model = f"{type(synthesizer).__name__}:{name}"


class ForeignSynthesizer(_Writer):
    """Lets a LlamaIndex response synthesizer write the answers.

    It reads the passages numbered ``[1]``, ``[2]`` and so on, so that its model may cite them. Its call counts as one
    of one model with tokens that are estimated and a price that is not known. A streamed answer comes as one piece.
    """

    def __init__(self, synthesizer: BaseSynthesizer, *, unsupported: Unsupported = "flag") -> None:
        super().__init__(unsupported)
        self.client = ForeignModel(synthesizer)
        self._synthesizer = synthesizer
        self._caller = DeadlineCaller(f"the response synthesizer {type(synthesizer).__name__}", max_calls=32)

    def _ask(
        self, query: str, passages: Passages, language: str, timeout_s: float | None, needs: calls.TierNeeds | None
    ) -> _Ask:
        del language  # its own prompt says in which one to write
        if needs is not None and needs.budget.max_usd is not None:
            raise errors.BudgetExceededError(f"what {self.client.model} costs is not known: a budget in USD forbids it")
        timeout_s = _DEFAULT_S if timeout_s is None else timeout_s
        return passages, partial(self._reply, query, passages, timeout_s), None

    def _reply(self, query: str, passages: Passages, timeout_s: float) -> calls.LLMReply:
        nodes = [_numbered(passage) for passage in passages]

        def write() -> str:
            response = self._synthesizer.synthesize(QueryBundle(query), nodes)
            text = "" if getattr(response, "response", "") is None else str(response)  # reads a stream to its end
            return "" if text.strip() == _BLANK else _COUNTED.sub("", text)

        started = time.monotonic()
        text = guarded(self._caller.what, partial(self._caller.call, write, timeout_s), error=errors.SynthesisError)
        return calls.LLMReply(
            text=text,
            model=self.client.model,
            tier=self.client.tier,
            prompt_tokens=sum(calls.estimate_tokens(passage.text) for passage in passages)
            + calls.estimate_tokens(query),
            completion_tokens=calls.estimate_tokens(text),
            truncated=False,
            seconds=time.monotonic() - started,
        )


def _numbered(passage: context.ContextPassage) -> NodeWithScore:
    """Return a copy of the passage's node that shows a model its number and header, and no other metadata."""
    node = passage.node.node.model_copy()
    node.metadata = dict(node.metadata)
    node.excluded_llm_metadata_keys = list(node.metadata)
    node.set_content(
        "\n".join(part for part in (f"[{passage.number}] {passage.header}".strip(), passage.shown) if part)
    )
    return NodeWithScore(node=node, score=passage.node.score)


def _read_answer(reply: calls.LLMReply, check: Callable[[str], CitedText], passages: int) -> LLMAnswer:
    text = without_thoughts(reply.text)
    if not text:
        raise errors.LLMOutputError(f"{reply.tier.value} model {reply.model}: the reply is blank; take another model")
    if _NO_ANSWER.match(text):
        return LLMAnswer(cited=None, reply=reply, passages=passages)
    if len(text) > MAX_ANSWER_CHARS:
        text, reply = text[:MAX_ANSWER_CHARS], replace(reply, truncated=True)
    return LLMAnswer(cited=check(text), reply=reply, passages=passages)


def _shown(
    stream: calls.ReplyStream, shown: "StreamedText", control: context.StreamControl
) -> Generator[str, None, calls.LLMReply]:
    with stream as pieces:
        control.watch(pieces)
        try:
            for piece in pieces:
                if more := shown.feed(piece):
                    yield more
                if shown.full:
                    pieces.cut()
        except errors.StreamBrokenError as err:
            if shown.shown:
                raise
            # Only thoughts came so far, so that another way to answer can still be taken.
            raise errors.LLMOutputError(str(err)) from err
        if pieces.reply is None:
            raise errors.LLMOutputError("the stream was closed before its end; ask again")
        return pieces.reply


class StreamedText:
    """Turns the pieces that a model writes into pieces to show: no thoughts, and the citations behind each sentence.

    Joined, they are the beginning of the finished text; if what follows changes its sentences, nothing more is shown.
    """

    def __init__(self, checker: CitationChecker, known: int, *, whole_sentences: bool = False) -> None:
        self._checker = checker
        self._known = known
        self._whole = whole_sentences
        self._spoken = SpokenText()
        self._text = ""
        self._at = 0  # where in the text the sentence begins that is being written
        self.shown = ""

    @property
    def full(self) -> bool:
        return len(self._text) >= MAX_ANSWER_CHARS

    def feed(self, piece: str) -> str:
        self._spoken.feed(piece)
        self._text = self._spoken.text.lstrip()[:MAX_ANSWER_CHARS]
        begun = _SQUEEZED.sub("", self._text[:40]).casefold()
        if begun.startswith(_REFUSAL) or _REFUSAL.startswith(begun):  # is, or may become, the word for "no answer"
            return ""
        rest = OPEN_TAG.sub("", self._text[self._at :]).rstrip()
        rest = _OPEN_MARKER.sub("", rest) if rest.count("[") > rest.count("]") else rest
        clean, marks = read_markers(rest, self._known)
        sentences = split_sentences(clean)
        if not sentences:
            return ""
        last = sentences[-1].text
        if len(sentences) > 1:
            # The words that a sentence begins with may yet join it to the one before; so may its marker.
            settled = len(last) > _SETTLED_CHARS and not (marks and marks[-1].position > sentences[-1].start)
            if not settled or not rest.endswith(last):
                last = sentences[0].text
            else:
                self._checker.add(rest[: -len(last)])
                self._at += len(rest) - len(last)
        return self.finish(self._checker.preview("").rstrip() if self._whole else self._checker.preview(last))

    def finish(self, final: str) -> str:
        if not final.startswith(self.shown):
            return ""
        more = final[len(self.shown) :]
        self.shown = final
        return more


# --- what stands around it: nothing is found, an extract answers, or a model ----------------------------------------

MAX_READ_CHARS: Final = 200_000  # most text that the extractor reads; lower-ranked nodes are left out
_DOUBTED: Final = 0.5  # confidence below which an answer without a supported sentence is none
_DOUBTFUL: Final = 0.5  # of the probability from which there is an answer
_FAILURES: Final = (errors.LLMError, errors.DeadlineExceededError, errors.SynthesisError)


class Asked(TypedDict, total=False):
    """What may be said of a question beside its nodes."""

    complexity: Complexity
    language: str | None  # ISO 639-1; without it, the one that is detected
    evidence: context.Evidence | None
    limits: context.Limits | None
    index_of: Mapping[str, str]  # The name of the index of each node, by the id of the node


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    query: str
    language: str
    limits: context.Limits
    evidence: context.Evidence
    index_of: Mapping[str, str]
    passages: tuple[context.ContextPassage, ...]
    nodes: int
    extraction: Extraction
    complexity: Complexity
    answered: float  # The probability that the nodes have an answer
    declined: bool
    extract_confidence: Confidence


def _confidence(figures: Figures, support: float) -> Confidence:
    models = default_models()
    return Confidence.of(supported_share(models.right.probability(figures), support), high_from=models.high_from)


class Synthesizer:
    """Answers by a model where there is one, else by extraction, and says so when the nodes do not answer."""

    def __init__(
        self,
        extractive: ExtractiveSynthesizer,
        llm: LLMSynthesizer | ForeignSynthesizer | None = None,
        *,
        answered_from: float | None = None,
    ) -> None:
        self._extractive = extractive
        self._llm = llm
        self._answered_from = default_models().answered_from if answered_from is None else answered_from

    def synthesize(self, query: str, nodes: Sequence[NodeWithScore], **asked: Unpack[Asked]) -> context.Synthesis:
        return calls.result_of(self.write(self.read(query, nodes, **asked), in_pieces=False))

    def read(self, query: str, nodes: Sequence[NodeWithScore], **asked: Unpack[Asked]) -> Task:
        """Read the nodes and tell whether they answer."""
        limits = asked.get("limits") or context.Limits()
        ends = None if limits.timeout_s is None else time.monotonic() + limits.timeout_s
        index_of, evidence = asked.get("index_of", context.NO_INDEXES), asked.get("evidence") or context.Evidence()
        language = asked.get("language") or detect_language(query)
        complexity = asked.get("complexity", Complexity.SIMPLE)
        passages = context.assemble(nodes, max_chars=MAX_READ_CHARS)
        named = [passage for passage in passages if passage.node_id in evidence.looked_up]
        extraction = self._extractive.extract(
            evidence.left_of(query),
            named or passages,
            language=language,
            complexity=complexity,
            query_vector=evidence.query_vector,
            index_of=index_of,
            timeout_s=limits.timeout_s and embedding_time_s(limits.timeout_s),
        )
        figures = figures_of(query, passages, extraction.citations, evidence)
        score = default_models().answered.probability(figures) if extraction.text else 0.0
        # A model sees for itself whether there is an answer; and words alone, without cosines, say little.
        doubtful = _DOUBTFUL if (self._llm is not None and limits.budget.may_ask) or figures.get("unseen") else 1.0
        return Task(
            query=query,
            language=language,
            limits=replace(limits, timeout_s=None if ends is None else max(0.0, ends - time.monotonic())),
            evidence=evidence,
            index_of=index_of,
            passages=passages,
            nodes=len(nodes),
            extraction=extraction,
            complexity=complexity,
            answered=score,
            declined=not extraction.text or (score < self._answered_from * doubtful and not evidence.looked_up),
            extract_confidence=_confidence(figures, extraction.support),
        )

    def write(self, task: Task, *, in_pieces: bool) -> Generator[str, None, context.Synthesis]:
        """Write an answer; the same in pieces as in one."""
        llm = self._llm if task.limits.budget.may_ask else None
        if task.declined:
            done = _nothing_found(task, task.answered)
        elif llm is None:
            done = _extracted(task)
        else:
            return (yield from self._ask_model(task, llm, in_pieces=in_pieces))
        yield done.text
        return done

    def _ask_model(
        self, task: Task, llm: LLMSynthesizer | ForeignSynthesizer, *, in_pieces: bool
    ) -> Generator[str, None, context.Synthesis]:
        limits = task.limits
        most = context.MAX_PASSAGES[task.complexity] if limits.max_passages is None else limits.max_passages
        # The passage that answers best comes first: what does not fit is left out from the end.
        first = dict.fromkeys(task.extraction.ranking)
        nodes = [task.passages[number - 1].node for number in {**first, **{p.number: None for p in task.passages}}]
        passages = context.assemble(nodes, max_chars=limits.max_chars, max_passages=most)
        needs = calls.TierNeeds(
            complexity=task.complexity,
            context_chars=sum(len(passage.text) for passage in passages),
            force_cloud=limits.force_cloud,
            budget=limits.budget,
        )
        started = time.monotonic()
        try:
            answer = yield from llm.write(
                task.query,
                passages,
                language=task.language,
                timeout_s=limits.timeout_s,
                needs=needs,
                index_of=task.index_of,
                control=(limits.control or context.StreamControl()) if in_pieces else None,
            )
        except errors.StreamBrokenError:
            raise
        except _FAILURES as err:
            spent = calls.spent_on_failure(llm.client.tier, llm.client.model, err)
            done = replace(_extracted(task, err), usage=Usage(spent))
        else:
            done = _answered(task, answer)
        done = replace(done, llm_ms=(time.monotonic() - started) * 1_000)
        if done.tier in {Tier.NONE, Tier.EXTRACTIVE}:
            # Behind words that were shown before they were found wanting.
            yield f"\n\n{done.text}" if in_pieces and done.tier is Tier.NONE and done.checks else done.text
        return done


def _nothing_found(task: Task, score: float) -> context.Synthesis:
    texts = section("not_found")
    return context.Synthesis(
        text=texts.get(task.language, texts["en"]),
        tier=Tier.NONE,
        confidence=Confidence.of(score, answered=False),
        degraded=task.extraction.degraded,
        language=task.language,
    )


def _extracted(task: Task, failure: Exception | None = None) -> context.Synthesis:
    """Answer with the sentences that were found, the failure of the model noted where there was one."""
    found = task.extraction
    fallback = Degradation(step="synthesis.llm", reason=str(failure), fallback="extractive")
    return context.Synthesis(
        text=found.text,
        citations=found.citations,
        tier=Tier.EXTRACTIVE,
        confidence=task.extract_confidence,
        degraded=(*found.degraded, *((fallback,) if failure else ())),
        language=task.language,
        checks=quoted_checks(found.text, found.citations),
        attempts=tuple(getattr(failure, "attempts", ())),
    )


def _answered(task: Task, answer: LLMAnswer) -> context.Synthesis:
    reply, cited = answer.reply, answer.cited
    has_text = cited is not None and bool(cited.text)
    confidence = Confidence.of(0.0)
    if cited is not None and has_text:
        figures = figures_of(task.query, task.passages, cited.citations, task.evidence)
        confidence = _confidence(figures, cited.support)
    if cited is None or (confidence.score < _DOUBTED and not any(check.supported for check in cited.checks)):
        checks = () if cited is None else cited.checks
        nothing = _nothing_found(task, confidence.score)
        return replace(nothing, usage=Usage(reply.spent), checks=checks, attempts=reply.attempts)
    return context.Synthesis(
        text=cited.text,
        citations=cited.citations,
        tier=reply.tier,
        usage=Usage(reply.spent),
        confidence=confidence,
        degraded=(*task.extraction.degraded, *_degraded(reply)),
        language=task.language,
        nodes_left_out=task.nodes - answer.passages,
        checks=cited.checks,
        attempts=reply.attempts,
    )


def _degraded(reply: calls.LLMReply) -> list[Degradation]:
    failed = "; ".join(str(attempt) for attempt in reply.attempts if attempt.failure is not None)
    cut = "the answer was cut off: output limit, filter, or a stream without an end"
    window = "the server cut the prompt to its window"
    writer = f"{reply.tier.value} model {reply.model}"
    rules = (
        (failed, Degradation(step="synthesis.tier", reason=failed, fallback=writer)),
        (reply.truncated, Degradation(step="synthesis.llm", reason=cut, fallback="truncated answer")),
        (reply.prompt_cut, Degradation(step="synthesis.prompt", reason=window, fallback="what it read")),
    )
    return [lost for holds, lost in rules if holds]
