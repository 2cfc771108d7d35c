"""Chapter 31 of the course the specification grew from: one block, its printed numbers, exercises and contrasts."""

from dataclasses import replace

import numpy as np
import pytest

from decoderspec.golden import fixtures
from decoderspec.golden.block_evidence import block_evidence, layer_norm_rows
from decoderspec.golden.text import clean_vector
from decoderspec.reference import decoder, oracle
from decoderspec.reference.block import DecoderBlock, DecoderBlockConfig
from decoderspec.reference.limits import compare
from decoderspec.reference.parts import NamedParameter, RmsNorm
from decoderspec.reference.splitmix64 import SplitMix64
from decoderspec.reference.tape import Tape, accumulate
from decoderspec.reference.units import deviations, unit
from decoderspec.spec.errors import SpecError
from decoderspec.spec.parameters import BLOCK_PARAMETERS
from decoderspec.spec.precision import recipe
from decoderspec.spec.stages import BLOCK_STAGES, stage_shape

CONFIG = DecoderBlockConfig(12, 3, 32, 9, 50.0, 1e-3)
PRINTED = {  # as the chapter prints them, token by token
    "attention_norm": [
        "2.000000,0.000000,0.000000,0.000000",
        "0.000000,2.000000,0.000000,0.000000",
        "0.000000,0.000000,2.000000,0.000000",
    ],
    "attention.output": [
        "2.000000,0.000000,0.000000,0.000000",
        "0.010881,1.989119,0.000000,0.000000",
        "0.666667,0.666667,1.788570,0.000000",
    ],
    "after_attention": [
        "4.000000,0.000000,0.000000,0.000000",
        "0.010881,3.989119,0.000000,0.000000",
        "0.666667,0.666667,3.788570,0.000000",
    ],
    "ffn_norm": [
        "2.000000,0.000000,0.000000,0.000000",
        "0.005455,1.999993,0.000000,0.000000",
        "0.341520,0.341520,1.940806,0.000000",
    ],
    "ffn.output": [
        "3.523188,0.000000,0.000000,0.000000",
        "0.000015,3.523159,0.000000,0.000000",
        "0.068180,0.068180,3.293781,0.000000",
    ],
    "output": [
        "7.523188,0.000000,0.000000,0.000000",
        "0.010896,7.512278,0.000000,0.000000",
        "0.734847,0.734847,7.082351,0.000000",
    ],
}
PRINTED_WEIGHTS = [
    ["1.000000,0.000000,0.000000", "0.005440,0.994560,0.000000", "0.333333,0.333333,0.333333"],
    ["1.000000,0.000000,0.000000", "0.500000,0.500000,0.000000", "0.052857,0.052857,0.894285"],
]
PRINTED_PROBE = ["7.523188,0.000000,-7.523188", "0.010896,7.512278,-7.523174", "7.817198,7.817198,-1.469694"]


@pytest.fixture(scope="module")
def evidence():
    return block_evidence()


@pytest.fixture
def seeded():
    """A block with distinct gains, wider than the fixture."""
    block = DecoderBlock.new("layer", CONFIG, SplitMix64(4))
    for gain in (block.attention_norm.gain, block.feed_forward_norm.gain):
        gain += np.random.default_rng(gain.size).normal(size=12)
    return block


def rows(batch, tokens, width=12, seed=6):
    return np.random.default_rng(seed).normal(size=(batch, tokens, width))


def refused(attempt, *arguments):
    with pytest.raises(SpecError) as caught:
        attempt(*arguments)
    return caught.value.chain()[-1]


# --- What the chapter prints ---


@pytest.mark.parametrize("stage", PRINTED)
def test_stage_rows_are_the_printed_ones(stage):
    values = fixtures.block().forward(fixtures.INPUT).stages[stage][0]
    assert [clean_vector(row) for row in values] == [f"[{row}]" for row in PRINTED[stage]]


def test_weights_probe_and_post_norm_are_the_printed_ones(evidence):
    assert [[clean_vector(row)[1:-1] for row in head] for head in evidence.weights[0]] == PRINTED_WEIGHTS
    assert [clean_vector(row)[1:-1] for row in evidence.probe_logits[0]] == PRINTED_PROBE
    assert clean_vector(evidence.post_norm[0, 1]) == "[-0.573144,1.732042,-0.579449,-0.579449]"


def test_future_probabilities_are_zero_and_rows_sum_to_one(evidence):
    assert (evidence.weights[..., np.triu(np.ones((3, 3), bool), 1)] == 0).all()
    assert np.abs(evidence.weights.sum(-1) - 1).max() < 1e-15


# --- Gradients ---


def test_all_132_coordinates_agree_with_central_differences(evidence):
    assert evidence.gradient_checks == (12, 120)
    assert evidence.gradients_passed


