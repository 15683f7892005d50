"""The seam to language models: tiers, one retry loop, breakers, total deadlines, costs and typed errors."""

from agentic_retriever.llm.calls import (
    AsyncPieces,
    LLMReply,
    ModelClient,
    ReplyStream,
    StreamsReplies,
    TierNeeds,
    ask,
    estimate_tokens,
    failure_kind,
    random_boundary,
    spent_on,
    spent_on_failure,
)
from agentic_retriever.llm.client import FREE, Endpoint, LLMClient, Price, PriceTable, RetryPolicy
from agentic_retriever.llm.replies import Choice, containers, json_values, read_choice, without_thoughts
from agentic_retriever.llm.tiers import TieredClient, build_client
from agentic_retriever.schema import Attempt, FailureKind
from agentic_retriever.threads import Breaker

__all__ = [
    "FREE",
    "AsyncPieces",
    "Attempt",
    "Breaker",
    "Choice",
    "Endpoint",
    "FailureKind",
    "LLMClient",
    "LLMReply",
    "ModelClient",
    "Price",
    "PriceTable",
    "ReplyStream",
    "RetryPolicy",
    "StreamsReplies",
    "TierNeeds",
    "TieredClient",
    "ask",
    "build_client",
    "containers",
    "estimate_tokens",
    "failure_kind",
    "json_values",
    "random_boundary",
    "read_choice",
    "spent_on",
    "spent_on_failure",
    "without_thoughts",
]
