"""``/v1/chat/completions`` and ``/v1/models`` as OpenAI has them; a model is an index, or ``auto`` for all of them."""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from agentic_retriever.errors import AgenticRetrieverError
from agentic_retriever.pipeline.conversations import MAX_ID_CHARS, turns_of
from agentic_retriever.schema import Answer, Citation
from agentic_retriever.service.guard import allow
from agentic_retriever.service.queries import Shared
from agentic_retriever.service.responses import Refused, as_json, events, json_bytes, problem_of, unless_gone
from agentic_retriever.service.settings import Caller, Role
from agentic_retriever.service.state import Service

AUTO: Final = "auto"
EXTRA: Final = "agentic_retriever"  # the field of ours in what is sent
_CHAT_HEADERS: Final = ("x-conversation-id", "x-openwebui-chat-id")  # where clients name the conversation
_USER_HEADER: Final = "x-openwebui-user-id"
_QUOTE_CHARS: Final = 160

_ERROR: Final[dict[str, Any]] = {"application/json": {"schema": {"type": "object", "required": ["error"]}}}
chats = APIRouter(
    prefix="/v1", tags=["chat"], dependencies=[allow(Role.ASK)],
    responses={"default": {"description": "An error in OpenAI's form", "content": _ERROR}},
)  # fmt: skip


class Part(BaseModel):
    """A part of a message; one that is no text is passed over."""

    text: str = ""


class ChatMessage(BaseModel):
    """One message."""

    role: Annotated[str, Field(max_length=20)]
    content: str | list[Part] | None = None

    @property
    def said(self) -> str:
        parts = self.content if isinstance(self.content, list) else []
        return self.content if isinstance(self.content, str) else "\n".join(one.text for one in parts if one.text)


class ChatIn(BaseModel):
    """A chat, as OpenAI's clients send it; what is not named here is passed over."""

    model: Annotated[str, Field(min_length=1, max_length=128)]
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=2_000)]
    stream: bool | None = False
    stream_options: dict[str, Any] | None = None
    n: Literal[1] | None = None
    user: Annotated[str, Field(max_length=MAX_ID_CHARS)] | None = None


@chats.get("/models")
async def models(service: Shared) -> dict[str, Any]:
    """List the models: one for each index, and ``auto``."""
    known = await service.run(service.router.descriptions)
    return {"object": "list", "data": [_model(AUTO, "All indexes"), *(_model(*one) for one in known.items())]}


@chats.get("/models/{name}")
async def one_model(name: str, service: Shared) -> dict[str, Any]:
    """Describe one model."""
    await _check(name, service)
    return _model(name, (await service.run(service.router.descriptions)).get(name, "All indexes"))


async def _check(name: str, service: Service) -> None:
    known = [AUTO, *(await service.run(service.router.index_names))]
    if name not in known:
        raise Refused(404, "Model not found", f"there is no model {name[:60]!r}; there are {', '.join(known)}")


def _model(name: str, description: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "agentic-retriever", "description": description}


@chats.post("/chat/completions", response_model=None)
async def complete(chat: ChatIn, request: Request, service: Shared) -> Response:
    """Answer the last message of the user."""
    await _check(chat.model, service)
    last = next((at for at in reversed(range(len(chat.messages))) if chat.messages[at].role == "user"), None)
    if last is None:
        raise Refused(400, "No question", "messages must hold one of the role user, which is the question")
    asked, frame = chat.messages[last].said, _Frame(chat, request.state.request_id)
    first = next(one.said for one in chat.messages if one.role == "user")
    by_hand = side_reply(asked, first)
    wanted = {} if by_hand is not None else _wanted(chat, last, request)
    if chat.stream:
        written = _streamed(service, frame, question_in(asked), wanted) if by_hand is None else _written(frame, by_hand)
        return await events(request, written, write_error=_error_event)
    if by_hand is not None:
        return frame.whole(by_hand, None)
    answer = await unless_gone(request, service.query(question_in(asked), **wanted))
    markdown = Markdown()
    return frame.whole(markdown.feed(answer.text) + markdown.end(answer), answer)


