from __future__ import annotations

import pytest

from agentic_retriever.checks import check_query, check_top_k
from agentic_retriever.errors import InvalidQueryError


@pytest.mark.parametrize("query", [None, 5, b"bytes", ["q"], "", "   ", "\n\t\u3000", "x" * 100_000])
def test_unusable_questions_are_refused_with_a_short_message(query):
    with pytest.raises(InvalidQueryError) as caught:
        check_query(query)
    assert len(str(caught.value)) < 200


def test_usable_question_comes_back_unchanged():
    assert check_query("  ¿qué? ") == "  ¿qué? "


@pytest.mark.parametrize("top_k", [0, -1, 10**9, "5", True, 2.0, None, float("nan")])
def test_unusable_top_k_is_refused(top_k):
    with pytest.raises(InvalidQueryError, match="top_k must be"):
        check_top_k(top_k)


def test_usable_top_k_comes_back():
    assert check_top_k(1) == 1
    assert check_top_k(50, maximum=50) == 50
