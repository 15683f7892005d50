"""Answers as LlamaIndex responses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from llama_index.core.base.response.schema import Response

from agentic_retriever.schema import Tier

if TYPE_CHECKING:
    from llama_index.core.schema import NodeWithScore

    from agentic_retriever.schema import Answer

_ELSEWHERE: Final = frozenset({"text", "nodes"})


def as_response(answer: Answer) -> Response:
    """Return an answer as LlamaIndex passes it on.

    Args:
        answer: The answer.

    Returns:
        A response with the text; the nodes as ``source_nodes``, none where nothing was found; and all else as
        ``metadata``, in plain JSON types.
    """
    return Response(response=answer.text, source_nodes=source_nodes(answer), metadata=response_metadata(answer))


def source_nodes(answer: Answer) -> list[NodeWithScore]:
    """Return the nodes that an answer may stand on: none where it says that nothing was found."""
    return [] if answer.tier is Tier.NONE else list(answer.nodes)


def response_metadata(answer: Answer) -> dict[str, Any]:
    """Return all of an answer but text and nodes: ``route``, ``citations``, ``confidence``, ``tier``, ``usage``, ..."""
    return {name: value for name, value in answer.to_dict().items() if name not in _ELSEWHERE}
