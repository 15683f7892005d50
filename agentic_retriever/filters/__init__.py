"""One meaning for metadata filters, whatever holds the nodes.

Filters are LlamaIndex's ``MetadataFilters``. Its stores disagree on what they mean, so every back-end here
is held to the evaluator in this package:

- **Keys** are literal names of top-level fields: ``a.b`` is a field with a dot in its name, not a path.
- **Missing**: a field that is absent, ``None``, NaN or an empty list satisfies ``is_empty`` and nothing else, so
  ``!=`` and ``nin`` do not return nodes without the field. An empty string is a value.
- **Lists**: a list satisfies ``==``, ``in``, ``contains``, ``any``, a range or a text match when any element does;
  ``!=`` and ``nin`` when no element is equal; ``all`` when every wanted value equals some element. A single value
  counts as a list of one. Nested lists and objects equal nothing.
- **Equality**: ``contains`` is ``==`` and ``any`` is ``in``. Text equals text, case and all. Numbers equal by worth
  (``2020`` and ``2020.0``). A number never equals text. ``in []`` is satisfied by nothing, ``nin []`` and ``all []``
  by any node that has the field.
- **Booleans**: a ``MetadataFilter`` cannot hold one, so the texts ``true`` and ``false``, in any case, equal the
  boolean as well as that text. A boolean is no number: ``1`` does not equal ``True``, and ranges skip it.
- **Ranges**: a number is compared with numbers. An ISO 8601 date or date-time is compared, in UTC, with texts that
  are one too; where either side is a date without a time the day decides, so ``<= 2024-05-31`` includes that whole
  day. Any other text is compared with texts by code point.
- **Text**: ``text_match`` finds a substring; ``text_match_insensitive`` does so whatever the case.
- **Groups**: ``and``, ``or``, and ``not``, which is satisfied when none of its parts is (so ``not`` over ``==`` does
  return nodes without the field). A group without clauses restricts nothing and is left out wherever it stands.
"""

from __future__ import annotations

from agentic_retriever.filters.canonical import merge_and, normalise
from agentic_retriever.filters.check import MAX_CLAUSES, MAX_DEPTH, MAX_VALUES, check_filters, is_empty
from agentic_retriever.filters.evaluate import Predicate, matches, node_fields, predicate

__all__ = [
    "MAX_CLAUSES",
    "MAX_DEPTH",
    "MAX_VALUES",
    "Predicate",
    "check_filters",
    "is_empty",
    "matches",
    "merge_and",
    "node_fields",
    "normalise",
    "predicate",
]
