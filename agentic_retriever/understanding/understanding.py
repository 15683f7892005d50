"""From a question to clauses, without a model."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from agentic_retriever.understanding.clauses import Clause, Understood, make_clause
from agentic_retriever.understanding.quantities import find_quantities, find_times
from agentic_retriever.understanding.question import read_question, read_stream, recognise
from agentic_retriever.understanding.values import find_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agentic_retriever.understanding.fields import FieldDictionary


_NO_ALIASES: Mapping[str, Mapping[str, str]] = MappingProxyType({})


def understand(
    query: str,
    fields: FieldDictionary,
    *,
    language: str | None = None,
    aliases: Mapping[str, Mapping[str, str]] = _NO_ALIASES,
) -> Understood:
    """Find the restrictions that a question asks for, in the words of the index's own fields."""
    question = read_question(query, fields, language, aliases)
    hits = recognise(question)
    stream = read_stream(question, hits)
    quantities, used = find_quantities(question, stream)
    restrictions = [*find_values(hits, stream), *quantities, *find_times(question, stream, used)]
    clauses = [
        make_clause(
            query,
            restriction.part,
            certainty=restriction.certainty,
            spans=[question.folded.origin(start, end) for start, end in restriction.spans],
            known=fields.fields,
        )
        for restriction in restrictions
    ]
    ordered = tuple(sorted(clauses, key=lambda clause: (clause.start, clause.end, clause.say)))
    return Understood(clauses=ordered, text_left=text_left(query, ordered))


def text_left(query: str, clauses: Iterable[Clause]) -> str:
    """Return a question without the words that became clauses, white space as single spaces."""
    kept: list[str] = []
    at = 0
    for start, end in sorted({span for clause in clauses for span in clause.spans}):
        kept.append(query[at : max(at, start)])
        at = max(at, end)
    return " ".join(" ".join([*kept, query[at:]]).split())
