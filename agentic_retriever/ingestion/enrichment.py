"""Metadata that rules and a model find, each with where it comes from; what a document or its caller says stays."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import date
from functools import lru_cache
from importlib import resources
from itertools import chain
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Any, Final

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, TypeAdapter, ValidationError

from agentic_retriever.errors import ConfigError, SourceError
from agentic_retriever.ingestion.documents import SourceDocument, clean_text, flat_metadata
from agentic_retriever.ingestion.structure import split_sections
from agentic_retriever.text.numbers import find_dates
from agentic_retriever.text.scripts import UNSPACED

if TYPE_CHECKING:
    from llama_index.core.schema import TextNode

    from agentic_retriever.llm import ModelClient

PATTERN_FILES: Final = ("patterns.yaml", "patterns.yml", "patterns.json")
SIDECAR: Final = ".meta.json"  # the ending of a file with the metadata of the one beside it
CALLER: Final = "caller"
EVERY: Final = "*"
MAX_PATTERN_CHARS: Final = 300
_MAX_PATTERNS: Final = 500
_MAX_FILE_BYTES: Final = 200_000
_HEAD: Final = 20_000  # characters in which a source, a type, a number and dates are looked for
_BODY: Final = 400_000  # likewise articles, entities and tags
_MAX_VALUES, _MAX_CHARS = 50, 120
_SHOWN: Final = 3_000  # characters of the beginning that a model is shown, with so many headings
_MAX_HEADINGS: Final = 30
_MAX_NAME: Final = 80  # characters of a name or a word that a model gives, of which a list has so many
_MAX_NAMES: Final = 10
_WORD: Final = r"(?:[A-Za-z'-]|[^\x00-\x7f\s\d])+"  # of any script, marks of its letters included
_TYPE: Final = re.compile(f"{_WORD}(?: {_WORD}){{0,2}}")
_DATE_KEYS: Final = ("document_date", "date", "published", "issued", "fecha", "created")
_YEAR: Final = re.compile(r"(?<!\d)(?:19|20)\d\d(?!\d)")
_BRINGS: Final = {"md": "front matter", "pdf": "pdf", "jsonl": "record"}
OWN_KINDS: Final = frozenset({"jsonl", "document", "nodes"})  # whose metadata is the caller's affair


def _checked(pattern: str) -> str:
    if len(pattern) > MAX_PATTERN_CHARS:
        raise ValueError(f"a pattern has {len(pattern)} characters, at most {MAX_PATTERN_CHARS} are allowed")
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as err:
        raise ValueError(f"{pattern[:60]!r} is no regular expression ({err})") from err
    return pattern


Pattern = Annotated[str, AfterValidator(_checked)]


class SourcePatterns(BaseModel):
    """How the documents of one source are recognised, and what is found in them."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    namespace: str = ""
    match: list[Pattern] = []
    document_type: dict[str, list[Pattern]] = {}
    document_number: list[Pattern] = []
    document_date: list[Pattern] = []
    valid_from: list[Pattern] = []
    valid_until: list[Pattern] = []
    article: list[Pattern] = []
    entities: dict[str, list[Pattern]] = {}
    tags: dict[str, list[Pattern]] = {}


Patterns = Mapping[str, SourcePatterns]
_ADAPTER: Final = TypeAdapter(dict[str, SourcePatterns])


@lru_cache(1)
def default_patterns() -> Patterns:
    text = resources.files("agentic_retriever.ingestion").joinpath("patterns.json").read_text(encoding="utf-8")
    return _ADAPTER.validate_python(json.loads(text))


def patterns_file(data_dir: str | Path) -> Path | None:
    """Return the file of patterns of a data directory, if it has one."""
    return next((path for name in PATTERN_FILES if (path := Path(data_dir, name)).is_file()), None)


def load_patterns(path: Path) -> Patterns:
    """Read a file of patterns; a ``ConfigError`` says what is wrong in it."""
    try:
        data = path.read_bytes()[: _MAX_FILE_BYTES + 1]
        if len(data) > _MAX_FILE_BYTES:
            raise ConfigError(f"{path} is larger than {_MAX_FILE_BYTES:,} bytes; keep patterns short")
        read: Any = json.loads(data) if path.suffix == ".json" else yaml.safe_load(data)
        patterns = _ADAPTER.validate_python(read if read is not None else {})
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as err:
        what = str(err).replace("\n", " ")[:200]
        if isinstance(err, ValidationError):
            first = err.errors(include_input=False)[0]
            what = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise ConfigError(f"cannot use the patterns in {path}: {what}; see docs/documents.md") from err
    count = sum(len(_texts(one)) for one in patterns.values())
    if count > _MAX_PATTERNS:
        raise ConfigError(f"{path} has {count:,} patterns, at most {_MAX_PATTERNS} are read")
    return patterns


