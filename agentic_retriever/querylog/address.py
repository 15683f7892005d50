"""Where a history is kept: a SQLite file, or a PostgreSQL database by its URL. Shown without its secrets."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from agentic_retriever.config.values import Secret
from agentic_retriever.errors import ConfigError

_POSTGRES = ("postgresql", "postgres", "postgresql+psycopg")
_ALLOWED = "use a file, sqlite:///FILE or postgresql://USER:PASSWORD@HOST/DATABASE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The place of a history.

    Attributes:
        path: The SQLite file, or ``None`` for a server.
        url: URL of the server in the spelling that SQLAlchemy takes for psycopg 3; empty for a file.
        secrets: Parts of the URL that may be secret: they are starred out of what a driver says.
    """

    path: Path | None = None
    url: Secret = field(default_factory=Secret)
    secrets: tuple[Secret, ...] = ()

    def __str__(self) -> str:
        if self.path is not None:
            return str(self.path)
        parts = urlsplit(self.url.reveal())
        port = f":{parts.port}" if parts.port else ""
        return f"postgresql://{parts.hostname or 'localhost'}{port}{parts.path}"

    def redacted(self, text: str) -> str:
        """Return a text with every secret of the URL starred out."""
        for secret in self.secrets:
            text = text.replace(secret.reveal(), "********")
        return text


def address_of(place: str | Path | Secret) -> Address:
    """Read where a history is to be kept.

    Args:
        place: A path, or a URL: ``sqlite:///FILE`` (four slashes for an absolute path), ``postgresql://…``,
            ``postgres://…`` or ``postgresql+psycopg://…``.

    Raises:
        ConfigError: If it is none of these. The message never repeats it, since it may hold a password.
    """
    if isinstance(place, Path):
        return Address(path=place)
    text = place.reveal() if isinstance(place, Secret) else place
    scheme, separator, rest = text.partition("://")
    if not separator:
        if not text.strip() or ":" in text or "@" in text:
            raise ConfigError(f"the place of the query history is neither a file nor a URL; {_ALLOWED}")
        return Address(path=Path(text))
    if scheme.lower() == "sqlite":
        return Address(path=_sqlite_file(rest))
    if scheme.lower() not in _POSTGRES:
        known = scheme.lower() if scheme.replace("+", "").isalnum() and len(scheme) <= 30 else "of this kind"
        raise ConfigError(f"the query history cannot be kept in a database {known}; {_ALLOWED}")
    return _server(rest)


def _sqlite_file(rest: str) -> Path:
    if not rest.startswith("/") or rest in {"/", "/:memory:"} or "?" in rest:
        raise ConfigError("the query history needs a SQLite file, without options; write sqlite:///FILE")
    return Path(rest[1:])


def _server(rest: str) -> Address:
    url = f"postgresql+psycopg://{rest}"
    try:
        parts = urlsplit(url)
        # An unescaped @, / or : of a password would end up in the host, the port or the database, which are shown.
        misread = "@" in parts.path or "@" in parts.query or "@" in parts.netloc.rpartition("@")[0]
        hosted = parts.port is None or parts.port > 0
    except ValueError:
        misread, hosted = True, False
    if misread or not hosted or "#" in rest:
        # No cause: what urlsplit says repeats parts of the URL.
        raise ConfigError(
            "the URL of the query history cannot be read; percent-encode special characters of the password, "
            "such as %40 for @ and %2F for /"
        ) from None
    options = [pair.partition("=") for pair in parts.query.split("&")]
    raw = [parts.password or "", *(value for name, _, value in options if "pass" in name.lower())]
    secrets = {spelling for text in raw for spelling in (text, unquote(text)) if spelling}
    # The longest first, so that one that is part of another does not spoil it.
    ordered = sorted(secrets, key=lambda text: (-len(text), text))
    return Address(url=Secret(url), secrets=tuple(Secret(text) for text in ordered))
