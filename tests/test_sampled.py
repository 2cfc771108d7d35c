"""Samples of a stage are the elements of the whole stage, and find errors in rows and widths of real size."""

from importlib.util import find_spec

import numpy as np
import pytest

from decoderspec.reference import certified, oracle, sampled
from decoderspec.spec.config import Config
from decoderspec.spec.parameters import TABLE, parameter_shapes
from decoderspec.spec.stages import stage_names

needs_flint = pytest.mark.skipif(find_spec("flint") is None, reason="python-flint is not installed (extra arb)")
CONFIG = Config(11, 12, 2, 10, 2, 9, 50.0, 1e-3)
WIDE = Config(32000, 2048, 32, 5632, 1, 131072, 500000.0, 1e-5)
UNIT = 2.0**-24  # of float32
FAR = 100_000  # a position
QUERY = "blocks.0.attention.query"
ROTATED = "blocks.0.attention.rotated_query"


@pytest.fixture(scope="module")
def model():
    """Parameters, tokens and the float64 stages of a small model, the tokens among them."""
    random = np.random.default_rng(1)
    parameters = {n: random.normal(size=s) for n, s in parameter_shapes(CONFIG).items()}
    tokens = random.integers(CONFIG.vocabulary_size, size=(2, 7))
    stages = {name: oracle.to_float(v) for name, v in oracle.forward(CONFIG, parameters, tokens).items()}
    return parameters, tokens, stages


@pytest.fixture(scope="module")
def whole(model):
    """Every stage of the oracle, each from the float64 stages before it."""
    parameters, tokens, stages = model
    return oracle.forward(CONFIG, parameters, tokens, given=stages)


def float32(*shape, seed=0, scale=1.0):
    return (np.random.default_rng(seed).standard_normal(shape, np.float32) * np.float32(scale)).astype(np.float32)


def bfloat16(x):
    """The same values cut to bfloat16, kept in float32."""
    return (x.view(np.uint32) & 0xFFFF0000).view(np.float32)


@pytest.mark.parametrize("name", stage_names(CONFIG.layers))
def test_sample_is_the_oracles_element(name, model, whole):
    parameters, tokens, stages = model
    needed = {each: (stages | {"tokens": tokens})[each] for each in sampled.inputs_of(name, CONFIG.layers)}
    rows = list(np.ndindex(whole[name].shape[:-1]))[::3]
    columns = [whole[name].shape[-1] - 1, 0, 2]
    at = CONFIG, parameters, name, needed, rows
    assert (sampled.stage(*at, columns) == np.stack([whole[name][row][columns] for row in rows])).all()
    assert (sampled.stage(*at) == np.stack([whole[name][row] for row in rows])).all()


@pytest.mark.parametrize("name", [ROTATED, "blocks.1.attention.rotated_key"])
def test_offset_is_the_position_of_the_first_row(name, model):
    stages = model[2]
    inputs, x = stages, stages[name.replace("rotated_", "")]
    expected = oracle.rotate(x, CONFIG.rope_base, 5)[0, 1, 3]
    assert (sampled.stage(CONFIG, {}, name, inputs, [(0, 1, 3)], offset=5) == expected).all()


def test_future_weights_are_zero_beside_what_the_row_sees(model):
    weights = sampled.stage(CONFIG, {}, "blocks.0.attention.weights", model[2], [(0, 0, 2), (1, 1, 4)])
    assert [[v == 0 for v in row] for row in weights] == [[False] * 3 + [True] * 4, [False] * 5 + [True] * 2]


def test_values_that_no_row_asks_for_are_not_read(model, whole):
    parameters, _, stages = model
    spoiled = {name: value.copy() for name, value in stages.items()}
    spoiled["blocks.0.ffn_norm"][0, 1:] = np.nan
    got = sampled.stage(CONFIG, parameters, "blocks.0.ffn.gate", spoiled, [(0, 0)], [3])
    assert got == whole["blocks.0.ffn.gate"][0, 0, 3]


