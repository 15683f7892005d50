"""Folders of derived files that are written whole or not at all and checked when read; a crash may leave no folder."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from agentic_retriever.errors import StoreDamagedError, StoreError

MANIFEST = "manifest.json"


def write_sealed(folder: Path, header: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
    """Put the files into the folder, in place of all that was there. One writer at a time."""
    fresh, old = folder.with_name(f".{folder.name}.tmp"), folder.with_name(f".{folder.name}.old")
    seals = {name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in files.items()}
    body = {"header": dict(header), "files": seals}
    manifest = json.dumps({**body, "seal": _seal(body)}, indent=1).encode()
    try:
        for leftover in (fresh, old):
            if leftover.exists():
                shutil.rmtree(leftover)
        fresh.mkdir(parents=True)
        for name, data in {**files, MANIFEST: manifest}.items():
            with (fresh / name).open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        sync(fresh)
        if folder.exists():
            folder.replace(old)
        fresh.replace(folder)
        sync(folder.parent)
    except OSError as err:
        shutil.rmtree(fresh, ignore_errors=True)
        what = f"cannot write {folder}: {err.strerror or type(err).__name__}"
        raise StoreError(f"{what}; free some space or check the permissions") from err
    shutil.rmtree(old, ignore_errors=True)


def read_header(folder: Path) -> dict[str, Any] | None:
    """Return what the folder holds, or ``None`` when there is no such folder."""
    return _manifest(folder)["header"] if folder.exists() else None


def read_files(folder: Path, names: Iterable[str]) -> dict[str, bytes]:
    """Return the content of the named files, each checked against the manifest."""
    seals = _manifest(folder)["files"]
    files: dict[str, bytes] = {}
    for name in names:
        data = files[name] = _read(folder / name)
        if name not in seals:
            raise _damaged(folder / MANIFEST, f"it does not list {name}")
        if len(data) != seals[name]["bytes"]:
            raise _damaged(folder / name, f"it has {len(data):,} bytes, not {seals[name]['bytes']:,}")
        if hashlib.sha256(data).hexdigest() != seals[name]["sha256"]:
            raise _damaged(folder / name, "its checksum differs")
    return files


def _manifest(folder: Path) -> dict[str, dict[str, Any]]:
    path = folder / MANIFEST
    try:
        manifest = json.loads(_read(path))
        body = {"header": manifest["header"], "files": manifest["files"]}
        sealed = manifest["seal"] == _seal(body)
    except (ValueError, KeyError, TypeError, RecursionError) as err:
        raise _damaged(path, "it is not a manifest") from err
    if not sealed:
        raise _damaged(path, "it was edited")
    return body


def _seal(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as err:
        raise _damaged(path, "it is missing") from err
    except OSError as err:
        raise StoreError(f"cannot read {path}: {err.strerror or type(err).__name__}; check the permissions") from err


def _damaged(path: Path, what: str) -> StoreDamagedError:
    return StoreDamagedError(f"{path} is damaged: {what}; it can be rebuilt from the stored nodes")


def sync(path: Path) -> None:
    """Bring a file or the names in a folder to the disk."""
    with suppress(OSError):  # Windows cannot open a folder; there the rename alone has to do
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
