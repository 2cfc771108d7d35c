"""The decoder of x-transformers on the CPU, set up as a LLaMA: close to it, but with no epsilon in its norm.

`F.normalize` divides by the root alone, so with an epsilon above 0 it is another decoder, and is caught as such. It has
no output matrix where there is one head, and its rotation divides by zero at a head width of 2.
"""

from typing import Any

import torch
from x_transformers import Decoder, TransformerWrapper
from x_transformers.x_transformers import RotaryEmbedding

from decoderspec.adapters.torch_module import TorchModel
from decoderspec.spec.config import Config

OURS, THEIRS = "blocks.{n}.", "blocks.{n}"
MODULES = {"attention_norm.gain": "0.0.0.g", "ffn_norm.gain": "1.0.0.g", "attention.query.weight": "0.1.to_q.weight",
    "attention.key.weight": "0.1.to_k.weight", "attention.value.weight": "0.1.to_v.weight",
    "attention.output.weight": "0.1.to_out.weight", "ffn.down.weight": "1.1.ff.2.weight"}  # fmt: skip
NAMES = {OURS + ours: f"{THEIRS}.{module}" for ours, module in MODULES.items()}
NAMES |= {"token_embedding.weight": "table.weight", "final_norm.gain": "norm.g"}
GLU = THEIRS + ".1.1.ff.0.proj"  # the linear part first, then the gate
FUSED = {GLU + ".weight": [OURS + "ffn.up.weight", OURS + "ffn.gate.weight"]}
TAPS = {OURS + "ffn.up": GLU + ":0/2", OURS + "ffn.gate": GLU + ":1/2", OURS + "output": THEIRS + ".1.2"}
TAPS |= {OURS + "ffn.silu": THEIRS + ".1.1.ff.0.act"}
MANY_HEADS = {"heads": {"min": 2}, "head_width": {"min": 4}}

# Measured stage by stage; all else is right to the last bits of float64.
SHIPPED = {"results": "float64", "tables": "float32", "attention.weights": "float32"}


class Renamed(torch.nn.Module):  # type: ignore[misc]  # mypy does not follow torch
    """The module with its layers in pairs: they alternate attention and feed-forward in one list."""

    def __init__(self, whole: Any, layers: int) -> None:
        super().__init__()
        self.table, self.norm = whole.token_emb.emb, whole.attn_layers.final_norm
        parts = whole.attn_layers.layers
        self.blocks = torch.nn.ModuleList([torch.nn.ModuleList(parts[2 * n : 2 * n + 2]) for n in range(layers)])
        self.whole = whole

    def forward(self, tokens: Any) -> Any:
        """The logits."""
        return self.whole(tokens)


class XTransformers:
    """A `TransformerWrapper` around a `Decoder` of some dtype."""

    claims = ("forward", "training", "weights")

    def __init__(self, dtype: str, precision: Any, further_limits: dict[str, Any]) -> None:
        self.name = f"x-transformers Decoder, {dtype}" + ", epsilon 0" * bool(further_limits)
        self.layout = {"matrices": "out_in", "names": NAMES, "fused": FUSED, "gain_offset": 1.0}
        self.limits = {**MANY_HEADS, **further_limits}
        self.precision, self.dtype = precision, getattr(torch, dtype)

    def build(self, config: Config, parameters: Any) -> TorchModel:
        """The module with these parameters; its rotation with their base, and no bias in the gated layer."""
        layers = Decoder(
            dim=config.model_width, depth=config.layers, heads=config.heads, attn_dim_head=config.head_width,
            use_rmsnorm=True, rotary_pos_emb=True, rotary_emb_dim=config.head_width, ff_glu=True, ff_swish=True,
            ff_no_bias=True, ff_mult=(config.feed_forward_width + 0.5) / config.model_width, verbose=False,
        )  # fmt: skip
        whole = TransformerWrapper(
            num_tokens=config.vocabulary_size, max_seq_len=config.max_positions, attn_layers=layers,
            use_abs_pos_emb=False, tie_embedding=True, tie_embedding_scale=1.0,
        )  # fmt: skip
        layers.rotary_pos_emb = RotaryEmbedding(config.head_width, base=config.rope_base)
        module = Renamed(whole, config.layers)
        for _, feed_forward in module.blocks:
            feed_forward[1].ff[0].proj.register_parameter("bias", None)
        return TorchModel(module.to(self.dtype), config, NAMES, TAPS).load(parameters)


as_it_is = XTransformers("float32", "float32", {})  # to be caught: there is no epsilon
float64 = XTransformers("float64", SHIPPED, {"rms_epsilon": [0.0]})
float32 = XTransformers("float32", "float32", {"rms_epsilon": [0.0]})
bfloat16 = XTransformers("bfloat16", "bfloat16", {"rms_epsilon": [0.0]})
