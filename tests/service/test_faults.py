"""Clients that break off, are slow, send rubbish or come all at once; and the end of the service."""

import asyncio
import json
import select
import socket
import threading
from urllib.parse import urlsplit

import httpx
import pytest
from service_clients import client_of
from small_indexes import ANIMALS, GOOD, PLANETS, QUESTION
from waiting import wait_until

from agentic_retriever.testing import FakeLLM

CLIENTS = 200
DOCUMENTS = len({*ANIMALS, *PLANETS})  # of the small store


def connect(url):
    place = urlsplit(url)
    return socket.create_connection((place.hostname, place.port), timeout=20)


def request(path, body, **headers):
    """A request as its bytes."""
    known = {"Host": "localhost", "Content_Type": "application/json", "Content_Length": str(len(body))} | headers
    head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in known.items())
    return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + body


def under_way(app):
    """How many requests the guard counts."""
    guard = next(one for one in app.user_middleware if one.cls.__name__ == "Guard")
    return sum(places.held for places in guard.kwargs["limits"].places.values())


class Model:
    """A model that says how many calls are under way, each of which waits at its gate."""

    def __init__(self, gate):
        self.gate = gate
        self.asked = 0
        self.pieces = 0

    def llm(self):
        model = FakeLLM(lambda _prompt: GOOD)
        real = type(model).stream_complete

        def slow(prompt, formatted=False, **kwargs):
            self.asked += 1
            for piece in real(model, prompt, formatted, **kwargs):
                self.pieces += 1
                yield piece
                self.gate.wait(30)

        object.__setattr__(model, "stream_complete", slow)
        return model


def test_who_hangs_up_in_mid_stream_frees_everything(make_app, serve, gate):
    app = make_app(model=Model(gate).llm())
    url, before = serve(app), threading.active_count()
    body = json.dumps({"query": QUESTION, "stream": True}).encode()
    with connect(url) as client:
        client.sendall(request("/v1/query", body))
        got = b""
        while b"event: piece" not in got:
            got += client.recv(65_536)
        assert under_way(app) == 1
    wait_until(lambda: under_way(app) == 0, 20)
    gate.set()
    wait_until(lambda: not [t for t in threading.enumerate() if t.name == "streamed answers"], 20)
    assert threading.active_count() <= before + app.state.service.settings.threads + 20
    assert httpx.post(f"{url}/v1/query", json={"query": QUESTION}).status_code == 200


def test_who_hangs_up_before_the_answer_frees_the_place(make_app, serve, gate):
    app = make_app(model=FakeLLM(lambda _prompt: str(gate.wait(30))))
    url = serve(app)
    with connect(url) as client:
        client.sendall(request("/v1/query", json.dumps({"query": QUESTION}).encode()))
        wait_until(lambda: under_way(app) == 1, 20)
    wait_until(lambda: under_way(app) == 0, 20)
    wait_until(lambda: 'route="/v1/query",status="499"' in httpx.get(f"{url}/metrics").text, 20)  # and is no failure


BOUNDARY = "multipart/form-data; boundary=xx"
FILE = b'--xx\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\nHello\r\n'
INDEX = b'--xx\r\nContent-Disposition: form-data; name="index"\r\n\r\nanimals\r\n'
BROKEN = {
    "no boundary": ("multipart/form-data", FILE + INDEX + b"--xx--\r\n"),
    "another boundary": ("multipart/form-data; boundary=yy", FILE + INDEX + b"--xx--\r\n"),
    "no end": (BOUNDARY, FILE + INDEX), "cut in a header": (BOUNDARY, FILE + b"--xx\r\nContent-Dispo"),
    "no name": (BOUNDARY, b"--xx\r\nContent-Disposition: form-data\r\n\r\nHello\r\n--xx--\r\n"),
    "no file": (BOUNDARY, INDEX + b"--xx--\r\n"),
    "a text as file": (BOUNDARY, FILE.replace(b'; filename="a.txt"', b"") + INDEX + b"--xx--\r\n"),
    "no multipart": ("application/json", b"{}"),
    "control characters": (BOUNDARY, FILE.replace(b"Content-D", b"\x00\x01D") + INDEX + b"--xx--\r\n"),
    "many fields": (BOUNDARY, FILE + INDEX * 1_500 + b"--xx--\r\n"), "empty": (BOUNDARY, b""),
}  # fmt: skip


@pytest.mark.parametrize("kind", BROKEN)
async def test_broken_uploads_are_refused(client, kind):
    content_type, body = BROKEN[kind]
    response = await client.post("/v1/documents", content=body, headers={"Content-Type": content_type})
    assert 400 <= response.status_code < 500
    assert response.headers["content-type"] == "application/problem+json"
    assert (await client.get("/v1/documents")).json()["total"] == DOCUMENTS


@pytest.mark.parametrize(
    "name", ["../../etc/passwd.txt", "..\\..\\x.txt", "a\u202etxt.md", "x" * 5_000 + ".txt", "é/日本.txt"]
)
async def test_names_of_files_lead_nowhere(client, app, name, tmp_path):
    response = await client.post(
        "/v1/documents", files={"file": (name, b"The cow eats grass.")}, data={"index": "animals"}
    )
    assert response.status_code in {202, 400, 422}
    if response.status_code == 202:
        shown = response.json()["filename"]
        assert "/" not in shown
        assert "\\" not in shown
    assert not list(tmp_path.parent.glob("**/passwd.txt"))


