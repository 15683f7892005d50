"""Calibrating the confidence of answers from one index on judged questions.

Every question is answered without a model, with nothing declined. An answer is right when it cites a relevant document
and, where a right answer is known, says what that says. What cannot be answered is needed, too, or a calibration would
learn to believe anything: the questions that are labelled so, and where there are none, each question once more with
its relevant documents left out of what was found.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from agentic_retriever.errors import AgenticRetrieverError
from agentic_retriever.evaluation.answer_text import holds_answer
from agentic_retriever.evaluation.choices import told
from agentic_retriever.evaluation.confidence_fitting import (
    LEFT_OUT_WEIGHT,
    AnsweredQuestion,
    fit_index_confidence,
    too_few,
    validate_confidence,
)
from agentic_retriever.evaluation.results import Failure
from agentic_retriever.router.choices import make_extractive
from agentic_retriever.router.judging import relevance, unknown_words
from agentic_retriever.synthesis import CONFIDENCE_FILE, IndexConfidence, assemble
from agentic_retriever.synthesis.synthesizer import MAX_READ_CHARS
from agentic_retriever.text import detect_language

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llama_index.core.schema import NodeWithScore

    from agentic_retriever.embeddings.model import Vector
    from agentic_retriever.evaluation.confidence_fitting import ConfidenceValidation
    from agentic_retriever.evaluation.journal import Journal
    from agentic_retriever.evaluation.watching import Watcher
    from agentic_retriever.indices import Index
    from agentic_retriever.router import AgenticRouter
    from agentic_retriever.schema import Retrieval
    from agentic_retriever.synthesis import ConfidenceTrainedOn

BY_DOCUMENTS: Final = "relevant documents"
BY_ANSWERS: Final = "relevant documents and right answers"
PART: Final = "answers"
"""Name of the answers in a journal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedQuestion:
    """A question to calibrate on.

    Attributes:
        query_id: Unique in a run.
        text: The question.
        vector: The embedded question, ``(dimension,)``; ``None`` for one that nothing answers.
        relevance: Grade of each judged document, from 0; none for a question that nothing answers.
        answer: A right answer, or ``None``.
    """

    query_id: str
    text: str
    vector: Vector | None
    relevance: Mapping[str, int]
    answer: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfidenceTraining:
    """What calibrating found, and what became of it.

    Attributes:
        validation: What fitted weights reach on questions that they were not fitted on; ``None`` when there were too
            few answers.
        model: The weights that were installed, or would have been in a dry run; ``None`` when they do not help.
        installed: Whether they are beside the index now.
        verdict: One line: what was done and why.
        failures: Questions that could not be answered.
    """

    validation: ConfidenceValidation | None = None
    model: IndexConfidence | None = None
    installed: bool = False
    verdict: str
    failures: tuple[Failure, ...] = ()

    @classmethod
    def left_out(cls, why: str, failures: tuple[Failure, ...] = ()) -> ConfidenceTraining:
        """Say that nothing was fitted, and why."""
        return cls(verdict=f"confidence not fitted: {why}", failures=failures)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {
            "validation": None if self.validation is None else self.validation.to_dict(),
            "model": None if self.model is None else self.model.to_dict(),
            "installed": self.installed,
            "verdict": self.verdict,
            "failures": [failure.to_dict() for failure in self.failures],
        }


def train_confidence(
    index: Index,
    rows: Sequence[AnsweredQuestion],
    *,
    trained_on: ConfidenceTrainedOn,
    failures: tuple[Failure, ...] = (),
    seed: int = 0,
    install: bool = True,
) -> ConfidenceTraining:
    """Calibrate the confidence of answers from an index, and install the calibration if it helps.

    Args:
        index: The index.
        rows: Answers to its questions, from :func:`answered_questions`.
        trained_on: Where the questions are from; the numbers are put in.
        failures: Questions that could not be answered.
        seed: Of all that is drawn.
        install: Whether a calibration that helps is put beside the index.

    Raises:
        StoreError: If the index cannot be written.
    """
    missing = too_few(rows)
    if missing:
        return ConfidenceTraining.left_out(missing, failures)
    validation = validate_confidence(rows, seed=seed)
    model = None
    path = index.folder / CONFIDENCE_FILE
    had_one = path.exists()
    if validation.helps:
        facts = replace(trained_on, rows=len(rows), unanswerable=validation.unanswerable)
        model = IndexConfidence(model=fit_index_confidence(rows), trained_on=facts)
        if install:
            model.save(path)
    return ConfidenceTraining(
        validation=validation,
        model=model,
        installed=model is not None and install,
        verdict=_verdict(validation, install=install, had_one=had_one),
        failures=failures,
    )


