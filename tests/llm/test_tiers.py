"""The choice among tiers, and what happens when they fail, on models that are functions."""

import datetime as dt
import json
import socket
import threading
import time
from unittest.mock import Mock

import pytest
from command_line import run_fresh
from hypothesis import given
from hypothesis import strategies as st
from model_servers import KEY as CANARY
from waiting import pool, within

from agentic_retriever import errors
from agentic_retriever.config import RouterConfig
from agentic_retriever.llm import LLMClient, TieredClient, TierNeeds, build_client
from agentic_retriever.llm.calls import failure_kind, spent_on
from agentic_retriever.llm.client import FREE, CostReport, Endpoint, Price, PriceTable, RetryPolicy, cost_report
from agentic_retriever.llm.tiers import context_window, share_s
from agentic_retriever.schema import Budget, Complexity, FailureKind, Tier, TierUsage
from agentic_retriever.testing.fakes import FakeLLM
from agentic_retriever.threads import Breaker

PRICED = Price(in_usd=1.0, out_usd=2.0)
NAMES = {Tier.PRIMARY: "llama", Tier.CLOUD: "gpt", Tier.SMALL: "qwen"}


class Windowed(FakeLLM):
    context_window: int


def model(tier, replies, **kwargs):
    llm = Windowed(replies, model_name=NAMES[tier], context_window=kwargs.pop("context_tokens", 8_192))
    kwargs.setdefault("price", PRICED if tier is Tier.CLOUD else FREE)
    timeout_s = kwargs.pop("timeout_s", 60)
    clock = kwargs.pop("clock", time.monotonic)
    max_calls = kwargs.pop("max_calls", 8)
    return LLMClient(llm, tier=tier, timeout_s=timeout_s, endpoint=Endpoint(**kwargs), clock=clock, max_calls=max_calls)


def three(primary=("p",), cloud=("c",), small=("s",), **kwargs):
    models = [model(t, r) for t, r in zip(NAMES, (primary, cloud, small), strict=True) if r is not None]
    return TieredClient(models, timeout_s=kwargs.pop("timeout_s", 60), **kwargs)


@pytest.mark.parametrize(
    ("needs", "order"),
    [(None, "llama gpt qwen"), (TierNeeds(), "llama gpt qwen"),
     (TierNeeds(complexity=Complexity.COMPLEX), "gpt llama qwen"), (TierNeeds(force_cloud=True), "gpt llama qwen"),
     (TierNeeds(context_chars=8_000), "llama gpt qwen"), (TierNeeds(context_chars=8_001), "gpt llama qwen")],
)  # fmt: skip
def test_first_tier_by_complexity_context_and_wish(needs, order):
    tiers = three()
    assert [client.model for client in tiers.order(*([needs] if needs else []))] == order.split()
    reply = tiers.complete("q", needs=needs)
    assert (reply.model, [a.model for a in reply.attempts]) == (order.split()[0], order.split()[:1])
    assert (tiers.tier, tiers.model) == (Tier.PRIMARY, "llama")


def test_tiers_that_are_not_configured_are_skipped():
    assert repr(three()) == "TieredClient(primary=llama, cloud=gpt, small=qwen, timeout_s=60)"
    assert three(cloud=None).complete("q", needs=TierNeeds(force_cloud=True)).tier is Tier.PRIMARY
    assert three(primary=None, cloud=None).complete("q").tier is Tier.SMALL
    with pytest.raises(ValueError, match="at least one"):
        TieredClient([], timeout_s=1)


