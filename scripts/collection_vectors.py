"""Pack the vectors of public collections for ``agentic-retriever bench --vectors``.

Usage: python scripts/collection_vectors.py DATA_FOLDER INTO_FOLDER NAME...

DATA_FOLDER holds ``collections/NAME`` in BEIR form and ``embeddings/multilingual-e5-small/NAME.npz`` with vectors by
id; INTO_FOLDER gets ``NAME.npz`` with the same vectors by the texts that they are of.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from agentic_retriever.embeddings import PackedVectors, query_hash, text_hash
from agentic_retriever.evaluation import load_dataset

if TYPE_CHECKING:
    from agentic_retriever.evaluation import Dataset

FOLDER = "multilingual-e5-small"
MODEL = "local:multilingual-e5-small-q4"


def passage_of(document: Any) -> str:
    """Return the text of a document that its vector is of."""
    return f"{document.title}\n{document.text}".strip()


def read_vectors(data: Path, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read the unit vectors of the documents and of the questions of a collection, by their ids."""
    with np.load(data / "embeddings" / FOLDER / f"{name}.npz") as packed:
        return _by_id(packed["doc_ids"], packed["doc_vectors"]), _by_id(packed["query_ids"], packed["query_vectors"])


def pack(data: Path, name: str, into: Path) -> Dataset:
    """Write the vectors of a collection by the hashes of their texts; return the collection."""
    dataset = load_dataset(data / "collections" / name)
    documents, queries = read_vectors(data, name)
    known = {text_hash(passage_of(one)): documents[one.doc_id] for one in dataset.documents if one.doc_id in documents}
    known |= {query_hash(one.text): queries[one.query_id] for one in dataset.queries if one.query_id in queries}
    into.mkdir(parents=True, exist_ok=True)
    PackedVectors.write(into / f"{name}.npz", MODEL, known)
    return dataset


def _by_id(ids: Any, vectors: Any) -> dict[str, Any]:
    rows = vectors.astype(np.float32)
    return dict(zip(ids.tolist(), rows / np.linalg.norm(rows, axis=1, keepdims=True), strict=True))


def main() -> None:
    """Pack the collections that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("into", type=Path)
    parser.add_argument("names", nargs="+")
    given = parser.parse_args()
    for name in given.names:
        pack(given.data, name, given.into)


if __name__ == "__main__":
    main()
