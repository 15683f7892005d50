from __future__ import annotations

from datetime import date

import pytest

from agentic_retriever.errors import SourceError
from agentic_retriever.ingestion import RESERVED_KEYS
from agentic_retriever.ingestion.documents import clean_text, flat_metadata


def test_scalars_and_lists_stay() -> None:
    given = {"s": "x", "i": 1, "f": 1.5, "b": True, "l": ["a", 1, False]}
    flat = flat_metadata(given, doc_id="d")
    assert flat == given
    assert flat["l"] is not given["l"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"a": None}, {}),
        ({"a": {"b": 1, "c": {"d": "x"}}}, {"a_b": 1, "a_c_d": "x"}),
        ({"a": {"b": 1}, "a_b": 2}, {"a": '{"b": 1}', "a_b": 2}),
        ({"a": {}}, {}),
        ({"a": [{"b": 1}, None]}, {"a": ['{"b": 1}']}),
        ({"a": date(2024, 5, 1)}, {"a": "2024-05-01"}),
        ({"a": {3, 1, 2}}, {"a": [1, 2, 3]}),
        ({1: "x"}, {"1": "x"}),
        ({"a": "x\ud800\0"}, {"a": "x\ufffd\ufffd"}),
        ({"a": {"b": {"c": {"d": {"e": 1}}}}}, {"a_b_c_d": '{"e": 1}'}),
        ({"doc_id": "d", "a": 1}, {"a": 1}),
    ],
)
def test_other_values(given: dict[str, object], expected: dict[str, object]) -> None:
    assert flat_metadata(given, doc_id="d") == expected


@pytest.mark.parametrize("key", sorted(RESERVED_KEYS))
def test_reserved_keys_are_refused(key: str) -> None:
    with pytest.raises(SourceError, match=f"'{key}' is reserved for the store; rename it"):
        flat_metadata({key: "other"}, doc_id="d")


def test_an_empty_key_is_refused() -> None:
    with pytest.raises(SourceError, match="key is empty"):
        flat_metadata({" ": 1}, doc_id="d")


def test_a_flattened_name_is_never_a_reserved_one() -> None:
    assert flat_metadata({"doc": {"id": 7}}, doc_id="d") == {"doc": '{"id": 7}'}


def test_cleaning_keeps_the_length() -> None:
    text = "a\ud83dß\0ก"
    assert len(clean_text(text)) == len(text)
    clean_text(text).encode()