def test_failures_fall_through_and_every_attempt_is_listed_with_what_it_cost():
    tiers = three([ConnectionError("x")], [TypeError("x")], ["at last"])
    reply = tiers.complete("four")
    assert (reply.text, reply.tier) == ("at last", Tier.SMALL)
    failures = [FailureKind.UNREACHABLE, FailureKind.OUTPUT, None]
    expected = [(tier, name, failure, 1) for (tier, name), failure in zip(NAMES.items(), failures, strict=True)]
    assert [(a.tier, a.model, a.failure, a.requests) for a in reply.attempts] == expected
    accounts = [(u.model, u.calls, u.prompt_tokens) for u in spent_on(reply.attempts)]
    assert accounts == [("llama", 1, 0), ("gpt", 1, 0), ("qwen", 1, 1)]
    assert json.loads(json.dumps([a.to_dict() for a in reply.attempts]))[1]["failure"] == "output"
    tiers = three([ConnectionError("SECRET")], [TypeError("SECRET")], ["  "])
    with pytest.raises(errors.AllModelsFailedError) as caught:
        tiers.complete("the PROMPT")
    error = caught.value
    assert isinstance(error, errors.LLMError)
    assert error.exit_code == 8
    assert failure_kind(error) is FailureKind.OUTPUT
    assert [a.failure for a in error.attempts] == [FailureKind.UNREACHABLE, FailureKind.OUTPUT, FailureKind.OUTPUT]
    assert "llama: the server cannot be reached" in str(error)
    assert "SECRET" not in str(error)
    assert "PROMPT" not in str(error)


def test_hanging_first_tier_leaves_time_for_the_next_and_all_hanging_end_at_the_deadline(gate):
    tiers = three(lambda _p: str(gate.wait(20)), ["cloud"], ["small"])
    with within(1.0 + 0.5):
        reply = tiers.complete("q", timeout_s=1.0)
    assert reply.text == "cloud"
    assert reply.attempts[0].failure is FailureKind.TIMEOUT
    assert 0.4 < reply.attempts[0].seconds < 0.9
    with pytest.raises(errors.DeadlineExceededError, match="no time"):
        three().complete("q", timeout_s=0)
    tiers = three(*[lambda _p: str(gate.wait(20))] * 3)
    with within(1.0 + 0.5), pytest.raises(errors.AllModelsFailedError) as caught:
        tiers.complete("q", timeout_s=1.0)
    assert [a.failure for a in caught.value.attempts] == [FailureKind.TIMEOUT] * 3


@given(st.floats(0.001, 1_000), st.integers(0, 5))
def test_share_leaves_time_for_the_others(left, followers):
    share = share_s(left, followers)
    assert 0 < share <= left
    if followers:
        assert share >= left / 2
        assert left - share >= min(left / 2, 10.0 * followers) - 1e-9
    else:
        assert share == left
    assert [share_s(60, 2), share_s(60, 1), share_s(60, 0), share_s(2, 2)] == [40, 50, 60, 1]


def test_costs_compare_with_the_cloud_model_and_a_budget_excludes_what_may_cost_more_or_has_no_known_price():
    tiers = three()
    replies = [tiers.complete("x" * 400, needs=TierNeeds(force_cloud=cloud)) for cloud in (False, True)]
    report = tiers.costs(spent_on([attempt for reply in replies for attempt in reply.attempts]))
    one = 100 * 1.0 / 1e6 + 1 * 2.0 / 1e6
    assert (report.usd, report.cloud_only_usd) == (pytest.approx(one), pytest.approx(2 * one))
    assert (report.local_share, report.unpriced_calls) == (0.5, 0)
    reply = tiers.complete("q", needs=TierNeeds(force_cloud=True, budget=Budget(max_usd=0.0)))
    assert (reply.tier, reply.usd) == (Tier.PRIMARY, 0.0)
    tried = [(a.model, a.failure, a.requests) for a in reply.attempts]
    assert tried == [("gpt", FailureKind.BUDGET, 0), ("llama", None, 1)]
    rich = TierNeeds(force_cloud=True, budget=Budget(max_usd=0.01))
    assert tiers.complete("q", needs=rich).tier is Tier.CLOUD
    unknown = model(Tier.PRIMARY, ["x"], price=None)
    with pytest.raises(errors.AllModelsFailedError, match="not within the budget"):
        TieredClient([unknown], timeout_s=5).complete("q", needs=rich)


