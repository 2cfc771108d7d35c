"""Names and shapes of the stages, in forward order (section 3 of the text): what each step of the decoder puts out."""

from decoderspec.spec.config import Config

ATTENTION_STAGES = (
    "attention_norm",
    "attention.query",
    "attention.key",
    "attention.value",
    "attention.rotated_query",
    "attention.rotated_key",
    "attention.weights",
    "attention.heads",
    "attention.merged",
    "attention.output",
    "after_attention",
)
FEED_FORWARD_STAGES = ("ffn_norm", "ffn.gate", "ffn.silu", "ffn.up", "ffn.product", "ffn.output", "output")
BLOCK_STAGES = ATTENTION_STAGES + FEED_FORWARD_STAGES


def stage_names(layers: int) -> tuple[str, ...]:
    """Every stage of a decoder with so many layers, in forward order."""
    blocks = [f"blocks.{layer}.{stage}" for layer in range(layers) for stage in BLOCK_STAGES]
    return ("embedding", *blocks, "final_norm", "logits")


def suffix(stage: str) -> str:
    """The stage's name without its block: `blocks.3.ffn.gate` is `ffn.gate`."""
    return stage.split(".", 2)[2] if stage.startswith("blocks.") else stage


def stage_shape(stage: str, config: Config, batch: int, tokens: int) -> tuple[int, ...]:
    """Shape of a stage for tokens of shape `[batch, tokens]`."""
    match suffix(stage):
        case "logits":
            return (batch, tokens, config.vocabulary_size)
        case "attention.weights":
            return (batch, config.heads, tokens, tokens)
        case "ffn.gate" | "ffn.silu" | "ffn.up" | "ffn.product":
            return (batch, tokens, config.feed_forward_width)
        case "attention.query" | "attention.key" | "attention.value" | "attention.heads":
            return (batch, config.heads, tokens, config.head_width)
        case "attention.rotated_query" | "attention.rotated_key":
            return (batch, config.heads, tokens, config.head_width)
        case _:
            return (batch, tokens, config.model_width)
