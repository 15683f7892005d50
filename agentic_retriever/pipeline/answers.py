"""Answers on their way to a caller: from the cache, in bytes for a shared one, piece by piece, for LlamaIndex."""

import contextvars
import json
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from llama_index.core.base.response.schema import Response
from llama_index.core.schema import ImageNode, IndexNode, NodeWithScore, TextNode
from pydantic import JsonValue, TypeAdapter, ValidationError

from agentic_retriever.cache import WarmOutcome
from agentic_retriever.errors import AgenticRetrieverError
from agentic_retriever.llm.calls import AsyncPieces, Pieces
from agentic_retriever.retrievers.base import RetrievedNode, details, prepared_copies
from agentic_retriever.schema import Answer, RouteDecision, Selection, StrategyCard, Tier
from agentic_retriever.show import drawn_by, shortened, signals_text
from agentic_retriever.synthesis import StreamControl

MAX_CHARS: Final = 2_000_000  # with more text than this in its nodes an answer is not kept: 500 must fit in the memory
FORMAT: Final = 3  # changes when answers of before can no longer be read; they then count as not there

_NODE_CLASSES: dict[str, type[TextNode]] = {kind.class_name(): kind for kind in (TextNode, IndexNode, ImageNode)}
_JSON: TypeAdapter[JsonValue] = TypeAdapter(JsonValue)


# In the answer cache: copied for each caller, so that what one does with them reaches nobody else.


def worth_keeping(answer: Answer) -> bool:
    """Keep what would be answered alike next time: nothing degraded, found out of bounds, or huge."""
    if answer.degraded or answer.tier is Tier.NONE:
        return False
    return sum(len(getattr(scored.node, "text", "")) for scored in answer.nodes) <= MAX_CHARS


def warm_outcome(answer: Answer) -> WarmOutcome:
    """Tell what became of an answer that was asked for beforehand."""
    if answer.cached:
        return "cached"
    return "stored" if worth_keeping(answer) else "not_kept"


def prepared_answer(answer: Answer) -> Callable[[], Answer]:
    """Return what copies an answer of the cache, so that it stays as it was."""
    bare, copies = replace(answer, nodes=()), prepared_copies(answer.nodes)
    return lambda: replace(bare, nodes=copies())


# In bytes: whole, nodes with their texts and metadata, the decision and everything that was spent


