"""Faults of the backward pass: the forward is right, and a pullback or what is done with gradients is not."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from decoderspec.faults.compositions import attention, composed, norm
from decoderspec.faults.compositions import feed_forward as feed
from decoderspec.faults.fault import Fault, Weights, at, swap
from decoderspec.faults.numbers import accumulated, rounded
from decoderspec.reference import operations as right
from decoderspec.reference.operations import Array, Operations, inverse_root, linear, rows, sigmoid, softmax
from decoderspec.reference.tape import Gradient
from decoderspec.spec.config import Config
from decoderspec.spec.parameters import TABLE

SLOPES = ("GRA-1", "GRA-4")
backward = partial(Fault, family="gradients", level="gradient", breaks=SLOPES)
after = partial(Fault, family="gradients", level="gradient", stage="gradients", breaks=SLOPES)
tied = partial(Fault, family="tying", level="gradient", stage="gradient.table")


def norm_pullback(
    dy: Array, x: Array, gain: Array, epsilon: float, inner: Array | None = None, outer: Array | None = None
) -> Array:
    """`r (dn - n mean(dn n))` with another `dn` outside or inside the mean."""
    r = inverse_root(x, epsilon)
    n = x * r
    outer = dy * gain if outer is None else outer
    inner = dy * gain if inner is None else inner
    return np.asarray(r * (outer - n * np.mean(inner * n, axis=-1, keepdims=True)))


def _gain_gradient(dy: Array, x: Array, epsilon: float) -> Array:
    return np.asarray(np.sum(dy * x * inverse_root(x, epsilon), axis=(-3, -2)))


def _norm_by_input(pullback: Any) -> Any:
    """A norm whose gradient by its input is another, that by its gain right."""
    return swap(
        rms_norm_vjp=lambda dy, y, x, gain, epsilon: (
            pullback(dy, x, gain, epsilon), _gain_gradient(dy, x, epsilon), None,
        )
    )  # fmt: skip


def _norm_by_gain(pullback: Any) -> Any:
    """A norm whose gradient by its gain is another, that by its input right."""
    return swap(
        rms_norm_vjp=lambda dy, y, x, gain, epsilon: (
            norm_pullback(dy, x, gain, epsilon), pullback(dy, x, gain, epsilon), None,
        )
    )  # fmt: skip


def _half_sum(dy: Array, x: Array, _gain: Array, epsilon: float) -> Array:
    return accumulated(rounded(rows(dy * x * inverse_root(x, epsilon)), "bfloat16"), "bfloat16", axis=-2)


def _carried(ops: Operations, config: Config, weights: Weights, x: Array, place: str) -> Array:
    """The stream's gradient joins that of the branch before the norm's pullback: `carry` passes it to the norm."""

    def carry(name: str, normed: Array, stream: Array) -> Array:
        return ops.add(f"{place}{name}/carry", normed, stream)

    n = norm(ops, config, weights, x, place, "attention_norm")
    x = ops.add(place + "after_attention", carry("attention", n, x), attention(ops, config, weights, n, place))
    n = norm(ops, config, weights, x, place, "ffn_norm")
    return ops.add(place + "output", carry("ffn", n, x), feed(ops, config, weights, n, place))


def _overflowing(query: Array, key: Array) -> Array:
    """One, but not a number where a masked score lies beyond what an exponential can bear above those that are seen."""
    products = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    top = np.max(right.scores(query, key), axis=-1, keepdims=True)
    return np.where(np.exp(products - top) < np.inf, 1.0, np.nan)


def _overwriting(dx: Array, _x: Array, table: Array, tokens: Array) -> Any:
    dtable = np.zeros((*dx.shape[:-3], *table.shape[-2:]))
    dtable[..., tokens, :] = dx
    return dtable, None


def _without_rows(dtable: Array, ids: Any) -> Array:
    dtable = dtable.copy()
    dtable[..., ids, :] = 0.0
    return dtable


def _by_frequency(dx: Array, x: Array, table: Array, tokens: Array) -> Any:
    counts = np.maximum(1, np.bincount(tokens.ravel(), minlength=table.shape[-2]))
    return right.embed_vjp(dx, x, table, tokens)[0] / counts[:, None], None


def _naive_silu(dy: Array, _y: Array, x: Array) -> Any:
    e = np.exp(-x)
    return (dy * (1 / (1 + e) + x * e / (1 + e) ** 2),)


def _silu_slope(slope: Any) -> Any:
    return swap(silu_vjp=lambda dy, y, x: (dy * slope(x, sigmoid(x)),))


def _without_sum(dp: Array, p: Array, _s: Array) -> Any:
    return (p * dp,)


def _sum_over_queries(dp: Array, p: Array, _s: Array) -> Any:
    return (p * (dp - np.sum(p * dp, axis=-2, keepdims=True)),)


def _nll_scaled(scale: Any) -> Any:
    return swap(nll_vjp=lambda d, loss, y, t: (right.nll_vjp(d, loss, y, t)[0] * scale(t), None))


def _without_onehot(d: Array, _loss: Array, logits: Array, targets: Array) -> Any:
    return softmax(logits) * (np.asarray(d)[..., None, None, None] / targets.size), None


def _without_softmax(d: Array, loss: Array, logits: Array, targets: Array) -> Any:
    return right.nll_vjp(d, loss, logits, targets)[0] - _without_onehot(d, loss, logits, targets)[0], None


def _ignoring_zero(d: Array, loss: Array, logits: Array, targets: Array) -> Any:
    return right.nll_vjp(d, loss, logits, targets)[0] * (targets != 0)[..., None], None


def _leaves(change: Any, *endings: str) -> Any:
    """Gradients of the parameters with such names changed."""

    def gradient(found: Gradient, _tokens: Array) -> Gradient:
        leaves = {name: change(g) if name.endswith(endings) else g for name, g in found.leaves.items()}
        return Gradient(leaves, found.uses)

    return gradient


def _exchanged(first: str, second: str) -> Any:
    def gradient(found: Gradient, _tokens: Array) -> Gradient:
        def source(name: str) -> str:
            end = next((e for e in (first, second) if name.endswith(e)), "")
            return name.removesuffix(end) + (second if end == first else first) if end else name

        return Gradient({name: found.leaves[source(name)] for name in found.leaves}, found.uses)

    return gradient


def _clipped(found: Gradient, _tokens: Array) -> Gradient:
    norm_of_all = np.sqrt(sum(np.sum(g * g) for g in found.leaves.values()))
    return Gradient({name: g / max(1.0, norm_of_all / 0.05) for name, g in found.leaves.items()}, found.uses)


def _of_table(leaf: Any, lookup: Any = None, head: Any = None) -> Any:
    """The table's gradients from those of its roles `(lookup, head, tokens)`: the whole, then each role."""

    def gradient(found: Gradient, tokens: Array) -> Gradient:
        a, b = found.uses[TABLE, "embedding"], found.uses[TABLE, "logits"]
        uses = dict(found.uses)
        uses[TABLE, "embedding"] = a if lookup is None else lookup(a, b, tokens)
        uses[TABLE, "logits"] = b if head is None else head(a, b, tokens)
        return Gradient({**found.leaves, TABLE: leaf(a, b, tokens)}, uses)

    return gradient


