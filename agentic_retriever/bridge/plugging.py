"""The methods by which a router plugs into a LlamaIndex application."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from llama_index.core.tools import QueryEngineTool, ToolMetadata

from agentic_retriever.bridge.pins import Pins
from agentic_retriever.bridge.query_engine import AnswersQuestions, RoutedQueryEngine
from agentic_retriever.bridge.retriever import RoutedRetriever

if TYPE_CHECKING:
    from collections.abc import Mapping

    from llama_index.core.callbacks.base import CallbackManager
    from llama_index.core.vector_stores.types import MetadataFilters

    from agentic_retriever.bridge.retriever import FindsNodes
    from agentic_retriever.schema import Budget, Strategy

MAX_DESCRIPTION: Final = 1_024
"""Longest description of a tool that LlamaIndex passes to OpenAI's models, in characters."""

_INTRODUCTION: Final = "Answers a question in plain language, with citations, from these collections of documents:"


class Describes(AnswersQuestions, Protocol):
    """What a tool needs of the router."""

    def descriptions(self) -> Mapping[str, str]:
        """Return what each index holds, by its name."""


class Pluggable:
    """What a router offers to a LlamaIndex application; it needs no more of the router than the protocols say."""

    def as_retriever(
        self: FindsNodes,
        *,
        index: str | None = None,
        strategy: str | Strategy | None = None,
        filters: MetadataFilters | None = None,
        top_k: int | None = None,
        budget: Budget | None = None,
        callback_manager: CallbackManager | None = None,
    ) -> RoutedRetriever:
        """Return the router as a LlamaIndex retriever; each node tells its route in ``metadata["route"]``.

        Args:
            index: An index to use whatever the router thinks.
            strategy: A strategy to use whatever the router thinks.
            filters: Conditions on metadata that every node must meet.
            top_k: Most nodes to return; the configured number by default.
            budget: What a query may spend.
            callback_manager: LlamaIndex callbacks; none by default.

        Raises:
            FilterError: If the filters cannot be used.
            InvalidQueryError: If ``top_k`` cannot be used.
            UnknownStrategyError: If no strategy has that name.
        """
        pins = Pins(index=index, strategy=strategy, filters=filters, top_k=top_k, budget=budget)
        return RoutedRetriever(self, pins, callback_manager=callback_manager)

    def as_query_engine(
        self: AnswersQuestions,
        *,
        index: str | None = None,
        strategy: str | Strategy | None = None,
        filters: MetadataFilters | None = None,
        top_k: int | None = None,
        budget: Budget | None = None,
        streaming: bool = False,
        callback_manager: CallbackManager | None = None,
    ) -> RoutedQueryEngine:
        """Return the router as a LlamaIndex query engine; see :class:`RoutedQueryEngine` for its responses.

        Args:
            index: An index to use whatever the router thinks.
            strategy: A strategy to use whatever the router thinks.
            filters: Conditions on metadata that every node must meet.
            top_k: Most nodes to retrieve; the configured number by default.
            budget: What a query may spend.
            streaming: Whether responses come word by word.
            callback_manager: LlamaIndex callbacks; none by default.

        Raises:
            FilterError: If the filters cannot be used; otherwise as :meth:`as_retriever`.
        """
        pins = Pins(index=index, strategy=strategy, filters=filters, top_k=top_k, budget=budget)
        return RoutedQueryEngine(self, pins, streaming=streaming, callback_manager=callback_manager)

    def as_tool(  # noqa: PLR0913 - the pins and what a tool has besides, all by keyword
        self: Describes,
        *,
        name: str = "search_documents",
        description: str | None = None,
        return_direct: bool = False,
        index: str | None = None,
        strategy: str | Strategy | None = None,
        filters: MetadataFilters | None = None,
        top_k: int | None = None,
        budget: Budget | None = None,
    ) -> QueryEngineTool:
        """Return the router as a tool for LlamaIndex agents, workflows and other query engines.

        Args:
            name: Name of the tool: letters, digits, ``_`` and ``-``.
            description: What it can answer; by default made from the names and descriptions of the indexes as they are
                now, at most 1,024 characters.
            return_direct: Whether an agent ends with this tool's answer.
            index: An index to use whatever the router thinks.
            strategy: A strategy to use whatever the router thinks.
            filters: Conditions on metadata that every node must meet.
            top_k: Most nodes to retrieve; the configured number by default.
            budget: What a query may spend.

        Raises:
            FilterError: If the filters cannot be used; otherwise as :meth:`as_retriever`.
        """
        pins = Pins(index=index, strategy=strategy, filters=filters, top_k=top_k, budget=budget)
        told = description or tool_description(self.descriptions(), only=index)
        metadata = ToolMetadata(name=name, description=told, return_direct=return_direct)
        return QueryEngineTool(query_engine=RoutedQueryEngine(self, pins), metadata=metadata)


def tool_description(indexes: Mapping[str, str], *, only: str | None = None) -> str:
    """Describe what a router can answer, in at most 1,024 characters.

    Args:
        indexes: What each index holds, by its name.
        only: The one index that is asked, or ``None`` for all.

    Returns:
        One line an index; where room is short, every index keeps the beginning of its line as long as that is possible.
    """
    lines = [
        f"- {name}: {' '.join(text.split())}" if text.strip() else f"- {name}"
        for name, text in indexes.items()
        if only is None or name == only
    ]
    room = MAX_DESCRIPTION - len(_INTRODUCTION)
    share = max(24, room // max(1, len(lines)) - 1)
    if sum(len(line) + 1 for line in lines) > room:
        lines = [line if len(line) <= share else line[: share - 1] + "…" for line in lines]
    return "\n".join([_INTRODUCTION, *lines])[:MAX_DESCRIPTION]
