"""Every row of the error table that Python can reach is provoked, alone and against every other of its operation."""

import math
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from spoilers import BLOCK_CONFIG, CONFIG, EXCLUSIVE, NAN, OPERATIONS, SPOILERS, configuration, from_parts

from decoderspec.reference import Reference
from decoderspec.reference.block import DecoderBlock, DecoderBlockConfig, assemble
from decoderspec.reference.model import DecoderModel
from decoderspec.reference.parts import Embedding, MultiHeadAttention, NamedParameter, RmsNorm, SwiGlu
from decoderspec.reference.splitmix64 import SplitMix64
from decoderspec.spec.config import Config
from decoderspec.spec.errors import (
    CATEGORIES,
    ERRORS,
    OF_ITS_CAUSE,
    ORDER,
    UNREACHABLE,
    SpecError,
    debug,
    error,
)
from decoderspec.spec.parameters import BLOCK_PARAMETERS, parameter_shapes


def provoked(attempt, *arguments) -> SpecError:
    with pytest.raises(SpecError) as caught:
        attempt(*arguments)
    return caught.value


def zero_branch_sum() -> DecoderBlock:
    """A block whose attention answers with the negative of the stream, so that the second norm meets zeros."""
    values = {name: np.ones(2) if name.endswith("gain") else np.eye(2) for name in BLOCK_PARAMETERS}
    values["attention.output.weight"] *= -1.0
    return assemble(DecoderBlockConfig(2, 1, 2, 4, rms_epsilon=0.0), [NamedParameter(*item) for item in values.items()])


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
