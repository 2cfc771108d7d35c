"""A bank of wrong kernels, two or three for each operation, forward and backward: `--as` kills every one of them."""

from dataclasses import replace

import kernels
import numpy as np
import pytest
from kernels import attend, block, block_backward, linear, nll, nll_backward, project, rms_norm, rotate, silu, swiglu

from decoderspec.properties import test_operation
from decoderspec.properties.findings import Absent, Finding
from decoderspec.properties.operation import KERNELS
from decoderspec.properties.registry import PROPERTIES, examine
from decoderspec.properties.run import Entry
from decoderspec.properties.session import operation_run

OPERATION = [found for found in PROPERTIES if found.check.__module__ == test_operation.__name__]


def with_kernels(function, **changed):
    """A kernel that calls others of its module, some of which are exchanged."""

    def wrong(*inputs):
        kept = {name: getattr(kernels, name) for name in changed}
        try:
            vars(kernels).update(changed)
            return function(*inputs)
        finally:
            vars(kernels).update(kept)

    return wrong


def unscaled(query, key, value):
    return attend(query * np.sqrt(query.shape[-1]), key, value)


def masked_by(fill):
    def wrong(query, key, value):
        scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
        scores = np.where(np.tri(query.shape[-2], dtype=bool), scores, scores + fill)
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        return powers / powers.sum(-1, keepdims=True) @ value

    return wrong


def maximum_of_all(query, key, value):
    """Right within the noise; its bits depend on later keys."""
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    powers = np.where(np.tri(query.shape[-2], dtype=bool), np.exp(scores - scores.max(-1, keepdims=True)), 0.0)
    return powers / powers.sum(-1, keepdims=True) @ value


def overwriting(upstream, table, tokens):
    found = np.zeros_like(table)
    found[tokens] = upstream
    return found


def halves(x, base, offset):
    width = x.shape[-1]
    angle = (np.arange(x.shape[-2])[:, None] + offset) * float(base) ** (-np.arange(0, width, 2) / width)
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)], -1)


def in_place(x, branch):
    x += branch
    return x


def without_last(x, table):
    return project(x, table * (np.arange(len(table)) < len(table) - 1)[:, None])


def shifted(logits, targets):
    return nll(logits[:, :-1], targets[:, 1:]) if targets.shape[1] > 1 else nll(logits, targets)


def part(backward, *kept):
    """A derivative that leaves some gradients zero."""

    def wrong(*arguments):
        return tuple(g if place in kept else 0 * g for place, g in enumerate(backward(*arguments)))

    return wrong


def times(factor):
    return lambda backward: lambda *arguments: tuple(factor * g for g in _tuple(backward(*arguments)))


def _tuple(value):
    return value if isinstance(value, tuple) else (value,)


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def residual_of_the_norm(config, p, x, offset):
    return block(config, p, x, offset) - x + rms_norm(x, p["attention_norm.gain"], config.rms_epsilon)


def without_residual(upstream, config, p, x, offset):
    dx, found = block_backward(upstream, config, p, x, offset)
    return dx - upstream, found


def without(name):
    def wrong(upstream, config, p, x, offset):
        dx, found = block_backward(upstream, config, p, x, offset)
        return dx, {**found, name: 0 * found[name]}

    return wrong


