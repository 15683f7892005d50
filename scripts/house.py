"""Count the house: lines, files, settings, folders and import cycles, each against its limit.

Usage: python scripts/house.py [ROOT] [--check]

Lines are all lines of Python files, with docstrings and blanks. An import cycle is a group of files that import each
other around, whether at the top, inside a function or under TYPE_CHECKING. With --check, a broken limit exits with 1.
"""

from __future__ import annotations

import argparse
import ast
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "agentic_retriever"
LONG_FILE = 900
LONG_FUNCTION = 40
LONG_LINE = 120


@dataclass(frozen=True)
class Count:
    """One counted thing: how many, the most that is allowed if there is a limit, and where."""

    name: str
    value: int
    most: int | None = None
    places: tuple[str, ...] = ()

    @property
    def broken(self) -> bool:
        """Whether the limit is broken."""
        return self.most is not None and self.value > self.most

    def __str__(self) -> str:
        limit = "" if self.most is None else f" (at most {self.most:,})"
        head = f"{'BROKEN ' if self.broken else ''}{self.name}: {self.value:,}{limit}"
        return "\n".join([head, *(f"  {place}" for place in self.places)])


def count_house(root: Path) -> list[Count]:
    """Count everything below the root of the project."""
    library = read_files(root / PACKAGE, "*.py")
    tests = read_files(root / "tests", "*.py")
    own = library | tests | read_files(root / "scripts", "*.py") | read_files(root / "benchmarks", "*.py")
    trees = {path: ast.parse(text) for path, text in library.items()}
    folders = Counter(path.parent for path in library)
    cycles = find_cycles(import_edges(root, trees))
    long_files = [f"{path.relative_to(root)}: {n}" for path in own if (n := line_count(own[path])) > LONG_FILE]
    long_lines = [
        f"{path.relative_to(root)}:{number}"
        for path, text in own.items()
        for number, line in enumerate(text.splitlines(), 1)
        if width_of(line) > LONG_LINE
    ]
    long_functions = [
        f"{path.relative_to(root)}:{function}" for path, tree in trees.items() for function in long_functions_of(tree)
    ]
    largest = max(folders, key=lambda folder: (folders[folder], str(folder)), default=root)
    docs = read_files(root / "docs", "*.md")
    return [
        Count("lines of the library", sum(map(line_count, library.values())), 47_100),
        Count("files of the library", len(library), 162),
        Count("lines of tests", sum(map(line_count, tests.values())), 38_000),
        Count("settings", sum(map(settings_of, trees.values())), 45),
        Count("files of the largest folder", folders[largest], 15, (str(largest.relative_to(root)),)),
        Count("import cycles", len(cycles), 0, tuple(" - ".join(cycle) for cycle in cycles)),
        Count(f"files over {LONG_FILE} lines", len(long_files), None, tuple(long_files)),
        Count(f"functions over {LONG_FUNCTION} lines", len(long_functions), None, tuple(long_functions)),
        Count(f"lines over {LONG_LINE} characters", len(long_lines), None, tuple(long_lines)),
        Count("words in docs", sum(len(text.split()) for text in docs.values())),
    ]


def read_files(folder: Path, pattern: str) -> dict[Path, str]:
    """Read the files of a folder and its folders, in order of their paths."""
    return {path: path.read_text(encoding="utf-8") for path in sorted(folder.rglob(pattern))}


def line_count(text: str) -> int:
    """Count all lines of a text."""
    return len(text.splitlines())


def settings_of(tree: ast.Module) -> int:
    """Count the fields of ``RouterConfig`` where a module defines it."""
    return sum(
        isinstance(entry, ast.AnnAssign)
        and "ClassVar" not in ast.unparse(entry.annotation)
        and not ast.unparse(entry.target).startswith(("_", "model_config"))
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name == "RouterConfig"
        for entry in node.body
    )


def width_of(line: str) -> int:
    """Columns that a line takes: a vowel or tone sign stands above or below its letter."""
    return sum(unicodedata.category(char) != "Mn" for char in line)


def long_functions_of(tree: ast.Module) -> Iterator[str]:
    """Name the functions whose code, without signature and docstring, is longer than it should be."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        body = node.body[1:] if ast.get_docstring(node) and len(node.body) > 1 else node.body
        lines = (node.end_lineno or 0) - body[0].lineno + 1
        if lines > LONG_FUNCTION:
            yield f"{node.lineno} {node.name}: {lines}"


def import_edges(root: Path, trees: dict[Path, ast.Module]) -> dict[str, set[str]]:
    """Return for each module of the package the other modules that it names in an import, wherever that stands."""
    names = {path: ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__") for path in trees}
    modules = set(names.values())
    return {
        names[path]: {module for node in ast.walk(tree) for module in imported(node, modules)} - {names[path]}
        for path, tree in trees.items()
    }


def imported(node: ast.AST, modules: set[str]) -> Iterator[str]:
    """Name the modules that one import statement reaches; a name taken from a package that is a module is that one."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in modules)
    if isinstance(node, ast.ImportFrom) and not node.level and node.module:
        for alias in node.names:
            below = f"{node.module}.{alias.name}"
            if below in modules:
                yield below
            elif node.module in modules:
                yield node.module


def find_cycles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that reach each other."""
    reached = {module: reachable(module, edges) for module in edges}
    groups = {
        frozenset(other for other in reached[module] if module in reached[other])
        for module in edges
        if module in reached[module]
    }
    return sorted(sorted(group) for group in groups)


def reachable(module: str, edges: dict[str, set[str]]) -> set[str]:
    """Return all modules that a module reaches, itself only when a way leads back."""
    found: set[str] = set()
    open_ones = list(edges[module])
    while open_ones:
        one = open_ones.pop()
        if one not in found:
            found.add(one)
            open_ones += edges[one]
    return found


def main() -> int:
    """Print the counts; with ``--check``, exit with 1 when a limit is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, nargs="?", default=Path(__file__).resolve().parents[1])
    parser.add_argument("--check", action="store_true", help="exit with 1 when a limit is broken")
    options = parser.parse_args()
    counts = count_house(options.root)
    sys.stdout.writelines(f"{count}\n" for count in counts)
    return int(options.check and any(count.broken for count in counts))


if __name__ == "__main__":
    sys.exit(main())
