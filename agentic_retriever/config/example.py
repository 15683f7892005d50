"""All settings as a file to start from."""

from __future__ import annotations

from dataclasses import fields

from agentic_retriever.config.environment import PREFIX
from agentic_retriever.config.router import RouterConfig
from agentic_retriever.config.values import plain, range_text, spec_of


def env_example() -> str:
    """Write every setting as a commented line with its default, unit and range: the content of ``.env.example``."""
    lines = ["# Settings of agentic-retriever. Copy to .env and uncomment what you change.", ""]
    for f in fields(RouterConfig):
        spec = spec_of(f)
        allowed = " | ".join(spec.choices) or range_text(spec)
        notes = "; ".join(
            part for part in (spec.unit, allowed, f"also read from {spec.alias}" if spec.alias else "") if part
        )
        lines.append(f"# {spec.help[0].upper()}{spec.help[1:]}." + (f" ({notes})" if notes else ""))
        lines.append(f"#{PREFIX}{f.name.upper()}={plain(f.default)}")
        lines.append("")
    return "\n".join(lines)
