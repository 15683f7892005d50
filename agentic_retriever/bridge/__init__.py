"""The router as LlamaIndex retriever, query engine and tool."""

from agentic_retriever.bridge.pins import Pins
from agentic_retriever.bridge.plugging import Pluggable
from agentic_retriever.bridge.query_engine import AnswersQuestions, RoutedQueryEngine
from agentic_retriever.bridge.responses import as_response
from agentic_retriever.bridge.retriever import ROUTE_KEY, RoutedRetriever

__all__ = [
    "ROUTE_KEY",
    "AnswersQuestions",
    "Pins",
    "Pluggable",
    "RoutedQueryEngine",
    "RoutedRetriever",
    "as_response",
]
