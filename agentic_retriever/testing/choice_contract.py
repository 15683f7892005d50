"""The contract of everything that reads what a model replied, as test classes to inherit from.

::

    class TestMySelector(ChoiceReaderContract):
        options = ("vector", "hybrid", "summary")

        def read(self, reply):
            return my_selector_with(FakeLLM([reply])).choose(self.options) or None

Run it with pytest or any runner that calls methods named ``test_...``; it needs no plug-in.
"""

import json
import time
import tracemalloc
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import resources
from typing import ClassVar, Final

from agentic_retriever.errors import LLMOutputError

__all__ = ["HEAVY_REPLIES", "MALFORMED_REPLIES", "ChoiceReaderContract", "ReplyCase", "ReplyReaderContract"]

MAX_PASSES = 5


@dataclass(frozen=True, slots=True)
class ReplyCase:
    """One reply, named by what is special about it."""

    name: str
    template: str  # with ``‹A›``, ``‹B›`` and ``‹C›`` for the first three options
    expected: str | None  # ``"A"`` or ``"B"``, the option that it chooses; ``None`` when it must be refused

    def text(self, options: Sequence[str]) -> str:
        text = self.template
        for letter, option in zip("ABC", options[:3], strict=True):
            text = text.replace(f"‹{letter}›", option)
        return text

    def chosen(self, options: Sequence[str]) -> str | None:
        return None if self.expected is None else options["AB".index(self.expected)]


_CASES: Final = json.loads((resources.files(__package__) / "malformed_replies.json").read_text(encoding="utf-8"))

MALFORMED_REPLIES: Final = tuple(
    ReplyCase(name, template, None if expected == "refused" else expected)
    for expected, replies in _CASES.items()
    for name, template in replies.items()
)
"""What models reply when they are asked to choose: the good, the odd and the hostile; the names are unique."""

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
    **{f"1 MB of {unit[:12]!r}": unit * (1_000_000 // len(unit)) for unit in _UNITS},
    "1 MB in one string": '{"choice": "' + "x" * 1_000_000,
    "1 MB number": '{"choice": ' + "9" * 1_000_000 + "}",
    "alias bomb": f"a: &a [x,x]\n{_ALIASES}",
}
"""Replies that cost time or memory when they are read carelessly; none of them chooses anything."""


class ReplyReaderContract(ABC):
    """What every reader of model output must do: return something sound or raise ``LLMOutputError``, within bounds."""

    options: ClassVar[tuple[str, ...]] = ("alpha", "beta", "gamma")

    @abstractmethod
    def read(self, reply: str) -> object:
        """Read a reply, or raise ``LLMOutputError``."""

    @abstractmethod
    def check(self, found: object) -> None:
        """Assert that what was read can be used, such as that it is in range."""

    def test_no_reply_breaks_the_reader(self) -> None:
        """Whatever the reply, the result can be used or the error is typed, short and without the reply."""
        for case in MALFORMED_REPLIES:
            self._survive(case.name, case.text(self.options))
        for name, reply in HEAVY_REPLIES.items():
            self._survive(name, reply)

    def test_heavy_replies_take_little_time_and_memory(self) -> None:
        """A megabyte of anything takes at most five times what counting it does, and 50 MB beside itself."""
        counted = min(_timed(lambda: sum(1 for _ in "x" * 1_000_000)) for _ in range(3))
        for name, reply in HEAVY_REPLIES.items():
            spent = min(_timed(partial(self._survive, name, reply)) for _ in range(2))
            assert spent <= MAX_PASSES * counted, f"{name} took {spent:.3f} s of processor time, counting {counted:.3f}"
            tracemalloc.start()
            try:
                self._survive(name, reply)
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            assert peak <= 50_000_000, f"{name} took {peak:,} bytes"

    def _survive(self, name: str, reply: str) -> None:
        try:
            found = self.read(reply)
        except LLMOutputError as err:
            message = str(err)
            assert len(message) <= 200, f"{name}: the message has {len(message)} characters"
            return
        except Exception as err:  # a reader may raise anything, and only one kind is right
            raise AssertionError(f"{name}: {type(err).__name__} instead of an LLMOutputError") from err
        self.check(found)


def _timed(run: Callable[[], object]) -> float:
    started = time.thread_time()
    run()
    return time.thread_time() - started


class ChoiceReaderContract(ReplyReaderContract):
    """What every reader of a choice must do; ``options`` are three or more names of letters."""

    @abstractmethod
    def read(self, reply: str) -> str | None:
        """Return the option that a reply chooses; ``None`` or ``LLMOutputError`` when it is refused."""

    def check(self, found: object) -> None:
        """Only an option can be chosen."""
        assert found is None or found in self.options, f"{str(found)[:80]!r} is none of the options"

    def test_every_case(self) -> None:
        read = ((case, self._read_or_none(case.text(self.options))) for case in MALFORMED_REPLIES)
        wrong = [(case.name, found) for case, found in read if found != case.chosen(self.options)]
        assert not wrong, f"wrong, with what was read: {wrong}"

    def test_heavy_replies_choose_nothing(self) -> None:
        for name, reply in HEAVY_REPLIES.items():
            assert self._read_or_none(reply) is None, f"{name} was taken for a choice"

    def test_every_option_can_be_chosen_whatever_its_case(self) -> None:
        for option in self.options:
            for name in (option, option.upper(), option.title()):
                for reply in (f'{{"choice": "{name}"}}', f"CHOICE: {name}", name):
                    found = self._read_or_none(reply)
                    assert found == option, f"{reply!r} was read as {found!r}"

    def test_a_choice_among_many_words_is_found(self) -> None:
        reply = f"<think>{'hm, ' * 20_000}</think>" + f'{{"choice": "{self.options[1]}"}}'
        assert self._read_or_none(reply) == self.options[1]

    def _read_or_none(self, reply: str) -> str | None:
        try:
            return self.read(reply)
        except LLMOutputError:
            return None
