"""The endpoint of OpenAI's clients, asked by the ``openai`` client and as chat applications ask it."""

import json
import threading

import httpx
import pytest
from small_indexes import GOOD, MEANT, QUESTION, THEN

from agentic_retriever.errors import LLMError
from agentic_retriever.testing import FakeLLM

openai = pytest.importorskip("openai", reason="the client 'openai' is not installed")


@pytest.fixture
def chat(serve, closed_at_end):
    """Starts a service and gives it with a client of it."""

    def start(**wanted):
        found = serve(**wanted)
        found.client = closed_at_end(openai.OpenAI(base_url=f"{found.url}/v1", api_key="none", max_retries=0))
        return found

    return start


def ask(client, *messages, model="auto", **options):
    said = [{"role": "user" if at % 2 == 0 else "assistant", "content": text} for at, text in enumerate(messages)]
    return client.chat.completions.create(model=model, messages=said, **options)


def test_models_are_auto_and_the_indexes(chat):
    client = chat().client
    assert [one.id for one in client.models.list()] == ["auto", "animals", "planets"]
    assert client.models.retrieve("animals").description == "Animals and how they live"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("plants")
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize("model", ["auto", "animals"])
def test_an_answer_has_footnotes_and_the_citations_in_a_field(chat, model):
    done = ask(chat().client, QUESTION, model=model)
    [choice] = done.choices
    assert choice.finish_reason == "stop"
    assert "sixteen hours a day. [^1]" in choice.message.content
    assert "\n\n[^1]: cats: “The cat sleeps sixteen hours a day.”" in choice.message.content
    told = done.agentic_retriever
    assert (told["citations"][0]["doc_id"], told["indexes"]) == ("cats", ["animals"])
    assert told["query_id"]
    assert (done.model, done.object) == (model, "chat.completion")
    assert done.usage.total_tokens == 0  # no model was asked


def test_tokens_are_counted(chat):
    done = ask(chat(model=FakeLLM([GOOD])).client, QUESTION)
    assert done.usage.prompt_tokens > 0
    assert done.usage.total_tokens == done.usage.prompt_tokens + done.usage.completion_tokens


@pytest.mark.parametrize("counted", [True, False])
def test_a_stream_says_what_the_whole_answer_says(chat, counted):
    client = chat(model=FakeLLM([GOOD])).client
    whole = ask(client, QUESTION)
    options = {"stream_options": {"include_usage": True}} if counted else {}
    chunks = list(ask(client, QUESTION, model="animals", stream=True, **options))
    shown = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert (shown, chunks[0].choices[0].delta.role) == (whole.choices[0].message.content, "assistant")
    assert len({chunk.id for chunk in chunks}) == 1
    last = [chunk for chunk in chunks if chunk.choices][-1]
    assert last.choices[0].finish_reason == "stop"
    assert last.agentic_retriever["citations"]
    assert len([chunk.usage for chunk in chunks if chunk.usage]) == counted
    if counted:
        assert chunks[-1].choices == []
        assert chunks[-1].usage.total_tokens > 0


@pytest.mark.parametrize("stream", [True, False])
def test_a_follow_up_is_understood_from_the_messages(chat, stream):
    done = ask(chat().client, QUESTION, "Sixteen hours. [^1]", THEN, stream=stream)
    told = list(done)[-1].agentic_retriever if stream else done.agentic_retriever
    assert told["understood_as"] == MEANT


def test_system_messages_images_and_sampling_are_passed_over(chat):
    content = [
        {"type": "text", "text": QUESTION},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}},
    ]
    messages = [{"role": "system", "content": "You are a pirate."}, {"role": "user", "content": content}]
    done = chat().client.chat.completions.create(
        model="auto", messages=messages, temperature=0.2, top_p=1, presence_penalty=0, frequency_penalty=0, seed=1,
        max_tokens=5, user="someone", tools=[], extra_body={"anything": {"else": 1}},
    )  # fmt: skip
    assert "sixteen" in done.choices[0].message.content


