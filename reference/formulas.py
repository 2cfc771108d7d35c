"""The decoder's formulas on exact arrays, in the text's order, written once for every arithmetic.

Read beside `decoder.py`: a second writing that shares nothing with it. `a` is the arithmetic that is computed with.
Activations are exact arrays of it; parameters may still be real numbers of any dtype, and are made exact where
they are used, so that only one matrix at a time exists in that form. Not for callers: `oracle` is the door.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from typing import Any

import numpy as np

from decoderspec.reference.arithmetic import Arithmetic, Exact
from decoderspec.spec.config import Config
from decoderspec.spec.parameters import FINAL_GAIN, TABLE, of_block

Note = Callable[[str, Exact], Exact]  # stage name and value -> the value to go on with
Parameters = Mapping[str, Any]


def embed(a: Arithmetic, table: Any, tokens: Any) -> Exact:
    """`x = E[z]`."""
    return a.exact(np.asarray(table)[np.asarray(tokens)])


def rms_norm(a: Arithmetic, x: Exact, gain: Any, epsilon: float) -> Exact:
    """`x (mean(x^2) + epsilon)^(-1/2) gain`; an energy of exactly zero is refused."""
    energy = (x * x).sum(axis=-1, keepdims=True) / x.shape[-1] + a.exact(epsilon)
    if np.any(energy == 0):
        row = tuple(np.argwhere(energy == 0)[0, :-1].tolist())
        raise ZeroDivisionError(f"RMSNorm of row {row}: its mean square is zero and so is epsilon")
    return np.asarray(x * (1 / a.root(energy)) * a.exact(gain), object)


@lru_cache(maxsize=64)
def rotary_table(a: Arithmetic, base: float, offset: int, tokens: int, width: int) -> tuple[Exact, Exact]:
    """Cosine and sine `[T, w/2]` of `p base^(-2i/w)` for positions `offset .. offset + T - 1`."""
    frequency = a.exact(base) ** (-a.exact(np.arange(0, width, 2)) / width)
    angle = a.exact(np.arange(offset, offset + tokens))[:, None] * frequency  # [T, w/2]
    return a.cos(angle), a.sin(angle)


def rotate(a: Arithmetic, x: Exact, base: float, offset: int) -> Exact:
    """Adjacent pairs, each turned by its angle."""
    cos, sin = rotary_table(a, float(base), int(offset), *x.shape[-2:])
    even, odd = x[..., 0::2], x[..., 1::2]
    rotated = np.empty_like(x)
    rotated[..., 0::2] = even * cos - odd * sin
    rotated[..., 1::2] = even * sin + odd * cos
    return rotated


def attention_weights(a: Arithmetic, q: Exact, k: Any) -> Exact:
    """Softmax of `q . k / sqrt(w)` over the keys up to the query: `[.., T, w]` by `[.., S, w]`, the last T of S."""
    scores = a.matmul(q, np.asarray(k).swapaxes(-1, -2)) / a.root(a.exact(q.shape[-1]))
    weights: Exact = np.full(scores.shape, a.exact(0).item(), object)
    tokens, keys = scores.shape[-2:]
    for t, visible in enumerate(range(keys - tokens + 1, keys + 1)):
        seen = scores[..., t, :visible]  # the future is left out, not masked with a number
        powers = a.exp(seen - a.peak(seen))
        weights[..., t, :visible] = powers / powers.sum(axis=-1, keepdims=True)
    return weights


def silu(a: Arithmetic, gate: Exact) -> Exact:
    """`gate / (1 + exp(-gate))`."""
    return np.asarray(gate / (1 + a.exp(-gate)), object)


def project(a: Arithmetic, x: Exact, table: Any) -> Exact:
    """`x @ E^T`."""
    return a.matmul(x, np.asarray(table).swapaxes(-1, -2))


def nll(a: Arithmetic, logits: Exact, targets: Any) -> Exact:
    """`-log softmax(logits)[y] = log(1 + sum over j != y of exp(logits_j - logits_y))`.

    Exponents are unbounded here, so no maximum is needed, and a loss near zero keeps all its digits.
    """
    index = np.asarray(targets)[..., None]
    powers = a.exp(logits - np.take_along_axis(logits, index, axis=-1))
    np.put_along_axis(powers, index, a.exact(0), axis=-1)
    return a.log1p(powers.sum(axis=-1))


def split(x: Exact, heads: int) -> Exact:
    """`[B, T, d]` to `[B, h, T, w]`: head `j` is the `j`-th contiguous slice of width `w`."""
    batch, tokens, width = x.shape
    return x.reshape(batch, tokens, heads, width // heads).swapaxes(1, 2)


def merge(x: Exact) -> Exact:
    """Heads side by side again: `[B, h, T, w]` to `[B, T, d]`."""
    batch, heads, tokens, width = x.shape
    return x.swapaxes(1, 2).reshape(batch, tokens, heads * width)


def attention_half(a: Arithmetic, config: Config, p: Parameters, offset: int, note: Note, x: Exact) -> Exact:
    """`x' = x + MHA(RMSNorm(x; g_a))`."""
    normed = note("attention_norm", rms_norm(a, x, p["attention_norm.gain"], config.rms_epsilon))
    q = note("attention.query", split(a.matmul(normed, p["attention.query.weight"]), config.heads))
    k = note("attention.key", split(a.matmul(normed, p["attention.key.weight"]), config.heads))
    v = note("attention.value", split(a.matmul(normed, p["attention.value.weight"]), config.heads))
    q = note("attention.rotated_query", rotate(a, q, config.rope_base, offset))
    k = note("attention.rotated_key", rotate(a, k, config.rope_base, offset))
    weights = note("attention.weights", attention_weights(a, q, k))
    heads = note("attention.heads", a.matmul(weights, v))
    merged = note("attention.merged", merge(heads))
    output = note("attention.output", a.matmul(merged, p["attention.output.weight"]))
    return note("after_attention", x + output)


def feed_forward_half(a: Arithmetic, config: Config, p: Parameters, note: Note, x: Exact) -> Exact:
    """`y = x' + FFN(RMSNorm(x'; g_f))`."""
    normed = note("ffn_norm", rms_norm(a, x, p["ffn_norm.gain"], config.rms_epsilon))
    gate = note("ffn.gate", a.matmul(normed, p["ffn.gate.weight"]))
    activated = note("ffn.silu", silu(a, gate))
    up = note("ffn.up", a.matmul(normed, p["ffn.up.weight"]))
    product = note("ffn.product", activated * up)
    output = note("ffn.output", a.matmul(product, p["ffn.down.weight"]))
    return note("output", x + output)


def head(a: Arithmetic, config: Config, gain: Any, table: Any, note: Note, x: Exact) -> Exact:
    """The final norm, and logits by the table."""
    normed = note("final_norm", rms_norm(a, x, gain, config.rms_epsilon))
    return note("logits", project(a, normed, table))


def halves(a: Arithmetic, config: Config, p: Parameters, tokens: Any, table: Any, note: Note) -> Iterator[Any]:
    """The forward pass as a chain of 2N + 2 functions: lookup, the halves of each block, head."""
    yield lambda _: note("embedding", embed(a, p[TABLE], tokens))
    for layer in range(config.layers):
        mine, note_mine = of_block(p, layer), partial(_note_within, note, f"blocks.{layer}.")
        yield partial(attention_half, a, config, mine, 0, note_mine)
        yield partial(feed_forward_half, a, config, mine, note_mine)
    yield partial(head, a, config, p[FINAL_GAIN], table, note)


def _note_within(note: Note, prefix: str, name: str, value: Exact) -> Exact:
    return note(prefix + name, value)


def unnoted(name: str, value: Exact) -> Exact:
    """Nothing is recorded, nothing replaced."""
    return value
