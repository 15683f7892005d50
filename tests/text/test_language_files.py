from __future__ import annotations

import pytest

from agentic_retriever.errors import ConfigError
from agentic_retriever.text.language_files import SECTIONS, language_files, languages_with, parse_language


def test_every_packaged_file_is_named_after_its_language():
    assert {"en", "es", "th", "und"} <= set(language_files())
    assert all(data["language"] == code for code, data in language_files().items())


def test_files_are_read_once():
    assert language_files() is language_files()


@pytest.mark.parametrize("section", SECTIONS)
def test_english_has_every_section(section):
    assert "en" in languages_with(section)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "is no JSON"),
        ("[]", "must be an object"),
        ('{"language": 3, "spaced": true}', "must be an object"),
        ('{"language": "xx", "spaced": "yes"}', "spaced must be true or false"),
        ('{"language": "xx", "spaced": true, "sginals": {}}', "unknown sections: sginals"),
    ],
)
def test_a_damaged_file_is_named(text, told):
    with pytest.raises(ConfigError, match=r"languages/xx\.json") as caught:
        parse_language(text, file="languages/xx.json")
    assert told in str(caught.value)
