"""The page as it is sent: whole without a script of others, harmless whatever documents and people write."""

import re
from html.parser import HTMLParser

import pytest
from llama_index.core.schema import Document
from service_clients import client_of, with_key
from small_indexes import QUESTION

from agentic_retriever.catalog.records import Analytics, LogEntry, utc_now
from agentic_retriever.service.page import bar_plot, history_plots, line_plot

VIEWS = ["/", "/compare", "/documents", "/history", "/indexes", "/settings", "/login"]
EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)> <a href='javascript:x'>{{ 7919 * 7927 }}</a>"


class Page(HTMLParser):
    """What a page refers to, the ids in it, and what its labels name."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.links, self.ids, self.labels, self.named = [], [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.tags.append((tag, found))
        self.links += [found[name] for name in ("src", "href", "action", "hx-get", "hx-post") if found.get(name)]
        if "id" in found:
            self.ids.append(found["id"])
        if tag == "label" and "for" in found:
            self.labels.append(found["for"])


def check(text):
    page = Page(text)
    assert len(page.ids) == len(set(page.ids))
    assert set(page.labels) <= set(page.ids)
    for link in page.links:
        assert re.match(r"[/#?]", link), link
        assert not link.startswith("//")
    for tag, attrs in page.tags:
        assert tag not in {"iframe", "object", "embed", "base", "img"}
        assert not any(name.startswith("on") for name in attrs), (tag, attrs)
        assert tag != "script" or set(attrs) == {"src", "defer"}
        assert tag != "style"
    return page


@pytest.mark.parametrize("view", VIEWS)
async def test_views_load_nothing_from_elsewhere_and_run_no_script_of_their_own(client, view):
    await client.post("/v1/query", json={"query": QUESTION})
    response = await client.get(view)
    assert response.status_code == 200
    page = check(response.text)
    for link in page.links:
        if link.startswith("/static/"):
            assert (await client.get(link)).status_code == 200


async def test_an_answer_without_a_script(client):
    shown = await client.post("/ask", data={"query": QUESTION, "index": "animals", "strategy": "vector"})
    page = check(shown.text)
    assert "sixteen hours" in shown.text
    text = await client.get(next(link for link in page.links if link.startswith("/source")))
    check(text.text)
    assert '<mark id="span">The cat sleeps sixteen hours a day.</mark>' in text.text
    assert "<h1>cats</h1>" in text.text


async def test_what_documents_and_people_write_stays_text(make_app, tmp_path):
    app = make_app()
    router = app.state.service.router
    text = f"The {EVIL} cat sleeps sixteen hours a day."
    router.add_index("evil", [Document(text=text, doc_id="e", metadata={"title": EVIL})], description=EVIL)
    async with client_of(app) as client:
        shown = [await client.post("/ask", data={"query": f"{QUESTION} {EVIL}", "index": "evil"})]
        query_id = (await client.get("/v1/queries")).json()[0]["query_id"]
        await client.post("/v1/feedback", json={"query_id": query_id, "thumb": "up", "comment": EVIL})
        shown.append(await client.post("/compare", data={"query": EVIL, "index": "evil", "strategy": ["vector"]}))
        shown.append(
            await client.get("/source", params={"index": "evil", "doc": "e", "start": 0, "end": 30, "page": 3})
        )
        shown += [await client.get(path) for path in ("/history", f"/history/{query_id}", "/indexes", "/documents")]
        record = (await client.get("/v1/documents", params={"index": "evil"})).json()["documents"][0]
        shown.append(await client.get(f"/documents/{record['id']}"))
        shown.append(await client.get("/", params={"query": EVIL}))
        shown.append(await client.get("/documents/rows", params={"search": EVIL}))
    for response in shown:
        assert response.status_code == 200, response.text
        assert "<script>alert" not in response.text
        assert "<img" not in response.text
        assert str(7919 * 7927) not in response.text  # nor a template
        check(response.text)
    assert "page 3" in shown[2].text


async def test_an_upload_is_never_a_page(client):
    page = b"<html><script>alert(1)</script> The cow eats grass.</html>"
    made = await client.post("/v1/documents", files={"file": ("a.html", page, "text/html")}, data={"index": "animals"})
    response = await client.get(f"/v1/documents/{made.json()['id']}/file")
    assert (response.content, response.headers["content-type"]) == (page, "application/octet-stream")
    assert response.headers["content-disposition"].startswith("attachment")
    assert response.headers["content-security-policy"].startswith("sandbox")
    assert response.headers["x-content-type-options"] == "nosniff"
    listed = (await client.get("/v1/documents")).json()["documents"]
    in_place = next(one for one in listed if one["id"] != made.json()["id"])
    assert (await client.get(f"/v1/documents/{in_place['id']}/file")).status_code == 404


async def test_roles_see_what_they_may_do(make_app, keys):
    async with client_of(make_app()) as client:
        for role, may_write in (("ask", False), ("write", True)):
            shown = (await client.get("/documents", headers=with_key(keys[role]))).text
            assert ("Switch off" in shown, 'id="upload"' in shown) == (may_write, may_write)


async def test_a_document_is_switched_off_and_on(client):
    shown = await client.get("/documents")
    [path] = {link for link in Page(shown.text).links if link.endswith("deactivate")} & {
        f"/documents/{one['id']}/deactivate"
        for one in (await client.get("/v1/documents", params={"search": "cats"})).json()["documents"]
    }
    assert "Switch on" in (await client.post(path)).text
    assert "Switch on" not in (await client.post(path.replace("deactivate", "activate"))).text


async def test_thumbs_and_replay(client):
    await client.post("/ask", data={"query": QUESTION})
    query_id = (await client.get("/v1/queries")).json()[0]["query_id"]
    judged = await client.post("/feedback", data={"query_id": query_id, "rating": 5, "comment": "good"})
    assert "Thank you" in judged.text
    assert "5 of 5: " in (await client.get(f"/history/{query_id}")).text
    assert "the same way" in (await client.post(f"/history/{query_id}/replay")).text
    assert (await client.get("/history/nothing")).status_code == 404


async def test_without_a_history_the_view_is_empty(make_app):
    async with client_of(make_app(query_log="none")) as client:
        assert "Nothing was asked yet" in (await client.get("/history")).text
        assert (await client.get("/v1/queries")).status_code == 409


@pytest.mark.parametrize("figures", [[0.0], [0.0, 0.0], [1e-9], [5e9, 1.0], [-2.0, 3.0], list(range(90))])
def test_plots_stay_within_their_frame(figures):
    named = {f"d{at}": float(value) for at, value in enumerate(figures)}
    plot = bar_plot("t", named)
    for x, y, width, height in plot["bars"]:
        assert x >= 0
        assert x + width <= plot["width"] + 0.2
        assert height >= 0
        assert y + height <= plot["height"]
    assert len(plot["labels"]) <= 6
    assert all(name in plot["words"] for name in named)
    lines = line_plot("t", {"a": named, "b": named})
    points = [tuple(map(float, point.split(","))) for point in lines["lines"][0][1].split()]
    assert len(points) == len(figures)
    assert all(0 <= x <= lines["width"] and 0 <= y <= lines["height"] for x, y in points)


def test_no_plot_without_figures():
    assert bar_plot("t", {}) is None
    assert line_plot("t", {}) is None
    assert history_plots([], Analytics()) == []
    entry = LogEntry(recorded_at=utc_now(), timings_ms={"total": 5.0})
    assert [plot["title"] for plot in history_plots([entry], Analytics(tiers={"cloud": 1}))] == [
        "Questions by day", "Time of an answer", "Answers by tier",
    ]  # fmt: skip
