from __future__ import annotations

import re

import pytest
from doc_blocks import ROOT
from settings_pages import HEADINGS, configuration_markdown, env_example

from agentic_retriever.config import PREFIX, REMOVED, RouterConfig

DEFAULTS = {name: str(value) for name, value in RouterConfig().to_dict().items()}


@pytest.mark.parametrize(
    ("path", "page"), [("docs/configuration.md", configuration_markdown), (".env.example", env_example)]
)
def test_the_page_of_settings_is_what_the_settings_say(path, page):
    assert (ROOT / path).read_text(encoding="utf-8") == page(), "write it anew with: make docs"


def test_every_setting_stands_in_the_table_once_with_its_default():
    rows = re.findall(rf"^\| `{PREFIX}(\w+)`.*?\| (.*?) \|", configuration_markdown(), re.MULTILINE)
    shown = {name.lower(): default.strip("`").replace("\\|", "|") for name, default in rows}
    assert list(shown) == [name.lower() for name, _ in rows] == list(DEFAULTS)
    assert {name: text.lower() for name, text in shown.items()} == {n: text.lower() for n, text in DEFAULTS.items()}


def test_every_default_of_the_example_is_one():
    given = dict(re.findall(r"^#(\w+)=(.*)$", env_example(), re.MULTILINE))
    assert list(given) == [PREFIX + name.upper() for name in DEFAULTS]
    assert RouterConfig.from_env(given) == RouterConfig()


def test_headings_stand_before_settings_and_no_cell_breaks_its_row():
    assert next(iter(DEFAULTS)) in HEADINGS
    assert set(HEADINGS) <= set(DEFAULTS)
    rows = [line for line in configuration_markdown().splitlines() if line.startswith("| `")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {5}


def test_there_are_at_most_45_settings_and_none_is_both_there_and_gone():
    assert len(DEFAULTS) <= 45
    assert not REMOVED.keys() & DEFAULTS.keys()
