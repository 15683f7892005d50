"""Write docs/configuration.md and .env.example from the settings; ``make docs`` calls it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from pydantic.fields import FieldInfo

from agentic_retriever.config import PREFIX, SHARED, RouterConfig, allowed_values

ROOT: Final = Path(__file__).parents[1]

HEADINGS: Final = {
    "data_dir": "Data and embeddings",
    "llm": "Models that write answers",
    "chunk_size": "Chunks and files",
    "top_k": "Queries and limits",
    "classifier": "Routing",
    "fusion": "Retrieval",
    "answer_rescoring": "Answers and caches",
    "qdrant_url": "Qdrant server and history of queries",
}
"""Headings, each before the setting that it begins with."""

_OPENING: Final = """\
# Configuration

<!-- Generated from RouterConfig by `make docs`; change agentic_retriever/config.py instead. -->

Every setting has a default. `AgenticRouter()` takes `RouterConfig.load()`: the environment, then a file `.env` in the
working directory, then the defaults. `RouterConfig(...)` takes what you pass and the defaults, and reads neither;
`RouterConfig.load().with_changes(...)` reads them and changes some.

The variable of a setting is `AGENTIC_RETRIEVER_` and its name in capitals; an empty one counts as not set, and the
prefixed one wins. An unknown setting, or a value of the wrong type or out of range, is a `ConfigError` that names what
is allowed. A variable of a setting that is gone brings a warning.

```python
from agentic_retriever import RouterConfig

config = RouterConfig(top_k=5, fusion="rrf", llm="none")
print(config.with_changes(top_k=3).top_k, RouterConfig.from_env({"AGENTIC_RETRIEVER_TOP_K": "12"}).top_k)
```

<!-- output -->

```text
3 12
```

The same in a file `.env`; `.env.example` lists all settings, to be copied and changed:

```env
AGENTIC_RETRIEVER_TOP_K=5
AGENTIC_RETRIEVER_FUSION=rrf
EMBEDDING_MODEL=local
```

Keys and passwords are always shown as stars.
"""


def configuration_markdown() -> str:
    """Return every setting with its variable, default, values and meaning."""
    lines = [_OPENING.rstrip("\n")]
    defaults = RouterConfig().to_dict()
    for name, field in RouterConfig.model_fields.items():
        if name in HEADINGS:
            lines += ["", f"## {HEADINGS[name]}", "", "| variable | default | values | meaning |", "|---|---|---|---|"]
        variable = f"`{PREFIX}{name.upper()}`" + (f", `{name.upper()}`" if name in SHARED else "")
        shown = _text(defaults[name])
        cells = (variable, f"`{shown}`" if shown else "", _values(field), _sentence(field.description))
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def env_example() -> str:
    """Return every setting as a commented line with its default, under what it does and may be."""
    lines = ["# Settings of agentic-retriever. Copy to .env and uncomment what you change.", ""]
    defaults = RouterConfig().to_dict()
    for name, field in RouterConfig.model_fields.items():
        also = f"; also read from {name.upper()}" if name in SHARED else ""
        lines.append(f"# {_sentence(field.description)}. ({allowed_values(field)}{also})")
        lines += [f"#{PREFIX}{name.upper()}={_text(defaults[name])}", ""]
    return "\n".join(lines)


def _values(field: FieldInfo) -> str:
    """Return what a setting may be, a range without the word number."""
    return re.sub(r"^a (?:whole )?number \((.+)\)$", r"\1", allowed_values(field))


def _sentence(description: str | None) -> str:
    text = description or ""
    return text[:1].upper() + text[1:]


def _text(value: object) -> str:
    """Return a value as a file of variables has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    (ROOT / "docs" / "configuration.md").write_text(configuration_markdown(), encoding="utf-8")
    (ROOT / ".env.example").write_text(env_example(), encoding="utf-8")
