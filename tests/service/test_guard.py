"""Who may come in, how often, how large; and what another site cannot do."""

import asyncio
import itertools
from contextlib import closing

import pytest
from service_clients import client_of, with_key
from small_indexes import QUESTION
from waiting import wait_until

from agentic_retriever.catalog.address import Address
from agentic_retriever.catalog.database import Database
from agentic_retriever.errors import ConfigError, StoreUnreachableError
from agentic_retriever.service import guard
from agentic_retriever.service.guard import COOKIE, Places, parse_rate
from agentic_retriever.service.keys import KeyRing, KeyTable
from agentic_retriever.service.settings import Role, ServiceSettings
from agentic_retriever.testing import FakeLLM
from agentic_retriever.threads import Workers

ASKED = {"query": QUESTION}


def hashes_of(app):
    return [record.digest for record in app.state.service.keys._table.all()]


async def test_without_keys_this_machine_may_do_everything_and_nobody_else(app, make_app):
    async with client_of(app) as client:
        assert (await client.get("/v1/queries")).status_code == 200
        assert (await client.get("/v1/queries", headers={"Host": "evil.example"})).status_code == 421
        assert (await client.get("/v1/queries", headers={"Host": "127.0.0.1:8000"})).status_code == 200
    for host in ("0.0.0.0", "192.168.0.7", "::", "example.org"):
        with pytest.raises(ConfigError, match="keys create"):
            make_app(settings={"host": host})


def test_other_addresses_are_served_once_there_is_a_key(make_app, keys):
    assert make_app(settings={"host": "0.0.0.0"}).state.service.is_open is False


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_addresses_of_this_machine(host):
    assert ServiceSettings(host=host).is_local


ROLES = [
    ("POST", "/v1/query", Role.ASK), ("GET", "/v1/indexes", Role.ASK), ("GET", "/metrics", Role.ASK),
    ("GET", "/", Role.ASK), ("POST", "/v1/documents", Role.WRITE), ("DELETE", "/v1/documents/x", Role.WRITE),
    ("POST", "/documents/x/reprocess", Role.WRITE), ("POST", "/api/admin/regulatory-documents", Role.WRITE),
    ("GET", "/v1/queries", Role.ADMIN), ("DELETE", "/v1/cache", Role.ADMIN), ("GET", "/settings", Role.ADMIN),
    ("GET", "/history", Role.ADMIN), ("GET", "/llm-metrics/routing", Role.ADMIN),
]  # fmt: skip


async def test_each_role_may_do_what_it_may(make_app, keys):
    async with client_of(make_app()) as client:
        for (method, path, least), role in itertools.product(ROLES, Role):
            for header in (with_key(keys[role.name.lower()]), {"X-API-Key": keys[role.name.lower()]}):
                response = await client.request(method, path, headers=header)
                assert (response.status_code == 403) == (role < least), (method, path, role)
        for method, path, _ in ROLES:
            for headers in ({}, with_key("ar_00000000_wrong"), with_key(keys["ask"][:-1]), with_key("")):
                response = await client.request(method, path, headers=headers)
                assert response.status_code == 401
                assert response.headers["www-authenticate"] == "Bearer"


async def test_every_path_but_a_few_wants_a_key(make_app, keys):
    app = make_app()
    free = {"/v1/health/live", "/v1/health/ready", "/api/health"}
    paths = app.openapi()["paths"]
    assert free <= set(paths)
    async with client_of(app) as client:
        for path, methods in paths.items():
            for method in methods:
                response = await client.request(method.upper(), path.replace("{", "").replace("}", ""))
                assert (response.status_code != 401) == (path in free), path
        for path in ("/openapi.json", "/nowhere", "/source", "/static/../v1/queries"):
            assert (await client.get(path)).status_code == 401


def test_keys_are_kept_as_hashes_and_compared_whole(make_app, keys):
    ring = make_app().state.service.keys
    ring.load()
    for role, key in keys.items():
        assert ring.caller(key).role is Role.named(role)
        assert ring.caller(key + "x") is None
        for record in ring._table.all():
            assert key not in repr(record)
            assert key.split("_", 2)[2] not in str(record.shown()) + record.digest
    for odd in ("", "ar_", "ar_" + "é" * 50, "\udcff", keys["ask"].upper(), "x" * 100_000):
        assert ring.caller(odd) is None


