"""What is embedded and searched of a node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llama_index.core.schema import MetadataMode

if TYPE_CHECKING:
    from llama_index.core.schema import BaseNode


def embedded_text(node: BaseNode) -> str:
    """Return what is embedded and searched of a node: its title, section and text."""
    return node.get_content(metadata_mode=MetadataMode.EMBED)
