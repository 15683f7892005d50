"""What a run of indexing did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentic_retriever.indices.draw_index import draw_report
from agentic_retriever.schema.markup import short_text

if TYPE_CHECKING:
    from agentic_retriever.ingestion import SkippedSource


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestReport:
    """What one run of indexing did.

    Attributes:
        added: Documents that were new.
        updated: Documents that had changed or whose writing had been cut off.
        unchanged: Documents that were as before.
        removed: Documents that are no longer at their source.
        nodes: Nodes written.
        embedded: Texts that the embedding model had to compute; the rest came from its cache.
        skipped: Sources that could not be used, and why.
    """

    added: int = 0
    updated: int = 0
    unchanged: int = 0
    removed: int = 0
    nodes: int = 0
    embedded: int = 0
    skipped: tuple[SkippedSource, ...] = ()

    def __add__(self, other: IngestReport) -> IngestReport:
        return IngestReport(
            added=self.added + other.added,
            updated=self.updated + other.updated,
            unchanged=self.unchanged + other.unchanged,
            removed=self.removed + other.removed,
            nodes=self.nodes + other.nodes,
            embedded=self.embedded + other.embedded,
            skipped=self.skipped + other.skipped,
        )

    def _repr_html_(self) -> str:
        """Draw the counts in Jupyter: escaped, no assets, colours of the theme."""
        return draw_report(self)

    _repr_pretty_ = short_text
