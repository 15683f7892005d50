"""What an application fixes for every question that it passes on."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llama_index.core.schema import QueryBundle

from agentic_retriever.checks import check_query, check_top_k
from agentic_retriever.errors import UnknownStrategyError, unknown_name
from agentic_retriever.filters import check_filters
from agentic_retriever.schema import Strategy

if TYPE_CHECKING:
    from llama_index.core.schema import QueryType
    from llama_index.core.vector_stores.types import MetadataFilters

    from agentic_retriever.schema import Budget


@dataclass(frozen=True, slots=True, kw_only=True)
class Pins:
    """What every question of one retriever or query engine is asked with; what is ``None`` the router decides.

    Attributes:
        index: An index to use whatever the router thinks.
        strategy: A strategy to use whatever the router thinks.
        filters: Conditions on metadata that every node must meet.
        top_k: Most nodes to retrieve.
        budget: What a query may spend.

    Raises:
        FilterError: If the filters cannot be used.
        InvalidQueryError: If ``top_k`` cannot be used.
        UnknownStrategyError: If no strategy has that name.
    """

    index: str | None = None
    strategy: str | Strategy | None = None
    filters: MetadataFilters | None = None
    top_k: int | None = None
    budget: Budget | None = None

    def __post_init__(self) -> None:
        check_filters(self.filters)
        if self.top_k is not None:
            check_top_k(self.top_k)
        if self.strategy is not None:
            _check_strategy(self.strategy)

    def options(self) -> dict[str, Any]:
        """Return them as keyword arguments of the router's methods."""
        return {name: getattr(self, name) for name in self.__slots__}


def checked_bundle(query: QueryType) -> QueryBundle:
    """Return a question as LlamaIndex passes it on.

    LlamaIndex itself fails on anything but text with an error that does not tell what is wrong.

    Raises:
        InvalidQueryError: If it is no text and no bundle, or blank; the router itself limits its length.
    """
    bundle = query if isinstance(query, QueryBundle) else QueryBundle(query)
    check_query(bundle.query_str, max_chars=sys.maxsize)
    return bundle


def _check_strategy(name: str | Strategy) -> None:
    try:
        Strategy(name)
    except ValueError as err:
        raise UnknownStrategyError(unknown_name("strategy", str(name), [one.value for one in Strategy])) from err
