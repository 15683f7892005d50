"""What ``/v1`` answers, each answer as the OpenAPI document describes it."""

import json

import httpx
import pytest
from service_clients import client_of
from small_indexes import GOOD, QUESTION

from agentic_retriever.service.models import AnswerOut
from agentic_retriever.testing import FakeLLM


def events_of(text):
    """Names and data of server-sent events."""
    pairs = [block.split("\n") for block in text.strip().split("\n\n")]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in pairs]


async def ask(client, **more):
    return await client.post("/v1/query", json={"query": QUESTION, **more})


async def test_a_question_is_answered_as_described(client):
    first, again = await ask(client), await ask(client)
    for response in (first, again):
        assert response.status_code == 200
        AnswerOut.model_validate_json(response.content)
    one, two = first.json(), again.json()
    assert "sixteen hours" in one["text"]
    assert (one["cached"], two["cached"]) == (False, True)
    assert {name for name in one if one[name] != two[name]} == {"cached", "query_id", "timings_ms"}


async def test_hits_of_one_answer_are_written_alike_and_those_of_others_are_not(client):
    answers = [(await ask(client)).json() for _ in range(3)]
    other = (await ask(client, query="How many moons has Mars?")).json()
    assert answers[1]["text"] == answers[2]["text"] != other["text"]
    assert len({one["query_id"] for one in answers}) == 3


