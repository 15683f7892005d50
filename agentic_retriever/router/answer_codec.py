"""Answers as JSON and back, whole: nodes with their texts and metadata, the decision and everything that was spent."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from llama_index.core.schema import ImageNode, IndexNode, NodeWithScore, TextNode

from agentic_retriever.errors import AgenticRetrieverError
from agentic_retriever.router.kept_nodes import kept
from agentic_retriever.schema import (
    Answer,
    Attempt,
    Citation,
    Confidence,
    ConfidenceLevel,
    Degradation,
    RouteDecision,
    SentenceCheck,
    Strategy,
    Tier,
    TierUsage,
    Tried,
    Usage,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT = 1
"""Changes when answers of before can no longer be read."""

#: Only these classes are made from what a shared store holds.
_NODE_CLASSES: dict[str, type[TextNode]] = {kind.class_name(): kind for kind in (TextNode, IndexNode, ImageNode)}


class AnswerCodec:
    """Writes and reads answers; ``decode(encode(answer))`` equals the answer."""

    def encode(self, value: Answer) -> bytes:
        """Write an answer as JSON in UTF-8.

        Args:
            value: The answer.

        Raises:
            ValueError: If a node holds something that JSON cannot, such as NaN or an object in its metadata.
        """
        row = {
            "format": FORMAT,
            "text": value.text,
            "citations": [citation.to_dict() for citation in value.citations],
            "confidence": [value.confidence.score, value.confidence.level.value],
            "route": value.route.to_dict(),
            "nodes": [_written(node) for node in value.nodes],
            "usage": [usage.to_dict() for usage in value.usage.tiers],
            "timings_ms": dict(value.timings_ms),
            "tier": value.tier.value,
            "cached": value.cached,
            "degraded": [lost.to_dict() for lost in value.degraded],
            "query_id": value.query_id,
            "understood": list(value.understood),
            "tried": [one.to_dict() for one in value.tried],
            "attempts": [attempt.to_dict() for attempt in value.attempts],
            "nodes_left_out": value.nodes_left_out,
            "checks": [check.to_dict() for check in value.checks],
        }
        try:
            text = json.dumps(row, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            return text.encode("utf-8")
        except UnicodeEncodeError:  # a lone surrogate has no UTF-8, and JSON's escapes have a form for it
            return json.dumps(row, allow_nan=False, separators=(",", ":")).encode("ascii")
        except (TypeError, RecursionError) as err:
            message = f"the answer has no JSON form ({type(err).__name__})"
            raise ValueError(message) from err

    def decode(self, data: bytes) -> Answer:
        """Read an answer again.

        Args:
            data: What :meth:`encode` wrote.

        Raises:
            ValueError: If these bytes are no answer of this format.
        """
        try:
            row = json.loads(data)
            if row["format"] != FORMAT:
                message = f"the answer has format {str(row['format'])[:20]!r}, this version reads {FORMAT}"
                raise ValueError(message)
            return _answer(row)
        except (LookupError, TypeError, AttributeError, RecursionError, AgenticRetrieverError) as err:
            message = f"these bytes are no answer ({type(err).__name__})"
            raise ValueError(message) from err


def _answer(row: Mapping[str, Any]) -> Answer:
    score, level = row["confidence"]
    return Answer(
        text=_text(row["text"]),
        citations=tuple(Citation(**citation) for citation in row["citations"]),
        confidence=Confidence(float(score), ConfidenceLevel(level)),
        route=RouteDecision.from_dict(row["route"]),
        nodes=kept(_node(node) for node in row["nodes"]),
        usage=Usage(tuple(TierUsage.from_dict(usage) for usage in row["usage"])),
        timings_ms={str(name): float(value) for name, value in row["timings_ms"].items()},
        tier=Tier(row["tier"]),
        cached=bool(row["cached"]),
        degraded=tuple(Degradation.from_dict(lost) for lost in row["degraded"]),
        query_id=_text(row["query_id"]),
        understood=tuple(_text(line) for line in row["understood"]),
        tried=tuple(_tried(one) for one in row["tried"]),
        checks=tuple(SentenceCheck.from_dict(check) for check in row["checks"]),
        attempts=tuple(Attempt.from_dict(attempt) for attempt in row["attempts"]),
        nodes_left_out=int(row["nodes_left_out"]),
    )


def _tried(row: Mapping[str, Any]) -> Tried:
    confidence = row["confidence"]
    return Tried(
        strategy=Strategy(row["strategy"]),
        confidence=None if confidence is None else float(confidence),
        nodes=int(row["nodes"]),
        ms=float(row["ms"]),
    )


def _written(scored: NodeWithScore) -> dict[str, Any]:
    node = scored.node
    kind = node.class_name()
    if _NODE_CLASSES.get(kind) is not type(node):
        message = f"a node of class {type(node).__name__} has no JSON form here"
        raise ValueError(message)
    if isinstance(node, IndexNode) and node.obj is not None:
        message = "an index node that carries an object has no JSON form"
        raise ValueError(message)
    # mode="python" keeps what JSON has no word for, so that it is refused instead of quietly becoming something else.
    content = node.model_dump(mode="python", exclude_defaults=True)
    return {"class": kind, "id": node.node_id, "score": scored.score, "node": _plain(content)}


def _node(row: Mapping[str, Any]) -> NodeWithScore:
    kind = _NODE_CLASSES[row["class"]]
    content = {name: value for name, value in row["node"].items() if name != "class_name"}
    return NodeWithScore(node=kind(**{**content, "id_": row["id"]}), score=row["score"])


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(type(value).__name__)
    return value


def _plain(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Refuse what JSON would silently turn into something else: tuples, and keys that are no texts."""
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            message = "a key in a node's metadata is no text"
            raise ValueError(message)
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, float):
        return float(value)  # numpy's float64 is one, too
    if value is None or type(value) in (str, int, bool):
        return value
    message = f"a {type(value).__name__} in a node has no JSON form"
    raise ValueError(message)
