"""Strategies that a program adds to the seven of the package."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from agentic_retriever.errors import ConfigError, unknown_name
from agentic_retriever.retrievers import RetrieverAdapter, StrategySpec
from agentic_retriever.retrievers.registry import add_spec, remove_spec
from agentic_retriever.routing import FEATURES
from agentic_retriever.schema import Strategy, View, strategy_named

A = TypeVar("A", bound=type[RetrieverAdapter])

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,39}")
_RESERVED: Final = ("auto",)


def register_strategy(
    name: str,
    *,
    description: str,
    needs: Sequence[View] = (View.CHUNKS,),
    cost: float = 1.0,
    typical_ms: float = 30.0,
    signals: Mapping[str, float] | None = None,
) -> Callable[[A], A]:
    """Add a strategy: a decorator for a class that inherits ``RetrieverAdapter`` and implements ``_search``.

    From then on every router of the process offers it to stage two, takes it by name (``strategy="recent"``), measures
    it in benchmarks and can learn when to choose it. Register before the first question is asked: a router keeps the
    retrievers it has made. Registering a name again replaces the strategy, which helps in notebooks.

    Args:
        name: Small letters, digits and ``_``, at most 40, a letter first; none of the seven.
        description: When to use it, one line that ends with a full stop; selectors, models and people read it.
        needs: The views of an index that it reads; it is offered by indexes that have them.
        cost: Relative work of one query, above 0; ``vector`` is 1.
        typical_ms: Typical latency in milliseconds, above 0.
        signals: How much each signal of a query (``agentic_retriever.routing.FEATURES``) speaks for it, as logarithm of
            odds at full strength. What is taken without any signal starts with 1.5, so 3 makes it likely.

    Returns:
        The decorator; it gives the class its ``strategy``.

    Raises:
        ConfigError: If a value is none of what is allowed.
    """
    _check(name, description, (cost, typical_ms))
    spoken = _checked_signals(signals or {})
    views = tuple(_view(view) for view in needs)

    def decorate(adapter: A) -> A:
        given: object = adapter
        if not (isinstance(given, type) and issubclass(given, RetrieverAdapter)):
            raise ConfigError(f"strategy {name!r} must be a class that inherits RetrieverAdapter, not {given!r:.80}")
        adapter.strategy = strategy_named(name)
        add_spec(
            StrategySpec(
                strategy=adapter.strategy,
                description=description,
                needs=views,
                cost=cost,
                typical_ms=typical_ms,
                build=adapter,
                signals=spoken,
            )
        )
        return adapter

    return decorate


def unregister_strategy(name: str | Strategy) -> None:
    """Take away a strategy that was added."""
    remove_spec(name)


def _check(name: str, description: str, positive: tuple[float, ...]) -> None:
    if not _NAME.fullmatch(name) or name in _RESERVED:
        raise ConfigError(
            f"a strategy's name must be small letters, digits and _, a letter first, 40 at most, not {name[:60]!r}"
        )
    if name in {strategy.value for strategy in Strategy}:
        raise ConfigError(f"strategy {name!r} is one of the package's own; give yours another name")
    if "\n" in description or not description.endswith("."):
        raise ConfigError(f"the description of strategy {name!r} must be one line that ends with a full stop")
    if not all(math.isfinite(value) and value > 0 for value in positive):
        raise ConfigError(f"cost and typical_ms of strategy {name!r} must be numbers above 0, got {positive}")


def _checked_signals(signals: Mapping[str, Any]) -> dict[str, float]:
    for name, weight in signals.items():
        if name not in FEATURES:
            raise ConfigError(unknown_name("signal", name, FEATURES))
        if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not math.isfinite(weight):
            raise ConfigError(f"the weight of signal {name!r} must be a finite number, got {str(weight)[:40]!r}")
    return {name: float(weight) for name, weight in signals.items()}


def _view(view: View | str) -> View:
    try:
        return View(view)
    except ValueError as err:
        raise ConfigError(unknown_name("view", str(view), (known.value for known in View))) from err
