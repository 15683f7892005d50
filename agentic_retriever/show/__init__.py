"""Everything that is drawn as HTML: one set of templates for notebooks, reports and pages.

This imports nothing of the package, so that every value can draw itself. Styles stand inline, as notebooks that are not
trusted lose style sheets, and use only colours that can be read on light and on dark ground.
"""

from __future__ import annotations

import hashlib
import math
import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from jinja2 import Environment

# Control characters but tab and line feed; characters that turn the reading direction of what follows; characters
# that XML-based renderers refuse.
_STRIPPED: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufffe\uffff]")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_SPACE: Final = re.compile(r"\s+")
_MARKER: Final = re.compile(r"(\[[0-9]{1,4}\])")
_LINE_END: Final = re.compile(r"\n\s*")
_MAX_PLAIN_CHARS: Final = 2_000
_MAX_ROWS: Final = 12
_MIN_SIGNAL: Final = 0.005
_CHOICES: Final = frozenset({"query", "index.name", "index.names", "index.abstained", "strategy.name", "complexity"})


class Cell(NamedTuple):
    """One cell of a table that is more than its text."""

    text: str = ""
    best: bool = False  # in bold
    aside: str = ""  # smaller and paler behind the text
    share: float | None = None  # in [0, 1], drawn as a bar

    def __str__(self) -> str:
        return f"{self.text} {self.aside}".rstrip()


class Interval(NamedTuple):
    """A mean with its interval, for a plot."""

    name: str
    mean: float
    low: float
    high: float
    hollow: bool = False  # a ring instead of a point, for what is not to be compared on equal terms
    best: bool = False  # the name in bold


class Section(NamedTuple):
    """One part of a result: what it is called, its table, and what is to be said of it."""

    title: str
    headers: Sequence[str] = ()
    rows: Sequence[Sequence[object]] = ()
    names: int = 1  # how many columns hold words; the others hold figures
    lines: Sequence[str] = ()  # below the table
    intervals: Sequence[Interval] = ()  # drawn as a plot where there can be one
    detail: bool = False  # for the report; folded away in a notebook, left out on the terminal


def render(template: str, **values: object) -> str:
    """Draw values by the template of that name, such as ``render("answer.html", answer=answer)``."""
    return _environment().get_template(template).render(**values)


def short_text(value: object, printer: Any, cycle: bool) -> None:  # noqa: ANN401, ARG001 - as IPython calls it
    """Write the text of a value, or its representation, cut where it is long; notebooks store this beside the HTML.

    Give it to ``_repr_pretty_`` in the body of each class: IPython prefers ``__repr__`` to what is inherited.
    """
    written = str(value) if type(value).__str__ is not object.__str__ else repr(value)
    printer.text(_clean(written if len(written) <= _MAX_PLAIN_CHARS else f"{written[: _MAX_PLAIN_CHARS - 1]}…"))


def drawn_by(template: str, name: str) -> tuple[Callable[[object], str], Callable[[object, Any, bool], None]]:
    """Return ``_repr_html_`` and ``_repr_pretty_`` for the body of a class that a template knows by a name."""
    return lambda value: render(template, **{name: value}), short_text


def figure_text(value: float | None, digits: int = 3) -> str:
    """Write a figure, or a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


@lru_cache(maxsize=1)
def _environment() -> Environment:
    """Make the environment of all templates; jinja2 is loaded with the first drawing."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined  # noqa: PLC0415 - only where it draws
    from markupsafe import Markup  # noqa: PLC0415 - likewise

    templates = Path(__file__).parent / "templates"
    environment = Environment(
        # Line ends and indentation of a template are no part of what it draws.
        loader=FunctionLoader(lambda name: _LINE_END.sub("", (templates / name).read_text(encoding="utf-8"))),
        extensions=["jinja2.ext.do"],
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markup) else _clean(str(value)),
    )
    environment.filters.update(
        line=_line, short=shortened, duration=duration, figure=figure_text, some=_some, plain=_plain_value
    )
    environment.globals.update(
        anchor_of=_anchor, pieces=_pieces, links=_links, candidates=_candidates, signals=signals_text, costs=_costs,
        source=_source, node_row=node_row, interval_plot=interval_plot, choices=_CHOICES,
    )  # fmt: skip
    return environment


def _clean(value: str) -> str:
    return _SURROGATE.sub("\ufffd", _STRIPPED.sub("", value))


def _line(value: object) -> str:
    """Return any text as one line, as it stands in attributes."""
    return _SPACE.sub(" ", str(value))


def shortened(value: object, most: int) -> str:
    """Return a text as one line of at most so many characters, with an ellipsis where it was cut."""
    line = _line(value).strip()
    return line if len(line) <= most else f"{line[: most - 1]}…"


def duration(ms: float) -> str:
    if ms >= 1000:
        return f"{ms / 1000:.1f} s"
    return f"{ms:.0f} ms" if ms >= 10 else f"{ms:.1f} ms"


def _some(values: Any, most: int = _MAX_ROWS) -> str:  # noqa: ANN401 - any texts
    """List the first of some texts in their order."""
    ordered = sorted(values)
    more = f" and {len(ordered) - most} more" if len(ordered) > most else ""
    return ", ".join(shortened(value, 300) for value in ordered[:most]) + more


