"""Every row of the error table that Python can reach is provoked, alone and against every other of its operation."""

import math
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from decoderspec.reference import Reference
from decoderspec.reference.block import DecoderBlock, DecoderBlockConfig, assemble
from decoderspec.reference.model import DecoderModel
from decoderspec.reference.parts import Embedding, MultiHeadAttention, NamedParameter, RmsNorm, SwiGlu
from decoderspec.reference.splitmix64 import SplitMix64
from decoderspec.spec.config import Config
from decoderspec.spec.errors import (
    CATEGORIES,
    ERRORS,
    MAX_SCALARS,
    OF_ITS_CAUSE,
    ORDER,
    UNREACHABLE,
    SpecError,
    debug,
    error,
)
from decoderspec.spec.parameters import BLOCK_PARAMETERS, parameter_shapes

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
        "RopeError.InvalidBase": {"rope_base": math.inf},
        "SwiGluError.ZeroHiddenWidth": {"feed_forward_width": 0},
        "DecoderModelError.LayerAllocationFailed": {"feed_forward_width": 2**60},
    },
    "block_from_parts": {
        "DecoderBlockError.ComponentWidthMismatch": {"width": 8},
        "InitializationError.DuplicateName": {"name": "block.attention_norm.gain"},
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
EXCLUSIVE = {"block_forward": ({"fill", "length"}, {"batch", "length"}, {"batch", "rank"})}


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
    second = NamedParameter(words.get("name", "second"), np.ones(width))
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
    name: globals()[name]
    for name in (
        "configuration",
        "build",
        "from_parameters",
        "from_parts",
        "forward",
        "loss",
        "block",
        "block_from_parts",
        "block_forward",
    )
}


def provoked(attempt, *arguments) -> SpecError:
    with pytest.raises(SpecError) as caught:
        attempt(*arguments)
    return caught.value


def zero_branch_sum() -> DecoderBlock:
    """A block whose attention answers with the negative of the stream, so that the second norm meets zeros."""
    shapes = {"gain": np.ones(2), "eye": np.eye(2)}
    values = [shapes["gain"], *[shapes["eye"]] * 3, -np.eye(2), shapes["gain"], *[shapes["eye"]] * 3]
    named = [NamedParameter(name, value) for name, value in zip(BLOCK_PARAMETERS, values, strict=True)]
    return assemble(DecoderBlockConfig(2, 1, 2, 4, rms_epsilon=0.0), named)


def recorded():
    return DecoderBlock.new("block", BLOCK_CONFIG, SplitMix64(0)).forward(np.ones((1, 2, 4)))


def named(*shape, fill=1.0):
    return NamedParameter("p", np.full(shape, fill))


