"""Tails and quantiles against an independent library, and which elements count."""

import math

import mpmath
import numpy as np
import pytest

from decoderspec.reference.limits import (
    FALSE_ALARMS,
    compare,
    distinct_rows,
    f_tail,
    independent,
    spread_allowed,
    student_tail,
    worst_allowed,
)
from decoderspec.reference.noise import RUNS


def regularized(f, over, under):
    """`P(F > f)` by mpmath's incomplete beta function."""
    with mpmath.workdps(40):
        x = mpmath.mpf(under) / (under + over * mpmath.mpf(f))
        return float(mpmath.betainc(mpmath.mpf(under) / 2, mpmath.mpf(over) / 2, 0, x, regularized=True))


@pytest.mark.parametrize("f", [0.05, 0.7, 1.0, 1.4, 4.0, 30.0, 115.0])
@pytest.mark.parametrize("over", [1.0, 2.0, 3.7, 25.0, 400.0])
def test_the_tail_of_the_f_distribution_has_nine_digits(f, over):
    expected = regularized(f, over, RUNS * over)
    if expected > 1e-250:
        assert f_tail(f, over, RUNS * over) == pytest.approx(expected, rel=1e-9)


def test_all_of_the_f_distribution_lies_above_zero():
    assert f_tail(0.0, 3.0, 48.0) == f_tail(-1.0, 3.0, 48.0) == 1.0


@pytest.mark.parametrize("freedom", [1.0, 1.5, 7.0, 333.3, 1e5])
def test_the_limit_of_the_mean_is_the_quantile(freedom):
    limit = spread_allowed(freedom)
    assert f_tail(limit * limit, freedom, RUNS * freedom) == pytest.approx(FALSE_ALARMS, rel=1e-5)


@pytest.mark.parametrize("t", [1e-3, 1.0, 5.0, 12.6, 40.0])
def test_the_tail_of_the_t_distribution_has_nine_digits(t):
    assert student_tail(t, RUNS) == pytest.approx(regularized(t * t, 1, RUNS), rel=1e-9)


def test_rows_that_differ_by_noise_alone_count_once():
    unit = np.full((4, 2), 0.1)
    assert distinct_rows(np.array([[1.0, 2.0], [1.01, 2.0], [5.0, 2.0], [-3.0, 2.0]]), unit) == 3
    assert distinct_rows(np.array([[0.0, 9.0], [-0.0, 9.0]]), unit[:2]) == 1
    assert distinct_rows(np.zeros((3, 2)), np.zeros((3, 2))) == 1
    assert distinct_rows(np.float64(3.0), np.float64(0.1)) == 1
    assert distinct_rows(np.zeros((0, 2)), np.zeros(1)) == 0


def test_elements_that_err_alike_count_once_for_each_row_that_is_alike():
    rows = np.repeat([[1.0, 7.0], [4.0, 7.0]], 5, axis=0)
    unit = np.full(rows.shape, 0.1)
    assert independent(rows, unit) == 2.0
    assert independent(rows, unit, 10.0) == pytest.approx(2.0)
    assert independent(rows, unit, 0.1) == 1.0


def test_what_lies_on_a_limit_conforms_and_what_lies_beyond_does_not():
    limit = worst_allowed(1)
    assert not compare(np.ones(1), np.full(1, math.nextafter(limit, math.inf)), np.ones(1)).conforms
    on = compare(np.ones(2), np.array([1.0, 0.0]), np.ones(2))
    assert on.conforms
    assert on.worst == 1.0
