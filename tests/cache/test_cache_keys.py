from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agentic_retriever.cache import cache_key

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from("abcd"), json_values, max_size=4))
def test_order_of_names_does_not_matter(parts):
    assert cache_key(**parts) == cache_key(**dict(reversed(parts.items())))


def test_types_and_values_make_different_keys():
    keys = [cache_key(v=v) for v in (1, True, "1", None, [1], {"1": 1}, 0, False, "")] + [cache_key(w=1), cache_key()]
    assert len(set(keys)) == len(keys)
