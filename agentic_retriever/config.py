"""The settings of a router, each with its default, unit and range; the only module that reads the environment.

A setting ``top_k`` is read from ``AGENTIC_RETRIEVER_TOP_K``; those in ``SHARED`` also from the name that other tools
use, such as ``REDIS_URL``.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, Literal

from dotenv import dotenv_values
from pydantic import Field, ValidationError, ValidationInfo, field_validator
from pydantic import Secret as AnySecret
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from agentic_retriever.errors import ConfigError

PREFIX: Final = "AGENTIC_RETRIEVER_"

SHARED: Final = (  # settings that are also read from their name in capitals alone; the prefixed variable wins
    "embedding_model", "ollama_base_url", "openrouter_api_key", "openai_base_url", "openai_api_key", "cohere_api_key",
    "redis_url", "qdrant_url", "qdrant_api_key", "database_url",
)  # fmt: skip

OPENAI_URL: Final = "https://api.openai.com/v1"
# Settings that are gone, and what holds instead.
REMOVED: Final[dict[str, str]] = json.loads(Path(__file__).with_name("removed_settings.json").read_text("utf-8"))

_ACCEPTED: Final[dict[object, tuple[type, ...]]] = {int: (int, str), float: (int, float, str), bool: (bool, str)}
_KINDS: Final[dict[object, str]] = {int: "a whole number", float: "a number", bool: "true or false", Path: "a path"}


class Secret(AnySecret[str]):
    """A text that shows as stars wherever it is printed; ``reveal()`` gives it, and JSON refuses it."""

    def __init__(self, secret_value: str = "") -> None:
        super().__init__(secret_value)

    def reveal(self) -> str:
        """Return the secret itself, for the one call that needs it."""
        return self.get_secret_value()

    def __bool__(self) -> bool:
        return bool(self.reveal())

    def _display(self) -> str:
        return "********" if self else ""


def host_and_port(host: str, port: int | None) -> str:
    """Name a server as messages show it: an address of IPv6 in brackets, and nothing that may be a secret."""
    return (f"[{host}]" if ":" in host else host) + (f":{port}" if port else "")


def shown_url(url: str) -> str:
    """Return an address without the name and password that may stand in it."""
    return re.sub(r"(?<=//)[^/?#]*@", "", url)


def _setting(default: object, meaning: str, unit: str = "", **limits: Any) -> Any:  # noqa: ANN401 - as pydantic.Field
    """Declare a setting: its default, what it does, its unit or how to write it, and its limits."""
    return Field(default, description=meaning, json_schema_extra={"unit": unit}, **limits)


class RouterConfig(BaseSettings):
    """All settings of a router; frozen, checked when made, safe to print.

    ``RouterConfig(top_k=5)`` takes what it is given and the defaults, and reads no environment.

    Raises:
        ConfigError: If a name is unknown, or a value has the wrong type, is out of range, or does not fit another one.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True
    )

    data_dir: Path = _setting(
        Path("agentic-retriever-data"), "folder that holds the indexes; open only folders you trust"
    )
    storage_folder: str = _setting(
        "",
        "folder that keeps the files of documents, shared by the machines that share a catalog; it must be there; "
        "empty for DATA_DIR/files",
    )

    embedding_model: str = _setting(
        "auto",
        "auto, local, local:FOLDER, ollama:MODEL or openai:MODEL; auto keeps what indexes have, else a reachable "
        "Ollama, else local",
    )
    ollama_base_url: str = _setting("http://localhost:11434", "where Ollama listens")

    llm: str = _setting(
        "none",
        "model that writes answers: none, ollama, ollama:MODEL, openrouter, openrouter:MODEL or openai:MODEL; none in "
        "all tiers answers by extraction",
    )
    llm_cloud: str = _setting(
        "none", "model for complex questions and long contexts, and when llm fails; values as for llm"
    )
    llm_small: str = _setting("none", "model for when llm and llm_cloud fail; values as for llm")
    llm_timeout_s: float = _setting(60.0, "total time for one answer, all tiers together", "seconds", ge=0.1)
    llm_context_chars: int = _setting(
        16_000, "most source text in one prompt; with more than 8,000 the cloud tier is asked first", "characters",
        ge=500,
    )  # fmt: skip
    openrouter_base_url: str = _setting("https://openrouter.ai/api/v1", "where OpenRouter listens")
    prices_file: str = _setting("", "JSON file with prices of models that go before those of the package")
    openrouter_api_key: Secret = _setting(Secret(), "key for OpenRouter; never shown")
    openai_base_url: str = _setting(OPENAI_URL, "where OpenAI, or a server with the same API, listens")
    openai_api_key: Secret = _setting(Secret(), "key for OpenAI or that server; never shown")

    section_mapping_model: str = _setting(
        "none",
        "model that describes documents that are added, such as ollama:qwen2.5:3b, with llm_cloud behind it: the names "
        "of their main sections, and metadata that rules do not find; values as for llm; none leaves it to headings "
        "and rules",
    )

    chunk_size: int = _setting(512, "largest chunk", "tokens", ge=32, le=8192)
    chunk_overlap: int = _setting(50, "text shared by neighbouring chunks", "tokens", ge=0)
    follow_links: bool = _setting(False, "whether links that lead out of a folder are read, too")
    max_file_mb: float = _setting(50.0, "larger files are skipped and reported", "megabytes", ge=0.001)

    top_k: int = _setting(8, "nodes retrieved for a question", "nodes", ge=1, le=10_000)
    deadline_s: float = _setting(120.0, "total time for one query", "seconds", ge=0.05)
    workers: int = _setting(
        8, "threads of the async methods and of parallel searches; calls to one model at once", "threads", ge=1, le=256
    )

    classifier: Literal["auto", "profile", "embedding", "llm"] = _setting(
        "auto", "how the index is chosen; auto: by its content, and by a model where that is not clear and there is one"
    )
    selector: Literal["auto", "heuristic", "llm", "llm_word", "round_robin"] = _setting(
        "auto", "how the strategy is chosen; auto: by signals, and by a model where they are not clear and there is one"
    )
    domain_terms: str = _setting(
        "",
        "terms of the field with their other forms, such as: ISR | Impuesto Sobre la Renta; ABS; a question with one "
        "is searched with all of them; or a .json file with expand and boost",
    )

    on_abstain: str = _setting(
        "answer",
        "where a question is searched that seems to be about nothing in the indexes: in the nearest index (answer), in "
        "all of them (all) or in one that takes them (default:NAME); raise makes it an error",
        "answer, all, default:NAME or raise",
        pattern="^(answer|all|default:.+|raise)$",
    )

    fusion: Literal["calibrated", "weighted", "rrf", "borda"] = _setting(
        "calibrated", "how hybrid merges dense and BM25; calibrated weighs them by question, or as trained on the index"
    )
    hybrid_alpha: float = _setting(
        0.7, "weight of the dense side, which calibrated finds by itself; the BM25 side has the rest", ge=0, le=1
    )

    reranker: str = _setting(
        "none",
        "what orders the nodes anew after retrieval; cross_encoder and cohere need the extra rerank, and take a model "
        "(or its folder) as in cohere:MODEL",
        "none, llm, cross_encoder, cross_encoder:MODEL, cohere or cohere:MODEL",
        pattern="^(none|llm|(cross_encoder|cohere)(:.+)?)$",
    )
    cohere_api_key: Secret = _setting(Secret(), "key for Cohere; never shown")
    mmr_trade_off: float = _setting(1.0, "1 ranks by relevance alone, less prefers nodes unlike each other", ge=0, le=1)
    adaptive_top_k: bool = _setting(False, "keep fewer nodes for simple questions and more for complex ones")
    score_fall: float = _setting(
        0.0, "stop at the first gap larger than this share of the range of scores; 0 never stops", ge=0, le=1
    )
    expand_neighbours: int = _setting(
        0, "chunks of the same section to add on each side of a hit", "chunks", ge=0, le=10
    )

    answer_rescoring: bool = _setting(
        True, "compare sentences of an extractive answer with the question by vectors, too, not by words alone"
    )
    unsupported_sentences: Literal["flag", "mark", "drop"] = _setting(
        "flag",
        "what becomes of sentences of a model that no passage supports: told in the answer's checks (flag), marked "
        "with [?] as well (mark), or left out (drop)",
    )

    cache_ttl_s: float = _setting(
        1_800.0, "how long an answer stays cached; 0 turns the answer cache off", "seconds", ge=0
    )
    cache_max_entries: int = _setting(500, "answers kept; 0 turns the answer cache off", "answers", ge=0)
    redis_url: Secret = _setting(
        Secret(), "Redis that shares answers and vectors with other processes; empty for memory only; never shown"
    )

    qdrant_url: Secret = _setting(
        Secret(),
        "Qdrant server that holds new indexes, such as http://localhost:6333, or nodes of its cluster with commas "
        "between; empty for the data directory",
    )
    qdrant_api_key: Secret = _setting(Secret(), "key for Qdrant; never shown")
    qdrant_prefix: str = _setting("agentic-retriever-", "what the names of new collections begin with")

    database_url: Secret = _setting(
        Secret(),
        "PostgreSQL that holds the catalog (indexes, documents, history) for several machines, as in "
        "postgresql://USER:PASSWORD@HOST/DATABASE, extra postgres; empty for DATA_DIR/catalog.sqlite; never shown",
    )
    query_log: Literal["plain", "hashed", "no_text", "none"] = _setting(
        "plain",
        "what the history of queries, in the catalog, keeps of questions and answers: their text, a keyed hash of the "
        "question, or no text; none keeps no history",
    )
    query_log_retention_days: float = _setting(
        90.0, "age from which queries leave the history; 0 keeps them", "days", ge=0, le=36_500
    )

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 - checked by pydantic
        for name in settings:
            if name in REMOVED:
                raise ConfigError(f"setting {name} is gone: {REMOVED[name]}; remove it")
            if name not in type(self).model_fields:
                raise ConfigError(_unknown_setting(name, type(self).model_fields))
        if "://" in str(settings.get("query_log")) or settings.get("query_log") == "sqlite":
            raise ConfigError(
                "query_log names no place any more, since the history is in the catalog: set database_url for one on "
                "PostgreSQL, and query_log to plain, hashed, no_text or none"
            )
        if settings.get("selector") == "learned":
            raise ConfigError("selector learned is gone, since it was better on no collection; use auto")
        try:
            super().__init__(**settings)
        except ValidationError as err:
            name = str(err.errors(include_input=False)[0]["loc"][0])
            # No cause: pydantic's error keeps the value, which may be a secret.
            field = type(self).model_fields[name]
            secret = isinstance(field.annotation, type) and issubclass(field.annotation, Secret)
            got = "a secret" if secret else repr(settings[name])[:80]
            raise ConfigError(f"setting {name} must be {allowed_values(field)}, got {got}") from None
        if self.chunk_overlap >= self.chunk_size:
            raise ConfigError(f"chunk_overlap {self.chunk_overlap} must be below chunk_size {self.chunk_size} (tokens)")

    @classmethod
    def settings_customise_sources(
        cls,
        *_: object,
        **sources: Any,  # noqa: ANN401 - pydantic's own types are longer than the method
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read nothing but the arguments, else as :class:`BaseSettings`; ``from_env`` and ``load`` read more."""
        return (sources["init_settings"],)

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_other_types(cls, value: object, info: ValidationInfo) -> object:
        """Refuse what pydantic would turn into the setting's type without being asked, such as ``True`` into 1."""
        kind: object = cls.model_fields[str(info.field_name)].annotation
        accepted = _ACCEPTED.get(kind, (str, Path, Secret))
        if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
            raise ValueError(type(value).__name__)
        return value

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> RouterConfig:
        """Read the settings from environment variables, the process's by default; an empty one counts as not set.

        A variable of a setting that is gone brings a warning.

        Raises:
            ConfigError: If a variable with our prefix is unknown, or a value is ill-typed or out of range.
        """
        variables = {PREFIX + name.upper(): name for name in cls.model_fields}
        given = {PREFIX + name.upper(): env.get(name.upper(), "") for name in SHARED}
        for variable in (name for name in env if name.startswith(PREFIX)):
            gone = REMOVED.get(variable.removeprefix(PREFIX).lower())
            if gone:
                warnings.warn(f"{variable} is gone: {gone}; remove it", FutureWarning, stacklevel=2)
            elif variable not in variables:
                raise ConfigError(_unknown_setting(variable, variables))
            elif env[variable].strip():
                given[variable] = env[variable]
        source = EnvSettingsSource(cls)
        source.env_vars = {name.lower(): text.strip() for name, text in given.items() if text.strip()}
        return cls(**source())

    @classmethod
    def load(cls, dotenv: str | Path = ".env", env: Mapping[str, str] = os.environ) -> RouterConfig:
        """Read a ``.env`` file, if there is one, and the environment, which wins.

        Args:
            dotenv: Path of the file.
            env: The variables; the process's by default.

        Raises:
            ConfigError: As :meth:`from_env`, or if the file cannot be read.
        """
        try:
            file = {name: value or "" for name, value in dotenv_values(dotenv).items()}
        except (OSError, UnicodeDecodeError) as err:
            raise ConfigError(
                f"cannot read {dotenv}: {type(err).__name__}; make it a readable UTF-8 file or remove it"
            ) from err
        try:
            return cls.from_env({**file, **env})
        except ConfigError as err:
            cls.from_env(env)  # says what is wrong with the environment alone, if something is
            raise ConfigError(f"{err} (in {dotenv})") from err

    def with_changes(self, **changes: object) -> RouterConfig:
        """Return a copy with some settings changed.

        Raises:
            ConfigError: If a name is unknown or a value does not fit.
        """
        return type(self)(**{**dict(self), **changes})

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types, secrets as stars."""
        return self.model_dump(mode="json")


def allowed_values(field: FieldInfo) -> str:
    """Say what a setting may be: its choices, or its kind with range and unit."""
    choices = getattr(field.annotation, "__args__", ())
    if choices:
        return "one of " + ", ".join(choices)
    bounds = {type(limit).__name__: getattr(limit, type(limit).__name__.lower(), None) for limit in field.metadata}
    least, most = bounds.get("Ge"), bounds.get("Le")
    span = "" if least is None else f"at least {least:g}" if most is None else f"{least:g} to {most:g}"
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    notes = " ".join(part for part in (span, str(extra.get("unit", ""))) if part)
    return _KINDS.get(field.annotation, "text") + (f" ({notes})" if notes else "")


def _unknown_setting(got: str, known: Iterable[str]) -> str:
    """Say what was probably meant, and the three names nearest to it; all of them would hide these."""
    nearest = get_close_matches(got, known, n=3, cutoff=0.0)
    meant = get_close_matches(got, nearest, n=1)
    hint = f"; did you mean {meant[0]!r}?" if meant else ""
    return f"unknown setting {got[:80]!r}{hint} (nearest: {', '.join(nearest)}; docs/configuration.md has all)"
