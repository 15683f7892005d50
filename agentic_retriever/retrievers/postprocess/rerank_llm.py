"""Reranking by a language model that is asked for an order of numbered passages, all in one call.

W. Sun et al., "Is ChatGPT Good at Search? Investigating Large Language Models as Re-Ranking Agents", EMNLP 2023.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from agentic_retriever.errors import LLMOutputError
from agentic_retriever.llm import ask, containers, json_values, random_boundary, without_thoughts
from agentic_retriever.prompts import rerank_prompt
from agentic_retriever.retrievers.postprocess.rerank import by_scores, passage_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from llama_index.core.schema import NodeWithScore

    from agentic_retriever.llm import ModelClient

MAX_PASSAGES: Final = 20
MAX_PROMPT_CHARS: Final = 16_000
MIN_PASSAGE_CHARS: Final = 200

_NUMBER: Final = re.compile(r"(?<![\w.])\d{1,3}(?!\w|\.\d)")
_WHOLE: Final = re.compile(r"-?\d{1,3}")
# A line of numbers and signs only, such as "[3] > [1] > [2]" or "3, 1, 2".
_ORDER_LINE: Final = re.compile(r"^[\s\d\[\](){}<>,;:.|=→\"'`*-]*\d[\s\d\[\](){}<>,;:.|=→\"'`*-]*$")


class LLMReranker:
    """Asks a model for the order of the first 20 nodes; one call, of at most 16,000 characters of passages.

    Nodes that the model leaves out, and those behind the 20th, follow in their old order. Scores fall evenly from 1.

    Args:
        client: The model.
        boundary: Draws the mark of the prompt's frame.
    """

    def __init__(self, client: ModelClient, *, boundary: Callable[[], str] = random_boundary) -> None:
        self._client = client
        self._boundary = boundary

    def rerank(
        self, query: str, nodes: Sequence[NodeWithScore], top_k: int, timeout_s: float | None = None
    ) -> list[NodeWithScore]:
        """Order nodes anew; see ``Reranker``.

        Raises:
            LLMError: If the model failed.
            LLMOutputError: If its reply names no passage.
            DeadlineExceededError: If it did not answer in time.
        """
        judged = min(len(nodes), MAX_PASSAGES)
        if judged < 2:
            return list(nodes[:top_k])
        share = max(MIN_PASSAGE_CHARS, MAX_PROMPT_CHARS // judged)
        passages = [(i, "", passage_text(entry, share)) for i, entry in enumerate(nodes[:judged], start=1)]
        reply = ask(
            self._client,
            lambda mark: rerank_prompt(query, passages, mark),
            timeout_s=timeout_s,
            boundary=self._boundary,
        )
        named = [number - 1 for number in parse_order(reply.text, judged)]
        order = [*named, *(i for i in range(len(nodes)) if i not in set(named))]
        places = {i: place for place, i in enumerate(order)}
        return by_scores(nodes, [1 - places[i] / len(nodes) for i in range(len(nodes))], top_k)


def parse_order(reply: str, count: int) -> list[int]:
    """Read an order of passages out of a reply.

    Args:
        reply: Any text: a JSON list of two numbers or more, else its first line of numbers alone, else every number in
            it. What the model thought aloud does not count.
        count: How many passages there are.

    Returns:
        Distinct numbers from 1 to ``count``, in order.

    Raises:
        LLMOutputError: If there is none.
    """
    text = without_thoughts(reply)
    numbers = dict.fromkeys(_listed_numbers(text) or _written_numbers(text))
    order = [number for number in numbers if 1 <= number <= count]
    if not order:
        raise LLMOutputError(f"the reply names none of the {count} passages ({len(reply):,} characters)")
    return order


def _listed_numbers(text: str) -> list[int]:
    for container in containers(json_values(text)):
        if isinstance(container, list):
            found = [int(str(item)) for item in container if _WHOLE.fullmatch(str(item))]
            if len(found) > 1 and len(found) == len(container):
                return found
    return []


def _written_numbers(text: str) -> list[int]:
    lines = [line for line in text.splitlines() if _ORDER_LINE.match(line)]
    # A list down the page has one number a line; a list across it has several.
    across = [line for line in lines if len(_NUMBER.findall(line)) > 1]
    chosen = across[0] if across else "\n".join(lines) or text
    return [int(match) for match in _NUMBER.findall(chosen)]
