"""Right decoders that round differently: the operations again, in each formulation that people write.

A formulation is computed in its own number type, with every result rounded to the format that a recipe stores it in.
They share no code with the reference, and are what the limits are calibrated on; not for use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from decoderspec.reference.operations import Array, Gradients, Operation, Operations
from decoderspec.spec.precision import FORMATS, Format, Recipe
from decoderspec.spec.stages import suffix

Product = Callable[[Array, Array], Array]
ROLES = ("query", "key", "value")
LONGEST = 4096  # terms in one sequential sum: in longer ones terms below half a unit of the sum are lost, all of them
BLOCK = 3  # keys at a time in blocked attention: short cases have several blocks too


def batched(a: Array, b: Array) -> Array:
    """One product for each leading index."""
    return np.asarray(a @ b)


def flat(a: Array, b: Array) -> Array:
    """Leading axes folded into one product where the right operand has none."""
    return np.asarray((a.reshape(-1, a.shape[-1]) @ b).reshape(*a.shape[:-1], -1) if b.ndim == 2 else a @ b)


def einsum(a: Array, b: Array) -> Array:
    """NumPy's own loops."""
    return np.asarray(np.einsum("...ij,...jk->...ik", a, b))


def sequential(a: Array, b: Array) -> Array:
    """Every partial sum rounded in order, as a plain loop does it."""
    if a.shape[-1] > LONGEST:
        return flat(a, b)
    total = np.zeros((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]), a.dtype)
    for k in range(a.shape[-1]):
        total += a[..., :, k, None] * b[..., None, k, :]
    return total


@dataclass(frozen=True)
class Formulation:
    """One choice wherever right code differs."""

    name: str
    product: Product = flat
    logarithm: bool = False  # the norm's root as `exp(-0.5 ln m)`
    output_sum: bool = False  # the softmax pullback's row sum as `dO . O`, not as `sum(P dP)`
    blocked: bool = False  # attention over blocks of keys with a running maximum; its weights are never stored
    probability: bool = False  # the loss as `-log p`, not as `lse - logit`
    fused: bool = False  # one product for query, key and value


FORMULATIONS = (
    Formulation("flat"),
    Formulation("batched, fused", batched, output_sum=True, fused=True),
    Formulation("sequential", sequential, logarithm=True, probability=True),
    Formulation("einsum", einsum, logarithm=True, output_sum=True),
    Formulation("blocked", flat, output_sum=True, blocked=True, probability=True),
)


def rounded(x: Array, form: Format) -> Array:
    """The nearest value of a format, in the number type that `x` has."""
    match form.name:
        case "bfloat16":
            return _cut(x, 16)
        case "tensorfloat32":
            return _cut(x, 13)
        case "float16":
            return x.astype(np.float16).astype(x.dtype)
        case "float32":
            return x.astype(np.float32).astype(x.dtype)
        case _:
            return x


