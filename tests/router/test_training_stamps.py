"""The answers of an index are old as soon as a file of its training comes, goes or changes."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
from small_indexes import PLANETS, QUESTION, documents

from agentic_retriever.indices.measured import MEASURED_FILE
from agentic_retriever.pipeline.query import Question, answer_key
from agentic_retriever.resources import TrainingFiles
from agentic_retriever.retrievers import FUSION_FILE

FILES = [MEASURED_FILE, FUSION_FILE]


def install(folder, name, text):
    """Write a file as training does: beside its place, then moved there."""
    (folder / "new").write_text(text, encoding="utf-8")
    (folder / "new").replace(folder / name)


def stamp(folder):
    return TrainingFiles().stamp(SimpleNamespace(folder=folder))


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_comes_changes_or_goes_changes_the_stamp(tmp_path, name):
    seen = [stamp(tmp_path)]

    def look():
        seen.append(stamp(tmp_path))
        assert seen[-1] != seen[-2]

    install(tmp_path, name, "{}")
    look()
    install(tmp_path, name, '{"a": 1}')
    look()
    # Written over in place: the folder does not change, nor, within the clock's resolution, need the time.
    times = (tmp_path / name).stat()
    (tmp_path / name).write_text('{"a": 12}', encoding="utf-8")
    os.utime(tmp_path / name, ns=(times.st_atime_ns, times.st_mtime_ns))
    look()
    (tmp_path / name).write_text('{"a": 13}', encoding="utf-8")
    os.utime(tmp_path / name, ns=(times.st_atime_ns, times.st_mtime_ns + 1))
    look()
    (tmp_path / name).unlink()
    look()
    assert seen[-1] == seen[0]


def test_an_index_without_a_folder_has_no_stamp():
    assert stamp(None) == []


def test_files_that_training_once_left_are_ignored(make_router, tmp_path):
    router = make_router(data_dir=tmp_path / "data")
    router.add_index("planets", documents(PLANETS))
    index = router.index("planets")
    before, stamp = router.query(QUESTION), TrainingFiles().stamp(index)
    install(index.folder, "confidence.json", "{")
    after = router.query(QUESTION)
    assert TrainingFiles().stamp(index) == stamp
    assert (after.confidence, after.degraded) == (before.confidence, before.degraded)


@pytest.mark.parametrize("name", FILES)
def test_the_key_of_an_answer_follows(make_router, tmp_path, name):
    router = make_router(data_dir=tmp_path / "data")
    router.add_index("planets", documents(PLANETS))
    folder = router.index("planets").folder

    def key():
        return answer_key(router.resources, Question(query=QUESTION, top_k=3), "m")

    untrained = key()
    assert key() == untrained
    install(folder, name, "{}")
    trained = key()
    assert key() == trained != untrained
    (folder / name).write_text("{ }", encoding="utf-8")
    assert key() not in {trained, untrained}
    (folder / name).unlink()
    assert key() == untrained
