"""The sample corpus shipped with the package: three small indexes in three languages, with questions and vectors."""

import json
from dataclasses import dataclass
from pathlib import Path

DATA = Path(__file__).parent / "data"
VECTORS = DATA / "embeddings.npz"


@dataclass(frozen=True, slots=True)
class SampleIndex:
    """One sample index: its name, what it holds, and the folder of its sources."""

    name: str
    description: str

    @property
    def folder(self) -> Path:
        """Where its sources are."""
        return DATA / self.name

    @property
    def questions(self) -> Path:
        """JSON lines with questions, gold documents, index, strategy, complexity and answers."""
        return DATA / "questions" / f"{self.name}.jsonl"


SAMPLE_INDEXES = tuple(
    SampleIndex(**one) for one in json.loads(Path(__file__).with_name("indexes.json").read_text(encoding="utf-8"))
)

#: Questions of the sample that the demonstration asks, by id: three a language, and one that nothing answers.
DEMO_QUESTIONS = ("es-006", "es-010", "es-015", "th-031", "th-017", "th-013", "en-002", "en-030", "en-014", "en-035")


def load_questions() -> list[dict[str, object]]:
    """Return all sample questions in order of the indexes.

    Each has ``id``, ``query``, ``language``, ``index`` (or ``None``), ``doc_ids``, ``strategy``, ``complexity``,
    ``answer`` (or ``None``) and ``answerable``.
    """
    lines = [line for sample in SAMPLE_INDEXES for line in sample.questions.read_text(encoding="utf-8").splitlines()]
    return [json.loads(line) for line in lines if line.strip()]
