"""Derivatives by differences: other steps, sum rules, and formulas that the oracle does not contain."""

import mpmath
import numpy as np
import pytest
from naive import SMALL, close, initialized, random_arrays, random_case

from decoderspec.reference import oracle
from decoderspec.spec.config import Config
from decoderspec.spec.parameters import FINAL_GAIN, TABLE


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
