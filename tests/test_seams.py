from __future__ import annotations

import pytest

from agentic_retriever.errors import EmbeddingError, RetrievalError, StoreError
from agentic_retriever.threads import guarded


def failing(error):
    def call():
        raise error

    return call


def test_what_a_call_returns_is_returned():
    assert guarded("the store", lambda: 42) == 42


def test_foreign_errors_are_told_by_their_type_alone():
    cause = KeyError("api-key-123")
    with pytest.raises(StoreError) as failed:
        guarded("the store", failing(cause))
    assert str(failed.value) == "the store failed with KeyError; see the cause"
    assert failed.value.__cause__ is cause


def test_the_kind_of_error_and_the_advice_are_the_callers():
    with pytest.raises(RetrievalError) as failed:
        guarded("it", failing(OSError("x")), error=RetrievalError, advice="ask again")
    assert str(failed.value) == "it failed with OSError; ask again"
    assert failed.value.causes == {}


@pytest.mark.parametrize("error", [EmbeddingError("down"), KeyboardInterrupt()])
def test_our_own_errors_and_what_is_no_error_pass_as_they_are(error):
    with pytest.raises(type(error)) as passed:
        guarded("it", failing(error))
    assert passed.value is error
