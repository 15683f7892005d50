"""The confidence of answers as it was calibrated on one index, kept as JSON beside it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from agentic_retriever.errors import ConfigError, StoreDamagedError
from agentic_retriever.indices.manifest import write_atomically
from agentic_retriever.synthesis.confidence import ConfidenceModel

if TYPE_CHECKING:
    from pathlib import Path

CONFIDENCE_FILE: Final = "confidence.json"
CONFIDENCE_FORMAT: Final = 1

_TEXTS: Final = ("dataset", "index", "judged_by", "date")
_COUNTS: Final = ("index_version", "rows", "unanswerable")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfidenceTrainedOn:
    """What a calibration was fitted on.

    Attributes:
        dataset: Name of the questions and judgments.
        index: Name of the index.
        index_version: Its version at that time, from 0.
        rows: How many answers, from 0.
        unanswerable: How many of them were to questions that nothing answers.
        judged_by: What the answers were held against.
        date: When, ISO 8601.

    Raises:
        ValueError: If a part is ill-typed or out of range; it is named.
    """

    dataset: str
    index: str
    index_version: int
    rows: int
    unanswerable: int
    judged_by: str
    date: str

    def __post_init__(self) -> None:
        for name in _TEXTS:
            if not isinstance(getattr(self, name), str):
                raise ValueError(f"trained_on.{name} must be text, got {str(getattr(self, name))[:40]!r}")  # noqa: TRY004 - one kind for all that is wrong in a file
        for name in _COUNTS:
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise ValueError(f"trained_on.{name} must be a whole number from 0, got {str(value)[:40]!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexConfidence:
    """The weights of confidence for answers from one index.

    Attributes:
        model: The weights.
        trained_on: What they were fitted on.
    """

    model: ConfidenceModel
    trained_on: ConfidenceTrainedOn

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {"format": CONFIDENCE_FORMAT, "model": self.model.to_dict(), "trained_on": asdict(self.trained_on)}

    @classmethod
    def from_dict(cls, data: object) -> IndexConfidence:
        """Read what ``to_dict`` returned.

        Raises:
            ConfigError: If the weights cannot be used.
            ValueError: If another key is missing, unknown, ill-typed or out of range; it is named.
        """
        table = _object(data, "the file", ("format", "model", "trained_on"))
        if table["format"] != CONFIDENCE_FORMAT:
            raise ValueError(f"format must be {CONFIDENCE_FORMAT}, got {str(table['format'])[:40]!r}")
        trained = _object(table["trained_on"], "trained_on", tuple(ConfidenceTrainedOn.__dataclass_fields__))
        weights = _object(table["model"], "model", ("intercept", "weights", "neutral"))
        return cls(model=ConfidenceModel.from_dict(weights), trained_on=ConfidenceTrainedOn(**trained))

    def save(self, path: Path) -> None:
        """Write it as JSON in one step.

        Raises:
            StoreError: If the file cannot be written.
        """
        content = json.dumps(self.to_dict(), ensure_ascii=False, indent=1, allow_nan=False)
        write_atomically(path, content.encode("utf-8", "surrogatepass"))

    @classmethod
    def load(cls, path: Path) -> IndexConfidence | None:
        """Read it; ``None`` when there is no such file.

        Raises:
            StoreDamagedError: If the file cannot be used; file and key are named.
        """
        try:
            return cls.from_dict(json.loads(path.read_bytes().decode("utf-8", "surrogatepass")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError, ConfigError) as err:
            raise StoreDamagedError(f"{path} cannot be used: {err}; remove it or train the index again") from err


def _object(data: object, key: str, names: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(data, dict) or set(data) != set(names):
        odd = ", ".join(sorted(map(str, set(data) ^ set(names))))[:200] if isinstance(data, dict) else "no object"
        raise ValueError(f"{key} must be an object with the keys {', '.join(names)}; missing or unknown: {odd}")
    return data
