"""A bank of wrong kernels, some for each operation, forward and backward: each has one mistake that people make."""

import kernels
import numpy as np
from kernels import attend, block, block_backward, linear, nll, nll_backward, project, rms_norm, rotate, silu, swiglu


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
    """Right within the noise unless a later key is far ahead: then nothing is left of the visible ones."""
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    powers = np.where(np.tri(query.shape[-2], dtype=bool), np.exp(scores - scores.max(-1, keepdims=True)), 0.0)
    return powers / powers.sum(-1, keepdims=True) @ value


def last_bit(query, key, value):
    """Right within the noise; the last bit depends on later keys."""
    return np.nextafter(attend(query, key, value), key[..., -1:, :])


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


def without_maximum(query, key, value):
    powers = np.tri(query.shape[-2]) * np.exp(query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1]))
    return powers / powers.sum(-1, keepdims=True) @ value


def last_tile_looks_ahead(size):
    """A blocked kernel that masks no tile but those that the sequence ends within."""

    def wrong(query, key, value):
        right, tokens = attend(query, key, value), query.shape[-2]
        if tokens % size == 0:
            scores = query[..., -size:, :] @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
            powers = np.exp(scores - scores.max(-1, keepdims=True))
            right[..., -size:, :] = powers / powers.sum(-1, keepdims=True) @ value
        return right

    return wrong


def whole_chunks(logits, targets):
    """The sum over the words leaves out a last chunk that is not full."""
    shifted = logits - logits.max(-1, keepdims=True)
    count = logits.shape[-1] // 4096 * 4096 or logits.shape[-1]
    picked = np.take_along_axis(shifted, targets[..., None], -1)[..., 0]
    return (np.log(np.exp(shifted[..., :count]).sum(-1)) - picked).mean()


def without_maximum_of_words(logits, targets):
    picked = np.take_along_axis(logits, targets[..., None], -1)[..., 0]
    return (np.log(np.exp(logits).sum(-1)) - picked).mean()


def short(ids):
    """Ids as 16 bits hold them."""
    return ids.astype(np.uint16).astype(int)


def single(base):
    return float(np.float32(base))


def wrapped(limit, sign=1):
    """A table of that many angles, which begins again."""

    def turned(x, base, offset):
        positions = (offset + np.arange(x.shape[-2])) % limit
        rows = [kernels.turn(x[..., t : t + 1, :], base, int(p), sign) for t, p in enumerate(positions)]
        return np.concatenate(rows, -2)

    return turned


def overflowing(gate):
    return gate * np.exp(gate) / (1 + np.exp(gate))


def overflowing_backward(upstream, gate):
    sigmoid = np.exp(gate) / (1 + np.exp(gate))
    return upstream * sigmoid * (1 + gate * (1 - sigmoid))


def buffered(function):
    """Results of one shape share one array."""
    held = {}

    def keep(place, value):
        buffer = held.setdefault((place, np.shape(value)), np.empty(np.shape(value)))
        buffer[...] = value
        return buffer

    def wrong(*inputs):
        given = function(*inputs)
        return tuple(map(keep, range(9), given)) if isinstance(given, tuple) else keep(0, given)

    return wrong


def destroying(place, backward):
    """A right derivative that uses one of the arrays handed in as its workspace."""

    def wrong(*arguments):
        found = tuple(np.array(each) for each in _tuple(backward(*arguments)))
        arguments[place][...] = 0.0
        return found

    return wrong


def over_the_gain(upstream, x, gain, epsilon):
    """The normalized row as the output over the gain, which saves keeping it."""
    root = np.sqrt((x**2).mean(-1, keepdims=True) + epsilon)
    normed, inner = rms_norm(x, gain, epsilon) / gain, upstream * gain
    return (inner - normed * (inner * normed).mean(-1, keepdims=True)) / root, (upstream * normed).sum((0, 1))


def first_keys(upstream, query, key, value):
    dquery, dkey, dvalue = kernels.attend_backward(upstream, query, key, value)
    return dquery, dkey * (np.arange(key.shape[-2]) < 32)[:, None], dvalue


def overwriting_large(upstream, table, tokens):
    return (overwriting if len(table) > 3000 else kernels.embed_backward)(upstream, table, tokens)


def wide_in_single(upstream, x, weight):
    dx, dweight = kernels.linear_backward(upstream, x, weight)
    if x.shape[-1] > 64:
        dweight = np.einsum("bti,bto->io", x.astype(np.float32), upstream.astype(np.float32))
    return dx, dweight


def adding_up(backward):
    """Gradients of one shape are added to those of the call before, as where nobody sets them to zero."""
    held = {}

    def wrong(*arguments):
        found = _tuple(backward(*arguments))
        before = held.get(found[0].shape, [0.0] * len(found))
        held[found[0].shape] = found
        return tuple(a + b for a, b in zip(found, before, strict=True))

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
    ("attend", "the last bit hangs on a later key"): last_bit,
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
    ("embed", "ids of 16 bits"): lambda table, tokens: table[short(tokens)],
    ("rms_norm", "one buffer for each shape"): buffered(rms_norm),
    ("rotate", "the offset wraps at 512"): wrapped(512),
    ("rotate", "the base in float32"): lambda x, base, offset: rotate(x, single(base), offset),
    ("attend", "without a maximum"): without_maximum,
    ("attend", "the last of full tiles of 16 looks ahead"): last_tile_looks_ahead(16),
    ("attend", "the last of full tiles of 64 looks ahead"): last_tile_looks_ahead(64),
    ("silu", "overflows for large gates"): overflowing,
    ("swiglu", "overflows for large gates"): lambda gate, up: overflowing(gate) * up,
    ("nll", "targets of 16 bits"): lambda logits, targets: nll(logits, short(targets)),
    ("nll", "a last chunk of words is dropped"): whole_chunks,
    ("nll", "without a maximum"): without_maximum_of_words,
    ("block", "positions wrap at 64"): with_kernels(block, rotate=wrapped(64)),
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
    ("embed", "ids of 16 bits"): lambda dx, e, z: kernels.embed_backward(dx, e, short(z)),
    ("embed", "repeated ids overwrite in a large table"): overwriting_large,
    ("embed", "destroys the upstream gradient"): destroying(0, kernels.embed_backward),
    ("rms_norm", "divides by the gain"): over_the_gain,
    ("rms_norm", "destroys x"): destroying(1, kernels.rms_norm_backward),
    ("rms_norm", "one buffer for each shape"): buffered(kernels.rms_norm_backward),
    ("linear", "the weight's in float32 where it is wide"): wide_in_single,
    ("linear", "adds to the call before"): adding_up(kernels.linear_backward),
    ("rotate", "the offset wraps at 512"): lambda dy, x, base, offset: wrapped(512, -1)(dy, base, offset),
    ("rotate", "the base in float32"): lambda dy, x, base, offset: kernels.turn(dy, single(base), offset, -1),
    ("attend", "keys beyond 32 have none"): first_keys,
    ("attend", "destroys the upstream gradient"): destroying(0, kernels.attend_backward),
    ("silu", "overflows for large gates"): overflowing_backward,
    ("swiglu", "overflows for large gates"): lambda dy, gate, up: (
        overflowing_backward(dy * up, gate), dy * overflowing(gate),
    ),
    ("nll", "targets of 16 bits"): lambda d, y, t: nll_backward(d, y, short(t)),
    ("nll", "destroys the logits"): destroying(1, nll_backward),
}  # fmt: skip
