"""The router."""

from agentic_retriever.router.facade import AgenticRouter
from agentic_retriever.router.own_strategies import register_strategy, unregister_strategy

__all__ = ["AgenticRouter", "register_strategy", "unregister_strategy"]
