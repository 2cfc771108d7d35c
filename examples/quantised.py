"""A checkpoint that is judged as it stands: `decoderspec check examples/quantised.py:Quantised`

An int8 decoder in NumPy: whole numbers with one scale for each output, widened before they are used. Nobody can build
it from weights that are drawn, so it hands out its own.
"""

import numpy as np

from decoderspec.spec.config import Config

SIZES = Config(
    vocabulary_size=11, model_width=12, heads=2, feed_forward_width=7, layers=2, max_positions=16, rms_epsilon=1e-3
)
LAYOUT = {"matrices": "out_in"}  # of the weights that are handed out; the suite turns them back
KINDS = {"query": (12, 12), "key": (12, 12), "value": (12, 12), "output": (12, 12), "gate": (12, 7), "up": (12, 7),
         "down": (7, 12)}  # fmt: skip


class Quantised:
    name = "int8 decoder"
    precision = "float32"
    layout = LAYOUT
    claims = ("forward",)

    def load(self):
        """The configuration, the weights that it computes with, and the model."""
        model = Model(checkpoint())
        return SIZES, model.widened(), model


def checkpoint():
    """What a file would hold: name -> (int8 numbers `[out, in]`, float32 scales `[out, 1]`), and the gains."""
    random = np.random.default_rng(8)
    stored = {"token_embedding.weight": quantised(random.normal(size=(11, 12)))}
    for n in range(SIZES.layers):
        for kind, (rows, columns) in KINDS.items():
            part = "ffn" if kind in ("gate", "up", "down") else "attention"
            stored[f"blocks.{n}.{part}.{kind}.weight"] = quantised(random.normal(size=(columns, rows)) / rows**0.5)
        for norm in ("attention_norm", "ffn_norm"):
            stored[f"blocks.{n}.{norm}.gain"] = random.uniform(0.5, 1.5, 12).astype(np.float32)
    return {**stored, "final_norm.gain": random.uniform(0.5, 1.5, 12).astype(np.float32)}


def quantised(weight):
    scale = (np.abs(weight).max(1, keepdims=True) / 127).astype(np.float32)
    return np.rint(weight / scale).astype(np.int8), scale


class Model:
    def __init__(self, stored):
        self.stored = stored

    def weight(self, name):
        """The values in use: the product is rounded to float32, and that is what is handed out."""
        numbers, scale = self.stored[name]
        return numbers.astype(np.float32) * scale

    def widened(self):
        return {name: self.weight(name) if name.endswith("weight") else gain for name, gain in self.stored.items()}

    def logits(self, tokens):
        x = self.weight("token_embedding.weight")[tokens]  # [B, T, d]
        for n in range(SIZES.layers):
            x = x + self.attention(f"blocks.{n}.attention", self.norm(f"blocks.{n}.attention_norm", x))
            m = self.norm(f"blocks.{n}.ffn_norm", x)
            gate, up = (m @ self.weight(f"blocks.{n}.ffn.{kind}.weight").T for kind in ("gate", "up"))
            x = x + (gate / (1 + np.exp(-gate)) * up) @ self.weight(f"blocks.{n}.ffn.down.weight").T
        return self.norm("final_norm", x) @ self.weight("token_embedding.weight").T

    def attention(self, at, n):
        q, k, v = (heads(n @ self.weight(f"{at}.{kind}.weight").T) for kind in ("query", "key", "value"))
        scores = rotate(q) @ rotate(k).swapaxes(-1, -2) / np.float32(SIZES.head_width**0.5)
        scores = np.where(np.tri(n.shape[1], dtype=bool), scores, -np.inf)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = shares / shares.sum(-1, keepdims=True) @ v
        return mixed.swapaxes(1, 2).reshape(n.shape) @ self.weight(f"{at}.output.weight").T

    def norm(self, name, x):
        root = np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(SIZES.rms_epsilon))
        return x / root * self.stored[f"{name}.gain"]


def heads(x):
    return x.reshape(*x.shape[:2], SIZES.heads, -1).swapaxes(1, 2)  # [B, h, T, w]


def rotate(x):
    """Adjacent pairs, by angles that are computed in float64."""
    width = x.shape[-1]
    angle = np.outer(np.arange(x.shape[-2]), SIZES.rope_base ** -(np.arange(0, width, 2) / width))
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    a, b = x[..., ::2], x[..., 1::2]
    return np.stack([a * cos - b * sin, a * sin + b * cos], -1).reshape(x.shape)
