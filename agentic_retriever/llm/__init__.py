"""The seam to language models: tiers, one retry loop, breakers, total deadlines, costs and typed errors."""

from agentic_retriever.llm.calls import (
    LLMReply,
    ModelClient,
    TierNeeds,
    ask,
    random_boundary,
    result_of,
    spent_on_failure,
)
from agentic_retriever.llm.client import LLMClient
from agentic_retriever.llm.replies import Choice, containers, json_values, read_choice, without_thoughts
from agentic_retriever.llm.tiers import TieredClient, build_client

__all__ = [
    "Choice", "LLMClient", "LLMReply", "ModelClient", "TierNeeds", "TieredClient", "ask", "build_client",
    "containers", "json_values", "random_boundary", "read_choice", "result_of", "spent_on_failure",
    "without_thoughts",
]  # fmt: skip
