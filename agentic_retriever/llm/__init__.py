"""The seam to language models: one call with a total deadline, typed errors and token counts."""

from agentic_retriever.llm.build import build_client, build_llm
from agentic_retriever.llm.client import LLMClient, LLMReply, ModelClient, estimate_tokens
from agentic_retriever.llm.failures import FailureKind, failure_kind

__all__ = [
    "FailureKind",
    "LLMClient",
    "LLMReply",
    "ModelClient",
    "build_client",
    "build_llm",
    "estimate_tokens",
    "failure_kind",
]
