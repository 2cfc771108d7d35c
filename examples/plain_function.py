"""The smallest useful thing to test: a function. `decoderspec check examples/plain_function.py:logits`"""

import numpy as np


def logits(config, parameters, tokens):
    x = parameters["token_embedding.weight"][tokens]  # [B, T, d]
    for n in range(config.layers):
        block = {name.removeprefix(f"blocks.{n}."): value for name, value in parameters.items()}
        a = rms_norm(x, block["attention_norm.gain"], config.rms_epsilon)
        q, k, v = (split(a @ block[f"attention.{name}.weight"], config.heads) for name in ("query", "key", "value"))
        q, k = rotate(q, config.rope_base), rotate(k, config.rope_base)
        scores = q @ k.swapaxes(-1, -2) / np.sqrt(config.head_width)  # [B, h, T, S]
        scores[..., np.triu(np.ones(scores.shape[-2:], dtype=bool), 1)] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        x = x + (weights @ v).swapaxes(1, 2).reshape(x.shape) @ block["attention.output.weight"]
        m = rms_norm(x, block["ffn_norm.gain"], config.rms_epsilon)
        gate = m @ block["ffn.gate.weight"]
        x = x + (gate / (1 + np.exp(-gate)) * (m @ block["ffn.up.weight"])) @ block["ffn.down.weight"]
    return rms_norm(x, parameters["final_norm.gain"], config.rms_epsilon) @ parameters["token_embedding.weight"].T


logits.claims = ["forward"]  # it refuses nothing, so it does not stand for the contract `inputs`


def rms_norm(x, gain, epsilon):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * gain


def split(x, heads):
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)  # [B, h, T, w]


def rotate(x, base):
    tokens, width = x.shape[-2:]
    angles = np.outer(np.arange(tokens), base ** (-np.arange(0, width, 2) / width))  # [T, w/2]
    a, b = x[..., ::2], x[..., 1::2]
    return np.stack([a * np.cos(angles) - b * np.sin(angles), a * np.sin(angles) + b * np.cos(angles)], -1).reshape(
        x.shape
    )
