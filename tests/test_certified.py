"""Ball arithmetic and mpmath against each other, the three outcomes, and what happens at the limit of digits."""

import math
from dataclasses import replace
from importlib.util import find_spec

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoderspec.golden import fixtures
from decoderspec.golden.values import CASES, kept
from decoderspec.reference import certified, oracle
from decoderspec.reference.arithmetic import multiprecision
from decoderspec.reference.certified import Enclosure, Outcome, compare
from decoderspec.reference.splitmix64 import SplitMix64, initialize
from decoderspec.spec.config import Config
from decoderspec.spec.parameters import FINAL_GAIN, TABLE, of_block, parameter_shapes

needs_flint = pytest.mark.skipif(find_spec("flint") is None, reason="python-flint is not installed (extra arb)")
SMALL = Config(5, 6, 1, 3, 1, 8, 50.0, 1e-3)
DIGITS = 30
FEW = 8  # radii: the worst case of one rounding is about one
FINER = 60  # digits at which mpmath's own rounding is nothing beside a radius


def drawn(config, batch, tokens, seed=1, scale=0.7):
    random = np.random.default_rng(seed)
    parameters = {n: random.normal(size=s) * scale for n, s in parameter_shapes(config).items()}
    return parameters, *random.integers(config.vocabulary_size, size=(2, batch, tokens))


def balls(digits):
    from decoderspec.reference import ball

    return ball.balls(digits)


def enclosures(values):
    """Balls as they come from one computation at `DIGITS`."""
    radius = balls(DIGITS).radius
    return {name: Enclosure(value, radius(value), True, DIGITS) for name, value in values.items()}


def outside(enclosed, truth):
    """Names of what does not lie in its ball."""
    return [name for name, value in truth.items() if not _within(value, enclosed[name])]


def _within(value, enclosure):
    """At distance 0 a point that equals an exact one is inside, and one within a radius can only be undecided."""
    expected = Outcome.UNDECIDED if enclosure.radius.any() else Outcome.INSIDE
    return compare(value, enclosure, 0.0) is expected


def apart(enclosed, values):
    """Names of what mpmath, at the same digits, rounds by more than a few radii."""
    pairs = ((name, value, enclosed[name]) for name, value in values.items())
    return [name for name, value, e in pairs if compare(value, e, FEW * e.radius) is not Outcome.INSIDE]


def assert_cross_checked(run):
    enclosed = enclosures(run(digits=DIGITS, arithmetic=balls))
    assert outside(enclosed, run(digits=FINER)) == []
    assert apart(enclosed, run(digits=DIGITS)) == []


# --- The two arithmetics ---


@needs_flint
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_mpmath_lies_in_the_balls_of_every_golden_case(case):
    at = case.config, case.parameters(), case.tokens
    assert_cross_checked(lambda **how: oracle.forward(*at, **how))
    assert_cross_checked(lambda **how: {"loss": np.asarray(oracle.loss(*at, case.targets, **how), object)})


@needs_flint
def test_golden_logits_and_losses_are_the_certified_ones():
    for case, entry in zip(CASES, kept()["cases"], strict=True):
        at = case.config, case.parameters(), case.tokens
        logits = certified.forward(*at, keep=("logits",), relative=1e-40)["logits"]
        found = {"logits": logits, "loss": certified.loss(*at, case.targets, relative=1e-40)}
        for name, enclosure in found.items():
            written = [mpmath.nstr(v, kept()["digits"], strip_zeros=False) for v in enclosure.middle.flat]
            assert written == entry[name]["values"], (case.id, name)


@needs_flint
def test_mpmath_lies_in_the_balls_of_the_model_chapter():
    parameters = initialize(fixtures.MODEL_CONFIG, SplitMix64(fixtures.SEED))
    assert_cross_checked(lambda **how: oracle.forward(fixtures.MODEL_CONFIG, parameters, fixtures.TOKENS, **how))