def _wanted(chat: ChatIn, last: int, request: Request) -> dict[str, Any]:
    """Return what the router takes besides the question."""
    caller: Caller = request.state.caller
    named = next((found for name in _CHAT_HEADERS if (found := request.headers.get(name))), "")
    return {
        "index": None if chat.model == AUTO else chat.model,
        "turns": turns_of((one.role, question_in(one.said), "") for one in chat.messages[:last]),
        "conversation_id": caller.own(named[: MAX_ID_CHARS - 10]),
        "user_id": chat.user or request.headers.get(_USER_HEADER, "")[:MAX_ID_CHARS] or caller.name,
    }


async def _streamed(service: Service, frame: _Frame, asked: str, wanted: dict[str, Any]) -> AsyncIterator[bytes]:
    markdown, role = Markdown(), {"role": "assistant"}
    async with service.stream(asked, **wanted) as pieces:
        async for piece in pieces:
            if (shown := markdown.feed(piece)) or role:
                yield frame.chunk({**role, "content": shown})
                role = {}
        answer = pieces.answer
    if answer is not None:
        yield frame.chunk({**role, "content": markdown.end(answer)})
        yield frame.ending(answer)


async def _written(frame: _Frame, text: str) -> AsyncIterator[bytes]:
    yield frame.chunk({"role": "assistant", "content": text})
    yield frame.ending(None)


class _Frame:
    """What stands around the text of one completion."""

    def __init__(self, chat: ChatIn, request_id: str) -> None:
        self._common = {"id": f"chatcmpl-{request_id}", "created": int(time.time()), "model": chat.model}
        self.counts = bool((chat.stream_options or {}).get("include_usage"))

    def whole(self, text: str, answer: Answer | None) -> Response:
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
        rest = {"choices": [choice], "usage": _usage(answer), **_extra(answer)}
        return as_json({**self._common, "object": "chat.completion", **rest})

    def chunk(self, delta: Mapping[str, str], **extra: Any) -> bytes:  # noqa: ANN401 - any field
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None if delta else "stop"}
        return self._event({"choices": [choice], **({"usage": None} if self.counts else {}), **extra})

    def ending(self, answer: Answer | None) -> bytes:
        last = self.chunk({}, **_extra(answer))
        usage = self._event({"choices": [], "usage": _usage(answer)}) if self.counts else b""
        return last + usage + b"data: [DONE]\n\n"

    def _event(self, fields: Mapping[str, Any]) -> bytes:
        return b"data: " + json_bytes({**self._common, "object": "chat.completion.chunk", **fields}) + b"\n\n"


def _usage(answer: Answer | None) -> dict[str, int]:
    """Count tokens of all models that were asked; none where no model was."""
    tiers = () if answer is None else answer.usage.tiers
    prompt, written = sum(one.prompt_tokens for one in tiers), sum(one.completion_tokens for one in tiers)
    return {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}


def _extra(answer: Answer | None) -> dict[str, Any]:
    if answer is None:
        return {}
    told = {
        "query_id": answer.query_id, "citations": [one.to_dict() for one in answer.citations],
        "confidence": answer.confidence.to_dict(), "understood_as": answer.understood_as,
        "indexes": list(answer.route.index.names), "strategy": answer.route.strategy.name, "tier": answer.tier.value,
        "cached": answer.cached, "degraded": [one.to_dict() for one in answer.degraded],
    }  # fmt: skip
    return {EXTRA: told}


# Markdown

_HELD: Final = re.compile(r"(?:[!\\]|[!\\]?\[\d{0,3})\Z")
_MARK: Final = re.compile(r"(?<!\\)\[(\d{1,3})\]")
_SPECIAL: Final = re.compile(r"([\\`*_{}\[\]<>()#|!~$])")


