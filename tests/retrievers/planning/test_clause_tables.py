from __future__ import annotations

import pytest

from agentic_retriever.errors import ConfigError
from agentic_retriever.retrievers.splitting import LISTS, folded, load_table, lowered, parse_table
from agentic_retriever.text.language_files import language_files, languages_with


def given(*, spaced=True, **changes):
    return {"language": "xx", "spaced": spaced, "clauses": {**{name: [] for name in LISTS}, **changes}}


def test_shipped_tables_are_whole():
    assert languages_with("clauses") == ("en", "es", "th")
    for language in languages_with("clauses"):
        table = load_table(language)
        assert table.language == language
        assert table.spaced is (language != "th")


def test_shipped_entries_have_the_form_that_texts_are_brought_to():
    for language in languages_with("clauses"):
        data = language_files()[language]["clauses"]
        for name in set(LISTS) - {"asks", "relatives", "joins"}:
            for entry in data[name]:
                assert folded(entry) == entry.replace("\\W", "\\w").replace("\\S", "\\s"), (language, name, entry)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({**given(), "clauses": []}, "must be an object with the keys"),
        (given(more=[]), "more"),
        (given(joints="and"), "joints must be a list"),
        (given(joints=[""]), "joints must be a list"),
        (given(versus=["("]), "versus holds something that is no regular expression"),
    ],
)
def test_a_damaged_table_names_file_and_key(data, told):
    with pytest.raises(ConfigError, match=r"languages/xx\.json") as caught:
        parse_table(data, file="languages/xx.json")
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