def test_keys_are_kept_by_postgresql(postgres_url):
    with closing(Database(Address.of(postgres_url))) as database:
        table = KeyTable(database)
        assert table.all() == []
        ring, key = KeyRing(table, Workers(1, "keys")), table.create("Ana ก", Role.WRITE)
        ring.load()
        assert (ring.caller(key).name, ring.caller(key).role) == ("Ana ก", Role.WRITE)
        assert table.revoke(ring.caller(key).key_id).created_at.tzinfo is not None
        ring.load()
        assert ring.caller(key) is None


async def test_a_key_that_is_revoked_meanwhile_is_refused_and_opens_no_door(make_app, keys):
    app = make_app()
    ring = app.state.service.keys
    clock = [0.0]
    ring._timer = lambda: clock[0]
    ring.load()
    async with client_of(app) as client:
        assert (await client.post("/v1/query", json=ASKED, headers=with_key(keys["ask"]))).status_code == 200
        for record in ring._table.all():
            ring._table.revoke(record.id)
        clock[0] += 1.5
        assert (await client.post("/v1/query", json=ASKED, headers=with_key(keys["ask"]))).status_code == 401
        assert (await client.post("/v1/query", json=ASKED)).status_code == 401
    assert not app.state.service.is_open
    with pytest.raises(ConfigError, match="no key"):
        ring._table.revoke(record.id)


async def test_the_process_lives_while_its_catalog_is_away(make_app, keys, monkeypatch):
    app = make_app()
    ring = app.state.service.keys
    ring._read_at = None  # what is known is old

    def fail():
        raise StoreUnreachableError("the catalog is away")

    monkeypatch.setattr(ring._table, "all", fail)
    async with client_of(app) as client:
        assert (await client.get("/v1/health/live")).status_code == 200
        refused = await client.post("/v1/query", json=ASKED, headers=with_key(keys["ask"]))
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")


async def test_a_revoked_key_ends_its_sessions(make_app, keys):
    ring = make_app().state.service.keys
    ring.load()
    cookie = ring.session(ring.caller(keys["admin"]))
    assert ring.session_caller(cookie).by_cookie
    ring._table.revoke(ring.caller(keys["admin"]).key_id)
    ring.load()
    assert ring.session_caller(cookie) is None


def test_sessions_end_and_cannot_be_made_up(make_app, keys):
    table, clock = make_app().state.service.keys._table, [1_000.0]
    ring = KeyRing(table, Workers(1, "keys"), clock=lambda: clock[0])
    ring.load()
    cookie = ring.session(ring.caller(keys["ask"]))
    key_id, until, signature = cookie.split(".")
    assert ring.session_caller(cookie).role is Role.ASK
    later = str(int(until) + 1)
    forged = [f"{key_id}.{later}.{signature}", f"other.{until}.{signature}", cookie[:-1], "..", "", f"{key_id}.é.x"]
    unknown = f"nobody.{until}.{ring._signature('nobody', until)}"
    assert [ring.session_caller(one) for one in (*forged, unknown)] == [None] * 7
    clock[0] = float(until) + 1
    assert ring.session_caller(cookie) is None


async def test_signing_in_and_out(make_app, keys):
    async with client_of(make_app()) as client:
        sent = await client.get("/", headers={"Accept": "text/html"})
        assert (sent.status_code, sent.headers["location"]) == (303, "/login?to=/")
        wrong = await client.post("/login", data={"key": "ar_x"})
        assert wrong.status_code == 401
        assert "not known" in wrong.text
        assert "ar_x" not in wrong.text
        done = await client.post("/login", data={"key": keys["ask"], "to": "/compare"})
        assert (done.status_code, done.headers["location"]) == (303, "/compare")
        cookie = done.headers["set-cookie"]
        assert {"HttpOnly", "SameSite=strict"} <= set(cookie.split("; "))
        assert keys["ask"] not in cookie
        page = await client.get("/")
        assert page.status_code == 200
        assert "Compare" in page.text
        assert "Settings" not in page.text  # which this key may not see
        assert (await client.post("/logout")).headers["location"] == "/login"
        assert (await client.get("/")).status_code == 401