def encoded(value: Answer) -> bytes:
    """Write an answer as JSON; ``decoded(encoded(answer))`` equals the answer."""
    row = {
        "format": FORMAT,
        **value.to_dict(),
        # Two models of one tier are one in the totals of an answer, and two here.
        "usage": {"tiers": [usage.to_dict() for usage in value.usage.tiers]},
        "nodes": [_node_row(node) for node in value.nodes],
    }
    try:
        text = json.dumps(row, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode("utf-8")
    except UnicodeEncodeError:  # a lone surrogate has no UTF-8, and JSON's escapes have a form for it
        return json.dumps(row, allow_nan=False, separators=(",", ":")).encode("ascii")
    except (TypeError, RecursionError) as err:
        raise ValueError(f"the answer has no JSON form ({type(err).__name__})") from err


def decoded(data: bytes) -> Answer:
    """Read an answer again; ``ValueError`` for other bytes."""
    try:
        row = json.loads(data)
        if row["format"] != FORMAT:
            raise ValueError(f"the answer has format {str(row['format'])[:20]!r}, this version reads {FORMAT}")
        return replace(Answer.from_dict(row), nodes=tuple(map(_node_of_row, row["nodes"])))
    except (LookupError, TypeError, AttributeError, RecursionError, ValidationError, AgenticRetrieverError) as err:
        raise ValueError(f"these bytes are no answer ({type(err).__name__})") from err


def _node_row(scored: NodeWithScore) -> dict[str, Any]:
    node = scored.node
    kind = node.class_name()
    if _NODE_CLASSES.get(kind) is not type(node) or node.__dict__.get("obj") is not None:
        raise ValueError(f"a {type(node).__name__} of another class, or that carries an object, has no JSON form here")
    # mode="python" keeps what JSON has no word for, so that it is refused instead of quietly becoming something else.
    content = node.model_dump(mode="python", exclude_defaults=True, exclude={"id_"})
    row = {"class": kind, "id": node.node_id, "score": scored.score, "details": details(scored), "node": content}
    try:
        _JSON.validate_python(row)
    except ValidationError as err:
        raise ValueError(f"something in a node has no JSON form: {err.errors(include_url=False)[0]['msg']}") from err
    return row


def _node_of_row(row: Mapping[str, Any]) -> NodeWithScore:
    kind = _NODE_CLASSES[row["class"]]  # only these classes are made from what a shared store holds
    content = {name: value for name, value in row["node"].items() if name != "class_name"}
    node = kind(**{**content, "id_": row["id"]})
    return RetrievedNode(node=node, score=row["score"], details=row["details"])


# Piece by piece


class AnswerStream(Pieces):
    """The pieces of an answer as they come; should the whole ``answer`` differ, that one counts.

    Routing and retrieval happen when the first piece is wanted. A stream that is closed, left by ``with`` or forgotten
    ends its model call at once.

    Example:
        >>> with router.stream("How many days of leave do I have?") as stream:
        ...     for piece in stream:
        ...         print(piece, end="")
    """

    def __init__(self, run: Callable[[StreamControl], Generator[str, None, Answer]]) -> None:
        self.answer: Answer | None = None
        self._control = StreamControl()
        self._pieces = run(self._control)
        # The spans of the query are active in here, and never in the code of the reader.
        self._context = contextvars.copy_context()

    def __next__(self) -> str:
        if self._control.cancelled:
            raise StopIteration
        try:
            piece = self._context.run(next, self._pieces)
        except StopIteration as end:
            if end.value is not None:
                self.answer = end.value
            raise StopIteration from None
        self.text += piece
        return piece

    @property
    def nodes(self) -> Sequence[NodeWithScore]:
        """What was retrieved, best first; empty before the first piece."""
        return self._control.nodes

    @property
    def route(self) -> RouteDecision | None:
        """The decision; ``None`` before the first piece."""
        return self._control.route

    def finish(self) -> Answer | None:
        """Read the rest and return the finished answer; ``None`` if the stream was closed before."""
        for _ in self:
            pass
        return self.answer

    def close(self) -> None:
        self._control.cancel()
        with suppress(RuntimeError, ValueError):  # another thread waits in it, and has just been woken
            self._context.run(self._pieces.close)


class AsyncAnswerStream(AsyncPieces):
    """The twin of :class:`AnswerStream` for ``async for`` and ``async with``; the event loop is never blocked."""

    _stream: AnswerStream

    @property
    def answer(self) -> Answer | None:
        return self._stream.answer

    @property
    def nodes(self) -> Sequence[NodeWithScore]:
        return self._stream.nodes

    @property
    def route(self) -> RouteDecision | None:
        return self._stream.route


# As LlamaIndex passes them on


def as_response(answer: Answer) -> Response:
    return Response(response=answer.text, source_nodes=source_nodes(answer), metadata=response_metadata(answer))


def source_nodes(answer: Answer) -> list[NodeWithScore]:
    """Return the nodes that an answer may stand on: none where it says that nothing was found."""
    return [] if answer.tier is Tier.NONE else list(answer.nodes)


def response_metadata(answer: Answer) -> dict[str, Any]:
    """Return all of an answer but text and nodes: ``route``, ``citations``, ``confidence``, ``tier``, ``usage``, ..."""
    return {name: value for name, value in answer.to_dict().items() if name not in {"text", "nodes"}}


# A decision as a person wants to read it

_MAX_ROWS: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a question goes where it goes; ``print`` it, or show it in Jupyter."""

    decision: RouteDecision
    cards: tuple[StrategyCard, ...] = ()

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        question = f"Question: {shortened(self.decision.query, 200)}"
        meant = self.decision.understood_as
        understood = [f"Understood as: {shortened(meant, 200)}"] if meant else []
        return [question, *understood, *self._index(), *self._strategy(), *self._nature(), *self._costs()]

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types: the record, the cards, and the text."""
        shown = ("description", "cost", "typical_ms", "quality", "measured")
        cards = [
            {"strategy": card.strategy.value, **{name: getattr(card, name) for name in shown}} for card in self.cards
        ]
        return {"decision": self.decision.to_dict(), "cards": cards, "text": self.lines()}

    _repr_html_, _repr_pretty_ = drawn_by("text.html", "text")

    def _index(self) -> Iterator[str]:
        stage = self.decision.index
        yield f"Index: {', '.join(stage.names)} ({_how(stage)})"
        if stage.abstained:
            yield "  out of scope: nothing in the indexes seems to be about this"
        yield f"  {stage.reason}"
        if len(stage.scores) > 1:
            for name, score in list(stage.scores.items())[:_MAX_ROWS]:
                kinds = [f"{kind} {value:.2f}" for kind, value in stage.evidence.get(name, {}).items()]
                yield "  ".join([f"    {score:.3f}", name, *kinds])
            if len(stage.scores) > _MAX_ROWS:
                yield f"    and {len(stage.scores) - _MAX_ROWS} more"

    def _strategy(self) -> Iterator[str]:
        stage = self.decision.strategy
        yield f"Strategy: {stage.name} ({_how(stage)})"
        yield f"  {stage.reason}"
        known = {card.strategy.value: card for card in self.cards}
        if len(stage.scores) > 1:
            for name, score in stage.scores.items():
                card = known.get(name)
                quality = "" if card is None or card.quality is None else f"  measured nDCG@10 {card.quality:.3f}"
                time = "" if card is None else f"  {card.typical_ms:.0f} ms{' measured' if card.measured else ''}"
                yield f"    {score:.3f}  {name}{quality}{time}"
        for name, why in self.decision.withheld.items():
            yield f"    not offered: {name}: {why}"

    def _nature(self) -> Iterator[str]:
        decision = self.decision
        because = f": {', '.join(decision.complexity_reasons)}" if decision.complexity_reasons else ""
        yield f"Complexity: {decision.complexity.value}, {decision.complexity_score:.2f}{because}"
        signals = signals_text(decision.features)
        if signals:
            yield f"Signals: {signals}"

    def _costs(self) -> Iterator[str]:
        for lost in self.decision.degraded:
            yield f"Fell back: {lost.step} to {lost.fallback}: {lost.reason}"
        usage = self.decision.usage
        if usage.llm_calls:
            tokens = sum(one.prompt_tokens + one.completion_tokens for one in usage.tiers)
            yield f"Spent: {usage.llm_calls} model calls, {tokens:,} tokens, {usage.usd:.5f} USD"
        times = ", ".join(f"{name} {ms:.1f}" for name, ms in self.decision.timings_ms.items())
        if times:
            yield f"Milliseconds: {times}"


def _how(stage: Selection) -> str:
    asked = ", the model was asked" if stage.escalated else ""
    return f"{stage.mode}{asked}, probability {stage.confidence:.2f}, margin {stage.margin:.2f}"
