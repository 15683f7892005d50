"""The parts of a question as a model sees them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from agentic_retriever.errors import LLMOutputError
from agentic_retriever.llm import ask, containers, json_values, random_boundary, without_thoughts
from agentic_retriever.prompts import plan_prompt
from agentic_retriever.retrievers.planning.splitting import MOST_PARTS, distinct

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentic_retriever.llm import ModelClient

MAX_PART_CHARS: Final = 400
"""Longer parts are no questions, and are dropped."""

_QUESTION_KEYS: Final = ("question", "sub_question", "query", "text")
_ITEM: Final = re.compile(r"^\s{0,8}(?:[-*•]|\(?\d{1,2}[.):])\s+(\S.{0,2000})$", re.MULTILINE)


def plan_by_model(
    client: ModelClient,
    query: str,
    *,
    max_parts: int,
    timeout_s: float | None = None,
    boundary: Callable[[], str] = random_boundary,
) -> tuple[str, ...]:
    """Ask a model for the parts of a question; one call.

    Args:
        client: The model.
        query: The question.
        max_parts: Most parts, from 2 to 5.
        timeout_s: Total seconds, or ``None`` for the client's own limit.
        boundary: Draws the mark of the prompt's frame.

    Returns:
        At most ``max_parts`` distinct parts; none when the model says that the question asks for one thing.

    Raises:
        LLMError: If the model failed.
        LLMOutputError: If its reply holds no parts.
        DeadlineExceededError: If it did not answer in time.
    """
    limit = min(max_parts, MOST_PARTS)
    reply = ask(client, lambda mark: plan_prompt(query, limit, mark), timeout_s=timeout_s, boundary=boundary)
    return distinct((part for part in parse_plan(reply.text) if len(part) <= MAX_PART_CHARS), query)[:limit]


def parse_plan(reply: str) -> list[str]:
    """Read a list of questions out of a reply.

    Args:
        reply: Any text: a JSON list of strings or of objects with a ``question``, alone, fenced or among words; else
            lines that begin with a number or a bullet. What the model thought aloud does not count.

    Returns:
        The questions in order; ``[]`` for an empty list.

    Raises:
        LLMOutputError: If there is no list.
    """
    text = without_thoughts(reply)
    listed = _json_list(text)
    if listed is not None:
        return listed
    lines = [match[1].strip() for match in _ITEM.finditer(text)]
    if lines:
        return lines
    raise LLMOutputError(f"the plan is no list of questions ({len(reply):,} characters); take another model")


def _json_list(text: str) -> list[str] | None:
    """Find the first JSON list that is empty or holds questions; other lists may belong to the words around it."""
    for container in containers(json_values(text)):
        if isinstance(container, list):
            questions = [question for question in map(_question, container) if question]
            if questions or not container:
                return questions
    return None


def _question(item: object) -> str:
    if isinstance(item, dict):
        item = next((item[key] for key in _QUESTION_KEYS if isinstance(item.get(key), str)), "")
    return item.strip() if isinstance(item, str) else ""
