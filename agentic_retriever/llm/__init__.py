"""The seam to language models: tiers, one retry loop, breakers, total deadlines, costs and typed errors."""

from agentic_retriever.breaker import Breaker, BreakerState
from agentic_retriever.llm.asking import AskedReply, ask, random_boundary, spent_on_failure
from agentic_retriever.llm.async_streaming import AsyncPieces, AsyncReplyStream
from agentic_retriever.llm.build import build_client, build_llm
from agentic_retriever.llm.calls import LLMReply, ModelClient, StreamsReplies, TierNeeds, estimate_tokens, spent_on
from agentic_retriever.llm.choices import Choice, read_choice, read_choices
from agentic_retriever.llm.client import LLMClient
from agentic_retriever.llm.endpoint import Endpoint
from agentic_retriever.llm.failures import failure_kind
from agentic_retriever.llm.health import TierHealth
from agentic_retriever.llm.prices import FREE, CostReport, Price, PriceTable
from agentic_retriever.llm.replies import containers, json_values, without_thoughts
from agentic_retriever.llm.retry import RetryPolicy
from agentic_retriever.llm.streaming import ReplyStream
from agentic_retriever.llm.tiers import TieredClient
from agentic_retriever.schema import Attempt, FailureKind

__all__ = [
    "FREE",
    "AskedReply",
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
    "build_llm",
    "containers",
    "estimate_tokens",
    "failure_kind",
    "json_values",
    "random_boundary",
    "read_choice",
    "read_choices",
    "spent_on",
    "spent_on_failure",
    "without_thoughts",
]
