"""A decoder in plain JAX with its adapter: `decoderspec check examples/plain_jax.py:float32`"""

import jax
import jax.numpy as jnp

from decoderspec.adapters.jax_function import JaxFunction


def decoder(config, parameters, tokens, keep):
    """Token ids `[B, T]` to logits `[B, T, V]`; `parameters` has the table, the head, the blocks and the last gain."""
    x = parameters["embed"][tokens]  # [B, T, d]
    keep("embedding", x)
    for n, block in enumerate(parameters["blocks"]):
        n1 = rms_norm(config, x, block["norm_1"])
        x = x + attention(config, block, n1, lambda stage, value, n=n: keep(f"blocks.{n}.{stage}", value))
        keep(f"blocks.{n}.after_attention", x)
        m = rms_norm(config, x, block["norm_2"])
        gate, up = jnp.split(m @ block["gate_up"], 2, axis=-1)  # [B, T, f] each
        keep(f"blocks.{n}.ffn_norm", m)
        keep(f"blocks.{n}.ffn.gate", gate)
        keep(f"blocks.{n}.ffn.up", up)
        x = x + (jax.nn.silu(gate) * up) @ block["down"]
        keep(f"blocks.{n}.output", x)
    x = rms_norm(config, x, parameters["norm"])
    keep("final_norm", x)
    return x @ parameters["unembed"].T


def attention(config, block, n, keep):
    q, k, v = (heads(config, part) for part in jnp.split(n @ block["qkv"], 3, axis=-1))  # [B, h, T, w] each
    for role, value in (("query", q), ("key", k), ("value", v)):
        keep(f"attention.{role}", value)
    q, k = rotate(q, config.rope_base), rotate(k, config.rope_base)
    scores = jnp.einsum("bhtw,bhsw->bhts", q, k) / config.head_width**0.5
    weights = jax.nn.softmax(jnp.where(jnp.tri(n.shape[1], dtype=bool), scores, -jnp.inf))
    merged = jnp.einsum("bhts,bhsw->bthw", weights, v).reshape(n.shape)
    for stage, value in (("attention_norm", n), ("attention.rotated_query", q), ("attention.rotated_key", k),
                         ("attention.weights", weights), ("attention.merged", merged)):  # fmt: skip
        keep(stage, value)
    return merged @ block["out"]


def heads(config, x):
    return x.reshape(*x.shape[:2], config.heads, -1).swapaxes(1, 2)


def rms_norm(config, x, gain):
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + config.rms_epsilon) * gain


def rotate(x, base):
    tokens, width = x.shape[-2:]
    angle = jnp.outer(jnp.arange(tokens, dtype=x.dtype), base ** -(jnp.arange(0, width, 2, dtype=x.dtype) / width))
    a, b = jnp.split(x, 2, axis=-1)  # halves
    return jnp.concatenate([a * jnp.cos(angle) - b * jnp.sin(angle), a * jnp.sin(angle) + b * jnp.cos(angle)], -1)


def arrange(flat):
    """Names with dots as a list of blocks and a few entries beside it."""
    found, blocks = {}, {}
    for name, value in flat.items():
        place = found if "." not in name else blocks.setdefault(int(name.split(".")[1]), {})
        place[name.rpartition(".")[2]] = value
    return {**found, "blocks": [blocks[n] for n in sorted(blocks)]}


OURS, THEIRS = "blocks.{n}.", "blocks.{n}."
NAMES = {"token_embedding.weight": "embed", "final_norm.gain": "norm", OURS + "attention_norm.gain": THEIRS + "norm_1",
         OURS + "attention.output.weight": THEIRS + "out", OURS + "ffn_norm.gain": THEIRS + "norm_2",
         OURS + "ffn.down.weight": THEIRS + "down"}  # fmt: skip
FUSED = {
    THEIRS + "qkv": [OURS + f"attention.{role}.weight" for role in ("query", "key", "value")],
    THEIRS + "gate_up": [OURS + "ffn.gate.weight", OURS + "ffn.up.weight"],
}
OPTIONS = {
    "layout": {"rotation": "half_split", "names": NAMES, "fused": FUSED},
    "arrange": arrange,
    "head": "unembed",
    "keeps": True,
}
float32 = JaxFunction(decoder, "float32", **OPTIONS)
float64 = JaxFunction(decoder, "float64", **OPTIONS)
bfloat16 = JaxFunction(decoder, "bfloat16", **OPTIONS)
