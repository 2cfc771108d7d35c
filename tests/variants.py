"""Correct decoders that round differently: the suite must not fail them. Written apart from the reference."""

import numpy as np


def sequential(a, b):
    """`a @ b` with every partial sum rounded in order, as a plain loop does it."""
    return np.cumsum(a[..., :, :, None] * b[..., None, :, :], axis=-2)[..., -1, :]


def einsum(a, b):
    return np.einsum("...ij,...jk->...ik", a, b)


def flat(a, b):
    return (a.reshape(-1, a.shape[-1]) @ b).reshape(*a.shape[:-1], -1) if b.ndim == 2 else a @ b


def pairwise_norm(x, gain, epsilon):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + epsilon) * gain


def logarithmic_norm(x, gain, epsilon):
    return x * np.exp(x.dtype.type(-0.5) * np.log(np.mean(x * x, axis=-1, keepdims=True) + epsilon)) * gain


def softmax_attention(q, k, v, matmul):
    t, w = q.shape[-2:]
    s = matmul(q, k.swapaxes(-1, -2)) * q.dtype.type(w**-0.5)
    s = np.where(np.tri(t, dtype=bool), s, -np.inf)
    e = np.exp(s - s.max(-1, keepdims=True))
    return matmul(e / e.sum(-1, keepdims=True), v)


def running_attention(q, k, v, matmul, block=3):
    """Keys in blocks with a running maximum (Milakov and Gimelshein 2018)."""
    t, w = q.shape[-2:]
    top = np.full((*q.shape[:-1], 1), -np.inf, q.dtype)
    total, out = np.zeros_like(top), np.zeros_like(q)
    for start in range(0, t, block):
        keys = slice(start, start + block)
        s = matmul(q * q.dtype.type(w**-0.5), k[..., keys, :].swapaxes(-1, -2))
        s = np.where(np.arange(t)[:, None] >= np.arange(t)[keys], s, -np.inf)
        new = np.maximum(top, s.max(-1, keepdims=True))
        old = np.exp(top - new)
        e = np.exp(s - new)
        total, out, top = total * old + e.sum(-1, keepdims=True), out * old + matmul(e, v[..., keys, :]), new
    return out / total


class Variant:
    """A decoder in NumPy at a given dtype with a choice of product, norm and attention."""

    def __init__(self, name, dtype=np.float32, matmul=flat, norm=pairwise_norm, attention=softmax_attention):
        self.name, self.dtype, self.precision = name, dtype, np.dtype(dtype).name
        self.matmul, self.norm, self.attention = matmul, norm, attention
        self.claims = ("forward",)

    def build(self, config, parameters):
        return VariantModel(self, config, {name: p.astype(self.dtype) for name, p in parameters.items()})


class VariantModel:
    def __init__(self, variant, config, parameters):
        self.variant, self.config, self.parameters_ = variant, config, parameters

    def logits(self, tokens):
        return self.run(tokens)["logits"]

    stages = property(lambda self: self.run)

    def rotate(self, x):
        c, dtype = self.config, x.dtype
        i = np.arange(0, c.head_width, 2)
        frequency = (1.0 / c.rope_base ** (i.astype(dtype) / dtype.type(c.head_width))).astype(dtype)
        angle = np.arange(x.shape[-2], dtype=dtype)[:, None] * frequency
        cos, sin = np.cos(angle), np.sin(angle)
        out = np.empty_like(x)
        out[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
        out[..., 1::2] = x[..., 0::2] * sin + x[..., 1::2] * cos
        return out

    def run(self, tokens):
        c, p, mm, norm = self.config, self.parameters_, self.variant.matmul, self.variant.norm
        epsilon = self.variant.dtype(c.rms_epsilon)
        out = {}
        x = out["embedding"] = p["token_embedding.weight"][tokens]
        b, t, _ = x.shape
        for n in range(c.layers):
            at = f"blocks.{n}."
            a = out[at + "attention_norm"] = norm(x, p[at + "attention_norm.gain"], epsilon)
            heads = []
            for role in ("query", "key", "value"):
                y = mm(a, p[f"{at}attention.{role}.weight"]).reshape(b, t, c.heads, -1).swapaxes(1, 2)
                out[f"{at}attention.{role}"] = y
                heads.append(y)
            q, k, v = self.rotate(heads[0]), self.rotate(heads[1]), heads[2]
            out[at + "attention.rotated_query"], out[at + "attention.rotated_key"] = q, k
            o = out[at + "attention.heads"] = self.variant.attention(q, k, v, self.variant.matmul)
            merged = out[at + "attention.merged"] = o.swapaxes(1, 2).reshape(b, t, -1)
            o = out[at + "attention.output"] = mm(merged, p[at + "attention.output.weight"])
            x = out[at + "after_attention"] = x + o
            a = out[at + "ffn_norm"] = norm(x, p[at + "ffn_norm.gain"], epsilon)
            gate = out[at + "ffn.gate"] = mm(a, p[at + "ffn.gate.weight"])
            silu = out[at + "ffn.silu"] = gate / (1 + np.exp(-gate))
            up = out[at + "ffn.up"] = mm(a, p[at + "ffn.up.weight"])
            product = out[at + "ffn.product"] = silu * up
            down = out[at + "ffn.output"] = mm(product, p[at + "ffn.down.weight"])
            x = out[at + "output"] = x + down
        n = out["final_norm"] = norm(x, p["final_norm.gain"], epsilon)
        out["logits"] = mm(n, p["token_embedding.weight"].T)
        return out


VARIANTS = [
    Variant("flat-float32"),
    Variant("sequential-float32", matmul=sequential),
    Variant("einsum-float32", matmul=einsum, norm=logarithmic_norm),
    Variant("running-float32", attention=running_attention),
]


def in_float64(variant):
    return Variant(variant.name.replace("32", "64"), np.float64, variant.matmul, variant.norm, variant.attention)
