"""Metadata of typed fields, filters over it, and a second, plain reading of what filters mean."""

import datetime as dt
import json
import random

from filter_strategies import clause, group
from filter_strategies import filter_trees as messy_filters
from filter_strategies import metadata as messy_metadata
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters

PROVINCES = ["เชียงใหม่", "Bangkok", "bangkok", "Lampang", ""]
NODES = 120
"""Rows of messy metadata in a store that serves every example."""

TAGS = ["a", "b", "c", "a,b"]
DAYS = ["2020-01-31", "2020-02-01", "1969-12-31", "2024-02-29"]
TIMES = ["2020-01-31T00:00:00", "2020-01-31T23:59:59.5", "2020-02-01 10:00", "2020-01-31T20:00:00-07:00"]

typed_fields = {
    "province": st.sampled_from(PROVINCES), "sold": st.booleans(), "tags": st.lists(st.sampled_from(TAGS), max_size=3),
    "year": st.integers(2018, 2022),
    "area": st.one_of(st.integers(0, 5), st.sampled_from([0.5, 2.5, 1e300, float("inf"), float("nan")])),
    "big": st.sampled_from([2**53, 2**53 + 1, 2**53 + 2, 1.5, -(10**30)]),
    "floors": st.lists(st.integers(0, 4), max_size=3), "day": st.sampled_from(DAYS),
    "at": st.sampled_from(DAYS + TIMES),
}  # fmt: skip
typed_metadata = st.fixed_dictionaries({}, optional=typed_fields)

_O = FilterOperator
_RANGES = [_O.GT, _O.GTE, _O.LT, _O.LTE]
_texts = st.sampled_from(PROVINCES + TAGS + DAYS + TIMES + ["true", "False"])
_numbers = st.one_of(st.integers(-1, 6), st.integers(2017, 2023), st.sampled_from([2**53, 2**53 + 1, 0.5, 10**400]))


def _clauses(field):
    scalar = _texts | _numbers
    return st.one_of(
        clause([field], [_O.EQ, _O.NE, _O.CONTAINS], scalar),
        clause([field], [_O.IN, _O.NIN, _O.ANY, _O.ALL], st.lists(scalar, max_size=4)),
        clause([field], _RANGES, scalar),
        clause(
            [field], [_O.TEXT_MATCH, _O.TEXT_MATCH_INSENSITIVE], st.sampled_from(["a", "BANGKOK", "ใหม่", "2020", ","])
        ),
        clause([field], [_O.IS_EMPTY], st.none()),
    )


clauses = st.sampled_from([*typed_fields, "absent"]).flatmap(_clauses)
typed_filters = group(st.recursive(clauses, group, max_leaves=8))

#: Rows and filters over them that have fields, and so matches, in common.
cases = st.one_of(
    st.tuples(st.lists(typed_metadata, max_size=8), typed_filters),
    st.tuples(st.lists(messy_metadata, max_size=8), messy_filters),
)


def random_row(chosen):
    """Typed metadata as above, by a seeded generator: a hundred times as fast to draw, though it does not shrink."""
    row = {
        "province": chosen.choice(PROVINCES), "sold": chosen.random() < 0.5,
        "tags": chosen.sample(TAGS, chosen.randint(0, 3)), "year": chosen.randint(2018, 2022),
        "area": chosen.choice([0, 1, 2, 2.5, 5, 1e300, chosen.random() * 5]),
        "big": chosen.choice([2**53, 2**53 + 1, 2**53 + 2, 1.5]),
        "floors": [chosen.randint(0, 4) for _ in range(chosen.randint(0, 3))], "day": chosen.choice(DAYS),
        "at": chosen.choice(DAYS + TIMES),
    }  # fmt: skip
    return {name: value for name, value in row.items() if chosen.random() < 0.8}


def random_filters(chosen, depth=0):
    """Nested filters over it."""
    parts = []
    for _ in range(chosen.choice([0, 1, 1, 2, 2, 3])):
        nested = depth < 3 and chosen.random() < 0.35
        parts.append(random_filters(chosen, depth + 1) if nested else _random_clause(chosen))
    return MetadataFilters.model_construct(filters=parts, condition=chosen.choice([*FilterCondition, None]))


