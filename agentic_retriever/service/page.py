"""The page: each view drawn on the server, with nothing loaded from elsewhere; what it does goes the way of the API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Form, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from pydantic import BaseModel
from starlette.staticfiles import StaticFiles

from agentic_retriever.catalog.records import Analytics, LogEntry, nearest_rank
from agentic_retriever.errors import AgenticRetrieverError, ConfigError
from agentic_retriever.resources import measured
from agentic_retriever.retrievers import REGISTRY
from agentic_retriever.schema import Answer
from agentic_retriever.service import documents, models, queries
from agentic_retriever.service.guard import COOKIE, allow
from agentic_retriever.service.keys import SESSION_S
from agentic_retriever.service.legacy import source_url
from agentic_retriever.service.queries import Shared
from agentic_retriever.service.responses import event, events, unless_gone
from agentic_retriever.service.settings import Caller, Role
from agentic_retriever.service.state import Service
from agentic_retriever.show import axis_ticks, duration, render

static = StaticFiles(directory=Path(__file__).parent / "static")
anybody = APIRouter(include_in_schema=False)
page = APIRouter(include_in_schema=False, dependencies=[allow(Role.ASK)])
changing = APIRouter(include_in_schema=False, dependencies=[allow(Role.WRITE)])
managing = APIRouter(include_in_schema=False, dependencies=[allow(Role.ADMIN)])

_VIEWS: Final = (  # path, name, who may see it
    ("/", "Ask", Role.ASK), ("/compare", "Compare", Role.ASK), ("/documents", "Documents", Role.ASK),
    ("/history", "History and analytics", Role.ADMIN), ("/indexes", "Indexes", Role.ASK),
    ("/settings", "Settings", Role.ADMIN),
)  # fmt: skip
_ROWS: Final = 20
_MOST_COMPARED: Final = 4
_MOST_PLOTTED: Final = 500  # of the newest questions
_MOST_DOUBTFUL: Final = 5
_MOST_SHOWN: Final = 2_000_000  # characters of a source; a browser shows no more with ease
Text = Annotated[str, Form(max_length=20_000, pattern=models.NO_NUL)]
Short = Annotated[str, Form(max_length=200, pattern=models.NO_NUL)]


def draw(request: Request, template: str, **values: object) -> Response:
    """Draw a view for who asks for it."""
    caller: Caller | None = request.state.caller
    views = [(path, name) for path, name, role in _VIEWS if caller is not None and caller.role >= role]
    frame = {"views": views, "here": request.url.path, "signed_in": caller is not None and caller.by_cookie}
    return HTMLResponse(render(f"page/{template}", **frame, source_url=source_url, **values))


# Sessions


@anybody.get("/login")
async def login(request: Request, to: str = "/") -> Response:
    return draw(request, "login.html", to=to, wrong=False)


@anybody.post("/login")
async def sign_in(request: Request, service: Shared, key: Short = "", to: Short = "/") -> Response:
    caller = service.keys.caller(key.strip())
    if caller is None:
        answer = draw(request, "login.html", to=to, wrong=True)
        answer.status_code = 401
        return answer
    own = to if to.startswith("/") and not to.startswith(("//", "/\\")) else "/"
    answer = RedirectResponse(own, 303)
    secure = request.url.scheme == "https"
    answer.set_cookie(
        COOKIE, service.keys.session(caller), max_age=SESSION_S, httponly=True, samesite="strict", secure=secure
    )
    return answer


@anybody.post("/logout")
async def sign_out() -> Response:
    answer = RedirectResponse("/login", 303)
    answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return answer


# Ask and compare


async def _choices(service: Service) -> dict[str, Any]:
    strategies = [strategy.value for strategy in tuple(REGISTRY)]
    return {"indexes": await service.run(service.router.index_names), "strategies": strategies}


@page.get("/")
async def ask(request: Request, service: Shared, query: Annotated[str, Query(max_length=20_000)] = "") -> Response:
    return draw(request, "ask.html", **await _choices(service), query=query, chosen=Chosen(), answer=None)


class Chosen(BaseModel):
    """What was chosen beside the question."""

    index: str = ""
    strategy: str = ""

    def wanted(self) -> dict[str, Any]:
        return {"index": self.index or None, "strategy": self.strategy or None}


@page.post("/ask")
async def asked(
    request: Request, service: Shared, query: Text = "", index: Short = "", strategy: Short = ""
) -> Response:
    """Answer as events for the script of the page, else as a view."""
    chosen = Chosen(index=index, strategy=strategy)
    if "text/event-stream" in request.headers.get("accept", ""):
        return await events(request, _answering(service, query, chosen))
    answer = await unless_gone(request, service.query(query, **chosen.wanted()))
    return draw(request, "ask.html", **await _choices(service), query=query, chosen=chosen, answer=answer)


async def _answering(service: Service, query: str, chosen: Chosen) -> AsyncIterator[bytes]:
    async with service.stream(query, **chosen.wanted()) as pieces:
        async for piece in pieces:
            yield event("piece", piece)
        answer = pieces.answer
    if answer is not None:
        yield event("card", await service.run(render, "page/answer.html", answer=answer, source_url=source_url))


@page.get("/compare")
async def compare(request: Request, service: Shared) -> Response:
    return draw(request, "compare.html", **await _choices(service))


@page.post("/compare")
async def compared(
    request: Request,
    service: Shared,
    query: Text = "",
    index: Short = "",
    strategy: Annotated[list[str], Form(max_length=_MOST_COMPARED)] = [],  # noqa: B006 - FastAPI copies it
) -> Response:
    async def one(name: str) -> tuple[str, Answer | None, str]:
        try:
            return name, await service.query(query, index=index or None, strategy=name), ""
        except AgenticRetrieverError as err:
            return name, None, str(err)

    async def every() -> list[tuple[str, Answer | None, str]]:
        return await asyncio.gather(*map(one, dict.fromkeys(strategy)))

    return draw(request, "columns.html", columns=await unless_gone(request, every()))


@page.post("/feedback")
async def judge(
    request: Request, service: Shared, query_id: Short, rating: Annotated[int, Form(ge=1, le=5)], comment: Text = ""
) -> Response:
    judged = models.FeedbackIn(query_id=query_id, rating=rating, comment=comment[:4_000])
    await queries.feedback(judged, service)
    return draw(request, "thumbs.html", query_id=query_id, given=rating)


@page.get("/source")
async def source(
    request: Request,
    service: Shared,
    index: models.Name,
    doc: Annotated[str, Query(min_length=1, max_length=2_000, pattern=models.NO_NUL)],
    start: Annotated[int, Query(ge=0)] = 0,
    end: Annotated[int, Query(ge=0)] = 0,
    page: Annotated[int | None, Query(ge=1)] = None,
) -> Response:
    """Show the text of a document with the passage that a citation points to."""
    title, text = await service.run(documents.titled_source, service.router, index, doc)
    text = text[:_MOST_SHOWN]
    start = min(start, len(text))
    end = min(max(start, end), len(text))
    parts = {"before": text[:start], "span": text[start:end], "after": text[end:]}
    pages = str(page) if page is not None else ""
    return draw(request, "source.html", index=index, doc=title or doc, start=start, end=end, pages=pages, **parts)


# Documents and indexes


def _rows(service: Service, request: Request, wanted: models.DocumentsQuery) -> dict[str, Any]:
    """Return what the table of documents is drawn from."""
    found = documents.list_documents(service.router, wanted)
    filters = wanted.model_dump(exclude={"limit", "offset"}, exclude_none=True)

    def link(offset: int) -> str:
        return "/documents/rows?" + urlencode({**filters, "offset": max(0, offset)})

    return {
        "page": found,
        "filtered": bool(filters),
        "may_write": request.state.caller.role >= Role.WRITE,
        "under_way": any(one.status in {"pending", "processing"} for one in found.documents),
        "again": link(wanted.offset),
        "before": link(wanted.offset - wanted.limit),
        "after": link(wanted.offset + wanted.limit),
    }


@page.get("/documents")
async def list_documents(request: Request, service: Shared) -> Response:
    rows = await service.run(_rows, service, request, models.DocumentsQuery(limit=_ROWS))
    names = await service.run(service.router.index_names)
    return draw(request, "documents.html", **rows, indexes=names, statuses=models.STATUSES)


@page.get("/documents/rows")
async def document_rows(
    request: Request,
    service: Shared,
    index: str = "",
    status: str = "",
    search: str = "",
    offset: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
) -> Response:
    given = {"index": index, "status": status, "search": search.strip()}
    filters = {name: value for name, value in given.items() if value}
    wanted = models.DocumentsQuery.model_validate({"limit": _ROWS, "offset": offset, **filters})
    return draw(request, "document_rows.html", **await service.run(_rows, service, request, wanted))


@changing.post("/documents/{document_id}/{action}")
async def act(request: Request, document_id: models.DocumentId, action: models.Action, service: Shared) -> Response:
    await documents.act(document_id, action, service)
    return await document_rows(request, service)


@page.get("/documents/{document_id}")
async def document(request: Request, document_id: models.DocumentId, service: Shared) -> Response:
    record = await service.run(service.router.documents.get, document_id)
    one = models.DocumentOut.of(record)
    text = await service.run(service.router.documents.text, document_id)
    shown = ("index", "status", "document_type", "document_number", "filename", "total_pages", "total_chunks")
    facts = [[name.replace("_", " "), str(getattr(one, name))] for name in shown if getattr(one, name)]
    facts += [[name, str(value)] for name, value in {**one.metadata, **one.section_mappings}.items() if name[0] != "_"]
    path = await service.run(service.router.documents.file, document_id)
    has_file = path is not None and bool(record.stored_filename)
    return draw(request, "document.html", one=one, text=text[:_MOST_SHOWN], facts=facts, has_file=has_file)


@page.get("/indexes")
async def indexes(request: Request, service: Shared) -> Response:
    def described() -> list[Any]:
        """Return each index with its profile, and with what a benchmark measured on it."""
        found = []
        for one in documents.list_indexes(service.router):
            index = None if one.problem else service.router.index(one.name)
            found.append((one, *((None, None) if index is None else (index.profile(), measured(index)[0]))))
        return found

    return draw(request, "indexes.html", indexes=await service.run(described))


# History and settings


@managing.get("/history")
async def history(request: Request, service: Shared) -> Response:
    try:
        entries = await service.run(service.router.history.list, limit=_MOST_PLOTTED)
        found = await service.run(service.router.analytics)
    except ConfigError:  # there is no history by the settings
        entries, found = [], Analytics()
    tables = found.tables() if entries else []
    unsure = {one.query: one for one in entries if one.confidence is not None and one.confidence_level != "high"}
    doubtful = sorted(unsure.values(), key=lambda one: one.confidence or 0.0)[:_MOST_DOUBTFUL]
    plotted = len(entries) if len(entries) == _MOST_PLOTTED else 0
    return draw(
        request, "history.html", plots=history_plots(entries, found), plotted=plotted,
        totals=tables[0][2] if tables else [],
        doubtful=doubtful, entries=entries[:_ROWS], offset=0, limit=_ROWS,
    )  # fmt: skip


@managing.get("/history/rows")
async def history_rows(
    request: Request, service: Shared, offset: Annotated[int, Query(ge=0, le=1_000_000)] = 0
) -> Response:
    entries = await service.run(service.router.history.list, limit=_ROWS, offset=offset)
    return draw(request, "entries.html", entries=entries, offset=offset, limit=_ROWS)


@managing.get("/history/{query_id}")
async def entry(request: Request, query_id: models.QueryId, service: Shared) -> Response:
    return draw(request, "entry.html", entry=await service.run(service.router.history.get, query_id))


@managing.post("/history/{query_id}/replay")
async def replay(request: Request, query_id: models.QueryId, service: Shared) -> Response:
    changes, decision = await queries.routed_again(query_id, request, service)
    return draw(request, "replay.html", changes=changes, decision=decision)


@managing.get("/settings")
async def settings(request: Request, service: Shared) -> Response:
    config, own = service.router.config, service.settings
    meanings = {name: field.description or "" for name, field in type(config).model_fields.items()}
    of_router = [(name, value, meanings[name]) for name, value in config.to_dict().items()]
    of_service = [(name, getattr(own, name), "") for name in own.__slots__]
    return draw(request, "settings.html", tables=[("Router", of_router), ("Service", of_service)])


# The plots of the history: where bars and lines stand; the templates draw them.

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 440, 180, 52, 22, 10
_MOST_LABELS: Final = 6


def history_plots(entries: Sequence[LogEntry], found: Analytics) -> list[dict[str, Any]]:
    """Return the plots that the entries and their sums have figures for: volume, latency, tiers, savings by day."""
    days: dict[date, list[LogEntry]] = {}
    for entry in reversed(entries):
        if entry.recorded_at is not None:
            days.setdefault(entry.recorded_at.date(), []).append(entry)
    if not days:
        return []
    volume = {f"{day:%m-%d}": float(len(asked)) for day, asked in days.items()}
    usd = {f"{day:%m-%d}": [(one.cloud_only_usd, one.totals()["usd"]) for one in asked] for day, asked in days.items()}
    saved = {day: sum(cloud - own for cloud, own in pairs if cloud is not None) for day, pairs in usd.items()}
    plots = [bar_plot("Questions by day", volume), _latency(days)]
    plots.append(bar_plot("Answers by tier", {name: float(count) for name, count in found.tiers.items()}))
    if any(saved.values()):
        plots.append(bar_plot("Saved against the cloud alone, USD by day", saved))
    return [plot for plot in plots if plot is not None]


def _latency(days: Mapping[date, Sequence[LogEntry]]) -> dict[str, Any] | None:
    steps = {day: [one.timings_ms for one in asked] for day, asked in days.items()}
    times = {day: sorted(ms["total"] for ms in told if "total" in ms) for day, told in steps.items()}
    known = {f"{day:%m-%d}": ordered for day, ordered in times.items() if ordered}
    percents = {"median": 50, "95 of 100 are faster": 95}
    lines = {said: {day: nearest_rank(ordered, p) for day, ordered in known.items()} for said, p in percents.items()}
    return line_plot("Time of an answer by day", lines) if len(known) > 1 else bar_plot(
        "Time of an answer", {said: next(iter(line.values())) for said, line in lines.items() if line}, unit=duration
    )  # fmt: skip


def bar_plot(
    title: str, figures: Mapping[str, float], unit: Callable[[float], str] | None = None
) -> dict[str, Any] | None:
    """Place a bar for each figure; ``None`` when there is none."""
    if not figures:
        return None
    scale = _Scale(figures.values(), unit, len(figures))
    wide, bars = min(scale.step * 0.7, 60.0), []
    for at, value in enumerate(figures.values()):
        top, base = sorted((scale.y(value), scale.y(0.0)))
        bars.append((round(scale.x(at) - wide / 2, 1), top, round(wide, 1), round(base - top, 1)))
    words = f"{title}: " + ", ".join(f"{name} {scale.text(value)}" for name, value in figures.items())
    return _plot(title, "bars", words, scale, list(figures), bars=bars)


def line_plot(title: str, lines: Mapping[str, Mapping[str, float]]) -> dict[str, Any] | None:
    """Place lines over the same days; ``None`` when there is no day."""
    names = list(next(iter(lines.values()), {}))
    if not names:
        return None
    scale = _Scale([value for line in lines.values() for value in line.values()], duration, len(names))
    placed = [
        (name, " ".join(f"{scale.x(at):.1f},{scale.y(value)}" for at, value in enumerate(line.values())))
        for name, line in lines.items()
    ]
    said = [f"{name} {scale.text(list(line.values())[-1])}" for name, line in lines.items()]
    words = f"{title}: from {names[0]} to {names[-1]}, at last {', '.join(said)}"
    return _plot(title, "lines", words, scale, names, lines=placed)


class _Scale:
    """Heights of figures, from 0 or the least on, and the middles of so many places beside each other."""

    def __init__(self, values: Iterable[float], unit: Callable[[float], str] | None, places: int) -> None:
        self.ticks = axis_ticks(min(0.0, *values), max(0.0, *values))
        self.text = unit or (lambda value: f"{value:,.6g}")
        self.step = (WIDTH - LEFT) / places

    def x(self, at: int) -> float:
        return LEFT + self.step * (at + 0.5)

    def y(self, value: float) -> float:
        low, high = self.ticks[0], self.ticks[-1]
        return round(TOP + (HEIGHT - BOTTOM - TOP) * (1 - (value - low) / (high - low)), 1)


def _plot(title: str, kind: str, words: str, scale: _Scale, names: Sequence[str], **marks: object) -> dict[str, Any]:
    every = -(-len(names) // _MOST_LABELS)
    labels = [(round(scale.x(at), 1), name) for at, name in enumerate(names) if at % every == 0]
    ticks = [(scale.y(tick), scale.text(tick)) for tick in scale.ticks]
    size = {"width": WIDTH, "height": HEIGHT, "left": LEFT}
    return {"title": title, "kind": kind, "words": words, "ticks": ticks, "labels": labels, **size, **marks}
