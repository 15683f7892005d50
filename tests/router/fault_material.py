"""What the tests of faults and load share: a complex question, limits, and the faults of model servers."""

from model_servers import chat
from small_indexes import GOOD

COMPLEX = (
    "Compare in detail how the cat, the dog and the owl differ in when they sleep, hunt and walk, and explain why the "
    "one that hunts at night turns its head, while the others do not?"
)


PLAIN = {"classifier": "profile", "selector": "heuristic"}  # routers that decide without a model

LATE_S = 1.0  # how much later than its deadline a query may come back


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


STATUSES = {401: "authentication", 402: "payment", 429: "rate_limited", 500: "server"}
HTML = b"<html>Bad gateway</html>"


def faults(provider, cut, statuses, bodies):
    """Faults of a provider's tier, each with the name of the failure that the answer lists."""
    kinds = {"hang": mode("hang"), "drip": mode("drip", chat(provider, GOOD * 50))}
    told = {"html": HTML, "cut json": cut, "null content": chat(provider, None), **bodies}
    return {
        **{name: (fault, "timeout") for name, fault in kinds.items()},
        **{str(code): (status(code), kind) for code, kind in (STATUSES | statuses).items()},
        **{name: (body(value), "output") for name, value in told.items()},
    }


OLLAMA_FAULTS = {
    "stall": (mode("stall", b'{"message": {"ro'), "timeout"),
    "closed": (mode("close"), "unreachable"),
    "cut connection": (mode("cut", b'{"message": {"ro'), "unreachable"),
    **faults("ollama", b'{"message": {"role": "assi', {400: "bad_request", 404: "not_found", 503: "server"}, {
        "empty body": b"", "not utf-8": b"\xff\xfe{}", "200 with error": {"error": "overloaded"},
        "blank content": chat("ollama", " \n"),
    }),
}  # fmt: skip
OPENROUTER_FAULTS = faults("openrouter", b'{"choices": [{"ind', {}, {
    "200 with error": {"error": {"message": "overloaded", "code": 502}}, "blank content": chat("openrouter", ""),
    "no choices": chat("openrouter", "") | {"choices": []}, "null choices": chat("openrouter", "") | {"choices": None},
})  # fmt: skip
