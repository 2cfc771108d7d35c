"""The validated model: what it hands out, what it binds, what it leaves alone."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from decoderspec.reference import Reference
from decoderspec.reference.block import DecoderBlock, DecoderBlockConfig
from decoderspec.reference.model import DecoderModel
from decoderspec.reference.parts import Embedding, NamedParameter, RmsNorm
from decoderspec.reference.splitmix64 import SplitMix64
from decoderspec.spec.config import Config
from decoderspec.spec.errors import SpecError
from decoderspec.spec.parameters import FINAL_GAIN, TABLE, parameter_count, parameter_shapes
from decoderspec.spec.stages import stage_names, stage_shape
from decoderspec.spec.validation import validate_parameter_layout

CONFIG = Config(7, 6, 3, 5, 2, 9, 50.0, 1e-3)
TOKENS = np.array([[0, 3, 6, 3], [5, 5, 1, 2]])
TARGETS = np.array([[3, 6, 3, 0], [5, 1, 2, 4]])


def drawn(config=CONFIG, seed=1):
    random = np.random.default_rng(seed)
    return {name: random.normal(size=shape) for name, shape in parameter_shapes(config).items()}


def listed(parameters):
    return [NamedParameter(name, value) for name, value in parameters.items()]


def parts(config=CONFIG, seed=0):
    generator = SplitMix64(seed)
    table = np.random.default_rng(seed).normal(size=(config.vocabulary_size, config.model_width))
    sizes = (config.model_width, config.heads, config.feed_forward_width, config.max_positions)
    block_config = DecoderBlockConfig(*sizes, config.rope_base, config.rms_epsilon)
    blocks = [DecoderBlock.new(f"blocks.{n}", block_config, generator) for n in range(config.layers)]
    norm = RmsNorm.from_gain(NamedParameter(FINAL_GAIN, np.ones(config.model_width)), config.rms_epsilon)
    return Embedding.from_parameter(NamedParameter(TABLE, table)), blocks, norm


def refused(attempt, *arguments):
    with pytest.raises(SpecError) as caught:
        attempt(*arguments)
    return caught.value


def test_build_takes_names_in_any_order_and_keeps_canonical_order():
    model = Reference().build(CONFIG, dict(reversed(drawn().items())))
    assert list(model.parameters()) == list(parameter_shapes(CONFIG))
    assert model.parameter_count() == sum(p.size for p in model.parameters().values()) == parameter_count(CONFIG)


def test_build_copies_and_from_parameters_binds():
    given = drawn()
    copied, bound = Reference().build(CONFIG, given), DecoderModel.from_parameters(CONFIG, listed(given))
    before = copied.logits(TOKENS)
    assert np.array_equal(bound.logits(TOKENS), before)
    given[TABLE][0] += 1.0
    assert np.array_equal(copied.logits(TOKENS), before)
    assert not np.array_equal(bound.logits(TOKENS), before)
    assert all(bound.parameters()[name] is value for name, value in given.items())


def test_layout_check_binds_nothing():
    given = drawn()
    held = [sys.getrefcount(value) for value in given.values()]
    assert validate_parameter_layout(CONFIG, list(given.items())) is None
    assert [sys.getrefcount(value) for value in given.values()] == held, "the check kept hold of an array"
    bad = [*given.items()][:-1]
    assert refused(validate_parameter_layout, CONFIG, bad).values == {"expected": 20, "actual": 19}


def test_model_from_parts_computes_on_their_arrays():
    embedding, blocks, norm = parts()
    model = DecoderModel.from_parts(CONFIG, embedding, blocks, norm)
    same = Reference().build(CONFIG, model.parameters())
    assert np.array_equal(model.logits(TOKENS), same.logits(TOKENS))
    before = model.logits(TOKENS)
    blocks[1].feed_forward.matrices[2][...] *= 2.0
    assert not np.array_equal(model.logits(TOKENS), before)


def test_stacked_blocks_agree_with_the_model():
    embedding, blocks, norm = parts()
    stages = DecoderModel.from_parts(CONFIG, embedding, blocks, norm).stages(TOKENS)
    x = stages["embedding"]
    for layer, block in enumerate(blocks):
        x = block.forward(x).output
        assert np.array_equal(x, stages[f"blocks.{layer}.output"])


def test_one_table_serves_both_roles():
    """An update of one row in place moves the lookup of that id, and its logit wherever it is not looked up."""
    model = Reference().build(CONFIG, drawn())
    before = model.stages(TOKENS)
    model.assign(TABLE, model.parameters()[TABLE] + np.eye(7)[:, [4]])  # id 4 is absent
    after = model.stages(TOKENS)
    assert np.array_equal(before["final_norm"], after["final_norm"])
    assert (np.flatnonzero((before["logits"] != after["logits"]).any(axis=(0, 1))) == [4]).all()
    model.parameters()[TABLE][0] += 1.0  # id 0 is looked up once, at the first position
    assert not np.array_equal(model.stages(TOKENS)["embedding"][0, 0], after["embedding"][0, 0])


def test_blocks_of_equal_configuration_own_distinct_parameters():
    model = Reference().initialize(CONFIG, 3)
    first, second = (model.parameters()[f"blocks.{n}.attention.query.weight"] for n in (0, 1))
    assert not np.shares_memory(first, second)
    assert not np.array_equal(first, second)


def test_models_share_no_state():
    one, other = Reference().build(CONFIG, drawn(seed=1)), Reference().build(CONFIG, drawn(seed=2))
    alone = one.gradients(TOKENS, TARGETS)
    other.gradients(TOKENS[:, :2], TARGETS[:, :2])
    assert all(np.array_equal(value, alone[name]) for name, value in one.gradients(TOKENS, TARGETS).items())


def test_calls_leave_inputs_and_parameters_as_they_were():
    model = Reference().build(CONFIG, drawn())
    kept = {name: value.copy() for name, value in model.parameters().items()}
    tokens, targets = TOKENS.copy(), TARGETS.copy()
    results = [model.logits(tokens), *model.stages(tokens).values(), *model.gradients(tokens, targets).values()]
    for result in results:
        result[...] = np.nan
    assert np.array_equal(tokens, TOKENS)
    assert np.array_equal(targets, TARGETS)
    assert all(np.array_equal(value, kept[name]) for name, value in model.parameters().items())


def test_stages_are_those_of_the_specification():
    stages = Reference().build(CONFIG, drawn()).stages(TOKENS)
    assert tuple(stages) == stage_names(CONFIG.layers)
    assert {n: v.shape for n, v in stages.items()} == {n: stage_shape(n, CONFIG, 2, 4) for n in stages}


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "uint64", "list", "object"])
def test_ids_of_any_integer_type_are_the_same_ids(dtype):
    model = Reference().build(CONFIG, drawn())
    given = TOKENS.tolist() if dtype == "list" else TOKENS.astype(dtype)
    assert np.array_equal(model.logits(given), model.logits(TOKENS))


def test_targets_may_be_flat():
    model = Reference().build(CONFIG, drawn())
    assert model.loss(TOKENS, TARGETS.ravel()) == model.loss(TOKENS, TARGETS)


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ([[True, 1]], "TokenError.NotIntegers"),
        ([[1.0, 2.0]], "TokenError.NotIntegers"),
        ([[None, 1]], "TokenError.NotIntegers"),
        (np.array([[0, np.bool_(True)]], dtype=object), "TokenError.NotIntegers"),
        ([["0"]], "TokenError.NotIntegers"),
        ([[2**70, 0]], "EmbeddingError.TokenIdOutOfBounds"),
        (np.array([[2**64 - 1]], dtype=np.uint64), "EmbeddingError.TokenIdOutOfBounds"),
        ([[-7]], "EmbeddingError.TokenIdOutOfBounds"),
        ([], "DecoderModelError.TokenRank"),
        (3, "DecoderModelError.TokenRank"),
        ([[]], "DecoderModelError.EmptyTokens"),
    ],
)
def test_what_python_lets_through_is_refused(given, code):
    assert refused(Reference().build(CONFIG, drawn()).logits, given).chain()[-1] == code


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (np.ones(6, dtype=bool), "ParameterError.Dtype"),
        (np.ones(6, dtype=complex), "ParameterError.Dtype"),
        (np.ones(6, dtype=object), "ParameterError.Dtype"),
        ([1.0, [2.0]], "ParameterError.Dtype"),
        (np.ones((1, 6)), "ParameterError.Shape"),
        (np.float64(1), "ParameterError.Shape"),
        (np.full(6, np.inf), "ParameterError.NotFinite"),
        (np.full(6, np.finfo(np.longdouble).max), "ParameterError.NotFinite"),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow")
def test_bad_parameters_are_refused_by_build_and_assign(value, code):
    model = Reference().build(CONFIG, drawn())
    before = model.parameters()[FINAL_GAIN].copy()
    assert refused(model.assign, FINAL_GAIN, value).code == code
    assert refused(Reference().build, CONFIG, drawn() | {FINAL_GAIN: value}).code == code
    assert np.array_equal(model.parameters()[FINAL_GAIN], before)


def test_assign_writes_in_place_and_knows_its_names():
    model = Reference().build(CONFIG, drawn())
    live = model.parameters()[FINAL_GAIN]
    model.assign(FINAL_GAIN, range(6))
    assert live.tolist() == [0, 1, 2, 3, 4, 5]
    assert refused(model.assign, "lm_head.weight", live).code == "ParameterError.Unknown"


@pytest.mark.parametrize("value", [np.int64(2), True, 2.0, "2", None, np.nan])
def test_sizes_must_be_integers(value):
    config = replace(CONFIG, layers=value)
    if isinstance(value, np.int64):
        assert Reference().initialize(config, 0).config == CONFIG
    else:
        assert refused(Reference().initialize, config, 0).code == "ConfigError.NotAnInteger"


@pytest.mark.parametrize("change", [{"heads": 4}, {"rope_base": -1.0}, {"max_positions": 0}, {"feed_forward_width": 0}])
def test_no_layers_hide_no_bad_number(change):
    assert refused(Reference().initialize, replace(CONFIG, layers=0, **change), 0).category == "configuration"


def test_a_failed_construction_leaves_the_generator_where_it_was():
    generator = SplitMix64(5)
    refused(DecoderModel.new, replace(CONFIG, heads=4), generator)
    assert generator.state == 5
    DecoderModel.new(CONFIG, generator)
    draws = parameter_count(CONFIG) - CONFIG.model_width * (2 * CONFIG.layers + 1)
    assert generator.state == (5 + draws * 0x9E3779B97F4A7C15) % 2**64


def test_refusals_are_classified_and_nothing_else():
    assert Reference().classify(refused(Reference().build, CONFIG, {})) == "parameters"
    assert Reference().classify(MemoryError()) == "resource"
    assert Reference().classify(ValueError()) is None


@pytest.mark.parametrize("seed", [-1, 2**64, 1.0, True, "1"])
def test_a_seed_is_an_unsigned_word(seed):
    assert refused(Reference().initialize, CONFIG, seed).code == "GeneratorError.Seed"
    assert Reference().initialize(CONFIG, 2**64 - 1).logits([[0]]).shape == (1, 1, 7)