def _texts(patterns: SourcePatterns) -> list[str]:
    told = [value for value in patterns.model_dump().values() if isinstance(value, (list, dict))]
    return [text for one in told for part in (one.values() if isinstance(one, dict) else [one]) for text in part]


def find_by_patterns(document: SourceDocument, patterns: Patterns) -> dict[str, object]:
    """Look for what patterns name; it may take long where they are bad, so those of users run in a bounded process."""
    head = "\n".join((document.title, PurePath(document.source).name, document.text[:_HEAD]))
    named = ((name, one) for name, one in patterns.items() if name != EVERY)
    source, own = next(((name, one) for name, one in named if any(_search(p, head) for p in one.match)), ("", None))
    found: dict[str, object] = {"source": source, "namespace": own.namespace if own else ""}
    for one in (own, patterns.get(EVERY)):
        if one is not None:
            found = _joined(found, _applied(one, head, document.text[:_BODY]))
    return {name: value for name, value in found.items() if value}


def _joined(first: Mapping[str, object], second: Mapping[str, object]) -> dict[str, object]:
    """Join what two sets of rules found: the first goes before, and lists have what is in either."""
    joined = {**second, **{name: value for name, value in first.items() if value}}
    for name in ("entities", "tags"):
        lists = [value for value in (first.get(name), second.get(name)) if isinstance(value, list)]
        joined[name] = [*dict.fromkeys(chain.from_iterable(lists))]
    return joined


def _applied(patterns: SourcePatterns, head: str, body: str) -> dict[str, object]:
    kind = next((name for name, those in patterns.document_type.items() if any(_search(p, head) for p in those)), "")
    numbers = (text for pattern in patterns.document_number for text in _all(pattern, head))
    found: dict[str, object] = {"document_type": kind, "document_number": next(filter(None, numbers), "")}
    for name in ("document_date", "valid_from", "valid_until"):
        dates = (iso_date(text) for pattern in getattr(patterns, name) for text in _all(pattern, head))
        found[name] = next(filter(None, dates), "")
    found["article_count"] = len({text.casefold() for pattern in patterns.article for text in _all(pattern, body)})
    for name in ("entities", "tags"):
        named = getattr(patterns, name).items()
        found[name] = [key for key, those in named if any(_search(p, body) for p in those)][:_MAX_VALUES]
    return found


def _search(pattern: str, text: str) -> re.Match[str] | None:
    return re.search(pattern, text, re.IGNORECASE | re.MULTILINE)


def _all(pattern: str, text: str) -> Iterable[str]:
    for found in re.finditer(pattern, text, re.IGNORECASE | re.MULTILINE):
        yield " ".join((found[1] if found.re.groups and found[1] else found[0]).split())[:_MAX_CHARS]


def iso_date(text: str) -> str:
    """Read the first whole date of a short text as YYYY-MM-DD; empty where there is none."""
    return next(_days(text[:200]), "")


def _days(text: str) -> Iterator[str]:
    for found in find_dates(text):
        for year, month, day in found.readings:
            with suppress(ValueError):
                yield date(year or 0, month or 0, day or 0).isoformat()


def enrich(document: SourceDocument, model: ModelClient | None = None) -> tuple[dict[str, object], dict[str, str]]:
    """Return the metadata of a document with what rules find in it, then a model, asked once, and each one's origin."""
    values, brings = dict(document.metadata), _BRINGS.get(document.kind, CALLER)
    origins = {key: document.origins.get(key, brings) for key in values}
    if document.kind in OWN_KINDS:
        return values, origins
    found = _joined(document.found, find_by_patterns(document, default_patterns()))
    for key, value in found.items():
        if value and key not in values:
            values[key], origins[key] = value, "text"
    _derive(document, values, origins)
    if model is not None:
        # What a caller took away has an origin and no value.
        said = _ask_model(document, {*values, *document.origins}, model)
        values, origins = values | said, origins | dict.fromkeys(said, "model")
        _derive(document, values, origins)
    return values, origins


def _ask_model(document: SourceDocument, known: Collection[str], model: ModelClient) -> dict[str, object]:
    from agentic_retriever.llm import ask  # noqa: PLC0415 - loads LlamaIndex, which reading files does without
    from agentic_retriever.llm.calls import FAILURES  # noqa: PLC0415
    from agentic_retriever.llm.prompts import DESCRIBED, description_prompt  # noqa: PLC0415

    if not (wanted := [name for name in DESCRIBED if name not in known]):
        return {}
    sections = split_sections(document.text[:_HEAD])
    headings = [*dict.fromkeys(one.path[-1].title for one in sections if one.path)][:_MAX_HEADINGS]
    shown = document.title, headings, document.text[:_SHOWN]
    try:
        reply = ask(model, lambda boundary: description_prompt(*shown, wanted, boundary))
    except FAILURES:
        return {}
    return read_description(reply.text, wanted, "\n".join((document.title, *headings, document.text[:_SHOWN])))


