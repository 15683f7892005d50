from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentic_retriever import cache
from agentic_retriever.cache import WarmOutcome, read_questions, warm
from agentic_retriever.errors import LLMError, SourceError, StoreError


@pytest.fixture
def written(tmp_path):
    def write(content, name="questions.txt"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def test_one_question_a_line(written):
    path = written("\ufeffWhat is leave?\r\n\n   \nที่ดินคืออะไร\nWhat is leave?\n  ¿Qué es?  ")
    assert read_questions(path) == (("What is leave?", "ที่ดินคืออะไร", "¿Qué es?"), ())


@pytest.mark.parametrize("name", ["q.jsonl", "q.ndjson", "Q.JSONL"])
def test_json_lines(written, name):
    rows = ['{"query": "One?", "id": 1}', '{"query": " Two? "}', "not json", '["Three?"]', '{"query": 4}',
            '{"query": " "}', "[" * 100_000]  # fmt: skip
    questions, problems = read_questions(written("\n".join(rows), name))
    assert questions == ("One?", "Two?")
    assert [problem.split(":")[0] for problem in problems] == ["line 3", "line 4", "line 5", "line 6", "line 7"]
    assert "'query'" in problems[1]


def test_lines_that_are_not_utf8_are_told(written):
    questions, problems = read_questions(written(b"One?\n\xff\xfe\nTwo?"))
    assert questions == ("One?", "Two?")
    assert problems == ("line 2: not UTF-8",)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(SourceError, match=r"gone\.txt"):
        read_questions(tmp_path / "gone.txt")
    with pytest.raises(SourceError):
        read_questions(tmp_path)


def test_a_file_without_bounds_is_refused(written, monkeypatch):
    monkeypatch.setattr(cache, "MAX_FILE_BYTES", 1_000_000)
    with pytest.raises(SourceError, match="larger than 1 MB"):
        read_questions(written("What is new?\n" * 80_000))
    assert read_questions(written("What is new?\n" * 70_000)) == (("What is new?",), ())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(min_size=1).map(str.strip).filter(lambda q: q and q.isprintable())))
def test_any_questions_in_json_lines_come_back_once_and_in_order(written, questions):
    path = written("\n".join(json.dumps({"query": q}) for q in questions), "q.jsonl")
    assert read_questions(path) == (tuple(dict.fromkeys(questions)), ())


def test_counts_what_became_of_each_and_tells_progress():
    outcomes = {"a": WarmOutcome.STORED, "b": WarmOutcome.CACHED, "c": WarmOutcome.NOT_KEPT, "d": LLMError("down")}

    def ask(question):
        outcome = outcomes[question]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    heard = []
    report = warm(ask, list("abcda"), progress=lambda done, of: heard.append((done, of)))
    assert heard == [(i, 5) for i in range(1, 6)]
    assert json.loads(json.dumps(report.to_dict())) == {
        "asked": 5, "cached": 1, "stored": 2, "not_kept": 1, "failed": [{"question": "d", "reason": "down"}],
        "stopped": "",
    }  # fmt: skip


def test_stops_where_the_rest_would_fail_alike():
    asked = []

    def ask(question):
        asked.append(question)
        raise StoreError("the disk is full")

    report = warm(ask, ["a", "b"], stop_on=(StoreError,))
    assert asked == ["a"]
    assert (report.asked, report.stopped, len(report.failed)) == (1, "the disk is full", 1)
    assert warm(ask, ["a", "b"]).asked == 2


def test_mistakes_of_the_program_are_not_swallowed():
    with pytest.raises(ZeroDivisionError):
        warm(lambda _question: 1 / 0, ["a"])


def test_no_questions():
    assert warm(lambda _question: WarmOutcome.STORED, []).asked == 0
