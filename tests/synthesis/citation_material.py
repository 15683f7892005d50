"""Sentences written by hand for the citation cases: paraphrases of the sample corpus, and what it does not say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

_DATA: Final = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))

#: Words of the source sentence, and the same in other words.
PARAPHRASES: Final[dict[str, list[tuple[str, ...]]]] = _DATA["PARAPHRASES"]
#: What the sample corpus does not say, in its manner.
INVENTED: Final[dict[str, list[str]]] = _DATA["INVENTED"]
#: Clauses that are put behind a true sentence.
ADDED: Final[dict[str, list[str]]] = _DATA["ADDED"]
#: Names that take the place of those of the corpus.
OTHER_NAMES: Final[dict[str, list[str]]] = _DATA["OTHER_NAMES"]
#: Freely worded: words of the source sentence, a true sentence, and a false one that is nearly the same.
FREE: Final[dict[str, list[tuple[str, ...]]]] = _DATA["FREE"]