EXTRAS = {  # what no ordered operation shows
    "ParameterError.Rank": lambda: Embedding.from_parameter(named(4)),
    "EmbeddingError.Parameter": lambda: Embedding.from_parameter(named(4)),
    "RmsNormError.Parameter": lambda: RmsNorm.from_gain(named(2, 2), 0.0),
    "MultiHeadAttentionError.ZeroModelWidth": lambda: MultiHeadAttention.from_parameters(*[named(0, 0)] * 4, 1, 4, 1.0),
    "MultiHeadAttentionError.Parameter": lambda: MultiHeadAttention.from_parameters(*[named(2, 3)] * 4, 1, 4, 1.0),
    "SwiGluError.ZeroInputWidth": lambda: SwiGlu.from_parameters(named(0, 2), named(0, 2), named(2, 0)),
    "SwiGluError.ZeroOutputWidth": lambda: SwiGlu.from_parameters(named(1, 2), named(1, 2), named(2, 0)),
    "SwiGluError.Parameter": lambda: SwiGlu.from_parameters(named(1, 2), named(1, 3), named(2, 1)),
    "DecoderBlockError.FeedForwardNorm": lambda: zero_branch_sum().forward([[[1.0, 1.0]]]),
    "DecoderModelError.FinalNorm": lambda: DecoderModel.from_parameters(
        replace(CONFIG, layers=0),
        [NamedParameter("token_embedding.weight", np.ones((5, 4))), NamedParameter("final_norm.gain", np.ones(3))],
    ),
    "GeneratorError.Seed": lambda: Reference().initialize(CONFIG, -1),
    "InputError.UpstreamShape": lambda: recorded().pullback(np.ones(4)),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_good_input_is_accepted(operation):
    OPERATIONS[operation]({})


@pytest.mark.parametrize("operation", OPERATIONS)
def test_each_spoiler_gives_its_own_code(operation):
    order = ORDER[operation]
    assert set(order) == set(SPOILERS[operation])
    got = {code: provoked(OPERATIONS[operation], SPOILERS[operation][code]).chain()[-1] for code in order}
    assert got == {code: code for code in order}


def conflicts(operation) -> Iterator[tuple[str, str, dict]]:
    """Pairs in the documented order whose spoilers touch different words."""
    for first, second in combinations(ORDER[operation], 2):
        one, other = SPOILERS[operation][first], SPOILERS[operation][second]
        words = {*one, *other}
        if len(words) == len(one) + len(other) and not any(pair <= words for pair in EXCLUSIVE.get(operation, ())):
            yield first, second, one | other


@pytest.mark.parametrize("operation", OPERATIONS)
def test_first_failure_in_the_order_wins(operation):
    wrong = [
        (first, second, chain[-1])
        for first, second, words in conflicts(operation)
        if (chain := provoked(OPERATIONS[operation], words).chain())[-1] != first
    ]
    assert wrong == []


def test_every_reachable_row_is_provoked():
    attempts = [(OPERATIONS[o], words) for o, rows in SPOILERS.items() for words in rows.values()]
    seen = {code for attempt, words in attempts for code in provoked(attempt, words).chain()}
    for code, attempt in EXTRAS.items():
        chain = provoked(attempt).chain()
        assert code in chain
        seen |= set(chain)
    assert set(ERRORS) - seen == set(UNREACHABLE)


def test_wrapping_rows_have_the_category_and_message_of_their_cause():
    failure = provoked(Reference().initialize(CONFIG, 0).logits, [[0, 5]])
    assert failure.chain() == ("DecoderModelError.Embedding", "EmbeddingError.TokenIdOutOfBounds")
    assert (failure.category, failure.values) == ("vocabulary", {})
    assert failure.__cause__.values == {"position": 1, "id": 5, "vocabulary_size": 5}
    assert str(failure) == f"token embedding: {failure.__cause__}"


def test_a_block_is_named_with_its_layer_down_to_the_row():
    model = Reference().initialize(replace(CONFIG, rms_epsilon=0.0), 0)
    model.assign("token_embedding.weight", np.diag([1.0] * 5)[:, :4])  # id 4 is a row of zeros
    failure = provoked(model.logits, [[0, 1], [2, 4]])
    assert failure.chain() == (
        "DecoderModelError.Block",
        "DecoderBlockError.AttentionNorm",
        "RmsNormError.ZeroEnergyRow",
    )
    assert (failure.values, failure.category) == ({"layer": 0}, "numeric")
    assert failure.__cause__.__cause__.values == {"row": 3}


@pytest.mark.parametrize(
    ("name", "chain"),
    [
        ("blocks.1.attention_norm.gain", ("Block", "AttentionNorm", "RmsNormError")),
        ("blocks.1.attention.output.weight", ("Block", "Attention", "MultiHeadAttentionError")),
        ("blocks.1.ffn_norm.gain", ("Block", "FeedForwardNorm", "RmsNormError")),
        ("blocks.1.ffn.down.weight", ("Block", "FeedForward", "SwiGluError")),
    ],
)
def test_a_misshapen_parameter_is_attributed_to_its_component(name, chain):
    parameters = {key: np.ones(shape) for key, shape in parameter_shapes(CONFIG).items()} | {name: np.ones(1)}
    failure = provoked(DecoderModel.from_parameters, CONFIG, [NamedParameter(*item) for item in parameters.items()])
    outer, middle, family = chain
    assert failure.chain() == (
        f"DecoderModelError.{outer}",
        f"DecoderBlockError.{middle}",
        f"{family}.Parameter",
        "ParameterError.Shape",
    )
    assert failure.values == {"layer": 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocabulary_size": 0}, "decoder vocabulary must contain at least one token"),
        ({"model_width": 5}, "decoder model width 5 must be divisible by head count 2"),
        ({"model_width": 6}, "decoder per-head width must be even for RoPE, got 3"),
        ({"rope_base": -1e-7}, "decoder RoPE base must be finite and positive, got -1e-7"),
        ({"rope_base": NAN}, "decoder RoPE base must be finite and positive, got NaN"),
        ({"rope_base": 0}, "decoder RoPE base must be finite and positive, got 0.0"),
        ({"rms_epsilon": math.inf}, "decoder RMSNorm epsilon must be finite and nonnegative, got inf"),
        ({"layers": 10**12}, "could not reserve 1000000000000 decoder blocks"),
    ],
)
def test_messages_are_those_of_the_chapters(change, message):
    assert str(provoked(configuration, change)) == message


