"""Answers and retrievals as a notebook draws them."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Final

from agentic_retriever.schema.draw_route import costs, decision_parts, fallen_back
from agentic_retriever.schema.markup import (
    FAINT,
    Html,
    bar,
    details,
    duration,
    element,
    frame,
    joined,
    shortened,
    small,
    table,
    text,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from llama_index.core.schema import NodeWithScore

    from agentic_retriever.schema.answers import Answer, Citation, Retrieval
    from agentic_retriever.schema.checks_made import SentenceCheck

_MARKER: Final = re.compile(r"\[([0-9]{1,4})\]")
_MAX_QUOTE_CHARS: Final = 600
_MAX_PASSAGE_CHARS: Final = 240
_MAX_NODES: Final = 20
_BODY: Final = "white-space:pre-wrap;overflow-wrap:anywhere;margin:.2em 0 .5em"
_DOUBTFUL: Final = "text-decoration:underline wavy currentColor;text-underline-offset:.2em"


def draw_answer(answer: Answer) -> str:
    """Draw an answer: text with linked markers, what stands behind them, how sure it is, and how it came about."""
    cited = {citation.number: citation for citation in answer.citations}
    anchor = "ar-" + hashlib.sha256(answer.query_id.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    listed = [_reference(citation, anchor) for citation in answer.citations]
    return frame(
        element("div", *_body(answer, cited, anchor), style=_BODY, dir="auto"),
        element("ol", *listed, style="list-style:none;margin:0;padding:0") if listed else "",
        _doubts(answer.checks),
        fallen_back(answer.degraded),
        _line(answer),
        details("How it was found", decision_parts(answer.route), _work(answer)),
    )


def draw_retrieval(found: Retrieval) -> str:
    """Draw what was found: the nodes with their scores, and how they came about."""
    shown = found.nodes[:_MAX_NODES]
    rows = [[at, *_node(node)] for at, node in enumerate(shown, start=1)]
    left = len(found.nodes) - len(shown)
    said = f"{len(found.nodes)} nodes by {found.strategy.value} from {', '.join(found.indexes)}"
    return frame(
        element("div", element("b", said)),
        *(small(f"understood: {line}") for line in found.understood),
        table(["", "score", "source", "text"], rows, names=4) if rows else "",
        small(f"and {left} more") if left else "",
        fallen_back(found.degraded),
        small(joined(costs(found.timings_ms, found.usage), " · ")),
        details("How it was routed", decision_parts(found.route)),
    )


def _body(answer: Answer, cited: Mapping[int, Citation], anchor: str) -> Iterator[Html]:
    """Yield the text piece by piece, with sentences that nothing supports underlined."""
    at = 0
    for check in sorted(answer.checks, key=lambda one: one.start):
        if check.supported or check.start < at or check.end <= check.start:
            continue
        yield _linked(answer.text[at : check.start], cited, anchor)
        why = "; ".join(check.problems) or "not supported by what it cites"
        inside = _linked(answer.text[check.start : check.end], cited, anchor)
        yield element("span", inside, style=_DOUBTFUL, title=f"Not supported: {why}")
        at = check.end
    yield _linked(answer.text[at:], cited, anchor)


def _linked(piece: str, cited: Mapping[int, Citation], anchor: str) -> Html:
    parts: list[Html] = []
    at = 0
    for found in _MARKER.finditer(piece):
        citation = cited.get(int(found[1]))
        if citation is None:
            continue
        tip = f"{_source(citation)}: {shortened(citation.quote, _MAX_PASSAGE_CHARS)}"
        link = element("a", found[0], href=f"#{anchor}-{citation.number}", title=tip, style="color:inherit")
        parts += [text(piece[at : found.start()]), link]
        at = found.end()
    return joined([*parts, text(piece[at:])])


def _reference(citation: Citation, anchor: str) -> Html:
    return element(
        "li",
        element("b", f"[{citation.number}] {_source(citation)}"),
        " ",
        element("q", shortened(citation.quote, _MAX_QUOTE_CHARS), style="font-style:italic"),
        " ",
        element("span", f"characters {citation.start:,} to {citation.end:,}", style=f"{FAINT};font-size:.85em"),
        id=f"{anchor}-{citation.number}",
        dir="auto",
        style="margin:.15em 0",
    )


def _source(citation: Citation) -> str:
    place = [citation.title or citation.doc_id, citation.section]
    if citation.page is not None:
        place.append(f"page {citation.page}")
    return " › ".join(part for part in place if part)


def _doubts(checks: tuple[SentenceCheck, ...]) -> Html:
    """Tell of sentences that nothing supports: why, and those that were left out with their text."""
    lines = []
    for check in checks:
        if not check.supported:
            what = "Left out" if check.end <= check.start else "Not supported"
            why = "; ".join(check.problems) or "nothing that it cites says so"
            lines.append(small(f"{what}: “{shortened(check.text, _MAX_PASSAGE_CHARS)}” ({why})"))
    return joined(lines)


def _line(answer: Answer) -> Html:
    """Write the one line that sums an answer up."""
    sure = answer.confidence
    level = sure.level.value.replace("_", " ")
    total = answer.timings_ms.get("total")
    said = [
        f"{' + '.join(answer.route.index.names)} › {answer.route.strategy.name}",
        f"written by: {answer.tier.value}" + (", from the cache" if answer.cached else ""),
        f"{answer.usage.usd:.5f} USD" if answer.usage.llm_calls else "no model called",
    ]
    if total is not None:
        said.append(duration(total))
    meter = bar(sure.score, f"confidence {sure.score:.2f}")
    return small("confidence ", meter, " ", element("b", f"{level} {sure.score:.2f}"), " · ", " · ".join(said))


def _work(answer: Answer) -> Html:
    """Write what was done: strategies tried, models asked, times, tokens."""
    tried = [
        small(
            f"tried {one.strategy.value}: {one.nodes} nodes in {duration(one.ms)}"
            + ("" if one.confidence is None else f", confidence {one.confidence:.2f}")
        )
        for one in answer.tried
    ]
    understood = [small(f"understood: {line}") for line in answer.understood]
    asked = [small(str(attempt)) for attempt in answer.attempts]
    spent = small(joined(costs(answer.timings_ms, answer.usage), " · "))
    left = [small(f"{answer.nodes_left_out} nodes found no room in the prompt")] if answer.nodes_left_out else []
    return joined([*understood, *tried, *asked, *left, spent, small(f"query {answer.query_id}")])


def _node(found: NodeWithScore) -> list[object]:
    node = found.node
    place = [node.metadata.get("title") or node.ref_doc_id or node.node_id, node.metadata.get("section")]
    source = " › ".join(shortened(str(part), _MAX_PASSAGE_CHARS) for part in place if part)
    score = "-" if found.score is None else f"{found.score:.3f}"
    passage = shortened(node.get_content(), _MAX_PASSAGE_CHARS)
    return [score, element("span", source, dir="auto"), element("span", passage, dir="auto")]
