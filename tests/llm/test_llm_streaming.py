import asyncio
import gc
import threading
import time

import pytest
from llama_index.core.base.llms.types import CompletionResponse
from model_servers import stream_body
from waiting import wait_until, within

from agentic_retriever.errors import AllModelsFailedError, LLMOutputError, StreamBrokenError
from agentic_retriever.llm import LLMClient, TieredClient
from agentic_retriever.llm.calls import failure_kind
from agentic_retriever.llm.client import Endpoint, Price, RetryPolicy
from agentic_retriever.schema import FailureKind, Tier
from agentic_retriever.testing.fakes import FakeLLM
from agentic_retriever.threads import Breaker


class PieceLLM(FakeLLM):
    """Streams the pieces that a function yields; an exception among them is raised."""

    def stream_complete(self, prompt, formatted=False, **kwargs):
        self.prompts.append(prompt)
        so_far = ""
        for piece in self._reply(prompt):
            if isinstance(piece, Exception):
                raise piece
            so_far += piece
            yield CompletionResponse(text=so_far, delta=piece)


def client_of(pieces, tier=Tier.PRIMARY, timeout_s=5, **endpoint):
    llm = PieceLLM(pieces if callable(pieces) else lambda _p: iter(pieces))
    return LLMClient(llm, tier=tier, timeout_s=timeout_s, endpoint=Endpoint(**endpoint))


def stream_of(one):
    return TieredClient([one], timeout_s=5).stream("q")


def wait_until_free(server, threads):
    """Wait until neither a connection nor a thread more than before is left, but for the server's own."""
    server.released.set()
    wait_until(lambda: server.open_connections == 0)
    wait_until(lambda: threading.active_count() <= threads)


def hang(gate, first=()):
    def pieces(_prompt):
        yield from first
        gate.wait(20)
        yield "late"

    return pieces


def test_pieces_come_one_by_one_then_the_reply_even_from_models_that_give_the_whole_text_each_time(gate):
    def pieces(_prompt):
        yield "Par"
        gate.wait(20)
        yield "is [1]."

    stream = stream_of(client_of(pieces, price=Price(in_usd=1, out_usd=1)))
    assert next(stream) == "Par"
    assert (stream.text, stream.reply) == ("Par", None)
    gate.set()
    assert list(stream) == ["is [1]."]
    assert (stream.reply.text, stream.text) == ("Paris [1].", "Paris [1].")
    assert stream.reply.usd > 0
    assert ([a.failure for a in stream.reply.attempts], list(stream)) == ([None], [])

    class Cumulative(FakeLLM):
        def stream_complete(self, prompt, formatted=False, **kwargs):
            for text in ("a", "ab", "ab c"):
                yield CompletionResponse(text=text)

    assert list(stream_of(LLMClient(Cumulative(["x"]), tier=Tier.PRIMARY, timeout_s=5))) == ["a", "b", " c"]


@pytest.mark.parametrize("pieces", [[], ["", " ", "\n"]])
def test_nothing_is_asked_before_the_first_piece_is_wanted_and_a_blank_stream_is_a_failure(pieces):
    one = client_of(pieces)
    with stream_of(one) as stream:
        pass
    stream = stream_of(one)
    assert one._llm().prompts == []
    with pytest.raises(AllModelsFailedError) as caught:
        next(stream)
    with pytest.raises(LLMOutputError, match="blank"):
        raise caught.value.__cause__
    assert stream.text == ""


def test_tier_changes_before_the_first_piece_while_there_is_one_after_a_stall_too(gate):
    tiers = TieredClient([client_of([ConnectionError("x")]), client_of(["  ", "ok ", "now"], Tier.CLOUD)], timeout_s=5)
    stream = tiers.stream("q")
    assert list(stream) == ["  ok ", "now"]
    assert stream.reply.tier is Tier.CLOUD
    assert [a.failure for a in stream.reply.attempts] == [FailureKind.UNREACHABLE, None]
    tiers = TieredClient([client_of([ConnectionError("x")]), client_of([], Tier.SMALL)], timeout_s=5)
    with pytest.raises(AllModelsFailedError) as caught:
        next(tiers.stream("q"))
    assert [a.failure for a in caught.value.attempts] == [FailureKind.UNREACHABLE, FailureKind.OUTPUT]
    tiers = TieredClient([client_of(hang(gate)), client_of(["ok"], Tier.CLOUD)], timeout_s=1.0)
    with within(1.0 + 0.5):
        assert list(tiers.stream("q")) == ["ok"]