def test_every_coordinate_of_a_wider_block_agrees_with_central_differences(seeded):
    """Identity matrices hide transposition and order; this block has neither, and an offset."""
    x, upstream = rows(2, 3), rows(2, 3, seed=7)
    gradients = seeded.forward(x, 5).pullback(upstream)
    random = np.random.default_rng(8)
    for name, leaf in {"input": x, **seeded.parameters()}.items():
        direction = random.normal(size=leaf.shape)
        kept = leaf.copy()
        values = []
        for step in (fixtures.STEP, -fixtures.STEP):
            leaf[...] = kept + step * direction
            values.append(np.sum(seeded.forward(x, 5).output * upstream))
        leaf[...] = kept
        analytic = gradients.input if name == "input" else gradients.parameters[name]
        slope = (values[0] - values[1]) / (2 * fixtures.STEP)
        assert abs(np.sum(analytic * direction) - slope) < fixtures.TOLERANCE, name


def fixture_gradients(operations):
    """The fixture's gradients as a computation whose rounding noise can be measured."""
    block = fixtures.block()
    sizes = block.config.decoder_config()
    leaves = {"input": fixtures.INPUT.copy(), **dict(zip(BLOCK_PARAMETERS, block.parameters().values(), strict=True))}
    tape = Tape()
    output = decoder.block(tape.recording(operations), sizes, leaves, leaves["input"])
    return accumulate(tape, np.broadcast_to(fixtures.UPSTREAM, output.shape), leaves).leaves


def true_gradients():
    """The same 132 derivatives from the oracle's differences."""
    block = fixtures.block()
    leaves = {"input": fixtures.INPUT, **dict(zip(BLOCK_PARAMETERS, block.parameters().values(), strict=True))}
    sizes, names = block.config.decoder_config(), list(leaves)

    def output(x, *weights, digits):
        parameters = dict(zip(BLOCK_PARAMETERS, weights, strict=True))
        return oracle.block(sizes, parameters, x, digits=digits)["output"]

    def derivative(name, index):
        direction = [None] * len(names)
        direction[names.index(name)] = one = np.zeros(leaves[name].shape, int)
        one[index] = 1
        return oracle.operation_derivative(output, list(leaves.values()), fixtures.UPSTREAM, direction, digits=30)

    return {
        name: np.array([derivative(name, index) for index in np.ndindex(leaf.shape)], object).reshape(leaf.shape)
        for name, leaf in leaves.items()
    }


def test_all_132_gradients_agree_with_the_oracle_within_noise():
    got = fixtures.block().forward(fixtures.INPUT).pullback(fixtures.UPSTREAM)
    found = [got.input, *got.parameters.values()]
    noise = deviations(fixture_gradients, recipe("float64"), seed=31)
    for value, (name, truth) in zip(found, true_gradients().items(), strict=True):
        judged = compare(value, oracle.difference(value, truth), unit(noise[name]))
        assert judged.conforms, f"{name}: {judged}"


# --- Input, offsets, evidence ---


def test_every_stage_is_kept_in_forward_order(seeded):
    stages = seeded.forward(rows(2, 5)).stages
    sizes = CONFIG.decoder_config()
    assert tuple(stages) == BLOCK_STAGES
    assert {name: value.shape for name, value in stages.items()} == {
        name: stage_shape(name, sizes, 2, 5) for name in BLOCK_STAGES
    }


def test_an_empty_batch_runs_forward_and_back(seeded):
    record = seeded.forward(np.empty((0, 3, 12)))
    gradients = record.pullback(np.empty((0, 3, 12)))
    assert record.output.shape == gradients.input.shape == (0, 3, 12)
    assert all(not value.any() for value in gradients.parameters.values())


def test_offset_gives_the_positions_of_a_longer_run(seeded):
    """Attention to itself alone does not depend on the position; its rotated query does."""
    x = rows(1, 4)
    long, short = seeded.forward(x), seeded.forward(x[:, 3:], 3)
    for stage in ("attention.rotated_query", "attention.rotated_key"):
        assert np.allclose(long.stages[stage][:, :, 3:], short.stages[stage], rtol=1e-12, atol=1e-12)
    assert not np.allclose(
        long.stages["attention.rotated_query"][:, :, 3:], seeded.forward(x[:, 3:]).stages["attention.rotated_query"]
    )


def test_last_position_is_in_range_and_the_next_is_not(seeded):
    seeded.forward(rows(1, 2), 7)
    assert refused(seeded.forward, rows(1, 2), 8) == "RopeError.PositionOutOfRange"


def test_a_record_is_pulled_back_once_and_then_fed_to_nothing(seeded):
    record = seeded.forward(rows(1, 2))
    second = seeded.forward(record)
    assert np.array_equal(second.output, seeded.forward(record.output).output)
    record.pullback(np.ones((1, 2, 12)))
    assert refused(record.pullback, np.ones((1, 2, 12))) == "TensorAutodiffError.Released"
    assert refused(seeded.forward, record) == "TensorAutodiffError.Released"


def test_a_record_keeps_what_it_was_made_of(seeded):
    """An update in place between forward and pullback changes neither the stages nor the gradients."""
    x, upstream = rows(1, 3), rows(1, 3, seed=9)
    expected = seeded.forward(x).pullback(upstream)
    record = seeded.forward(x)
    seeded.attention.matrices[0][...] *= 3.0
    x[...] = 0.0
    got = record.pullback(upstream)
    assert np.array_equal(got.input, expected.input)
    assert all(np.array_equal(value, expected.parameters[name]) for name, value in got.parameters.items())


