from __future__ import annotations

import os
from pathlib import Path

import llama_index.core
import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic_retriever.errors import IndexingError
from agentic_retriever.ingestion import chunking as tokens
from agentic_retriever.ingestion import count_tokens

BUNDLED = Path(llama_index.core.__file__).parent / "_static" / "tiktoken_cache"


@pytest.fixture(scope="module")
def reference():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_CACHE_DIR", str(BUNDLED))
        return tiktoken.get_encoding("cl100k_base")


@given(text=st.text(max_size=200))
def test_counts_are_those_of_cl100k_base(reference, text):
    assert count_tokens(text) == len(reference.encode_ordinary(text))


@pytest.mark.parametrize(
    "text", ["I've 1234567 cats!!\n\n  ok", "การจดทะเบียน", "Señalización luminosa, 42 €", "中文 字符", "<|endoftext|>"]
)
def test_counts_of_known_texts(reference, text):
    assert count_tokens(text) == len(reference.encode_ordinary(text))


def test_counting_touches_neither_the_global_tokenizer_nor_the_environment():
    before, environment = llama_index.core.global_tokenizer, dict(os.environ)
    tokens._encoding.cache_clear()
    assert count_tokens("hello world") == 2
    assert llama_index.core.global_tokenizer is before
    assert dict(os.environ) == environment


def test_a_missing_tokenizer_file_is_a_clear_error(monkeypatch):
    monkeypatch.setattr(tokens, "_RANKS_FILE", "absent")
    tokens._encoding.cache_clear()
    with pytest.raises(IndexingError, match="reinstall"):
        count_tokens("x")


@given(text=st.text(min_size=1, max_size=300), limit=st.integers(8, 40))
@settings(max_examples=150)
def test_cuts_move_on_and_keep_the_limit(text, limit):
    start = 0
    while start < len(text):
        end = tokens.take(text, start, len(text), limit)
        assert start < end <= len(text)
        assert end - start == 1 or count_tokens(text[start:end].strip()) <= limit
        start = end


@pytest.mark.parametrize("limit", range(8, 40, 3))
def test_cuts_keep_marks_and_leading_vowels_with_their_letter(limit):
    text = "ที่ดินเกษตรกรรมน้ำ" * 40
    start = 0
    while start < len(text):
        end = tokens.take(text, start, len(text), limit)
        if end < len(text):
            assert text[end] not in "ิีึืุู่้๊๋์ั็ำ"
            assert text[end - 1] not in "เแโใไ"
        start = end


def test_cuts_prefer_white_space():
    text = "palabra " * 200
    assert text[tokens.take(text, 0, len(text), 30) - 1] == " "
