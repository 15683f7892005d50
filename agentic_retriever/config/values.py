"""What a setting is: its help, unit and range, and how a value is checked against them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentic_retriever.errors import ConfigError


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


class SecretUrl(Secret):
    """A URL that may hold a password, or one of the words that stand for a place of our own; only these words show."""

    __slots__ = ()
    WORDS = ("none", "sqlite")

    def __init__(self, text: str = "") -> None:
        super().__init__(text.lower() if text.lower() in self.WORDS else text)

    def __repr__(self) -> str:
        return self._text if self._text in self.WORDS else super().__repr__()


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


def setting(default: Any, help: str, **spec: Any) -> Any:  # noqa: A002, ANN401 - dataclasses.field is typed like this too
    """Declare a setting: its default, one line of help, and what else ``Setting`` holds."""
    return field(default=default, metadata={"setting": Setting(help=help, **spec)})


def spec_of(f: Any) -> Setting:  # noqa: ANN401 - dataclasses.Field of any type
    """Return what is known of the setting that a dataclass field declares."""
    spec: Setting = f.metadata["setting"]
    return spec


def plain(value: object) -> str | int | float | bool:
    """Return a value as a plain JSON type; a secret becomes stars."""
    return value if isinstance(value, (int, float)) else str(value)


def range_text(spec: Setting) -> str:
    """Say which numbers are allowed, or ``""`` for any."""
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
    "SecretUrl": (SecretUrl, "none, sqlite or a database URL"),
}


_ACCEPTED: dict[type, tuple[type, ...]] = {
    int: (str,),
    float: (int, str),
    bool: (str,),
    str: (),
    Path: (str,),
    Secret: (str,),
    SecretUrl: (str,),
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


def checked(name: str, type_name: str, spec: Setting, value: object) -> object:
    """Bring a value to its setting's type.

    Args:
        name: Name of the setting, for the message.
        type_name: Name of its type.
        spec: What is known of it.
        value: What was given.

    Raises:
        ConfigError: If it has another type or is not allowed; the message says what is.
    """
    kind, words = _PARSERS[type_name]
    shown = "a secret" if issubclass(kind, Secret) else repr(value)[:80]
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
    allowed = " ".join(part for part in (range_text(spec), spec.unit) if part)
    return f" ({allowed})" if allowed else ""
