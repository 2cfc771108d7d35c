"""Hugging Face's `LlamaForCausalLM` on the CPU, as shipped and with its float32 parts replaced.

Whatever its dtype, it computes norms, rotation tables and the eager softmax in float32.
"""

from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from decoderspec.adapters.torch_module import TorchModel, compute_in_own_dtype
from decoderspec.spec.config import Config

OURS, THEIRS = "blocks.{n}.", "model.layers.{n}"
MODULES = {"attention_norm.gain": "input_layernorm", "ffn_norm.gain": "post_attention_layernorm",
    "attention.query.weight": "self_attn.q_proj", "attention.key.weight": "self_attn.k_proj",
    "attention.value.weight": "self_attn.v_proj", "attention.output.weight": "self_attn.o_proj",
    "ffn.gate.weight": "mlp.gate_proj", "ffn.up.weight": "mlp.up_proj", "ffn.down.weight": "mlp.down_proj"}  # fmt: skip
NAMES = {OURS + ours: f"{THEIRS}.{module}.weight" for ours, module in MODULES.items()}
NAMES |= {"token_embedding.weight": "model.embed_tokens.weight", "final_norm.gain": "model.norm.weight"}
TAPS = {OURS + "output": THEIRS, OURS + "ffn.silu": THEIRS + ".mlp.act_fn"}
TAPS[OURS + "attention.weights"] = THEIRS + ".self_attn:1"
# Measured stage by stage; all else is right to the last bits of float64.
IN_FLOAT32 = ("attention_norm", "ffn_norm", "final_norm", "tables", "attention.weights")
SHIPPED = {"results": "float64", **dict.fromkeys(IN_FLOAT32, "float32")}


class Llama:
    """A `LlamaForCausalLM` of some dtype and attention; `own_dtype` replaces what it would do in float32."""

    claims = ("forward", "training", "weights")

    def __init__(self, dtype: str, attention: str, precision: Any, own_dtype: bool = False) -> None:
        self.name = f"transformers Llama, {dtype}, {attention}" + ", no float32 inside" * own_dtype
        self.layout = {"rotation": "half_split", "matrices": "out_in", "names": NAMES}
        self.precision, self.own_dtype = precision, own_dtype
        self.options = {"dtype": getattr(torch, dtype), "attn_implementation": attention}

    def build(self, config: Config, parameters: Any) -> TorchModel:
        """The module with these parameters, its head tied to its table."""
        settings = LlamaConfig(
            vocab_size=config.vocabulary_size, hidden_size=config.model_width, use_cache=False,
            intermediate_size=config.feed_forward_width, num_hidden_layers=config.layers,
            num_attention_heads=config.heads, max_position_embeddings=config.max_positions,
            rms_norm_eps=config.rms_epsilon, tie_word_embeddings=True, bos_token_id=None, eos_token_id=None,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_base},
        )  # fmt: skip
        module = AutoModelForCausalLM.from_config(settings, **self.options)
        if self.own_dtype:
            compute_in_own_dtype(module, config)
        return TorchModel(module, config, NAMES, TAPS, head="lm_head.weight").load(parameters)


float64_declared = Llama("float64", "eager", "float64")  # to be caught: most of it is computed in float32
as_shipped = Llama("float64", "eager", SHIPPED)
float32 = Llama("float32", "eager", "float32")
bfloat16 = Llama("bfloat16", "eager", "bfloat16")
sdpa_same_dtype = Llama("float64", "sdpa", "float64", own_dtype=True)
