"""Random metadata and random filters over it, with values chosen so that both collide often."""

from hypothesis import strategies as st
from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters

FIELDS = ["a", "b.c", "tags[0]", "with space", 'quo"te', "ชื่อ"]

texts = st.sampled_from(
    ["", "x", "X", "xy", "true", "True", "false", "1", "2020", "2020-01-31", "2020-01-31T10:00:00", "2020-02-01",
     "2020-01-31T10:00:00+07:00", "2020-01-31 23:59:59.5", "2020-1-31", " 2020-01-31", "9999-12-31", "0001-01-01",
     "2020-01-31T10:00Z", "ก", "ß", "ẞ", "a,b"]
)  # fmt: skip
numbers = st.sampled_from(
    [0, 1, -1, 2, 2020, 2**53, 2**53 + 1, 2**63 - 1, -(2**63), 0.0, -0.0, 1.0, 0.5, 2020.5, 1e300]
)
scalars = st.one_of(texts, numbers, st.booleans(), st.none())
values = st.one_of(scalars, st.lists(scalars, max_size=3), st.just({"x": 1}), st.just([["x"]]), st.just({}))
metadata = st.dictionaries(st.sampled_from(FIELDS), values, max_size=4)

filter_numbers = numbers | st.just(10**30)
ANY = [*FIELDS, "absent"]
_ranges = [FilterOperator.GT, FilterOperator.GTE, FilterOperator.LT, FilterOperator.LTE]
_singles = [FilterOperator.EQ, FilterOperator.NE, FilterOperator.CONTAINS]
_lists = [FilterOperator.IN, FilterOperator.NIN, FilterOperator.ANY, FilterOperator.ALL]
_texts = [FilterOperator.TEXT_MATCH, FilterOperator.TEXT_MATCH_INSENSITIVE]


def clause(fields, operators, value):
    # Built without validation: it allows lists of mixed types and booleans, which reach us from model_construct.
    return st.builds(
        lambda key, operator, v: MetadataFilter.model_construct(key=key, operator=operator, value=v),
        st.sampled_from(fields), st.sampled_from(operators), value,
    )  # fmt: skip


clauses = st.one_of(
    clause(ANY, _singles, texts | filter_numbers | st.booleans()), clause(ANY, _ranges, texts | filter_numbers),
    clause(ANY, _lists, st.lists(texts | filter_numbers, max_size=4)), clause(ANY, _texts, texts.filter(bool)),
    clause(ANY, [FilterOperator.IS_EMPTY], st.none()),
)  # fmt: skip


def group(children):
    return st.builds(
        lambda filters, condition: MetadataFilters.model_construct(filters=filters, condition=condition),
        st.lists(children, max_size=3),
        st.sampled_from([*FilterCondition, None]),
    )


filter_trees = group(st.recursive(clauses, group, max_leaves=6))
