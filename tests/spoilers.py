"""Bad input for every operation that can refuse: each code of the error table with what provokes it."""

from dataclasses import replace

import numpy as np

from decoderspec.reference import Reference
from decoderspec.reference.block import DecoderBlock, DecoderBlockConfig
from decoderspec.reference.model import DecoderModel
from decoderspec.reference.parts import Embedding, NamedParameter, RmsNorm
from decoderspec.reference.splitmix64 import SplitMix64
from decoderspec.spec.config import Config
from decoderspec.spec.errors import MAX_SCALARS
from decoderspec.spec.parameters import parameter_shapes

CONFIG = Config(5, 4, 2, 6, 2, 4)
BLOCK_CONFIG = DecoderBlockConfig(4, 2, 6, 4)
NAN = float("nan")

# Each operation runs on a good input described by a few words; a spoiler changes some of them.
# Spoilers of one operation that change different words can be combined.
BAD_CONFIG = {
    "ConfigError.NotAnInteger": {"layers": 1.0},
    "ConfigError.Negative": {"layers": -1},
    "ConfigError.NotANumber": {"rope_base": "10000"},
    "DecoderModelError.EmptyVocabulary": {"vocabulary_size": 0},
    "DecoderModelError.ZeroModelWidth": {"model_width": 0},
    "DecoderModelError.ZeroHeadCount": {"heads": 0},
    "DecoderModelError.ModelWidthNotDivisible": {"model_width": 5},
    "DecoderModelError.OddHeadWidth": {"model_width": 6},
    "DecoderModelError.ZeroFeedForwardWidth": {"feed_forward_width": 0},
    "DecoderModelError.ZeroPositionCapacity": {"max_positions": 0},
    "DecoderModelError.InvalidRopeBase": {"rope_base": 0.0},
    "DecoderModelError.InvalidRmsEpsilon": {"rms_epsilon": NAN},
    "EmbeddingError.AllocationFailed": {"vocabulary_size": 2**60},
    "DecoderModelError.LayerAllocationFailed": {"layers": 10**12},
}
BAD_VALUE = {
    "ParameterError.Dtype": {"dtype": complex},
    "ParameterError.Shape": {"shape": (3, 3)},
    "ParameterError.NotFinite": {"fill": NAN},
}
BAD_TOKENS = {
    "TokenError.Ragged": {"ragged": True},
    "DecoderModelError.TokenRank": {"rank": 3},
    "DecoderModelError.EmptyBatch": {"batch": 0},
    "DecoderModelError.EmptyTokens": {"length": 0},
    "DecoderModelError.ContextLengthExceeded": {"length": 5},
    "DecoderModelError.TokenCountOverflow": {"batch": MAX_SCALARS},
    "ResourceError.StageTooLarge": {"batch": MAX_SCALARS // 6},
    "TokenError.NotIntegers": {"dtype": float},
    "EmbeddingError.TokenIdOutOfBounds": {"id": -1},
    "RmsNormError.ZeroEnergyRow": {"energy": 0.0},
}
BAD_TARGETS = {
    "TargetError.Ragged": {"targets": [[0], [1, 2]]},
    "DecoderModelError.TargetCountMismatch": {"target_count": 1},
    "TargetError.Shape": {"target_rank": 3},
    "TargetError.NotIntegers": {"target_dtype": bool},
    "DecoderModelError.TargetIdOutOfBounds": {"target_id": 5},
}
SPOILERS = {
    "configuration": BAD_CONFIG,
    "build": {
        **BAD_CONFIG,
        "ParameterError.Missing": {"missing": "blocks.0.ffn.up.weight"},
        "ParameterError.Unknown": {"unknown": "lm_head.weight"},
        **BAD_VALUE,
    },
    "from_parameters": {
        **BAD_CONFIG,
        "DecoderModelError.ParameterCountMismatch": {"dropped": 1},
        "DecoderModelError.ParameterNameMismatch": {"renamed": "embedding"},
        **BAD_VALUE,
        "InitializationError.SharedArray": {"shared": True},
    },
    "from_parts": {
        **BAD_CONFIG,
        "DecoderModelError.EmbeddingVocabularyMismatch": {"table_rows": 6},
        "DecoderModelError.EmbeddingWidthMismatch": {"table_width": 8},
        "DecoderModelError.LayerCountMismatch": {"block_count": 3},
        "DecoderModelError.BlockModelWidthMismatch": {"block_width": 8},
        "DecoderModelError.BlockHeadCountMismatch": {"block_heads": 1},
        "DecoderModelError.BlockFeedForwardWidthMismatch": {"block_hidden": 7},
        "DecoderModelError.BlockPositionCapacityMismatch": {"block_positions": 5},
        "DecoderModelError.BlockRopeBaseMismatch": {"block_base": 100.0},
        "DecoderModelError.BlockRmsEpsilonMismatch": {"block_epsilon": 1e-5},
        "DecoderModelError.FinalNormWidthMismatch": {"norm_width": 8},
        "DecoderModelError.FinalNormEpsilonMismatch": {"norm_epsilon": 1e-5},
        "DecoderModelError.ParameterNameMismatch": {"norm_name": "norm.gain"},
        "InitializationError.SharedArray": {"shared": True},
    },
    "forward": BAD_TOKENS,
    "loss": {**BAD_TOKENS, **BAD_TARGETS},
    "block": {
        "ConfigError.NotAnInteger": {"heads": 2.0},
        "ConfigError.Negative": {"max_positions": -1},
        "ConfigError.NotANumber": {"rms_epsilon": None},
        "RmsNormError.ZeroFeatureWidth": {"model_width": 0},
        "RmsNormError.InvalidEpsilon": {"rms_epsilon": -1.0},
        "MultiHeadAttentionError.ZeroHeadCount": {"heads": 0},
        "MultiHeadAttentionError.ModelWidthNotDivisible": {"heads": 3},
        "RopeError.OddFeatureWidth": {"heads": 4},
        "RopeError.ZeroPositionCapacity": {"max_positions": 0},
        "RopeError.InvalidBase": {"rope_base": float("inf")},
        "SwiGluError.ZeroHiddenWidth": {"feed_forward_width": 0},
        "DecoderModelError.LayerAllocationFailed": {"feed_forward_width": 2**60},
    },
    "block_from_parts": {
        "DecoderBlockError.ComponentWidthMismatch": {"width": 8},
        "InitializationError.DuplicateName": {"name": "block.attention_norm.gain"},
        "InitializationError.SharedArray": {"shared": True},
    },
    "block_forward": {
        "TensorAutodiffError.Released": {"released": True},
        "InputError.NotReal": {"dtype": complex},
        "ResourceError.StageTooLarge": {"batch": MAX_SCALARS // 6},
        "InputError.NotFinite": {"fill": NAN},
        "RmsNormError.InputRank": {"rank": 0},
        "RmsNormError.InputWidth": {"width": 3},
        "RmsNormError.ZeroEnergyRow": {"fill": 0.0},
        "MultiHeadAttentionError.InputRank": {"rank": 2},
        "MultiHeadAttentionError.EmptyTokens": {"length": 0},
        "RopeError.InvalidOffset": {"offset": True},
        "RopeError.PositionOutOfRange": {"offset": 3},
    },
}
# Words that cannot both be wrong: a value where there is none, a large batch of nothing or of another rank.
EXCLUSIVE = {
    "block_forward": ({"fill", "length"}, {"batch", "length"}, {"batch", "rank"}),
    "block_from_parts": ({"width", "shared"},),
}


def fields(config, words):
    return replace(config, **{name: value for name, value in words.items() if name in config.__dataclass_fields__})


def good_parameters(words):
    parameters = {name: np.ones(shape) for name, shape in parameter_shapes(CONFIG).items()}
    first = next(iter(parameters))
    value = np.full(words.get("shape", parameters[first].shape), words.get("fill", 1.0))
    return parameters | {first: value.astype(words.get("dtype", float))}


def configuration(words):
    Reference().initialize(fields(CONFIG, words), 0)


def build(words):
    parameters = good_parameters(words)
    parameters.pop(words.get("missing"), None)
    if "unknown" in words:
        parameters[words["unknown"]] = np.ones(1)
    Reference().build(fields(CONFIG, words), parameters)


def from_parameters(words):
    named = [NamedParameter(*item) for item in good_parameters(words).items()]
    if "renamed" in words:
        named[0] = replace(named[0], name=words["renamed"])
    if "shared" in words:
        named[5] = replace(named[5], value=named[4].value)
    DecoderModel.from_parameters(fields(CONFIG, words), named[words.get("dropped", 0) :])


def from_parts(words):
    sizes = [
        words.get(f"block_{name}", good) for name, good in {"width": 4, "heads": 2, "hidden": 6, "positions": 4}.items()
    ]
    constants = words.get("block_base", 10000.0), words.get("block_epsilon", 1e-6)
    block_config = DecoderBlockConfig(*sizes, *constants)
    blocks = [DecoderBlock.new(f"blocks.{n}", block_config, SplitMix64(n)) for n in range(words.get("block_count", 2))]
    table = NamedParameter("token_embedding.weight", np.ones((words.get("table_rows", 5), words.get("table_width", 4))))
    gain = NamedParameter(words.get("norm_name", "final_norm.gain"), np.ones(words.get("norm_width", 4)))
    norm = RmsNorm.from_gain(gain, words.get("norm_epsilon", 1e-6))
    if "shared" in words:
        second = replace(blocks[1].attention_norm, gain=blocks[0].attention_norm.gain)
        blocks[1] = replace(blocks[1], attention_norm=second)
    DecoderModel.from_parts(fields(CONFIG, words), Embedding.from_parameter(table), blocks, norm)


def token_model(words):
    energy = words.get("energy", 1.0)
    config = replace(CONFIG, rms_epsilon=1e-6 * energy)
    model = Reference().initialize(config, 0)
    model.assign("token_embedding.weight", model.parameters()["token_embedding.weight"] * energy)
    return model


def tokens(words):
    if "ragged" in words:
        return [[words.get("id", 0)], []]
    shape = (words.get("batch", 1), words.get("length", 3), *[1] * (words.get("rank", 2) - 2))
    return np.broadcast_to(np.array(words.get("id", 0), dtype=words.get("dtype", int)), shape)


def targets(words):
    if "targets" in words:
        return words["targets"]
    shape = (1, words.get("target_count", 3), *[1] * (words.get("target_rank", 2) - 2))
    return np.full(shape, words.get("target_id", 0)).astype(words.get("target_dtype", int))


def forward(words):
    token_model(words).logits(tokens(words))


def loss(words):
    token_model(words).loss(tokens(words), targets(words))


def block(words):
    generator = SplitMix64(7)
    try:
        DecoderBlock.new("block", fields(BLOCK_CONFIG, words), generator)
    finally:
        assert generator.state == 7 or not words, "a refusal moved the caller's generator"


def block_from_parts(words):
    whole = DecoderBlock.new("block", BLOCK_CONFIG, SplitMix64(0))
    width = words.get("width", 4)
    gain = whole.attention_norm.gain if "shared" in words else np.ones(width)
    second = NamedParameter(words.get("name", "second"), gain)
    DecoderBlock.from_parts(whole.attention_norm, whole.attention, RmsNorm.from_gain(second, 1e-6), whole.feed_forward)


def block_forward(words):
    whole = DecoderBlock.new("block", replace(BLOCK_CONFIG, rms_epsilon=0.0), SplitMix64(0))
    shape = (words.get("batch", 1), words.get("length", 2), words.get("width", 4))[3 - words.get("rank", 3) :]
    given = np.broadcast_to(np.array(words.get("fill", 1.0)).astype(words.get("dtype", float)), shape)
    if "released" in words:
        given = whole.forward(np.ones((1, 2, 4)))
        given.pullback(np.ones((1, 2, 4)))
    whole.forward(given, words.get("offset", 0))


OPERATIONS = {
    "configuration": configuration,
    "build": build,
    "from_parameters": from_parameters,
    "from_parts": from_parts,
    "forward": forward,
    "loss": loss,
    "block": block,
    "block_from_parts": block_from_parts,
    "block_forward": block_forward,
}