def test_prompt_far_beyond_a_window_goes_to_the_next_tier():
    small, large = model(Tier.PRIMARY, ["p"], context_tokens=4_096), model(Tier.CLOUD, ["c"], context_tokens=128_000)
    tiers = TieredClient([small, large], timeout_s=5)
    assert tiers.context_tokens == 4_096
    assert tiers.order(TierNeeds(force_cloud=True))[0].context_tokens == 128_000
    assert tiers.complete("word " * 5_000).tier is Tier.PRIMARY
    reply = tiers.complete("word " * 10_000)
    assert reply.tier is Tier.CLOUD
    assert reply.attempts[0].failure is FailureKind.TOO_LONG


def test_dead_primary_costs_three_requests_in_a_hundred_calls_and_comes_back(fake_clock):
    down = True

    def answer(_prompt):
        return ConnectionError("refused") if down else "back"

    breaker = Breaker(failures=3, cooldown_s=30, clock=fake_clock)
    endpoint = {"breaker": breaker, "retry": RetryPolicy(draw=lambda: 0.5), "sleep": fake_clock.sleep}
    primary = model(Tier.PRIMARY, answer, clock=fake_clock, timeout_s=10, **endpoint)
    asked = primary._llm().prompts
    tiers = TieredClient([primary, model(Tier.CLOUD, ["cloud"])], timeout_s=10, clock=fake_clock)
    replies = [tiers.complete("q") for _ in range(100)]
    assert {r.text for r in replies} == {"cloud"}
    assert (len(asked), replies[0].attempts[0].requests) == (3, 3)
    assert {(r.attempts[0].failure, r.attempts[0].requests) for r in replies[1:]} == {(FailureKind.PAUSED, 0)}
    with pytest.raises(errors.AllModelsFailedError) as caught:
        TieredClient([primary], timeout_s=10).complete("q")
    with pytest.raises(errors.ModelPausedError, match="3 times in a row; tried again in"):
        raise caught.value.__cause__
    fake_clock.tick(30)
    assert tiers.complete("q").text == "cloud"  # the probe fails
    assert (len(asked), tiers.complete("q").text) == (4, "cloud")
    assert len(asked) == 4
    down = False
    fake_clock.tick(30)
    assert [tiers.complete("q").text for _ in range(3)] == ["back"] * 3
    assert (breaker.state.value, breaker.failed) == ("closed", 0)


def test_paused_tier_takes_next_to_no_time():
    dead = model(Tier.PRIMARY, [ConnectionError("x")], breaker=Breaker(failures=1, cooldown_s=600))
    tiers = TieredClient([dead, model(Tier.CLOUD, ["c"])], timeout_s=10)
    tiers.complete("q")
    with within(40 * 0.05):
        replies = [tiers.complete("q") for _ in range(40)]
    assert max(reply.attempts[0].seconds for reply in replies) < 0.05


def test_twenty_hung_calls_do_not_stop_other_work(gate):
    tiers = TieredClient([model(Tier.PRIMARY, lambda _p: str(gate.wait(20)), max_calls=4, max_waiting=4)], timeout_s=5)
    kinds = []

    def ask():
        try:
            tiers.complete("q", timeout_s=1.0)
        except errors.AllModelsFailedError as err:
            kinds.append(err.attempts[0].failure)

    threads = [threading.Thread(target=ask) for _ in range(20)]
    for thread in threads:
        thread.start()
    started = time.monotonic()
    with pool(2) as workers:
        assert [workers.submit(lambda i=i: i * i).result(1) for i in range(10)] == [i * i for i in range(10)]
    assert time.monotonic() - started < 0.9
    for thread in threads:
        thread.join()
    assert time.monotonic() - started < 1.5 + 0.5
    assert (kinds.count(FailureKind.OVERLOADED), kinds.count(FailureKind.TIMEOUT)) == (16, 4)


def test_defects_are_not_swallowed():
    class Stop(BaseException):
        pass

    breaker = Breaker(failures=1)
    tiers = TieredClient([model(Tier.PRIMARY, Mock(side_effect=Stop), breaker=breaker)], timeout_s=5)
    with pytest.raises(Stop):
        tiers.complete("q")
    assert breaker.state.value == "closed"


