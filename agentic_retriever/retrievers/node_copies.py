"""Copies of nodes that share nothing that can change with what they were made from.

Texts and numbers are shared; lists, mappings and models are copied to the bottom. Pydantic's own deep copy takes four
times as long, and ten times as long as all else of an answer from the cache.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from llama_index.core.bridge.pydantic import BaseModel
from llama_index.core.schema import BaseNode, NodeWithScore

NodeT = TypeVar("NodeT", bound=BaseNode)

Copier: TypeAlias = Callable[[], Any]

_UNCHANGING: Final = frozenset({str, int, float, bool, type(None)})
_PYDANTIC_COPIES: Final = (BaseModel.__copy__, BaseModel.__deepcopy__)

# Where pydantic keeps what a model holds; writing there directly passes by its checks, which cost most of the time.
_SLOTS: Final = ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
_SETTERS: Final = tuple(BaseModel.__dict__[slot].__set__ for slot in _SLOTS)


def copied_node(node: NodeT) -> NodeT:
    """Copy a node, without the object of an ``IndexNode``."""
    left_out = {name: None for name in ("embedding", "obj") if node.__dict__.get(name) is not None}
    try:
        made: NodeT = _model_copier(node, left_out)()
    except RecursionError:  # metadata that holds itself, which only a copy that remembers its way can end
        made = copy.deepcopy(node.model_copy(update=left_out))
    if node.embedding is not None:
        made.embedding = list(node.embedding)
    return made


class KeptNodes(tuple[NodeWithScore, ...]):  # noqa: SLOT001 - a tuple with an attribute cannot have slots
    """Nodes that nobody changes any more: what has to be copied of them is found out once."""

    _copiers: list[Copier] | None = None

    @classmethod
    def of(cls, nodes: Iterable[NodeWithScore]) -> KeptNodes:
        """Return the nodes as what is kept; from now on nobody may change them."""
        return nodes if isinstance(nodes, KeptNodes) else cls(nodes)

    def copies(self) -> tuple[NodeWithScore, ...]:
        """Copy the nodes."""
        copiers = self._copiers
        if copiers is None:
            # Two threads may both get here, with the same result.
            copiers = self._copiers = [_model_copier(node) for node in self]
        return tuple([make() for make in copiers])


def _model_copier(model: BaseModel, changed: Mapping[str, Any] | None = None) -> Copier:
    """Return what copies a model as pydantic would, with some fields changed."""
    kind = type(model)
    if (kind.__copy__, kind.__deepcopy__) != _PYDANTIC_COPIES:  # a class that copies in a way of its own
        return partial(copy.deepcopy, model.model_copy(update=changed) if changed else model)
    fields = {**model.__dict__, **changed} if changed else model.__dict__
    fields_set = model.__pydantic_fields_set__
    changing = _changing(fields.items())
    extra, private = _copier(model.__pydantic_extra__), _copier(model.__pydantic_private__)

    def make() -> BaseModel:
        made = kind.__new__(kind)
        parts = (_copied_parts(fields, changing), fields_set.copy(), extra and extra(), private and private())
        for write, part in zip(_SETTERS, parts, strict=True):
            write(made, part)
        return made

    return make


def _copier(value: Any) -> Copier | None:  # noqa: ANN401 - any value that a node holds
    """Return what copies a value, or ``None`` for one that need not be copied."""
    kind = type(value)
    if kind in _UNCHANGING or isinstance(value, Enum):
        return None
    if kind in (dict, list):
        changing = _changing(value.items() if kind is dict else enumerate(value))
        return partial(_copied_parts, value, changing) if changing else value.copy
    return _model_copier(value) if isinstance(value, BaseModel) else partial(copy.deepcopy, value)


def _changing(items: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Copier]]:
    return [(place, make) for place, value in items if (make := _copier(value)) is not None]


def _copied_parts(values: Any, changing: list[tuple[Any, Copier]]) -> Any:  # noqa: ANN401 - a dict or a list
    made = values.copy()
    for place, make in changing:
        made[place] = make()
    return made