@needs_flint
def test_mpmath_lies_in_the_balls_of_the_block_chapter():
    config = Config(1, 4, 2, 4, 1, 6, 100.0, 0.0)
    units = {n: np.eye(4) if len(s) == 2 else np.ones(4) for n, s in parameter_shapes(config).items()}
    assert_cross_checked(lambda **how: oracle.block(config, of_block(units, 0), fixtures.INPUT, **how))


@st.composite
def small_cases(draw):
    heads, width, tokens = draw(st.integers(1, 2)), 2 * draw(st.integers(1, 3)), draw(st.integers(1, 4))
    epsilon = draw(st.sampled_from([0.0, 1e-6, 0.3]))
    sizes = draw(st.integers(1, 5)), heads * width, heads, draw(st.integers(1, 5)), draw(st.integers(0, 2)), tokens
    config = Config(*sizes, draw(st.sampled_from([1.0, 10000.0])), epsilon)
    scale = draw(st.sampled_from([1e-3, 0.7, 30.0]))
    parameters, ids, _ = drawn(config, draw(st.integers(1, 2)), tokens, draw(st.integers(0, 2**32)), scale)
    return config, parameters, ids


@needs_flint
@settings(max_examples=20, deadline=None, derandomize=True)
@given(small_cases())
def test_mpmath_lies_in_the_balls_of_random_cases(case):
    assert_cross_checked(lambda **how: oracle.forward(*case, **how))


@needs_flint
@pytest.mark.parametrize("name", ["exp", "log1p", "root", "cos", "sin"])
def test_each_function_encloses_mpmaths_closely(name):
    """Function by function, since in a whole stage the radii of other steps would cover for one without."""
    points = [1e-3, 0.3, 2.0, 700.5]
    with balls(DIGITS) as a:
        enclosed = enclosures({name: getattr(a, name)(a.exact(points))})
    fine = multiprecision(FINER)
    assert outside(enclosed, {name: getattr(fine, name)(fine.exact(points))}) == []
    assert (enclosed[name].radius <= 10.0**-DIGITS * np.abs(oracle.to_float(enclosed[name].values))).all()


@needs_flint
def test_a_product_encloses_mpmaths_closely():
    random = np.random.default_rng(4)
    left, right = random.normal(size=(3, 40)), random.normal(size=(40, 5))
    enclosed = enclosures({"product": oracle.linear(left, right, digits=DIGITS, arithmetic=balls)})
    exact = oracle.linear(left, right, digits=2000)
    assert outside(enclosed, {"product": exact}) == []
    assert enclosed["product"].radius.max() < 10.0**-DIGITS


@needs_flint
def test_the_cross_check_sees_a_value_one_radius_away():
    parameters, tokens, _ = drawn(SMALL, 1, 3)
    enclosed = enclosures(oracle.forward(SMALL, parameters, tokens, digits=DIGITS, arithmetic=balls))
    truth = oracle.forward(SMALL, parameters, tokens, digits=FINER)
    moved = truth["logits"] + multiprecision(FINER).exact(2 * enclosed["logits"].radius)
    assert outside(enclosed, truth | {"logits": moved}) == ["logits"]


@needs_flint
def test_results_do_not_depend_on_flints_precision_nor_change_it():
    from flint import ctx

    parameters, tokens, _ = drawn(SMALL, 1, 3)
    expected, before = certified.forward(SMALL, parameters, tokens), ctx.prec
    try:
        ctx.prec = 12
        got = certified.forward(SMALL, parameters, tokens)
        for _ in oracle.stream(SMALL, parameters, tokens, arithmetic=balls):
            assert ctx.prec == 12
        with pytest.raises(ZeroDivisionError):
            oracle.rms_norm([[0.0, 0.0]], [1.0, 1.0], 0.0, arithmetic=balls)
        assert ctx.prec == 12
    finally:
        ctx.prec = before
    assert all((got[n].middle == e.middle).all() and (got[n].radius == e.radius).all() for n, e in expected.items())


