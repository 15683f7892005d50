"""What the tests of the bridge share: questions, and what watches spans and events."""

import threading

from llama_index.core.callbacks import CallbackManager
from llama_index.core.indices.prompt_helper import ChatPromptHelper, PromptHelper
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.span import SimpleSpan
from llama_index.core.instrumentation.span_handlers import BaseSpanHandler
from llama_index.core.response_synthesizers import CompactAndRefine
from pydantic import Field, PrivateAttr
from small_indexes import QUESTION

CAT, MARS = QUESTION, "How many moons does Mars have?"


def synthesizer(llm, kind=CompactAndRefine, **options):
    """A response synthesizer of LlamaIndex with everything that it would look up in ``Settings``."""
    return kind(
        llm=llm, callback_manager=CallbackManager([]), prompt_helper=PromptHelper.from_llm_metadata(llm.metadata),
        chat_prompt_helper=ChatPromptHelper.from_llm_metadata(llm.metadata), **options,
    )  # fmt: skip


class Spans(BaseSpanHandler[SimpleSpan]):
    """Keeps what became of every span: ``began`` and ``ended`` by id, with results and errors."""

    began: dict = Field(default_factory=dict)
    ended: dict = Field(default_factory=dict)
    errors: dict = Field(default_factory=dict)
    inputs: dict = Field(default_factory=dict)
    threads: dict = Field(default_factory=dict)

    def span_enter(self, id_, bound_args, instance=None, parent_id=None, tags=None, **kwargs):
        assert id_ not in self.began
        self.began[id_] = parent_id
        self.inputs[id_] = dict(bound_args.arguments)
        self.threads[id_] = threading.current_thread()

    def span_exit(self, id_, bound_args, instance=None, result=None, **kwargs):
        assert id_ not in self.ended
        # Who keeps a streaming response keeps its stream open.
        self.ended[id_] = result if named(id_).startswith("AgenticRouter.") else None

    def span_drop(self, id_, bound_args, instance=None, err=None, **kwargs):
        assert id_ not in self.ended
        self.ended[id_] = None
        self.errors[id_] = err

    def new_span(self, *args, **kwargs):
        return None

    prepare_to_exit_span = prepare_to_drop_span = new_span

    def names(self):
        return [named(span_id) for span_id in self.began]

    def of(self, name):
        return [span_id for span_id in self.began if named(span_id) == name]

    def open(self):
        return [span_id for span_id in list(self.began) if span_id not in self.ended]

    def above(self, span_id):
        """The names of the spans above one, nearest first."""
        found = []
        while (span_id := self.began.get(span_id)) is not None:
            found.append(named(span_id))
        return found


class Events(BaseEventHandler):
    """Keeps every event."""

    seen: list = Field(default_factory=list)

    def handle(self, event, **kwargs):
        self.seen.append(event)

    def of(self, name):
        return [event for event in self.seen if event.class_name() == name]


class Broken(BaseEventHandler):
    """Raises at every event."""

    def handle(self, event, **kwargs):
        raise RuntimeError("handler is broken")


class BrokenSpans(BaseSpanHandler[SimpleSpan]):
    """Raises at every span."""

    _asked: list = PrivateAttr(default_factory=list)

    def span_enter(self, *args, **kwargs):
        raise RuntimeError("handler is broken")

    span_exit = span_drop = new_span = prepare_to_exit_span = prepare_to_drop_span = span_enter


def named(span_id):
    return span_id[:-37]  # without the hyphen and the UUID
