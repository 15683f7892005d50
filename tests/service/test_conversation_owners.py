"""Conversations by HTTP: sent along or remembered, each the own of the key and the user that began it."""

import pytest
from service_clients import client_of, with_key
from small_indexes import MEANT, THEN
from small_indexes import QUESTION as FIRST


async def ask(client, query, path="/v1/query", **more):
    return (await client.post(path, json={"query": query, **more})).raise_for_status().json()


@pytest.mark.parametrize("path", ["/v1/query", "/v1/retrieve"])
async def test_the_turns_may_be_sent_along(client, path):
    turns = [{"query": "How long?", "answer": "Sixteen. [1]", "understood_as": FIRST}]
    found = await ask(client, THEN, path, turns=turns)
    assert (found["route"]["query"], found["route"]["understood_as"]) == (THEN, MEANT)
    assert (await ask(client, THEN, path))["route"]["understood_as"] == ""  # nothing was kept


@pytest.mark.parametrize(
    "turns", ["x", [{"answer": "a"}], [{"query": ""}], [{"query": "a", "role": "user"}], [{}] * 101]
)
async def test_turns_that_cannot_be_used(client, turns):
    response = await client.post("/v1/query", json={"query": THEN, "turns": turns})
    assert response.status_code == 422
    assert "turns" in response.text


async def test_history_and_replay_say_how_a_follow_up_was_understood(client):
    await ask(client, FIRST, conversation_id="c-1")
    query_id = (await ask(client, THEN, conversation_id="c-1"))["query_id"]
    entry = (await client.get(f"/v1/queries/{query_id}")).json()
    assert (entry["query"], entry["understood_as"], entry["conversation_id"]) == (THEN, MEANT, "c-1")
    replayed = (await client.post(f"/v1/queries/{query_id}/replay")).json()
    assert (replayed["query"], replayed["understood_as"], replayed["differences"]) == (THEN, MEANT, [])
    assert f"understood as: {MEANT}" in (await client.get(f"/history/{query_id}")).text


@pytest.mark.parametrize("kept", ["hashed", "no_text"])
async def test_a_history_without_texts_keeps_no_meaning(make_app, kept):
    async with client_of(make_app(query_log=kept)) as client:
        await ask(client, FIRST, conversation_id="c-1")
        query_id = (await ask(client, THEN, conversation_id="c-1"))["query_id"]
        assert (await client.get(f"/v1/queries/{query_id}")).json()["understood_as"] == ""


async def test_another_process_goes_on_with_what_was_meant(make_app):
    async with client_of(make_app()) as client:
        for query in (FIRST, THEN):
            await ask(client, query, conversation_id="c-1")
        await client.get("/v1/queries")  # which are written by then
    async with client_of(make_app()) as client:
        found = await ask(client, "And the horse?", conversation_id="c-1")
        assert found["route"]["understood_as"] == MEANT.replace("dog", "horse")


async def test_nobody_goes_on_with_the_conversation_of_another_key_or_user(make_app, keys):
    app = make_app()
    mine, other = with_key(keys["ask"]), with_key(keys["write"])
    async with client_of(app, headers=mine) as ana, client_of(app, headers=other) as ben:
        await ask(ana, FIRST, conversation_id="c-1", user_id="ana")
        whole = f"{app.state.service.keys.caller(keys['ask']).key_id}.c-1"  # as the history has it
        others = [(ben, "c-1", "ana"), (ben, "c-1", ""), (ben, whole, "ana"), (ana, "c-1", "ben"), (ana, "c-1", "")]
        for client, name, user in [*others, (ana, "c-1", "ana")]:
            found = await ask(client, THEN, conversation_id=name, user_id=user)
            assert bool(found["route"]["understood_as"]) == ((client, name, user) not in others)
        for client, known in ((ben, False), (ana, True)):
            await ask(client, THEN, "/api/admin/rag/query", conversation_id="c-1", user_id="ana")
            entry = app.state.service.router.history.list(limit=1)[0]
            assert (bool(entry.understood_as), entry.conversation_id.endswith(".c-1")) == (known, True)


async def test_a_chat_client_names_conversations_of_its_key_alone(make_app, keys):
    app = make_app()
    chat = {"model": "auto", "messages": [{"role": "user", "content": FIRST}], "user": "ana"}
    then = {**chat, "messages": [{"role": "user", "content": THEN}]}
    async with client_of(app, headers={"X-Conversation-Id": "c-1"}) as client:
        for sent, role, known in ((chat, "ask", False), (then, "write", False), (then, "ask", True)):
            answer = (await client.post("/v1/chat/completions", json=sent, headers=with_key(keys[role]))).json()
            assert bool(answer["agentic_retriever"]["understood_as"]) is known
