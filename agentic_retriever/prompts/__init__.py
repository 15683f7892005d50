"""Every prompt and fixed message; ``VERSION`` changes with any of them, and cached answers with it."""

from __future__ import annotations

from typing import Final

from agentic_retriever.prompts.answering import NO_ANSWER, NOT_FOUND, answer_prompt, not_found
from agentic_retriever.prompts.frame import occurs
from agentic_retriever.prompts.retrieval import filter_prompt, plan_prompt, rerank_prompt, summary_prompt
from agentic_retriever.prompts.routing import index_choice_prompt, strategy_choice_prompt, strategy_word_prompt

VERSION: Final = "3"

__all__ = [
    "NOT_FOUND",
    "NO_ANSWER",
    "VERSION",
    "answer_prompt",
    "filter_prompt",
    "index_choice_prompt",
    "not_found",
    "occurs",
    "plan_prompt",
    "rerank_prompt",
    "strategy_choice_prompt",
    "strategy_word_prompt",
    "summary_prompt",
]
