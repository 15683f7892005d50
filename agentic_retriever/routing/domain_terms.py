"""Terms of the field that a configuration names: a question with one of them wants its exact words found."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from agentic_retriever.errors import ConfigError
from agentic_retriever.text import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_DOMAIN_TERMS: Final = 500

_MAX_FORM_CHARS: Final = 200
_BY_COUNT: Final = (0.0, 0.8, 1.0)


@dataclass(frozen=True, slots=True)
class DomainTerms:
    """Terms of the field, each with its other forms; equal ones share their tables.

    Attributes:
        terms: The forms of each term, the term itself first.
    """

    terms: tuple[tuple[str, ...], ...] = ()

    @classmethod
    def parse(cls, text: str) -> DomainTerms:
        """Read a setting.

        Args:
            text: Such as ``"homologation | type approval; ABS; R155 | UN R155"``: entries between semicolons or lines,
                aliases between bars; blank for none.

        Raises:
            ConfigError: If a form has no letter or digit or more than 200 characters, or there are more than 500
                entries.
        """
        entries = [entry.strip() for line in text.splitlines() for entry in line.split(";") if entry.strip()]
        if len(entries) > MAX_DOMAIN_TERMS:
            raise ConfigError(f"{len(entries):,} domain terms, at most {MAX_DOMAIN_TERMS} are allowed")
        return cls(tuple(tuple(_form(form, entry) for form in entry.split("|")) for entry in entries))

    def found(self, query_terms: Sequence[str], language: str) -> list[str]:
        """Find the terms that a query has, in any of their forms.

        Args:
            query_terms: Terms of the query in reading order, by ``query_tokens`` of a tokenizer of ``language``.
            language: ISO 639-1 code, which decides about endings.

        Returns:
            The first form of each term found, once, in the order of the setting.
        """
        table = _table(self, language)
        hits = {
            at
            for start, first in enumerate(query_terms)
            for run, at in table.get(first, ())
            if tuple(query_terms[start : start + len(run)]) == run
        }
        return [self.terms[at][0] for at in sorted(hits)]

    def strength(self, query_terms: Sequence[str], language: str) -> float:
        """Return how much the terms of a query speak, in [0, 1]: 0 for none, 0.8 for one, 1 for two and more."""
        return _BY_COUNT[min(len(self.found(query_terms, language)), len(_BY_COUNT) - 1)] if self.terms else 0.0


def _form(form: str, entry: str) -> str:
    form = form.strip()
    if not any(map(str.isalnum, form)) or len(form) > _MAX_FORM_CHARS:
        raise ConfigError(
            f"domain_terms needs TERM or TERM | ALIAS, each with a letter or digit and at most {_MAX_FORM_CHARS} "
            f"characters, got {entry[:80]!r}"
        )
    return form


@lru_cache(64)
def _table(terms: DomainTerms, language: str) -> dict[str, list[tuple[tuple[str, ...], int]]]:
    """Runs of terms and the entry of each, by the first term; a form of stop words alone has none and never matches."""
    tokenizer = Tokenizer(language=language)
    table: dict[str, list[tuple[tuple[str, ...], int]]] = {}
    for at, forms in enumerate(terms.terms):
        for run in {tuple(tokenizer.query_tokens(form)) for form in forms}:
            if run:
                table.setdefault(run[0], []).append((run, at))
    return table
