"""Every error that agentic-retriever raises on purpose.

::

    AgenticRetrieverError                exit code 1
    ├── ConfigError                      3   a setting is unknown, ill-typed or out of range
    ├── InvalidQueryError (ValueError)   4   the question or a query parameter cannot be used
    ├── FilterError (ValueError)         4   a metadata filter cannot be evaluated
    ├── UnknownIndexError                5   no index of that name
    ├── UnknownStrategyError             5   no strategy of that name
    ├── UnknownQueryError                5   the history has no query of that id
    ├── IndexingError                    6   files could not be turned into an index
    │   ├── SourceError                  6   a file or folder cannot be read
    │   ├── IndexExistsError             6   the name is taken
    │   └── UnknownDocumentError         6   no document of that id
    ├── EvaluationError                  6   a data set or its vectors cannot be measured with
    ├── StoreError                       6   the index on disk cannot be used
    │   ├── StoreBusyError               7   another process holds what is to be changed, or changes it
    │   ├── StoreClosedError             6   used after close(), or in a forked child
    │   ├── StoreDamagedError            6   files are missing, truncated or disagree
    │   ├── StoreUnreachableError        6   a server of vectors or the catalog is down, too slow, or refuses
    │   ├── EmbeddingMismatchError       6   built with another embedding model or dimension
    │   └── QueryLogError                6   the query history cannot be read or written
    ├── EmbeddingError                   8   the embedding model failed or returned unusable vectors
    ├── LLMError                         8   a model could not be reached or failed
    │   ├── LLMOutputError               8   a model answered with something unusable
    │   ├── BudgetExceededError          8   the budget allows no further model call
    │   ├── ModelPausedError             8   a model is left alone for a while since it failed just before
    │   ├── AllModelsFailedError         8   no tier answered; ``attempts`` lists what was tried
    │   └── StreamBrokenError            8   an answer broke off while it was shown; ``text`` is what came
    ├── RoutingError                     9   no index or strategy can take the question
    │   ├── NoEligibleStrategyError      9   the index serves none of the allowed strategies
    │   └── OutOfScopeError              9   the question is about nothing in the indexes
    ├── RetrievalError                   9   every way to retrieve failed; ``causes`` lists them
    ├── SynthesisError                   9   nodes were found but no answer could be written
    └── DeadlineExceededError            10  the time budget ran out
        └── OverloadedError              10  too many calls under way or waiting

Each message says what was got, what is allowed and what to do. The original exception, where there is one, is the
``__cause__``. No message carries a key, a prompt or a document's text.
"""

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, ClassVar


class AgenticRetrieverError(Exception):
    """Base of every error raised on purpose by this package."""

    exit_code: ClassVar[int] = 1


class ConfigError(AgenticRetrieverError):
    """A setting is unknown, ill-typed or out of range."""

    exit_code = 3


class InvalidQueryError(AgenticRetrieverError, ValueError):
    """The question or a query parameter cannot be used."""

    exit_code = 4


class FilterError(AgenticRetrieverError, ValueError):
    """A metadata filter cannot be evaluated."""

    exit_code = 4


class UnknownIndexError(AgenticRetrieverError, LookupError):
    """No index of that name."""

    exit_code = 5


class UnknownStrategyError(AgenticRetrieverError, LookupError):
    """No strategy of that name."""

    exit_code = 5


class UnknownQueryError(AgenticRetrieverError, LookupError):
    """The history has no query of that id."""

    exit_code = 5


class IndexingError(AgenticRetrieverError):
    """Files or documents could not be turned into an index."""

    exit_code = 6


class SourceError(IndexingError):
    """A file or folder cannot be read."""


class IndexExistsError(IndexingError):
    """An index of that name exists already."""


class UnknownDocumentError(IndexingError, LookupError):
    """No document of that id."""


class EvaluationError(AgenticRetrieverError):
    """A data set, its judgments or its vectors cannot be used to measure anything."""

    exit_code = 6


class StoreError(AgenticRetrieverError):
    """The index on disk cannot be used."""

    exit_code = 6


class StoreBusyError(StoreError):
    """Another process holds what is to be changed, or changes what is to be read."""

    exit_code = 7


class StoreClosedError(StoreError):
    """The store was used after ``close()`` or in a forked child process."""


class StoreDamagedError(StoreError):
    """Files of an index are missing, truncated or disagree with its manifest."""


class StoreUnreachableError(StoreError):
    """The server that holds an index does not answer in time, fails, or refuses the call."""


class EmbeddingMismatchError(StoreError):
    """The index was built with another embedding model or dimension."""


class QueryLogError(StoreError):
    """The query history cannot be reached, is damaged, or was written by a newer version."""


class EmbeddingError(AgenticRetrieverError):
    """The embedding model failed, or returned vectors that cannot be used."""

    exit_code = 8


class LLMError(AgenticRetrieverError):
    """A language model could not be reached or failed."""

    exit_code = 8


class LLMOutputError(LLMError):
    """A language model answered with something that cannot be used."""


class BudgetExceededError(LLMError):
    """The budget of the query allows no further model call."""


class ModelPausedError(LLMError):
    """A model is left alone until its cooldown ends, since it failed several times in a row."""


class AllModelsFailedError(LLMError):
    """No model tier answered."""

    def __init__(self, message: str, attempts: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.attempts: tuple[Any, ...] = tuple(attempts)


class StreamBrokenError(LLMError):
    """An answer broke off after its first words were shown."""

    def __init__(self, message: str, text: str = "", attempts: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.text = text
        self.attempts: tuple[Any, ...] = tuple(attempts)


class RoutingError(AgenticRetrieverError):
    """No index or strategy can take the question."""

    exit_code = 9


class NoEligibleStrategyError(RoutingError):
    """The index serves none of the strategies that were allowed."""


class OutOfScopeError(RoutingError):
    """The question is about nothing in the indexes, and the settings ask for an error then."""


class RetrievalError(AgenticRetrieverError):
    """Every way to retrieve failed."""

    exit_code = 9

    def __init__(self, message: str, causes: Mapping[str, BaseException] | None = None) -> None:
        super().__init__(message)
        self.causes: dict[str, BaseException] = dict(causes or {})


class SynthesisError(AgenticRetrieverError):
    """Nodes were found but no answer could be written."""

    exit_code = 9


class DeadlineExceededError(AgenticRetrieverError):
    """The time budget of the query ran out."""

    exit_code = 10


class OverloadedError(DeadlineExceededError):
    """Too many calls of one kind are under way or waiting."""


def unknown_name(kind: str, got: str, known: Iterable[str]) -> str:
    """Say that a name is unknown, what is known, and what was probably meant."""
    names = sorted(known)
    close = get_close_matches(got, names, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    listed = ", ".join(names) if names else "none yet"
    return f"unknown {kind} {got[:80]!r}{hint} (known: {listed})"
