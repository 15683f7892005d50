"""HTML for notebooks: whatever comes from outside is text, nothing is loaded, and colours are those of the theme.

Text becomes HTML in :func:`text` and nowhere else. A plain string is escaped wherever it is put, also one that was
joined or formatted from HTML, so a mistake shows as visible tags and never as markup. Styles stand inline, since
notebooks that are not trusted lose their style sheets; only ``currentColor``, opacity and JupyterLab's variables with a
grey behind them are used, which can be read on light and on dark ground.
"""

from __future__ import annotations

import html
import math
import re
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# Control characters but tab and line feed; characters that turn the reading direction of what follows; characters
# that XML-based renderers refuse.
_STRIPPED: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufffe\uffff]")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_SPACE: Final = re.compile(r"\s+")
_BAR_WIDTH, _BAR_HEIGHT = 80, 8
_MAX_PLAIN_CHARS: Final = 2_000
_VOID: Final = frozenset({"rect", "line", "circle"})

BORDER: Final = "1px solid var(--jp-border-color2, rgba(128,128,128,.4))"
FAINT: Final = "opacity:.75"
_CELL: Final = f"padding:.15em .6em;border-bottom:{BORDER};vertical-align:top;text-align:"
# Dollars in an answer are money: the two classes keep the notebook's typesetting of formulas away from it.
_FRAME: Final = "agentic-retriever tex2jax_ignore mathjax_ignore"


class Html(str):
    """HTML that is safe to show; what is joined or formatted from it is a plain string again, and is escaped."""

    __slots__ = ()


class _Printer(Protocol):
    def text(self, obj: str) -> None: ...


def short_text(value: object, printer: _Printer, cycle: bool) -> None:  # noqa: ARG001 - as IPython calls it
    """Write the text of a value that has one, else its representation, cut where it is long.

    This is to be ``_repr_pretty_`` in the very body of a class, since IPython prefers the ``__repr__`` of a class to
    what it inherits. Notebooks store this beside the HTML, where the representation of a benchmark would take hundreds
    of kilobytes.
    """
    written = str(value) if type(value).__str__ is not object.__str__ else repr(value)
    printer.text(_clean(written if len(written) <= _MAX_PLAIN_CHARS else f"{written[: _MAX_PLAIN_CHARS - 1]}…"))


def text(value: object) -> Html:
    """Turn anything into HTML: HTML stays as it is, everything else is escaped."""
    if isinstance(value, Html):
        return value
    return Html(html.escape(_clean(str(value))))


def element(name: str, *inside: object, **attributes: object) -> Html:
    """Write one element."""
    shown = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(_SPACE.sub(" ", str(value)))}"'
        for key, value in attributes.items()
    )
    if name in _VOID:
        return Html(f"<{name}{shown}/>")
    return Html(f"<{name}{shown}>{joined(inside)}</{name}>")


def joined(parts: Iterable[object], between: str = "") -> Html:
    """Put parts behind each other; plain strings among them, and what stands between them, are escaped."""
    return Html(text(between).join(text(part) for part in parts))


def frame(*parts: object) -> str:
    """Put parts into the frame that every drawing has."""
    return str(element("div", *parts, class_=_FRAME, style="line-height:1.45;max-width:64rem"))


def table(headers: Sequence[object], rows: Iterable[Sequence[object]], *, caption: object = "", names: int = 1) -> Html:
    """Write a table."""
    align = [
        _CELL + ("left" if at < names else "right;font-variant-numeric:tabular-nums") for at in range(len(headers))
    ]
    top = element("tr", *(element("th", cell, style=style) for cell, style in zip(headers, align, strict=True)))
    body = [
        element("tr", *(element("td", cell, style=style) for cell, style in zip(row, align, strict=True)))
        for row in rows
    ]
    head = [element("thead", top)] if any(str(cell) for cell in headers) else []
    title = [element("caption", caption, style="text-align:left;font-weight:600")] if str(caption) else []
    style = "border-collapse:collapse;margin:.3em 0;width:auto"
    inside = element("table", *title, *head, element("tbody", *body), style=style)
    return element("div", inside, style="overflow-x:auto")


def bar(share: float, label: str) -> Html:
    """Draw a share as a small bar."""
    filled = round(_BAR_WIDTH * min(1.0, max(0.0, share))) if math.isfinite(share) else 0
    ground = element("rect", width=_BAR_WIDTH, height=_BAR_HEIGHT, rx=2, fill="currentColor", opacity=".15")
    front = element("rect", width=filled, height=_BAR_HEIGHT, rx=2, fill="currentColor", opacity=".65")
    return element("svg", ground, front, width=_BAR_WIDTH, height=_BAR_HEIGHT, role="img", aria_label=label)


def details(summary: object, *inside: object) -> Html:
    """Fold parts away below a line that opens them."""
    head = element("summary", summary, style="cursor:pointer")
    return element("details", head, *inside, style="margin:.4em 0")


def small(*inside: object) -> Html:
    """Write a line that stands back."""
    return element("div", *inside, style=f"{FAINT};font-size:.9em")


def note(*inside: object) -> Html:
    """Write a line that a reader should not miss."""
    return element("div", *inside, style="border-left:3px solid currentColor;padding-left:.6em;margin:.3em 0")


def shortened(value: str, most: int) -> str:
    """Return a text as one line of at most so many characters, with an ellipsis where it was cut."""
    line = _SPACE.sub(" ", value).strip()
    return line if len(line) <= most else f"{line[: most - 1]}…"


def duration(ms: float) -> str:
    """Write milliseconds as a person reads them."""
    if ms >= 1000:
        return f"{ms / 1000:.1f} s"
    return f"{ms:.0f} ms" if ms >= 10 else f"{ms:.1f} ms"


def figure(value: float | None, digits: int = 3) -> str:
    """Write a figure, or a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def _clean(value: str) -> str:
    return _SURROGATE.sub("\ufffd", _STRIPPED.sub("", value))
