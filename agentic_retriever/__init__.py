"""agentic-retriever: from a question to the right index, the right strategy and a cited answer.

Names are loaded on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentic_retriever.bridge import RoutedChatEngine, RoutedQueryEngine, RoutedRetriever
    from agentic_retriever.config import RouterConfig
    from agentic_retriever.errors import AgenticRetrieverError
    from agentic_retriever.indices import IndexProfile, QdrantEdgeVectorStore
    from agentic_retriever.resources import register_strategy
    from agentic_retriever.retrievers import RetrieverAdapter
    from agentic_retriever.retrievers.bm25 import BM25Retriever
    from agentic_retriever.router import AgenticRouter
    from agentic_retriever.routing import register_language
    from agentic_retriever.schema import Answer, Budget, Citation, Retrieval, RouteDecision, Strategy, Turn
    from agentic_retriever.tracing import RouteDecisionEvent

__version__ = "0.1.0"

_NAMES = {
    "bridge": ("RoutedChatEngine", "RoutedQueryEngine", "RoutedRetriever"),
    "config": ("RouterConfig",),
    "errors": ("AgenticRetrieverError",),
    "indices": ("IndexProfile", "QdrantEdgeVectorStore"),
    "resources": ("register_strategy",),
    "retrievers": ("RetrieverAdapter",),
    "retrievers.bm25": ("BM25Retriever",),
    "router": ("AgenticRouter",),
    "routing": ("register_language",),
    "schema": ("Answer", "Budget", "Citation", "Retrieval", "RouteDecision", "Strategy", "Turn"),
    "tracing": ("RouteDecisionEvent",),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "AgenticRetrieverError", "AgenticRouter", "Answer", "BM25Retriever", "Budget", "Citation", "IndexProfile",
    "QdrantEdgeVectorStore", "Retrieval", "RetrieverAdapter", "RouteDecision", "RouteDecisionEvent",
    "RoutedChatEngine", "RoutedQueryEngine", "RoutedRetriever", "RouterConfig", "Strategy", "Turn", "__version__",
    "register_language", "register_strategy",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