@pytest.mark.parametrize(
    ("wrong", "kind", "code"),
    [
        ({"model": "plants"}, openai.NotFoundError, "model_not_found"),
        ({"messages": []}, openai.BadRequestError, "invalid_request"),
        ({"messages": [{"role": "system", "content": "x"}]}, openai.BadRequestError, "no_question"),
        ({"messages": [{"role": "user", "content": " "}]}, openai.BadRequestError, "invalid_query"),
        ({"messages": [{"role": "user", "content": "x" * 20_001}]}, openai.BadRequestError, "invalid_query"),
        ({"n": 2}, openai.BadRequestError, "invalid_request"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_errors_have_openais_form(chat, wrong, kind, code, stream):
    given = {"model": "auto", "messages": [{"role": "user", "content": QUESTION}], "stream": stream} | wrong
    with pytest.raises(kind) as caught:
        chat().client.chat.completions.create(**given)
    assert caught.value.code == code
    assert caught.value.type in {"invalid_request_error", "not_found_error"}
    assert caught.value.message


def test_no_path_but_those_is_rewritten(chat):
    found = chat()
    problem = httpx.post(f"{found.url}/v1/query", json={"query": " "})
    assert problem.headers["content-type"] == "application/problem+json"
    refused = httpx.post(f"{found.url}/v1/chat/completions", content=b"{")
    assert refused.status_code == 400
    assert set(refused.json()) == {"error"}
    assert refused.headers["x-request-id"]


def test_a_stream_that_breaks_says_so(chat, monkeypatch):
    found = chat()

    async def broken(*_args, **_wanted):
        yield "The cat "
        raise LLMError("the model went away")

    class Broken:
        answer = None

        async def __aenter__(self):
            return broken()

        async def __aexit__(self, *raised):
            return None

    monkeypatch.setattr(found.service, "stream", lambda *_args, **_wanted: Broken())
    with pytest.raises(openai.APIError, match="went away"):
        list(ask(found.client, QUESTION, stream=True))


def test_keys_and_roles_hold(keyed, closed_at_end):
    client = closed_at_end(openai.OpenAI(base_url=f"{keyed.url}/v1", api_key=keyed.keys["ask"], max_retries=0))
    assert "sixteen" in ask(client, QUESTION).choices[0].message.content
    with pytest.raises(openai.AuthenticationError) as caught:
        ask(client.with_options(api_key="wrong"), QUESTION)
    assert caught.value.type == "authentication_error"


def test_a_client_that_hangs_up_ends_the_answer(chat, gate):
    asked, seen = threading.Event(), threading.Event()

    def slow(_prompt):
        asked.set()
        gate.wait(10)
        return GOOD

    found = chat(model=FakeLLM(slow))
    httpx.post(f"{found.url}/v1/retrieve", json={"query": QUESTION}, timeout=60)  # so that the model is asked soon
    stream = httpx.Client(timeout=httpx.Timeout(5, read=2))
    body = {"model": "animals", "stream": True, "messages": [{"role": "user", "content": QUESTION}]}
    with pytest.raises(httpx.ReadTimeout), stream.stream("POST", f"{found.url}/v1/chat/completions", json=body) as sent:
        list(sent.iter_lines())
    assert asked.wait(5)
    gate.set()
    stream.close()
    assert "sixteen" in ask(found.client, QUESTION).choices[0].message.content
    assert not seen.is_set()


# What Open WebUI and LibreChat send beside the chat, in their words as far as it is told from questions by them.

HISTORY = f"### Chat History:\n<chat_history>\nUSER: {QUESTION}\nASSISTANT: Sixteen [1]\n</chat_history>"


@pytest.mark.parametrize(("prompt", "reply"), [
    ('### Task:\nMake a title.\n### Output:\nJSON format: { "title": "..." }\n' + HISTORY, {"title": QUESTION}),
    ('### Task:\nMake tags.\n### Output:\nJSON format: { "tags": ["tag1"] }\n' + HISTORY, {"tags": []}),
    ('### Task:\nSuggest.\n### Output:\nJSON format: { "follow_ups": ["1?"] }\n' + HISTORY, {"follow_ups": []}),
    ('### Task:\nSearch?\n### Output:\n{ "queries": ["one"] }\n' + HISTORY, {"queries": []}),
    ("### Task:\nSomething that nobody knows yet\n" + HISTORY, {}),
    (f"Analyze this conversation and provide:\n1. a language\n2. A title\n\nUser: {QUESTION}\nAI: 16",
     {"language": "", "title": QUESTION}),
])  # fmt: skip
@pytest.mark.parametrize("stream", [True, False])
def test_what_clients_ask_beside_the_chat_is_not_searched_for(chat, prompt, reply, stream):
    found = chat(model=FakeLLM([AssertionError("no model is to be asked")]))
    done = ask(found.client, prompt, stream=stream)
    text = "".join(one.choices[0].delta.content or "" for one in done) if stream else done.choices[0].message.content
    assert (json.loads(text), found.router.cache.stats().misses) == (reply, 0)


def test_a_title_in_words_is_one_line(chat):
    prompt = (
        "Provide a concise, 5-word-or-less title for the conversation, using title case conventions. "
        "Only return the title itself.\n\nConversation:\nUser: " + "many words " * 30 + "\nAI: yes"
    )
    title = ask(chat().client, prompt).choices[0].message.content
    assert title.startswith("many words")
    assert len(title) <= 60


def test_a_question_in_a_prompt_of_the_client_is_found(chat):
    prompt = f"### Task:\nRespond to the user query.\n<context>\nx\n</context>\n<user_query>\n{QUESTION}\n</user_query>"
    assert "sixteen" in ask(chat().client, prompt).choices[0].message.content


def test_the_name_of_a_conversation_reaches_the_history(chat, monkeypatch):
    found, seen = chat(), []
    real = found.service.query
    monkeypatch.setattr(found.service, "query", lambda query, **wanted: seen.append(wanted) or real(query, **wanted))
    found.client.chat.completions.create(
        model="auto", messages=[{"role": "user", "content": QUESTION}], user="ann",
        extra_headers={"X-OpenWebUI-Chat-Id": "c-1"},
    )  # fmt: skip
    assert (seen[0]["conversation_id"], seen[0]["user_id"]) == ("c-1", "ann")
    ask(found.client, QUESTION, extra_headers={"X-Conversation-Id": "c-2", "X-OpenWebUI-User-Id": "bob"})
    ask(found.client, QUESTION)
    assert [(one["conversation_id"], one["user_id"]) for one in seen[1:]] == [("c-2", "bob"), ("", "local")]
