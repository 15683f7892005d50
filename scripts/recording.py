"""Record what the product gives, and compare two such recordings.

Usage:
  python scripts/recording.py record FOLDER [--data DATA]
  python scripts/recording.py inventory FOLDER DATA
  python scripts/recording.py take FOLDER FILE ...
  python scripts/recording.py compare OLD NEW [--allow PATTERN ...] [--allow-file FILE]

``record`` asks all questions of the packaged sample, with its packed vectors, and writes as JSON every decision, answer
and retrieval, and the formats of the files in the data directory. The indexes are made in DATA, or opened there when it
has them: so it also shows what a new version makes of an old one's files. ``inventory`` describes the files of any data
directory. ``take`` copies the JSON of ``agentic-retriever bench`` and ``bench-routing`` without what differs from run
to run. ``compare`` reads all JSON below two folders. It exits with 1 when a strategy's nDCG@10 fell by more than 0.002
on a collection, stage one by profiles has a macro accuracy below 0.965, another figure of routing fell, or any other
file differs.
PATTERN is an intended difference, such as ``answers.json:*.route.features.length`` or ``bench:cacm.learned``.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import create_engine, text

from agentic_retriever import AgenticRouter, RouterConfig, Strategy
from agentic_retriever.embeddings import PackedVectors
from agentic_retriever.sample import SAMPLE_INDEXES, VECTORS, load_questions

WORSE_BY = 0.002  # nDCG@10 of one strategy on one collection
MACRO_AT_LEAST = 0.965  # of stage one by the profiles, which is the default
CLOSE = 1e-4  # figures of goldens, which depend on the machine in their last digits
PINNED = 4  # questions of each index that every strategy is asked
PER_RUN = re.compile(r"query_id|seconds|(.*_)?ms|queries_per_second|memory_mb|machine|versions")
UNIQUE = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d+")
KEY = re.compile(r"[a-z][a-z_0-9]{0,39}")


# --- recording ---------------------------------------------------------------------------------------------------


def record(folder: Path, data: Path) -> None:
    """Ask the sample's questions and write what comes back."""
    config = RouterConfig(data_dir=data, embedding_model="local", selector="heuristic")
    questions = load_questions()
    with AgenticRouter(config, packed=[PackedVectors(VECTORS)]) as router:
        for sample in SAMPLE_INDEXES:
            if sample.name not in router.index_names():
                router.add_index(sample.name, sample.folder, description=sample.description)
            router.index(sample.name).build_views()
        asked = {str(question["id"]): str(question["query"]) for question in questions}
        write(folder / "decisions.json", {key: router.route(query).to_dict() for key, query in asked.items()})
        write(folder / "retrievals.json", {key: retrieved(router.retrieve(query)) for key, query in asked.items()})
        pinned, answers = {}, {}
        for sample in SAMPLE_INDEXES:
            of_index = [str(question["id"]) for question in questions if question["index"] == sample.name]
            for key in of_index[:: max(1, len(of_index) // PINNED)][:PINNED]:
                for strategy in (one.value for one in Strategy):
                    found = router.retrieve(asked[key], index=sample.name, strategy=strategy)
                    pinned[f"{key} {strategy}"] = retrieved(found)
                    answer = router.query(asked[key], index=sample.name, strategy=strategy)
                    answers[f"{key} {strategy}"] = answer.to_dict()
        write(folder / "pinned_retrievals.json", pinned)
        write(folder / "pinned_answers.json", answers)
        write(folder / "answers.json", {key: router.query(query).to_dict() for key, query in asked.items()})
    write(folder / "files.json", inventory(data))


def retrieved(retrieval: Any) -> dict[str, Any]:
    """Return a retrieval as JSON: its nodes by id, score and fields, and what else it tells."""
    rest = {name: getattr(retrieval, name) for name in ("indexes", "strategy", "understood", "tried", "degraded")}
    nodes = [
        {"node_id": hit.node.node_id, "score": hit.score, "metadata": hit.node.metadata} for hit in retrieval.nodes
    ]
    return {"nodes": nodes, **rest}


def write(path: Path, value: object) -> None:
    """Write a value as JSON, without what differs from run to run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = json.dumps(plain(value), ensure_ascii=False, indent=1, sort_keys=True)
    path.write_text(content + "\n", encoding="utf-8")
    sys.stdout.write(f"{path}\n")


def plain(value: Any) -> Any:
    """Return a value as JSON, figures rounded and what differs from run to run masked."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float):
        return round(value, 6)
    if hasattr(value, "to_dict"):
        return plain(value.to_dict())
    if is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    elif hasattr(value, "model_dump"):
        value = value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return {str(key): masked(str(key), entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(entry) for entry in (sorted(value) if isinstance(value, set | frozenset) else value)]
    return value if isinstance(value, str | int | type(None)) else str(value)


def masked(key: str, value: Any) -> Any:
    """Mask what differs from run to run; of a dictionary the keys stay."""
    if not PER_RUN.fullmatch(key):
        return plain(value)
    return dict.fromkeys(map(str, value), "*") if isinstance(value, Mapping) else "*"


# --- the files of a data directory -------------------------------------------------------------------------------


def inventory(data: Path) -> dict[str, Any]:
    """Describe every kind of file in a data directory; numbers, ids and the names of indexes are left open."""
    found: dict[str, list[Any]] = defaultdict(list)
    for path in sorted(data.rglob("*")):
        parts = list(path.relative_to(data).parts)
        if path.is_dir() or "shard" in parts[:-1]:  # the engine's own
            continue
        if parts[0] == "indexes" and len(parts) > 2:
            parts[1] = "NAME"
        found[UNIQUE.sub("N", "/".join(parts))].append(described(path))
    return {name: united(shapes) for name, shapes in sorted(found.items())}


def described(path: Path) -> Any:
    """Describe one file: the tree of JSON, the schema of SQLite, names and types of arrays."""
    if path.suffix == ".json":
        return shape(json.loads(path.read_text(encoding="utf-8")))
    if path.suffix == ".jsonl":
        return united([shape(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines() if line])
    if path.suffix == ".sqlite":
        engine = create_engine(f"sqlite:///{path}")
        with engine.connect() as connection:
            rows = connection.execute(text("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name"))
            schema = [" ".join(str(row[0]).split()) for row in rows]
        engine.dispose()
        return schema
    if path.suffix in {".npz", ".npy"}:
        loaded = np.load(path, allow_pickle=False)
        arrays = {"": loaded} if path.suffix == ".npy" else {name: loaded[name] for name in loaded.files}
        return {name: f"{array.dtype.kind}{array.ndim}" for name, array in arrays.items()}
    return "file"


def shape(value: Any) -> Any:
    """Return the keys and types of a JSON value; keys that are data, such as ids, are left open."""
    if isinstance(value, dict):
        if all(KEY.fullmatch(key) for key in value) and len(value) <= 60:
            return {key: shape(entry) for key, entry in value.items()}
        return {"*": united([shape(entry) for entry in value.values()])}
    if isinstance(value, list):
        return [united([shape(entry) for entry in value])] if value else []
    return type(value).__name__


def united(shapes: list[Any]) -> Any:
    """Return one shape where all are alike, else all that occur."""
    kinds = {json.dumps(one, sort_keys=True): one for one in shapes}
    ordered = [kinds[key] for key in sorted(kinds)]
    return ordered[0] if len(ordered) == 1 else {"any of": ordered}


# --- comparing ---------------------------------------------------------------------------------------------------


def compare(old: Path, new: Path, allowed: list[str]) -> list[str]:
    """Return what is worse or differs, a line each; what got better is only printed."""
    olds, news = read_all(old), read_all(new)
    figures, now = figures_of(olds), figures_of(news)
    problems = [] if olds else [f"{old}: no recording"]
    for name, (before, may_fall) in sorted(figures.items()):
        after = now.get(name, (math.nan, 0.0))[0]
        if abs(after - before) > 1e-9 or math.isnan(after):
            sys.stdout.write(f"{name}: {before:.4f} -> {after:.4f}\n")
        if not after >= before - may_fall - 1e-9 and not is_allowed(name, allowed):
            problems.append(f"{name} is worse: {before:.4f} -> {after:.4f}")
    problems += [
        f"{name} is below {MACRO_AT_LEAST}: {after:.4f}"
        for name, (after, _) in sorted(now.items())
        if name.startswith("stage one:") and name.endswith(".profile.macro_accuracy") and after < MACRO_AT_LEAST
    ]
    for name in sorted(olds):
        if not is_measured(olds[name]):
            problems += golden_differences(name, olds[name], news.get(name), allowed)
    return problems


def read_all(folder: Path) -> dict[str, Any]:
    """Read all JSON files below a folder, by their path in it."""
    return {
        path.relative_to(folder).as_posix(): json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(folder.rglob("*.json"))
    }


def is_measured(document: Any) -> bool:
    """Whether a file holds what ``bench`` or ``bench-routing`` measured."""
    return isinstance(document, dict) and "seed" in document and "datasets" in document


def figures_of(documents: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Return the figures that must not fall, each with how much it may; the higher the better in all of them."""
    figures: dict[str, tuple[float, float]] = {}
    for document in filter(is_measured, documents.values()):
        if isinstance(document["datasets"], dict):
            figures.update(bench_figures(document["datasets"]))
        else:
            title = "+".join(str(dataset["name"]) for dataset in document["datasets"])
            figures.update({name: (value, 0.0) for name, value in routing_figures(title, document)})
    return figures


def bench_figures(datasets: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Return nDCG@10 of each of our rows on each collection."""
    return {
        f"bench:{name}.{strategy}": (float(row["nDCG@10"]), WORSE_BY)
        for name, dataset in datasets.items()
        for strategy, row in dataset["strategies"].items()
        if strategy != "oracle" and not row.get("peer")
    }


def routing_figures(title: str, document: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the figures of stage one with abstention, of stage two and of complexity."""
    for mode, row in document.get("stage_one", {}).items():
        if not row.get("peer"):
            yield f"stage one:{title}.{mode}.macro_accuracy", row["macro_accuracy"]
            yield from abstention_figures(f"abstention:{title}.{mode}", row.get("abstention") or {})
    for mode, row in (document.get("stage_two") or {}).items():
        yield f"stage two:{title}.{mode}.macro_f1", row["macro_f1"]
    complexity = document.get("complexity") or {}
    for measure in complexity.keys() & {"accuracy", "macro_f1"}:
        yield f"complexity:{title}.{measure}", complexity[measure]


def abstention_figures(title: str, row: Mapping[str, float | None]) -> Iterator[tuple[str, float]]:
    """Yield precision, recall and the share of answerable questions that were not turned away."""
    for measure in ("precision", "recall", "false_rate"):
        value = row.get(measure)
        if value is not None:
            yield (f"{title}.kept", 1.0 - value) if measure == "false_rate" else (f"{title}.{measure}", value)


def golden_differences(name: str, old: Any, new: Any, allowed: list[str]) -> list[str]:
    """Return the paths at which a golden differs; those that differ by their first key only are one line."""
    if new is None:
        return [] if is_allowed(f"{name}:", allowed) else [f"{name}: is missing"]
    groups: dict[str, list[str]] = defaultdict(list)
    for path, said in differences(plain(old), plain(new)):
        if not is_allowed(f"{name}:{path}", allowed):
            groups["*." + path.partition(".")[2] if "." in path else path].append(f"{path}: {said}")
    return [f"{name}:{path} ({len(found)}), first {found[0]}" for path, found in sorted(groups.items())]


def differences(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield each path at which two JSON values differ, keys and places parted by dots, with what is there."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            place = f"{path}.{key}" if path else key
            if key not in old or key not in new:
                yield place, "is new" if key in new else "is gone"
            else:
                yield from differences(old[key], new[key], place)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from differences(before, after, f"{path}.{number}")
    elif not same(old, new):
        yield path, f"{brief(old)} -> {brief(new)}"


def same(old: Any, new: Any) -> bool:
    """Whether two JSON values are the same, figures nearly."""
    if isinstance(old, float | int) and isinstance(new, float | int) and not isinstance(old, bool):
        return math.isclose(old, new, rel_tol=CLOSE, abs_tol=CLOSE)
    return bool(old == new)


def brief(value: Any) -> str:
    """Return the beginning of a value for a line."""
    words = json.dumps(value, ensure_ascii=False)
    return words if len(words) <= 100 else f"{words[:100]}..."


def is_allowed(name: str, allowed: list[str]) -> bool:
    """Whether a difference is intended."""
    return any(fnmatchcase(name, pattern) for pattern in allowed)


# --- the command -------------------------------------------------------------------------------------------------


def main() -> int:
    """Record, describe, take in or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("record")
    command.add_argument("folder", type=Path)
    command.add_argument("--data", type=Path, help="where the sample indexes are or will be; default: temporary")
    command = commands.add_parser("inventory")
    command.add_argument("folder", type=Path)
    command.add_argument("data", type=Path)
    command = commands.add_parser("take")
    command.add_argument("folder", type=Path)
    command.add_argument("files", type=Path, nargs="+")
    command = commands.add_parser("compare")
    command.add_argument("old", type=Path)
    command.add_argument("new", type=Path)
    command.add_argument("--allow", action="append", default=[], metavar="PATTERN", help="an intended difference")
    command.add_argument("--allow-file", type=Path, help="such patterns, one a line; # begins a comment")
    return run(parser.parse_args())


def run(options: argparse.Namespace) -> int:
    """Run the command that was asked for; return the exit code."""
    if options.command == "record":
        with tempfile.TemporaryDirectory() as temporary:
            record(options.folder, options.data or Path(temporary) / "data")
    elif options.command == "inventory":
        write(options.folder / "files.json", inventory(options.data))
    elif options.command == "take":
        for file in options.files:
            write(options.folder / file.name, json.loads(file.read_text(encoding="utf-8")))
    else:
        lines = options.allow_file.read_text(encoding="utf-8").splitlines() if options.allow_file else []
        patterns = [line.partition("#")[0].strip() for line in lines]
        problems = compare(options.old, options.new, options.allow + [pattern for pattern in patterns if pattern])
        sys.stdout.writelines(f"{problem}\n" for problem in problems)
        sys.stdout.write(f"{len(problems)} problems\n" if problems else "nothing is worse\n")
        return int(bool(problems))
    return 0


if __name__ == "__main__":
    sys.exit(main())
