"""The operations that a decoder is composed of, each a pure function with its vector-Jacobian product right below it.

A gradient is the forward name with `d` in front; a pullback takes the upstream gradient, the output and the inputs
of its forward and returns one gradient per input (None where there is none to return). Arrays end in the axes of
the text; whatever leads `[B, T, d]` (the noise puts its runs there) is carried along and never summed over.
Nothing is validated here: that happens once, at the public boundary (`reference.model`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Gradients = tuple[Any, ...]  # one gradient per input, None for ids and constants


@dataclass(frozen=True)
class Operation:
    """One operation: `perform(stage, *inputs)` is its forward, `vjp(stage, upstream, output, *inputs)` its pullback.

    The stage says where in the decoder the call stands; the right formulas ignore it, substitutes may not.
    """

    name: str
    perform: Callable[..., Array]
    vjp: Callable[..., Gradients]

    def __call__(self, stage: str, *inputs: Any) -> Array:
        """The forward."""
        return self.perform(stage, *inputs)


@dataclass(frozen=True)
class Operations:
    """The record that the decoder is written against; every use of the suite is a substitution in it."""

    embed: Operation
    rms_norm: Operation
    linear: Operation
    split: Operation
    rotary: Operation
    rotate: Operation
    scores: Operation
    softmax: Operation
    mix: Operation
    merge: Operation
    silu: Operation
    multiply: Operation
    add: Operation
    project: Operation
    nll: Operation

    def each(self, change: Callable[[Operation], Operation]) -> Operations:
        """The record with every operation replaced by `change(operation)`."""
        return Operations(**{field.name: change(getattr(self, field.name)) for field in fields(self)})


def operation(forward: Callable[..., Array], vjp: Callable[..., Gradients]) -> Operation:
    """An operation from a plain function and its pullback."""
    return Operation(
        forward.__name__,
        lambda _stage, *inputs: forward(*inputs),
        lambda _stage, *arguments: vjp(*arguments),
    )


def embed(table: Array, tokens: Array) -> Array:
    """Rows of the table `[V, d]` for token ids `[B, T]`: `x = E[z]`, `[B, T, d]`."""
    return table[tokens]


def embed_vjp(dx: Array, _x: Array, table: Array, tokens: Array) -> Gradients:
    """Every use of a row adds to it, so repeated ids accumulate."""
    runs = dx.shape[:-3]
    dtable = np.zeros((*runs, *table.shape[-2:]), dtype=dx.dtype)
    np.add.at(dtable, (..., tokens, slice(None)), dx)  # type: ignore[arg-type]  # NumPy takes an ellipsis here
    return dtable, None


def rms_norm(x: Array, gain: Array, epsilon: float) -> Array:
    """`x * (mean(x^2) + epsilon)^(-1/2) * gain` over the last axis (Zhang and Sennrich 2019, eq. 4)."""
    return x * inverse_root(x, epsilon) * gain


def inverse_root(x: Array, epsilon: float) -> Array:
    """`(mean(x^2) + epsilon)^(-1/2)` of each row, `[..., 1]`."""
    root: Array = np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + epsilon)
    return 1.0 / root


def rms_norm_vjp(dy: Array, _y: Array, x: Array, gain: Array, epsilon: float) -> Gradients:
    """Pullback of `y = n * gain`, `n = x * r`, `r = (mean(x^2) + epsilon)^(-1/2)`."""
    r = inverse_root(x, epsilon)
    n = x * r
    terms = dy * n
    dgain = np.sum(terms, axis=(-3, -2))
    dx = r * (dy * gain - n * np.mean(terms * gain, axis=-1, keepdims=True))
    return dx, dgain, None


def linear(x: Array, weight: Array) -> Array:
    """`x @ W`, `[..., in]` by `[in, out]`; one flat product, which BLAS likes better than a stack of small ones."""
    flat: Array = x.reshape(-1, x.shape[-1]) @ weight
    return flat.reshape(*x.shape[:-1], weight.shape[-1])


def linear_vjp(dy: Array, _y: Array, x: Array, weight: Array) -> Gradients:
    """Pullback of `y = x @ W`: `dx = dy @ W^T`, `dW = x^T @ dy` summed over batch and position."""
    return linear(dy, weight.T), rows(x).swapaxes(-1, -2) @ rows(dy)


def rows(x: Array) -> Array:
    """`[..., B, T, n]` as `[..., B*T, n]`."""
    return x.reshape(*x.shape[:-3], x.shape[-3] * x.shape[-2], x.shape[-1])


def split(x: Array, heads: int) -> Array:
    """Contiguous slices of width `w`, one per head: `[B, T, d]` to `[B, h, T, w]`."""
    return x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads).swapaxes(-3, -2)


def split_vjp(dy: Array, y: Array, _x: Array, _heads: int) -> Gradients:
    """The inverse of `split` is `merge`."""
    return merge(dy), None


def merge(x: Array) -> Array:
    """Heads side by side again: `[B, h, T, w]` to `[B, T, d]`."""
    moved = x.swapaxes(-3, -2)
    return moved.reshape(*moved.shape[:-2], moved.shape[-2] * moved.shape[-1])


def merge_vjp(dy: Array, _y: Array, x: Array) -> Gradients:
    """The inverse of `merge` is `split`."""
    return (split(dy, x.shape[-3]),)


def rotary(positions: Array, width: int, base: float) -> Array:
    """`(cos, sin)` of the angle of each position and pair: `[2, T, w/2]`."""
    angle = angles(positions, width, base)
    return np.stack([np.cos(angle), np.sin(angle)])


def angles(positions: Array, width: int, base: float) -> Array:
    """`p * base^(-2i/w)` in radians: `[T, w/2]` (Su et al. 2021, eq. 15)."""
    frequency: Array = float(base) ** (-2.0 * np.arange(width // 2) / width)
    return positions[:, None] * frequency


def rotary_vjp(_dtable: Array, _table: Array, *_inputs: Any) -> Gradients:
    """Positions, width and base are constants of the model."""
    return None, None, None


def rotate(x: Array, table: Array) -> Array:
    """Adjacent pairs `(a, b)` of `[B, h, T, w]` to `(a cos - b sin, a sin + b cos)` (Su et al. 2021, eq. 34)."""
    cos, sin = _broadcast(table)
    a, b = x[..., 0::2], x[..., 1::2]
    return _interleave(a * cos - b * sin, a * sin + b * cos)


def _broadcast(table: Array) -> tuple[Array, Array]:
    """Cosine and sine `[..., 1, 1, T, w/2]`, the same for every row and head."""
    return table[..., None, None, 0, :, :], table[..., None, None, 1, :, :]


def _interleave(even: Array, odd: Array) -> Array:
    """Features 0, 2, 4, .. from one array and 1, 3, 5, .. from the other."""
    pairs = np.stack([even, odd], axis=-1)
    return pairs.reshape(*pairs.shape[:-2], 2 * pairs.shape[-2])


def rotate_vjp(dy: Array, _y: Array, x: Array, table: Array) -> Gradients:
    """A rotation is orthogonal: its pullback turns back by the same angle."""
    cos, sin = _broadcast(table)
    da, db = dy[..., 0::2], dy[..., 1::2]
    return _interleave(da * cos + db * sin, db * cos - da * sin), None


def scores(query: Array, key: Array) -> Array:
    """`q . k / sqrt(w)` for keys up to the query, minus infinity after it: `[B, h, T, S]`."""
    mask = np.where(causal(key.shape[-2]), 0.0, -np.inf)  # [T, S]
    products: Array = query / np.sqrt(query.shape[-1]) @ key.swapaxes(-1, -2)
    return products + mask


def causal(tokens: int) -> Array:
    """`[T, S]`, true where the key is not after the query."""
    return np.tri(tokens, dtype=bool)


def scores_vjp(ds: Array, _s: Array, query: Array, key: Array) -> Gradients:
    """Pullback of `s = q . k / sqrt(w)`; masked scores have no upstream gradient, since their weights are 0."""
    root = np.sqrt(query.shape[-1])
    return ds @ key / root, ds.swapaxes(-1, -2) @ query / root


def softmax(s: Array) -> Array:
    """`exp(s - max) / sum exp(s - max)` over keys: `[B, h, T, S]`; a masked key gets exactly 0."""
    e: Array = s - np.max(s, axis=-1, keepdims=True)
    np.exp(e, out=e)
    e /= np.sum(e, axis=-1, keepdims=True)
    return e


def softmax_vjp(dp: Array, p: Array, _s: Array) -> Gradients:
    """Pullback of the softmax: `ds = p * (dp - sum(p * dp))`."""
    return (p * (dp - np.sum(p * dp, axis=-1, keepdims=True)),)


def mix(weights: Array, value: Array) -> Array:
    """Values averaged by the weights: `[B, h, T, S]` by `[B, h, S, w]` is `[B, h, T, w]`."""
    mixed: Array = weights @ value
    return mixed


def mix_vjp(do: Array, _o: Array, weights: Array, value: Array) -> Gradients:
    """Pullback of `o = p @ v`: `dp = do @ v^T`, `dv = p^T @ do`."""
    return do @ value.swapaxes(-1, -2), weights.swapaxes(-1, -2) @ do


def silu(x: Array) -> Array:
    """`x * sigmoid(x)` (Elfwing, Uchibe and Doya 2018, eq. 6)."""
    return x * sigmoid(x)


def sigmoid(x: Array) -> Array:
    """`exp(x) / (1 + exp(x))`; from 40 on it is 1 to the last bit, so that nothing overflows and small values stay."""
    e: Array = np.exp(np.minimum(x, 40.0))
    e /= 1.0 + e
    return e


def silu_vjp(dy: Array, y: Array, x: Array) -> Gradients:
    """Pullback of `y = x * s`: the derivative is `s + x * s * (1 - s)`, which is `s + y * (1 - s)`."""
    s = sigmoid(x)
    return (dy * (s + y * (1.0 - s)),)


def multiply(a: Array, b: Array) -> Array:
    """The gated product, element by element."""
    return a * b


def multiply_vjp(dy: Array, _y: Array, a: Array, b: Array) -> Gradients:
    """Pullback of `y = a * b`."""
    return dy * b, dy * a


def add(x: Array, branch: Array) -> Array:
    """A residual sum: the stream that entered, plus what the branch made of it."""
    return x + branch


def add_vjp(dy: Array, _y: Array, _x: Array, _branch: Array) -> Gradients:
    """The upstream gradient flows down both ways unchanged."""
    return dy, dy


def project(x: Array, table: Array) -> Array:
    """Logits `x @ E^T` with the table of the lookup: `[B, T, d]` by `[V, d]` is `[B, T, V]`."""
    return linear(x, table.T)


def project_vjp(dy: Array, _y: Array, x: Array, table: Array) -> Gradients:
    """Pullback of `y = x @ E^T`: `dx = dy @ E`, `dE = dy^T @ x`."""
    return linear(dy, table), rows(dy).swapaxes(-1, -2) @ rows(x)


def nll(logits: Array, targets: Array) -> Array:
    """Mean of `log sum exp(logits) - logits[target]` over all `B*T` positions, in nats; a scalar per run."""
    top = np.max(logits, axis=-1, keepdims=True)
    shifted = logits - top
    picked = np.take_along_axis(shifted, _aligned(logits, targets), axis=-1)[..., 0]
    losses = np.log(np.sum(np.exp(shifted), axis=-1)) - picked
    return np.asarray(np.mean(losses, axis=(-2, -1)))


def _aligned(logits: Array, targets: Array) -> Array:
    """Targets `[B, T]` as an index along the vocabulary axis, for every run."""
    return np.broadcast_to(targets[..., None], (*logits.shape[:-1], 1))


def nll_vjp(dloss: Array, _loss: Array, logits: Array, targets: Array) -> Gradients:
    """Pullback of the mean loss: `(softmax(logits) - onehot(target)) / (B*T)`."""
    dlogits = softmax(logits)
    picked = _aligned(logits, targets)
    np.put_along_axis(dlogits, picked, np.take_along_axis(dlogits, picked, axis=-1) - 1.0, axis=-1)
    return dlogits * (np.asarray(dloss)[..., None, None, None] / targets.size), None


OPERATIONS = Operations(
    embed=operation(embed, embed_vjp),
    rms_norm=operation(rms_norm, rms_norm_vjp),
    linear=operation(linear, linear_vjp),
    split=operation(split, split_vjp),
    rotary=operation(rotary, rotary_vjp),
    rotate=operation(rotate, rotate_vjp),
    scores=operation(scores, scores_vjp),
    softmax=operation(softmax, softmax_vjp),
    mix=operation(mix, mix_vjp),
    merge=operation(merge, merge_vjp),
    silu=operation(silu, silu_vjp),
    multiply=operation(multiply, multiply_vjp),
    add=operation(add, add_vjp),
    project=operation(project, project_vjp),
    nll=operation(nll, nll_vjp),
)
