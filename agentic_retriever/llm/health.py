"""Whether the configured models can be asked, and what to do when they cannot."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentic_retriever.errors import DeadlineExceededError
from agentic_retriever.threads import DeadlineCaller

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from agentic_retriever.llm.client import LLMClient
    from agentic_retriever.schema import Tier

_MAX_BYTES = 2_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TierHealth:
    """Whether one tier can be asked.

    Attributes:
        tier: The tier.
        model: Name of its model.
        ok: Whether it can; ``None`` when there is no way to look, as with a model that was passed in.
        detail: What is wrong and what to do, or what was seen.
    """

    tier: Tier
    model: str
    ok: bool | None
    detail: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {"tier": self.tier.value, "model": self.model, "ok": self.ok, "detail": self.detail}


def look_at(clients: Sequence[LLMClient], timeout_s: float) -> tuple[TierHealth, ...]:
    """Look at several models at once.

    Args:
        clients: The models.
        timeout_s: Total seconds.
    """
    ends = time.monotonic() + timeout_s
    caller = DeadlineCaller("looking at the models", max_calls=max(1, len(clients)))
    started = [
        (client, None if client.endpoint.probe is None else caller.start(_bound(client.endpoint.probe, timeout_s), 0.0))
        for client in clients
    ]
    return tuple(_found(client, future, ends) for client, future in started)


def _bound(probe: Callable[[float], str], timeout_s: float) -> Callable[[], str]:
    return lambda: probe(timeout_s)


def _found(client: LLMClient, future: Future[str] | None, ends: float) -> TierHealth:
    if future is None:
        return TierHealth(tier=client.tier, model=client.model, ok=None, detail="a model that was passed in; not asked")
    try:
        wrong = future.result(timeout=max(0.0, ends - time.monotonic()))
    except (TimeoutError, DeadlineExceededError):
        wrong = "no answer in time; check that its server runs"
    except Exception as err:  # noqa: BLE001 - a diagnosis reports whatever goes wrong
        wrong = f"{type(err).__name__} while looking; check its address"
    paused = "" if client.available else "; left alone for now since it failed several times in a row"
    return TierHealth(tier=client.tier, model=client.model, ok=not wrong, detail=(wrong or "it can be asked") + paused)


def ollama_probe(base_url: str, model: str) -> Callable[[float], str]:
    """Return what looks whether an Ollama server runs and has a model (``GET /api/tags``)."""

    def probe(timeout_s: float) -> str:
        url = base_url.rstrip("/") + "/api/tags"
        try:
            listed = json.loads(_get(url, timeout_s))["models"]
            names = {str(entry["name"]) for entry in listed}
        except OSError:
            return f"no answer at {base_url}; start it with: ollama serve"
        except (ValueError, TypeError, LookupError):
            return f"{base_url} does not answer as Ollama does; check ollama_base_url"
        if model in names or f"{model}:latest" in names:
            return ""
        return f"{base_url} does not have it; get it with: ollama pull {model}"

    return probe


def openrouter_probe(base_url: str, model: str) -> Callable[[float], str]:
    """Return what looks whether OpenRouter answers and lists a model (``GET /models``, which takes no key)."""

    def probe(timeout_s: float) -> str:
        try:
            listed = json.loads(_get(base_url.rstrip("/") + "/models", timeout_s))["data"]
            names = {str(entry["id"]) for entry in listed}
        except urllib.error.HTTPError as err:
            return f"{base_url} answers with HTTP {err.code}; check openrouter_base_url, or wait"
        except OSError:
            return f"no answer at {base_url}; check the network"
        except (ValueError, TypeError, LookupError):
            return f"{base_url} does not answer as OpenRouter does; check openrouter_base_url"
        return "" if model in names else f"{base_url} does not list it; check the model's name"

    return probe


def _get(url: str, timeout_s: float) -> bytes:
    if not url.startswith(("http://", "https://")):
        message = "not an HTTP address"
        raise ValueError(message)
    with urllib.request.urlopen(url, timeout=timeout_s) as response:  # noqa: S310 - scheme checked above
        body: bytes = response.read(_MAX_BYTES)
        return body
