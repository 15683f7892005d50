from __future__ import annotations

import json
from importlib.resources import files

import pytest

from agentic_retriever.errors import ConfigError
from agentic_retriever.retrievers.splitting import LISTS, folded, load_table, lowered, parse_table, table_languages


def given(**changes):
    data = {"language": "xx", "spaced": True, **{name: [] for name in LISTS}}
    return json.dumps({**data, **changes})


def test_shipped_tables_are_whole():
    assert table_languages() == ("en", "es", "th")
    for language in table_languages():
        table = load_table(language)
        assert table.language == language
        assert table.spaced is (language != "th")


def test_shipped_entries_have_the_form_that_texts_are_brought_to():
    folder = files("agentic_retriever.retrievers").joinpath("languages")
    for language in table_languages():
        data = json.loads(folder.joinpath(f"{language}.json").read_text(encoding="utf-8"))
        for name in set(LISTS) - {"asks", "relatives", "joins"}:
            for entry in data[name]:
                assert folded(entry) == entry.replace("\\W", "\\w").replace("\\S", "\\s"), (language, name, entry)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "no JSON"),
        ("[]", "must have the keys"),
        (given(more=[]), "more"),
        (given(spaced="yes"), "spaced true or false"),
        (given(joints="and"), "joints must be a list"),
        (given(joints=[""]), "joints must be a list"),
        (given(versus=["("]), "versus holds something that is no regular expression"),
    ],
)
def test_a_damaged_table_names_file_and_key(text, told):
    with pytest.raises(ConfigError, match=r"languages/xx\.json") as caught:
        parse_table(text, file="languages/xx.json")
    assert told in str(caught.value)


def test_words_match_as_words_where_there_are_spaces_and_anywhere_else():
    spaced = parse_table(given(joints=["and"]), file="f")
    joined = parse_table(given(joints=["and"], spaced=False), file="f")
    assert spaced.joints.search("sand") is None
    assert spaced.joints.search("a and b")
    assert joined.joints.search("sand")


@pytest.mark.parametrize("text", ["CAMIÓN", "İstanbul", "ß", "ﬁn", "ที่ดิน", "Ǆ", "\ud800"])
def test_every_character_keeps_its_place(text):
    assert len(folded(text)) == len(lowered(text)) == len(text)
    assert folded("CAMIÓN ñ") == "camion n"
    assert lowered("CAMIÓN ñ") == "camión ñ"
