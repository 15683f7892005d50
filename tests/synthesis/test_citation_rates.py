from __future__ import annotations

from collections import Counter

import pytest
from citation_cases import FALSE_KINDS, LANGUAGES, TRUE_KINDS, cases
from citation_material import FREE, PARAPHRASES
from citation_table import measured


@pytest.fixture(scope="module")
def held():
    return measured("held")


def test_there_are_enough_cases_of_every_kind_and_they_are_the_same_again():
    every = cases()
    cases.cache_clear()
    assert every == cases()
    assert len(every) >= 600
    assert len({case.answer for case in every}) > 500
    counts = Counter((case.language, case.kind) for case in every)
    assert set(counts) == {(language, kind) for language in LANGUAGES for kind in (*TRUE_KINDS, *FALSE_KINDS)}
    assert min(counts.values()) >= 10
    assert len(PARAPHRASES["en"]) >= 20
    assert len(PARAPHRASES["es"]) >= 20
    assert len(PARAPHRASES["th"]) >= 15


def test_no_sentence_of_the_corpus_is_in_both_halves():
    halves: dict[str, set[str]] = {}
    for case in cases():
        halves.setdefault(case.origin, set()).add(case.half)
    assert all(len(found) == 1 for found in halves.values())
    named = [words for language in LANGUAGES for words, *_ in (*PARAPHRASES[language], *FREE[language])]
    whole = [origin for origin in halves if origin not in named]
    assert not [origin for origin in whole if any(words.casefold() in origin.casefold() for words in named)]


def test_precision_and_recall_on_the_held_out_half(held):
    rates = held.of()
    assert min(rates.values()) >= 0.95, rates


@pytest.mark.parametrize("language", LANGUAGES)
def test_precision_and_recall_by_language(held, language):
    rates = held.of((language,))
    assert min(rates.values()) >= 0.9, rates


def test_forgotten_markers_are_attached_to_the_passage_that_the_sentence_came_from():
    wanted = [case for case in cases() if case.kind in ("marker forgotten", "invented marker, true")]
    right = 0
    for case in wanted:
        chunk = case.chunks[case.cited[0] - 1]
        cited = case.checked().citations
        # Another passage may say the same, as records of one form do.
        right += bool(cited) and all(one.quote in chunk.text for one in cited)
    assert right >= 0.95 * len(wanted)


def test_every_quote_is_the_source_at_its_span():
    for case in cases()[::7]:
        texts = {f"{chunk.doc}:{chunk.start}": chunk for chunk in case.chunks}
        for citation in case.checked().citations:
            chunk = texts[citation.node_id]
            assert chunk.text[citation.start - chunk.start : citation.end - chunk.start] == citation.quote