# --- Construction ---


@pytest.mark.parametrize("prefix", ["decoder.block.0", "a", ""])
def test_nine_parameters_in_stable_order_under_any_prefix(prefix):
    block = DecoderBlock.new(prefix, CONFIG, SplitMix64(0))
    assert list(block.parameters()) == [f"{prefix}.{name}" for name in BLOCK_PARAMETERS]


def test_construction_is_deterministic_and_advances_the_generator_by_its_draws():
    one, other = SplitMix64(11), SplitMix64(11)
    first, second = (DecoderBlock.new("b", CONFIG, generator) for generator in (one, other))
    assert all(np.array_equal(v, second.parameters()[n]) for n, v in first.parameters().items())
    assert one.state == other.state == (11 + (4 * 144 + 3 * 384) * 0x9E3779B97F4A7C15) % 2**64


def test_the_two_gains_are_separate_leaves(seeded):
    before = seeded.forward(rows(1, 2)).stages
    seeded.feed_forward_norm.gain[0] += 1.0
    after = seeded.forward(rows(1, 2)).stages
    assert np.array_equal(before["attention_norm"], after["attention_norm"])
    assert not np.array_equal(before["ffn_norm"], after["ffn_norm"])


@pytest.mark.parametrize("component", ["attention RMSNorm", "feed-forward RMSNorm", "feed-forward input"])
def test_component_widths_are_compared_with_the_attention(component):
    block, other = (DecoderBlock.new("b", replace(CONFIG, model_width=width), SplitMix64(0)) for width in (12, 6))
    parts = {
        "attention RMSNorm": (other.attention_norm, *block.parts[1:]),
        "feed-forward RMSNorm": (*block.parts[:2], other.feed_forward_norm, block.feed_forward),
        "feed-forward input": (*block.parts[:3], other.feed_forward),
    }
    with pytest.raises(SpecError, match=f"decoder-block {component} width must be 12, got 6"):
        DecoderBlock.from_parts(*parts[component])


def test_each_norm_keeps_its_own_epsilon(seeded):
    second = RmsNorm.from_gain(NamedParameter("other.gain", seeded.feed_forward_norm.gain), 10.0)
    other = DecoderBlock.from_parts(seeded.attention_norm, seeded.attention, second, seeded.feed_forward)
    one, two = seeded.forward(rows(1, 2)), other.forward(rows(1, 2))
    assert np.array_equal(one.stages["after_attention"], two.stages["after_attention"])
    assert np.abs(two.stages["ffn_norm"]).max() < np.abs(one.stages["ffn_norm"]).max()
    direction = rows(1, 2, seed=3)
    slopes = [np.sum(other.forward(rows(1, 2) + step * direction).output) for step in (1e-6, -1e-6)]
    expected = (slopes[0] - slopes[1]) / 2e-6
    assert abs(np.sum(two.pullback(np.ones((1, 2, 12))).input * direction) - expected) < fixtures.TOLERANCE


# --- Exercises ---


def test_residual_streams_keep_their_shape():
    block = DecoderBlock.new("b", CONFIG, SplitMix64(0))
    stages = block.forward(rows(2, 5)).stages
    streams = ("attention_norm", "attention.output", "after_attention", "ffn_norm", "ffn.output", "output")
    assert {stages[name].shape for name in streams} == {(2, 5, 12)}


def test_a_silent_attention_branch_is_not_an_identity_block(seeded):
    seeded.attention.matrices[3][...] = 0.0
    x = rows(2, 5)
    stages = seeded.forward(x).stages
    assert np.array_equal(stages["after_attention"], x)
    assert not np.allclose(stages["output"], x)


def test_only_the_last_row_follows_a_change_of_the_last_input(seeded):
    x = rows(2, 5)
    changed = x.copy()
    changed[:, -1] += 1.0
    before, after = seeded.forward(x).output, seeded.forward(changed).output
    assert np.array_equal(before[:, :-1], after[:, :-1])
    assert (before[:, -1] != after[:, -1]).any(axis=-1).all()


def test_parameter_count_is_1752(seeded):
    assert seeded.parameter_count() == 2 * 12 + 4 * 12**2 + 3 * 12 * 32 == 1752


def test_post_norm_diverges_at_the_input_of_attention(seeded):
    """With rows that are not normalized already, the two orders differ before there is any residual."""
    x = 3.0 * rows(1, 3)
    stages = seeded.forward(x).stages
    assert not np.allclose(stages["attention_norm"], x)
    assert not np.allclose(layer_norm_rows(x + stages["attention.output"], 1e-5), stages["after_attention"])


def test_recurrence_carries_its_state(evidence):
    assert clean_vector(evidence.recurrence) == "[0.462117,0.096289,0.194699]"
    assert evidence.history["sequential_recurrence"]
