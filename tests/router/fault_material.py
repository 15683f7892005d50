"""What the tests of faults and load share: a complex question, limits, and the faults of model servers."""

from __future__ import annotations

from model_servers import chat
from small_indexes import GOOD

COMPLEX = (
    "Compare in detail how the cat, the dog and the owl differ in when they sleep, hunt and walk, and explain why the "
    "one that hunts at night turns its head, while the others do not?"
)


PLAIN = {"classifier": "profile", "selector": "heuristic"}  # routers that decide without a model

LATE_S = 3.0
"""How much later than its deadline a query may come back on a busy machine, in seconds; what hangs takes far longer."""


def all_down(ollama, cloud, fault):
    for server in (ollama, cloud):
        server.healthy.clear()
        fault(server)


def status(code):
    return lambda server: server.reply({"error": "x"}, code)


def body(value):
    return lambda server: server.reply(value)


def mode(name, value=b"", of="ollama"):
    def set_up(server):
        server.reply(value or chat(of, GOOD))
        server.mode = name

    return set_up


#: Faults of the first tier, each with the name of the failure that the answer lists.
OLLAMA_FAULTS = {
    "hang": (mode("hang"), "timeout"),
    "drip": (mode("drip", chat("ollama", GOOD * 50)), "timeout"),
    "stall": (mode("stall", b'{"message": {"ro'), "timeout"),
    "closed": (mode("close"), "unreachable"),
    "cut connection": (mode("cut", b'{"message": {"ro'), "unreachable"),
    "400": (status(400), "bad_request"),
    "401": (status(401), "authentication"),
    "402": (status(402), "payment"),
    "404": (status(404), "not_found"),
    "429": (status(429), "rate_limited"),
    "500": (status(500), "server"),
    "503": (status(503), "server"),
    "html": (body(b"<html>Bad gateway</html>"), "output"),
    "empty body": (body(b""), "output"),
    "cut json": (body(b'{"message": {"role": "assi'), "output"),
    "not utf-8": (body(b"\xff\xfe{}"), "output"),
    "200 with error": (body({"error": "overloaded"}), "output"),
    "null content": (body(chat("ollama", None)), "output"),
    "blank content": (body(chat("ollama", " \n")), "output"),
}
OPENROUTER_FAULTS = {
    "hang": (mode("hang"), "timeout"),
    "drip": (mode("drip", chat("openrouter", GOOD * 50)), "timeout"),
    "401": (status(401), "authentication"),
    "402": (status(402), "payment"),
    "429": (status(429), "rate_limited"),
    "500": (status(500), "server"),
    "html": (body(b"<html>Bad gateway</html>"), "output"),
    "cut json": (body(b'{"choices": [{"ind'), "output"),
    "200 with error": (body({"error": {"message": "overloaded", "code": 502}}), "output"),
    "no choices": (body(chat("openrouter", "x") | {"choices": []}), "output"),
    "null choices": (body(chat("openrouter", "x") | {"choices": None}), "output"),
    "null content": (body(chat("openrouter", None)), "output"),
    "blank content": (body(chat("openrouter", "")), "output"),
}
