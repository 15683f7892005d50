"""Asking a model for something other than an answer: a plan, or an order of passages."""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING, Final

from agentic_retriever.errors import LLMError, SynthesisError

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentic_retriever.llm import ModelClient

MAX_REPLY_CHARS: Final = 20_000
"""Longer replies are cut before they are read."""

_DRAWS: Final = 4
_THINKING: Final = re.compile(r"<(think|thinking)>.*?(?:</\1>|\Z)", re.DOTALL | re.IGNORECASE)


def random_boundary() -> str:
    """Draw what marks the frame of a prompt: 16 hexadecimal digits that nobody can guess."""
    return secrets.token_hex(8)


def ask(
    client: ModelClient,
    prompt: Callable[[str], str],
    *,
    timeout_s: float | None = None,
    boundary: Callable[[], str] = random_boundary,
) -> str:
    """Ask a model, and return what it says without its thoughts.

    Args:
        client: The model.
        prompt: Writes the prompt with a boundary, and raises ``SynthesisError`` for one that occurs in the texts.
        timeout_s: Total seconds, or ``None`` for the client's own limit.
        boundary: Draws boundaries.

    Returns:
        At most 20,000 characters, perhaps none.

    Raises:
        LLMError: If the model failed, or no boundary could be drawn that the texts do not contain.
        DeadlineExceededError: If it did not answer in time.
    """
    refused: SynthesisError | None = None
    for _ in range(_DRAWS):
        try:
            text = prompt(boundary())
        except SynthesisError as err:
            refused = err
            continue
        reply = client.complete(text, timeout_s=timeout_s)
        return _THINKING.sub("", reply.text[: 2 * MAX_REPLY_CHARS])[:MAX_REPLY_CHARS].strip()
    raise LLMError(f"{_DRAWS} boundaries in a row occur in the texts; pass a better source of randomness") from refused
