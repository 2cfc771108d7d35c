"""The roundings of each operation: an error for every value that a right formulation of it, or of its pullback, rounds.

Where right formulations round differently the larger error is taken: the norm's root directly or through a logarithm,
the softmax pullback's row sum as `sum(p dp)` or as `do . o`, the loss as `lse - logit` or as `-log p`.
Each function takes the noise, the place, the exact result and the operation's own arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from decoderspec.reference import operations as plain
from decoderspec.reference.noise import Noise, Place, length, product_length
from decoderspec.reference.operations import Array, Gradients, Operation, Operations
from decoderspec.spec.precision import Format


def embed(noise: Noise, at: Place, x: Array, *_inputs: Any) -> Array:
    """Rows are copied: only storing them in a coarser format than the table's can round them."""
    coarser = at.stored.bits < noise.recipe.weights.bits
    return noise.store(x, at.stored, 3, roundings=int(coarser))


def embed_vjp(
    noise: Noise, at: Place, exact: Gradients, dx: Array, _x: Array, table: Array, tokens: Array
) -> Gradients:
    """Uses of a row are summed in some order, in the format of the gradients."""
    count = int(np.bincount(tokens.ravel()).max())
    total, largest = exact[0], max(float(np.max(np.abs(dx))), 1e-300)
    uses = np.sqrt(plain.embed_vjp(np.square(dx / largest), _x, table, tokens)[0]) * largest
    inner = noise.summed(total, uses, count, at.gradient) if count > 1 else None
    return noise.store(total, at.gradient, 2, inner), None


def _norm_errors(noise: Noise, form: Format, x: Array, epsilon: float) -> Array:
    """Relative standard error of each row's inverse root, `[..., 1]`.

    Covers the sum of squares, the division, epsilon, and the root either directly or as `exp(-0.5 ln m)`, whose
    error grows with the logarithm.
    """
    width = x.shape[-1]
    mean = np.mean(np.square(x), axis=-1, keepdims=True) + epsilon
    share = np.mean(np.square(np.square(x)), axis=-1, keepdims=True) / np.square(mean) / width
    summed = (width + 1) * (share + 2) / 3 + share
    logarithm = 0.5 * np.log(mean)
    errors: Array = noise.deviation(form) * np.sqrt(summed / 4 + 4 + 2 * np.square(logarithm))
    return errors


def rms_norm(noise: Noise, at: Place, y: Array, x: Array, _gain: Array, epsilon: float) -> Array:
    """One error for each row's inverse root; then the input cast, the scaling and the gain, each rounded."""
    root = plain.inverse_root(x, epsilon)
    row = noise.spread(root, _norm_errors(noise, at.inner, x, epsilon) * root, 3) / root
    cast = noise.deviation(at.inner) * np.sqrt(2.0) * np.abs(y)
    return noise.store(y * row, at.stored, 3, cast, roundings=2)


def rms_norm_vjp(
    noise: Noise, at: Place, exact: Gradients, dy: Array, _y: Array, x: Array, gain: Array, epsilon: float
) -> Gradients:
    """`dx = r (dn - n mean(dn n))`: both terms, the mean and the root are rounded before they cancel.

    The root is in `n` too, twice, and there its error stays when the terms cancel: in a row that one feature rules.
    """
    dx, dgain, _ = exact
    r = plain.inverse_root(x, epsilon)
    n, dn, width = x * r, dy * gain, x.shape[-1]
    terms = dn * n
    mean = np.mean(terms, axis=-1, keepdims=True)
    row = noise.spread(mean, noise.summed(mean * width, length(terms), width, at.inner) / width, 3) - mean
    error = _norm_errors(noise, at.inner, x, epsilon)
    root = noise.errors(r, error * r, 3) * error
    inside = noise.deviation(at.inner) * 2.0 * r * np.hypot(dn, n * mean)
    tiny = at.gradient.tiny * noise.scale
    stored = r * np.hypot(noise.deviation(at.gradient) * dn, tiny)  # eager code stores `dn` before it goes on
    moved = (dx - r * n * (row + 2.0 * mean * root)) * (1.0 + root)
    noisy_dx = noise.store(moved, at.gradient, 3, np.hypot(inside, stored))
    positions = x.shape[-3] * x.shape[-2]
    gain_terms = length(dy * n, (-3, -2))[..., 0, 0, :]
    inner = noise.summed(dgain, gain_terms, positions, at.inner)
    inner = np.hypot(inner, 2 * noise.deviation(at.gradient) * gain_terms)
    return noisy_dx, noise.store(dgain, at.gradient, 1, inner), None


def linear(noise: Noise, at: Place, y: Array, x: Array, weight: Array) -> Array:
    """A product of `in` terms for each element."""
    inner = noise.summed(y, product_length(x, weight), x.shape[-1], at.inner)
    rounded = y + noise.operands(x, weight, at.stored, (3, 2))
    return noise.store(rounded, at.stored, 3, inner)


