"""The decoder as a composition of operations, in the order in which data flows (section 3 of the text).

`operations` is the record to compute with; what a caller wants to know beyond the logits (stages, gradients, noise)
it learns by substituting in that record. A step on the way to a stage is named after it: `attention.weights/scores`.
Nothing is validated here: see `reference.model`.
"""

from collections.abc import Mapping

import numpy as np

from decoderspec.reference.operations import OPERATIONS, Array, Operations
from decoderspec.reference.tape import Gradient, Tape, accumulate
from decoderspec.spec.config import Config
from decoderspec.spec.parameters import FINAL_GAIN, TABLE, of_block

Weights = Mapping[str, Array]


def decoder(operations: Operations, config: Config, weights: Weights, tokens: Array) -> Array:
    """Logits `[B, T, V]` of token ids `[B, T]`: `RMSNorm(B_N(.. B_1(E[z]) ..)) @ E^T`."""
    x = operations.embed("embedding", weights[TABLE], tokens)  # [B, T, d]
    for layer in range(config.layers):
        x = block(operations, config, of_block(weights, layer), x, 0, f"blocks.{layer}.")
    n = operations.rms_norm("final_norm", x, weights[FINAL_GAIN], config.rms_epsilon)
    return operations.project("logits", n, weights[TABLE])


def block(ops: Operations, config: Config, weights: Weights, x: Array, offset: int = 0, at: str = "") -> Array:
    """`x' = x + MHA(RMSNorm(x))`, then `x' + FFN(RMSNorm(x'))`: `[B, T, d]` to `[B, T, d]`."""
    n = ops.rms_norm(at + "attention_norm", x, weights["attention_norm.gain"], config.rms_epsilon)
    x = ops.add(at + "after_attention", x, attention(ops, config, weights, n, offset, at + "attention."))
    n = ops.rms_norm(at + "ffn_norm", x, weights["ffn_norm.gain"], config.rms_epsilon)
    return ops.add(at + "output", x, feed_forward(ops, weights, n, at + "ffn."))


def attention(ops: Operations, config: Config, weights: Weights, n: Array, offset: int, at: str) -> Array:
    """Rotary causal multi-head attention: `[B, T, d]` to `[B, T, d]`."""
    q, k, v = (
        ops.split(at + role, ops.linear(f"{at}{role}/flat", n, weights[f"attention.{role}.weight"]), config.heads)
        for role in ("query", "key", "value")
    )  # [B, h, T, w] each
    positions = offset + np.arange(n.shape[-2])
    table = ops.rotary(at + "rotated_query/table", positions, config.head_width, config.rope_base)  # [2, T, w/2]
    q = ops.rotate(at + "rotated_query", q, table)
    k = ops.rotate(at + "rotated_key", k, table)
    merged = ops.merge(at + "merged", attend(ops, q, k, v, at))  # [B, T, d]
    return ops.linear(at + "output", merged, weights["attention.output.weight"])


def attend(ops: Operations, query: Array, key: Array, value: Array, at: str = "") -> Array:
    """Causal attention on `[B, h, T, w]` each (Vaswani et al. 2017, eq. 1)."""
    weights = ops.softmax(at + "weights", ops.scores(at + "weights/scores", query, key))  # [B, h, T, S]
    return ops.mix(at + "heads", weights, value)


def feed_forward(ops: Operations, weights: Weights, n: Array, at: str) -> Array:
    """SwiGLU: `(silu(n W_gate) * (n W_up)) W_down` (Shazeer 2020, eq. 6)."""
    gate = ops.silu(at + "silu", ops.linear(at + "gate", n, weights["ffn.gate.weight"]))  # [B, T, f]
    up = ops.linear(at + "up", n, weights["ffn.up.weight"])
    return ops.linear(at + "output", ops.multiply(at + "product", gate, up), weights["ffn.down.weight"])


def swiglu(ops: Operations, gate: Array, up: Array) -> Array:
    """`silu(gate) * up`, `[B, T, f]` each: the middle of `feed_forward` on its own."""
    return ops.multiply("product", ops.silu("silu", gate), up)


def stages(config: Config, weights: Weights, tokens: Array, operations: Operations = OPERATIONS) -> dict[str, Array]:
    """The value of every stage, in forward order, `logits` last."""
    tape = Tape()
    decoder(tape.recording(operations), config, weights, tokens)
    return tape.stages()


def loss(config: Config, weights: Weights, tokens: Array, targets: Array, operations: Operations = OPERATIONS) -> Array:
    """Mean negative log likelihood of the targets `[B, T]`, in nats."""
    return operations.nll("loss", decoder(operations, config, weights, tokens), targets)


def gradients(
    config: Config, weights: Weights, tokens: Array, targets: Array, operations: Operations = OPERATIONS
) -> dict[str, Array]:
    """Gradient of the loss by each parameter, in canonical order."""
    return pulled_back(config, weights, tokens, targets, operations)[1].leaves


def role_gradients(
    config: Config, weights: Weights, tokens: Array, targets: Array, operations: Operations = OPERATIONS
) -> tuple[Array, Array]:
    """The table's gradient by its two roles, `[V, d]` each: as the lookup and as the head. They add up to the whole."""
    uses = pulled_back(config, weights, tokens, targets, operations)[1].uses
    return uses[TABLE, "embedding"], uses[TABLE, "logits"]


def pulled_back(
    config: Config, weights: Weights, tokens: Array, targets: Array, operations: Operations = OPERATIONS
) -> tuple[dict[str, Array], Gradient]:
    """Every stage and `loss`, and the gradients of the parameters by their uses."""
    tape = Tape()
    value = loss(config, weights, tokens, targets, tape.recording(operations))
    return tape.stages(), accumulate(tape, np.ones_like(value), weights)