def _random_clause(chosen):
    field, operator = chosen.choice([*typed_fields, "absent"]), chosen.choice(list(_O))
    if operator in {_O.IN, _O.NIN, _O.ANY, _O.ALL}:
        value = [_random_value(chosen, field) for _ in range(chosen.randint(0, 3))]
    elif operator in {_O.TEXT_MATCH, _O.TEXT_MATCH_INSENSITIVE}:
        value = chosen.choice(["a", "BANGKOK", "ใหม่", "2020", ","])
    else:
        value = None if operator is _O.IS_EMPTY else _random_value(chosen, field)
    return MetadataFilter.model_construct(key=field, operator=operator, value=value)


def _random_value(chosen, field):
    value = random_row(chosen).get(field)
    value = chosen.choice(value) if isinstance(value, list) and value else value
    anything = [*PROVINCES, *TAGS, *DAYS, *TIMES, "true", "False", -1, 0, 2.5, 2020, 2**53 + 1, 10**400]
    if value is None or value == [] or chosen.random() < 0.2:
        return chosen.choice(anything)
    return str(value) if isinstance(value, bool) else value


seeds = st.integers(0, 2**32).map(random.Random)


def oracle(row, filters):
    """Whether metadata satisfies filters, written from their description and without the package's evaluator."""
    return _void(filters) or _satisfies(row, filters)


def _void(item):
    return isinstance(item, MetadataFilters) and all(_void(child) for child in item.filters)


def _satisfies(row, item):
    if isinstance(item, MetadataFilter):
        return _clause(row.get(item.key), item.operator, item.value)
    found = [_satisfies(row, child) for child in item.filters if not _void(child)]
    if item.condition is FilterCondition.NOT:
        return not any(found)
    return any(found) if item.condition is FilterCondition.OR else all(found)


def _clause(value, operator, wanted):
    missing = value is None or value == [] or value != value
    if operator is _O.IS_EMPTY or missing:
        return missing and operator is _O.IS_EMPTY
    items = value if isinstance(value, list) else [value]
    items = [item for item in items if isinstance(item, (str, int, float)) and item == item]
    if operator in _RANGES:
        return any(_in_range(item, operator, wanted) for item in items)
    if operator is _O.TEXT_MATCH:
        return any(isinstance(item, str) and wanted in item for item in items)
    if operator is _O.TEXT_MATCH_INSENSITIVE:
        return any(isinstance(item, str) and wanted.casefold() in item.casefold() for item in items)
    wanted = wanted if isinstance(wanted, list) else [wanted]
    hits = [any(_same(item, one) for item in items) for one in wanted]
    if operator is _O.ALL:
        return all(hits)
    return not any(hits) if operator in {_O.NE, _O.NIN} else any(hits)


def _same(item, wanted):
    if isinstance(wanted, bool):
        wanted = str(wanted)
        return item is (wanted == "True") or item == wanted.lower()
    if isinstance(item, bool):
        return isinstance(wanted, str) and wanted.lower() == str(item).lower()
    return isinstance(item, str) == isinstance(wanted, str) and item == wanted


def _in_range(item, operator, bound):
    if isinstance(item, bool) or isinstance(item, str) != isinstance(bound, str):
        return False
    if isinstance(bound, str) and (limit := _moment(bound)):
        found = _moment(item)
        if not found:
            return False
        by_day = len(bound) == 10 or len(item) == 10
        item, bound = (found.date(), limit.date()) if by_day else (found, limit)
    return {_O.GT: item > bound, _O.GTE: item >= bound, _O.LT: item < bound, _O.LTE: item <= bound}[operator]


def _moment(text):
    if len(text) < 10 or not (text[:4] + text[5:7] + text[8:10]).isdigit():
        return None
    for form in ("", "T%H:%M", "T%H:%M:%S", "T%H:%M:%S.%f", "T%H:%M:%S%z", "T%H:%M:%S.%f%z"):
        try:
            moment = dt.datetime.strptime(text[:10] + text[10:].replace(" ", "T"), "%Y-%m-%d" + form)  # noqa: DTZ007
        except ValueError:
            continue
        try:
            return moment.astimezone(dt.timezone.utc) if moment.tzinfo else moment.replace(tzinfo=dt.timezone.utc)
        except OverflowError:
            return None
    return None


def messy_rows():
    """A fixed sample of the strategy's metadata: one store serves every example."""
    found = []

    @settings(max_examples=NODES, database=None, derandomize=True)
    @given(st.lists(messy_metadata, min_size=8, max_size=8))
    def collect(rows):
        found.extend(rows)

    collect()
    rows = [dict(row) for row in {json.dumps(row, sort_keys=True): row for row in found}.values()]
    random.Random(7).shuffle(rows)
    return sorted(rows[: NODES * 4], key=len, reverse=True)[:NODES]
