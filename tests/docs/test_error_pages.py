from __future__ import annotations

import inspect
import re

from doc_blocks import ROOT

from agentic_retriever import errors
from agentic_retriever.cli.app import EXIT_CODES
from agentic_retriever.cli.console import INTERRUPTED, OUTPUT_CLOSED, UNEXPECTED

PAGE = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
KINDS = inspect.getmembers(errors, inspect.isclass)
CLASSES = {name: kind for name, kind in KINDS if kind.__module__ == errors.__name__}
STEP = re.compile(r"(?:step=f?|STEP: Final = |_read\()\"([a-z_]+(?:\.[^\"]+)?)\"")


def test_page_and_module_name_every_error_with_its_exit_code_below_what_it_is_a_kind_of():
    codes = {name: str(kind.exit_code) for name, kind in CLASSES.items()}
    rows = re.findall(r"^\| (— )?`(\w+)` \| (\d+) \|", PAGE, re.MULTILINE)
    assert {name: code for _, name, code in rows} == codes
    assert dict(re.findall(r"(\w+Error)(?: \(\w+\))? +(?:exit code )?(\d+)", errors.__doc__)) == codes
    above = errors.AgenticRetrieverError
    for dash, name, _ in rows:
        above = above if dash else CLASSES[name]
        assert issubclass(CLASSES[name], above), name
        assert issubclass(above, errors.AgenticRetrieverError)


def test_exit_codes_are_those_of_the_command_line():
    table = PAGE.partition("## Exit codes")[2].partition("##")[0]
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    told = {int(code) for code in re.findall(r"(?:: |; )(\d+) ", EXIT_CODES)}
    assert listed == told
    assert {kind.exit_code for kind in CLASSES.values()} | {INTERRUPTED, OUTPUT_CLOSED, UNEXPECTED} <= listed


def test_every_step_that_falls_back_is_listed():
    table = PAGE.partition("## What falls back")[2]
    listed = set(re.findall(r"`([a-z_]+(?:\.\w+)*)`", table))
    kinds = {step.partition(".")[0] for step in listed if step.rpartition(".")[2].isupper()}
    found = {}
    for path in (ROOT / "agentic_retriever").rglob("*.py"):
        for step in STEP.findall(path.read_text(encoding="utf-8")):
            found[step] = path.name
    assert len(found) > 15
    missing = {s: at for s, at in found.items() if s not in listed and s.partition(".")[0] not in kinds}
    # Named apart: a step whose end is a value belongs to a kind in capitals.
    missing |= {s: at for s, at in found.items() if "{" not in s and "." in s and s not in listed}
    assert not missing


def test_every_error_says_what_it_means():
    assert not [name for name, kind in CLASSES.items() if not kind.__doc__]