def test_unknown_model_setting_lists_what_is_allowed_and_none_gives_no_model():
    assert build_client(RouterConfig()) is None
    for value in ("", "gpt-4", "ollama:", "ollama:  ", "openrouter:", "none:x", "openai", "openai: ", ":"):
        with pytest.raises(errors.ConfigError, match=r"none, ollama:MODEL .* openrouter:MODEL"):
            build_client(RouterConfig(llm=value, openrouter_api_key=CANARY))
    for setting, value, told in (
        ("llm", "openrouter", "OPENROUTER_API_KEY"),
        ("llm_cloud", "gpt-4", "llm_cloud"),
        ("llm_small", "gpt-4", "llm_small"),
    ):
        with pytest.raises(errors.ConfigError, match=told):
            build_client(RouterConfig(**{setting: value}))


@pytest.fixture
def no_network(monkeypatch):
    refuse = Mock(side_effect=AssertionError("network touched"))
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def test_one_and_three_tiers_are_built_and_described_without_network_and_without_retries(no_network):
    config = RouterConfig(llm="ollama:llama3:8b", ollama_base_url="http://127.0.0.1:1", llm_timeout_s=7)
    llm = build_client(config).order()[0]._llm()
    assert (llm.model, llm.request_timeout, llm.base_url) == ("llama3:8b", 7, "http://127.0.0.1:1")
    assert llm.metadata.context_window == context_window(16_000) == 8_192
    sizes = [context_window(chars) for chars in (500, 8_000, 20_000, 10**9)]
    assert sizes == sorted(sizes)
    assert (sizes[0], sizes[-1]) == (4_096, 32_768)
    assert all(size % 1_024 == 0 for size in sizes)
    client = build_client(RouterConfig(llm="openrouter:openai/gpt-4o-mini", openrouter_api_key=CANARY, llm_timeout_s=9))
    llm = client.order()[0]._llm()
    assert (llm.model, llm.max_retries, llm.timeout) == ("openai/gpt-4o-mini", 0, 9)
    assert (client.tier, client.model, client.timeout_s) == (Tier.CLOUD, "openai/gpt-4o-mini", 9)
    assert CANARY not in repr(client)
    assert build_client(RouterConfig(llm="ollama:x")).tier is Tier.PRIMARY
    config = RouterConfig(llm="ollama", llm_cloud="openrouter", llm_small="ollama", openrouter_api_key=CANARY)
    client = build_client(config)
    assert tiers(client) == {"primary": "llama3:8b", "cloud": "openai/gpt-4o-mini", "small": "qwen2.5:3b"}
    assert client.context_tokens == 8_192
    assert client.order(TierNeeds(force_cloud=True))[0].context_tokens == 128_000
    assert [c.endpoint.price.free for c in client.order()] == [True, False, True]
    assert CANARY not in f"{client!r} {[vars(c) for c in client.order()]}"
    both = RouterConfig(llm="openrouter:a/b", llm_cloud="openrouter:c/d", openrouter_api_key=CANARY)
    assert tiers(build_client(both)) == {"primary": "a/b", "cloud": "c/d"}


def tiers(client):
    return {one.tier.value: one.model for one in client.order()}


def test_any_llamaindex_model_stands_in_for_a_tier_and_a_cloud_tier_without_a_key_is_left_out_with_one_warning(caplog):
    client = build_client(RouterConfig(llm="ollama", llm_cloud="openrouter"))
    assert tiers(client) == {"primary": "llama3:8b"}
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "OPENROUTER_API_KEY" in caplog.text
    assert build_client(RouterConfig(llm_cloud="openrouter")) is None
    given = {Tier.PRIMARY: FakeLLM(["hi"]), Tier.SMALL: FakeLLM(["x"])}
    client = build_client(RouterConfig(llm="ollama"), models=given)
    assert tiers(client) == {"primary": "fake-llm", "small": "fake-llm"}
    reply = client.complete("q")
    assert (reply.text, reply.attempts[0].usd) == ("hi", None)


