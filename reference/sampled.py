"""Exact values of chosen rows and columns of one stage, given that stage's inputs: truth for models of real size.

Nothing else is computed: a row of a product takes its chosen columns alone, a row of attention weights the keys that it
sees. So an error in a model with a width of 2048, 32000 words and a row at position 100000 is found on a laptop:

    stages = model.stages(tokens)  # float32 arrays, as the implementation hands them out
    sampled.stage(config, parameters, "blocks.7.attention.query", stages, rows=[(0, 3, 512)], columns=[0, 63])
    sampled.stage(config, parameters, "logits", stages, rows=[(0, 512)], columns=[0, 17, 31999])

A row is an index of all axes of the stage but the last, a column an index of the last. `operands` says which operation
on which slices gives a row, so that its rounding noise can be drawn by the same operation on the same slices.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from decoderspec.reference import formulas
from decoderspec.reference.arithmetic import Arithmetic, Exact, Precision, multiprecision
from decoderspec.spec.config import Config
from decoderspec.spec.parameters import FINAL_GAIN, TABLE
from decoderspec.spec.stages import suffix

Row = tuple[int, ...]


@dataclass(frozen=True)
class Operands:
    """One row of a stage: `operation(*inputs)`, of which `columns` are asked for (None: all that come out)."""

    operation: str  # rms_norm, linear, rotate, attention_weights, silu, multiply, add; values: the inputs themselves
    inputs: tuple[Any, ...]  # rows `[1, n]`, and what goes with them
    columns: Any = None
    zeros: int = 0  # that follow what comes out: the weights of the future


OPERATIONS: Mapping[str, Callable[..., Exact]] = {
    "values": lambda a, x: a.exact(x),
    "rms_norm": lambda a, x, gain, epsilon: formulas.rms_norm(a, a.exact(x), gain, epsilon),
    "linear": lambda a, x, weight: a.matmul(a.exact(x), weight),
    "rotate": lambda a, x, base, position: formulas.rotate(a, a.exact(x), base, position),
    "attention_weights": lambda a, q, k: formulas.attention_weights(a, a.exact(q), k),
    "silu": lambda a, gate: formulas.silu(a, a.exact(gate)),
    "multiply": lambda a, x, y: a.exact(x) * a.exact(y),
    "add": lambda a, x, y: a.exact(x) + a.exact(y),
}


def inputs_of(name: str, layers: int) -> tuple[str, ...]:
    """The stages that a stage is computed from, beside its parameters; `tokens` for the first."""
    kind, at = suffix(name), name.removesuffix(suffix(name))
    layer = int(at.split(".")[1]) if at else layers
    stream = f"blocks.{layer - 1}.output" if layer else "embedding"
    match kind:
        case "embedding":
            return ("tokens",)
        case "logits":
            return ("final_norm",)
        case "final_norm" | "attention_norm":
            return (stream,)
        case "after_attention":
            return (stream, at + "attention.output")
        case _:
            return tuple(at + each for each in _WITHIN_BLOCK[kind])


_WITHIN_BLOCK = {
    "attention.query": ("attention_norm",),
    "attention.key": ("attention_norm",),
    "attention.value": ("attention_norm",),
    "attention.rotated_query": ("attention.query",),
    "attention.rotated_key": ("attention.key",),
    "attention.weights": ("attention.rotated_query", "attention.rotated_key"),
    "attention.heads": ("attention.weights", "attention.value"),
    "attention.merged": ("attention.heads",),
    "attention.output": ("attention.merged",),
    "ffn_norm": ("after_attention",),
    "ffn.gate": ("ffn_norm",),
    "ffn.silu": ("ffn.gate",),
    "ffn.up": ("ffn_norm",),
    "ffn.product": ("ffn.silu", "ffn.up"),
    "ffn.output": ("ffn.product",),
    "output": ("after_attention", "ffn.output"),
}


def operands(
    config: Config,
    parameters: Mapping[str, Any],
    name: str,
    inputs: Mapping[str, Any],
    row: Row,
    columns: Any = None,
    *,
    offset: int = 0,
) -> Operands:
    """The operation and the slices that give one row; `inputs` holds at least the stages of `inputs_of`."""
    kind, at = suffix(name), name.removesuffix(suffix(name))
    x, *others = (np.asarray(inputs[each]) for each in inputs_of(name, config.layers))
    chosen = slice(None) if columns is None else np.asarray(columns)
    match kind:
        case "embedding":
            return Operands("values", (parameters[TABLE][x[row]][None],), columns)
        case "attention_norm" | "ffn_norm" | "final_norm":
            gain = parameters[FINAL_GAIN if kind == "final_norm" else f"{at}{kind}.gain"]
            return Operands("rms_norm", (x[row][None], gain, config.rms_epsilon), columns)
        case "attention.query" | "attention.key" | "attention.value":
            batch, head, token = row
            of_head = slice(head * config.head_width, (head + 1) * config.head_width)
            return Operands("linear", (x[batch, token][None], parameters[_weight(name)][:, of_head][:, chosen]))
        case "attention.rotated_query" | "attention.rotated_key":
            return Operands("rotate", (x[row][None], config.rope_base, offset + row[-1]), columns)
        case "attention.weights":
            return _weights_row(x, others[0], row, columns)
        case "attention.heads":
            return Operands("linear", (x[row][None], others[0][row[:-1]][:, chosen]))
        case "attention.merged":
            batch, token = row
            return Operands("values", (x[batch, :, token].reshape(1, -1),), columns)
        case "logits":
            return Operands("linear", (x[row][None], parameters[TABLE][chosen].T))
        case "ffn.silu":
            return Operands("silu", (x[row][chosen][None],))
        case "ffn.product" | "after_attention" | "output":
            operation = "multiply" if kind == "ffn.product" else "add"
            return Operands(operation, (x[row][chosen][None], others[0][row][chosen][None]))
        case _:
            return Operands("linear", (x[row][None], parameters[_weight(name)][:, chosen]))


def _weight(name: str) -> str:
    return name.replace("ffn.output", "ffn.down") + ".weight"


def _weights_row(q: Any, k: Any, row: Row, columns: Any) -> Operands:
    """The query and the keys up to it: what comes after them is zero, without being computed."""
    seen = row[-1] + 1
    return Operands("attention_weights", (q[row][None], k[row[:-1]][:seen]), columns, zeros=k.shape[-2] - seen)


def stage(
    config: Config,
    parameters: Mapping[str, Any],
    name: str,
    inputs: Mapping[str, Any],
    rows: Sequence[Row],
    columns: Any = None,
    *,
    offset: int = 0,
    digits: int = 50,
    arithmetic: Precision = multiprecision,
) -> Exact:
    """The chosen columns of the chosen rows: `[rows, columns]`; without columns, whole rows.

    `inputs` maps names of stages to arrays of their full shapes (`tokens` for the embedding); those of `inputs_of`
    are read, no more of them than needed. Rows are counted in the arrays; `offset` is the position of the first.
    """
    with arithmetic(digits) as a:
        found = [_row(a, operands(config, parameters, name, inputs, row, columns, offset=offset)) for row in rows]
    return np.stack(found)


def _row(a: Arithmetic, of: Operands) -> Exact:
    values = OPERATIONS[of.operation](a, *of.inputs)[0]
    row = np.concatenate([values, a.exact(np.zeros(of.zeros, int))]) if of.zeros else values
    return row if of.columns is None else row[np.asarray(of.columns)]
