from __future__ import annotations

import pytest

from agentic_retriever.ingestion.structure import scan_blocks


def kinds(text: str) -> list[str]:
    return [block.kind for block in scan_blocks(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" \n\t\n", []),
        ("one\ntwo\n\nthree", ["text", "text"]),
        ("| a | b |\n|---|---|\n| 1 | 2 |\n", ["table"]),
        ("a | b\n--- | ---\n1 | 2\n\nend", ["table", "text"]),
        ("Intro:\n| a | b |\n| 1 | 2 |\nAfter", ["text", "table", "text"]),
        ("this | that\nis prose", ["text"]),
        ("```python\nx = 1\n\ny = 2\n```\nafter", ["code", "text"]),
        ("~~~\n```\n~~~", ["code"]),
        ("````\n```\n````", ["code"]),
        ("Quedan excluidos:\n- a\n- b\n", ["text", "list"]),
        ("1. one\n2. two\n   still two\n", ["list"]),
        ("# A\ntext\n## B\n", ["heading", "text", "heading"]),
    ],
)
def test_kinds(text: str, expected: list[str]) -> None:
    assert kinds(text) == expected


def test_spans_are_trimmed_and_start_where_asked() -> None:
    text = "skipped\n\n   indented  \n\nlast\n"
    blocks = scan_blocks(text, start=9)
    assert [text[block.start : block.end] for block in blocks] == ["indented", "last"]