def test_own_prices_are_used(tmp_path):
    path = tmp_path / "p.json"
    path.write_text('{"models": {"a/b": {"in": 1, "out": 2, "context": 50000}}}')
    config = RouterConfig(llm="openrouter:a/b", prices_file=str(path), openrouter_api_key=CANARY)
    (only,) = build_client(config).order()
    assert (only.endpoint.price.in_usd, only.context_tokens) == (1.0, 50_000)
    assert only.refusal(10**5, TierNeeds(budget=Budget(max_usd=0.1 + 2 * 1024 / 1e6))) is None
    assert only.refusal(10**5, TierNeeds(budget=Budget(max_usd=0.1 + 2 * 1023 / 1e6))) is FailureKind.BUDGET


def printed(code):
    """What a fresh interpreter prints."""
    return run_fresh(code, check=True).stdout.strip()


def test_importing_the_package_loads_no_provider():
    roots = ("openai", "ollama", "httpx")
    assert printed(f"import sys, agentic_retriever.llm; print([r for r in {roots} if r in sys.modules])") == "[]"


FIRST_CALL = """
import sys
from agentic_retriever.config import RouterConfig
from agentic_retriever.errors import AgenticRetrieverError
from agentic_retriever.llm import build_client

config = RouterConfig(llm="{llm}", llm_small="none", llm_cloud="none", openrouter_api_key="k",
                      ollama_base_url="http://127.0.0.1:9", openrouter_base_url="http://127.0.0.1:9/api/v1")
client = build_client(config)
before = set(sys.modules)
try:
    client.complete("How are you?")
except AgenticRetrieverError:
    print(sorted(name for name in set(sys.modules) - before if name.partition(".")[0] in {roots}))
"""


@pytest.mark.parametrize(
    ("llm", "roots"),
    [("openrouter:openai/gpt-4o-mini", ("openai", "llama_index")), ("ollama:llama3:8b", ("ollama", "llama_index"))],
)
def test_the_first_call_loads_nothing_within_its_own_deadline(llm, roots):
    pytest.importorskip(f"llama_index.llms.{llm.partition(':')[0]}")
    assert printed(FIRST_CALL.format(llm=llm, roots=roots)) == "[]"


CLOUD = "openai/gpt-4o-mini"


def test_packaged_table_is_dated_and_knows_what_is_free_and_an_own_file_goes_before_it(tmp_path):
    table = PriceTable.load()
    assert dt.date.fromisoformat(table.as_of).year >= 2026
    assert "openrouter" in table.source
    assert table.price(CLOUD) == Price(in_usd=0.15, out_usd=0.60, context_tokens=128_000)
    assert table.price(CLOUD).cost_usd(1_000_000, 0) == pytest.approx(0.15)
    assert table.price(CLOUD).cost_usd(2_000, 500) == pytest.approx(0.0006)
    assert table.price("nobody/nothing") is None
    assert table.price("nobody/nothing:free") is FREE
    assert table.price("gpt-4o-mini") == table.price(CLOUD)
    assert table.price("gpt-4") is None
    with pytest.raises(TypeError):
        table.prices["x"] = FREE
    path = tmp_path / "prices.json"
    models = {CLOUD: {"in": 1, "out": 2}, "a/b": {"in": 0, "out": 0}}
    path.write_text(json.dumps({"as_of": "2030-01-01", "models": models}))
    with pytest.raises(errors.ConfigError, match="nowhere"):
        PriceTable.load(tmp_path / "nowhere.json")
    table = PriceTable.load(path)
    assert (table.as_of, table.price(CLOUD).cost_usd(1_000_000, 1_000_000)) == ("2030-01-01", 3.0)
    assert table.price("a/b").free
    assert table.price("openai/gpt-4o") == PriceTable.load().price("openai/gpt-4o")


