"""Questions in a conversation: what a follow-up is understood as, by whom, and what is remembered."""

import json
import pickle
import threading

import pytest
from llama_index.core.schema import Document
from small_indexes import asked

from agentic_retriever import Answer, Budget, RouteDecision, Turn
from agentic_retriever.errors import InvalidQueryError, LLMError, LLMOutputError
from agentic_retriever.pipeline import conversations
from agentic_retriever.pipeline.conversations import Conversations, meaning, read_question, turns_of
from agentic_retriever.testing import FakeLLM

FLEET = [
    Document(text="The maximum length of a rigid bus is 13.60 metres.", doc_id="bus"),
    Document(text="The maximum length of trailers is 12.20 metres.", doc_id="trailers"),
    Document(text="The maximum weight of trailers is 18 tonnes, whatever the axles.", doc_id="weight"),
]
FIRST, THEN = "What is the maximum length of a rigid bus?", "and for trailers?"
MEANT = "What is the maximum length of trailers?"


@pytest.fixture
def router(make):
    return make({"fleet": FLEET}, config={"answer_rescoring": False})


@pytest.fixture
def make_with_model(make):
    """A router whose model replies from a script; only follow-ups and answers ask it."""

    def _make(replies):
        model = FakeLLM(replies)
        fixed = {"classifier": "profile", "selector": "heuristic", "answer_rescoring": False}
        return make({"fleet": FLEET}, config=fixed, llm=model), model

    return _make


@pytest.mark.parametrize("way", ["query", "aquery", "stream", "astream"])
async def test_a_follow_up_is_answered_in_the_light_of_its_conversation(router, way):
    first = await asked(router, way, FIRST, conversation_id="one")
    then = await asked(router, way, THEN, conversation_id="one")
    assert (first.understood_as, then.route.query, then.understood_as) == ("", THEN, MEANT)
    assert "12.20" in then.text
    last = await asked(router, way, "And how heavy may they be?", conversation_id="one")
    assert last.understood_as == "How heavy may the maximum length of trailers be?"  # by rules: no more than its words


def test_what_was_said_can_be_passed_instead(router):
    turns = [Turn(query=FIRST, answer="13.60 metres [1]")]
    assert router.query(THEN, turns=turns).understood_as == MEANT
    # A client that has all messages has the follow-ups among them as they were typed.
    assert router.query("and for a rigid bus?", turns=[*turns, Turn(query=THEN, answer="12.20")]).understood_as == FIRST
    assert router.retrieve(THEN, turns=turns).route.understood_as == MEANT


def test_conversations_are_apart_and_each_is_its_users(router):
    router.query(FIRST, conversation_id="one", user_id="ann")
    for wanted in ({}, {"conversation_id": "two", "user_id": "ann"}, {"conversation_id": "one", "user_id": "bob"}):
        assert router.query(THEN, **wanted).understood_as == ""
    assert router.query(THEN, conversation_id="one", user_id="ann").understood_as == MEANT


def test_a_complete_question_is_left_alone(router):
    router.query(FIRST, conversation_id="one")
    answer = router.query("What is the maximum weight of trailers?", conversation_id="one")
    assert answer.understood_as == ""
    assert "18 tonnes" in answer.text


def test_the_cache_is_asked_for_what_was_meant(router):
    plain = router.query(MEANT)
    router.query(FIRST, conversation_id="one")
    then = router.query(THEN, conversation_id="one")
    assert (then.cached, then.text, then.route.query, then.understood_as) == (True, plain.text, THEN, MEANT)
    again = router.query(MEANT)
    assert (again.cached, again.route.query, again.understood_as) == (True, MEANT, "")
    assert not router.query(THEN).cached  # alone it is another question


def test_a_follow_up_without_a_conversation_is_never_high(router):
    known = router.query("What is the maximum length of trailers?")
    alone = router.query("What is their maximum length?")
    assert alone.confidence.level.value != "high"
    assert alone.confidence.score <= 0.5
    assert [step.step for step in alone.degraded] == ["conversation"]
    assert not known.degraded


def test_records_hold_what_was_understood(router):
    router.query(FIRST, conversation_id="one")
    answer = router.query(THEN, conversation_id="one")
    written = json.loads(json.dumps(answer.to_dict()))
    assert Answer.from_dict(written).understood_as == MEANT
    assert RouteDecision.from_dict(written["route"]) == answer.route
    assert pickle.loads(pickle.dumps(answer.route)) == answer.route
    assert not answer.route.diff(router.replay(answer.route))
    assert f"Understood as: {MEANT}" in str(router.explanation(answer.route))
    assert MEANT in answer._repr_html_()
    old = {name: value for name, value in written["route"].items() if name != "understood_as"}
    assert RouteDecision.from_dict(old).understood_as == ""


def test_a_model_writes_the_question_out(make_with_model):
    router, model = make_with_model(
        lambda prompt: (
            json.dumps({"question": MEANT}) if "conversation" in prompt else "The length is 12.20 metres. [1]"
        )
    )
    router.query(FIRST, conversation_id="one")
    answer = router.query(THEN, conversation_id="one")
    assert (answer.understood_as, answer.usage.llm_calls) == (MEANT, 2)
    [prompt] = [one for one in model.prompts if "Write out a question" in one]
    assert FIRST in prompt
    assert THEN in prompt


