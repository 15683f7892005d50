"""What an index is about, and what a run of indexing did, as a notebook draws them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agentic_retriever.schema.markup import details, element, frame, note, shortened, small, table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agentic_retriever.indices.ingest import IngestReport
    from agentic_retriever.indices.profile import IndexProfile

_MOST: Final = 12
_MAX_CHARS: Final = 300


def draw_profile(profile: IndexProfile) -> str:
    """Draw the evidence about an index: its words, fields, numbers and codes."""
    terms = sorted(profile.document_frequency.items(), key=lambda item: (-item[1], item[0]))
    rows = [["commonest terms", ", ".join(f"{term} {count}" for term, count in terms[:_MOST])]]
    rows += [[name, _some(values)] for name, values in sorted(profile.field_values.items())]
    rows += [[name, f"{low:g} to {high:g}"] for name, (low, high) in sorted(profile.number_ranges.items())]
    codes = [[kind, _some(names)] for kind, names in sorted(profile.identifiers.items()) if names]
    facts = (
        f"{profile.nodes:,} nodes, {len(profile.sample):,} sampled, language {profile.language}, "
        f"version {profile.version}"
    )
    return frame(
        element("div", element("b", profile.name), " ", shortened(profile.description, _MAX_CHARS), dir="auto"),
        small(facts),
        table(["", ""], rows, names=2),
        details("codes and numbered things", table(["kind", "names"], codes, names=2)) if codes else "",
    )


def draw_report(report: IngestReport) -> str:
    """Draw what became of the documents, and what was left out."""
    counts = ["added", "updated", "unchanged", "removed", "nodes", "embedded"]
    shown = [note(f"{one.source} was left out: {one.reason}") for one in report.skipped[:_MOST]]
    left = len(report.skipped) - len(shown)
    return frame(
        table(counts, [[f"{getattr(report, name):,}" for name in counts]], names=0),
        *shown,
        small(f"and {left} more left out") if left else "",
    )


def _some(values: Iterable[str]) -> str:
    ordered = sorted(values)
    more = f" and {len(ordered) - _MOST} more" if len(ordered) > _MOST else ""
    return ", ".join(shortened(value, _MAX_CHARS) for value in ordered[:_MOST]) + more
