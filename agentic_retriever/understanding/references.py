"""Where the references of a text lead to in an index."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from agentic_retriever.indices.derived import Outline
from agentic_retriever.text import Tokenizer
from agentic_retriever.text.references import Reference

_OWN_RE: Final = re.compile(r"\b(?:this|these|est[ea]s?|presente|mism[oa])\b|นี้", re.IGNORECASE)
_ARTICLE_WORD_RE: Final = re.compile(r"^(?:the|el|la|los|las|le|les|o|os|as)\s+", re.IGNORECASE)


class ReferenceMap:
    """Resolves references to chunks: in the document that is named, in its own, or the only one that has it."""

    def __init__(self, outlines: Mapping[str, Outline]) -> None:
        self._outlines = outlines
        self._tokenizer = Tokenizer()
        self._titled: dict[str, set[str]] = {}
        self._with_article: dict[str, list[str]] = {}
        for doc_id, outline in outlines.items():
            for term in self._tokenizer.tokens(outline.title):
                self._titled.setdefault(term, set()).add(doc_id)
            for number in outline.articles:
                self._with_article.setdefault(number, []).append(doc_id)

    def resolve(self, reference: Reference, doc_id: str) -> Sequence[str]:
        """Return the chunks that a reference means, in reading order; none when it leads nowhere."""
        known = (self._outlines[one] for one in self._documents(reference, doc_id) if one in self._outlines)
        parts = (one.articles if reference.kind == "article" else one.sections for one in known)
        return next(filter(None, (_part(one, reference.number) for one in parts)), ())

    def _documents(self, reference: Reference, doc_id: str) -> Iterator[str]:
        target = _ARTICLE_WORD_RE.sub("", reference.target, count=1)
        other = bool(target) and not _OWN_RE.search(target)
        named = self._named(target) if other else set()
        if named or (other and not target[0].islower()):
            yield from sorted(named, key=lambda found: (found != doc_id, found))
            return
        yield doc_id
        others = self._with_article.get(reference.number, []) if reference.kind == "article" else []
        if len(others) == 1:
            yield others[0]

    def _named(self, target: str) -> set[str]:
        """Return the documents whose titles hold the most of the first words, where these say enough."""
        best = set(self._outlines)
        length = 0
        for term in self._tokenizer.tokens(target):
            narrowed = best & self._titled.get(term, set())
            if not narrowed:
                break
            best, length = narrowed, length + 1
        # One common word, such as "policy", names nothing.
        return best if length >= 2 or (length and len(best) == 1) else set()


def _part(parts: Mapping[str, Sequence[str]], number: str) -> Sequence[str]:
    """Return the chunks of a part; of what it consists of where it has no text itself; of what it lies in otherwise."""
    inside = [chunk for known, chunks in parts.items() if known.startswith(f"{number}.") for chunk in chunks]
    if number not in parts and inside:
        return inside
    while number not in parts and "." in number:
        number = number.rpartition(".")[0]
    return parts.get(number, ())
