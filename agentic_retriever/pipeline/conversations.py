"""What was said before a question: kept for those who name a conversation, and what a follow-up means in its light."""

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Final

from cachetools import TTLCache

from agentic_retriever import errors
from agentic_retriever.catalog.history import QueryLog
from agentic_retriever.embeddings import EmbeddingModel
from agentic_retriever.embeddings.model import embedding_time_s
from agentic_retriever.llm import ModelClient, TierNeeds, ask, containers, json_values
from agentic_retriever.llm.prompts import follow_up_prompt
from agentic_retriever.pipeline.spending import Spending
from agentic_retriever.schema import NO_LIMITS, Budget, Degradation, Turn
from agentic_retriever.understanding.follow_ups import Nearness, leans, stand_alone

logger = logging.getLogger(__name__)

MAX_TURNS: Final = 8  # the last of a conversation; what lies further back is forgotten
MAX_CONVERSATIONS: Final = 1_000  # at most 1,000 x 8 turns of 3 x 1,000 characters: 24 to 96 MB
MAX_AGE_S: Final = 4 * 3_600.0  # since the last turn
MAX_TURN_CHARS: Final = 1_000  # of a question, and of an answer
MAX_ID_CHARS: Final = 200  # of a conversation or a user
_MAX_REPLY: Final = 1_000  # longer ones are no question
_TOLD_TURNS: Final = 4  # how many a model reads
_LABEL: Final = re.compile(r"^\W{0,3}question\W{0,3}[:：]\s*", re.IGNORECASE)
_FIGURE: Final = re.compile(r"\d+")


def checked_turns(turns: object, conversation_id: object, user_id: object) -> tuple[Turn, ...]:
    """Return the turns if they, and whose they are, can be used."""
    for name, value in (("conversation_id", conversation_id), ("user_id", user_id)):
        if not isinstance(value, str) or len(value) > MAX_ID_CHARS:
            raise errors.InvalidQueryError(
                f"{name} must be a str of at most {MAX_ID_CHARS} characters, got {value!r:.60}"
            )
    if not isinstance(turns, (list, tuple)) or not all(isinstance(turn, Turn) for turn in turns):
        raise errors.InvalidQueryError(
            f"turns must be a list of Turn(query=..., answer=...), oldest first, got {turns!r:.60}"
        )
    return tuple(turns)


def turns_of(messages: Iterable[tuple[str, str, str]]) -> tuple[Turn, ...]:
    """Make turns of what user and assistant said in a chat: role, text, and what it was understood as."""
    turns: list[Turn] = []
    for role, text, understood_as in messages:
        if role == "user" and text.strip():
            turns.append(Turn(query=text, understood_as=understood_as))
        elif role == "assistant" and turns:
            turns[-1] = replace(turns[-1], answer=text)
    return tuple(turns[-MAX_TURNS:])


class Conversations:
    """The last turns of each user's conversations, in memory or else from the history; safe to use from any thread."""

    def __init__(self, timer: Callable[[], float], log: QueryLog | None = None) -> None:
        self._log = log
        self._turns: TTLCache[tuple[str, str], tuple[Turn, ...]] = TTLCache(MAX_CONVERSATIONS, MAX_AGE_S, timer=timer)
        self._lock = Lock()

    def turns(self, user_id: str, conversation_id: str) -> tuple[Turn, ...]:
        with self._lock:
            return self._turns.get((user_id, conversation_id), ())

    def add(self, turn: Turn, *, user_id: str, conversation_id: str) -> None:
        key = (user_id, conversation_id)
        with self._lock:
            self._turns[key] = (*self._turns.get(key, ()), _cut(turn))[-MAX_TURNS:]

    def kept(self, user_id: str, conversation_id: str) -> tuple[Turn, ...]:
        """Return what the history keeps of a conversation: nothing where it keeps no texts or cannot be read."""
        if self._log is None or not conversation_id:
            return ()
        try:
            entries = self._log.list(limit=MAX_TURNS, conversation_id=conversation_id, user_id=user_id)
        except errors.QueryLogError as err:
            logger.debug("the turns of a conversation cannot be read: %s", err)
            return ()
        told = [(one.query, one.answer_text, one.understood_as) for one in reversed(entries)]
        return tuple(_cut(Turn(query=a, answer=text, understood_as=meant)) for a, text, meant in told if text)


