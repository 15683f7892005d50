"""Nodes in the answer cache: copied for each caller, so that what one does with them reaches nobody else.

Copying a node with all that hangs on it takes ten times as long as all else of a hit, if every value has to be looked
at. What is kept never changes, so it is looked at once, and what has to be copied is remembered.
"""

from __future__ import annotations

import copy
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from llama_index.core.bridge.pydantic import BaseModel
from llama_index.core.schema import NodeWithScore

from agentic_retriever.retrievers.node_copy import UNCHANGING, copies_plainly, made_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Maker: TypeAlias = "Callable[[], Any]"


class KeptNodes(tuple[NodeWithScore, ...]):  # noqa: SLOT001 - a tuple with an attribute cannot have slots
    """Nodes that nobody changes any more: a tuple that makes copies of its nodes fast."""

    _makers: list[Maker] | None = None

    def copies(self) -> tuple[NodeWithScore, ...]:
        """Copy the nodes: lists, mappings and models in them to the bottom; texts and numbers are shared."""
        makers = self._makers
        if makers is None:
            # Two threads may both get here, with the same result.
            makers = self._makers = [_maker_of_model(node) for node in self]
        return tuple([make() for make in makers])


def kept(nodes: Iterable[NodeWithScore]) -> KeptNodes:
    """Return the nodes as what is kept; from now on nobody may change them."""
    return nodes if isinstance(nodes, KeptNodes) else KeptNodes(nodes)


def _maker(value: Any) -> Maker | None:  # noqa: ANN401 - any value that metadata holds
    """Return what copies a value, or ``None`` for one that need not be copied."""
    kind = type(value)
    if kind in UNCHANGING or isinstance(value, Enum):
        return None
    if kind is dict:
        changing = _changing(value.items())
        return partial(_copied_parts, value, changing) if changing else value.copy
    if kind is list:
        changing = _changing(enumerate(value))
        return partial(_copied_parts, value, changing) if changing else value.copy
    return _maker_of_model(value) if isinstance(value, BaseModel) else partial(copy.deepcopy, value)


def _maker_of_model(model: BaseModel) -> Maker:
    """Return what copies a model as pydantic would, without its checks, which cost most of the time."""
    kind = type(model)
    if not copies_plainly(kind):
        return partial(copy.deepcopy, model)
    fields, fields_set = model.__dict__, model.__pydantic_fields_set__
    changing = _changing(fields.items())
    extra, private = _maker(model.__pydantic_extra__), _maker(model.__pydantic_private__)

    def make() -> BaseModel:
        made: BaseModel = made_model(
            kind, _copied_parts(fields, changing), fields_set.copy(), extra and extra(), private and private()
        )
        return made

    return make


def _changing(items: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Maker]]:
    return [(place, make) for place, value in items if (make := _maker(value)) is not None]


def _copied_parts(values: Any, changing: list[tuple[Any, Maker]]) -> Any:  # noqa: ANN401 - a dict or a list
    made = values.copy()
    for place, make in changing:
        made[place] = make()
    return made
