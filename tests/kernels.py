"""Every operation as somebody might write it, with its derivative: written apart from the reference, on purpose."""

import numpy as np


def embed(table, tokens):
    return np.take(table, tokens, axis=0)


def embed_backward(upstream, table, tokens):
    onehot = tokens[..., None] == np.arange(len(table))
    return np.einsum("btv,btd->vd", onehot, upstream)


def rms_norm(x, gain, epsilon):
    return gain * x / np.sqrt((x**2).sum(-1, keepdims=True) / x.shape[-1] + epsilon)


def rms_norm_backward(upstream, x, gain, epsilon):
    scale = ((x**2).mean(-1, keepdims=True) + epsilon) ** -0.5
    inner = (upstream * gain * x).sum(-1, keepdims=True) / x.shape[-1]
    return scale * upstream * gain - scale**3 * x * inner, np.einsum("btd,btd,bti->d", upstream, x, scale)


def linear(x, weight):
    return np.einsum("...i,io->...o", x, weight)


def linear_backward(upstream, x, weight):
    return np.einsum("...o,io->...i", upstream, weight), np.einsum("bti,bto->io", x, upstream)


def turn(x, base, offset, sign):
    width = x.shape[-1]
    angle = sign * (np.arange(x.shape[-2])[:, None] + offset) * float(base) ** (-np.arange(0, width, 2) / width)
    pairs = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * angle)
    return np.stack([pairs.real, pairs.imag], -1).reshape(x.shape)


def rotate(x, base, offset):
    return turn(x, base, offset, 1)


def rotate_backward(upstream, x, base, offset):
    return turn(upstream, base, offset, -1)


def attention_weights(query, key):
    scores = np.einsum("bhtw,bhsw->bhts", query, key) / np.sqrt(query.shape[-1])
    scores[..., np.triu(np.ones(scores.shape[-2:], bool), 1)] = -np.inf
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def attend(query, key, value):
    return attention_weights(query, key) @ value


def attend_backward(upstream, query, key, value):
    weights = attention_weights(query, key)
    output = weights @ value
    dweights = upstream @ value.swapaxes(-1, -2)
    inner = (upstream * output).sum(-1, keepdims=True)  # as blocked kernels have it
    dscores = weights * (dweights - inner) / np.sqrt(query.shape[-1])
    return dscores @ key, dscores.swapaxes(-1, -2) @ query, weights.swapaxes(-1, -2) @ upstream


def silu(gate):
    return gate / (1 + np.exp(-gate))


def silu_backward(upstream, gate):
    sigmoid = 1 / (1 + np.exp(-gate))
    return upstream * sigmoid * (1 + gate / (1 + np.exp(gate)))


def swiglu(gate, up):
    return silu(gate) * up


def swiglu_backward(upstream, gate, up):
    return silu_backward(upstream * up, gate), upstream * silu(gate)


def add(x, branch):
    return x + branch


def add_backward(upstream, x, branch):
    return upstream, upstream


def project(x, table):
    return x @ table.T


def project_backward(upstream, x, table):
    return upstream @ table, np.einsum("btv,btd->vd", upstream, x)


def probabilities(logits):
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def nll(logits, targets):
    shifted = logits - logits.max(-1, keepdims=True)
    picked = np.take_along_axis(shifted, targets[..., None], -1)[..., 0]
    return (np.log(np.exp(shifted).sum(-1)) - picked).mean()


def nll_backward(upstream, logits, targets):
    onehot = targets[..., None] == np.arange(logits.shape[-1])
    return upstream * (probabilities(logits) - onehot) / targets.size


def split(x, heads):
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def merge(x):
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)


def forward(config, p, x, offset):
    """Everything that the derivative wants to see again."""
    n = rms_norm(x, p["attention_norm.gain"], config.rms_epsilon)
    q, k, v = (split(linear(n, p[f"attention.{role}.weight"]), config.heads) for role in ("query", "key", "value"))
    q, k = (rotate(each, config.rope_base, offset) for each in (q, k))
    merged = merge(attend(q, k, v))
    middle = x + linear(merged, p["attention.output.weight"])
    m = rms_norm(middle, p["ffn_norm.gain"], config.rms_epsilon)
    gate, up = linear(m, p["ffn.gate.weight"]), linear(m, p["ffn.up.weight"])
    product = swiglu(gate, up)
    return n, q, k, v, merged, middle, m, gate, up, product, middle + linear(product, p["ffn.down.weight"])


def block(config, parameters, x, offset):
    return forward(config, parameters, x, offset)[-1]


def block_backward(upstream, config, p, x, offset):
    n, q, k, v, merged, middle, m, gate, up, product, _ = forward(config, p, x, offset)
    found = {}
    dproduct, found["ffn.down.weight"] = linear_backward(upstream, product, p["ffn.down.weight"])
    dgate, dup = swiglu_backward(dproduct, gate, up)
    dm, found["ffn.gate.weight"] = linear_backward(dgate, m, p["ffn.gate.weight"])
    more, found["ffn.up.weight"] = linear_backward(dup, m, p["ffn.up.weight"])
    dmiddle, found["ffn_norm.gain"] = rms_norm_backward(dm + more, middle, p["ffn_norm.gain"], config.rms_epsilon)
    dmiddle = dmiddle + upstream
    dmerged, found["attention.output.weight"] = linear_backward(dmiddle, merged, p["attention.output.weight"])
    dq, dk, dv = attend_backward(split(dmerged, config.heads), q, k, v)
    dq, dk = (rotate_backward(each, None, config.rope_base, offset) for each in (dq, dk))
    dn = 0
    for role, gradient in (("query", dq), ("key", dk), ("value", dv)):
        name = f"attention.{role}.weight"
        more, found[name] = linear_backward(merge(gradient), n, p[name])
        dn = dn + more
    dx, found["attention_norm.gain"] = rms_norm_backward(dn, x, p["attention_norm.gain"], config.rms_epsilon)
    return dx + dmiddle, found
