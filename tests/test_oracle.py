"""The oracle against naive loops written here, the printed numbers of the model chapter, and its own sum rules."""

import copy
import pickle

import mpmath
import numpy as np
import pytest

from decoderspec.reference import oracle
from decoderspec.spec.config import Config
from decoderspec.spec.parameters import FINAL_GAIN, TABLE, of_block, parameter_shapes
from decoderspec.spec.stages import BLOCK_STAGES, stage_names, stage_shape

SMALL = Config(5, 6, 1, 3, 1, 8, 50.0, 1e-3)  # one head of width 6: three rotary pairs
FIXTURE = Config(5, 4, 2, 4, 2, 4)
TOKENS, TARGETS = [[0, 1, 2]], [[1, 2, 3]]


def draws(seed):
    """SplitMix64 as unit values in [0, 1)."""
    mask = 2**64 - 1
    while True:
        seed = (seed + 0x9E3779B97F4A7C15) & mask
        v = ((seed ^ seed >> 30) * 0xBF58476D1CE4E5B9) & mask
        v = ((v ^ v >> 27) * 0x94D049BB133111EB) & mask
        yield ((v ^ v >> 31) >> 11) * 2.0**-53


def initialized(config, seed):
    units = draws(seed)
    parameters = {}
    for name, shape in parameter_shapes(config).items():
        if len(shape) == 1:
            parameters[name] = np.ones(shape)
        else:
            limit = np.sqrt(6 / sum(shape))
            parameters[name] = np.array([limit * (2 * next(units) - 1) for _ in range(np.prod(shape))]).reshape(shape)
    return parameters


def random_case(config, batch, tokens, seed=1):
    random = np.random.default_rng(seed)
    parameters = {n: random.normal(size=s) * 0.7 for n, s in parameter_shapes(config).items()}
    return parameters, *random.integers(config.vocabulary_size, size=(2, batch, tokens))


def random_arrays(*shapes, seed=2):
    random = np.random.default_rng(seed)
    return [random.normal(size=shape) for shape in shapes]


def close(got, expected, digits=38):
    """Equal to so many digits, relative to the largest expected element."""
    got, expected = np.asarray(got, object), np.asarray(expected, object)
    assert got.shape == expected.shape
    with mpmath.workdps(digits + 30):
        scale = max([abs(mpmath.mpf(v)) for v in expected.flat], default=mpmath.mpf(0))
        worst = max([abs(mpmath.mpf(g) - e) for g, e in zip(got.flat, expected.flat, strict=True)], default=0)
        return worst <= scale * mpmath.mpf(10) ** -digits


# --- Naive loops: plain mpmath, one sequence, one head ---


def naive_matmul(x, weight):
    return [[mpmath.fsum(a * weight[i][j] for i, a in enumerate(row)) for j in range(len(weight[0]))] for row in x]


def naive_norm(x, gain, epsilon):
    scales = [1 / mpmath.sqrt(mpmath.fsum(a * a for a in row) / len(row) + epsilon) for row in x]
    return [[a * s * g for a, g in zip(row, gain, strict=True)] for row, s in zip(x, scales, strict=True)]


