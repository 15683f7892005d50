"""The page of the documentation that lists every setting."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

from agentic_retriever.config.environment import PREFIX
from agentic_retriever.config.router import RouterConfig
from agentic_retriever.config.values import Secret, plain, range_text, spec_of

#: Headings, each before the setting that it begins with.
_HEADINGS: Final = {
    "data_dir": "Data",
    "embedding_model": "Embeddings",
    "llm": "Models that write answers",
    "chunk_size": "Chunks and files",
    "top_k": "Queries and limits",
    "classifier": "Choosing the index and the strategy",
    "abstain_below": "When nothing fits",
    "fusion": "Strategies",
    "boost_keywords": "After retrieval",
    "answer_sentences": "Answers",
    "cache_ttl_s": "Caches",
    "qdrant_url": "Qdrant server",
    "query_log": "History of queries",
}

_TABLE: Final = ("| variable | default | values | meaning |", "|---|---|---|---|")

_OPENING: Final = """\
# Configuration

<!-- Generated from RouterConfig by `make docs`; change agentic_retriever/config/router.py instead. -->

Every setting has a default, so none is needed to start. `AgenticRouter()` takes `RouterConfig.load()`: the environment,
then a file `.env` in the working directory, then the defaults. `RouterConfig(...)` takes what you pass and the
defaults, and reads neither; `RouterConfig.load().with_changes(...)` reads them and changes some.

The variable of a setting is its name in capitals behind `AGENTIC_RETRIEVER_`; an empty variable counts as not set.
Where a variable is also read from a name that other tools share, the prefixed one wins. A variable with the prefix that
is no setting, and a value of the wrong type or out of range, is a `ConfigError` that names what is allowed.

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

Keys and passwords are shown as stars wherever a configuration is printed, logged or turned into JSON.
"""


def configuration_markdown() -> str:
    """Write every setting with its variable, default, values and meaning: the content of ``docs/configuration.md``."""
    lines = [_OPENING.rstrip("\n")]
    for f in fields(RouterConfig):
        if f.name in _HEADINGS:
            lines += [
                "",
                f"## {_HEADINGS[f.name]}",
                "",
                "| variable | default | values | meaning |",
                "|---|---|---|---|",
            ]
        lines.append(_row(f))
    return "\n".join(lines) + "\n"


def _row(f: Any) -> str:  # noqa: ANN401 - dataclasses.Field of any type
    spec = spec_of(f)
    variable = f"`{PREFIX}{f.name.upper()}`" + (f", `{spec.alias}`" if spec.alias else "")
    default = "" if isinstance(f.default, Secret) and not repr(f.default) else _shown(f.default)
    meaning = spec.help[0].upper() + spec.help[1:]
    return f"| {variable} | {default} | {_values(f)} | {_escaped(meaning)} |"


def _values(f: Any) -> str:  # noqa: ANN401 - dataclasses.Field of any type
    """Say what is allowed: the choices, or kind, range and unit."""
    spec, kind = spec_of(f), str(f.type)
    if spec.choices:
        return ", ".join(f"`{choice}`" for choice in spec.choices)
    kinds = {"int": "whole number", "float": "number", "bool": "`true`, `false`", "Path": "path"}
    allowed = " ".join(part for part in (range_text(spec), spec.unit) if part)
    return f"{kinds.get(kind, 'text')}{f', {allowed}' if allowed else ''}"


def _shown(default: object) -> str:
    text = str(plain(default)).lower() if isinstance(default, bool) else str(plain(default))
    return f"`{_escaped(text)}`" if text else ""


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