@needs_flint
def test_what_is_exact_has_radius_zero():
    parameters, tokens, _ = drawn(SMALL, 2, 5)
    stages = certified.forward(SMALL, parameters, tokens)
    future = ~np.tri(5, dtype=bool)
    weights = stages["blocks.0.attention.weights"]
    assert not stages["embedding"].radius.any()
    assert not weights.radius[..., future].any()
    assert all(v == 0 for v in weights.middle[..., future].flat)
    assert weights.radius[..., 1:, 0].all()


@needs_flint
@pytest.mark.parametrize(
    "number", [np.float16(0.1), np.float32(0.1), 0.1, np.longdouble(1) / 3, np.int64(7), mpmath.mpf(2) ** 99]
)
def test_every_kind_of_number_enters_the_balls_unrounded(number):
    value = oracle.add([number], [0], digits=80, arithmetic=balls)
    assert not balls(80).radius(value).any()
    assert (multiprecision(80).exact(value) == multiprecision(80).exact([number])).all()


@needs_flint
def test_what_is_no_real_number_is_refused_by_the_balls():
    for wrong in (["1"], [1j], [None]):
        with pytest.raises(TypeError, match="expected"):
            oracle.silu(wrong, arithmetic=balls)


@needs_flint
def test_undefined_values_have_an_infinite_radius_and_tiny_radii_are_not_zero():
    undefined = oracle.linear([[np.inf, 1.0]], [[0.0], [1.0]], arithmetic=balls)
    tiny = oracle.silu([-2000.0], arithmetic=balls)
    assert balls(50).radius(undefined) == np.inf
    assert balls(50).radius(tiny) == 5e-324


@needs_flint
def test_radius_of_a_row_near_zero_is_small_against_its_terms():
    """Products that cancel keep an absolute error as of their largest term; what cancels exactly is exact."""
    a = balls(50)
    cancelled = oracle.linear([[1.0, 1e-60, -1.0]], [[1.0], [1e-60], [1.0]], arithmetic=balls)
    assert a.radius(cancelled).item() <= 10.0**-50
    assert not a.radius(oracle.linear([[1.0, -1.0]], [[1.0], [1.0]], arithmetic=balls)).any()


# --- Digits as needed ---


@needs_flint
def test_radii_meet_the_target_whatever_it_is():
    parameters, tokens, _ = drawn(SMALL, 1, 4)
    for relative in (1e-5, 1e-30, 1e-200):
        found = certified.forward(SMALL, parameters, tokens, relative=relative)
        assert all(e.proven and e.too_wide(relative, 0.0) is None for e in found.values())


def test_without_balls_two_runs_agree_and_nothing_is_called_proven():
    parameters, tokens, targets = drawn(SMALL, 1, 3)
    found = certified.forward(SMALL, parameters, tokens, arithmetic=multiprecision)
    assert all(not e.proven and e.too_wide(1e-30, 0.0) is None for e in found.values())
    loss = certified.loss(SMALL, parameters, tokens, targets, arithmetic=multiprecision)
    assert compare(oracle.loss(SMALL, parameters, tokens, targets, digits=90), loss, 1e-45) is Outcome.INSIDE


def test_mpmath_is_what_computes_where_flint_is_missing(monkeypatch):
    monkeypatch.setattr(oracle, "find_spec", lambda name: None)
    assert oracle.fastest() is multiprecision


@needs_flint
def test_balls_are_what_computes_where_flint_is_installed():
    assert oracle.fastest()(20).radius is not None


def test_derivatives_are_agreement_in_any_arithmetic():
    parameters, tokens, targets = drawn(SMALL, 1, 3)
    direction = {name: np.ones_like(value) for name, value in parameters.items()}
    (found,) = certified.derivatives(SMALL, parameters, tokens, targets, [direction])
    truth = oracle.derivative(SMALL, parameters, tokens, targets, direction, digits=45)
    assert not found.proven
    assert compare(truth, found, 1e-40) is Outcome.INSIDE


