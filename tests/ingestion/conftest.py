from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agentic_retriever.ingestion import SkippedSource, SourceDocument, read_source

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def make_doc() -> Callable[..., SourceDocument]:
    def build(text: str, **changes: object) -> SourceDocument:
        fields: dict[str, object] = {
            "doc_id": "doc",
            "metadata": {},
            "source": "",
            "root": "",
            "title": "",
            "kind": "md",
        }
        return SourceDocument(text=text, **{**fields, **changes})  # type: ignore[arg-type] - fields by name

    return build


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., list[SourceDocument | SkippedSource]]:
    """Write a file with the given bytes or text, and read it."""

    def run(name: str, content: bytes | str, **options: int) -> list[SourceDocument | SkippedSource]:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return list(read_source(path, root=tmp_path, **options))

    return run