def _cut(turn: Turn) -> Turn:
    return Turn(**{name: text[:MAX_TURN_CHARS] for name, text in turn.to_dict().items()})


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a question means where it was asked."""

    query: str  # the same for a question that needs no other
    degraded: tuple[Degradation, ...] = ()


def meaning(
    asked: str,
    turns: Sequence[Turn],
    *,
    kept: Callable[[], Sequence[Turn]] = tuple,
    model: ModelClient | None = None,
    spending: Spending | None = None,
    near: Nearness | None = None,
) -> Meaning:
    """Understand a question in the light of earlier turns, here or ``kept`` elsewhere: by a model, else by rules."""
    if not leans(asked, turns[-1].query if turns else ""):  # few words tell no language, so that of the last one counts
        return Meaning(asked)
    turns = turns or kept()
    if not turns:
        reason = "the question names no subject, and there is no conversation to take one from"
        return Meaning(asked, (Degradation(step="conversation", reason=reason, fallback="its words alone"),))
    turns = turns[-_TOLD_TURNS:]
    lost: tuple[Degradation, ...] = ()
    allowance = NO_LIMITS if model is None or spending is None else spending.choosing("understanding the question")
    if model is not None and allowance.may_ask:
        try:
            return Meaning(_asked_of_model(asked, turns, model, allowance))
        except (errors.LLMError, errors.DeadlineExceededError) as err:
            lost = (Degradation(step="conversation.llm", reason=str(err), fallback="rules"),)
    return Meaning(stand_alone(asked, _last_question(turns, near), near=near), lost)


def _last_question(turns: Sequence[Turn], near: Nearness | None) -> str:
    """Return what was asked last, which may have been a follow-up itself."""
    last = ""
    for turn in turns:
        last = (turn.understood_as or stand_alone(turn.query[:MAX_TURN_CHARS], last, near=near))[:MAX_TURN_CHARS]
    return last


def _asked_of_model(asked: str, turns: Sequence[Turn], model: ModelClient, allowance: Budget) -> str:
    """Have a model write the question out; ``LLMOutputError`` where it wrote something else."""
    lines = [(turn.query[:MAX_TURN_CHARS], turn.answer[:MAX_TURN_CHARS]) for turn in turns]
    limited = allowance.max_usd is not None or allowance.max_llm_calls is not None
    needs = TierNeeds(budget=allowance) if limited else None
    reply = ask(model, lambda mark: follow_up_prompt(asked, lines, mark), timeout_s=allowance.timeout_s, needs=needs)
    written = read_question(reply.text)
    known = " ".join([asked, *(part for line in lines for part in line)])
    if not set(_FIGURE.findall(written)) <= set(_FIGURE.findall(known)):
        raise errors.LLMOutputError("the model put a figure into the question that nobody had said")
    return written


def read_question(text: str) -> str:
    """Read the question that a model was asked for: the value in JSON, else the one line that it wrote."""
    found = next((one for one in containers(json_values(text)) if isinstance(one, dict)), None)
    question = text if found is None else found.get("question")
    lines = question.strip().splitlines() if isinstance(question, str) else []
    cut_off = found is None and text.lstrip()[:1] in {"{", "[", "`"}
    if cut_off or len(lines) != 1 or not any(map(str.isalnum, lines[0])) or len(lines[0]) > _MAX_REPLY:
        raise errors.LLMOutputError(f"the model wrote no question ({len(text):,} characters)")
    return _LABEL.sub("", lines[0]).strip().strip('"“”')


def nearness(embedding: Callable[[], EmbeddingModel], spending: Spending) -> Nearness:
    """Return what tells how near texts are to another one; nothing where no model does."""

    def near(text: str, others: Sequence[str]) -> Sequence[float]:
        try:
            model = embedding()
            limit = embedding_time_s(spending.left_s("understanding the question"), model)
            vectors = model.embed_sentences([text, *others], timeout_s=limit)
        except errors.AgenticRetrieverError as err:
            logger.debug("phrases cannot be compared: %s", err)
            return ()
        return [float(one) for one in vectors[1:] @ vectors[0]]

    return near
