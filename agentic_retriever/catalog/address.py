"""Where a catalog is: values alone, so that nothing here loads SQLAlchemy."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from typing_extensions import Self

from agentic_retriever.config import RouterConfig, Secret, host_and_port
from agentic_retriever.errors import ConfigError

CATALOG_FILE: Final = "catalog.sqlite"  # in the data directory
_ALLOWED: Final = "use postgresql://USER:PASSWORD@HOST/DATABASE, or nothing for a file in the data directory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a catalog is kept: a SQLite file, or a PostgreSQL database by its URL; shown without its secrets."""

    path: Path | None = None  # None for a server
    url: Secret = field(default_factory=Secret)
    secrets: tuple[Secret, ...] = ()  # the longest first, so that one that is part of another does not spoil it

    @classmethod
    def from_config(cls, config: RouterConfig) -> Self:
        if not config.database_url:
            return cls.in_folder(config.data_dir)
        address = cls.of(config.database_url)
        if address.path is not None:
            raise ConfigError(f"database_url names a file; {_ALLOWED}")
        return address

    @classmethod
    def in_folder(cls, data_dir: Path) -> Self:
        return cls(path=data_dir / CATALOG_FILE)

    @classmethod
    def of(cls, place: str | Path | Secret) -> Self:
        if isinstance(place, Path):
            return cls(path=place)
        text = place.reveal() if isinstance(place, Secret) else place
        scheme, separator, rest = text.partition("://")
        scheme = scheme.lower()
        if not separator:
            if not text.strip() or ":" in text or "@" in text:
                raise ConfigError(f"database_url is neither a file nor a URL; {_ALLOWED}")
            return cls(path=Path(text))
        if scheme == "sqlite":
            if not rest.startswith("/") or rest in {"/", "/:memory:"} or "?" in rest:
                raise ConfigError("database_url needs a SQLite file, without options; write sqlite:///FILE")
            return cls(path=Path(rest[1:]))
        if scheme not in {"postgresql", "postgres", "postgresql+psycopg"}:
            kind = scheme if scheme.replace("+", "").isalnum() and len(scheme) <= 30 else "of this kind"
            raise ConfigError(f"the catalog cannot be kept in a database {kind} (database_url); {_ALLOWED}")
        url = f"postgresql+psycopg://{rest}"
        return cls(url=Secret(url), secrets=_secrets_in(url))

    def __str__(self) -> str:
        if self.path is not None:
            return str(self.path)
        parts = urlsplit(self.url.reveal())
        return f"postgresql://{host_and_port(parts.hostname or 'localhost', parts.port)}{parts.path}"

    @property
    def is_shared(self) -> bool:
        """Whether other machines may use it, too."""
        return self.path is None

    def redacted(self, text: str) -> str:
        for secret in self.secrets:
            text = text.replace(secret.reveal(), "********")
        return text


def _secrets_in(url: str) -> tuple[Secret, ...]:
    """Find the passwords in a URL, as they are written and as they are meant; one that may be misread is refused."""
    try:
        parts = urlsplit(url)
        # An unescaped @, / or : of a password would end up in the host, the port or the database, which are shown.
        misread = "@" in parts.path or "@" in parts.query or "@" in parts.netloc.rpartition("@")[0] or parts.port == 0
    except ValueError:
        misread = True
    if misread or "#" in url:
        # No cause: what urlsplit says repeats parts of the URL.
        raise ConfigError(
            "database_url cannot be read; percent-encode special characters of the password, such as %40 for @ and "
            "%2F for /"
        ) from None
    options = [pair.partition("=") for pair in parts.query.split("&")]
    raw = [parts.password or "", *(value for name, _, value in options if "pass" in name.lower())]
    spellings = {spelling for text in raw for spelling in (text, unquote(text)) if spelling}
    return tuple(Secret(text) for text in sorted(spellings, key=lambda text: (-len(text), text)))
