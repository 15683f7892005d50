from __future__ import annotations

import re
from dataclasses import fields

from doc_blocks import ROOT

from agentic_retriever.config import PREFIX, RouterConfig, configuration_markdown
from agentic_retriever.config.pages import _HEADINGS
from agentic_retriever.config.values import plain

PAGE = ROOT / "docs" / "configuration.md"


def test_the_page_of_settings_is_what_the_settings_say():
    assert PAGE.read_text(encoding="utf-8") == configuration_markdown(), "write it anew with: make docs"


def test_every_setting_stands_in_it_once_with_its_default():
    rows = re.findall(rf"^\| `{PREFIX}(\w+)`.*?\| (.*?) \|", configuration_markdown(), re.MULTILINE)
    assert [name.lower() for name, _ in rows] == [f.name for f in fields(RouterConfig)]
    shown = {name.lower(): default.strip("`").replace("\\|", "|") for name, default in rows}
    for f in fields(RouterConfig):
        assert shown[f.name].lower() == str(plain(f.default)).lower()


def test_every_heading_stands_before_a_setting():
    names = [f.name for f in fields(RouterConfig)]
    assert names[0] in _HEADINGS
    assert set(_HEADINGS) <= set(names)


def test_no_cell_of_a_table_breaks_its_row():
    for line in configuration_markdown().splitlines():
        if line.startswith("| `"):
            assert len(re.findall(r"(?<!\\)\|", line)) == 5, line
