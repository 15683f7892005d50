import json
import math
from unittest.mock import Mock

import pytest
from pydantic.dataclasses import dataclass

from agentic_retriever.errors import StoreDamagedError
from agentic_retriever.json_files import FileTable, is_finite, load_model, model_bytes


def test_what_was_written_is_read(tmp_path):
    table = {"format": 1, "name": "ñ \ud800", "weights": [0.1, -2]}
    (tmp_path / "model.json").write_bytes(model_bytes(table))
    assert load_model(tmp_path / "model.json", lambda data: data, advice="") == table
    assert load_model(tmp_path / "none.json", lambda data: data, advice="") is None


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff", b"[" * 200_000, b"null\x00"], ids=["empty", "cut", "no text", "deep", "more"]
)
def test_what_is_no_json_is_damage_with_file_and_advice(tmp_path, content):
    path = tmp_path / "model.json"
    path.write_bytes(content)
    with pytest.raises(StoreDamagedError) as damage:
        load_model(path, lambda data: data, advice="train again")
    assert str(damage.value).startswith(f"{path} cannot be used: ")
    assert str(damage.value).endswith("; train again")


def test_what_the_model_says_is_told(tmp_path):
    error = ValueError("slope is wrong")
    path = tmp_path / "model.json"
    path.write_text("{}")
    with pytest.raises(StoreDamagedError) as damage:
        load_model(path, Mock(side_effect=error), advice="train again")
    assert str(damage.value) == f"{path} cannot be used: slope is wrong; train again"
    assert damage.value.__cause__ is error


def test_what_is_finite_is_told_and_nothing_else_is_written():
    for value in [math.nan, math.inf, -math.inf]:
        with pytest.raises(ValueError, match="JSON"):
            model_bytes({"slope": value})
    for value in [math.nan, math.inf, True, False, None, "1", 10**400, -(10**400)]:
        assert not is_finite(value)
    for value in [0, -1, 2.5, 10**300]:
        assert is_finite(value)


@dataclass(frozen=True)
class Model(FileTable):
    a: int
    b: int = 1


def test_odd_keys_are_named(tmp_path):
    path = tmp_path / "model.json"
    for data, odd in (({"a": 1}, "b"), ({"a": 1, "b": 1, "c": 1}, "c"), ([], "no object"), (None, "no object")):
        path.write_text(json.dumps(data))
        with pytest.raises(StoreDamagedError) as wrong:
            load_model(path, Model.from_dict, advice="train again")
        told = f"it must be an object with the keys a, b; missing or unknown: {odd}; train again"
        assert str(wrong.value) == f"{path} cannot be used: {told}"