def _only(gradient: Array, tokens: Array) -> Array:
    """Rows of ids that occur."""
    return gradient * np.isin(np.arange(gradient.shape[-2]), tokens)[:, None]


FAULTS = (
    backward(
        name="norm-pullback-without-gain",
        stage="gradient.rms_norm",
        sentence="the pullback of the norm forgets the gain, which does not show while gains are one",
        source="karpathy/llm.c PR 763 (a comment)",
        operations=_norm_by_input(lambda dy, x, gain, e: norm_pullback(dy, x, gain, e, inner=dy, outer=dy)),
    ),
    backward(
        name="norm-pullback-with-gain-twice",
        stage="gradient.rms_norm",
        sentence="the variance term of the pullback carries the gain twice",
        source="NVIDIA/Megatron-LM PR 6859",
        operations=_norm_by_input(lambda dy, x, gain, e: norm_pullback(dy, x, gain, e, inner=dy * gain * gain)),
    ),
    backward(
        name="norm-pullback-without-variance",
        stage="gradient.rms_norm",
        sentence="the statistic is treated as a constant",
        operations=_norm_by_input(lambda dy, x, gain, e: dy * gain * inverse_root(x, e)),
    ),
    backward(
        name="norm-pullback-with-sum",
        stage="gradient.rms_norm",
        sentence="the variance term is summed, not averaged",
        operations=_norm_by_input(
            lambda dy, x, gain, e: norm_pullback(dy, x, gain, e, inner=dy * gain * x.shape[-1])
        ),
    ),
    backward(
        name="norm-pullback-with-wrong-sign",
        stage="gradient.rms_norm",
        sentence="the variance term is added",
        operations=_norm_by_input(lambda dy, x, gain, e: norm_pullback(dy, x, gain, e, inner=-dy * gain)),
    ),
    backward(
        name="norm-pullback-of-layer-norm",
        stage="gradient.rms_norm",
        sentence="the pullback is LayerNorm's: the mean of the gradient is subtracted",
        operations=_norm_by_input(
            lambda dy, x, gain, e: (lambda d: d - d.mean(-1, keepdims=True))(norm_pullback(dy, x, gain, e))
        ),
    ),
    backward(
        name="norm-pullback-without-epsilon",
        stage="gradient.rms_norm",
        sentence="the pullback recomputes the root without epsilon",
        operations=_norm_by_input(lambda dy, x, gain, e: norm_pullback(dy, x, gain, 0.0)),
    ),
    backward(
        name="gain-gradient-of-the-raw-row",
        stage="gradient.rms_norm",
        sentence="the gain's gradient uses the row before it is normalized",
        operations=_norm_by_gain(lambda dy, x, gain, e: np.sum(dy * x, axis=(-3, -2))),
    ),
    backward(
        name="gain-gradient-averaged",
        stage="gradient.rms_norm",
        sentence="the gain's gradient is averaged over positions, not summed",
        operations=_norm_by_gain(lambda dy, x, gain, e: np.mean(dy * x * inverse_root(x, e), axis=(-3, -2))),
    ),
    backward(
        name="gain-gradient-of-the-first-row",
        stage="gradient.rms_norm",
        sentence="the gain's gradient is summed over the positions of the first row of the batch alone",
        operations=_norm_by_gain(lambda dy, x, gain, e: np.sum((dy * x * inverse_root(x, e))[..., :1, :, :], (-3, -2))),
    ),
    backward(
        name="gain-gradient-with-gain",
        stage="gradient.rms_norm",
        sentence="the gain's gradient is multiplied by the gain",
        operations=_norm_by_gain(lambda dy, x, gain, e: gain * _gain_gradient(dy, x, e)),
    ),
    backward(
        name="gain-gradient-missing",
        stage="gradient.rms_norm",
        sentence="gains are taken for constants",
        operations=_norm_by_gain(lambda dy, x, gain, e: 0 * _gain_gradient(dy, x, e)),
    ),
    backward(
        name="gain-gradient-in-bfloat16",
        stage="gradient.rms_norm",
        sentence="the gain's gradient is summed in bfloat16 in a float32 model",
        source="linkedin/Liger-Kernel PR 950",
        precision="float32",
        operations=_norm_by_gain(_half_sum),
    ),
    backward(
        name="residual-gradient-before-the-norm",
        stage="gradient.add",
        sentence="the residual's gradient is added before the pullback of the norm instead of after it",
        source="Dao-AILab/quack PR 53",
        operations=at(
            ("attention/carry", "ffn/carry"),
            swap(add=lambda n, x: x * 1.0, add_vjp=lambda dy, y, n, x: (dy, None)),
        ),
        decoder=composed(_carried),
    ),
    backward(
        name="residual-gradient-missing",
        stage="gradient.add",
        sentence="the gradient flows through the branches alone",
        operations=swap(add_vjp=lambda dy, y, x, branch: (None, dy)),
    ),
    backward(
        name="residual-gradient-doubled",
        stage="gradient.add",
        sentence="the gradient of the stream is added twice",
        operations=swap(add_vjp=lambda dy, y, x, branch: (2 * dy, dy)),
    ),
    backward(
        name="attention-gradient-missing",
        stage="gradient.add",
        sentence="the attention branch is detached: a fused operation has no pullback",
        source="huggingface/candle PR 3612, #3569; paiml/aprender PR 2203",
        operations=at("after_attention", swap(add_vjp=lambda dy, y, x, branch: (dy, None))),
    ),
    backward(
        name="matrix-gradient-halved",
        stage="gradient.linear",
        sentence="weights' gradients are divided by the batch a second time",
        operations=swap(linear_vjp=lambda dy, y, x, w: (linear(dy, w.T), right.linear_vjp(dy, y, x, w)[1] / 2)),
    ),
    backward(
        name="matrix-gradient-of-the-last-row",
        stage="gradient.linear",
        sentence="the batch loop overwrites the weights' gradients instead of adding to them",
        operations=swap(
            linear_vjp=lambda dy, y, x, w: (linear(dy, w.T), x[..., -1, :, :].swapaxes(-1, -2) @ dy[..., -1, :, :])
        ),
    ),
    backward(
        name="square-matrix-pulled-back-untransposed",
        stage="gradient.linear",
        sentence="the gradient of the input is multiplied by W instead of its transpose, where that fits",
        operations=swap(
            linear_vjp=lambda dy, y, x, w: (
                linear(dy, w if w.shape[0] == w.shape[1] else w.T), right.linear_vjp(dy, y, x, w)[1],
            )
        ),  # fmt: skip
    ),
    backward(
        name="rotation-pulled-forward",
        stage="gradient.rotate",
        sentence="the pullback of the rotation turns the same way again",
        operations=swap(rotate_vjp=lambda dy, y, x, table: (right.rotate(dy, table), None)),
    ),
    backward(
        name="rotation-without-pullback",
        stage="gradient.rotate",
        sentence="the gradient passes the rotation unchanged",
        operations=swap(rotate_vjp=lambda dy, y, x, table: (dy * 1.0, None)),
    ),
    backward(
        name="scale-missing-in-pullback",
        stage="gradient.scores",
        sentence="the pullback of the scores forgets the scale",
        operations=swap(scores_vjp=lambda ds, s, q, k: (ds @ k, ds.swapaxes(-1, -2) @ q)),
    ),
    backward(
        name="key-gradient-missing",
        stage="gradient.scores",
        sentence="keys are detached, as from a cache",
        operations=swap(scores_vjp=lambda ds, s, q, k: (right.scores_vjp(ds, s, q, k)[0], None)),
    ),
    backward(
        name="query-and-key-gradients-missing",
        stage="gradient.scores",
        sentence="a fused attention gives no gradient to queries and keys",
        source="huggingface/candle PR 3612, #3569; candle-org/candle PR 95",
        operations=swap(scores_vjp=lambda ds, s, q, k: (None, None)),
    ),
    backward(
        name="key-gradient-not-transposed",
        stage="gradient.scores",
        sentence="the gradient of the keys is summed over keys instead of queries",
        operations=swap(scores_vjp=lambda ds, s, q, k: (right.scores_vjp(ds, s, q, k)[0], ds @ q / np.sqrt(q.shape[-1]))),
    ),
    backward(
        name="softmax-pullback-without-sum",
        stage="gradient.softmax",
        sentence="the row sum of the softmax pullback is left out",
        operations=swap(softmax_vjp=_without_sum),
    ),
    backward(
        name="softmax-pullback-over-queries",
        stage="gradient.softmax",
        sentence="the sum of the softmax pullback runs over queries",
        operations=swap(softmax_vjp=_sum_over_queries),
    ),
    backward(
        name="softmax-pullback-diagonal",
        stage="gradient.softmax",
        sentence="only the diagonal p (1 - p) of the softmax's derivative is used",
        operations=swap(softmax_vjp=lambda dp, p, s: (dp * p * (1 - p),)),
    ),
    backward(
        name="masked-branch-overflows",
        stage="gradient.softmax",
        sentence="a masked exponential that overflows is discarded forward, and is zero times infinity backward",
        source="jax-ml/jax #17117, #17070; pytorch/pytorch #41508, PR 196170",
        operations=swap(
            scores=lambda q, k: right.scores(q, k),
            scores_vjp=lambda ds, s, q, k: right.scores_vjp(ds * _overflowing(q, k), s, q, k),
        ),
    ),
    backward(
        name="value-gradient-missing",
        stage="gradient.mix",
        sentence="values are detached, as from a cache",
        operations=swap(mix_vjp=lambda do, o, p, v: (right.mix_vjp(do, o, p, v)[0], None)),
    ),
    backward(
        name="value-gradient-not-transposed",
        stage="gradient.mix",
        sentence="the gradient of the values is averaged by the weights themselves, not transposed",
        operations=swap(mix_vjp=lambda do, o, p, v: (right.mix_vjp(do, o, p, v)[0], p @ do)),
    ),
    backward(
        name="weight-gradient-missing",
        stage="gradient.mix",
        sentence="attention weights are detached",
        operations=swap(mix_vjp=lambda do, o, p, v: (None, right.mix_vjp(do, o, p, v)[1])),
    ),
    backward(
        name="silu-slope-is-sigmoid",
        stage="gradient.silu",
        sentence="the derivative of SiLU lacks its second term",
        operations=_silu_slope(lambda x, s: s),
    ),
    backward(
        name="silu-slope-is-that-of-sigmoid",
        stage="gradient.silu",
        sentence="the derivative of the sigmoid takes the place of SiLU's",
        operations=_silu_slope(lambda x, s: s * (1 - s)),
    ),
    backward(
        name="silu-slope-without-argument",
        stage="gradient.silu",
        sentence="the second term of the derivative lacks its factor x",
        operations=_silu_slope(lambda x, s: s + s * (1 - s)),
    ),
    backward(
        name="silu-slope-from-output",
        stage="gradient.silu",
        sentence="the derivative is written as s + y (1 - y) with the output for the sigmoid",
        operations=swap(silu_vjp=lambda dy, y, x: (dy * (sigmoid(x) + y * (1 - y)),)),
    ),
    backward(
        name="silu-slope-overflows",
        stage="gradient.silu",
        sentence="the derivative by composition is infinite over infinite for very negative gates",
        source="Lightning-AI/lightning-thunder PR 2624; pytorch/pytorch #68425",
        operations=swap(silu_vjp=_naive_silu),
    ),
    backward(
        name="relu-slope-for-silu",
        stage="gradient.silu",
        sentence="the pullback is ReLU's",
        operations=_silu_slope(lambda x, s: x > 0),
    ),
    backward(
        name="gate-and-up-gradients-exchanged",
        stage="gradient.multiply",
        sentence="gradients of gate and up are exchanged",
        source="unslothai/unsloth #3314",
        operations=swap(multiply_vjp=lambda dy, y, a, b: (dy * a, dy * b)),
    ),
    backward(
        name="up-gradient-missing",
        stage="gradient.multiply",
        sentence="the up projection is detached",
        operations=swap(multiply_vjp=lambda dy, y, a, b: (dy * b, None)),
    ),
    backward(
        name="loss-gradient-not-averaged",
        stage="gradient.nll",
        sentence="the pullback of the loss forgets to divide by the number of positions",
        operations=_nll_scaled(lambda t: t.size),
    ),
    backward(
        name="loss-gradient-divided-by-batch",
        stage="gradient.nll",
        sentence="the pullback of the loss divides by the number of rows alone",
        operations=_nll_scaled(lambda t: t.shape[-1]),
    ),
    backward(
        name="loss-gradient-with-wrong-sign",
        stage="gradient.nll",
        sentence="target minus probability",
        operations=_nll_scaled(lambda t: -1.0),
    ),
    backward(
        name="loss-gradient-scaled",
        stage="gradient.nll",
        sentence="the loss was scaled for a narrow format and gradients are not scaled back",
        operations=_nll_scaled(lambda t: 1024.0),
    ),
    backward(
        name="loss-gradient-without-target",
        stage="gradient.nll",
        sentence="the one is not subtracted at the target",
        operations=swap(nll_vjp=_without_onehot),
    ),
    backward(
        name="loss-gradient-without-softmax",
        stage="gradient.nll",
        sentence="only the target's logit gets a gradient",
        operations=swap(nll_vjp=_without_softmax),
    ),
    backward(
        name="loss-gradient-ignores-target-zero",
        stage="gradient.nll",
        sentence="the pullback leaves out target 0, the loss does not",
        operations=swap(nll_vjp=_ignoring_zero),
    ),
    backward(
        name="loss-gradient-in-float32",
        stage="gradient.nll",
        sentence="the pullback of the loss is cast to float32",
        source="google-deepmind/optax #1020",
        operations=swap(nll_vjp=lambda d, loss, y, t: (rounded(right.nll_vjp(d, loss, y, t)[0], "float32"), None)),
    ),
    backward(
        name="head-input-gradient-missing",
        stage="gradient.project",
        sentence="the head is trained on detached features",
        operations=swap(project_vjp=lambda dy, y, x, table: (None, right.project_vjp(dy, y, x, table)[1])),
    ),
    backward(
        name="lookup-gradient-overwrites",
        stage="gradient.embed",
        sentence="repeated ids overwrite each other's gradient instead of adding to it",
        source="pymc-devs/pytensor PR 2242; HIPS/autograd #39; pytorch/pytorch #1631; piskvorky/gensim #242",
        operations=swap(embed_vjp=_overwriting),
    ),
    backward(
        name="lookup-gradient-without-padding",
        stage="gradient.embed",
        sentence="id 0 is taken for padding and gets no gradient as a lookup",
        source="ibalazevic/TuckER #17; pytorch/pytorch #26302",
        operations=swap(embed_vjp=lambda d, x, e, z: (_without_rows(right.embed_vjp(d, x, e, z)[0], 0), None)),
    ),
    backward(
        name="lookup-gradient-by-frequency",
        stage="gradient.embed",
        sentence="gradients of repeated ids are averaged, an option of the library",
        operations=swap(embed_vjp=_by_frequency),
    ),
    backward(
        name="lookup-gradient-missing",
        stage="gradient.embed",
        sentence="the table as a lookup is detached",
        operations=swap(embed_vjp=lambda dx, x, table, tokens: (np.zeros((*dx.shape[:-3], *table.shape)), None)),
    ),
    backward(
        name="head-gradient-missing",
        stage="gradient.project",
        sentence="the table as a head is detached",
        breaks=("GRA-1", "TIE-3"),
        operations=swap(
            project_vjp=lambda dy, y, x, table: (linear(dy, table), 0 * right.project_vjp(dy, y, x, table)[1])
        ),
    ),
    backward(
        name="head-gradient-of-targets-alone",
        stage="gradient.project",
        sentence="a sparse update keeps the head's gradient for rows that occur in the batch",
        gradient=_of_table(lambda a, b, z: a + _only(b, z), head=lambda a, b, z: _only(b, z)),
    ),
    tied(
        name="table-gradient-of-lookup-alone",
        sentence="the whole gradient of the table is that of one role: the head was a copy",
        source="rasbt/LLMs-from-scratch #822; NVIDIA/Megatron-LM #656",
        breaks=("GRA-1", "GRA-2", "TIE-1"),
        gradient=_of_table(lambda a, b, z: a),
    ),
    tied(
        name="table-gradient-of-head-alone",
        sentence="the lookup's part is overwritten by the head's",
        breaks=("GRA-1", "GRA-2", "TIE-1"),
        gradient=_of_table(lambda a, b, z: b),
    ),
    tied(
        name="table-gradient-averaged",
        sentence="the two roles are averaged",
        breaks=("GRA-1", "GRA-2", "TIE-1"),
        gradient=_of_table(lambda a, b, z: (a + b) / 2),
    ),
    tied(
        name="table-gradient-twice",
        sentence="a table that is listed under two names gets its gradient twice",
        source="karpathy/nanoGPT PR 209 (the counting)",
        breaks=("GRA-1", "GRA-2", "TIE-1"),
        gradient=_of_table(lambda a, b, z: 2 * (a + b)),
    ),
    tied(
        name="roles-exchanged",
        sentence="lookup and head are handed out in the other order",
        breaks=("TIE-2", "TIE-3"),
        gradient=_of_table(lambda a, b, z: a + b, lambda a, b, z: b, lambda a, b, z: a),
    ),
    tied(
        name="roles-both-the-whole",
        sentence="each role is given the whole gradient of the table",
        breaks=("TIE-1", "TIE-2", "TIE-3"),
        gradient=_of_table(lambda a, b, z: a + b, lambda a, b, z: a + b, lambda a, b, z: a + b),
    ),
    tied(
        name="roles-halved",
        sentence="each role is given half of the whole gradient",
        breaks=("TIE-2", "TIE-3"),
        gradient=_of_table(lambda a, b, z: a + b, lambda a, b, z: (a + b) / 2, lambda a, b, z: (a + b) / 2),
    ),
    tied(
        name="roles-by-occurrence",
        sentence="rows of ids that occur are given to the lookup whole, all others to the head",
        breaks=("TIE-3",),
        gradient=_of_table(
            lambda a, b, z: a + b, lambda a, b, z: _only(a + b, z), lambda a, b, z: a + b - _only(a + b, z)
        ),
    ),
    after(
        name="gradients-clipped",
        sentence="gradients are clipped by their norm before they are handed out",
        gradient=_clipped,
    ),
    after(
        name="gradients-doubled",
        sentence="every gradient is doubled: the loss is pulled back twice",
        gradient=_leaves(lambda g: 2 * g, ""),
    ),
    after(
        name="gradients-of-gains-missing",
        sentence="gains are not in the list of what is trained",
        gradient=_leaves(lambda g: 0 * g, ".gain"),
    ),
    after(
        name="gradients-of-first-block-missing",
        sentence="the first block is frozen",
        gradient=lambda found, tokens: Gradient(
            {n: 0 * g if n.startswith("blocks.0.") else g for n, g in found.leaves.items()}, found.uses
        ),
    ),
    after(
        name="gradients-of-query-and-key-exchanged",
        sentence="gradients are returned in the order of another list of parameters: query and key are exchanged",
        gradient=_exchanged("query.weight", "key.weight"),
    ),
    after(
        name="gradients-of-square-matrices-transposed",
        sentence="gradients of square matrices are left in the layout of another library",
        gradient=_leaves(lambda g: g.swapaxes(-1, -2), "query.weight", "key.weight", "value.weight", "output.weight"),
    ),
    after(
        name="gradients-in-float32",
        sentence="gradients are kept in float32",
        source="huggingface/transformers #24519",
        gradient=_leaves(lambda g: rounded(g, "float32"), ""),
    ),
    after(
        name="gradients-in-bfloat16",
        sentence="gradients of a float32 model are kept in bfloat16",
        precision="float32",
        gradient=_leaves(lambda g: rounded(g, "bfloat16"), ""),
    ),
)
