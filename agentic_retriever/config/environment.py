"""Settings as environment variables and ``.env`` files give them.

A setting ``top_k`` is read from ``AGENTIC_RETRIEVER_TOP_K``; the few that other tools share are also read from their
usual names (``Setting.alias``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dotenv import dotenv_values

from agentic_retriever.config.values import spec_of
from agentic_retriever.errors import ConfigError, unknown_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from dataclasses import Field
    from pathlib import Path

PREFIX = "AGENTIC_RETRIEVER_"

REMOVED = {
    "AGENTIC_RETRIEVER_CALIBRATION_FILE": "probabilities of the index are calibrated as they are; remove the setting"
}
"""Variables of settings that are gone, with what to do."""


def settings_in(env: Mapping[str, str], settings: Iterable[Field[Any]]) -> dict[str, Any]:
    """Return the settings that variables give, as they are written; an empty variable counts as not set.

    Args:
        env: The variables.
        settings: All settings there are.

    Returns:
        Texts by name of the setting, as keyword arguments.

    Raises:
        ConfigError: If a variable with our prefix is unknown.
    """
    specs = {setting.name: spec_of(setting) for setting in settings}
    known = {PREFIX + name.upper(): name for name in specs}
    known |= {spec.alias: name for name, spec in specs.items() if spec.alias}
    values: dict[str, Any] = {}
    # Aliases first, so that the prefixed name wins where both are set.
    for variable in sorted(env, key=lambda name: name.startswith(PREFIX)):
        if variable in known:
            if env[variable].strip():
                values[known[variable]] = env[variable].strip()
        elif variable in REMOVED:
            raise ConfigError(f"{variable} is gone: {REMOVED[variable]}")
        elif variable.startswith(PREFIX):
            raise ConfigError(unknown_name("setting", variable, (k for k in known if k.startswith(PREFIX))))
    return values


def read_dotenv(path: str | Path) -> dict[str, str]:
    """Read the variables of a ``.env`` file; none when there is no such file.

    Raises:
        ConfigError: If it cannot be read.
    """
    try:
        return {name: value or "" for name, value in dotenv_values(path).items()}
    except (OSError, UnicodeDecodeError) as err:
        raise ConfigError(
            f"cannot read {path}: {type(err).__name__}; make it a readable UTF-8 file or remove it"
        ) from err
