"""The confidence of answers as it was calibrated on one index, kept as JSON beside it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from agentic_retriever.json_files import (
    check_format,
    check_trained_on,
    load_model,
    model_bytes,
    table_of,
    write_atomically,
)
from agentic_retriever.synthesis.confidence import ConfidenceModel

if TYPE_CHECKING:
    from pathlib import Path

CONFIDENCE_FILE: Final = "confidence.json"
CONFIDENCE_FORMAT: Final = 1


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
        check_trained_on(
            self, texts=("dataset", "index", "judged_by", "date"), counts=("index_version", "rows", "unanswerable")
        )


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
        table = table_of(data, "the file", ("format", "model", "trained_on"))
        check_format(table, CONFIDENCE_FORMAT)
        trained = table_of(table["trained_on"], "trained_on", ConfidenceTrainedOn.__dataclass_fields__)
        weights = table_of(table["model"], "model", ("intercept", "weights", "neutral"))
        return cls(model=ConfidenceModel.from_dict(weights), trained_on=ConfidenceTrainedOn(**trained))

    def save(self, path: Path) -> None:
        """Write it as JSON in one step.

        Raises:
            StoreError: If the file cannot be written.
        """
        write_atomically(path, model_bytes(self.to_dict()))

    @classmethod
    def load(cls, path: Path) -> IndexConfidence | None:
        """Read it; ``None`` when there is no such file.

        Raises:
            StoreDamagedError: If the file cannot be used; file and key are named.
        """
        return load_model(path, cls.from_dict, advice="remove it or train the index again")
