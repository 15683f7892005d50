import inspect
import re

from doc_blocks import ROOT
from settings_pages import HEADINGS, configuration_markdown, env_example

from agentic_retriever import errors
from agentic_retriever.cli.app import EXIT_CODES
from agentic_retriever.cli.terminal import INTERRUPTED, OUTPUT_CLOSED, UNEXPECTED
from agentic_retriever.config import PREFIX, REMOVED, RouterConfig

PAGE = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
KINDS = inspect.getmembers(errors, inspect.isclass)
CLASSES = {name: kind for name, kind in KINDS if kind.__module__ == errors.__name__}
STEP = re.compile(r"(?:step=f?|STEP: Final = |_read\()\"([a-z_]+(?:\.[^\"]+)?)\"")


def test_every_error_and_exit_code_is_named_below_what_it_is_a_kind_of():
    assert not [name for name, kind in CLASSES.items() if not kind.__doc__]
    codes = {name: str(kind.exit_code) for name, kind in CLASSES.items()}
    rows = re.findall(r"^\| (— )?`(\w+)` \| (\d+) \|", PAGE, re.MULTILINE)
    assert {name: code for _, name, code in rows} == codes
    assert dict(re.findall(r"(\w+Error)(?: \(\w+\))? +(?:exit code )?(\d+)", errors.__doc__)) == codes
    above = errors.AgenticRetrieverError
    for dash, name, _ in rows:
        above = above if dash else CLASSES[name]
        assert issubclass(CLASSES[name], above), name
        assert issubclass(above, errors.AgenticRetrieverError)
    table = PAGE.partition("## Exit codes")[2].partition("##")[0]
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    assert listed == {int(code) for code in re.findall(r"(?:: |; )(\d+) ", EXIT_CODES)}
    assert {kind.exit_code for kind in CLASSES.values()} | {INTERRUPTED, OUTPUT_CLOSED, UNEXPECTED} <= listed


def test_every_step_that_falls_back_is_listed():
    listed = set(re.findall(r"`([a-z_]+(?:\.\w+)*)`", PAGE.partition("## What falls back")[2]))
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


def test_an_unknown_name_is_answered_with_what_is_known_and_a_failure_keeps_its_causes():
    cause = ValueError("x")
    assert errors.RetrievalError("all failed", {"vector": cause}).causes == {"vector": cause}
    told = errors.unknown_name("index", "handbok", ["handbook", "deeds"])
    assert told == "unknown index 'handbok'; did you mean 'handbook'? (known: deeds, handbook)"
    assert errors.unknown_name("index", "x" * 500, []).endswith("(known: none yet)")
    assert len(errors.unknown_name("index", "x" * 500, [])) < 150


DEFAULTS = {name: str(value) for name, value in RouterConfig().to_dict().items()}


def test_the_pages_of_settings_are_what_the_settings_say_each_once_with_its_default():
    for path, page in [("docs/configuration.md", configuration_markdown), (".env.example", env_example)]:
        assert (ROOT / path).read_text(encoding="utf-8") == page(), "write it anew with: make docs"
    rows = re.findall(rf"^\| `{PREFIX}(\w+)`.*?\| (.*?) \|", configuration_markdown(), re.MULTILINE)
    shown = {name.lower(): default.strip("`").replace("\\|", "|") for name, default in rows}
    assert list(shown) == [name.lower() for name, _ in rows] == list(DEFAULTS)
    assert {name: text.lower() for name, text in shown.items()} == {n: text.lower() for n, text in DEFAULTS.items()}
    given = dict(re.findall(r"^#(\w+)=(.*)$", env_example(), re.MULTILINE))
    assert list(given) == [PREFIX + name.upper() for name in DEFAULTS]
    assert RouterConfig.from_env(given) == RouterConfig()


def test_headings_stand_before_at_most_45_settings_and_no_cell_breaks_its_row():
    assert next(iter(DEFAULTS)) in HEADINGS
    assert set(HEADINGS) <= set(DEFAULTS)
    rows = [line for line in configuration_markdown().splitlines() if line.startswith("| `")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {5}
    assert len(DEFAULTS) <= 45
    assert not REMOVED.keys() & DEFAULTS.keys()
