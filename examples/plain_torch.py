"""A decoder in plain PyTorch and the adapter that tests it: the thing to copy.

`decoderspec check examples/plain_torch.py:PlainTorch`
"""

import math
import numbers

import numpy as np
import torch
from torch import nn
from torch.nn.functional import silu

from decoderspec.adapters.torch_module import TorchModel

# ---------------------------------------------------------------- the decoder: yours goes here


class RMSNorm(nn.Module):
    def __init__(self, width, epsilon):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x):
        mean_square = x.square().mean(-1, keepdim=True)
        if self.epsilon == 0 and (mean_square == 0).any():
            raise BadInput("numeric", "a row has zero mean square and epsilon is zero")
        return x * torch.rsqrt(mean_square + self.epsilon) * self.weight


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        d = config.model_width
        self.heads, self.base = config.heads, config.rope_base
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(d, d, bias=False) for _ in range(4))
        self.softmax = nn.Softmax(-1)

    def forward(self, x):
        q, k, v = (w(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        q, k = rotate(q, self.base), rotate(k, self.base)  # [B, h, T, w]
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])  # [B, h, T, S]
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        weights = self.softmax(scores.masked_fill(future, -math.inf))
        return self.wo((weights @ v).transpose(1, 2).flatten(-2))


def rotate(x, base):
    tokens, width = x.shape[-2:]
    frequencies = base ** (-torch.arange(0, width, 2, dtype=x.dtype) / width)
    angles = torch.outer(torch.arange(tokens, dtype=x.dtype), frequencies)  # [T, w/2]
    a, b = x[..., ::2], x[..., 1::2]
    rotated = a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()
    return torch.stack(rotated, -1).flatten(-2)


class FeedForward(nn.Module):
    def __init__(self, config):
        super().__init__()
        d, f = config.model_width, config.feed_forward_width
        self.w1, self.w2, self.w3 = (nn.Linear(*sizes, bias=False) for sizes in ((d, f), (f, d), (d, f)))

    def forward(self, x):
        return self.w2(silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.norm1, self.norm2 = (RMSNorm(config.model_width, config.rms_epsilon) for _ in range(2))
        self.attention, self.ffn = Attention(config), FeedForward(config)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.ffn(self.norm2(x))


class Decoder(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed = nn.Embedding(config.vocabulary_size, config.model_width)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.model_width, config.rms_epsilon)
        self.head = nn.Linear(config.model_width, config.vocabulary_size, bias=False)
        self.head.weight = self.embed.weight  # tied: one parameter in two roles

    def forward(self, tokens):  # [B, T] -> [B, T, V]
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


# ---------------------------------------------------------------- what it refuses


class BadInput(ValueError):
    def __init__(self, category, message):
        super().__init__(message)
        self.category = category


def check_config(config):
    d, h, sizes = config.model_width, config.heads, ("vocabulary_size", "model_width", "heads")
    for name in (*sizes, "feed_forward_width", "layers", "max_positions"):
        value, least = getattr(config, name), 0 if name == "layers" else 1
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Integral) or value < least:
            raise BadInput("configuration", f"{name} must be an integer of at least {least}, got {value!r}")
    if d % h or d // h % 2:
        raise BadInput("configuration", f"model_width {d} must be {h} heads of an even width")
    for name in ("rope_base", "rms_epsilon"):
        value = getattr(config, name)
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real) or not 0 <= value < math.inf:
            raise BadInput("configuration", f"{name} must be finite and not negative, got {value!r}")
    if config.rope_base == 0:
        raise BadInput("configuration", "rope_base must be positive, got 0")
    scalars = config.vocabulary_size * d + config.layers * (4 * d + 3 * config.feed_forward_width + 2) * d + d
    if scalars > 2**40:
        raise BadInput("resource", f"{scalars} parameters are more than this will allocate")


def integers(name, category, values):
    try:
        array = np.asarray(values)
    except ValueError as reason:
        raise BadInput(category, f"{name} must not be ragged") from reason
    if array.size and array.dtype.kind not in "iu":
        raise BadInput(category, f"{name} must be integers, got {array.dtype}")
    return array  # any integers: those beyond int64 are refused as ids below


def check_ids(name, category, ids, vocabulary_size):
    if ((ids < 0) | (ids >= vocabulary_size)).any():
        raise BadInput(category, f"{name} must lie in 0..{vocabulary_size - 1}, got {ids.min()}..{ids.max()}")


# ---------------------------------------------------------------- the adapter

NAMES = {
    "token_embedding.weight": "embed.weight",
    "blocks.{n}.attention_norm.gain": "layers.{n}.norm1.weight",
    "blocks.{n}.attention.query.weight": "layers.{n}.attention.wq.weight",
    "blocks.{n}.attention.key.weight": "layers.{n}.attention.wk.weight",
    "blocks.{n}.attention.value.weight": "layers.{n}.attention.wv.weight",
    "blocks.{n}.attention.output.weight": "layers.{n}.attention.wo.weight",
    "blocks.{n}.ffn_norm.gain": "layers.{n}.norm2.weight",
    "blocks.{n}.ffn.gate.weight": "layers.{n}.ffn.w1.weight",
    "blocks.{n}.ffn.up.weight": "layers.{n}.ffn.w3.weight",
    "blocks.{n}.ffn.down.weight": "layers.{n}.ffn.w2.weight",
    "final_norm.gain": "norm.weight",
}
TAPS = {  # stages that no weight's module shows
    "blocks.{n}.attention.weights": "layers.{n}.attention.softmax",
    "blocks.{n}.output": "layers.{n}",
}
LAYOUT = {"rotation": "adjacent", "matrices": "out_in", "names": NAMES}


class PlainTorch:
    name = "plain PyTorch"
    precision = "float64"
    layout = LAYOUT
    # No `claims`: it stands for everything that can be reached.

    def build(self, config, parameters):
        check_config(config)
        module = Decoder(config).to(getattr(torch, self.precision))
        try:
            return Model(module, config, NAMES, TAPS, head="head.weight").load(parameters)
        except ValueError as reason:
            raise BadInput("parameters", str(reason)) from reason

    def classify(self, error):
        return getattr(error, "category", None)


class Model(TorchModel):
    """A `TorchModel` that looks at what it is given; leave `inputs` out of the claims and this is not needed."""

    def check(self, tokens, targets=None):
        ids = integers("tokens", "token_shape", tokens)
        if ids.ndim != 2 or ids.size == 0:
            raise BadInput("token_shape", f"tokens must be [B, T] and not empty, got shape {ids.shape}")
        if ids.shape[1] > self.config.max_positions:
            raise BadInput("context", f"{ids.shape[1]} tokens exceed {self.config.max_positions} positions")
        if targets is not None:
            targets = integers("targets", "target_shape", targets)
            if targets.shape not in (ids.shape, (ids.size,)):
                raise BadInput("target_shape", f"targets must be {ids.shape} or flat, got shape {targets.shape}")
            check_ids("targets", "target_vocabulary", targets, self.config.vocabulary_size)
        check_ids("tokens", "vocabulary", ids, self.config.vocabulary_size)
        return ids.astype(np.int64), targets

    def assign(self, name, value):
        if name not in self.parameters():
            raise BadInput("parameters", f"there is no parameter {name}")
        if not torch.isfinite(torch.as_tensor(value)).all():
            raise BadInput("parameters", f"{name} holds values that are not finite")
        try:
            super().assign(name, value)
        except ValueError as reason:
            raise BadInput("parameters", str(reason)) from reason