@needs_flint
def test_differences_in_balls_enclose_those_of_mpmath():
    config = Config(3, 2, 1, 2, 1, 3)
    parameters, tokens, targets = drawn(config, 1, 2)
    at = config, parameters, tokens, targets
    found, truth = oracle.gradients(*at, arithmetic=balls), oracle.gradients(*at, digits=45)
    assert list(found) == list(truth)
    for name, enclosure in enclosures(found).items():
        assert compare(truth[name], enclosure, 10.0**-DIGITS) is Outcome.INSIDE
    roles = oracle.role_gradients(*at, arithmetic=balls)
    total = Enclosure(roles[0] + roles[1], balls(DIGITS).radius(roles[0]) + balls(DIGITS).radius(roles[1]), False, 15)
    assert compare(truth[TABLE], total, 1e-14) is Outcome.INSIDE  # added at flint's own precision


@needs_flint
def test_one_run_of_a_derivative_is_held_to_its_rounding():
    parameters, tokens, targets = drawn(SMALL, 1, 3)
    direction = {name: np.ones_like(value) for name, value in parameters.items()}
    at = SMALL, parameters, tokens, targets, [direction]
    (once,), (twice,) = (certified.derivatives(*at, agreement=agreement) for agreement in (False, True))
    assert (once.proven, twice.proven) == (False, False)
    assert once.digits < twice.digits
    assert compare(twice.middle, once, 1e-40) is Outcome.INSIDE


@needs_flint
def test_balls_print_and_round_like_other_numbers():
    x = [1.0, -2.0]
    in_balls, plain = oracle.silu(x, arithmetic=balls), oracle.silu(x)
    rounded = oracle.to_float(plain)
    assert oracle.text(in_balls, 20) == oracle.text(plain, 20)
    assert (oracle.to_float(in_balls) == rounded).all()
    assert (oracle.difference(rounded, in_balls) == oracle.difference(rounded, plain)).all()


def equal_rows(digits, arithmetic):
    """A norm that is 1 and a difference that is 0, of numbers that are never exact: `3 (1 / 3)`."""
    how = {"digits": digits, "arithmetic": arithmetic}
    ones = oracle.rms_norm([[3.0, 3.0]], [1.0, 1.0], 0.0, **how)
    return {"ones": ones, "zero": oracle.linear(ones, [[1.0], [-1.0]], **how)}


@needs_flint
def test_a_zero_that_no_digits_show_ends_at_the_limit_and_meets_an_absolute_target():
    with pytest.raises(certified.DigitsExhausted, match=r"zero\[0, 0\] is 0 with a radius of .* up to 300 digits"):
        certified.certify(equal_rows, limit=300)
    assert certified.certify(equal_rows, absolute=1e-40)["zero"].radius.max() <= 1e-40


def test_values_alone_are_right_in_any_arithmetic_and_of_infinite_inputs_too(monkeypatch):
    x = [1.0, -np.inf, np.inf]

    def norm(digits, arithmetic):
        how = {"digits": digits, "arithmetic": arithmetic}
        return {"one": oracle.silu(x[:1], **how), "all": oracle.linear(x, [[1.0], [0.5], [0.0]], **how)}

    truth = oracle.silu(x[:1], digits=60)
    for _ in range(2):
        found = certified.values(norm)
        assert abs(oracle.difference(found["one"], truth)) < 1e-30
        assert np.isnan(oracle.to_float(found["all"]))
        monkeypatch.setattr(oracle, "find_spec", lambda name: None)


def test_infinite_input_is_refused_before_digits_are_spent():
    parameters, tokens, _ = drawn(SMALL, 1, 3)
    with pytest.raises(ValueError, match=f"{FINAL_GAIN} is not finite"):
        certified.forward(SMALL, parameters | {FINAL_GAIN: np.full(6, np.nan)}, tokens)


