"""Splitting a question into parts, and merging what was found for them."""

from agentic_retriever.retrievers.planning.merging import PARTS_KEY, merge_parts
from agentic_retriever.retrievers.planning.model_plan import parse_plan, plan_by_model
from agentic_retriever.retrievers.planning.splitting import MAX_PARTS, MIN_PARTS, MOST_PARTS, split_question

__all__ = [
    "MAX_PARTS",
    "MIN_PARTS",
    "MOST_PARTS",
    "PARTS_KEY",
    "merge_parts",
    "parse_plan",
    "plan_by_model",
    "split_question",
]