def read_description(reply: str, wanted: Sequence[str], shown: str) -> dict[str, object]:
    """Read metadata of these names from the JSON in a reply; names, words and dates must stand in what was shown."""
    from agentic_retriever.llm import containers, json_values  # noqa: PLC0415 - as above

    told = (one for one in containers(json_values(reply)) if isinstance(one, dict))
    said = next((one for one in told if not one.keys().isdisjoint(wanted)), {})
    text, days = " ".join(shown.split()).casefold(), set(_days(shown))
    found: dict[str, object] = {}
    for name in wanted:
        value = said.get(name)
        given = [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, str)]
        texts = [" ".join(clean_text(one).split()) for one in given if len(one) <= _MAX_NAME]
        if name == "document_type":
            valid = [one.lower() for one in texts if _TYPE.fullmatch(one)]
        elif name in {"document_date", "valid_from", "valid_until"}:
            valid = [day for day in map(iso_date, texts) if day in days]
        else:
            valid = [*dict.fromkeys(one for one in texts if _stands_in(one.casefold(), text))][:_MAX_NAMES]
        if valid:
            found[name] = valid if name in {"entities", "tags"} else valid[0]
    return found


def _stands_in(name: str, text: str) -> bool:
    """Tell whether a name is in a text, as whole words where its script has spaces."""
    if len(name) < 2 or not any(map(str.isalpha, name)):
        return False
    return name in text if UNSPACED.search(name) else bool(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text))


def count_articles(nodes: Sequence[TextNode], values: dict[str, object], origins: dict[str, str]) -> None:
    """Count the articles that the nodes of a document are of, where its patterns counted none; nodes tell, too."""
    told = (node.metadata.get("article_number") or () for node in nodes)
    articles = set(chain.from_iterable(one if isinstance(one, (list, tuple)) else [one] for one in told))
    if articles and "article_count" not in values:
        values["article_count"], origins["article_count"] = len(articles), "headings"
        for node in nodes:
            node.metadata["article_count"] = len(articles)
            node.excluded_embed_metadata_keys = [*node.excluded_embed_metadata_keys, "article_count"]
    if nodes and "language" not in values and "language" in nodes[0].metadata:
        values["language"], origins["language"] = nodes[0].metadata["language"], "text"


def _derive(document: SourceDocument, values: dict[str, object], origins: dict[str, str]) -> None:
    if not iso_date(str(values.get("document_date", ""))):
        keys = ((key, iso_date(str(values[key]))) for key in _DATE_KEYS if key in values)
        key, day = next(((key, day) for key, day in keys if day), ("", ""))
        if day and "document_date" not in values:
            values["document_date"], origins["document_date"] = day, origins[key]
    if "year" not in values:
        day, name = iso_date(str(values.get("document_date", ""))), PurePath(document.source).stem
        named = set(_YEAR.findall(f"{document.title} {name}"))
        if len(named) == 1:
            values["year"], origins["year"] = int(named.pop()), "title"
        elif day:
            values["year"], origins["year"] = int(day[:4]), origins["document_date"]


# What stands in a file beside the document: ``report.pdf.meta.json`` or ``report.meta.json``.


def sidecar_of(path: Path) -> Path | None:
    return next((one for one in (Path(f"{path}{SIDECAR}"), path.with_suffix(SIDECAR)) if one.is_file()), None)


def read_sidecar(path: Path) -> dict[str, object]:
    """Read the metadata in a file beside a document; a ``SourceError`` says what is wrong with it."""
    try:
        data = json.loads(path.read_bytes()[:_MAX_FILE_BYTES])
    except (OSError, ValueError, RecursionError) as err:
        raise SourceError(f"cannot be read as JSON ({str(err)[:80]}); the document is taken without it") from err
    if not isinstance(data, dict):
        raise SourceError(f"holds a JSON {type(data).__name__}, not an object; the document is taken without it")
    return flat_metadata(data, doc_id="")


def with_metadata(document: SourceDocument, given: Mapping[str, object], origin: str) -> SourceDocument:
    """Return a document with metadata that goes before its own; ``None`` takes a value away."""
    title = given.get("title", document.title)
    metadata = {key: value for key, value in {**document.metadata, **given}.items() if value is not None}
    metadata.pop("title", None) if "title" in given else None
    origins = {**document.origins, **dict.fromkeys(given, origin)}
    return replace(document, title=clean_text(str(title)), metadata=metadata, origins=origins)
