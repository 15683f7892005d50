"""Everything that is drawn as HTML: one set of templates for notebooks, reports and pages.

This room draws what it is given and imports nothing of the package, so that every value can draw itself.
"""

from agentic_retriever.show.rendering import Cell, Interval, Table, figure_text, render, short_text

__all__ = ["Cell", "Interval", "Table", "figure_text", "render", "short_text"]
