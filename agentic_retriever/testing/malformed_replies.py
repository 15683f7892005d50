"""What models reply when they are asked to choose: the good, the odd and the hostile, each with what must become of it.

``A``, ``B`` and ``C`` between angle quotes stand for options; :meth:`ReplyCase.text` puts names in their place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Expected = Literal["A", "B"]
"""The option that must be chosen; ``None`` beside it means that the reply must be refused."""


@dataclass(frozen=True, slots=True)
class ReplyCase:
    """One reply.

    Attributes:
        name: What is special about it.
        template: The reply with ``‹A›``, ``‹B›`` and ``‹C›`` for the first three options.
        expected: The option that it chooses, or ``None`` when it must be refused.
    """

    name: str
    template: str
    expected: Expected | None

    def text(self, options: Sequence[str]) -> str:
        """Return the reply with the names of three options."""
        text = self.template
        for letter, option in zip("ABC", options[:3], strict=True):
            text = text.replace(f"‹{letter}›", option)
        return text

    def chosen(self, options: Sequence[str]) -> str | None:
        """Return the name that must be chosen, or ``None``."""
        return None if self.expected is None else options["AB".index(self.expected)]


def _cases(expected: Expected | None, replies: Mapping[str, str]) -> tuple[ReplyCase, ...]:
    return tuple(ReplyCase(name, template, expected) for name, template in replies.items())


_READ: Final = _cases(
    "B",
    {
        "plain name": "‹B›",
        "plain name with line ends": "\n\n  ‹B›\r\n",
        "name in quotes": '"‹B›"',
        "name in backticks": "`‹B›`",
        "bold name": "**‹B›**",
        "name with a full stop": "‹B›.",
        "name as a bullet": "- ‹B›",
        "name in a fence": "```\n‹B›\n```",
        "boxed name": "\\boxed{‹B›}",
        "name in a tag": "<answer>‹B›</answer>",
        "JSON object": '{"choice": "‹B›"}',
        "JSON object with everything": '{"choice": "‹B›", "confidence": 0.8, "reasoning": "It is not ‹A›."}',
        "JSON list of objects": '[{"choice": "‹B›", "reason": "‹A› is older."}]',
        "JSON list of strings": '["‹B›"]',
        "fenced JSON": '```json\n{"choice": "‹B›"}\n```',
        "JSON in prose": 'Sure! As in [1], here it is:\n{"choice": "‹B›"}\nI hope that helps {you}, unlike ‹A›.',
        "nested JSON": '{"result": {"answers": [{"choice": "‹B›"}]}}',
        "tool call": '{"name": "route", "arguments": {"choice": "‹B›"}}',
        "trailing comma": '{"choice": "‹B›",}',
        "single quotes": "{'choice': '‹B›', 'reason': 'it's the one',}",
        "typographic quotes": "{“choice”: “‹B›”}",
        "keys without quotes": "{choice: '‹B›'}",
        "Python literals": "{'choice': '‹B›', 'sure': True, 'other': None}",
        "comments in JSON": '{\n  // the best\n  "choice": "‹B›" /* indeed */\n}',
        "doubled braces": '{{"choice": "‹B›"}}',
        "capital key": '{"CHOICE": "‹B›"}',
        "confidence as text": '{"choice": "‹B›", "confidence": "85%"}',
        "confidence that is none": '{"choice": "‹B›", "confidence": NaN}',
        "escaped letters in a reason": '{"choice": "‹B›", "reason": "\\u00e9\\ud83d\\ude00\\n"}',
        "labelled lines": "STRATEGY: ‹B›\nCONFIDENCE: 0.7\nREASONING: ‹A› would be slower.",
        "labelled lines in bold": "**Choice:** ‹B›\n**Confidence:** 0.7\n**Reasoning:** not ‹A›",
        "labels on one line": "INDEX: ‹B› CONFIDENCE: 0.9 REASONING: ‹A› and ‹C› do not fit",
        "label with a remark": "Answer: ‹B› (the closest)",
        "label with a remark on another": "CHOICE: ‹B›, since ‹A› would miss it",
        "label above the name": "CHOICE:\n\n‹B›\n\nCONFIDENCE:\n0.9",
        "numbered labels": "1. CHOICE: ‹B›\n2. CONFIDENCE: 80%\n3. REASONING: unlike ‹A›",
        "name with words around it": '{"choice": "the ‹B› one"}',
        "thoughts with another choice": '<think>[1] {"choice": "‹A›"}</think>[{"choice": "‹B›"}]',
        "thoughts before a word": "<think>\n‹A›? No.\n</think>\n\n‹B›",
        "thoughts without an opening tag": "Perhaps ‹A›.\n</think>\n‹B›",
        "nested thoughts": "<think>a<think>‹A›</think>‹C›</think>‹B›",
        "thinking tag": "<thinking>‹A›</thinking>‹B›",
        "channels": "<|channel|>analysis<|message|>‹A›<|end|><|channel|>final<|message|>‹B›<|return|>",
        "prose with one name": "The best place to look is ‹B›, I think.",
        "prose, then a line of its own": "‹A› is about something else.\n‹C› comes close.\n\n‹B›",
        "two answers, the first is no option": '[{"choice": "nowhere"}, {"choice": "‹B›"}]',
        "number and name": '{"index": 0, "name": "‹B›"}',
    },
)

_FIRST: Final = _cases(
    "A",
    {
        "two answers": '[{"choice": "‹A›"}, {"choice": "‹B›"}]',
        "the same answer twice": '{"choice": "‹A›"}\n{"choice": "‹A›"}',
        "one key twice": '{"choice": "‹A›", "choice": "‹B›"}',
        "list of choices": '{"choice": ["‹A›", "‹B›", "‹C›"]}',
        "labelled twice": "CHOICE: ‹A›\nCHOICE: ‹B›",
    },
)

_REFUSED: Final = _cases(
    None,
    {
        "choice 0": '{"choice": 0}',
        "choice 1": '{"choice": 1}',
        "choice -1": '[{"choice": -1, "reason": "‹B›"}]',
        "choice n+1": '{"choice": 4, "reason": "‹B› fits"}',
        "choice 99": '[{"choice": 99}]',
        "choice as a numeric string": '{"choice": "2"}',
        "choice as a fraction": '{"choice": 1.7}',
        "choice true": '{"choice": true}',
        "choice null": '{"choice": null}',
        "choice two": '{"choice": "two"}',
        "a number alone": "2",
        "a number in brackets": "[2]",
        "an option by number": "Option (2).",
        "labelled number": "STRATEGY: 2\nREASONING: ‹B› fits",
        "labelled none": "INDEX: none of them\nREASONING: ‹B› is the closest",
        "blank": " \n\t ",
        "refusal": "I am sorry, but I cannot help with that request.",
        "refusal that names one": "I cannot choose ‹B› for you.",
        "prose without a name": "It depends on what you are looking for.",
        "denial and choice": "not ‹A› but ‹B›",
        "alternative": "‹A› or ‹B›?",
        "alternative under a label": "CHOICE: ‹A› or ‹B›",
        "alternative in JSON": '{"choice": "either ‹A› or ‹B›"}',
        "denial in JSON": '{"choice": "not ‹B›"}',
        "question": "Do you mean the ‹B› collection?",
        "enumeration": "1. ‹A›\n2. ‹B›\n3. ‹C›",
        "unknown name": "the-other-one",
        "part of a longer name": "‹B›-2",
        "inside a word": "x‹B›x",
        "wrong keys": '{"foo": "‹B›"}',
        "schema instead of an answer": '{"properties": {"choice": {"type": "string", "enum": ["‹A›", "‹B›"]}}}',
        "probabilities instead of a choice": '{"‹A›": 0.1, "‹B›": 0.9}',
        "empty list": "[]",
        "empty object": "{}",
        "null": "null",
        "truncated object": '{"choice": "‹B›", "reason": "because',
        "truncated name": '[{"choice": "‹B',
        "truncated list": '["‹A›", "‹B›"',
        "unclosed thoughts": '<think>I take [{"choice": "‹B›"}]',
        "thoughts alone": '<think>{"choice": "‹B›"}</think>',
        "YAML tags": "!!python/object/apply:os.system [echo]",
        "YAML aliases": "a: &a [x,x]\nb: &b [*a,*a,*a]\nc: &c [*b,*b,*b]\nd: [*c,*c,*c]",
        "YAML list with a name": "- !!str ‹A›\n- !!str ‹B›",
        "HTML error page": "<html><body><h1>502 Bad Gateway</h1></body></html>",
        "template left unfilled": '{"choice": "<name>"}',
        "SQL": "'; DROP TABLE indexes; --",
        "null bytes": "\x00\x00\x00",
        "lone surrogates": "\ud800\udfff",
        "the prompt repeated": "Name: ‹A›\nName: ‹B›\nWhich is best? ‹A› or ‹B›",
        "format string": "{0.__class__} {mark} %s",
        "bytes of a string": "b'\\xff\\xfe'",
        "arithmetic": "1 + 1 = 2",
        "huge number": '{"choice": 1e999}',
        "negative zero": '{"choice": -0}',
        "only closing signs": "]}]}]}",
        "colon": ":",
    },
)

MALFORMED_REPLIES: Final = (*_READ, *_FIRST, *_REFUSED)
"""Every case; the names are unique."""

_MEGABYTE: Final = 1_000_000

_UNITS: Final = (
    "x", " ", "\n", "[", "{", "[]", '"', "'", "\\", '{"a":', '["a",', "[1,", "[/*", "//\n", "<think>", "</think>", "ก",
    "choice: x\n", "CHOICE", '{"choice":"x"}', "9", "no ", "e\u0301", "\ufdfa", "[“", "{'a'b", "* ", "-", "not.", "`",
    '{"choice": ["x",', "confidence: 1 ", "<|channel|>final<|message|>", "\x00", "1. x\n", "a: *a\n", "1, 2\n",
)  # fmt: skip
_ALIASES: Final = "".join(
    f"{new}: &{new} [{f'*{old},' * 9}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)

HEAVY_REPLIES: Final[Mapping[str, str]] = {
    "100,000 brackets": "[" * 100_000,
    **{f"1 MB of {unit[:12]!r}": unit * (_MEGABYTE // len(unit)) for unit in _UNITS},
    "1 MB in one string": '{"choice": "' + "x" * _MEGABYTE,
    "1 MB number": '{"choice": ' + "9" * _MEGABYTE + "}",
    "alias bomb": f"a: &a [x,x]\n{_ALIASES}",
}
"""Replies that cost time or memory when they are read carelessly; none of them chooses anything."""