def linear_vjp(noise: Noise, at: Place, exact: Gradients, dy: Array, _y: Array, x: Array, weight: Array) -> Gradients:
    """Two products: over the outputs for the input's gradient, over the positions for the weight's."""
    dx, dweight = exact
    x, flat = plain.rows(x).swapaxes(-1, -2), plain.rows(dy)  # [.., in, B*T], [.., B*T, out]
    inner = noise.summed(dx, product_length(dy, weight.T), dy.shape[-1], at.inner)
    outer = noise.summed(dweight, product_length(x, flat), x.shape[-1], at.inner)
    dx = dx + noise.operands(dy, weight.T, at.gradient, (3, 2))
    dweight = dweight + noise.operands(x, flat, at.gradient, (2, 2))
    return noise.store(dx, at.gradient, 3, inner), noise.store(dweight, at.gradient, 2, outer)


def project_vjp(noise: Noise, at: Place, exact: Gradients, dy: Array, y: Array, x: Array, table: Array) -> Gradients:
    """`linear_vjp` with the table the other way round."""
    dx, dtable = linear_vjp(noise, at, (exact[0], exact[1].swapaxes(-1, -2)), dy, y, x, table.T)
    return dx, dtable.swapaxes(-1, -2)


def rotary(noise: Noise, at: Place, table: Array, positions: Array, width: int, base: float) -> Array:
    """One table for all heads and rows: frequency, angle, cosine and sine are each rounded.

    A frequency is a power, right to `u` times the size of its logarithm. An angle's error turns `(cos, sin)` sideways.
    """
    angle = plain.angles(positions, width, base)
    form = noise.recipe.tables
    logarithm = np.log(base) * (-2.0 * np.arange(width // 2) / width)
    frequency = noise.draw((1, width // 2)) * noise.deviation(form) * np.sqrt(3 + 2 * np.square(logarithm))
    turned = angle * (frequency + noise.draw(angle.shape) * noise.deviation(form))
    cos, sin = table
    moved = np.stack([cos - sin * turned, sin + cos * turned], axis=-3)
    return noise.store(moved, form, 3, noise.deviation(form))


def rotate(noise: Noise, at: Place, y: Array, _x: Array, _table: Array) -> Array:
    """Two products of a pair and their sum; the products are no larger than the pair is long."""
    length = _pair_length(y)
    return noise.store(y, at.stored, 4, noise.deviation(at.stored) * length)


def _pair_length(y: Array) -> Array:
    length: Array = np.repeat(np.hypot(y[..., 0::2], y[..., 1::2]), 2, axis=-1)
    return length


def rotate_vjp(noise: Noise, at: Place, exact: Gradients, *_rest: Any) -> Gradients:
    """Turned back: the same sizes of error."""
    dx = exact[0]
    return noise.store(dx, at.gradient, 4, noise.deviation(at.gradient) * _pair_length(dx)), None


def scores(noise: Noise, at: Place, s: Array, query: Array, key: Array) -> Array:
    """A product over the head width, then the scale, each stored; what is masked stays so."""
    stored, visible = noise.recipe.results, np.isfinite(s)
    total = np.where(visible, s, 0.0)
    query, key = query / np.sqrt(query.shape[-1]), key.swapaxes(-1, -2)
    inner = noise.summed(total, product_length(query, key), query.shape[-1], noise.recipe.accumulate)
    noisy = noise.store(total + noise.operands(query, key, stored, (4, 4)), stored, 4, inner, roundings=2)
    return np.where(visible, noisy, -np.inf)


def scores_vjp(noise: Noise, at: Place, exact: Gradients, ds: Array, s: Array, query: Array, key: Array) -> Gradients:
    """Products over keys and over queries."""
    dq, dk = exact
    count, ds = s.shape[-1], ds / np.sqrt(query.shape[-1])
    across = ds.swapaxes(-1, -2)
    dq_error = noise.summed(dq, product_length(ds, key), count, at.inner)
    dk_error = noise.summed(dk, product_length(across, query), count, at.inner)
    dq = dq + noise.operands(ds, key, at.gradient, (4, 4))
    dk = dk + noise.operands(across, query, at.gradient, (4, 4))
    return noise.store(dq, at.gradient, 4, dq_error, 2), noise.store(dk, at.gradient, 4, dk_error, 2)


def _exponential_errors(s: Array) -> Array:
    """Relative error, in roundings, of `exp(s - max)`: that of the score, of the difference, and of the exponential."""
    top = np.max(s, axis=-1, keepdims=True)
    finite = np.where(np.isfinite(s), s, top)
    errors: Array = np.sqrt(np.square(finite) + np.square(finite - top) + 3)
    return errors


def softmax(noise: Noise, at: Place, p: Array, s: Array) -> Array:
    """Each exponential on its own, the sum once per row."""
    count, unit = s.shape[-1], noise.deviation(at.inner)
    each = noise.spread(p, p * unit * _exponential_errors(s), 4, apart=True)
    share = np.sum(np.square(p), axis=-1, keepdims=True)
    row = unit * np.sqrt((count + 1) * (share + 2) / 3 + 3)
    summed = each * (1.0 + noise.errors(share, row, 4) * row) / np.sum(each, axis=-1, keepdims=True)
    return np.where(p > 0, noise.store(summed, at.stored, 4, unit * p), 0.0)


def mix(noise: Noise, at: Place, o: Array, weights: Array, value: Array) -> Array:
    """A product over the visible keys."""
    inner = noise.summed(o, product_length(weights, value), weights.shape[-1], at.inner)
    return noise.store(o + noise.operands(weights, value, at.stored, (4, 4)), at.stored, 4, inner)


def _product_error(noise: Noise, y: Array, a: Array, b: Array, stored: Format, inner: Format) -> Array:
    """Standard error of each element of the stored product `y = a @ b`."""
    spread = product_length(a, b)
    operands = noise.deviation(noise.recipe.products) * np.sqrt(2.0) * (noise.recipe.products.bits < stored.bits)
    found: Array = np.hypot(noise.summed(y, spread, a.shape[-1], inner), operands * spread)
    return np.hypot(found, noise.deviation(stored) * y)


def mix_vjp(noise: Noise, at: Place, exact: Gradients, do: Array, o: Array, weights: Array, value: Array) -> Gradients:
    """Products over the head width and over queries.

    Blocked kernels form the softmax pullback's row sum as `do . o` instead of `sum(p dp)`: its error is kept for
    `softmax_vjp`, which cannot know the output. It has that of the output, which was computed and stored on its own,
    and it lacks those of `dp` and of the weights, which would cancel in the other form.
    """
    dp, dv = exact
    width, across, along = o.shape[-1], value.swapaxes(-1, -2), weights.swapaxes(-1, -2)
    inner = noise.summed(np.sum(do * o, axis=-1, keepdims=True), length(do * o), width, at.inner)
    output = _product_error(noise, o, weights, value, at.stored, at.inner)
    again = noise.deviation(noise.recipe.stored("attention.weights")) * dp  # weights that the output had, rounded apart
    lacking = np.hypot(_product_error(noise, dp, do, across, at.gradient, at.inner), again)
    noise.row_errors[id(weights)] = np.hypot(np.hypot(inner, length(do * output)), length(weights * lacking))
    dp_error = noise.summed(dp, product_length(do, across), width, at.inner)
    dv_error = noise.summed(dv, product_length(along, do), weights.shape[-1], at.inner)
    dp = dp + noise.operands(do, across, at.gradient, (4, 4))
    dv = dv + noise.operands(along, do, at.gradient, (4, 4))
    return noise.store(dp, at.gradient, 4, dp_error), noise.store(dv, at.gradient, 4, dv_error)


def softmax_vjp(noise: Noise, at: Place, exact: Gradients, dp: Array, p: Array, s: Array) -> Gradients:
    """`ds = p (dp - D)`: the row sum `D` in either of its forms, the difference, and the weights recomputed."""
    ds = exact[0]
    total = np.sum(p * dp, axis=-1, keepdims=True)
    row_error = np.hypot(noise.summed(total, length(p * dp), s.shape[-1], at.inner), noise.row_errors.pop(id(p), 0.0))
    row = noise.errors(total, row_error, 4) * row_error
    again = noise.deviation(at.inner) * np.hypot(np.abs(ds) * _exponential_errors(s), p * np.hypot(dp, total))
    return (noise.store(ds - p * row, at.gradient, 4, again),)


def merge(noise: Noise, at: Place, y: Array, _x: Array) -> Array:
    """Moved, not computed: only storing it in a coarser format than that of the heads can round it."""
    coarser = at.stored.bits < noise.recipe.stored("attention.heads").bits
    return noise.store(y, at.stored, 3, roundings=int(coarser))


def silu(noise: Noise, at: Place, y: Array, x: Array) -> Array:
    """The exponential's relative error is that of its argument: it grows with `|x|` where it is not dwarfed by 1.

    The sigmoid underflows before its product with `x` does.
    """
    growth = np.abs(x) * plain.sigmoid(-x)
    relative = noise.deviation(at.inner) * np.abs(y) * np.sqrt(3 + np.square(growth))
    return noise.store(y, at.stored, 3, np.hypot(relative, np.abs(x) * (at.inner.tiny * noise.scale)))


def silu_vjp(noise: Noise, at: Place, exact: Gradients, dy: Array, _y: Array, x: Array) -> Gradients:
    """Two terms that cancel near the minimum of the function; `1 - s` as written, not as `sigmoid(-x)`."""
    dx = exact[0]
    s, t = plain.sigmoid(x), plain.sigmoid(-x)
    terms = 2 * s + np.abs(x) * s * (s + t * (3 + np.abs(x)))
    underflow = (1 + np.abs(x)) * (at.inner.tiny * noise.scale)
    return (noise.store(dx, at.gradient, 3, np.abs(dy) * np.hypot(noise.deviation(at.inner) * terms, underflow)),)


def elementwise(noise: Noise, at: Place, y: Array, *_inputs: Any) -> Array:
    """One rounding."""
    return noise.store(y, at.stored, 3)


def multiply_vjp(noise: Noise, at: Place, exact: Gradients, *_rest: Any) -> Gradients:
    """One rounding each."""
    da, db = exact
    return noise.store(da, at.gradient, 3), noise.store(db, at.gradient, 3)


def nll(noise: Noise, at: Place, loss: Array, logits: Array, targets: Array) -> Array:
    """Logits cast, log-sum-exp or `-log p` of each row, then the mean over rows."""
    form, count = noise.recipe.loss, targets.size
    row = _row_losses(logits, targets)
    errors = np.sqrt(4 * np.square(np.max(np.abs(logits), axis=-1)) + np.square(row) + logits.shape[-1] + 4)
    inner = noise.spread(row, noise.deviation(form) * errors, 2)
    total = np.mean(inner, axis=(-2, -1))
    summed = noise.summed(np.sum(row, axis=(-2, -1)), length(row, (-2, -1))[..., 0, 0], count, form)
    return noise.store(total, form, 0, summed / count)


def _row_losses(logits: Array, targets: Array) -> Array:
    """The loss of each position, `[B, T]`."""
    picked = np.take_along_axis(logits, np.broadcast_to(targets[..., None], (*logits.shape[:-1], 1)), axis=-1)
    top = np.max(logits, axis=-1, keepdims=True)
    rows: Array = np.log(np.sum(np.exp(logits - top), axis=-1)) + (top - picked)[..., 0]
    return rows


def nll_vjp(
    noise: Noise, at: Place, exact: Gradients, dloss: Array, _loss: Array, logits: Array, targets: Array
) -> Gradients:
    """`(p - onehot) / (B T)`: the probabilities as in the softmax, then the difference is rounded and stored."""
    dlogits = exact[0]
    p = plain.softmax(logits)
    unit = noise.deviation(noise.recipe.loss)
    row = np.sqrt(logits.shape[-1] + 4)
    inside = (
        unit
        * p
        * np.hypot(_exponential_errors(logits), row)
        * (np.asarray(dloss)[..., None, None, None] / targets.size)
    )
    return noise.store(dlogits, noise.recipe.gradients, 3, inside, roundings=2), None


FORWARD: Mapping[str, Callable[..., Array]] = {
    "embed": embed,
    "rms_norm": rms_norm,
    "linear": linear,
    "rotary": rotary,
    "rotate": rotate,
    "scores": scores,
    "softmax": softmax,
    "mix": mix,
    "merge": merge,
    "silu": silu,
    "multiply": elementwise,
    "add": elementwise,
    "project": lambda noise, at, y, x, table: linear(noise, at, y, x, table.T),
    "nll": nll,
}
BACKWARD: Mapping[str, Callable[..., Gradients]] = {
    "embed": embed_vjp,
    "rms_norm": rms_norm_vjp,
    "linear": linear_vjp,
    "rotate": rotate_vjp,
    "scores": scores_vjp,
    "softmax": softmax_vjp,
    "mix": mix_vjp,
    "silu": silu_vjp,
    "multiply": multiply_vjp,
    "add": multiply_vjp,
    "project": project_vjp,
    "nll": nll_vjp,
}


def noisy(noise: Noise, operations: Operations) -> Operations:
    """The same operations with every rounding replaced by noise."""

    def wrap(operation: Operation) -> Operation:
        forward, backward = FORWARD.get(operation.name), BACKWARD.get(operation.name)

        def perform(stage: str, *inputs: Any) -> Array:
            output = operation(stage, *inputs)
            return output if forward is None else forward(noise, Place(noise.recipe, stage), output, *inputs)

        def vjp(stage: str, upstream: Array, output: Array, *inputs: Any) -> Gradients:
            exact = operation.vjp(stage, upstream, output, *inputs)
            if backward is None:
                return exact
            return backward(noise, Place(noise.recipe, stage), exact, upstream, output, *inputs)

        return Operation(operation.name, perform, vjp)

    return operations.each(wrap)
