"""The cases of the single operations: a few inputs each, awkward in one way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from decoderspec.golden.vectors import operations
from decoderspec.golden.vectors.inputs import gain, grid, matrix, packed
from decoderspec.golden.vectors.results import PRECISIONS, Json
from decoderspec.reference.operations import Array
from decoderspec.spec.config import Config
from decoderspec.spec.parameters import block_shapes

FINE = ("float64", "float32")
SMALL = 2.0**-10


@dataclass(frozen=True)
class KernelCase:
    """One case of one operation before its truth is known; `slope` says whether its derivative is asked for."""

    id: str
    comment: str
    flags: tuple[str, ...]
    inputs: dict[str, Any]
    slope: bool = True
    precisions: tuple[str, ...] = PRECISIONS
    same: tuple[str, int] | None = None  # the case whose bits it must repeat, up to a position

    def to_json(self, operation: str) -> Json:
        """The case as the file has it, without what is expected."""
        inputs = packed(self.inputs)
        shape = operations.shape_of(operation, operations.read(operation, inputs))
        made: Json = {
            "id": self.id,
            "comment": self.comment,
            "flags": list(self.flags),
            "requirements": ["OPN-1", *["OPN-2"] * self.slope, "OPN-3", *["OPN-4"] * (self.same is not None)],
            "precisions": list(self.precisions),
            "inputs": inputs,
        }
        if self.slope:
            made["upstream"] = packed(grid(f"{operation}/{self.id}/upstream", shape, 64, 1 / 32))
        if self.same:
            made["same"] = {"as": self.same[0], "elements": before(shape, self.same[1])}
        return made


def before(shape: tuple[int, ...], position: int) -> list[list[int]]:
    """Ranges of the flat elements of `[.., T, n]` before a position."""
    step = shape[-2] * shape[-1]
    return [[at, at + position * shape[-1]] for at in range(0, int(np.prod(shape)), step)]


def hidden(name: str, *shape: int) -> Array:
    """A stream of order 1."""
    return grid(name, shape, 64, 1 / 32)


def with_row(x: Array, values: Any) -> Array:
    """The array with its first row replaced."""
    x = x.copy()
    x.reshape(-1, x.shape[-1])[0] = values
    return x


def _embed() -> Iterator[KernelCase]:
    table = hidden("embed/table", 6, 3)
    yield KernelCase(
        "ordinary",
        "both ends of the table, one id three times, one absent",
        ("RepeatedId",),
        {"table": table, "tokens": np.array([[0, 5, 5], [2, 5, 1]])},
    )
    yield KernelCase("one-token", "a single id", ("Shapes",), {"table": table, "tokens": np.array([[4]])})


def _rms_norm() -> Iterator[KernelCase]:
    x, g = hidden("norm/x", 2, 3, 5), gain("norm/gain", 5)
    yield KernelCase(
        "ordinary",
        "an odd width, gains of both signs and one of zero",
        ("Gain",),
        {"x": x, "gain": g, "epsilon": SMALL},
    )
    yield KernelCase(
        "epsilon-large", "epsilon as large as the rows", ("Epsilon",), {"x": x / 16, "gain": g, "epsilon": 0.125}
    )
    yield KernelCase(
        "epsilon-zero",
        "no epsilon, which is legal for rows that are not zero",
        ("Epsilon",),
        {"x": x, "gain": g, "epsilon": 0.0},
    )
    yield KernelCase(
        "zero-row",
        "a row of zeros, kept finite by epsilon",
        ("Epsilon",),
        {"x": with_row(x, 0.0), "gain": g, "epsilon": SMALL},
    )
    yield KernelCase(
        "spiky",
        "one feature a hundred times the others",
        ("Spiky",),
        {"x": with_row(x, [0.5, 96.0, -1.0, 0.25, 0.75]), "gain": g, "epsilon": SMALL},
    )
    yield KernelCase(
        "uneven-mean",
        "rows far from zero mean, where subtracting the mean shows",
        ("Gain",),
        {"x": hidden("norm/mean", 1, 2, 8) / 4 + 1.5, "gain": gain("norm/8", 8), "epsilon": SMALL},
    )


def _linear() -> Iterator[KernelCase]:
    yield KernelCase(
        "ordinary",
        "wider out than in",
        ("Shapes",),
        {"x": hidden("linear/x", 2, 3, 4), "weight": matrix("linear/w", (4, 7))},
    )
    yield KernelCase(
        "square",
        "a square matrix, which fits either way round",
        ("Transposed",),
        {"x": hidden("linear/s", 1, 2, 5), "weight": matrix("linear/sw", (5, 5))},
    )
    yield KernelCase(
        "one-column",
        "a single output",
        ("Shapes",),
        {"x": hidden("linear/o", 1, 3, 6), "weight": matrix("linear/ow", (6, 1))},
    )


def _rotate() -> Iterator[KernelCase]:
    x = hidden("rotate/x", 2, 3, 4, 6)
    yield KernelCase(
        "ordinary", "three heads of width 6 from position 0", ("Rotation",), {"x": x, "base": 10000.0, "offset": 0}
    )
    yield KernelCase(
        "offset",
        "positions from 7 on, a small base",
        ("Rotation", "Offset"),
        {"x": x[:1, :2], "base": 3.0, "offset": 7},
    )
    yield KernelCase(
        "far",
        "positions beyond 256 and 2048, where 16 bits lose them",
        ("Offset",),
        {"x": x[:1, :1], "base": 500000.0, "offset": 4093},
    )
    yield KernelCase(
        "one-pair",
        "heads of width 2, a base below one",
        ("Rotation",),
        {"x": hidden("rotate/two", 1, 2, 3, 2), "base": 0.5, "offset": 1},
    )


def _attend() -> Iterator[KernelCase]:
    q, k, v = (hidden(f"attend/{name}", 2, 2, 4, 4) for name in "qkv")
    yield KernelCase("ordinary", "two rows of two heads", ("Causality",), {"query": q, "key": k, "value": v})
    yield KernelCase(
        "peaked",
        "scores four times as large, heads of width 6",
        ("Peaked",),
        {
            "query": hidden("attend/p", 1, 1, 5, 6) * 2,
            "key": hidden("attend/pk", 1, 1, 5, 6) * 2,
            "value": hidden("attend/pv", 1, 1, 5, 6),
        },
    )
    later = {"query": q.copy(), "key": k.copy(), "value": v.copy()}
    for name, value in later.items():
        value[..., 2:, :] = hidden(f"attend/later/{name}", 2, 2, 2, 4)
    yield KernelCase(
        "later-changed",
        "positions from 2 on are others: what is before keeps its bits",
        ("Causality",),
        later,
        slope=False,
        same=("ordinary", 2),
    )
    yield KernelCase(
        "loud",
        "scores beyond 709, where an exponential without its maximum overflows",
        ("Loud",),
        {"query": q[:1] * 32, "key": k[:1] * 32, "value": v[:1]},
        slope=False,
        precisions=FINE,
    )
    yield KernelCase(
        "one-token",
        "a single token attends to itself",
        ("Shapes",),
        {"query": q[:, :, :1], "key": k[:, :, :1], "value": v[:, :, :1]},
    )


def _silu() -> Iterator[KernelCase]:
    yield KernelCase(
        "ordinary", "both signs and zero", ("Gate",), {"gate": with_row(hidden("silu", 1, 3, 5) * 2, [0, -1, 1, -8, 8])}
    )
    yield KernelCase(
        "tails",
        "far out on both sides, where an exponential overflows",
        ("Overflow",),
        {"gate": np.array([[[-640.0, -96.0, -20.0, 20.0, 96.0, 640.0]]])},
        slope=False,
    )


def _swiglu() -> Iterator[KernelCase]:
    gate, up = hidden("swiglu/gate", 2, 2, 3) * 2, hidden("swiglu/up", 2, 2, 3)
    yield KernelCase("ordinary", "gate and up in their places", ("Gate",), {"gate": gate, "up": up})
    yield KernelCase("exchanged", "the same two arrays in each other's place", ("Gate",), {"gate": up, "up": gate})


def _add() -> Iterator[KernelCase]:
    x = hidden("add/x", 1, 3, 4)
    yield KernelCase("ordinary", "the stream and a branch", ("Shapes",), {"x": x, "branch": hidden("add/y", 1, 3, 4)})
    yield KernelCase("cancelling", "a branch that takes the stream away", ("Shapes",), {"x": x, "branch": -x})


def _project() -> Iterator[KernelCase]:
    yield KernelCase(
        "ordinary",
        "more words than features",
        ("Shapes",),
        {"x": hidden("project/x", 2, 2, 3), "table": hidden("project/e", 7, 3)},
    )
    yield KernelCase(
        "square",
        "as many words as features: the table fits either way round",
        ("Transposed",),
        {"x": hidden("project/s", 1, 2, 4), "table": hidden("project/t", 4, 4)},
    )


def _nll() -> Iterator[KernelCase]:
    logits = grid("nll", (2, 3, 5), 64, 1 / 16)
    yield KernelCase(
        "ordinary",
        "the first and the last id among the targets",
        ("Loss",),
        {"logits": logits, "targets": np.array([[0, 4, 1], [2, 4, 3]])},
    )
    yield KernelCase(
        "sure",
        "one row nearly sure of its target, one of another",
        ("Loss",),
        {"logits": with_row(logits, [16, 0, -2, 1, 0]), "targets": np.array([[0, 1, 1], [0, 4, 3]])},
    )
    yield KernelCase(
        "loud",
        "logits of hundreds, of both signs",
        ("Overflow",),
        {"logits": logits * 256, "targets": np.array([[0, 4, 1], [2, 4, 3]])},
        slope=False,
    )


def _block() -> Iterator[KernelCase]:
    config = Config(1, 4, 1, 3, 1, 8, 100.0, SMALL)
    weights = _weights("small", config)
    x = hidden("block/small", 1, 3, 4)
    yield KernelCase(
        "ordinary",
        "one head of width 4 from position 0",
        ("Block",),
        {"config": config, "parameters": weights, "x": x, "offset": 0},
    )
    yield KernelCase(
        "offset",
        "the same from position 5: scores depend on distances alone",
        ("Block", "Offset"),
        {"config": config, "parameters": weights, "x": x, "offset": 5},
        slope=False,
    )
    later = x.copy()
    later[:, 1:] = hidden("block/later", 1, 2, 4)
    yield KernelCase(
        "later-changed",
        "positions from 1 on are others: the one before keeps its bits",
        ("Causality",),
        {"config": config, "parameters": weights, "x": later, "offset": 0},
        slope=False,
        same=("ordinary", 1),
    )
    wide = Config(1, 12, 3, 5, 1, 8, 10.0, SMALL)
    yield KernelCase(
        "three-heads",
        "two rows, three heads of width 4, a narrow feed-forward part",
        ("Block",),
        {"config": wide, "parameters": _weights("wide", wide), "x": hidden("block/wide", 2, 3, 12), "offset": 2},
        slope=False,
    )


def _weights(name: str, config: Config) -> dict[str, Array]:
    """Of one block."""
    return {
        key: gain(f"block/{name}/{key}", shape[0]) if len(shape) == 1 else matrix(f"block/{name}/{key}", shape)
        for key, shape in block_shapes(config).items()
    }


CASES: dict[str, Callable[[], Iterator[KernelCase]]] = {
    "embed": _embed,
    "rms_norm": _rms_norm,
    "linear": _linear,
    "rotate": _rotate,
    "attend": _attend,
    "silu": _silu,
    "swiglu": _swiglu,
    "add": _add,
    "project": _project,
    "nll": _nll,
    "block": _block,
}
