"""LitGPT's `GPT` on the CPU: a LLaMA of its configuration, with fused query, key and value, in either layout of pairs.

Whatever its dtype, it computes norms and rotation tables in float32.
"""

from typing import Any

import torch
from litgpt.config import Config as LitConfig
from litgpt.model import GPT

from decoderspec.adapters.torch_module import TorchModel
from decoderspec.spec.config import Config

OURS, THEIRS = "blocks.{n}.", "transformer.h.{n}"
MODULES = {"attention_norm.gain": "norm_1", "ffn_norm.gain": "norm_2", "attention.output.weight": "attn.proj",
    "ffn.gate.weight": "mlp.fc_1", "ffn.up.weight": "mlp.fc_2", "ffn.down.weight": "mlp.proj"}  # fmt: skip
NAMES = {OURS + ours: f"{THEIRS}.{module}.weight" for ours, module in MODULES.items()}
NAMES |= {"token_embedding.weight": "transformer.wte.weight", "final_norm.gain": "transformer.ln_f.weight"}
ROLES = ("query", "key", "value")
FUSED = {THEIRS + ".attn.qkv.weight": [f"{OURS}attention.{role}.weight" for role in ROLES]}
TAPS = {OURS + "output": THEIRS}
TAPS |= {f"{OURS}attention.{role}": f"{THEIRS}.attn.qkv:{part}/3" for part, role in enumerate(ROLES)}
# Measured stage by stage; all else is right to the last bits of float64.
IN_FLOAT32 = ("attention_norm", "ffn_norm", "final_norm", "tables")
SHIPPED = {"results": "float64", **dict.fromkeys(IN_FLOAT32, "float32")}


class LitGPT:
    """A `GPT` of some dtype, as it is made under that default dtype."""

    claims = ("forward", "training", "weights")

    def __init__(self, dtype: str, precision: Any, interleave: bool = False) -> None:
        self.name = f"LitGPT GPT, {dtype}" + ", interleaved pairs" * interleave
        rotation = "adjacent" if interleave else "half_split"
        self.layout = {"rotation": rotation, "matrices": "out_in", "names": NAMES, "fused": FUSED}
        self.precision, self.dtype, self.interleave = precision, getattr(torch, dtype), interleave

    def build(self, config: Config, parameters: Any) -> TorchModel:
        """The module with these parameters, its head tied to its table."""
        settings = LitConfig(
            block_size=config.max_positions, n_layer=config.layers, n_embd=config.model_width, n_head=config.heads,
            vocab_size=config.vocabulary_size, padded_vocab_size=config.vocabulary_size,
            intermediate_size=config.feed_forward_width, norm_class_name="RMSNorm", norm_eps=config.rms_epsilon,
            rope_base=config.rope_base, rotary_percentage=1.0, rope_interleave=self.interleave,
            parallel_residual=False, bias=False, mlp_class_name="LLaMAMLP",
        )  # fmt: skip
        before = torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)
        try:
            module = GPT(settings)
        finally:
            torch.set_default_dtype(before)
        head = module.lm_head
        del module.lm_head  # and back: the first module that has the weight gives it its name
        head.weight = module.transformer.wte.weight
        module.lm_head = head
        return TorchModel(module, config, NAMES, TAPS, head="lm_head.weight").load(parameters)


float64_declared = LitGPT("float64", "float64")  # to be caught: norms and tables are computed in float32
as_shipped = LitGPT("float64", SHIPPED)
interleaved = LitGPT("float64", SHIPPED, interleave=True)
float32 = LitGPT("float32", "float32")
bfloat16 = LitGPT("bfloat16", "bfloat16")
