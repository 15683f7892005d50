"""What a profile keeps of single nodes: sentences that stand in for questions, identifiers, and how near nodes lie."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np

from agentic_retriever.text import split_sentences
from agentic_retriever.text.identifiers import identifiers, kind_of, numbers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any

    import numpy.typing as npt

    Matrix = npt.NDArray[np.float32]

SPECIMENS: Final = 64
"""Most sentences that a profile keeps."""
MAX_SPECIMEN_CHARS: Final = 240
MAX_OF_A_KIND: Final = 5_000
"""Identifiers of one kind from which on a profile does not claim to know them all, and keeps none."""
NEIGHBOURS: Final = 3

_MIN_SPECIMEN_CHARS: Final = 24
_EXAMINED_CHARS: Final = 4_000
_EXAMINED_ROWS: Final = 256
_TOO_MANY_KINDS: Final = 200


class _Node(Protocol):
    @property
    def node_id(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def metadata(self) -> Mapping[str, Any]: ...


class Specimen(NamedTuple):
    """A sentence of a sampled node.

    Attributes:
        row: Row of the node in the sample of the profile.
        text: The sentence, at most 240 characters.
    """

    row: int
    text: str


def draw_specimens(nodes: Sequence[_Node], sampled: Sequence[str], *, rows: int) -> tuple[Specimen, ...]:
    """Draw sentences of sampled nodes, at equal distances over the sample.

    Args:
        nodes: All nodes.
        sampled: Ids of the sampled nodes in the order of the sample.
        rows: Rows that the sample has.

    Returns:
        At most 64; which sentence of a node is drawn depends on its id alone. None when the sample has not one row for
        every id, so that rows cannot be told from each other.
    """
    if rows != len(sampled) or not rows:
        return ()
    step = max(1, -(-rows // SPECIMENS))
    chosen = {sampled[row]: row for row in range(0, rows, step)}
    drawn = (Specimen(chosen[node.node_id], _sentence(node)) for node in nodes if node.node_id in chosen)
    return tuple(sorted(specimen for specimen in drawn if specimen.text))


def _sentence(node: _Node) -> str:
    text = node.text[:_EXAMINED_CHARS]
    found = [" ".join(sentence.text.split())[:MAX_SPECIMEN_CHARS] for sentence in split_sentences(text)]
    fit = [sentence for sentence in found if len(sentence) >= _MIN_SPECIMEN_CHARS]
    if not fit:
        return " ".join(text.split())[:MAX_SPECIMEN_CHARS]
    digest = hashlib.sha256(node.node_id.encode("utf-8", "surrogatepass")).digest()
    return fit[int.from_bytes(digest[:4], "big") % len(fit)]


def collect_identifiers(nodes: Iterable[_Node]) -> dict[str, frozenset[str]]:
    """Collect codes, numbered things and long numbers of all nodes by kind, leaving out kinds that have too many."""
    found: dict[str, set[str]] = {}
    crowded: set[str] = set()
    for node in nodes:
        for name in _named_in(node):
            kind = kind_of(name)
            if kind in crowded or (kind not in found and len(found) >= _TOO_MANY_KINDS):
                continue
            names = found.setdefault(kind, set())
            names.add(name)
            if len(names) > MAX_OF_A_KIND:
                crowded.add(kind)
                del found[kind]
    return {kind: frozenset(names) for kind, names in found.items()}


def _named_in(node: _Node) -> Iterator[str]:
    yield from identifiers(node.text)
    yield from numbers(node.text)
    for value in node.metadata.values():
        if isinstance(value, str):
            yield from identifiers(value)
            yield from numbers(value)


def neighbour_mean(sample: Matrix) -> float:
    """Return the mean cosine of sampled nodes to the three nearest others; 0.0 for fewer than five nodes."""
    if sample.ndim != 2 or len(sample) < NEIGHBOURS + 2:
        return 0.0
    asked = sample[:: max(1, -(-len(sample) // _EXAMINED_ROWS))]
    cosines = asked @ sample.T
    # The nearest of all is the node itself.
    nearest = np.partition(cosines, -NEIGHBOURS - 1, axis=1)[:, -NEIGHBOURS - 1 :]
    mean = float((nearest.sum(axis=1) - nearest.max(axis=1)).mean() / NEIGHBOURS)
    return mean if np.isfinite(mean) else 0.0