class Markdown:
    """Turns an answer into Markdown as it comes: citations are footnotes, and nothing in it loads or runs anything."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, piece: str) -> str:
        """Return what can be shown by now: a mark that is not whole yet waits for the rest."""
        text = self._held + piece
        held = _HELD.search(text)
        self._held = held[0] if held else ""
        return _shown(text[: held.start()] if held else text)

    def end(self, answer: Answer) -> str:
        """Return the rest with the footnotes."""
        notes = "\n".join(map(footnote, answer.citations))
        return _shown(self._held) + (f"\n\n{notes}" if notes else "")


def _shown(text: str) -> str:
    """Documents are quoted, so an image in one must not be loaded, nor its HTML be read."""
    return _MARK.sub(r"[^\1]", text.replace("<", "&lt;").replace("![", "!\\["))


def footnote(citation: Citation) -> str:
    where = " › ".join(part for part in (citation.title or citation.doc_id, citation.section) if part)
    quote = " ".join(citation.quote.split())
    short = quote if len(quote) <= _QUOTE_CHARS else quote[: _QUOTE_CHARS - 1].rstrip() + "…"
    place = f", {citation.place}" if citation.place else ""
    return f"[^{citation.number}]: " + _SPECIAL.sub(r"\\\1", f"{where}{place}: “{short}”")


# What clients ask a model beside the chat, by the prompts that they come with: Open WebUI's tasks begin with
# "### Task:" and carry the chat in a tag; LibreChat has two prompts for a title.

_TASK: Final = re.compile(r"\A\s*#{1,4} Task:")
_TASK_FORMS: Final = {"title": "", "tags": [], "follow_ups": [], "queries": [], "text": "", "prompt": ""}
_CHAT: Final = re.compile(r"<chat_history>(.*)</chat_history>", re.DOTALL)
_USERS: Final = re.compile(r"^\s*user:\s*(.+)$", re.IGNORECASE | re.MULTILINE)
_RAG: Final = re.compile(r"<user_query>(.+?)</user_query>", re.DOTALL)
_TITLES: Final = ("Provide a concise, 5-word-or-less title for the conversation", "Please generate a concise title")
_STRUCTURED_TITLE: Final = "Analyze this conversation and provide:"
_TITLE_CHARS: Final = 60


def question_in(asked: str) -> str:
    """Return the question that a client put into a prompt of its own, or the text as it is."""
    found = _RAG.search(asked) if _TASK.match(asked) else None
    return found[1].strip() if found else asked


def side_reply(asked: str, first: str) -> str | None:
    """Reply to what is no question of the chat, without a search; ``None`` for a question."""
    if _TASK.match(asked):
        if _RAG.search(asked):
            return None
        wanted = next((name for name in _TASK_FORMS if f'"{name}"' in asked), "")
        if wanted != "title":
            return json.dumps({wanted: _TASK_FORMS[wanted]} if wanted else {})
        return json.dumps({"title": _title(asked, first)}, ensure_ascii=False)
    if _STRUCTURED_TITLE in asked and "title" in asked:
        return json.dumps({"language": "", "title": _title(asked, first)}, ensure_ascii=False)
    return _title(asked, first) if asked.startswith(_TITLES) else None


def _title(asked: str, first: str) -> str:
    """Make a title of what the user said first."""
    chat = _CHAT.search(asked)
    said = _USERS.search(chat[1] if chat else asked)
    line = " ".join((said[1] if said else "" if first == asked else first).split())
    return line if len(line) <= _TITLE_CHARS else line[: _TITLE_CHARS - 1].rsplit(" ", 1)[0].rstrip() + "…"


# Errors


def _error_event(request: Request, error: AgenticRetrieverError) -> bytes:
    return b"data: " + json_bytes(problem_of(request.state.request_id, error).as_openai()) + b"\n\n"
