import pytest

from agentic_retriever.ingestion import SkippedSource, SourceDocument, read_source


@pytest.fixture
def make_doc():
    fields = {"doc_id": "doc", "metadata": {}, "source": "", "root": "", "title": "", "kind": "md"}
    return lambda text, **changes: SourceDocument(text=text, **{**fields, **changes})


@pytest.fixture
def read(tmp_path):
    """Write a file with the given bytes or text, and read it."""

    def run(name, content, **options):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return list(read_source(path, root=tmp_path, **options))

    return run


@pytest.fixture
def read_one(read):
    """Read a file that holds one document."""

    def run(name, content, **options):
        [doc] = read(name, content, **options)
        assert isinstance(doc, SourceDocument), doc
        return doc

    return run


@pytest.fixture
def reason(read):
    """Read a file that cannot be, and say why."""

    def run(name, content, **options):
        [skipped] = read(name, content, **options)
        assert isinstance(skipped, SkippedSource)
        assert skipped.source.endswith(name)
        return skipped.reason

    return run
