"""The one place where errors of Qdrant Edge and of the operating system become ours."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from agentic_retriever.errors import AgenticRetrieverError, StoreBusyError, StoreDamagedError, StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# What Edge says when its own lock on the write-ahead log is taken.
_BUSY_MARK: Final = "WouldBlock"
_FULL_MARKS: Final = ("os error 27", "os error 28", "os error 122", "No space left", "File too large", "quota exceeded")
_DENIED_MARKS: Final = ("os error 13", "os error 1)", "os error 30", "Permission denied", "Read-only file system")
_FULL: Final = frozenset({errno.ENOSPC, errno.EFBIG, errno.EDQUOT})
_DENIED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_MAX_DETAIL: Final = 300


def busy(folder: Path) -> StoreBusyError:
    """Say that another process holds a folder.

    Args:
        folder: The collection's folder.

    Returns:
        The error to raise.
    """
    return StoreBusyError(
        f"{folder} is already in use by another process; close it there, use another folder, or run a Qdrant server "
        "when several processes must share one index"
    )


def damaged(folder: Path, what: str) -> StoreDamagedError:
    """Say that a collection's files are not whole.

    Args:
        folder: The collection's folder.
        what: What is wrong with them.

    Returns:
        The error to raise.
    """
    return StoreDamagedError(
        f"the index in {folder} is damaged or incomplete: {what}; restore the folder from a copy, or remove it and "
        "index the sources again"
    )


@contextmanager
def edge_errors(action: str, folder: Path, *, loading: bool = False) -> Iterator[None]:
    """Turn what goes wrong inside into an error of ours.

    Args:
        action: What is being done, such as ``"add nodes"``, for the message.
        folder: The collection's folder, for the message.
        loading: Whether existing files are being opened, so that a failure means that they are damaged.

    Yields:
        Nothing.

    Raises:
        StoreError: The engine or the operating system failed; ``StoreBusyError`` where another process holds the
            files, ``StoreDamagedError`` where existing files cannot be opened.
    """
    try:
        yield
    except (AgenticRetrieverError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as err:  # Edge raises bare Exception, and on a panic a BaseException that cannot be imported
        raise _translate(err, action, folder, loading=loading) from err


def _translate(err: BaseException, action: str, folder: Path, *, loading: bool) -> StoreError:
    detail = " ".join(str(err).split())[:_MAX_DETAIL]
    code = err.errno if isinstance(err, OSError) else None
    if _BUSY_MARK in detail:
        return busy(folder)
    if code in _FULL or any(mark in detail for mark in _FULL_MARKS):
        return StoreError(
            f"cannot {action} in {folder}: the disk, a quota or the file size limit is exhausted ({detail}); free some "
            "space and try again, what was acknowledged before is kept"
        )
    if code in _DENIED or any(mark in detail for mark in _DENIED_MARKS):
        return StoreError(
            f"cannot {action} in {folder}: permission denied ({detail}); make the folder writable for this user or "
            "choose another"
        )
    if isinstance(err, (FileExistsError, NotADirectoryError)):
        return StoreError(f"cannot {action} in {folder}: a file is in the way ({detail}); choose another folder")
    if loading and not isinstance(err, MemoryError):
        return damaged(folder, detail or type(err).__name__)
    return StoreError(f"cannot {action} in {folder}: {detail or type(err).__name__}")
