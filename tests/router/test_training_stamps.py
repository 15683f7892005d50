"""The answers of an index are old as soon as a file of its training comes, goes or changes."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace

import pytest
from small_indexes import PLANETS, QUESTION, documents

from agentic_retriever.indices.measured import MEASURED_FILE
from agentic_retriever.pipeline import Question, answer_key
from agentic_retriever.resources import TrainingStamps
from agentic_retriever.retrievers import FUSION_FILE

FILES = [MEASURED_FILE, FUSION_FILE]


def settle(folder):
    """Make a folder look as one that nobody has touched for a while."""
    before = time.time_ns() - 60_000_000_000
    os.utime(folder, ns=(before, before))


def install(folder, name, text):
    """Write a file as training does: beside its place, then moved there."""
    (folder / "new").write_text(text, encoding="utf-8")
    (folder / "new").replace(folder / name)


@pytest.fixture(params=["settled", "busy"])
def stamp(request, tmp_path):
    """Returns the stamp of a folder; ``settled``: with what is known from before."""
    stamps = TrainingStamps()

    def now():
        if request.param == "settled":
            settle(tmp_path)
            stamps.of(SimpleNamespace(folder=tmp_path))
        return stamps.of(SimpleNamespace(folder=tmp_path))

    now.of = stamps.of
    return now


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_comes_changes_or_goes_changes_the_stamp(tmp_path, stamp, name):
    seen = [stamp()]

    def looked():
        seen.append(stamp.of(SimpleNamespace(folder=tmp_path)))
        assert seen[-1] == TrainingStamps().of(SimpleNamespace(folder=tmp_path))
        assert seen[-1] != seen[-2]
        stamp()

    install(tmp_path, name, "{}")
    looked()
    install(tmp_path, name, '{"a": 1}')
    looked()
    # Written over in place: the folder does not change, nor, within the clock's resolution, need the time.
    times = (tmp_path / name).stat()
    (tmp_path / name).write_text('{"a": 12}', encoding="utf-8")
    os.utime(tmp_path / name, ns=(times.st_atime_ns, times.st_mtime_ns))
    looked()
    (tmp_path / name).write_text('{"a": 13}', encoding="utf-8")
    os.utime(tmp_path / name, ns=(times.st_atime_ns, times.st_mtime_ns + 1))
    looked()
    (tmp_path / name).unlink()
    looked()
    assert seen[-1] == seen[0]


def test_files_that_are_not_there_cost_one_look_at_the_folder(tmp_path, monkeypatch):
    stamps, looked, stat = TrainingStamps(), [], os.stat
    install(tmp_path, FUSION_FILE, "{}")
    settle(tmp_path)
    stamps.of(SimpleNamespace(folder=tmp_path))
    monkeypatch.setattr("agentic_retriever.resources.os.stat", lambda path: looked.append(path) or stat(path))
    stamps.of(SimpleNamespace(folder=tmp_path))
    assert looked == [str(tmp_path), str(tmp_path / FUSION_FILE)]


def test_an_index_without_a_folder_has_no_stamp():
    assert TrainingStamps().of(SimpleNamespace(folder=None)) == []


def test_files_that_training_once_left_are_ignored(make_router, tmp_path):
    router = make_router(data_dir=tmp_path / "data")
    router.add_index("planets", documents(PLANETS))
    index = router.index("planets")
    before, stamp = router.query(QUESTION), TrainingStamps().of(index)
    install(index.folder, "confidence.json", "{")
    after = router.query(QUESTION)
    assert TrainingStamps().of(index) == stamp
    assert (after.confidence, after.degraded) == (before.confidence, before.degraded)


@pytest.mark.parametrize("name", FILES)
def test_the_key_of_an_answer_follows(make_router, tmp_path, name):
    router = make_router(data_dir=tmp_path / "data")
    router.add_index("planets", documents(PLANETS))
    folder = router.index("planets").folder

    def key():
        question = Question(query=QUESTION, top_k=3)
        return answer_key(router.resources, question, llm="m", budget=None, force_cloud=False)

    settle(folder)
    untrained = key()
    assert key() == untrained
    install(folder, name, "{}")
    trained = key()
    settle(folder)
    assert key() == trained != untrained
    (folder / name).write_text("{ }", encoding="utf-8")
    assert key() not in {trained, untrained}
    (folder / name).unlink()
    assert key() == untrained
