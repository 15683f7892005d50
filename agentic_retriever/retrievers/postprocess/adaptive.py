"""How many nodes a question needs: fewer for a look-up, more where facts are combined, none behind a clear gap."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from agentic_retriever.checks import check_top_k
from agentic_retriever.errors import ConfigError
from agentic_retriever.retrievers.postprocess.scores import value_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index.core.schema import NodeWithScore

FEWEST: Final = 3
"""A simple question keeps at least so many nodes, where it asked for as many."""

_SIMPLE_SHARE: Final = 0.5
_COMPLEX_SHARE: Final = 1.5


def adaptive_top_k(top_k: int, complexity_score: float, *, maximum: int) -> int:
    """Return how many nodes to use for a question.

    Half of ``top_k`` at complexity 0 (but three, if it is no less), one and a half times ``top_k`` at 1, in a straight
    line between.

    Args:
        top_k: Nodes for a question of middling complexity.
        complexity_score: In [0, 1]; what is outside counts as the nearer end.
        maximum: Never more than this.

    Raises:
        InvalidQueryError: If ``top_k`` is no usable number.
    """
    check_top_k(top_k)
    score = min(1.0, max(0.0, complexity_score))
    wanted = math.ceil(top_k * (_SIMPLE_SHARE + score * (_COMPLEX_SHARE - _SIMPLE_SHARE)))
    return max(1, min(max(wanted, min(FEWEST, top_k)), maximum))


def stop_at_fall(nodes: Sequence[NodeWithScore], fall: float, *, fewest: int = FEWEST) -> list[NodeWithScore]:
    """Leave out the nodes behind the first clear gap.

    Args:
        nodes: Best first.
        fall: A gap is clear when it is more than this share of the distance between the best and the worst score; in
            [0, 1], and 0 leaves out nothing.
        fewest: Keep at least so many.

    Returns:
        A new list.

    Raises:
        ConfigError: If ``fall`` is out of range.
    """
    if not 0 <= fall <= 1:
        raise ConfigError(f"the fall of the score must be from 0 to 1, got {fall!r}")
    values = [value_of(entry) for entry in nodes]
    if fall == 0 or len(values) < 2 or not math.isfinite(values[0] - values[-1]):
        return list(nodes)
    limit = fall * (values[0] - values[-1])
    for i in range(max(1, fewest), len(values)):
        if values[i - 1] - values[i] > limit:
            return list(nodes[:i])
    return list(nodes)