def test_the_packaged_prices_are_of_current_models_and_no_older_than_they_were_checked():
    table = PriceTable.load()
    assert dt.date.fromisoformat(table.as_of) >= dt.date(2026, 11, 23)
    for name, paid in {"gpt-6.1-terra": 6, "gpt-6-luna": 0.6, "claude-opus-5.5": 24, "claude-sonnet-5.5": 12}.items():
        assert table.price(name).cost_usd(1_000_000, 1_000_000) == pytest.approx(paid)
        assert table.price(name).context_tokens >= 200_000
    assert {name.partition("/")[0] for name in table.prices} == {"openai", "anthropic"}
    assert all(0 < price.in_usd < price.out_usd for price in table.prices.values())


WRONG = '{"models": {"a/b": {"in": 1, "out": 1, '


@pytest.mark.parametrize(("text", "told"), [
    ("", ""), ("[]", ""), ("{}", ""), ('{"models": []}', ""), ("[" * 100_000, ""), ('{"models": {"a/b": 3}}', ""),
    ('{"models": {"a/b": {"in": -1, "out": 0}}}', ""), ('{"models": {"a/b": {"in": true, "out": 0}}}', ""),
    ('{"models": {"a/b": {"in": NaN, "out": 0}}}', ""), ('{"models": {"a/b": {"in": 1}}}', ""),
    (WRONG + '"context": "big"}}}', ""), (WRONG + '"context": true}}}', ""), ('{"models": {}, "as_of": 2030}', ""),
    (WRONG + '"contxt": 8000}}}', ": unknown key 'contxt'; did you mean 'context'?"),
    ('{"models": {}, "as-of": "2030-01-01"}', ": unknown key 'as-of'; did you mean 'as_of'?"),
])  # fmt: skip
def test_a_broken_file_is_named_and_a_misspelt_key_told_with_what_was_meant(tmp_path, text, told):
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(errors.ConfigError, match=r"prices_file: .*mine\.json") as caught:
        PriceTable.load(path)
    assert not told or str(caught.value).startswith(f"setting prices_file: {path}")
    assert told in str(caught.value)


def used(tier, model, calls, prompt, completion, usd=0.0):
    return TierUsage(tier=tier, model=model, calls=calls, prompt_tokens=prompt, completion_tokens=completion, usd=usd)


def test_report_counts_savings_local_share_and_unknown_prices():
    cloud = Price(in_usd=1.0, out_usd=2.0)
    local, odd = used(Tier.PRIMARY, "llama", 3, 3_000_000, 1_000_000), used(Tier.SMALL, "odd", 1, 0, 0)
    spent = [local, used(Tier.CLOUD, "cloud", 1, 1_000_000, 500_000, usd=2.0), odd]
    report = cost_report(spent, {"llama": FREE, "cloud": cloud, "odd": None}, cloud)
    assert report == CostReport(usd=2.0, cloud_only_usd=7.0, saved_usd=5.0, local_share=0.6, calls=5, unpriced_calls=1)
    assert json.loads(json.dumps(report.to_dict()))["saved_usd"] == 5.0
    assert cost_report(spent, {}, None).saved_usd is None
    assert cost_report([], {}, cloud).local_share == 0.0


CALLS = st.lists(st.tuples(st.booleans(), st.integers(0, 10**6), st.integers(0, 10**4)), max_size=20)


@given(CALLS, st.floats(0, 100), st.floats(0, 100))
def test_savings_are_what_the_local_tokens_would_have_cost(calls, in_usd, out_usd):
    cloud = Price(in_usd=in_usd, out_usd=out_usd)
    spent = [
        used(Tier.PRIMARY, "local", 1, p, c) if local else used(Tier.CLOUD, "cloud", 1, p, c, cloud.cost_usd(p, c))
        for local, p, c in calls
    ]
    report = cost_report(spent, {"local": FREE, "cloud": cloud}, cloud)
    assert report.saved_usd == pytest.approx(sum(cloud.cost_usd(p, c) for local, p, c in calls if local), abs=1e-9)
    assert 0 <= report.local_share <= 1