@pytest.mark.parametrize("thoughts", [["<think>", "hm"], ["<th", "ink>a</think>", "\u200b"], ["\u200b", " \ufeff"]])
@pytest.mark.parametrize("end", [(), (ConnectionError("gone"),)])
def test_tier_changes_after_thoughts_alone_which_come_along_with_the_first_word(thoughts, end):
    second = client_of(["<th", "ink>so", "</think>", "\n5", " <", " 6"], tier=Tier.SMALL)
    stream = TieredClient([client_of([*thoughts, *end]), second], timeout_s=5).stream("q")
    assert list(stream) == ["<think>so</think>\n5", " <", " 6"]
    kinds = [FailureKind.UNREACHABLE if end else FailureKind.OUTPUT, None]
    assert [attempt.failure for attempt in stream.reply.attempts] == kinds
    assert list(stream_of(client_of(["<b"]))) == ["<b"]  # what might have become a thought


def test_failure_after_the_first_piece_is_told_with_what_came_and_never_spliced():
    other = client_of(["other answer"], Tier.CLOUD)
    stream = TieredClient([client_of(["half ", "an ", ConnectionError("SECRET")]), other], timeout_s=5).stream("q")
    shown = []
    with pytest.raises(StreamBrokenError) as caught:
        shown.extend(stream)
    assert stream.text == caught.value.text == "half an "
    assert other._llm().prompts == []
    (attempt,) = caught.value.attempts
    assert (attempt.failure, attempt.completion_tokens) == (FailureKind.UNREACHABLE, 2)
    assert failure_kind(caught.value) is FailureKind.UNREACHABLE
    assert "half" not in str(caught.value)
    assert "SECRET" not in str(caught.value)
    assert stream.reply is None


def test_a_stall_and_slow_pieces_end_at_the_total_deadline(gate):
    def dripping(_prompt):
        while not gate.wait(0.05):
            yield "x"

    for pieces in (hang(gate, ["half "]), dripping):
        tiers = TieredClient([client_of(pieces), client_of(["ok"], Tier.CLOUD)], timeout_s=0.5)
        with within(0.5 + 0.5), pytest.raises(StreamBrokenError) as caught:
            list(tiers.stream("q"))
        assert failure_kind(caught.value) is FailureKind.TIMEOUT


def test_an_endless_stream_is_read_only_as_fast_as_it_is_shown_and_ends_at_its_limits():
    written = []

    def endless(_prompt):
        while True:
            written.append(1)
            yield f"word {len(written)} "

    stream = stream_of(client_of(endless, timeout_s=0.5))
    assert next(stream) == "word 1 "
    time.sleep(0.2)
    assert len(written) < 100  # what nobody reads is not fetched
    time.sleep(0.4)
    with pytest.raises(StreamBrokenError, match=r"within 0\.5 s"):  # though pieces wait
        next(stream)
    assert len(written) < 200
    cut = stream_of(client_of(endless))
    next(cut)
    cut.cut()
    assert not list(cut)
    assert (cut.reply.text, cut.reply.truncated) == (cut.text, True)
    big = stream_of(client_of(lambda _p: iter(lambda: "x" * 10_000, None)))
    assert len("".join(big)) == 400_000
    assert big.reply.truncated


def test_failure_before_the_first_piece_is_retried_and_the_breaker_forgives_readers_who_leave():
    script = [[ConnectionError("x")], [ConnectionError("x")], ["ok"]]
    one = client_of(lambda _p: iter(script.pop(0)), retry=RetryPolicy(base_s=0.01, draw=lambda: 0.5))
    stream = stream_of(one)
    assert (list(stream), stream.reply.attempts[0].requests) == (["ok"], 3)
    breaker = Breaker(failures=1, cooldown_s=600)
    one = client_of(["a", "b", "c"], breaker=breaker)
    stream = stream_of(one)
    next(stream)
    stream.close()
    assert list(stream) == []
    assert (breaker.state.value, breaker.failed, breaker.retry_in_s) == ("closed", 0, 0.0)
    assert list(stream_of(one)) == ["a", "b", "c"]
    broken = client_of(["a", ConnectionError("x")], breaker=breaker)
    with pytest.raises(StreamBrokenError):
        list(stream_of(broken))
    assert breaker.state.value == "open"


def test_a_waiting_reader_is_woken_by_close_from_another_thread(gate):
    stream = stream_of(client_of(hang(gate, ["a"])))
    got = []
    reader = threading.Thread(target=lambda: got.extend(stream))
    reader.start()
    wait_until(lambda: stream.text == "a")
    stream.close()
    reader.join(2)
    assert not reader.is_alive()
    assert got == ["a"]