async def test_json_that_is_none(client):
    for body in (b"{", b"\xff", b"[" * 100_000, b'{"query": "\\ud800"}', b'{"query": NaN}', b"", b"null", b'"x"'):
        response = await client.post("/v1/query", content=body, headers={"Content-Type": "application/json"})
        assert 400 <= response.status_code < 500, body[:10]


def test_a_slow_upload_is_given_up_and_holds_one_place(make_app, serve):
    app = make_app(settings={"idle_s": 2, "max_uploads": 1})
    url = serve(app)
    with connect(url) as slow, connect(url) as other:
        slow.sendall(request("/v1/documents", b"", Content_Type=BOUNDARY, Content_Length="1000"))
        wait_until(lambda: under_way(app) == 1, 20)
        other.sendall(request("/v1/documents", b"", Content_Type=BOUNDARY, Content_Length="1000"))
        assert b" 503 " in other.recv(65_536)
        assert httpx.get(f"{url}/v1/indexes").status_code == 200
        assert b" 408 " in slow.recv(65_536)
    wait_until(lambda: under_way(app) == 0, 20)


def test_who_sends_a_question_slowly_holds_no_place(make_app, serve):
    url = serve(make_app(settings={"idle_s": 2, "max_requests": 1}))
    with connect(url) as slow:
        slow.sendall(request("/v1/query", b'{"query": ', Content_Length="1000"))
        assert httpx.get(f"{url}/v1/indexes").status_code == 200
        assert not select.select([slow], [], [], 0)[0], "the other had to wait until this one was given up"
        assert b" 408 " in slow.recv(65_536)


def test_a_client_that_hangs_up_in_its_upload_frees_the_place(make_app, serve):
    app = make_app()
    url = serve(app)
    with connect(url) as client:
        client.sendall(request("/v1/documents", FILE, Content_Type=BOUNDARY, Content_Length="100000"))
        wait_until(lambda: under_way(app) == 1, 20)
    wait_until(lambda: under_way(app) == 0, 20)
    assert httpx.get(f"{url}/v1/documents").json()["total"] == DOCUMENTS


def test_two_hundred_clients_get_answers_or_are_asked_to_wait(make_app, serve):
    app = make_app(settings={"max_requests": 20}, cache_max_entries=0)
    url = serve(app)
    httpx.post(f"{url}/v1/query", json={"query": QUESTION}, timeout=60)

    async def one(client, number):
        return await client.post("/v1/query", json={"query": f"How long does cat {number % 7} sleep?"})

    async def crowd():
        async with httpx.AsyncClient(base_url=url, timeout=120, limits=httpx.Limits(max_connections=CLIENTS)) as client:
            return await asyncio.gather(*(one(client, number) for number in range(CLIENTS)))

    responses = asyncio.run(crowd())
    codes = [response.status_code for response in responses]
    assert set(codes) <= {200, 503}
    assert codes.count(200) >= 20
    assert all(response.headers["retry-after"] for response in responses if response.status_code == 503)
    wait_until(lambda: under_way(app) == 0, 20)


def test_progress_is_told_until_the_service_ends(make_app, serve):
    app = make_app()
    url = serve(app)
    record = app.state.service.router.documents.upload(b"The cow eats grass.", index="animals", filename="cow.txt")
    with httpx.stream("GET", f"{url}/v1/documents/{record.id}/events", timeout=60) as response:
        lines = response.iter_lines()
        told = [line for line in (next(lines), next(lines)) if line.startswith("data: ")]
        assert json.loads(told[0][6:])["status"] in {"pending", "processing", "indexed"}
        app.state.service.ending.set()  # as the server does when it is to end
        list(lines)


async def test_answers_under_way_are_finished_when_the_service_ends(make_app, serve, gate):
    app = make_app(model=FakeLLM(lambda _prompt: gate.wait(30) and GOOD))
    url = serve(app)
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        asked = asyncio.ensure_future(client.post("/v1/query", json={"query": QUESTION}))
        await asyncio.to_thread(wait_until, lambda: under_way(app) == 1, 20)
        app.state.server.should_exit = True
        await asyncio.to_thread(wait_until, app.state.service.ending.is_set, 20)
        gate.set()
        assert (await asked).status_code == 200


async def test_the_service_is_ready_when_it_is_warm(make_app, tmp_path, gate):
    questions = tmp_path / "questions.txt"
    questions.write_text(f"{QUESTION}\nHow many moons has Mars?\n", encoding="utf-8")
    app = make_app(settings={"warm": questions}, model=FakeLLM(lambda _prompt: gate.wait(30) and GOOD))
    service = app.state.service
    async with client_of(app) as client:
        warming = asyncio.ensure_future(service.warm_up())
        response = await client.get("/v1/health/ready")
        assert (response.status_code, response.json()["warm"]) == (503, False)
        gate.set()
        await warming
        assert (await client.get("/v1/health/ready")).status_code == 200
        assert (await client.post("/v1/query", json={"query": QUESTION})).json()["cached"] is True
        service.ending.set()
        assert (await client.get("/v1/health/ready")).status_code == 503