@pytest.mark.parametrize("to", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:x"])
async def test_signing_in_leads_nowhere_else(make_app, keys, to):
    async with client_of(make_app()) as client:
        done = await client.post("/login", data={"key": keys["ask"], "to": to})
    assert done.headers["location"] == "/"


FOREIGN = [
    {"Origin": "https://evil.example"}, {"Origin": "null"}, {"Origin": "http://localhost:9999"},
    {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"},
]  # fmt: skip


@pytest.mark.parametrize("headers", FOREIGN)
async def test_another_site_changes_nothing_with_the_rights_of_a_browser(make_app, app, headers):
    async with client_of(app) as client:  # nobody is asked for a key here
        assert (await client.delete("/v1/cache", headers=headers)).status_code == 403
        assert (await client.get("/v1/cache", headers=headers)).status_code == 200
    key = app.state.service.keys._table.create("admin", Role.ADMIN)
    async with client_of(make_app()) as client:
        await client.post("/login", data={"key": key})
        assert (await client.delete("/v1/cache", headers=headers)).status_code == 403
        assert (await client.delete("/v1/cache", headers={"Origin": "http://localhost"})).status_code == 200
        client.cookies.clear()
        assert (await client.delete("/v1/cache", headers=headers | with_key(key))).status_code == 200


async def test_every_answer_has_its_headers_and_no_other_site_may_read(client):
    for path in ("/", "/v1/indexes", "/static/page.js", "/nowhere", "/v1/health/live"):
        response = await client.get(path, headers={"Origin": "https://evil.example"})
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert response.headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in response.headers
    assert (await client.options("/v1/query", headers={"Origin": "https://evil.example"})).status_code == 405


async def test_a_key_has_a_rate(make_app, keys):
    async with client_of(make_app(settings={"rate": "3/hour"})) as client:
        codes = [(await client.get("/v1/indexes", headers=with_key(keys["ask"]))).status_code for _ in range(4)]
        assert codes == [200, 200, 200, 429]
        refused = await client.get("/v1/indexes", headers=with_key(keys["ask"]))
        assert int(refused.headers["retry-after"]) > 0
        assert (await client.get("/v1/indexes", headers=with_key(keys["write"]))).status_code == 200
        assert (await client.get("/v1/health/live", headers=with_key(keys["ask"]))).status_code == 200


async def test_a_rate_is_shared_by_redis(make_app, keys, own_server):
    server = own_server()
    many = [make_app(settings={"rate": "3/hour"}, redis_url=server.url) for _ in range(2)]
    codes = []
    for app in [*many, *many]:
        async with client_of(app) as client:
            codes.append((await client.get("/v1/indexes", headers=with_key(keys["ask"]))).status_code)
    assert codes == [200, 200, 200, 429]


async def test_a_rate_counts_in_memory_while_redis_is_away(make_app, keys):
    app = make_app(settings={"rate": "1/hour"}, redis_url="redis://127.0.0.1:1/0")
    async with client_of(app) as client:
        codes = [(await client.get("/v1/indexes", headers=with_key(keys["ask"]))).status_code for _ in range(2)]
    assert codes == [200, 429]


@pytest.mark.parametrize("rate", ["", " ", "5/second", "600 per minute"])
def test_rates_that_can_be_read(rate):
    assert (parse_rate(rate) is None) == (not rate.strip())


@pytest.mark.parametrize("rate", ["five", "5", "5/blink"])
def test_rates_that_cannot_be_read_are_refused_at_once(make_app, rate):
    with pytest.raises(ConfigError, match="600/minute"):
        make_app(settings={"rate": rate})


async def test_bodies_have_a_limit_however_they_come(make_app):
    async def pieces():
        for _ in range(30):
            yield b'{"query": "' + b"x" * 100

    app = make_app(settings={"max_body_bytes": 2_000}, max_file_mb=0.001)
    async with client_of(app) as client:
        for response in (
            await client.post("/v1/query", json={"query": "x" * 3_000}),
            await client.post("/v1/query", content=pieces(), headers={"Content-Type": "application/json"}),
            await client.post("/v1/query", content=b"", headers={"Content-Length": "9" * 30}),
            await client.post("/v1/documents", files={"file": ("a.txt", b"x" * 200_000)}, data={"index": "a"}),
        ):
            assert response.status_code == 413
            assert response.json()["title"] == "Too large"


@pytest.fixture
def patience(monkeypatch):
    """Sets how long it is waited for a place; in a crowd that lasts it is not."""
    monkeypatch.setattr(guard, "WAIT_IN_CROWD_S", 0.0)
    return lambda wait_s: monkeypatch.setattr(guard, "WAIT_S", wait_s)


async def queued(places, number):
    """Tasks that wait for a place, each in front of the next."""
    tasks = [asyncio.ensure_future(places.take()) for _ in range(number)]
    await asyncio.sleep(0)
    return tasks


async def test_a_burst_gets_its_places_in_turn(patience):
    patience(60.0)
    places = Places(2, most_waiting=3)
    assert [await places.take() for _ in range(2)] == [True, True]
    waiting = await queued(places, 3)
    assert await places.take() is False  # no more may wait
    for at, task in enumerate(waiting):
        places.give_back()
        assert await task is True
        assert not any(later.done() for later in waiting[at + 1 :])


async def test_in_a_crowd_that_lasts_nobody_waits_for_long(patience):
    patience(60.0)
    now = [0.0]
    places = Places(1, most_waiting=1, timer=lambda: now[0])
    await places.take()
    [first] = await queued(places, 1)
    assert await places.take() is False  # no room
    places.give_back()
    assert await first is True
    now[0] = 0.3
    assert await places.take() is False  # there is room, but others were just turned away
    now[0] = 0.7
    assert await places.take() is False  # as this one was
    now[0] = 1.5
    [calm] = await queued(places, 1)
    places.give_back()
    assert await calm is True


async def test_who_leaves_the_queue_takes_no_place_along(patience):
    patience(60.0)
    places = Places(1, most_waiting=9)
    await places.take()
    early, late, last = await queued(places, 3)
    early.cancel()
    await asyncio.wait((early,))
    places.give_back()  # to the second, which is cancelled before it can run
    late.cancel()
    assert await last is True
    places.give_back()
    assert (places.held, await places.take()) == (0, True)


@pytest.mark.parametrize(
    ("most", "cores", "model", "places"), [(0, 1, 0, 2), (0, 3, 0, 3), (0, 3, 1, 64), (5, 3, 1, 5)]
)
def test_places_suit_the_machine_and_what_answers(make_app, monkeypatch, most, cores, model, places):
    monkeypatch.setattr(guard, "usable_cores", lambda: cores)
    app = make_app(settings={"max_requests": most}, model=FakeLLM(lambda _prompt: "") if model else None)
    assert guard.Limits(app.state.service).places["requests"].most == places


async def test_only_so_many_are_answered_at_once(make_app, gate, patience):
    patience(0.0)
    entered = []
    app = make_app(model=FakeLLM(lambda _prompt: entered.append(1) or str(gate.wait(60))), settings={"max_requests": 2})
    async with client_of(app) as client:
        waiting = [asyncio.ensure_future(client.post("/v1/query", json={"query": f"Cat {n}?"})) for n in range(2)]
        await asyncio.to_thread(wait_until, lambda: entered, 20)
        refused = await client.get("/v1/indexes")
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        assert (await client.get("/v1/health/live")).status_code == 200
        assert (await client.get("/metrics")).status_code == 200
        gate.set()
        assert {response.status_code for response in await asyncio.gather(*waiting)} == {200}
        assert (await client.get("/v1/indexes")).status_code == 200


async def test_the_canary_in_every_setting_shows_nowhere(make_app, tmp_path):
    canary = "canary-4711-never-shown"
    secrets = {
        "openrouter_api_key": canary, "openai_api_key": canary, "cohere_api_key": canary, "qdrant_api_key": canary,
        "redis_url": f"redis://user:{canary}@127.0.0.1:1/0",
    }  # fmt: skip
    app = make_app(**secrets)
    key = app.state.service.keys._table.create("a", Role.ADMIN)
    app = make_app(**secrets)
    shown = []
    async with client_of(app, headers=with_key(key)) as client:
        paths = ["/", "/compare", "/documents", "/history", "/indexes", "/settings", "/metrics", "/v1/cache"]
        paths += ["/v1/health/ready", "/api/admin/rag/health", "/openapi.json", "/v1/queries", "/v1/analytics"]
        for path in paths:
            response = await client.get(path)
            assert response.status_code == 200, path
            shown.append(response.text + str(response.headers))
        asked = ("/v1/query", "/v1/retrieve", "/v1/explain", "/api/query", "/api/admin/rag/query")
        shown += [(await client.post(path, json=ASKED | {"question": QUESTION})).text for path in asked]
    assert "********" in shown[5]
    for text in shown:
        assert canary not in text
        assert key not in text
        assert not any(digest in text for digest in hashes_of(app))
    assert COOKIE not in "".join(shown)
