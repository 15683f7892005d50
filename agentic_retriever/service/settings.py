"""What the service is started with; the settings of the router are in ``config``."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from agentic_retriever.errors import ConfigError


class Role(IntEnum):
    """What a key may do; each may do what those below it may."""

    ASK = 1  # ask, look at indexes, documents and sources, judge answers
    WRITE = 2  # add, change and remove documents
    ADMIN = 3  # read the history and the settings, clear the cache

    @classmethod
    def named(cls, name: str) -> Role:
        """Return the role of a name; ``ConfigError`` if there is none."""
        found = cls.__members__.get(name.upper())
        if found is None:
            known = ", ".join(role.name.lower() for role in cls)
            raise ConfigError(f"a role must be one of {known}, got {name[:40]!r}")
        return found


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request."""

    key_id: str  # "" where no keys are asked for
    name: str
    role: Role
    by_cookie: bool = False

    def own(self, conversation_id: str) -> str:
        """Return the name under which a conversation is kept: nobody goes on with one of another key."""
        return f"{self.key_id}.{conversation_id}" if self.key_id and conversation_id else conversation_id


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """How the service listens and what it allows; durations are seconds.

    Attributes:
        host: Address to listen on; another one than that of this machine alone needs keys.
        port: Port to listen on; 0 for a free one.
        rate: Requests by one key, such as ``600/minute``; empty for no limit.
        max_requests: Requests that are answered at once; others wait for a moment, or are refused with 503. 0 for what
            suits: one for each core and two at least, or 64 where a model writes the answers.
        max_uploads: Uploads that are received at once; others are refused.
        max_body_bytes: Largest body but for uploads, whose limit is the setting ``max_file_mb`` of the router.
        idle_s: How long a client may send nothing in the middle of its request.
        grace_s: How long answers under way may take when the service ends.
        threads: Threads for what blocks.
        document_workers: Threads that turn uploads into nodes; 0 where other processes do.
        warm: File of questions that are asked before the service says that it is ready.
        regulations: Index of what is uploaded by ``/api/admin/regulatory-documents``.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    rate: str = "600/minute"
    max_requests: int = 0
    max_uploads: int = 4
    max_body_bytes: int = 1_000_000
    idle_s: float = 20.0
    grace_s: float = 30.0
    threads: int = 16
    document_workers: int = 1
    warm: Path | None = None
    regulations: str = "regulations"

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the service."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"
