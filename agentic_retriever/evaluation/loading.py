"""From what a person names to a data set."""

from __future__ import annotations

from pathlib import Path

from agentic_retriever.errors import EvaluationError
from agentic_retriever.evaluation.beir import load_beir
from agentic_retriever.evaluation.datasets import SAMPLE, Dataset
from agentic_retriever.evaluation.finetune_data import load_finetune_file
from agentic_retriever.evaluation.questions import load_questions_file, load_sample


def load_dataset(path: str | Path, *, with_corpus: bool = True, split: str | None = None) -> Dataset:
    """Read a data set.

    Args:
        path: A BEIR folder, a ``.jsonl`` file of questions, a ``.json`` file that LlamaIndex's
            ``EmbeddingQAFinetuneDataset`` saved, or ``sample``.
        with_corpus: Whether the documents of a BEIR folder are read and its judgments held against them; without,
            ``corpus.jsonl`` need not be there.
        split: Read ``qrels/SPLIT.tsv`` only; all judgments by default.

    Returns:
        The data set; whatever could not be used is in its ``problems``.

    Raises:
        EvaluationError: If a file is missing or unreadable, or nothing is left to ask.
    """
    place = Path(path)
    if str(path) == SAMPLE and not place.exists():
        return load_sample()
    if place.is_dir():
        return load_beir(place, with_corpus=with_corpus, split=split)
    if place.suffix.lower() == ".jsonl":
        return load_questions_file(place)
    if place.suffix.lower() == ".json" and place.exists():
        return load_finetune_file(place)
    what = "is neither a folder nor a .jsonl or .json file" if place.exists() else "does not exist"
    raise EvaluationError(
        f"{place} {what}; a data set is a BEIR folder (corpus.jsonl, queries.jsonl, qrels/*.tsv), a .jsonl file of "
        f"questions, a .json file of an EmbeddingQAFinetuneDataset, or the word {SAMPLE}"
    )
