"""The oracle against naive loops, the printed numbers of the model chapter, and its own sum rules."""

import copy
import pickle
import tracemalloc

import mpmath
import numpy as np
import pytest
from naive import (
    FIXTURE,
    SMALL,
    TARGETS,
    TOKENS,
    close,
    exact_lists,
    initialized,
    naive_add,
    naive_attend,
    naive_logits,
    naive_loss,
    naive_matmul,
    naive_norm,
    naive_rotate,
    naive_swiglu,
    random_arrays,
    random_case,
)

from decoderspec.reference import arithmetic, oracle
from decoderspec.spec.config import Config
from decoderspec.spec.parameters import TABLE, of_block, parameter_shapes
from decoderspec.spec.stages import BLOCK_STAGES, stage_names, stage_shape

# --- Values ---


def test_logits_and_loss_equal_naive_loops():
    parameters, tokens, targets = random_case(SMALL, 1, 4)
    with mpmath.workdps(60):
        expected = naive_logits(SMALL, parameters, tokens[0])
        expected_loss = naive_loss(expected, targets[0])
    assert close(oracle.logits(SMALL, parameters, tokens, digits=40), [expected])
    assert close(oracle.loss(SMALL, parameters, tokens, targets, digits=40), expected_loss)


def test_operations_equal_naive_loops():
    x, y, weight, gain = random_arrays((4, 6), (4, 6), (6, 5), (6,))
    with mpmath.workdps(60):
        a, b, w = exact_lists(x), exact_lists(y), exact_lists(weight)
        pairs = {
            "linear": (oracle.linear(x, weight, digits=40), naive_matmul(a, w)),
            "project": (oracle.project(x, y, digits=40), naive_matmul(a, list(zip(*b, strict=True)))),
            "rms_norm": (oracle.rms_norm(x, gain, 1e-3, digits=40), naive_norm(a, exact_lists(gain), 1e-3)),
            "rotate": (oracle.rotate(x, 50.0, offset=3, digits=40), naive_rotate(a, 50.0, offset=3)),
            "attend": (oracle.attend(x, y, x, digits=40), naive_attend(a, b, a)),
            "swiglu": (oracle.swiglu(x, y, digits=40), naive_swiglu(a, b)),
            "add": (oracle.add(x, y, digits=40), naive_add(a, b)),
        }
    assert [name for name, (got, expected) in pairs.items() if not close(got, expected)] == []


def test_model_chapter_numbers_are_printed():
    parameters = initialized(FIXTURE, 32)
    stages = oracle.forward(FIXTURE, parameters, TOKENS)
    rows = {
        "embedding": [0.104430, 0.699156, 0.051971, -0.160217],
        "blocks.0.output": [-0.772509, 0.841246, 1.816030, 0.156071],
        "blocks.1.output": [-0.183854, 0.605829, 0.709748, -0.521934],
        "final_norm": [-0.338936, 1.116846, 1.308420, -0.962186],
        "logits": [-0.862249, 0.967613, -0.991545, -0.446363, 1.234533],
    }
    assert {name: np.round(oracle.to_float(stages[name][0, 1]), 6).tolist() for name in rows} == rows
    last = np.round(oracle.to_float(stages["logits"][0, 2]), 6).tolist()
    assert last == [-0.220241, 0.332921, -0.193218, -0.267554, -0.500487]
    assert f"{float(oracle.loss(FIXTURE, parameters, TOKENS, TARGETS)):.6f}" == "2.045535"


def test_block_chapter_numbers_are_printed():
    config = Config(1, 4, 2, 4, 1, 6, 100.0, 0.0)
    shapes = parameter_shapes(config)
    parameters = of_block({n: np.eye(4) if len(s) == 2 else np.ones(4) for n, s in shapes.items()}, 0)
    stages = oracle.block(config, parameters, 2 * np.eye(4)[None, :3])
    assert np.round(oracle.to_float(stages["output"][0, 1]), 6).tolist() == [0.010896, 7.512278, 0.0, 0.0]
    weights = np.round(oracle.to_float(stages["attention.weights"][0, 1, 2]), 6).tolist()
    assert weights == [0.052857, 0.052857, 0.894285]


def test_stages_have_the_names_order_and_shapes_of_the_text():
    config = Config(7, 12, 3, 5, 2, 9)
    parameters, tokens, _ = random_case(config, 2, 3)
    stages = oracle.forward(config, parameters, tokens)
    assert tuple(stages) == stage_names(2)
    assert {n: v.shape for n, v in stages.items()} == {n: stage_shape(n, config, 2, 3) for n in stages}


