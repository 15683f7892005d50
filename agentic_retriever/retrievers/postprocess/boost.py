"""Keyword boosting: what the configuration calls important lifts the nodes that have it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from llama_index.core.schema import MetadataMode

from agentic_retriever.errors import ConfigError
from agentic_retriever.retrievers.postprocess.scores import in_order, rescored, value_of
from agentic_retriever.text import Tokenizer, detect_language

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index.core.schema import NodeWithScore

MAX_WEIGHT: Final = 1.0
MAX_BOOSTS: Final = 500
_END: Final = "\0"


@dataclass(frozen=True, slots=True)
class Boost:
    """A keyword that matters.

    Attributes:
        keyword: A word or phrase.
        weight: How far a node that has it is lifted, as a share of the distance between the best and the worst score
            of the result; from -1 to 1, and below 0 it sinks.
        aliases: Other words for the same, in any language.

    Raises:
        ConfigError: If the keyword is blank or the weight out of range.
    """

    keyword: str
    weight: float
    aliases: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not all(any(map(str.isalnum, form)) for form in (self.keyword, *self.aliases)):
            raise ConfigError(f"a boosted keyword and its aliases need a letter or digit, got {self.keyword[:80]!r}")
        if not (math.isfinite(self.weight) and abs(self.weight) <= MAX_WEIGHT):
            raise ConfigError(f"the weight of {self.keyword[:80]!r} must be from -1 to 1, got {self.weight!r}")


def parse_boosts(text: str) -> tuple[Boost, ...]:
    """Read a map of keywords.

    Args:
        text: Such as ``"homologation | homologación = 0.3; ABS = 0.1"``: entries between semicolons or lines, aliases
            between bars; blank for none.

    Raises:
        ConfigError: If an entry is none, or there are more than 500.
    """
    entries = [entry.strip() for line in text.splitlines() for entry in line.split(";") if entry.strip()]
    if len(entries) > MAX_BOOSTS:
        raise ConfigError(f"boost_keywords has {len(entries):,} keywords, at most {MAX_BOOSTS} are allowed")
    return tuple(map(_parsed, entries))


def _parsed(entry: str) -> Boost:
    words, _, weight = entry.rpartition("=")
    try:
        value = float(weight)
    except ValueError:
        value = math.nan
    if not words.strip() or math.isnan(value):
        raise ConfigError(f"boost_keywords needs KEYWORD = WEIGHT or KEYWORD | ALIAS = WEIGHT, got {entry[:80]!r}")
    keyword, *aliases = (form.strip() for form in words.split("|"))
    try:
        return Boost(keyword, value, tuple(aliases))
    except ConfigError as err:
        raise ConfigError(f"boost_keywords: {err}") from err


def boost(query: str, nodes: Sequence[NodeWithScore], boosts: Sequence[Boost]) -> list[NodeWithScore]:
    """Lift the nodes that have a keyword which the question has, too.

    A keyword counts once, in whichever form the question and the node have it, with its endings and letter case
    ignored; the weights of several add up, within -1 and 1.

    Args:
        query: The question.
        nodes: Best first.
        boosts: The keywords.

    Returns:
        A new list by falling score, then by id; nodes that are not lifted are those given.
    """
    tokenizer = Tokenizer(detect_language(query))
    asked = _joined(tokenizer.tokens(query))
    wanted = [(item.weight, forms) for item in boosts if (forms := _forms(item, tokenizer)) and _has(asked, forms)]
    values = [value for value in map(value_of, nodes) if value > -math.inf]
    if not wanted or not values:
        return list(nodes)
    span = (max(values) - min(values)) or 1.0
    return in_order(_lifted(entry, wanted, span, tokenizer) for entry in nodes)


def _lifted(
    entry: NodeWithScore, wanted: Sequence[tuple[float, list[str]]], span: float, tokenizer: Tokenizer
) -> NodeWithScore:
    text = _joined(tokenizer.tokens(entry.node.get_content(metadata_mode=MetadataMode.EMBED)))
    total = math.fsum(weight for weight, forms in wanted if _has(text, forms))
    if total == 0 or value_of(entry) == -math.inf:
        return entry
    return rescored(entry, value_of(entry) + max(-MAX_WEIGHT, min(MAX_WEIGHT, total)) * span)


def _forms(item: Boost, tokenizer: Tokenizer) -> list[str]:
    """All forms of a keyword as runs of terms; a form of stop words alone has none and never matches."""
    cut = (tokenizer.query_tokens(form) for form in (item.keyword, *item.aliases))
    return [_joined(terms) for terms in cut if terms]


def _joined(terms: Sequence[str]) -> str:
    return f"{_END}{_END.join(terms)}{_END}"


def _has(text: str, forms: Sequence[str]) -> bool:
    return any(form in text for form in forms)
