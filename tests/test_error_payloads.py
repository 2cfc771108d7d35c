"""Refusals provoked from generated input: the code, and a payload that says exactly what came."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoderspec.reference import Reference
from decoderspec.reference.block import DecoderBlock, DecoderBlockConfig
from decoderspec.reference.splitmix64 import SplitMix64
from decoderspec.spec.config import Config
from decoderspec.spec.errors import SpecError

MODEL, EMBEDDING = "DecoderModelError", "EmbeddingError"
few = settings(max_examples=40, deadline=None)
huge = st.integers(2**41, 2**70)
not_positive = st.sampled_from([0.0, -0.0, -1e-300, -5.0, float("inf"), float("-inf"), float("nan")])


@st.composite
def configs(draw):
    heads, half = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    vocabulary, hidden, positions = (draw(st.integers(1, 9)) for _ in range(3))
    layers = draw(st.integers(0, 2))
    base, epsilon = draw(st.floats(0.5, 1e6)), draw(st.floats(1e-9, 1.0))
    return Config(vocabulary, 2 * half * heads, heads, hidden, layers, positions, base, epsilon)


@st.composite
def spoiled(draw):
    """A configuration with one thing wrong, the code for it, and the payload."""
    config = draw(configs())
    odd = 2 * draw(st.integers(0, 4)) + 1
    more_layers, more_rows, value = draw(huge), draw(huge), draw(not_positive)
    epsilon = draw(not_positive.filter(lambda x: x != 0))
    field = draw(st.sampled_from(["vocabulary_size", "model_width", "heads", "layers", "max_positions"]))
    negative = draw(st.integers(-(2**70), -1))
    return draw(
        st.sampled_from(
            [
                ("ConfigError.NotAnInteger", {field: 2.5}, {"field": field, "value": 2.5}),
                ("ConfigError.NotAnInteger", {field: True}, {"field": field, "value": True}),
                ("ConfigError.Negative", {field: negative}, {"field": field, "value": negative}),
                ("ConfigError.NotANumber", {"rope_base": 1j}, {"field": "rope_base", "value": 1j}),
                (f"{MODEL}.EmptyVocabulary", {"vocabulary_size": 0}, {}),
                (f"{MODEL}.ZeroModelWidth", {"model_width": 0}, {}),
                (f"{MODEL}.ZeroHeadCount", {"heads": 0}, {}),
                (
                    f"{MODEL}.ModelWidthNotDivisible",
                    {"heads": config.model_width + odd},
                    {"model_width": config.model_width, "heads": config.model_width + odd},
                ),
                (f"{MODEL}.OddHeadWidth", {"model_width": odd * config.heads}, {"head_width": odd}),
                (f"{MODEL}.ZeroFeedForwardWidth", {"feed_forward_width": 0}, {}),
                (f"{MODEL}.ZeroPositionCapacity", {"max_positions": 0}, {}),
                (f"{MODEL}.InvalidRopeBase", {"rope_base": value}, {"value": value}),
                (f"{MODEL}.InvalidRmsEpsilon", {"rms_epsilon": epsilon}, {"value": epsilon}),
                (f"{MODEL}.LayerAllocationFailed", {"layers": more_layers}, {"layers": more_layers}),
                (
                    f"{EMBEDDING}.AllocationFailed",
                    {"vocabulary_size": more_rows},
                    {"vocabulary_size": more_rows, "width": config.model_width},
                ),
            ]
        ).map(lambda row: (replace(config, **row[1]), row[0], row[2]))
    )


def root(attempt, *arguments) -> SpecError:
    """The failure at the end of the chain."""
    with pytest.raises(SpecError) as caught:
        attempt(*arguments)
    failure = caught.value
    while failure.__cause__ is not None:
        failure = failure.__cause__
    return failure


def same(payload, expected):
    return repr(payload) == repr(expected)  # NaN is not equal to itself


@few
@given(spoiled())
def test_configuration_errors_carry_what_came(case):
    config, code, payload = case
    failure = root(Reference().initialize, config, 0)
    assert failure.code == code
    assert same(failure.values, payload)


@few
@given(configs(), st.integers(1, 3), st.data())
def test_id_errors_carry_position_and_id(config, batch, data):
    """A target is looked at before a token, and the first wrong one is the one that is named."""
    model, size = Reference().initialize(config, 0), config.vocabulary_size
    length = data.draw(st.integers(1, config.max_positions))
    tokens = np.array(data.draw(st.lists(st.integers(0, size - 1), min_size=batch * length, max_size=batch * length)))
    wrong = data.draw(st.integers(-(2**62), -1) | st.integers(size, 2**62))
    at = data.draw(st.integers(0, batch * length - 1))
    bad = tokens.copy()
    bad[at:] = wrong
    expected = {"position": at, "id": wrong, "vocabulary_size": size}
    tokens, bad = tokens.reshape(batch, length), bad.reshape(batch, length)
    for attempt, arguments, code in (
        (model.logits, (bad,), f"{EMBEDDING}.TokenIdOutOfBounds"),
        (model.loss, (bad, tokens), f"{EMBEDDING}.TokenIdOutOfBounds"),
        (model.loss, (bad, bad), f"{MODEL}.TargetIdOutOfBounds"),
    ):
        failure = root(attempt, *arguments)
        assert (failure.code, failure.values) == (code, expected)


@few
@given(configs(), st.integers(0, 3), st.integers(0, 12), st.integers(0, 12))
def test_shape_errors_carry_sizes_and_come_in_order(config, batch, length, count):
    model = Reference().initialize(config, 0)
    tokens, targets = np.zeros((batch, length), int), np.zeros(count, int)
    if batch == 0:
        expected = "EmptyBatch", {}
    elif length == 0:
        expected = "EmptyTokens", {}
    elif length > config.max_positions:
        expected = "ContextLengthExceeded", {"tokens": length, "max_positions": config.max_positions}
    elif count != batch * length:
        expected = "TargetCountMismatch", {"expected": batch * length, "actual": count}
    else:
        assert np.isfinite(model.loss(tokens, targets))
        return
    failure = root(model.loss, tokens, targets)
    assert (failure.code, failure.values) == (f"{MODEL}.{expected[0]}", expected[1])


@few
@given(configs(), st.integers(0, 2), st.integers(0, 4), st.integers(0, 12))
def test_block_input_errors_carry_sizes_and_come_in_order(config, batch, length, offset):
    sizes = (config.model_width, config.heads, config.feed_forward_width, config.max_positions)
    block = DecoderBlock.new("b", DecoderBlockConfig(*sizes, config.rope_base, config.rms_epsilon), SplitMix64(0))
    x = np.ones((batch, length, config.model_width))
    wide = np.ones((batch, length, config.model_width + 1))
    failure = root(block.forward, wide, offset)
    assert failure.values == {"expected": config.model_width, "actual": config.model_width + 1}
    if length == 0:
        assert root(block.forward, x, offset).code == "MultiHeadAttentionError.EmptyTokens"
    elif offset + length > config.max_positions:
        expected = {"offset": offset, "tokens": length, "max_positions": config.max_positions}
        assert root(block.forward, x, offset).values == expected
    else:
        assert block.forward(x, offset).output.shape == x.shape
