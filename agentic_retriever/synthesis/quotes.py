"""From chosen sentences to the text of an extractive answer and its citations."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from agentic_retriever.schema import SentenceCheck
from agentic_retriever.synthesis.citations import Support, cite
from agentic_retriever.synthesis.markers import MARKER

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agentic_retriever.schema import Citation
    from agentic_retriever.synthesis.candidates import Candidate

_MARKER = re.compile(r"\[([0-9]{1,9})\]")
_BRACKETS = re.compile(r"[\[\]【】［］〔〕]")


def quoted(picked: Sequence[Candidate], index_of: Callable[[str], str]) -> tuple[str, tuple[Citation, ...]]:
    """Write sentences in reading order, each with the number of the stretch of source that it stands in.

    Neighbouring sentences of one node share a number, whose quote is all of them as they stand in the source.

    Args:
        picked: The sentences, in any order, without repetitions.
        index_of: Gives the name of the index that a node id came from.

    Returns:
        The text, and one citation for each number. White space within a sentence becomes one space, and a source's own
        ``[12]`` is shown as ``(12)`` so that it cannot pass for a citation; quotes are exact.
    """
    stretches: list[list[Candidate]] = []
    for c in _in_reading_order(picked):
        last = stretches[-1][-1] if stretches else None
        if last is not None and last.passage.number == c.passage.number and last.position + 1 == c.position:
            stretches[-1].append(c)
        else:
            stretches.append([c])
    citations = tuple(
        cite(stretch[0].passage, Support(stretch[0].start, stretch[-1].end, 1.0), number, index_of)
        for number, stretch in enumerate(stretches, start=1)
    )
    text = ""
    before = ""
    for number, stretch in enumerate(stretches, start=1):
        for line in map(shown, (c.text for c in stretch)):
            # A table row reads better on a line of its own.
            gap = "\n" if line.startswith("|") or before.startswith("|") else " "
            text += f"{gap if text else ''}{line} [{number}]"
            before = line
    return text, citations


def quoted_checks(text: str, citations: Sequence[Citation]) -> tuple[SentenceCheck, ...]:
    """Check the text of an extractive answer: each sentence must stand in the quote behind its number.

    Args:
        text: As :func:`quoted` wrote it.
        citations: One for each number.

    Returns:
        A check for each sentence, in order.
    """
    quotes = {citation.number: _bare(citation.quote) for citation in citations}
    found: list[SentenceCheck] = []
    at = 0
    for marker in _MARKER.finditer(text):
        piece = text[at : marker.start()]
        start = at + len(piece) - len(piece.lstrip())
        sentence = text[start : marker.start()].rstrip()
        number = int(marker[1])
        verbatim = _bare(sentence) in quotes.get(number, "")
        found.append(
            SentenceCheck(
                start=start,
                end=start + len(sentence),
                text=sentence,
                supported=verbatim,
                score=1.0 if verbatim else 0.0,
                citations=(number,),
                problems=() if verbatim else ("not verbatim in its quote",),
            )
        )
        at = marker.end()
    return tuple(found)


def _bare(text: str) -> str:
    """Letters and digits alone: white space and brackets are shown otherwise than they stand in a source."""
    return "".join(char for char in text if char.isalnum())


def shown(sentence: str) -> str:
    """Show a sentence of a source in an answer: on one line, and without anything that reads as our marker."""
    line = " ".join(sentence.split())
    while MARKER.search(line):
        line = MARKER.sub(lambda found: f"({_BRACKETS.sub('', found[0])})", line)
    return line


def _in_reading_order(picked: Sequence[Candidate]) -> list[Candidate]:
    """Documents by the best rank among the chosen sentences, sentences by their place in the document."""
    rank: dict[str, int] = {}
    for c in picked:
        rank[c.passage.doc_id] = min(rank.get(c.passage.doc_id, c.passage.number), c.passage.number)
    return sorted(
        picked, key=lambda c: (rank[c.passage.doc_id], c.passage.offset + c.start, c.passage.number, c.position)
    )