def naive_rotate(x, base, offset=0):
    rows = []
    for p, row in enumerate(x, offset):
        rows.append([])
        for i in range(len(row) // 2):
            turn = mpmath.expj(p * mpmath.power(base, mpmath.mpf(-2 * i) / len(row)))
            z = mpmath.mpc(row[2 * i], row[2 * i + 1]) * turn
            rows[-1] += [z.real, z.imag]
    return rows


def naive_attend(q, k, v):
    rows = []
    for t, query in enumerate(q):
        powers = [mpmath.exp(mpmath.fdot(query, k[s]) / mpmath.sqrt(len(query))) for s in range(t + 1)]
        rows.append([mpmath.fdot(powers, [v[s][i] for s in range(t + 1)]) / sum(powers) for i in range(len(v[0]))])
    return rows


def naive_swiglu(gate, up):
    pairs = [zip(gates, ups, strict=True) for gates, ups in zip(gate, up, strict=True)]
    return [[g * u / (1 + mpmath.exp(-g)) for g, u in row] for row in pairs]


def naive_logits(config, parameters, tokens):
    """Logits of one sequence for a configuration with one head."""
    p = {name: exact_lists(value) for name, value in parameters.items()}
    x = [p[TABLE][z] for z in tokens]
    for layer in range(config.layers):
        b = of_block(p, layer)
        n = naive_norm(x, b["attention_norm.gain"], config.rms_epsilon)
        q, k, v = (naive_matmul(n, b[f"attention.{role}.weight"]) for role in ("query", "key", "value"))
        heads = naive_attend(naive_rotate(q, config.rope_base), naive_rotate(k, config.rope_base), v)
        x = naive_add(x, naive_matmul(heads, b["attention.output.weight"]))
        n = naive_norm(x, b["ffn_norm.gain"], config.rms_epsilon)
        hidden = naive_swiglu(naive_matmul(n, b["ffn.gate.weight"]), naive_matmul(n, b["ffn.up.weight"]))
        x = naive_add(x, naive_matmul(hidden, b["ffn.down.weight"]))
    return naive_matmul(naive_norm(x, p[FINAL_GAIN], config.rms_epsilon), list(zip(*p[TABLE], strict=True)))


def naive_add(x, y):
    return [[a + b for a, b in zip(r, s, strict=True)] for r, s in zip(x, y, strict=True)]


def naive_loss(logits, targets):
    rows = zip(logits, targets, strict=True)
    return mpmath.fsum(mpmath.log(mpmath.fsum(map(mpmath.exp, row))) - row[y] for row, y in rows) / len(targets)


def exact_lists(array):
    return np.vectorize(mpmath.mpf, otypes=[object])(array).tolist()


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


def test_infinite_and_undefined_values_stay_so():
    got = oracle.to_float(oracle.linear([[np.inf, 1.0], [np.nan, 1.0]], [[1.0], [1.0]]))
    assert got[0, 0] == np.inf
    assert np.isnan(got[1, 0])


def test_certain_prediction_keeps_the_digits_of_its_loss():
    with mpmath.workdps(60):
        assert close(oracle.nll([[0.0, 500.0]], [1]), [mpmath.log1p(mpmath.exp(-500))])


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


def test_separate_head_is_used_by_the_projection_alone():
    parameters, tokens, _ = random_case(SMALL, 1, 3)
    head = random_arrays((5, 6))[0]
    stages = oracle.forward(SMALL, parameters, tokens, head=head)
    assert (stages["final_norm"] == oracle.forward(SMALL, parameters, tokens)["final_norm"]).all()
    assert (stages["logits"] == oracle.project(stages["final_norm"], head)).all()


# --- Derivatives ---


def random_direction(parameters, names, seed=3):
    random = np.random.default_rng(seed)
    return {name: random.normal(size=parameters[name].shape) for name in names}


@pytest.mark.parametrize("step", ["1e-18", "1e-22"])
def test_derivative_equals_differences_at_other_steps(step):
    parameters, tokens, targets = random_case(SMALL, 2, 3)
    got = oracle.derivative(SMALL, parameters, tokens, targets, direction := random_direction(parameters, parameters))
    with mpmath.workdps(100):
        h = mpmath.mpf(step)
        up, down = (
            oracle.loss(SMALL, {n: v + s * h * direction[n] for n, v in _exact(parameters)}, tokens, targets, digits=80)
            for s in (1, -1)
        )
        assert close(got, (up - down) / (2 * h), 30)


def _exact(parameters):
    return ((name, oracle.add(value, 0, digits=100)) for name, value in parameters.items())


def test_derivative_is_linear_in_the_direction():
    config = Config(5, 4, 2, 3, 2, 4)
    parameters, tokens, targets = random_case(config, 1, 3)
    whole = random_direction(parameters, parameters)
    parts = [{name: value} for name, value in whole.items()]
    total, *pieces = oracle.derivatives(config, parameters, tokens, targets, [whole, *parts], digits=40)
    assert close(sum(pieces), total, 37)


def test_roles_of_the_table_add_up_and_absent_ids_have_no_lookup_gradient():
    config, tokens, targets = Config(5, 4, 2, 4, 0, 4), [[0, 1]], [[1, 2]]
    parameters = initialized(config, 32)
    lookup, head = oracle.role_gradients(config, parameters, tokens, targets)
    assert close(lookup + head, oracle.gradients(config, parameters, tokens, targets)[TABLE], 28)
    assert all(v == 0 for v in lookup[2:].flat)
    assert all(v != 0 for v in head.flat)


def test_gradient_of_the_head_is_the_textbook_one():
    """`(softmax - onehot)^T n / (B T)`: a formula that the oracle does not contain."""
    config = Config(5, 4, 2, 4, 0, 4)
    parameters, tokens, targets = random_case(config, 1, 3)
    _, head = oracle.role_gradients(config, parameters, tokens, targets)
    stages = oracle.forward(config, parameters, tokens)
    logits, normed = oracle.to_float(stages["logits"][0]), oracle.to_float(stages["final_norm"][0])
    errors = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True) - np.eye(5)[targets[0]]
    np.testing.assert_allclose(oracle.to_float(head), errors.T @ normed / 3, rtol=1e-10, atol=1e-13)


def test_operation_derivative_equals_the_derivative_by_hand():
    x, upstream, direction = random_arrays((2, 3), (2, 3), (2, 3))
    got = oracle.operation_derivative(oracle.silu, [x], upstream, [direction])
    with mpmath.workdps(60):
        slopes = [mpmath.diff(lambda g: g / (1 + mpmath.exp(-g)), mpmath.mpf(v)) for v in x.flat]
        terms = zip(slopes, upstream.flat, direction.flat, strict=True)
        assert close(got, mpmath.fsum(s * u * v for s, u, v in terms), 30)


def test_operation_derivative_holds_still_what_has_no_direction():
    x, y, upstream, direction = random_arrays((2, 3), (3, 2), (2, 2), (2, 3))
    got = oracle.operation_derivative(oracle.linear, [x, y], upstream, [direction, None], digits=40)
    assert close(got, (oracle.linear(direction, y, digits=60) * oracle.add(upstream, 0)).sum())


def test_direction_of_another_shape_is_refused():
    parameters, tokens, targets = random_case(SMALL, 1, 3)
    with pytest.raises(ValueError, match="direction of shape"):
        oracle.derivative(SMALL, parameters, tokens, targets, {FINAL_GAIN: np.ones(1)})
