from __future__ import annotations

import datetime as dt
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_retriever.errors import ConfigError
from agentic_retriever.llm import FREE, CostReport, Price, PriceTable
from agentic_retriever.llm.client import cost_report
from agentic_retriever.schema import Tier, TierUsage

CLOUD = "openai/gpt-4o-mini"


def test_packaged_table_is_dated_and_knows_the_default_cloud_model():
    table = PriceTable.load()
    assert dt.date.fromisoformat(table.as_of).year >= 2026
    assert "openrouter" in table.source
    assert table.price(CLOUD) == Price(in_usd=0.15, out_usd=0.60, context_tokens=128_000)
    assert table.price(CLOUD).cost_usd(1_000_000, 0) == pytest.approx(0.15)
    assert table.price(CLOUD).cost_usd(2_000, 500) == pytest.approx(0.0006)


def test_unknown_model_has_no_price_and_a_free_one_costs_nothing():
    table = PriceTable.load()
    assert table.price("nobody/nothing") is None
    assert table.price("nobody/nothing:free") is FREE
    assert table.price("gpt-4o-mini") == table.price(CLOUD)
    assert table.price("gpt-4") is None
    with pytest.raises(TypeError):
        table.prices["x"] = FREE


def test_own_file_goes_before_the_package(tmp_path):
    path = tmp_path / "prices.json"
    path.write_text(
        json.dumps({"as_of": "2030-01-01", "models": {CLOUD: {"in": 1, "out": 2}, "a/b": {"in": 0, "out": 0}}})
    )
    table = PriceTable.load(path)
    assert (table.as_of, table.price(CLOUD).cost_usd(1_000_000, 1_000_000)) == ("2030-01-01", 3.0)
    assert table.price("a/b").free
    assert table.price("openai/gpt-4o") == PriceTable.load().price("openai/gpt-4o")


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", '{"models": []}', "[" * 100_000,
        '{"models": {"a/b": 3}}',
        '{"models": {"a/b": {"in": -1, "out": 0}}}', '{"models": {"a/b": {"in": true, "out": 0}}}',
        '{"models": {"a/b": {"in": NaN, "out": 0}}}', '{"models": {"a/b": {"in": 1}}}',
        '{"models": {"a/b": {"in": 1, "out": 1, "context": "big"}}}',
        '{"models": {"a/b": {"in": 1, "out": 1, "context": true}}}',
        '{"models": {}, "as_of": 2030}',
    ],
)  # fmt: skip
def test_broken_file_is_named(tmp_path, text):
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"prices_file: .*mine\.json"):
        PriceTable.load(path)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"models": {"a/b": {"in": 1, "out": 1, "contxt": 8000}}}', "unknown key 'contxt'; did you mean 'context'?"),
        ('{"models": {}, "as-of": "2030-01-01"}', "unknown key 'as-of'; did you mean 'as_of'?"),
    ],
)  # fmt: skip
def test_a_misspelt_key_is_told_with_file_and_what_was_meant(tmp_path, text, told):
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        PriceTable.load(path)
    assert str(caught.value).startswith(f"setting prices_file: {path}: ")
    assert told in str(caught.value)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match="nowhere"):
        PriceTable.load(tmp_path / "nowhere.json")


def used(tier, model, calls, prompt, completion, usd=0.0):
    return TierUsage(tier=tier, model=model, calls=calls, prompt_tokens=prompt, completion_tokens=completion, usd=usd)


def test_report_counts_savings_local_share_and_unknown_prices():
    cloud = Price(in_usd=1.0, out_usd=2.0)
    spent = [
        used(Tier.PRIMARY, "llama", 3, 3_000_000, 1_000_000),
        used(Tier.CLOUD, "cloud", 1, 1_000_000, 500_000, usd=2.0),
        used(Tier.SMALL, "odd", 1, 0, 0),
    ]
    report = cost_report(spent, {"llama": FREE, "cloud": cloud, "odd": None}, cloud)
    assert report == CostReport(usd=2.0, cloud_only_usd=7.0, saved_usd=5.0, local_share=0.6, calls=5, unpriced_calls=1)
    assert json.loads(json.dumps(report.to_dict()))["saved_usd"] == 5.0
    assert cost_report(spent, {}, None).saved_usd is None
    assert cost_report([], {}, cloud).local_share == 0.0


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 10**6), st.integers(0, 10**4)), max_size=20),
    st.floats(0, 100),
    st.floats(0, 100),
)
def test_savings_are_what_the_local_tokens_would_have_cost(calls, in_usd, out_usd):
    cloud = Price(in_usd=in_usd, out_usd=out_usd)
    spent = [
        used(Tier.PRIMARY, "local", 1, p, c) if local else used(Tier.CLOUD, "cloud", 1, p, c, cloud.cost_usd(p, c))
        for local, p, c in calls
    ]
    report = cost_report(spent, {"local": FREE, "cloud": cloud}, cloud)
    assert report.saved_usd == pytest.approx(sum(cloud.cost_usd(p, c) for local, p, c in calls if local), abs=1e-9)
    assert 0 <= report.local_share <= 1
