"""What models cost: a dated table in the package, and the user's own on top of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from agentic_retriever.errors import ConfigError, unknown_name
from agentic_retriever.schema import frozen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic_core import ErrorDetails

    from agentic_retriever.schema import TierUsage

_MILLION: Final = 1_000_000
_STRICT: Final = ConfigDict(frozen=True, strict=True, extra="forbid", populate_by_name=True, allow_inf_nan=False)


class Price(BaseModel):
    """The price of one model."""

    model_config = _STRICT

    in_usd: float = Field(ge=0, validation_alias="in")  # for a million tokens of the prompt
    out_usd: float = Field(ge=0, validation_alias="out")  # for a million tokens of the answer
    context_tokens: int | None = Field(default=None, gt=0, validation_alias="context")

    @property
    def free(self) -> bool:
        """Whether calls cost nothing."""
        return self.in_usd == 0 and self.out_usd == 0

    def cost_usd(self, prompt_tokens: int, completion_tokens: int) -> float:
        """Return the cost of one call in USD."""
        return (prompt_tokens * self.in_usd + completion_tokens * self.out_usd) / _MILLION


FREE: Final = Price(in_usd=0.0, out_usd=0.0)
"""The price of a model on the user's own machine, such as any Ollama model."""


class PriceTable(BaseModel):
    """Prices by the model's name at OpenRouter, the day on which they held, and where they are from."""

    model_config = _STRICT

    as_of: str = ""
    source: str = ""
    unit: Any = Field(default=None, repr=False)  # for the reader of the file
    prices: Annotated[Mapping[str, Price], AfterValidator(frozen)] = Field(validation_alias="models")

    @classmethod
    def load(cls, path: str | Path | None = None) -> PriceTable:
        """Read the table of the package and, on top of it, a file of the same form.

        The file is a JSON object with ``models``: by name, ``in`` and ``out`` in USD per million tokens and, if known,
        ``context`` in tokens; ``as_of`` and ``source`` are taken over if given, ``unit`` is for the reader. Its models
        replace those of the package, all others stay.

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
        try:
            return cls.model_validate(data)
        except ValidationError as err:
            raise ConfigError(f"setting prices_file: {where}{_what_is_wrong(err.errors()[0])}") from None

    def price(self, model: str) -> Price | None:
        """Return the price of a model, or ``None`` if the table does not know it.

        Without its maker, the name must end just one entry; with the suffix ``:free`` it is free, as at OpenRouter.
        """
        if model.endswith(":free"):
            return FREE
        known = self.prices.get(model)
        if known is not None or "/" in model:
            return known
        named = [price for name, price in self.prices.items() if name.rpartition("/")[2] == model]
        return named[0] if len(named) == 1 else None


def _what_is_wrong(problem: ErrorDetails) -> str:
    """Say what is wrong with a file of prices, in terms of its keys."""
    keys = problem["loc"]
    entry = f": {str(keys[1])[:80]!r}" if len(keys) > 1 else ""
    if problem["type"] == "extra_forbidden":
        known = ("in", "out", "context") if entry else ("as_of", "source", "unit", "models")
        return f"{entry}: {unknown_name('key', str(keys[-1]), known)}"
    if entry:
        return f'{entry} needs "in" and "out" from 0 in USD per million tokens, and "context" in tokens or not at all'
    if keys and keys[0] in {"as_of", "source"}:
        return f': "{keys[0]}" must be a text'
    return ' must be a JSON object with "models" by name'


class CostReport(BaseModel):
    """What a number of calls cost, and what they would have cost on the cloud model alone."""

    model_config = ConfigDict(frozen=True)

    usd: float  # what was paid, as far as prices are known
    cloud_only_usd: float | None  # of the same tokens; None if the price of the cloud model is not known
    saved_usd: float | None  # the difference; None likewise
    local_share: float  # of the calls, those to models without a price, in [0, 1]; 0 without calls
    calls: int
    unpriced_calls: int  # to models whose price is not known; they count 0 in usd

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return self.model_dump()


def cost_report(spent: Sequence[TierUsage], prices: Mapping[str, Price | None], cloud: Price | None) -> CostReport:
    """Compare what was spent with what the cloud model alone would have cost; a missing price is not known."""
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
