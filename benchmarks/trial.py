"""Questions about documents that nobody here has seen: which index, passage, answer and page come back, and what fails.

``python -m benchmarks.trial FOLDER [--data DIR] [--out FILE] [--ids ID ...]`` reads ``FOLDER/indexes.json`` (an index's
name to what it holds), ``FOLDER/files/NAME/`` and ``FOLDER/questions.json``: objects with ``id``, ``question``,
``index``, ``answerable`` and, where it is, regular expressions for the ``passage`` that answers and for the ``answer``,
and the ``page`` of a PDF. Patterns are looked for in text whose white space is single, as it stands and without the
marks of tables and emphasis. Indexes are built once in DIR.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentic_retriever import AgenticRouter, RouterConfig

if TYPE_CHECKING:
    from agentic_retriever.schema import Answer

FIRST = 5  # passages among which the right one is looked for
_BARS = re.compile(r"\|(?:\s*:?-+:?\s*\|)*")  # between the cells of a Markdown table, and below its header
_EMPHASIS = re.compile(r"[*`]")
_MARKER = re.compile(r" ?\[\d+\]")  # of a citation: no number of the answer


def found(pattern: str | None, text: str) -> bool:
    """Whether a pattern fits a text, as it stands or as words alone, its white space made single."""
    forms = (text, _EMPHASIS.sub("", _BARS.sub(" ", text)))
    fitting = (re.search(pattern, " ".join(form.split()), re.IGNORECASE | re.DOTALL) for form in forms if pattern)
    return any(fitting)


def judged(question: dict[str, Any], answer: Answer) -> dict[str, Any]:
    """What came of one question, by its patterns."""
    page = question.get("page")
    ranks = [
        rank for rank, node in enumerate(answer.nodes, 1) if found(question.get("passage"), node.node.get_content())
    ]
    right = found(question.get("answer"), _MARKER.sub("", answer.text))
    quoting = [cited for cited in answer.citations if found(question.get("answer"), cited.quote)]
    return {
        "id": question["id"],
        "index": question["index"] in answer.route.index.names,
        "declined": not answer.citations,
        "level": answer.confidence.level.value,
        "score": round(answer.confidence.score, 3),
        "rank": ranks[0] if ranks else None,
        "right": right and bool(answer.citations),
        "page": page in (quoting[0].pages or (quoting[0].page,)) if page and right and quoting else None,
        "ms": round(answer.timings_ms["total"]),
        "text": answer.text,
    }


def summary(questions: list[dict[str, Any]], results: list[dict[str, Any]]) -> dict[str, int]:
    """The counts of a trial, by what they count."""
    counts: Counter[str] = Counter()
    for question, result in zip(questions, results, strict=True):
        if not question["answerable"]:
            counts["without an answer"] += 1
            counts["of these declined"] += result["declined"]
            counts["of these high"] += result["level"] == "high"
            continue
        counts["with an answer"] += 1
        counts["right index"] += result["index"]
        counts["right passage in the first five"] += (result["rank"] or FIRST + 1) <= FIRST
        counts["right answer"] += result["right"]
        counts["wrongly declined"] += result["declined"]
        counts["high"] += result["level"] == "high"
        counts["high and wrong"] += result["level"] == "high" and not result["right"]
        counts["pages asked"] += result["page"] is not None
        counts["right page"] += result["page"] is True
    return dict(counts)


def ask(folder: Path, data: Path, ids: list[str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Build the indexes that are not there yet, ask, and judge."""
    questions = json.loads((folder / "questions.json").read_text("utf-8"))
    questions = [question for question in questions if not ids or question["id"] in ids]
    config = RouterConfig(data_dir=data, embedding_model="local", cache_max_entries=0)
    with AgenticRouter(config) as router:
        there = set(router.index_names())
        for name, description in json.loads((folder / "indexes.json").read_text("utf-8")).items():
            if name not in there:
                report = router.add_index(name, folder / "files" / name, description=description)
                router.build_views(name)
                print(f"{name}: {report}", file=sys.stderr)
        return questions, [judged(question, router.query(question["question"])) for question in questions]


def main() -> int:
    """Run the trial that the command line names and print its counts as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trial", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="holds indexes.json, questions.json and files/")
    parser.add_argument("--data", type=Path, help="where the indexes are kept (default: nowhere, after the run)")
    parser.add_argument("--out", type=Path, help="JSON file for the result of each question")
    parser.add_argument("--ids", nargs="*", default=[], metavar="ID", help="ask only these")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        questions, results = ask(chosen.folder, chosen.data or Path(scratch), chosen.ids)
    if chosen.out:
        chosen.out.write_text(json.dumps(results, ensure_ascii=False, indent=1), "utf-8")
    print(json.dumps(summary(questions, results)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