@pytest.mark.parametrize(("reply", "why"), [
    ("", "cannot be used"), ("I\ncannot\nsay", "no question"), ('{"question": "What', "no question"),
    ("[]", "no question"),
    ('{"question": "What is the length of 77 trailers?"}', "a figure"), (LLMError("away"), "the call failed"),
])  # fmt: skip
def test_rules_stand_in_for_a_model_that_fails(make_with_model, reply, why):
    router, _ = make_with_model(lambda prompt: reply if "Write out" in prompt else "The length is 12.20 metres. [1]")
    answer = router.query(THEN, turns=[Turn(query=FIRST)])
    assert answer.understood_as == MEANT
    [lost] = [one for one in answer.degraded if one.step == "conversation.llm"]
    assert why in lost.reason
    assert lost.fallback == "rules"


def test_no_model_is_asked_where_it_may_not_be_or_need_not_be(make_with_model):
    router, model = make_with_model(["The length is 12.20 metres. [1]"])
    turns = [Turn(query=FIRST)]
    assert router.query(THEN, turns=turns, budget=Budget(max_llm_calls=0)).understood_as == MEANT
    assert not model.prompts
    router.query("What is the maximum weight of trailers?", turns=turns)
    assert not any("Write out" in prompt for prompt in model.prompts)


@pytest.mark.parametrize(
    "reply",
    ['{"question": "Who?"}', 'Sure! ```json\n{"question": "Who?"}\n```', "Who?", "Question: Who?", '"Who?"',
     '{"other": [{"question": "no"}], "question": "Who?"}'],
)  # fmt: skip
def test_replies_are_read_as_models_write_them(reply):
    assert read_question(reply) == "Who?"


@pytest.mark.parametrize("reply", ["", "???", "{}", '{"question": 3}', "a\nb", "w" * 2_000, "{" * 9_000])
def test_other_replies_are_errors(reply):
    with pytest.raises(LLMOutputError, match="wrote no question"):
        read_question(reply)


@pytest.mark.parametrize("wanted", [
    {"turns": "no"}, {"turns": [("a", "b")]}, {"conversation_id": 3}, {"conversation_id": "x" * 201},
    {"user_id": None},
])  # fmt: skip
def test_what_cannot_be_used_is_named(router, wanted):
    with pytest.raises(InvalidQueryError, match=next(iter(wanted))):
        router.query(FIRST, **wanted)


def test_memory_is_bounded_in_turns_texts_conversations_and_time(monkeypatch):
    monkeypatch.setattr(conversations, "MAX_CONVERSATIONS", 3)
    now = [0.0]
    kept = Conversations(lambda: now[0])
    for at in range(20):
        kept.add(Turn(query=f"{at}", answer="a" * 5_000), user_id="", conversation_id="one")
    assert [turn.query for turn in kept.turns("", "one")] == [str(at) for at in range(12, 20)]
    assert len(kept.turns("", "one")[0].answer) == conversations.MAX_TURN_CHARS
    for name in "abc":
        kept.add(Turn(query=name), user_id="", conversation_id=name)
    assert kept.turns("", "one") == ()
    assert kept.turns("", "c")
    now[0] = conversations.MAX_AGE_S + 1
    assert kept.turns("", "c") == ()
    kept.add(Turn(query="new"), user_id="", conversation_id="c")
    assert [turn.query for turn in kept.turns("", "c")] == ["new"]


def test_what_another_process_answered_is_found_in_the_history(make):
    one = make({"fleet": FLEET}, config={"answer_rescoring": False})
    one.query(FIRST, conversation_id="one", user_id="ann")
    assert one.history.flush()
    other = make(config={"answer_rescoring": False})
    assert other.query(THEN, conversation_id="one", user_id="ann").understood_as == MEANT
    assert other.query(THEN, conversation_id="one", user_id="bob").understood_as == ""
    assert other.query(THEN, user_id="ann").understood_as == ""


@pytest.mark.parametrize("kind", ["hashed", "no_text", "none"])
def test_a_history_without_texts_gives_no_turns(make, kind):
    router = make({"fleet": FLEET}, config={"answer_rescoring": False, "query_log": kind})
    router.query(FIRST, conversation_id="one")
    if kind != "none":
        assert router.history.flush()
    again = make(config={"answer_rescoring": False, "query_log": kind})
    assert again.query(THEN, conversation_id="one").understood_as == ""
    assert router.query(THEN, conversation_id="one").understood_as == MEANT  # what is in memory is not a matter of that


def test_memory_serves_many_threads():
    kept = Conversations(lambda: 0.0)
    threads = [
        threading.Thread(
            target=lambda: [kept.add(Turn(query=str(at)), user_id="", conversation_id="one") for at in range(200)]
        )
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(kept.turns("", "one")) == conversations.MAX_TURNS


def test_messages_become_turns():
    said = [
        ("system", "Be brief", ""), ("assistant", "Hello", ""), ("user", "A?", ""), ("assistant", "B", ""),
        ("user", "C?", "D?"),
    ]  # fmt: skip
    assert turns_of(said) == (Turn(query="A?", answer="B"), Turn(query="C?", understood_as="D?"))


def test_the_last_question_may_have_been_a_follow_up():
    turns = [Turn(query=FIRST), Turn(query=THEN), Turn(query="And their weight?")]
    assert "trailers" in meaning("How is it measured?", turns).query