def test_messages_of_parts_quote_names_and_show_numbers_in_full():
    assert str(provoked(from_parts, {"norm_name": "norm.gain"})) == (
        'decoder parameter 19 must be named "final_norm.gain", got "norm.gain"'
    )
    assert str(provoked(from_parts, {"block_epsilon": 1e-5})) == (
        "decoder block 0 attention RMSNorm epsilon must be 1e-6, got 1e-5"
    )
    assert str(provoked(from_parts, {"block_base": 100.0})) == "decoder block 0 RoPE base must be 10000.0, got 100.0"


@pytest.mark.parametrize(
    ("value", "shown"),
    [(1e-7, "1e-7"), (1.5e300, "1.5e300"), (1e16, "1e16"), (0.0001, "0.0001"), (10000.0, "10000.0"), (-0.0, "-0.0")],
)
def test_numbers_are_shown_as_rust_shows_them(value, shown):
    assert debug(value) == shown


def test_the_payload_must_be_the_rows_own():
    with pytest.raises(TypeError, match="carries"):
        error("DecoderModelError.TokenRank", size=3)
    with pytest.raises(TypeError, match="carries"):
        error("DecoderModelError.Embedding")


def test_every_category_has_a_row_and_every_row_a_category():
    assert {row.category for row in ERRORS.values()} - {OF_ITS_CAUSE} == set(CATEGORIES)
    assert all(row.wraps == ("{source}" in row.message) for row in ERRORS.values())
    assert {code for order in ORDER.values() for code in order} <= set(ERRORS) - set(UNREACHABLE)


@pytest.mark.parametrize(
    "change",
    [{"layers": 10**12}, {"vocabulary_size": 2**60}, {"vocabulary_size": np.int64(2**60)}, {"model_width": 2**40}],
)
@pytest.mark.parametrize("operation", ["configuration", "build", "from_parameters"])
def test_sizes_beyond_the_limit_touch_no_memory(operation, change):
    tracemalloc.start()
    failure = provoked(OPERATIONS[operation], change)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert failure.category == "resource"
    assert peak < 2**20


def test_missing_layers_are_found_without_listing_their_names():
    """So many layers of so small a width pass the limit on scalars; their names alone would fill the memory."""
    config = Config(5, 2, 1, 1, 10**10, 4)
    parameters = {name: np.ones(shape) for name, shape in parameter_shapes(replace(config, layers=1)).items()}
    assert provoked(Reference().build, config, parameters).values == {"name": "blocks.1.attention_norm.gain"}
