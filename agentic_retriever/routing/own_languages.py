"""Signal tables of languages that a program adds to those of the package."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from agentic_retriever.errors import ConfigError, unknown_name
from agentic_retriever.routing.complexity import forget_assessments
from agentic_retriever.routing.tables import (
    COMPLEXITY_LISTS,
    HOPS,
    SIGNALS,
    add_table,
    packaged_languages,
    parse_table,
    remove_table,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_CODE: Final = re.compile(r"[a-z]{2,3}")


def register_language(
    language: str,
    *,
    signals: Mapping[str, Sequence[str] | Mapping[str, Sequence[str]]],
    complexity: Mapping[str, Any] | None = None,
    spaced: bool = True,
) -> None:
    """Add the words by which stage two and the assessment of complexity read questions of one more language.

    Letter case and accents do not count. A word may hold spaces and end in ``*`` for any ending. What is left out
    stays empty. Register before the first question is asked; registering a language again replaces its table.

    Args:
        language: ISO 639-1 code, as ``agentic_retriever.text.detect_language`` gives it.
        signals: Words by signal (``agentic_retriever.routing.tables.SIGNALS``): a list, or an object of ``words`` and
            ``patterns``, which are regular expressions that take linear time.
        complexity: Lists by name, as in the packaged tables (``COMPLEXITY_LISTS`` and ``hops``).
        spaced: Whether words stand between spaces; without, a word is found anywhere.

    Raises:
        ConfigError: If the code is none, the package has a table of that language, a key is unknown, or a pattern is no
            regular expression.
    """
    if not _CODE.fullmatch(language):
        raise ConfigError(f"a language must be a code of two or three small letters, such as fr, not {language[:40]!r}")
    if language in packaged_languages():
        raise ConfigError(f"the package has a table of {language!r}; only languages without one can be added")
    lists: dict[str, Any] = {**dict.fromkeys(COMPLEXITY_LISTS, ()), HOPS: {}}
    _known(complexity or {}, lists, "list of complexity")
    _known(signals, SIGNALS, "signal")
    table = {
        "language": language,
        "spaced": spaced,
        "complexity": {**lists, **(complexity or {})},
        "signals": {name: _entry(signals.get(name, ())) for name in SIGNALS},
    }
    try:
        text = json.dumps(table, default=list)
    except (TypeError, ValueError) as err:
        raise ConfigError(f"the table of {language!r} must hold strings, numbers and lists alone: {err}") from err
    add_table(parse_table(text, file=f"the table of {language!r}"))
    forget_assessments()


def unregister_language(language: str) -> None:
    """Take away the table of a language that was added.

    Raises:
        ConfigError: If none was added for it.
    """
    remove_table(language)
    forget_assessments()


def _entry(words: Sequence[str] | Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Write a signal's words as the packaged tables do."""
    if isinstance(words, str):
        raise ConfigError(f"words of a signal must be a list, got the text {words[:40]!r}")
    parts = dict(words) if isinstance(words, Mapping) else {"words": words}
    return {"words": (), "patterns": (), **parts}


def _known(given: Iterable[str], known: Iterable[str], kind: str) -> None:
    names = list(known)
    for name in given:
        if name not in names:
            raise ConfigError(unknown_name(kind, name, names))