def test_streamed_reply_of_each_provider(server, provider, tiers_on):
    server.reply(stream_body(provider, ["ไร่", " [1]"]))
    stream = tiers_on().stream("¿Cuántos?")
    assert list(stream) == ["ไร่", " [1]"]
    reply = stream.reply
    assert (reply.text, reply.prompt_tokens, reply.completion_tokens, reply.truncated) == ("ไร่ [1]", 11, 3, False)
    assert server.requests[0][1]["stream"] is True
    for finish in (None, "length"):  # it ends without saying that it is done
        server.reply(stream_body(provider, ["half an ", "ans"], finish=finish))
        stream = tiers_on().stream("q")
        assert "".join(stream) == "half an ans"
        assert stream.reply.truncated


@pytest.mark.parametrize("fault", ["cut", "error"])
def test_stream_that_breaks_off_is_a_typed_error(server, provider, tiers_on, fault):
    server.reply(stream_body(provider, ["half ", "an"], finish=None, error="overloaded" if fault == "error" else None))
    if fault == "cut":
        server.mode = "cut"
    with pytest.raises(StreamBrokenError) as caught:
        list(tiers_on().stream("q"))
    assert caught.value.text == "half an"
    assert caught.value.attempts[0].failure in {FailureKind.UNREACHABLE, FailureKind.SERVER}


@pytest.mark.parametrize("pieces", [[], ["half "]])
def test_stalled_stream_ends_at_the_deadline_and_frees_its_connection(server, provider, tiers_on, pieces):
    server.reply(stream_body(provider, pieces, finish=None))
    server.mode = "stall"
    client = tiers_on()
    before = threading.active_count()
    with within(0.4 + 0.5), pytest.raises((StreamBrokenError, AllModelsFailedError)):
        list(client.stream("q", timeout_s=0.4))
    wait_until_free(server, before)


@pytest.mark.parametrize("status", [401, 500, 200])
def test_stream_that_does_not_begin_goes_to_the_next_tier(make_server, provider, other, two, status):
    bad, good = make_server(), make_server()
    bad.reply({"error": "x"} if status != 200 else stream_body(provider, [], finish="stop"), status)
    good.reply(stream_body(other, ["ok"]))
    client, needs = two(bad.url, good.url)
    stream = client.stream("q", needs=needs)
    assert (list(stream), len(stream.reply.attempts)) == (["ok"], 2)


def test_abandoned_streams_leave_no_thread_and_no_connection(server, provider, tiers_on):
    server.reply(stream_body(provider, ["a ", "b "], finish=None))
    server.mode = "stall"
    client = tiers_on(workers=4)
    before = threading.active_count()
    for i in range(20):
        stream = client.stream("q", timeout_s=10)
        next(stream)
        if i % 2:
            stream.close()
        del stream
    gc.collect()
    assert client.order()[0].endpoint.breaker.failed == 0
    wait_until_free(server, before)


def test_async_twin_does_not_block_the_loop_and_errors_arrive():
    def pieces(_prompt):
        for i in range(10):
            time.sleep(0.03)
            yield str(i)

    tiers = TieredClient([client_of(pieces)], timeout_s=5)

    async def run():
        gaps, last, done = [], time.monotonic(), False

        async def beat():
            nonlocal last
            while not done:
                await asyncio.sleep(0.005)
                now = time.monotonic()
                gaps.append(now - last)
                last = now

        beating = asyncio.create_task(beat())
        stream = tiers.astream("q")
        got = [piece async for piece in stream]
        done = True
        await beating
        return got, stream.reply, stream.text, max(gaps)

    for _ in range(2):  # in two loops in turn
        got, reply, text, gap = asyncio.run(run())
        assert "".join(got) == reply.text == text == "0123456789"
        assert gap < 0.1
    tiers = TieredClient([client_of(["a", ConnectionError("x")])], timeout_s=5)
    with pytest.raises(StreamBrokenError) as caught:
        asyncio.run(run())
    assert caught.value.text == "a"


def test_hundred_abandoned_async_streams_leave_nothing(server, provider, tiers_on):
    server.reply(stream_body(provider, ["a ", "b "], finish=None))
    server.mode = "stall"
    client = tiers_on(workers=32)
    before = threading.active_count() + 1  # which starts the others, until the client is closed

    async def one(i):
        stream = client.astream("q", timeout_s=10)
        await stream.__anext__()
        if i % 3 == 0:
            await stream.aclose()
        elif i % 3 == 1:
            await stream.__anext__()
            with pytest.raises(asyncio.TimeoutError):  # it waits for a piece that never comes
                await asyncio.wait_for(stream.__anext__(), 0.02)

    async def run():
        for start in range(0, 100, 20):
            await asyncio.gather(*(one(i) for i in range(start, start + 20)))
            gc.collect()
        return len(asyncio.all_tasks())

    assert (asyncio.run(run()), client.order()[0].endpoint.breaker.failed) == (1, 0)
    wait_until_free(server, before)
