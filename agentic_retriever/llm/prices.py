"""What models cost: a dated table in the package, and the user's own on top of it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentic_retriever.errors import ConfigError, unknown_name
from agentic_retriever.schema import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentic_retriever.schema import TierUsage

_MILLION = 1_000_000
_TABLE_KEYS = ("as_of", "source", "unit", "models")
_PRICE_KEYS = ("in", "out", "context")


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """The price of one model.

    Attributes:
        in_usd: USD for a million tokens of the prompt, from 0.
        out_usd: USD for a million tokens of the answer, from 0.
        context_tokens: Tokens that the model reads and writes at most, or ``None`` if not known.
    """

    in_usd: float
    out_usd: float
    context_tokens: int | None = None

    @property
    def free(self) -> bool:
        """Whether calls cost nothing."""
        return self.in_usd == 0 and self.out_usd == 0

    def cost_usd(self, prompt_tokens: int, completion_tokens: int) -> float:
        """Return the cost of one call in USD."""
        return (prompt_tokens * self.in_usd + completion_tokens * self.out_usd) / _MILLION


FREE = Price(in_usd=0.0, out_usd=0.0)
"""The price of a model on the user's own machine, such as any Ollama model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceTable:
    """Prices by the model's name at OpenRouter.

    Attributes:
        as_of: The day on which the prices held, ISO 8601.
        source: Where they are from.
        prices: Price by model.
    """

    as_of: str
    source: str
    prices: Mapping[str, Price]

    def __post_init__(self) -> None:
        object.__setattr__(self, "prices", frozen(self.prices))

    @classmethod
    def load(cls, path: str | Path | None = None) -> PriceTable:
        """Read the table of the package and, on top of it, a file of the same form.

        The file is a JSON object with ``models``: by name, ``in`` and ``out`` in USD per million tokens and, if known,
        ``context`` in tokens; ``as_of`` and ``source`` are taken over if given, ``unit`` is for the reader. Its models
        replace those of the package, all others stay.

        Args:
            path: The file; ``None`` or ``""`` for the package's table alone.

        Raises:
            ConfigError: If the file cannot be read, or holds no such table or a key that is none of these.
        """
        packaged = resources.files("agentic_retriever.llm").joinpath("prices.json").read_text(encoding="utf-8")
        table = cls._parse(json.loads(packaged), "prices.json of the package")
        if not path:
            return table
        try:
            own = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as err:
            raise ConfigError(
                f"setting prices_file: cannot read {path} ({type(err).__name__}); make it a readable JSON file"
            ) from err
        added = cls._parse(own, str(path))
        return cls(
            as_of=added.as_of or table.as_of,
            source=added.source or table.source,
            prices={**table.prices, **added.prices},
        )

    @classmethod
    def _parse(cls, data: object, where: str) -> PriceTable:
        models = data.get("models") if isinstance(data, dict) else None
        if not isinstance(data, dict) or not isinstance(models, dict):
            raise ConfigError(f'setting prices_file: {where} must be a JSON object with "models" by name')
        _only_known(data, _TABLE_KEYS, where)
        for name in ("as_of", "source"):
            if not isinstance(data.get(name, ""), str):
                raise ConfigError(f'setting prices_file: {where}: "{name}" must be a text')
        return cls(
            as_of=data.get("as_of", ""),
            source=data.get("source", ""),
            prices={str(name): _price(str(name), entry, where) for name, entry in models.items()},
        )

    def price(self, model: str) -> Price | None:
        """Return the price of a model.

        Args:
            model: Its name, such as ``"openai/gpt-4o-mini"``. Without its maker, the name must end just one entry; with
                the suffix ``:free`` it is free, as at OpenRouter.

        Returns:
            Its price, or ``None`` if the table does not know it.
        """
        if model.endswith(":free"):
            return FREE
        known = self.prices.get(model)
        if known is not None or "/" in model:
            return known
        named = [price for name, price in self.prices.items() if name.rpartition("/")[2] == model]
        return named[0] if len(named) == 1 else None

    def cost_usd(self, model: str, prompt_tokens: int, completion_tokens: int) -> float | None:
        """Return the cost of one call in USD, or ``None`` if the table does not know the model."""
        price = self.price(model)
        return None if price is None else price.cost_usd(prompt_tokens, completion_tokens)


def _only_known(data: Mapping[str, object], known: tuple[str, ...], where: str) -> None:
    """Refuse a key that would be passed over, such as a misspelt one."""
    for key in data:
        if key not in known:
            raise ConfigError(f"setting prices_file: {where}: {unknown_name('key', key, known)}")


def _price(name: str, entry: object, where: str) -> Price:
    values = entry if isinstance(entry, dict) else {}
    _only_known(values, _PRICE_KEYS, f"{where}: {name[:80]!r}")
    amounts = [values.get("in"), values.get("out")]
    context = values.get("context")
    usable = all(_is_amount(amount) for amount in amounts)
    if not usable or not (context is None or (type(context) is int and context > 0)):
        raise ConfigError(
            f'setting prices_file: {where}: {name[:80]!r} needs "in" and "out" from 0 in USD per million tokens, and '
            '"context" in tokens or not at all'
        )
    return Price(in_usd=float(values["in"]), out_usd=float(values["out"]), context_tokens=context)


def _is_amount(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CostReport:
    """What a number of calls cost, and what they would have cost on the cloud model alone.

    Attributes:
        usd: What was paid, as far as prices are known.
        cloud_only_usd: What the same tokens would have cost on the cloud model; ``None`` if its price is not known.
        saved_usd: The difference; ``None`` likewise.
        local_share: Share of the calls that went to models without a price, in [0, 1]; 0 without calls.
        calls: Calls in all.
        unpriced_calls: Calls to models whose price is not known; they count 0 in ``usd``.
    """

    usd: float
    cloud_only_usd: float | None
    saved_usd: float | None
    local_share: float
    calls: int
    unpriced_calls: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {name: getattr(self, name) for name in self.__slots__}


def cost_report(spent: Sequence[TierUsage], prices: Mapping[str, Price | None], cloud: Price | None) -> CostReport:
    """Compare what was spent with what the cloud model alone would have cost.

    Args:
        spent: The accounts of any number of calls.
        prices: Price by model; a model that is missing or ``None`` has no known price.
        cloud: Price of the cloud model, if known.
    """
    calls = sum(one.calls for one in spent)
    usd = sum(one.usd for one in spent)
    local = unpriced = 0
    for one in spent:
        price = prices.get(one.model)
        local += one.calls if price is not None and price.free else 0
        unpriced += one.calls if price is None else 0
    cloud_usd = None if cloud is None else sum(cloud.cost_usd(u.prompt_tokens, u.completion_tokens) for u in spent)
    return CostReport(
        usd=usd,
        cloud_only_usd=cloud_usd,
        saved_usd=None if cloud_usd is None else cloud_usd - usd,
        local_share=local / calls if calls else 0.0,
        calls=calls,
        unpriced_calls=unpriced,
    )
