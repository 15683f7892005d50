"""The seam to language models: tiers, one retry loop, breakers, total deadlines, costs and typed errors."""

from agentic_retriever.llm.calls import (
    AsyncPieces,
    AsyncReplyStream,
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
from agentic_retriever.llm.client import FREE, CostReport, Endpoint, LLMClient, Price, PriceTable, RetryPolicy
from agentic_retriever.llm.replies import Choice, containers, json_values, read_choice, without_thoughts
from agentic_retriever.llm.tiers import TieredClient, TierHealth, build_client
from agentic_retriever.schema import Attempt, FailureKind
from agentic_retriever.threads import Breaker, BreakerState

__all__ = [
    "FREE",
    "AsyncPieces",
    "AsyncReplyStream",
    "Attempt",
    "Breaker",
    "BreakerState",
    "Choice",
    "CostReport",
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
    "TierHealth",
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