def _plain_value(value: object) -> str:
    if value is None:
        return "none"
    return f"{value:.3f}" if isinstance(value, float) else shortened(value, 300)


def _anchor(query_id: str) -> str:
    return "ar-" + hashlib.sha256(query_id.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def _source(citation: Any) -> str:  # noqa: ANN401 - a Citation, which this room does not know
    place = [citation.title or citation.doc_id, citation.section, citation.place]
    return " › ".join(part for part in place if part)


def node_row(at: int, found: Any) -> list[object]:  # noqa: ANN401 - a NodeWithScore
    """Return what is shown of a hit: its number, score, source and the beginning of its text."""
    node = found.node
    place = [node.metadata.get("title") or node.ref_doc_id or node.node_id, node.metadata.get("section")]
    source = " › ".join(shortened(part, 240) for part in place if part)
    return [at, figure_text(found.score), source, shortened(node.get_content(), 240)]


def _pieces(answer: Any) -> Iterator[tuple[str, str]]:  # noqa: ANN401 - an Answer
    """Yield the text of an answer piece by piece, each with why nothing supports it, ``""`` where something does."""
    words, at = str(answer.text), 0
    for check in sorted(answer.checks, key=lambda one: one.start):
        if check.supported or check.start < at or check.end <= check.start:
            continue
        yield words[at : check.start], ""
        yield words[check.start : check.end], "; ".join(check.problems) or "not supported by what it cites"
        at = check.end
    yield words[at:], ""


def _links(piece: str, cited: Mapping[int, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a text, those that are the marker of a citation with it, the others with ``None``."""
    for at, part in enumerate(_MARKER.split(piece)):  # every other part is a marker
        yield part, cited.get(int(part[1:-1])) if at % 2 else None


def _candidates(stage: Any) -> tuple[list[str], list[list[Cell]], int]:  # noqa: ANN401 - a Selection
    """Return headers and rows of the candidates of a stage, and how many are left out."""
    first = list(stage.scores.items())[:_MAX_ROWS]
    kinds = list(dict.fromkeys(kind for name, _ in first for kind in stage.evidence.get(name, {})))
    rows = []
    for name, score in first:
        found = stage.evidence.get(name, {})
        figures = [Cell(f"{found[kind]:.2f}" if kind in found else "") for kind in kinds]
        rows.append([Cell(name, best=name in stage.names), Cell(f"{score:.3f}", share=score), *figures])
    return ["candidate", "score", *kinds], rows, len(stage.scores) - len(first)


def signals_text(features: Mapping[str, float]) -> str:
    """List the signals that were seen, the strongest first."""
    ordered = sorted(features.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name.replace('_', ' ')} {value:.2f}" for name, value in ordered if value >= _MIN_SIGNAL)


def _costs(timings_ms: Mapping[str, float], usage: Any) -> str:  # noqa: ANN401 - a Usage
    """Say what was spent: times by step, calls, tokens and money."""
    said = [f"{name} {duration(ms)}" for name, ms in timings_ms.items()]
    if usage.llm_calls:
        tokens = sum(one.prompt_tokens + one.completion_tokens for one in usage.tiers)
        said.append(f"{usage.llm_calls} model calls, {tokens:,} tokens, {usage.usd:.5f} USD")
    return " · ".join(said)


# Means with their intervals as a plot, which the macro ``intervals`` draws.

_NAMES, _PLOT, _FIGURES, _ROW, _AXIS = 200, 340, 50, 18, 22
_MOST_TICKS: Final = 6
_RADIUS: Final = 4


def interval_plot(lines: Sequence[Interval]) -> dict[str, Any] | None:
    """Place means with their intervals, one below the other; ``None`` when no line has finite figures."""
    drawn = [line for line in lines if all(map(math.isfinite, (line.mean, line.low, line.high)))]
    if not drawn:
        return None
    ticks = axis_ticks(min(line.low for line in drawn), max(line.high for line in drawn))
    placed = []
    for row, line in enumerate(drawn):
        x, low, high = _at(line.mean, ticks), _at(line.low, ticks), _at(line.high, ticks)
        # A ring must let the line through as little as the ground does, so the line stops on both sides of it.
        strokes = [(low, max(low, x - _RADIUS)), (min(high, x + _RADIUS), high)] if line.hollow else [(low, high)]
        placed.append({"of": line, "x": x, "y": _ROW * row + _ROW // 2, "strokes": strokes})
    return {
        "width": _NAMES + _PLOT + _FIGURES,
        "height": _ROW * len(drawn) + _AXIS,
        "axis": _ROW * len(drawn),
        "figures_x": _NAMES + _PLOT + 6,
        "radius": _RADIUS,
        "ticks": [(_at(tick, ticks), f"{tick:g}") for tick in ticks],
        "lines": placed,
    }


def axis_ticks(low: float, high: float) -> list[float]:
    """Return round figures that take in both ends, two at least and six at most but for rounding."""
    span = max(high - low, 1e-3)
    rough = span / (_MOST_TICKS - 1)
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(step * at, 10) for at in range(first, max(last, first + 1) + 1)]


def _at(value: float, ticks: Sequence[float]) -> float:
    share = (value - ticks[0]) / (ticks[-1] - ticks[0])
    return round(_NAMES + 8 + share * (_PLOT - 16), 1)