FORWARD = {
    ("embed", "ids count from one"): lambda table, tokens: table[(tokens + 1) % len(table)],
    ("embed", "scaled by the root of the width"): lambda table, tokens: table[tokens] * np.sqrt(table.shape[1]),
    ("embed", "one row for all"): lambda table, tokens: table[np.broadcast_to(tokens[:1], tokens.shape)],
    ("rms_norm", "epsilon outside the root"): lambda x, g, e: g * x / (np.sqrt((x**2).mean(-1, keepdims=True)) + e),
    ("rms_norm", "the mean is subtracted"): lambda x, g, e: rms_norm(x - x.mean(-1, keepdims=True), g, e),
    ("rms_norm", "float32"): lambda x, g, e: rms_norm(x.astype(np.float32), g, e),
    ("linear", "a bias"): lambda x, w: linear(x, w) + 1e-6,
    ("linear", "float32"): lambda x, w: x.astype(np.float32) @ w.astype(np.float32),
    ("rotate", "half-split"): halves,
    ("rotate", "the offset is ignored"): lambda x, base, offset: rotate(x, base, 0),
    ("rotate", "backwards"): lambda x, base, offset: kernels.turn(x, base, offset, -1),
    ("attend", "not scaled"): unscaled,
    ("attend", "a finite mask"): masked_by(-30.0),
    ("attend", "not masked"): masked_by(0.0),
    ("attend", "the maximum is of all keys"): maximum_of_all,
    ("silu", "gelu"): gelu,
    ("silu", "quick gelu"): lambda gate: gate / (1 + np.exp(-1.702 * gate)),
    ("silu", "float32"): lambda gate: silu(gate.astype(np.float32)),
    ("swiglu", "gate and up exchanged"): lambda gate, up: swiglu(up, gate),
    ("swiglu", "not gated"): lambda gate, up: silu(gate),
    ("add", "writes into the stream"): in_place,
    ("add", "halved"): lambda x, branch: (x + branch) / 2,
    ("project", "scaled"): lambda x, table: project(x, table) / np.sqrt(x.shape[-1]),
    ("project", "the last id is missing"): without_last,
    ("nll", "summed"): lambda logits, targets: nll(logits, targets) * targets.size,
    ("nll", "shifted"): shifted,
    ("nll", "target 0 is ignored"): lambda y, t: nll(y[t != 0][None], t[t != 0][None]) if (t != 0).any() else nll(y, t),
    ("block", "gelu"): with_kernels(block, silu=gelu),
    ("block", "half-split"): with_kernels(block, rotate=halves),
    ("block", "added to the normalized stream"): residual_of_the_norm,
}  # fmt: skip
BACKWARD = {
    ("embed", "repeated ids overwrite"): overwriting,
    ("embed", "doubled"): times(2)(kernels.embed_backward),
    ("rms_norm", "without the variance"): lambda dy, x, g, e: (
        dy * g * rms_norm(x, 1.0, e) / np.where(x, x, 1), kernels.rms_norm_backward(dy, x, g, e)[1],
    ),
    ("rms_norm", "the gain has none"): part(kernels.rms_norm_backward, 0),
    ("linear", "the weight has none"): part(kernels.linear_backward, 0),
    ("linear", "averaged"): times(0.5)(kernels.linear_backward),
    ("rotate", "turned forward again"): lambda dy, x, base, offset: rotate(dy, base, offset),
    ("rotate", "passed on"): lambda dy, x, base, offset: dy,
    ("attend", "values alone"): part(kernels.attend_backward, 2),
    ("attend", "keys have none"): part(kernels.attend_backward, 0, 2),
    ("silu", "that of a sigmoid"): lambda dy, gate: dy * (s := 1 / (1 + np.exp(-gate))) * (1 - s),
    ("silu", "the second term is missing"): lambda dy, gate: dy / (1 + np.exp(-gate)),
    ("swiglu", "exchanged"): lambda dy, gate, up: kernels.swiglu_backward(dy, gate, up)[::-1],
    ("swiglu", "up has none"): part(kernels.swiglu_backward, 0),
    ("add", "the stream is detached"): part(kernels.add_backward, 1),
    ("add", "doubled"): times(2)(kernels.add_backward),
    ("project", "the table has none"): part(kernels.project_backward, 0),
    ("project", "the features are detached"): part(kernels.project_backward, 1),
    ("nll", "not averaged"): lambda d, y, t: nll_backward(d, y, t) * t.size,
    ("nll", "the target is not subtracted"): lambda d, y, t: d * kernels.probabilities(y) / t.size,
    ("nll", "the upstream gradient is taken for one"): lambda d, y, t: nll_backward(1.0, y, t),
    ("block", "the residual has none"): without_residual,
    ("block", "queries have none"): without("attention.query.weight"),
    ("block", "the second gain has none"): without("ffn_norm.gain"),
}  # fmt: skip


def killers(name, **changed):
    """The requirements that fail on the fixed cases, the first of them or none."""
    run = operation_run(f"{kernels.__file__}:{name}", name)
    run.__dict__["operation"] = replace(run.operation, **changed)
    for found in OPERATION:
        run.entry = Entry()
        try:
            with np.errstate(all="ignore"):
                examine(run, replace(found, search=False))
        except Finding:
            return found.requirements[0]
        except Absent:
            continue
    return None


def ids(keys):
    return [f"{name}: {what}" for name, what in keys]


@pytest.mark.parametrize("key", FORWARD, ids=ids(FORWARD))
def test_a_wrong_forward_is_killed(key):
    assert killers(key[0], forward=FORWARD[key]) in ("OPN-1", "OPN-3", "OPN-4")


@pytest.mark.parametrize("key", BACKWARD, ids=ids(BACKWARD))
def test_a_wrong_derivative_is_killed(key):
    assert killers(key[0], backward=BACKWARD[key]) == "OPN-2"


@pytest.mark.parametrize("name", sorted(set(KERNELS) - {"block"}))
def test_a_right_kernel_passes_every_fixed_case(name):
    assert killers(name) is None


def test_every_operation_is_in_the_bank():
    for bank in (FORWARD, BACKWARD):
        assert {name for name, _ in bank} == set(KERNELS)


def test_every_property_of_operations_kills():
    forward = {killers(name, forward=FORWARD[name, what]) for name, what in FORWARD if name in ("add", "attend")}
    assert forward | {"OPN-2"} == {each.requirements[0] for each in OPERATION}