def test_unknown_stage_is_refused(model):
    with pytest.raises(KeyError, match="nonsense"):
        sampled.stage(CONFIG, {}, "blocks.0.attention.nonsense", model[2], [(0, 0)])


@needs_flint
def test_certified_sample_has_a_proven_radius(model, whole):
    parameters, _, stages = model
    found = certified.stage(CONFIG, parameters, "logits", stages, [(1, 6)], [0, 10], relative=1e-40)
    assert found.proven
    assert found.radius.max() <= 1e-39
    assert certified.compare(whole["logits"][1, 6][[0, 10]][None], found, 1e-40) is certified.Outcome.INSIDE


# --- Real size ---


def error(got, truth):
    """In units of float32's roundoff of the largest."""
    return np.abs(oracle.difference(got, truth)) / (UNIT * np.abs(oracle.to_float(truth)).max())


def test_wrong_element_of_a_wide_product_is_found():
    head, columns = 3, [0, 1, 63]
    weight = bfloat16(float32(2048, 2048, scale=2048**-0.5))
    x = bfloat16(float32(1, 4, 2048, seed=1))
    query = (x @ weight).reshape(1, 4, 32, 64).swapaxes(1, 2).copy()
    at = WIDE, {f"{QUERY}.weight": weight}, QUERY, {"blocks.0.attention_norm": x}, [(0, head, 2)], columns
    truth = sampled.stage(*at)
    assert error(query[0, head, 2, columns][None], truth).max() < 50
    query[0, head, 2, 1] *= 1 + 2.0**-12
    assert np.argmax(error(query[0, head, 2, columns][None], truth)) == 1
    assert error(query[0, head, 2, columns][None], truth).max() > 200


def test_angles_in_float32_are_found_at_a_far_position():
    x = float32(1, 1, 1, 64)
    truth = sampled.stage(WIDE, {}, ROTATED, {QUERY: x}, [(0, 0, 0)], offset=FAR)
    assert error(rotated(x, np.float64), truth).max() < 4
    assert error(rotated(x, np.float32), truth).max() > 1000


def rotated(x, dtype):
    frequency = dtype(WIDE.rope_base) ** (-np.arange(0, 64, 2, dtype=dtype) / dtype(64))
    angle = dtype(FAR) * frequency
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    even, odd = x[0, 0, :, 0::2], x[0, 0, :, 1::2]
    return np.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1).reshape(1, 64)


def test_logits_of_chosen_words_are_found_in_a_large_vocabulary():
    words = [0, 17, 31999]
    table = float32(WIDE.vocabulary_size, 256, scale=1 / 16)
    x = float32(1, 2, 256, seed=1)
    truth = sampled.stage(WIDE, {TABLE: table}, "logits", {"final_norm": x}, [(0, 1)], words)
    assert error((x[0, 1] @ table.T)[words][None], truth).max() < 50


def test_row_over_many_keys_sums_to_one_and_agrees_with_float64():
    """The weights of one query over 5000 keys, and the head's mean of their values."""
    keys = 5000
    q, k, v = float32(1, 1, keys, 64), float32(1, 1, keys, 64, seed=1), float32(1, 1, keys, 64, seed=2)
    row, inputs = (0, 0, keys - 1), {ROTATED: q, "blocks.0.attention.rotated_key": k, "blocks.0.attention.value": v}
    weights = sampled.stage(WIDE, {}, "blocks.0.attention.weights", inputs, [row])
    powers = np.exp(k[0, 0].astype(float) @ q[row].astype(float) / 8)
    np.testing.assert_allclose(oracle.to_float(weights[0]), powers / powers.sum(), rtol=1e-13)
    given = np.broadcast_to(oracle.to_float(weights), (1, 1, keys, keys))  # one row, wherever it is read
    inputs |= {"blocks.0.attention.weights": given}
    heads = sampled.stage(WIDE, {}, "blocks.0.attention.heads", inputs, [row], [9])
    assert error(np.array([[given[row] @ v[0, 0, :, 9].astype(float)]]), heads).max() < 1e-4