def test_forward_is_the_composition_of_the_operations():
    config = Config(7, 12, 3, 5, 1, 9)
    parameters, tokens, _ = random_case(config, 2, 3)
    stages = oracle.forward(config, parameters, tokens)
    own = {name: stages[f"blocks.0.{name}"] for name in BLOCK_STAGES}
    rotated = oracle.rotate(own["attention.query"], config.rope_base)
    heads = oracle.attend(own["attention.rotated_query"], own["attention.rotated_key"], own["attention.value"])
    assert (rotated == own["attention.rotated_query"]).all()
    assert (heads == own["attention.heads"]).all()
    assert (oracle.swiglu(own["ffn.gate"], own["ffn.up"]) == own["ffn.product"]).all()
    assert (oracle.project(stages["final_norm"], parameters[TABLE]) == stages["logits"]).all()
    alone = oracle.block(config, of_block(parameters, 0), stages["embedding"])
    assert all((alone[name] == own[name]).all() for name in BLOCK_STAGES)


def test_block_offset_leaves_attention_and_moves_rotation():
    config = Config(3, 4, 1, 3, 1, 9)
    parameters, *_ = random_case(config, 1, 3)
    x = random_arrays((1, 3, 4))[0]
    here, there = (oracle.block(config, of_block(parameters, 0), x, offset=o, digits=40) for o in (0, 5))
    assert close(here["output"], there["output"])
    assert not close(here["attention.rotated_key"], there["attention.rotated_key"], 1)


def test_block_takes_an_empty_batch():
    parameters, *_ = random_case(SMALL, 1, 2)
    stages = oracle.block(SMALL, of_block(parameters, 0), np.zeros((0, 2, 6)))
    assert stages["output"].shape == (0, 2, 6)
    assert stages["attention.weights"].shape == (0, 1, 2, 2)


# --- Exactness ---


def test_doubling_the_digits_confirms_the_digits():
    config = Config(7, 12, 3, 5, 2, 9)
    parameters, tokens, _ = random_case(config, 2, 5)
    coarse, fine = (oracle.forward(config, parameters, tokens, digits=n) for n in (30, 60))
    assert [name for name in coarse if not close(coarse[name], fine[name], 30)] == []


def test_result_and_caller_are_independent_of_each_others_precision():
    parameters, tokens, targets = random_case(SMALL, 1, 3)
    expected = oracle.loss(SMALL, parameters, tokens, targets)
    with mpmath.workdps(5):
        assert oracle.loss(SMALL, parameters, tokens, targets)._mpf_ == expected._mpf_
        assert mpmath.mp.dps == 5


def test_future_weights_and_products_of_zero_rows_are_exactly_zero():
    q, k = random_arrays((2, 2, 5, 4), (2, 2, 5, 4))
    weights = oracle.attention_weights(q * 1e3, k * 1e3, digits=40)
    assert all(v == 0 for v in weights[..., ~np.tri(5, dtype=bool)].flat)
    assert close(weights.sum(axis=-1), np.ones((2, 2, 5)))
    assert all(v == 0 for v in oracle.linear(np.zeros((2, 4)), k[0, 0].T).flat)


@pytest.mark.parametrize("exponent", [10, 60, 150])
def test_product_keeps_digits_that_cancellation_uncovers(exponent):
    small = 10.0**-exponent
    got = oracle.linear([[1.0, small, -1.0]], [[1.0], [small], [1.0]])
    with mpmath.workdps(50):
        assert close(got, [[mpmath.mpf(small) ** 2]])


@pytest.mark.parametrize("spread", [1, 30, 300])
def test_product_is_the_same_for_floats_and_exact_numbers(spread):
    """Floats have a conversion of their own; subnormals, zeros and rows that span all exponents go through it."""
    random = np.random.default_rng(spread)
    x, weight = (random.normal(size=s) * 10.0 ** random.uniform(-spread, spread, s) for s in ((3, 5), (5, 4)))
    x[0], x[1, 2], weight[1, 1] = 0.0, 5e-324, 0.0
    exact = oracle.linear(oracle.add(x, 0), oracle.add(weight, 0))
    assert close(oracle.linear(x, weight), exact, 48)
    assert (oracle.linear(x, weight) == exact).all() or spread == 300  # where both leave something out


def test_product_of_many_columns_is_put_together_from_blocks(monkeypatch):
    x, weight = random_arrays((2, 3, 4), (4, 7))
    expected = oracle.linear(x, weight)
    monkeypatch.setattr(arithmetic, "BLOCK", 8)
    assert (oracle.linear(x, weight) == expected).all()
    assert oracle.linear(np.zeros((0, 4)), weight).shape == (0, 7)
    assert oracle.linear(x, np.zeros((4, 0))).shape == (2, 3, 0)


def test_infinite_and_undefined_values_stay_so():
    got = oracle.to_float(oracle.linear([[np.inf, 1.0], [np.nan, 1.0]], [[1.0], [1.0]]))
    assert got[0, 0] == np.inf
    assert np.isnan(got[1, 0])