def _cut(x: Array, low: int) -> Array:
    """Float32 without its lowest bits, to nearest, ties to even."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    half = np.uint32((1 << (low - 1)) - 1) + ((bits >> np.uint32(low)) & np.uint32(1))
    kept = (bits + half) & np.uint32(0xFFFFFFFF ^ ((1 << low) - 1))
    return kept.view(np.float32).astype(x.dtype)


def number_type(recipe: Recipe) -> Any:
    """What a formulation computes in: float64 where sums are, else float32."""
    return np.float64 if recipe.accumulate.name == "float64" else np.float32


@dataclass
class Kernels:
    """The operations of one formulation at one recipe; what blocked and fused kernels share is kept in between."""

    how: Formulation
    recipe: Recipe
    dtype: Any
    weights: Mapping[str, Array] = field(default_factory=dict)
    kept: dict[str, Any] = field(default_factory=dict)

    def operations(self) -> Operations:
        """The record."""
        return Operations(**{name: self._wrapped(name) for name in Operations.__dataclass_fields__})

    def _wrapped(self, name: str) -> Operation:
        forward, backward = getattr(self, name), getattr(self, f"{name}_vjp", None)

        def perform(stage: str, *inputs: Any) -> Array:
            return rounded(np.asarray(forward(stage, *inputs), self.dtype), self._stored(name, stage))

        def vjp(stage: str, dy: Array, y: Array, *inputs: Any) -> Gradients:
            found = backward(stage, dy, y, *inputs) if backward else ()
            return tuple(None if each is None else self.gradient(each) for each in found)

        return Operation(name, perform, vjp)

    def _stored(self, name: str, stage: str) -> Format:
        if self.how.blocked and name in ("scores", "softmax"):
            return FORMATS["float64"]  # they never leave the kernel: nothing stores them
        if name in ("rotary", "nll"):
            return self.recipe.tables if name == "rotary" else self.recipe.loss
        return self.recipe.results if stage.endswith("/scores") else self.recipe.stored(suffix(stage.partition("/")[0]))

    def result(self, x: Array) -> Array:
        """Stored on the way, as code without fused kernels does."""
        return rounded(x, self.recipe.results)

    def gradient(self, x: Array) -> Array:
        """A stored gradient."""
        return rounded(np.asarray(x, self.dtype), self.recipe.gradients)

    def product(self, a: Array, b: Array) -> Array:
        """A matrix product, its operands rounded first where the recipe has them coarser."""
        if self.recipe.products.bits < self.recipe.results.bits:
            a, b = rounded(a, self.recipe.products), rounded(b, self.recipe.products)
        return self.how.product(a, b)

    def sum(self, x: Array) -> Array:
        """Over the last axis, kept; in order where products are."""
        if self.how.product is sequential and x.shape[-1] <= LONGEST:
            return np.cumsum(x, axis=-1)[..., -1:]
        return np.asarray(np.sum(x, axis=-1, keepdims=True))

    def constant(self, value: float) -> Any:
        """A number of the arithmetic."""
        return self.dtype(value)

    # --- The operations, each with its pullback ---

    def embed(self, _stage: str, table: Array, tokens: Array) -> Array:
        return table[tokens]

    def embed_vjp(self, _stage: str, dx: Array, _x: Array, table: Array, tokens: Array) -> Gradients:
        dtable = np.zeros_like(table)
        np.add.at(dtable, tokens, dx)
        return dtable, None

    def root(self, x: Array, epsilon: float) -> Array:
        mean = self.sum(x * x) / self.constant(x.shape[-1]) + self.constant(epsilon)
        one = self.constant(1)
        return np.asarray(np.exp(-np.log(mean) / self.constant(2)) if self.how.logarithm else one / np.sqrt(mean))

    def rms_norm(self, _stage: str, x: Array, gain: Array, epsilon: float) -> Array:
        return self.result(x * self.root(x, epsilon)) * gain

    def rms_norm_vjp(self, _stage: str, dy: Array, _y: Array, x: Array, gain: Array, epsilon: float) -> Gradients:
        r = self.root(x, epsilon)
        n, dn = x * r, self.gradient(dy * gain)
        inner = self.sum(dn * n) / self.constant(x.shape[-1])
        dx = r * dn - n * (r * inner) if self.how.logarithm else r * (dn - n * inner)
        terms = (dy * n).reshape(-1, x.shape[-1])
        return dx, self.sum(np.ascontiguousarray(terms.T))[:, 0], None

    def linear(self, stage: str, x: Array, weight: Array) -> Array:
        if not (self.how.fused and stage.endswith("/flat")):
            return self.product(x, weight)
        place, role = stage.removesuffix("/flat").rsplit(".", 1)
        if role == ROLES[0]:
            joined = np.concatenate([self.weights[f"{place}.{each}.weight"] for each in ROLES], axis=1)
            self.kept[place] = np.split(self.product(x, joined), 3, axis=-1)
        return np.asarray(self.kept[place][ROLES.index(role)])

    def linear_vjp(self, stage: str, dy: Array, _y: Array, x: Array, weight: Array) -> Gradients:
        dweight = self.product(_rows(x).T, _rows(dy))
        if not (self.how.fused and stage.endswith("/flat")):
            return self.product(dy, weight.T), dweight
        place, role = stage.removesuffix("/flat").rsplit(".", 1)
        self.kept[place, role] = dy  # type: ignore[index]  # a pair, beside the names
        if role != ROLES[0]:
            return None, dweight
        joined = np.concatenate([self.weights[f"{place}.{each}.weight"] for each in ROLES], axis=1)
        dys = np.concatenate([self.kept[place, each] for each in ROLES], axis=-1)  # type: ignore[index]  # as above
        return self.product(dys, joined.T), dweight

    def split(self, _stage: str, x: Array, heads: int) -> Array:
        return x.reshape(*x.shape[:-1], heads, -1).swapaxes(-3, -2)

    def split_vjp(self, _stage: str, dy: Array, _y: Array, x: Array, _heads: int) -> Gradients:
        return dy.swapaxes(-3, -2).reshape(x.shape), None

    def merge(self, _stage: str, x: Array) -> Array:
        moved = x.swapaxes(-3, -2)
        return moved.reshape(*moved.shape[:-2], -1)

    def merge_vjp(self, _stage: str, dy: Array, _y: Array, x: Array) -> Gradients:
        batch, heads, tokens, width = x.shape
        return (dy.reshape(batch, tokens, heads, width).swapaxes(1, 2),)

    def rotary(self, _stage: str, positions: Array, width: int, base: float) -> Array:
        i = np.arange(0, width, 2).astype(self.dtype) / self.constant(width)
        if self.how.logarithm:
            frequency = np.exp(-i * np.log(self.constant(base)))
        else:
            frequency = self.constant(1) / self.constant(base) ** i
        angle = positions.astype(self.dtype)[:, None] * frequency
        return np.stack([np.cos(angle), np.sin(angle)])

    def rotate(self, _stage: str, x: Array, table: Array) -> Array:
        (cos, sin), a, b = table, x[..., 0::2], x[..., 1::2]
        return _pairs(self.result(a * cos) - self.result(b * sin), self.result(a * sin) + self.result(b * cos))

    def rotate_vjp(self, _stage: str, dy: Array, _y: Array, _x: Array, table: Array) -> Gradients:
        (cos, sin), a, b = table, dy[..., 0::2], dy[..., 1::2]
        return _pairs(a * cos + b * sin, b * cos - a * sin), None

    def scale(self, width: int) -> Any:
        return self.dtype(1) / np.sqrt(self.dtype(width))

    def scores(self, _stage: str, query: Array, key: Array) -> Array:
        self.kept["scores"] = query, key
        tokens = query.shape[-2]
        products = self.product(query, key.swapaxes(-1, -2))
        scaled = (products if self.how.blocked else self.result(products)) * self.scale(query.shape[-1])
        masked: Array = np.where(np.tri(tokens, dtype=bool), scaled, self.constant(-np.inf))
        return masked

    def scores_vjp(self, _stage: str, ds: Array, _s: Array, query: Array, key: Array) -> Gradients:
        ds = self.gradient(ds * self.scale(query.shape[-1]))
        return self.product(ds, key), self.product(ds.swapaxes(-1, -2), query)

    def softmax(self, _stage: str, s: Array) -> Array:
        e = np.exp(s - np.max(s, axis=-1, keepdims=True))
        return np.asarray(e / self.sum(e))

    def softmax_vjp(self, _stage: str, dp: Array, p: Array, _s: Array) -> Gradients:
        row = self.kept.pop("row") if self.how.output_sum else self.sum(p * dp)
        return (p * (dp - row),)

    def mix(self, _stage: str, weights: Array, value: Array) -> Array:
        if not self.how.blocked:
            return self.product(weights, value)
        query, key = self.kept["scores"]
        return self._running(query, key, value)

    def _running(self, query: Array, key: Array, value: Array) -> Array:
        """Keys in blocks with a running maximum (Milakov and Gimelshein 2018; Dao et al. 2022)."""
        tokens = query.shape[-2]
        top = np.full((*query.shape[:-1], 1), -np.inf, self.dtype)
        total, out = np.zeros_like(top), np.zeros(value.shape, self.dtype)
        for start in range(0, tokens, BLOCK):
            keys = slice(start, start + BLOCK)
            s = self.product(query, key[..., keys, :].swapaxes(-1, -2)) * self.scale(query.shape[-1])
            s = np.where(np.arange(tokens)[:, None] >= np.arange(tokens)[keys], s, self.constant(-np.inf))
            new = np.maximum(top, np.max(s, axis=-1, keepdims=True))
            old, e = np.exp(top - new), np.exp(s - new)
            total = total * old + self.sum(e)
            out, top = out * old + self.product(self.result(e), value[..., keys, :]), new
        return np.asarray(out / total)

    def mix_vjp(self, _stage: str, do: Array, o: Array, weights: Array, value: Array) -> Gradients:
        if self.how.output_sum:
            self.kept["row"] = self.sum(do * o)
        return self.product(do, value.swapaxes(-1, -2)), self.product(weights.swapaxes(-1, -2), do)

    def silu(self, _stage: str, x: Array) -> Array:
        return np.asarray(x / (self.constant(1) + np.exp(-x)))

    def silu_vjp(self, _stage: str, dy: Array, _y: Array, x: Array) -> Gradients:
        one = self.constant(1)
        s = one / (one + np.exp(-x))
        return (dy * (s * (one + x * (one - s))),)

    def multiply(self, _stage: str, a: Array, b: Array) -> Array:
        return a * b

    def multiply_vjp(self, _stage: str, dy: Array, _y: Array, a: Array, b: Array) -> Gradients:
        return dy * b, dy * a

    def add(self, _stage: str, x: Array, branch: Array) -> Array:
        return x + branch

    def add_vjp(self, _stage: str, dy: Array, *_inputs: Any) -> Gradients:
        return dy, dy

    def project(self, _stage: str, x: Array, table: Array) -> Array:
        return self.product(x, table.T)

    def project_vjp(self, _stage: str, dy: Array, _y: Array, x: Array, table: Array) -> Gradients:
        return self.product(dy, table), self.product(_rows(dy).T, _rows(x))

    def nll(self, _stage: str, logits: Array, targets: Array) -> Array:
        top = np.max(logits, axis=-1, keepdims=True)
        e = np.exp(logits - top)
        total = self.sum(e)
        if self.how.probability and not self._underflows(e / total, targets):
            losses = -np.log(_picked(e / total, targets))
        else:
            losses = (np.log(total) + top) - _picked(logits, targets)
        return np.asarray(self.sum(losses.ravel())[0] / self.constant(targets.size))

    def _underflows(self, p: Array, targets: Array) -> bool:
        """Whether `-log p` is no right formulation here: a probability that is no normal number has lost its digits."""
        return bool(np.min(_picked(p, targets)) < np.finfo(self.dtype).tiny)

    def nll_vjp(self, _stage: str, dloss: Array, _loss: Array, logits: Array, targets: Array) -> Gradients:
        p = self.softmax("", logits)
        hot = np.zeros_like(p)
        np.put_along_axis(hot, targets[..., None], self.constant(1), axis=-1)
        return (p - hot) * (dloss / self.constant(targets.size)), None


def _rows(x: Array) -> Array:
    return x.reshape(-1, x.shape[-1])


def _pairs(even: Array, odd: Array) -> Array:
    pairs = np.stack([even, odd], axis=-1)
    return pairs.reshape(*pairs.shape[:-2], -1)


def _picked(x: Array, targets: Array) -> Array:
    return np.take_along_axis(x, targets[..., None], axis=-1)


LONG = np.longdouble if np.finfo(np.longdouble).nmant >= 60 else np.float64  # x87: 11 bits more than float64


def exact(weights: Mapping[str, Array]) -> Operations:
    """Extended precision: the truth of float64 to a two-thousandth of its roundoff, where the machine has it."""
    form = Format("extended", 64, FORMATS["float64"].lowest, 0.0, FORMATS["float64"].largest)
    recipe = Recipe("extended", form, form, form, form, form, form, form)
    return Kernels(Formulation("extended"), recipe, LONG, weights).operations()