def test_zero_row_without_epsilon_is_refused_in_any_arithmetic():
    config = replace(SMALL, rms_epsilon=0.0)
    parameters, tokens, _ = drawn(config, 1, 3)
    with pytest.raises(ZeroDivisionError, match=r"row \(0, 0\)"):
        certified.forward(config, parameters | {TABLE: np.zeros((5, 6))}, tokens)


# --- Three outcomes ---


def known(middle, radius):
    middle = multiprecision(30).exact(middle)
    return Enclosure(middle, np.broadcast_to(np.float64(radius), middle.shape), True, 30)


@pytest.mark.parametrize(
    ("value", "radius", "allowed", "outcome"),
    [
        (1.5, 0.125, 0.625, "inside"),  # reaches the limit and no further
        (1.5, 0.125, 0.5, "undecided"),
        (1.5, 0.125, 0.375, "undecided"),  # may just be at the limit
        (1.5, 0.125, math.nextafter(0.375, 0.0), "outside"),
        (1.0, 0.0, 0.0, "inside"),
        (math.nextafter(1.0, 2.0), 0.0, 0.0, "outside"),
        (math.nan, 0.1, 1.0, "outside"),
        (math.inf, 0.1, 1e308, "outside"),
        (1.0, math.inf, 1e308, "undecided"),
        (math.nan, math.inf, 1.0, "undecided"),
        (1.0, 1e-300, 1e-300, "inside"),
        (1.0, 1e-300, math.nextafter(1e-300, 0.0), "undecided"),
    ],
)
def test_outcome_is_as_sure_as_the_radius(value, radius, allowed, outcome):
    assert compare([value], known([1.0], radius), allowed) is Outcome(outcome)


def test_one_element_outside_decides_and_one_undecided_leaves_open():
    truth = known([1.0, 1.0, 1.0], 0.125)
    assert compare([1.0, 1.5, 3.0], truth, 0.5) is Outcome.OUTSIDE
    assert compare([1.0, 1.5, 1.0], truth, 0.5) is Outcome.UNDECIDED
    assert compare([1.0, 1.5, 1.0], truth, [0.5, 1.0, 0.5]) is Outcome.INSIDE
    assert compare(np.zeros(0), known(np.zeros(0), 0.0), 0.5) is Outcome.INSIDE


def test_values_of_another_shape_are_refused():
    with pytest.raises(ValueError, match="shapes differ"):
        compare([1.0], known([1.0, 2.0], 0.0), 1.0)


@needs_flint
def test_more_digits_are_taken_while_undecided_and_only_then():
    asked = []

    def silu(digits, arithmetic):
        asked.append(digits)
        return {"silu": oracle.silu([1.0], digits=digits, arithmetic=arithmetic)}

    got = {"silu": oracle.to_float(oracle.silu([1.0])) + 1e-13}
    assert certified.decide(got, silu, {"silu": 1e-4}, digits=1) == {"silu": Outcome.INSIDE}
    assert asked == [1]
    assert certified.decide(got, silu, {"silu": 2e-13}, digits=1) == {"silu": Outcome.INSIDE}
    assert certified.decide(got, silu, {"silu": 5e-14}, digits=1) == {"silu": Outcome.OUTSIDE}
    assert len(asked) > 3
    assert certified.decide(got, silu, {"silu": 2e-13}, digits=1, limit=1) == {"silu": Outcome.UNDECIDED}


@needs_flint
def test_truth_on_the_limit_stays_undecided():
    values, allowed = {"ones": [[1.0, 1.0]], "zero": [[1.0]]}, {"ones": 0.0, "zero": 0.5}
    expected = {"ones": Outcome.UNDECIDED, "zero": Outcome.OUTSIDE}
    assert certified.decide(values, equal_rows, allowed, limit=200) == expected