def test_certain_prediction_keeps_the_digits_of_its_loss():
    with mpmath.workdps(60):
        assert close(oracle.nll([[0.0, 500.0]], [1]), [mpmath.log1p(mpmath.exp(-500))])


def test_fewer_queries_than_keys_are_the_last_ones():
    q, k = random_arrays((2, 5, 4), (2, 5, 4))
    whole = oracle.attention_weights(q, k)
    assert (oracle.attention_weights(q[:, 3:], k) == whole[:, 3:]).all()
    assert (oracle.attention_weights(q[:, 2:3], k[:, :3]) == whole[:, 2:3, :3]).all()


def test_zero_row_without_epsilon_is_refused():
    with pytest.raises(ZeroDivisionError, match=r"row \(1,\)"):
        oracle.rms_norm([[1.0, 0.0], [0.0, 0.0]], [1.0, 1.0], 0.0)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.longdouble, np.int64])
def test_every_dtype_enters_unrounded(dtype):
    values = (np.array([1.0, 3.0, -7.0]) / (1 if dtype is np.int64 else 3)).astype(dtype)
    assert (oracle.add(values, 0) == [mpmath.mpf(0) + _fraction(v) for v in values]).all()


def _fraction(value):
    numerator, denominator = value.item().as_integer_ratio() if value.dtype.itemsize <= 8 else value.as_integer_ratio()
    with mpmath.workdps(40):
        return mpmath.mpf(numerator) / denominator


def test_difference_sees_below_the_last_bit():
    truth = oracle.linear([[1.0, 2.0**-70]], [[1.0], [1.0]])
    assert oracle.difference(np.ones((1, 1)), truth) == -(2.0**-70)


def test_numbers_print_with_the_digits_asked_for_and_survive_copies():
    third = oracle.silu(np.zeros(1) + 1, digits=30)
    assert str(third) == "[0.731058578630004879251159241822]"
    assert oracle.text(third, 8) == "[     0.73105858]"
    assert copy.deepcopy(third) == third
    assert pickle.loads(pickle.dumps(third)) == third


# --- Given stages and separate head ---


def test_given_stage_is_returned_as_computed_and_replaced_downstream():
    config = Config(7, 12, 3, 5, 2, 9)
    parameters, tokens, _ = random_case(config, 1, 3)
    plain = oracle.forward(config, parameters, tokens)
    given = {"blocks.0.ffn.silu": random_arrays((1, 3, 5))[0].astype(np.float32)}
    stages = oracle.forward(config, parameters, tokens, given=given)
    same = [name for name in plain if (plain[name] == stages[name]).all()]
    names = list(plain)
    assert same == [*names[: names.index("blocks.0.ffn.silu") + 1], "blocks.0.ffn.up"]
    product = oracle.add(given["blocks.0.ffn.silu"], 0) * stages["blocks.0.ffn.up"]
    assert (stages["blocks.0.ffn.product"] == product).all()


def test_given_stage_of_another_name_or_shape_is_refused():
    parameters, tokens, _ = random_case(SMALL, 1, 3)
    with pytest.raises(KeyError, match="no such stage: nonsense"):
        oracle.forward(SMALL, parameters, tokens, given={"nonsense": 0})
    with pytest.raises(ValueError, match="embedding: given shape"):
        oracle.forward(SMALL, parameters, tokens, given={"embedding": np.zeros(6)})


def test_stages_are_streamed_and_those_not_kept_are_let_go():
    config = Config(7, 12, 3, 5, 2, 9)
    parameters, tokens, _ = random_case(config, 1, 3)
    plain = oracle.forward(config, parameters, tokens)
    kept = oracle.forward(config, parameters, tokens, keep=("logits", "blocks.0.ffn.up"))
    assert list(kept) == ["blocks.0.ffn.up", "logits"]
    assert all((kept[name] == plain[name]).all() for name in kept)
    assert [name for name, _ in oracle.stream(config, parameters, tokens)] == list(plain)
    with pytest.raises(KeyError, match="no such stage: logit"):
        oracle.forward(config, parameters, tokens, keep=("logit",))


def test_memory_does_not_grow_with_the_number_of_layers():
    few, many = (_peak(Config(5, 8, 2, 6, layers, 8)) for layers in (1, 6))
    assert many < 1.5 * few


def _peak(config):
    parameters, tokens, _ = random_case(config, 2, 6)
    oracle.logits(config, parameters, tokens)  # caches are filled
    tracemalloc.start()
    oracle.logits(config, parameters, tokens)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def test_separate_head_is_used_by_the_projection_alone():
    parameters, tokens, _ = random_case(SMALL, 1, 3)
    head = random_arrays((5, 6))[0]
    stages = oracle.forward(SMALL, parameters, tokens, head=head)
    assert (stages["final_norm"] == oracle.forward(SMALL, parameters, tokens)["final_norm"]).all()
    assert (stages["logits"] == oracle.project(stages["final_norm"], head)).all()