async def test_an_answer_is_streamed(make_app, serve):
    url = serve(make_app(model=FakeLLM(lambda _prompt: GOOD)))
    async with httpx.AsyncClient(base_url=url) as client:
        response = await ask(client, stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    events = events_of(response.text)
    names = [name for name, _ in events]
    assert (names[-4:], set(names[:-4])) == (["nodes", "route", "citations", "answer"], {"piece"})
    answer = events[-1][1]
    assert "".join(data["text"] for name, data in events if name == "piece") == answer["text"]
    assert events[-2][1] == answer["citations"] != []
    AnswerOut.model_validate(answer)


async def test_what_fails_before_the_first_piece_is_a_problem_and_no_stream(client):
    response = await ask(client, stream=True, index="nothing")
    assert (response.status_code, response.headers["content-type"]) == (404, "application/problem+json")


async def test_pins_are_kept(client):
    answer = (await ask(client, index="animals", strategy="vector", top_k=2)).json()
    assert (answer["route"]["strategy"], len(answer["nodes"])) == ("vector", 2)
    filters = {"filters": [{"key": "kind", "value": "d", "operator": "=="}]}
    found = await client.post("/v1/retrieve", json={"query": QUESTION, "index": "animals", "filters": filters})
    assert [node["doc_id"] for node in found.json()["nodes"]] == ["dogs"]


async def test_routes_and_explanations(client):
    route = (await client.post("/v1/route", json={"query": QUESTION})).json()
    explained = (await client.post("/v1/explain", json={"query": QUESTION})).json()
    assert route["index"] == explained["decision"]["index"] == "animals"
    assert explained["text"][0].endswith(QUESTION)
    assert {card["strategy"] for card in explained["cards"]} >= {"vector", "hybrid"}


async def test_the_budget_is_kept(make_app):
    model = FakeLLM(lambda _prompt: GOOD)
    async with client_of(make_app(model=model)) as client:
        answer = (await ask(client, budget={"max_llm_calls": 0})).json()
    assert (answer["tier"], answer["usage"]["llm_calls"]) == ("extractive", 0)


@pytest.mark.parametrize(("body", "said"), [
    ({}, "query"), ({"query": ""}, "query"), ({"query": "   "}, "blank"), ({"query": "x" * 20_001}, "query"),
    ({"query": 7}, "query"), ({"query": "a?", "top_k": 0}, "top_k"), ({"query": "a?", "top_k": True}, "top_k"),
    ({"query": "a?", "budget": {"max_ms": -1}}, "max_ms"), ({"query": "a?", "unheard": 1}, "unheard"),
    ({"query": "a?", "index": []}, "index"),
])  # fmt: skip
async def test_questions_that_cannot_be_used(client, body, said):
    response = await client.post("/v1/query", json=body)
    assert response.status_code == 422
    problem = response.json()
    assert said in response.text
    assert (problem["request_id"], problem["status"]) == (response.headers["x-request-id"], 422)


async def test_errors_carry_what_ours_carry(client):
    response = await client.post("/v1/query", json={"query": "a?", "strategy": "vectr"})
    problem = response.json()
    assert response.status_code == 404
    assert (problem["error"], problem["exit_code"]) == ("UnknownStrategyError", 5)
    assert "did you mean 'vector'" in problem["detail"]
    assert problem["type"] == "urn:agentic-retriever:unknown-strategy"


async def test_a_request_keeps_the_id_that_it_came_with_if_that_is_harmless(client):
    kept = await client.get("/v1/health/live", headers={"X-Request-ID": "abc-1"})
    made = await client.get("/v1/health/live", headers={"X-Request-ID": "a b\x7f"})
    assert kept.headers["x-request-id"] == "abc-1"
    assert made.headers["x-request-id"] != "a b\x7f"


async def test_what_is_unexpected_says_nothing(app, client, monkeypatch, caplog):
    def fail(*_args, **_kwargs):
        raise RuntimeError("secret text")

    monkeypatch.setattr(app.state.service.router, "aroute", fail)
    response = await client.post("/v1/route", json={"query": QUESTION})
    assert response.status_code == 500
    assert "secret" not in response.text + caplog.text
    assert response.headers["x-request-id"] in caplog.text
    assert "RuntimeError" in caplog.text


async def test_indexes_and_sources(client):
    found = (await client.get("/v1/indexes")).json()
    assert [(one["name"], one["documents"]) for one in found] == [("animals", 3), ("planets", 2)]
    one = (await client.get("/v1/indexes/animals")).json()
    assert one["measured"] is None
    assert "chunks" in one["views"]
    cited = (await ask(client)).json()["citations"][0]
    source = await client.get("/v1/indexes/animals/source", params={"doc_id": cited["doc_id"]})
    assert source.json()["text"][cited["start"] : cited["end"]] == cited["quote"]
    assert (await client.get("/v1/indexes/animals/source", params={"doc_id": "cows"})).status_code == 404


async def test_the_life_of_a_document(client):
    files = {"file": ("cow.txt", b"The cow eats grass all day long.", "text/plain")}
    data = {"index": "animals", "title": "Cows", "tags": ["farm", "big"], "metadata": '{"year": 2024}'}
    made = await client.post("/v1/documents", data=data, files=files)
    assert made.status_code == 202
    record = made.json()
    assert (record["status"], record["title"], record["tags"]) == ("pending", "Cows", ["farm", "big"])
    assert record["metadata"]["year"] == 2024
    place = f"/v1/documents/{record['id']}"
    assert (await client.post("/v1/documents", data=data, files=files)).json()["id"] == record["id"]
    listed = (await client.get("/v1/documents", params={"index": "animals", "search": "Cow"})).json()
    assert (listed["total"], listed["documents"][0]["id"]) == (1, record["id"])
    assert (await client.patch(place, json={"title": "Cattle"})).json()["title"] == "Cattle"
    assert (await client.get(f"{place}/text")).headers["content-type"] == "application/json"
    off = await client.post(f"{place}/deactivate")
    assert (off.json()["status"], off.json()["is_active"]) == ("inactive", False)
    assert (await client.post(f"{place}/activate")).json()["is_active"] is True
    assert (await client.post(f"{place}/explode")).status_code == 422
    assert (await client.delete(place)).status_code == 204
    assert (await client.get(place)).status_code == 404


@pytest.mark.parametrize("metadata", ["[]", "{", "[" * 60_000, "7"])
async def test_metadata_of_an_upload_is_an_object(client, metadata):
    files = {"file": ("cow.txt", b"The cow eats grass.", "text/plain")}
    response = await client.post("/v1/documents", data={"index": "animals", "metadata": metadata}, files=files)
    assert response.status_code == 422


async def test_history_feedback_and_replay(client):
    answer, other = (await ask(client)).json(), (await ask(client, query="How many moons has Mars?")).json()
    query_id = answer["query_id"]
    assert (await client.post("/v1/feedback", json={"query_id": query_id, "thumb": "up"})).status_code == 204
    both = {"query_id": query_id, "thumb": "up", "rating": 3}
    assert (await client.post("/v1/feedback", json=both)).status_code == 422
    assert (await client.post("/v1/feedback", json={"query_id": "nothing", "rating": 3})).status_code == 404
    listed = (await client.get("/v1/queries", params={"limit": 1})).json()
    assert [one["query_id"] for one in listed] == [other["query_id"]]
    one = (await client.get(f"/v1/queries/{query_id}")).json()
    assert [judged["rating"] for judged in one["feedback"]] == [5]
    assert len(one["cited"]) == len(answer["citations"])
    replayed = (await client.post(f"/v1/queries/{query_id}/replay")).json()
    assert (replayed["differences"], replayed["route"]["index"]) == ([], "animals")
    changes = (await client.get(f"/v1/queries/{query_id}/diff/{other['query_id']}")).json()
    assert {"path": "index", "before": "animals", "after": "planets"} in changes
    assert (await client.get("/v1/analytics")).json()["queries"] == 2


async def test_cache_health_and_figures(client):
    await ask(client)
    await ask(client)
    assert (await client.get("/v1/cache")).json()["hits"] == 1
    figures = (await client.get("/metrics")).text
    assert 'agentic_retriever_queries_total{index="animals",outcome="cached"' in figures
    assert 'agentic_retriever_http_requests_total{method="POST",route="/v1/query",status="200"} 2.0' in figures
    assert 'agentic_retriever_state{name="hits",part="cache"} 1.0' in figures
    assert 'agentic_retriever_state{name="pending",part="documents"} 0.0' in figures
    assert (await client.delete("/v1/cache")).json() == {"cleared_count": 1}
    assert (await client.get("/v1/health/live")).json()["status"] == "ok"
    assert (await client.get("/v1/health/ready")).json()["ready"] is True


async def test_an_index_that_goes_away(client, app):
    assert (await ask(client, index="planets")).status_code == 200
    app.state.service.router.remove_index("planets")
    assert (await ask(client, index="planets")).status_code == 404
    assert [one["name"] for one in (await client.get("/v1/indexes")).json()] == ["animals"]
    app.state.service.router.remove_index("animals")
    assert (await ask(client)).status_code == 409
    assert (await client.get("/v1/health/ready")).json()["indexes"] == 0
