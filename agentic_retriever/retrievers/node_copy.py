"""Copies of nodes that share nothing that can change with what they were made from."""

from __future__ import annotations

import copy
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeVar

from llama_index.core.bridge.pydantic import BaseModel

if TYPE_CHECKING:
    from collections.abc import Mapping

    from llama_index.core.schema import BaseNode

    NodeT = TypeVar("NodeT", bound=BaseNode)

UNCHANGING: Final = frozenset({str, int, float, bool, type(None)})
"""Types whose values nobody can change, so that copies may share them."""

_PLAIN_COPIES: Final = (BaseModel.__copy__, BaseModel.__deepcopy__)

# Where pydantic keeps what a model holds; writing there directly passes by the model's own ``__setattr__``.
_FIELDS, _FIELDS_SET, _EXTRA, _PRIVATE = (
    BaseModel.__dict__[slot].__set__
    for slot in ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
)


def copied_node(node: NodeT) -> NodeT:
    """Copy a node with all that hangs on it, as pydantic's deep copy does, in a fifth of the time.

    Args:
        node: Any node; it stays as it is.

    Returns:
        A node of the same class, without the object that an ``IndexNode`` may refer to. Lists, mappings and models in
        it are copied to the bottom, texts and numbers are shared.
    """
    left_out: dict[str, Any] = {name: None for name in ("embedding", "obj") if name in node.__dict__}
    try:
        made: NodeT = _of_model(node, left_out)
    except RecursionError:  # metadata that holds itself, which only a copy that remembers its way can end
        made = copy.deepcopy(node.model_copy(update=left_out))
    if node.embedding is not None:
        made.embedding = list(node.embedding)
    return made


def copies_plainly(kind: type[BaseModel]) -> bool:
    """Tell whether a class of models leaves copying to pydantic."""
    return (kind.__copy__, kind.__deepcopy__) == _PLAIN_COPIES


def made_model(
    kind: type[BaseModel],
    fields: dict[str, Any],
    fields_set: set[str],
    extra: dict[str, Any] | None,
    private: Any,  # noqa: ANN401 - as pydantic has it
) -> Any:  # noqa: ANN401 - a model of that kind
    """Make a model of parts that another one has, without pydantic's checks, which cost most of the time."""
    made = kind.__new__(kind)
    _FIELDS(made, fields)
    _FIELDS_SET(made, fields_set)
    _EXTRA(made, extra)
    _PRIVATE(made, private)
    return made


def _of_model(model: BaseModel, changed: Mapping[str, Any]) -> Any:  # noqa: ANN401 - a model of the same kind
    kind = type(model)
    if not copies_plainly(kind):
        return copy.deepcopy(model.model_copy(update=changed) if changed else model)
    fields = model.__dict__
    extra, private = model.__pydantic_extra__, model.__pydantic_private__
    return made_model(
        kind,
        _of_mapping({**fields, **changed} if changed else fields),
        model.__pydantic_fields_set__ | changed.keys(),
        extra and _of_mapping(extra),
        private and _of_mapping(private),
    )


def _of_mapping(values: Mapping[Any, Any]) -> dict[Any, Any]:
    return {key: value if type(value) in UNCHANGING else _of_value(value) for key, value in values.items()}


def _of_value(value: Any) -> Any:  # noqa: ANN401 - any value that a node holds
    kind = type(value)
    if kind is dict:
        return _of_mapping(value)
    if kind is list:
        return [item if type(item) in UNCHANGING else _of_value(item) for item in value]
    if isinstance(value, BaseModel):
        return _of_model(value, {})
    return value if isinstance(value, Enum) else copy.deepcopy(value)
