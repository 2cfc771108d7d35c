"""Faults of the backward pass at its ends (loss, head, lookup), of the tied table, and of gradients handed out."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from decoderspec.faults.fault import Fault, swap
from decoderspec.faults.numbers import rounded
from decoderspec.faults.pullbacks import after, backward
from decoderspec.reference import operations as right
from decoderspec.reference.operations import Array, linear, softmax
from decoderspec.reference.tape import Gradient
from decoderspec.spec.parameters import TABLE

tied = partial(Fault, family="tying", level="gradient", stage="gradient.table")


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
        name="lookup-gradient-in-8-bits",
        stage="gradient.embed",
        breaks=("GRA-1",),
        sentence="ids are one byte wide where rows are added, though not where they are read",
        operations=swap(embed_vjp=lambda d, x, e, z: right.embed_vjp(d, x, e, z & 255)),
    ),
    backward(
        name="lookup-gradient-of-sixteen-rows",
        stage="gradient.embed",
        breaks=("GRA-1",),
        sentence="a launch covers sixteen rows of the batch, and the rest adds nothing",
        operations=swap(embed_vjp=lambda d, x, e, z: right.embed_vjp(d[..., :16, :, :], x, e, z[:16])),
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
