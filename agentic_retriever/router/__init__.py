"""The router."""

from agentic_retriever.router.facade import AgenticRouter

__all__ = ["AgenticRouter"]
