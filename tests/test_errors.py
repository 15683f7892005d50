from __future__ import annotations

import inspect

from agentic_retriever import errors
from agentic_retriever.cli.app import EXIT_CODES


def own_errors():
    return [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, errors.AgenticRetrieverError)]


def test_the_tree_in_the_docstring_names_every_error_with_its_exit_code():
    drawn = {}
    for line in errors.__doc__.splitlines():
        words = line.replace("│", " ").replace("├──", " ").replace("└──", " ").split()
        if words and words[0].endswith("Error"):
            drawn[words[0]] = int(next(word for word in words[1:] if word.isdigit()))
    assert drawn == {c.__name__: c.exit_code for c in own_errors()}
    for error in own_errors():
        assert f" {error.exit_code} " in EXIT_CODES, "the help has every exit code"


def test_an_unknown_name_is_answered_with_what_is_known_and_a_failure_keeps_its_causes():
    cause = ValueError("x")
    assert errors.RetrievalError("all failed", {"vector": cause}).causes == {"vector": cause}
    told = errors.unknown_name("index", "handbok", ["handbook", "deeds"])
    assert told == "unknown index 'handbok'; did you mean 'handbook'? (known: deeds, handbook)"
    assert errors.unknown_name("index", "x" * 500, []).endswith("(known: none yet)")
    assert len(errors.unknown_name("index", "x" * 500, [])) < 150
