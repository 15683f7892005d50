"""Options by name: the one that a text is, and those that it mentions."""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_ACCENTS: Final = re.compile("[\u0300-\u036f]+")
_SEPARATORS: Final = re.compile(r"[\s_-]+")
_AROUND: Final = " \t\r\n\"'`*_#>~.,:;!?()[]{}<>“”‘’«»|\\/-–—•"
_AROUND_NUMBER: Final = " \t\r\n\"'`*_#>,:;!()[]{}<>“”‘’«»|"
_BULLET: Final = re.compile(r"^\s*(?:[-*•–]|\(?\d{1,3}[.):])\s+")
_MAX_NAME_CHARS: Final = 300
# A name ends where a word ends; "cisi." ends a sentence, "cisi-2" and "cisi.old" are other names.
_BEFORE: Final = r"(?<!\w)(?<!\w[-.])"
_AFTER: Final = r"(?!\w|[-.]\w)"


def plain(text: str) -> str:
    """Take off case and the accents of Latin, Greek and Cyrillic letters; the marks of other scripts stay."""
    decomposed = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", text).casefold())
    return unicodedata.normalize("NFC", _ACCENTS.sub("", decomposed))


class OptionNames:
    """The names that can be chosen.

    A text is one of them when it is spelled alike; else when it is alike but for case, but for accents too, but for
    ``_``, ``-`` and spaces between the words too, or without these, and no other option is so alike.

    Args:
        names: The options, each with a name of its own.
        aliases: Other spellings, each with the option that it means; those of no option are left out.
    """

    def __init__(self, names: Sequence[str], aliases: Mapping[str, str] | None = None) -> None:
        self.names = tuple(names)
        known = set(names)
        spellings = {name: name for name in names}
        spellings.update({other: meant for other, meant in (aliases or {}).items() if meant in known} | spellings)
        self._tiers = [_alike(spellings, form) for form in _FORMS]
        self._mention: re.Pattern[str] | None = None

    def find(self, text: str) -> str | None:
        """Return the option that a text is, or ``None``."""
        stripped = text.strip(_AROUND)
        worded = any(char.isalpha() for char in stripped)
        # "-1" is not "1", nor ".5" "5": what has no letter counts as it stands, but for quotes and the like.
        bare = stripped if worded else text.strip(_AROUND_NUMBER).rstrip(".")
        for candidate in dict.fromkeys((text.strip(), bare)):
            if not 0 < len(candidate) <= _MAX_NAME_CHARS:
                continue
            for form, tier in zip(_FORMS if worded else _FORMS[:1], self._tiers, strict=False):
                found = tier.get(form(candidate))
                if found is not None:
                    return found
        return None

    def find_line(self, line: str) -> str | None:
        """Return the option that a line is, alone but for a bullet, a number before it and signs around it."""
        if len(line) > _MAX_NAME_CHARS:
            return None
        return self.find(line) or self.find(_BULLET.sub("", line))

    def mentioned(self, text: str) -> list[str]:
        """Return the options that occur in a text as words of their own, in order, each once.

        Names without a letter are left out: in running text they are numbers.
        """
        if self._mention is None:
            self._mention = _mention_pattern(self._tiers[_PLAIN])
        found = (self.find(match[0]) for match in self._mention.finditer(plain(text)))
        return list(dict.fromkeys(name for name in found if name is not None))


_FORMS: Final[tuple[Callable[[str], str], ...]] = (
    lambda text: unicodedata.normalize("NFC", text),
    lambda text: unicodedata.normalize("NFC", text).casefold(),
    plain,
    lambda text: _SEPARATORS.sub(" ", plain(text)).strip(),
    lambda text: _SEPARATORS.sub("", plain(text)),
)
_PLAIN: Final = 2


def _alike(spellings: Mapping[str, str], form: Callable[[str], str]) -> dict[str, str | None]:
    """Map each form of a spelling to its option, or to ``None`` where two options share it."""
    forms: dict[str, str | None] = {}
    for spelling, name in spellings.items():
        key = form(spelling)
        forms[key] = name if forms.get(key, name) == name else None
    return {key: name for key, name in forms.items() if key}


def _mention_pattern(forms: Mapping[str, str | None]) -> re.Pattern[str]:
    """Match the options that are told apart by their plain form, the longest first."""
    worded = [form for form, name in forms.items() if name is not None and any(char.isalpha() for char in form)]
    longest_first = sorted(worded, key=lambda form: (-len(form), form))
    parts = [r"[\s_-]{1,3}".join(map(re.escape, _SEPARATORS.split(form))) for form in longest_first]
    return re.compile(f"{_BEFORE}(?:{'|'.join(parts) or '(?!)'}){_AFTER}")
