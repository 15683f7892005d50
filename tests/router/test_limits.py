"""What is without bounds is refused, or cut: questions, numbers, filters, plans and replies."""

from __future__ import annotations

import logging

import pytest
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters
from small_indexes import QUESTION, documents

from agentic_retriever.errors import AgenticRetrieverError, FilterError, InvalidQueryError
from agentic_retriever.testing import FakeLLM

CANARY = "zebrafinch"
COMPARED = "How long does the cat sleep, and how often does the dog walk?"


def clauses(count):
    return [MetadataFilter(key="title", value=str(number)) for number in range(count)]


def nested(depth):
    group = MetadataFilters(filters=clauses(1))
    for _ in range(depth):
        group = MetadataFilters(filters=[group])
    return group


@pytest.mark.parametrize("call", ["query", "retrieve", "route", "stream"])
def test_ten_megabytes_are_no_question(make_router, call):
    with pytest.raises(InvalidQueryError, match="10,000,000 characters, at most 20,000"):
        getattr(make_router(), call)("x " * 5_000_000)


@pytest.mark.parametrize("top_k", [10_001, 10**30, 0, -1, True, 2.0, "5"])
def test_a_number_of_nodes_out_of_range_is_refused(make_router, top_k):
    with pytest.raises(InvalidQueryError, match="from 1 to 1"):
        make_router().retrieve(QUESTION, top_k=top_k)


@pytest.mark.parametrize(
    "filters", [MetadataFilters(filters=clauses(1_001)), nested(33), nested(3_000)], ids=["many", "deep", "abyss"]
)
def test_a_filter_without_bounds_is_refused(make_router, filters):
    with pytest.raises(FilterError):
        make_router().query(QUESTION, filters=filters)


@pytest.mark.parametrize(
    "reply",
    [
        "[" + ",".join(f'"How long does animal {n} sleep?"' for n in range(10_000)) + "]",
        "\n".join(f"{n}. How long does animal {n} sleep?" for n in range(1, 10_000)),
        "[" * 100_000,
        "x" * 1_000_000,
        "[]",
        '[{"tool": "shell", "arguments": "rm"}, {"index": "../../etc", "filters": {"a": 1}}]',
        "",
    ],
    ids=["many", "lines", "deep", "huge", "empty", "tools", "blank"],
)
def test_whatever_a_model_plans_the_question_is_searched_with_a_few_parts(make_router, reply):
    llm = FakeLLM(lambda prompt: reply)
    router = make_router(model=llm)
    found = router.retrieve(COMPARED, strategy="planner", index="animals", top_k=3)
    assert len(llm.prompts) <= 1
    assert 1 <= len(found.nodes) <= 3
    assert len(found.understood) <= 10


@pytest.mark.parametrize("reply", ["x" * 1_000_000, "[1] " * 100_000, "[" * 100_000, "\x1b[2J" * 10_000])
def test_a_huge_reply_of_a_model_ends_as_an_answer(make_router, reply):
    router = make_router(model=FakeLLM(lambda prompt: reply), classifier="profile", selector="heuristic")
    answer = router.query(QUESTION)
    assert len(answer.text) <= 50_000
    assert answer.nodes


def test_no_logger_tells_a_question(make_router, caplog, tmp_path):
    caplog.set_level(logging.INFO)
    logging.getLogger("agentic_retriever").setLevel(logging.DEBUG)
    try:
        router = make_router(data_dir=tmp_path / "data", model=FakeLLM(lambda prompt: "no [1]"))
        router.add_index("cats", documents({"cat": "The cat sleeps sixteen hours a day."}))
        router.query(f"How long does the {CANARY} sleep?")
        router.query(f"How long does the {CANARY} sleep?")
        with pytest.raises(AgenticRetrieverError):
            router.query(f"{CANARY} " * 10_000)
    finally:
        logging.getLogger("agentic_retriever").setLevel(logging.NOTSET)
    assert CANARY not in caplog.text