def answered_questions(
    router: AgenticRouter,
    index: Index,
    questions: Sequence[AskedQuestion],
    *,
    journal: Journal | None = None,
    watcher: Watcher | None = None,
) -> tuple[list[AnsweredQuestion], tuple[Failure, ...]]:
    """Answer every question without a model, and judge the answers.

    Args:
        router: Holds the index.
        index: The index.
        questions: The questions.
        journal: Keeps the answers, and what it has is not answered again.
        watcher: Hears how far it is.

    Returns:
        The answers, and the questions on which something raised.

    Raises:
        StoreError: If the journal cannot be written.
    """
    known = _known(journal)
    if watcher is not None:
        watcher.begin("answers", len(questions))
    if known is not None:
        return known
    extractor = _Extractor(router, index)
    labelled = any(not question.relevance for question in questions)
    rows: list[AnsweredQuestion] = []
    failures: list[Failure] = []
    for question in questions:
        try:
            rows += extractor.rows(question, leave_out=not labelled)
        except AgenticRetrieverError as err:
            failures.append(Failure(query_id=question.query_id, error=told(err)))
        if watcher is not None:
            watcher.advance(1)
    if journal is not None:
        journal.keep(PART, {"rows": [r.to_dict() for r in rows], "failures": [f.to_dict() for f in failures]})
    return rows, tuple(failures)


class _Extractor:
    """Answers questions of one index as the router does where there is no model, whatever it thinks of the answer."""

    def __init__(self, router: AgenticRouter, index: Index) -> None:
        self._router = router
        self._index = index
        self._profile = index.profile()
        self._extractive = make_extractive(router.resources)

    def rows(self, question: AskedQuestion, *, leave_out: bool) -> list[AnsweredQuestion]:
        """Answer a question as it stands, and with the relevant documents left out."""
        retrieval = self._router.retrieve(question.text, index=self._index.name)
        found = [self._row(question, retrieval, retrieval.nodes, answerable=bool(question.relevance))]
        if leave_out:
            relevant = {doc_id for doc_id, grade in question.relevance.items() if grade > 0}
            others = [node for node in retrieval.nodes if _document(node) not in relevant]
            found.append(replace(self._row(question, retrieval, others, answerable=False), weight=LEFT_OUT_WEIGHT))
        return found

    def _row(
        self, question: AskedQuestion, retrieval: Retrieval, nodes: Sequence[NodeWithScore], *, answerable: bool
    ) -> AnsweredQuestion:
        language = detect_language(question.text)
        vector = question.vector
        if vector is None:
            vector = self._router.resources.embedding().embed_query(question.text)
        answer = self._extractive.extract(
            question.text,
            assemble(nodes, max_chars=MAX_READ_CHARS),
            language=language,
            complexity=retrieval.route.complexity,
            query_vector=vector,
        )
        cited = {citation.doc_id for citation in answer.citations}
        right = answerable and any(question.relevance.get(doc_id, 0) > 0 for doc_id in cited)
        if right and question.answer:
            right = holds_answer(answer.text, question.answer, language=language)
        near = relevance(nodes, self._profile) if nodes else None
        return AnsweredQuestion(
            query_id=question.query_id,
            features=answer.features(relevance=near, unknown_share=unknown_words(question.text, self._profile)),
            support=answer.support,
            right=right,
            answerable=answerable,
        )


def _document(found: NodeWithScore) -> str:
    return str(found.node.ref_doc_id or found.node.node_id)


def _known(journal: Journal | None) -> tuple[list[AnsweredQuestion], tuple[Failure, ...]] | None:
    """Read the answers of an earlier, interrupted training; those that cannot be read count as none."""
    part = {} if journal is None else journal.parts.get(PART, {})
    try:
        rows = [AnsweredQuestion.from_dict(row) for row in part["rows"]]
        return rows, tuple(Failure(**failure) for failure in part["failures"])
    except (KeyError, TypeError, AttributeError):
        return None


def _verdict(validation: ConfidenceValidation, *, install: bool, had_one: bool) -> str:
    before, after = validation.before, validation.after
    gain = validation.brier_gain
    what = (
        f"Brier {before.brier:.3f} to {after.brier:.3f} (gain {gain[0]:+.3f} [{gain[1]:+.3f}, {gain[2]:+.3f}]), "
        f"calibration error {before.ece:.3f} to {after.ece:.3f}"
    )
    if not validation.helps:
        stays = "; the one that was there stays" if had_one else ""
        why = "it does not surely help"
        if validation.is_closer:
            shares = f"{after.declined_right:.0%} of right answers instead of {before.declined_right:.0%}"
            why = f"it would decline {shares}"
        return f"confidence not installed, since {why}: {what}{stays}"
    return f"confidence {'installed' if install else 'would be installed, but this is a dry run'}: {what}"
