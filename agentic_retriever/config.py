"""The settings of a router, each with its default, unit and allowed range.

This is the only module that reads the environment. A setting ``top_k`` is read from
``AGENTIC_RETRIEVER_TOP_K``; the few that other tools share are also read from their usual names (``Setting.alias``).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dotenv import dotenv_values

from agentic_retriever.errors import ConfigError, unknown_name

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX = "AGENTIC_RETRIEVER_"


class Secret:
    """A text that shows as stars wherever it is printed; ``reveal()`` gives it. No ``str``, so that JSON refuses it."""

    __slots__ = ("_text",)

    def __init__(self, text: str = "") -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the secret itself, for the one call that needs it."""
        return self._text

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return "********" if self._text else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is known of one setting.

    Attributes:
        help: What it does, one line.
        unit: Unit of the value, or ``""``.
        minimum: Smallest value allowed.
        maximum: Largest value allowed.
        choices: The values allowed, where they can be listed.
        alias: Another environment variable that sets it.
    """

    help: str
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    alias: str = ""


def _setting(default: Any, help: str, **spec: Any) -> Any:  # noqa: A002, ANN401 - dataclasses.field is typed like this too
    return field(default=default, metadata={"setting": Setting(help=help, **spec)})


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    """All settings of a router; frozen, checked when made, safe to print.

    Raises:
        ConfigError: If a value has the wrong type, is out of range, or does not fit another one.
    """

    data_dir: Path = _setting(
        Path("agentic-retriever-data"), "folder that holds the indexes; open only folders you trust"
    )

    embedding_model: str = _setting(
        "auto",
        "auto, local, or ollama:MODEL; auto keeps what the indexes have, else a reachable Ollama, else local",
        alias="EMBEDDING_MODEL",
    )
    embedding_batch_size: int = _setting(
        16, "texts per call to the embedding model", unit="texts", minimum=1, maximum=2048
    )
    embedding_timeout_s: float = _setting(
        120.0, "total time for one call to the embedding model", unit="seconds", minimum=0.1
    )
    embedding_cache_size: int = _setting(
        2048, "vectors kept in memory; 0 turns the memory cache off", unit="vectors", minimum=0
    )
    embedding_cache_ttl_s: float = _setting(86_400.0, "how long a vector stays in memory", unit="seconds", minimum=0)
    ollama_base_url: str = _setting("http://localhost:11434", "where Ollama listens", alias="OLLAMA_BASE_URL")

    llm: str = _setting(
        "none", "model that writes answers: none, ollama:MODEL or openrouter:MODEL; none answers by extraction"
    )
    llm_timeout_s: float = _setting(60.0, "total time for one call to the model", unit="seconds", minimum=0.1)
    llm_context_chars: int = _setting(8_000, "most source text in one prompt", unit="characters", minimum=500)
    openrouter_api_key: Secret = _setting(Secret(""), "key for OpenRouter; never shown", alias="OPENROUTER_API_KEY")

    chunk_size: int = _setting(512, "largest chunk", unit="tokens", minimum=32, maximum=8192)
    chunk_overlap: int = _setting(50, "text shared by neighbouring chunks", unit="tokens", minimum=0)
    leaf_size: int = _setting(128, "largest leaf of the hierarchy", unit="tokens", minimum=16)
    max_file_mb: float = _setting(50.0, "larger files are skipped and reported", unit="megabytes", minimum=0.001)

    top_k: int = _setting(8, "nodes retrieved for a question", unit="nodes", minimum=1, maximum=10_000)
    max_top_k: int = _setting(10_000, "largest top_k a caller may ask for", unit="nodes", minimum=1)
    max_query_chars: int = _setting(20_000, "longest question allowed", unit="characters", minimum=1)
    deadline_s: float = _setting(120.0, "total time for one query", unit="seconds", minimum=0.05)
    workers: int = _setting(
        8, "threads that serve the async methods and parallel searches", unit="threads", minimum=1, maximum=256
    )

    classifier: str = _setting("profile", "how the index is chosen", choices=("profile", "embedding"))
    selector: str = _setting("heuristic", "how the strategy is chosen", choices=("heuristic", "round_robin"))
    index_margin: float = _setting(
        0.1,
        "search two indexes side by side when their probabilities differ by less; 0 always takes one",
        minimum=0,
        maximum=1,
    )

    fusion: str = _setting("weighted", "how hybrid merges dense and BM25", choices=("weighted", "rrf", "borda"))
    hybrid_alpha: float = _setting(0.7, "weight of the dense side; the BM25 side has the rest", minimum=0, maximum=1)
    rrf_k: int = _setting(60, "constant of reciprocal rank fusion", unit="ranks", minimum=1)

    answer_sentences: int = _setting(
        4, "most sentences in an extractive answer", unit="sentences", minimum=1, maximum=50
    )
    answer_rescoring: bool = _setting(
        True, "compare sentences of an extractive answer with the question by vectors, too, not by words alone"
    )
    cache_ttl_s: float = _setting(
        1_800.0, "how long an answer stays cached; 0 turns the answer cache off", unit="seconds", minimum=0
    )
    cache_max_entries: int = _setting(500, "answers kept; 0 turns the answer cache off", unit="answers", minimum=0)

    def __post_init__(self) -> None:
        for f in fields(self):
            object.__setattr__(self, f.name, _checked(f.name, str(f.type), _spec(f), getattr(self, f.name)))
        if self.chunk_overlap >= self.chunk_size:
            raise ConfigError(f"chunk_overlap {self.chunk_overlap} must be below chunk_size {self.chunk_size} (tokens)")
        if self.leaf_size > self.chunk_size:
            raise ConfigError(f"leaf_size {self.leaf_size} must not exceed chunk_size {self.chunk_size} (tokens)")
        if self.top_k > self.max_top_k:
            raise ConfigError(f"top_k {self.top_k} must not exceed max_top_k {self.max_top_k} (nodes)")

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> RouterConfig:
        """Read the settings from environment variables; an empty variable counts as not set.

        Args:
            env: The variables; the process's by default.

        Returns:
            The settings, defaults where nothing was set.

        Raises:
            ConfigError: If a variable with our prefix is unknown, or a value is ill-typed or out of range.
        """
        known = {PREFIX + f.name.upper(): f.name for f in fields(cls)}
        known |= {_spec(f).alias: f.name for f in fields(cls) if _spec(f).alias}
        values: dict[str, Any] = {}
        # Aliases first, so that the prefixed name wins where both are set.
        for variable in sorted(env, key=lambda name: name.startswith(PREFIX)):
            if variable in known:
                if env[variable].strip():
                    values[known[variable]] = env[variable].strip()
            elif variable.startswith(PREFIX):
                raise ConfigError(unknown_name("setting", variable, (k for k in known if k.startswith(PREFIX))))
        return cls(**values)

    @classmethod
    def load(cls, dotenv: str | Path = ".env", env: Mapping[str, str] = os.environ) -> RouterConfig:
        """Read a ``.env`` file, if there is one, and the environment, which wins.

        Args:
            dotenv: Path of the file.
            env: The variables; the process's by default.

        Raises:
            ConfigError: As :meth:`from_env`.
        """
        try:
            file = {name: value or "" for name, value in dotenv_values(dotenv).items()}
        except (OSError, UnicodeDecodeError) as err:
            raise ConfigError(
                f"cannot read {dotenv}: {type(err).__name__}; make it a readable UTF-8 file or remove it"
            ) from err
        return cls.from_env({**file, **env})

    def with_changes(self, **changes: object) -> RouterConfig:
        """Return a copy with some settings changed.

        Raises:
            ConfigError: If a name is unknown or a value does not fit.
        """
        known = [f.name for f in fields(self)]
        for name in changes:
            if name not in known:
                raise ConfigError(unknown_name("setting", name, known))
        return replace(self, **changes)  # type: ignore[arg-type]  # each value is checked in __post_init__

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types, secrets as stars."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)}


def env_example() -> str:
    """Write every setting as a commented line with its default, unit and range: the content of ``.env.example``."""
    lines = ["# Settings of agentic-retriever. Copy to .env and uncomment what you change.", ""]
    for f in fields(RouterConfig):
        spec = _spec(f)
        allowed = " | ".join(spec.choices) or _range_text(spec)
        notes = "; ".join(
            part for part in (spec.unit, allowed, f"also read from {spec.alias}" if spec.alias else "") if part
        )
        lines.append(f"# {spec.help[0].upper()}{spec.help[1:]}." + (f" ({notes})" if notes else ""))
        lines.append(f"#{PREFIX}{f.name.upper()}={_plain(f.default)}")
        lines.append("")
    return "\n".join(lines)


def _spec(f: Any) -> Setting:  # noqa: ANN401 - dataclasses.Field of any type
    spec: Setting = f.metadata["setting"]
    return spec


def _plain(value: object) -> str | int | float | bool:
    return value if isinstance(value, (int, float)) else str(value)


def _range_text(spec: Setting) -> str:
    if spec.minimum is None and spec.maximum is None:
        return ""
    if spec.maximum is None:
        return f"at least {spec.minimum:g}"
    return f"{spec.minimum:g} to {spec.maximum:g}"


_PARSERS: dict[str, tuple[type, str]] = {
    "int": (int, "a whole number"),
    "float": (float, "a number"),
    "bool": (bool, "true or false"),
    "str": (str, "text"),
    "Path": (Path, "a path"),
    "Secret": (Secret, "text"),
}


_ACCEPTED: dict[type, tuple[type, ...]] = {
    int: (str,),
    float: (int, str),
    bool: (str,),
    str: (),
    Path: (str,),
    Secret: (str,),
}


def _flag(value: object) -> bool:
    """Read a flag as people write it.

    Raises:
        ValueError: If it is none of true, false, yes, no, on, off, 1, 0.
    """
    word = str(value).strip().lower()
    if word in {"true", "yes", "on", "1"}:
        return True
    if word in {"false", "no", "off", "0"}:
        return False
    raise ValueError(word)


def _checked(name: str, type_name: str, spec: Setting, value: object) -> object:
    """Bring a value to its setting's type, or say what is allowed."""
    kind, words = _PARSERS[type_name]
    shown = "a secret" if kind is Secret else repr(value)[:80]
    wanted = _allowed(spec) if spec.choices else words + _allowed(spec)
    wrong = ConfigError(f"setting {name} must be {wanted}, got {shown}")
    if (isinstance(value, bool) and kind is not bool) or not isinstance(value, (*_ACCEPTED[kind], kind)):
        raise wrong
    try:
        parsed = value if isinstance(value, kind) else _flag(value) if kind is bool else kind(value)
    except ValueError as err:
        raise wrong from err
    if isinstance(parsed, (int, float)):
        # A NaN compares false with both bounds, so it must be refused by name.
        outside = (spec.minimum is not None and parsed < spec.minimum) or (
            spec.maximum is not None and parsed > spec.maximum
        )
        if outside or parsed != parsed or parsed in (float("inf"), float("-inf")):  # noqa: PLR0124 - NaN test
            raise wrong
    if spec.choices and parsed not in spec.choices:
        raise wrong
    result: object = parsed
    return result


def _allowed(spec: Setting) -> str:
    if spec.choices:
        return "one of " + ", ".join(spec.choices)
    allowed = " ".join(part for part in (_range_text(spec), spec.unit) if part)
    return f" ({allowed})" if allowed else ""
