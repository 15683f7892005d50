from __future__ import annotations

import pytest

from agentic_retriever import cache
from agentic_retriever.errors import SourceError


def test_a_file_of_questions_without_bounds_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "MAX_FILE_BYTES", 1_000_000)
    file = tmp_path / "questions.txt"
    file.write_text("What is new?\n" * 80_000, encoding="utf-8")
    with pytest.raises(SourceError, match="larger than 1 MB"):
        cache.read_questions(file)
    file.write_text("What is new?\n" * 70_000, encoding="utf-8")
    assert cache.read_questions(file) == (("What is new?",), ())
