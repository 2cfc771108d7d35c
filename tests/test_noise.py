"""The noise unit is calibrated: right decoders that round differently stay within it, and small mistakes do not."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from variants import VARIANTS, Variant, in_float64, softmax_attention

from decoderspec.properties.cases import STYLES, TOKEN_STYLES, Case, draw_parameters
from decoderspec.properties.truth import Truth
from decoderspec.reference import decoder, units
from decoderspec.reference.limits import FALSE_ALARMS, compare, spread_allowed, student_tail, worst_allowed
from decoderspec.reference.noise import RUNS, Noise, injection_scale
from decoderspec.reference.operations import OPERATIONS, Operation
from decoderspec.reference.rounding import noisy
from decoderspec.spec.config import Config
from decoderspec.spec.precision import FORMATS, STAGE_KEYS, recipe
from decoderspec.spec.requirements import text
from decoderspec.spec.stages import suffix

CASES = 40
MEDIAN_WORST = (0.5, 5.0)  # of the worst element of a case: a unit ten times too large or too small falls outside
MEDIAN_SPREAD = (0.05, 1.1)  # of the root mean square over the elements of a stage: at most the limit of many rows
SMALL_MISTAKE = 1e-3  # relative, in the scale of the scores, where float32 rounds to 6e-8
CAUGHT_AT_LEAST = 0.9  # of the cases in which there is more than one key
LINEAR = 0.01  # how far units from the same errors may differ
MANY = 400  # runs from which a unit is known
KNOWN = 5 * math.sqrt(2 / (2 * MANY))  # five standard errors of the ratio of two such units
RAISED = 100.0  # by which float32 in one stage must raise a unit of float64: the formats differ by 2^29
COMMON = 10.0  # a common error moves a row's mean by so many times what independent ones do
CORRELATED = 0.99


@cache
def cases() -> list[Case]:
    random = np.random.default_rng(20)

    def one(values: Any) -> Any:
        return values[random.integers(len(values))]

    found = []
    for seed in range(CASES):
        heads, tokens = one((1, 2, 3)), int(random.integers(1, 10))
        config = Config(
            one((2, 5, 11)), heads * one((2, 4, 6)), heads, one((1, 3, 7)), one((0, 1, 2)), 12,
            one((1.25, 10.0, 1e4)), one((1e-1, 1e-3, 1e-6)),
        )  # fmt: skip
        found.append(Case(config, one((1, 2)), tokens, seed, one(STYLES), one(TOKEN_STYLES)))
    return found


@cache
def truth(case: Case, precision: str) -> Truth:
    declared = recipe(precision)
    return Truth(case, draw_parameters(case, declared), declared)


def judged(variant: Variant, case: Case) -> Any:
    known = truth(case, variant.precision)
    logits = variant.build(case.config, known.parameters).logits(known.batch[0])
    return known.logits.judge(logits.astype(np.float64), known.units["logits"])


EVERY_VARIANT = pytest.mark.parametrize("variant", [*VARIANTS, *map(in_float64, VARIANTS)], ids=lambda v: v.name)


@EVERY_VARIANT
def test_right_decoders_are_within_the_limits_and_neither_far_below_nor_at_them(variant):
    found = [judged(variant, case) for case in cases()]
    wrong = [(case.describe(), str(each)) for case, each in zip(cases(), found, strict=True) if not each.conforms]
    assert not wrong
    low, high = MEDIAN_WORST
    assert low < np.median([each.worst for each in found]) < high


@EVERY_VARIANT
def test_right_stages_are_within_the_limits_on_their_own_inputs(variant):
    spreads: dict[str, list[float]] = {}
    for case in cases()[::4]:
        known = truth(case, variant.precision)
        run = variant.build(case.config, known.parameters).run(known.batch[0])
        given = {stage: value.astype(np.float64) for stage, value in run.items()}
        expected, unit = known.stages(given), known.stage_units(given)
        for stage, value in given.items():
            found = expected[stage].judge(value, unit[stage])
            assert found.conforms, (stage, str(found), case.describe())
            spreads.setdefault(suffix(stage), []).append(found.spread)
    moved = {stage: float(np.median(values)) for stage, values in spreads.items() if any(values)}
    assert set(spreads) - set(moved) == {"embedding", "attention.merged"}  # copies round nothing
    low, high = MEDIAN_SPREAD
    assert {stage: value for stage, value in moved.items() if not low < value < high} == {}


def test_a_small_mistake_is_beyond_the_limits():
    def wrong(q, k, v, matmul):
        return softmax_attention(q * q.dtype.type(1 + SMALL_MISTAKE), k, v, matmul)

    mixing = [case for case in cases() if min(case.tokens, case.config.layers + 1, case.config.vocabulary_size - 1) > 1]
    mixing = [replace(case, style="plain", token_style="any") for case in mixing]  # with nothing that drowns the others
    assert len(mixing) > CASES / 8
    found = [not judged(Variant("scale", attention=wrong), case).conforms for case in mixing]
    assert np.mean(found) >= CAUGHT_AT_LEAST


# --- Size and linearity ---


def example(**changes: Any) -> Case:
    return replace(Case(Config(5, 8, 2, 6, 2, 6, 10.0, 1e-3), 2, 5, 3), **changes)


def moved(case: Case, declared: Any, scale: float, seed: int = 0) -> dict[str, Any]:
    """Units of everything at a chosen enlargement of the noise."""
    weights = truth(case, "float32").parameters
    compute = units.training_values(case.config, weights, *truth(case, "float32").batch)
    noise = Noise(recipe(declared), np.random.default_rng(seed), MANY, scale)
    exact, noised = compute(OPERATIONS), compute(noisy(noise, OPERATIONS))
    return {name: units.unit((noised[name] - exact[name]) / scale) for name in exact}


@pytest.mark.parametrize("declared", ["float64", "float32", {"results": "float64", "tables": "float32"}])
def test_units_do_not_depend_on_how_much_the_noise_is_enlarged(declared):
    whole = injection_scale(recipe(declared))
    small, large = (moved(example(), declared, scale) for scale in (whole / 8, whole))
    for name, unit in small.items():
        np.testing.assert_allclose(unit, large[name], rtol=KNOWN, atol=LINEAR * unit.max(), err_msg=name)


def test_units_are_proportional_to_the_unit_roundoff():
    fine, coarse = (moved(example(), word, injection_scale(recipe(word))) for word in ("float64", "float32"))
    ratio = FORMATS["float32"].unit / FORMATS["float64"].unit
    for name, unit in coarse.items():
        np.testing.assert_allclose(fine[name] * ratio, unit, rtol=KNOWN, atol=LINEAR * unit.max(), err_msg=name)


@pytest.mark.parametrize("name", [*FORMATS, "bfloat16-mixed", "float32-tf32", "float32-kv16"])
def test_injected_noise_stands_out_of_float64_and_stays_linear(name):
    declared = recipe(name)
    scale = injection_scale(declared)
    assert scale >= 1
    assert max(form.unit for form in declared.used) * scale <= max(2.0**-8, *(form.unit for form in declared.used))


@pytest.mark.parametrize("coarse", ["float16", "bfloat16"])
def test_stages_before_the_first_coarse_one_have_the_noise_of_float64_alone(coarse):
    case, mixed = example(), recipe({"results": "float64", "tables": "float64", "attention.value": coarse})
    given = truth(case, "float64")
    at = case.config, given.parameters, given.batch[0], {}
    found, alone = (units.stage_noise(*at, declared, case.seed) for declared in (mixed, recipe("float64")))
    for name in ("embedding", "blocks.0.attention_norm", "blocks.0.attention.query", "blocks.0.attention.weights"):
        np.testing.assert_allclose(found[name][0], alone[name][0], rtol=KNOWN, err_msg=name)
    assert (found["logits"][0] > 1e6 * alone["logits"][0]).all()


# --- What shares an error ---


def perturbed(declared: Any, compute: Callable[[Any], Any], seed: int = 0) -> Any:
    """Relative changes of a result, run by run."""
    deviation = units.deviations(lambda ops: {"y": compute(ops)}, recipe(declared), seed)["y"]
    return deviation / compute(OPERATIONS)


def test_a_norm_has_one_root_for_a_row():
    random = np.random.default_rng(1)
    x, gain = random.normal(size=(1, 3, 64)), random.uniform(1, 2, 64)
    relative = perturbed("float64", lambda ops: ops.rms_norm("final_norm", x, gain, 1e-3))  # [runs, 1, 3, 64]
    row = relative.mean(axis=-1)
    independent = relative.var(axis=-1).mean() / relative.shape[-1]
    assert np.mean(np.square(row)) > COMMON * independent
    assert abs(np.corrcoef(row[..., 0].ravel(), row[..., 1].ravel())[0, 1]) < CORRELATED  # another row, another root


def test_one_rotary_table_serves_all_heads_and_rows():
    random = np.random.default_rng(2)
    x = np.broadcast_to(random.normal(size=(4, 6)), (2, 3, 4, 6))
    declared = {"results": "float64", "tables": "float32"}
    compute = lambda ops: ops.rotate("r", x, ops.rotary("r/table", np.arange(4), 6, 10.0))  # noqa: E731
    relative = perturbed(declared, compute)[..., 1:, :]
    first = relative[:, 0, 0].ravel()
    for row, head in ((0, 1), (0, 2), (1, 0)):
        assert np.corrcoef(first, relative[:, row, head].ravel())[0, 1] > CORRELATED


def test_a_softmax_row_has_one_sum():
    scores = np.linspace(0, 1, 64).reshape(1, 1, 1, 64)
    relative = perturbed("float64", lambda ops: ops.softmax("attention.weights", scores))
    assert np.mean(np.square(relative.mean(axis=-1))) > COMMON * relative.var(axis=-1).mean() / 64


def shared(
    first: Any, second: Any, compute: Any = lambda ops, x: ops.add("after_attention", x, np.zeros_like(x))
) -> Any:
    """The correlation over many runs of the errors of two values."""
    x = np.array([[[first, second]]])
    moved = compute(noisy(Noise(recipe("float32"), np.random.default_rng(0), MANY), OPERATIONS), x) - compute(
        OPERATIONS, x
    )
    return np.corrcoef(moved[..., 0].ravel(), moved[..., 1].ravel())[0, 1]


@pytest.mark.parametrize(
    ("other", "common"),
    [(1.1, 1), (1.1 * (1 + 2.0**-50), 1), (-1.1, -1), (2.2, 1), (1.1 * (1 + 2.0**-30), 0.5), (1.2, 0)],
)
def test_a_rounding_is_a_function_of_what_is_rounded(other, common):
    assert abs(shared(1.1, other) - common) < KNOWN


def test_equal_sums_in_two_columns_have_errors_of_their_own():
    weight = np.array([[1.0, 1.0], [1.0, 1.0]])
    found = shared(1.1, 1.2, lambda ops, x: ops.linear("attention.query", x, weight))
    assert abs(found) < KNOWN


def test_scores_that_are_nearly_alike_can_be_rounded_apart():
    """51.79 and 51.81 in bfloat16: both 51.75, or 51.75 and 52."""
    query, key = np.zeros((1, 1, 2, 2)), np.zeros((1, 1, 2, 2))
    query[..., 0], key[..., 0] = math.sqrt(2), (51.79, 51.81)
    compute = lambda ops: {"p": ops.softmax("w", ops.scores("w/scores", query, key))}  # noqa: E731
    unit = units.unit(units.deviations(compute, recipe("bfloat16"), 0)["p"])
    assert unit[0, 0, 1, 0] > 51.8 * FORMATS["bfloat16"].unit / 8  # a quarter for the softmax's slope


def test_rows_that_are_nearly_alike_average_nothing_away():
    """Sixty-four rows of one token in a bfloat16 decoder: the mean of their losses is as uncertain as each of them."""
    random = np.random.default_rng(6)
    logits = np.broadcast_to(random.normal(size=7), (1, 64, 7)) + 1e-6 * random.normal(size=(1, 64, 7))
    targets = np.full((1, 64), 3)

    def unit(rows: int) -> float:
        compute = lambda ops: {"y": ops.nll("loss", ops.add("logits", logits[:, :rows], 0.0), targets[:, :rows])}  # noqa: E731
        return float(units.unit(units.deviations(compute, recipe("bfloat16"), 0, MANY)["y"]))

    assert unit(64) > unit(1) / math.sqrt(2) * (1 - KNOWN)


# --- Structural zeros ---


@pytest.mark.parametrize("declared", ["float64", "float32", "bfloat16", "float16"])
def test_masked_weights_stay_exactly_zero(declared):
    known = truth(example(style="peaked"), "float32")
    compute = units.stage_values(known.case.config, known.parameters, known.batch[0], {})
    found = units.deviations(compute, recipe(declared), 0)
    for layer in range(known.case.config.layers):
        weights = found[f"blocks.{layer}.attention.weights"]
        future = ~np.tri(known.case.tokens, dtype=bool)
        assert not weights[..., future].any()
        assert weights[..., ~future].any()


def test_rows_of_absent_ids_keep_a_gradient_of_nothing_but_underflow_in_the_lookup_role():
    known = truth(example(token_style="same"), "float32")
    absent = np.setdiff1d(np.arange(known.case.config.vocabulary_size), known.batch[0])
    assert absent.size
    assert np.abs(known.deviations["gradient.lookup"][:, absent]).max() < 100 * FORMATS["float32"].tiny


# --- Each rounding counts ---


@cache
def stage_units(declared: Any) -> dict[str, Any]:
    known = truth(example(config=replace(example().config, layers=1)), "float32")
    return known.stage_units({}, recipe({"results": "float64", declared: "float32"} if declared else "float64"))


@pytest.mark.parametrize("stage", STAGE_KEYS)
def test_a_coarser_stage_raises_its_unit_and_what_follows_and_nothing_before(stage):
    fine, coarse = stage_units(""), stage_units(stage)
    names = list(fine)
    place = next(index for index, name in enumerate(names) if suffix(name) == stage)
    for name in names[:place]:
        np.testing.assert_array_equal(coarse[name], fine[name], err_msg=name)
    for name in (names[place], "logits"):
        assert np.sqrt(np.mean(np.square(coarse[name]))) > RAISED * np.sqrt(np.mean(np.square(fine[name]))), name


@pytest.mark.parametrize("key", ["accumulate", "products", "tables", "loss", "gradients"])
def test_each_part_of_a_recipe_raises_a_unit(key):
    whole = injection_scale(recipe("float64"))
    fine, coarse = (moved(example(), {"results": "float64", key: form}, whole) for form in ("float64", "float32"))
    raised = {name for name, unit in fine.items() if np.max(coarse[name]) > RAISED * np.max(unit)}
    if key in ("accumulate", "products", "tables"):
        assert "logits" in raised
    else:
        assert "logits" not in raised
    assert ("loss" in raised) == (key != "gradients")
    assert "gradient.final_norm.gain" in raised
    assert not raised & {"embedding"}


# --- Sixteen bits ---


@pytest.mark.parametrize("word", ["bfloat16", "float16"])
def test_sixteen_bits_keep_the_loss_in_float32(word):
    random = np.random.default_rng(3)
    logits, targets = random.normal(size=(2, 3, 7)), random.integers(0, 7, (2, 3))

    def unit(declared: Any) -> float:
        return float(np.sqrt(np.mean(np.square(perturbed(declared, lambda ops: ops.nll("loss", logits, targets))))))

    single, sixteen = unit("float32"), unit({"results": word, "accumulate": word})
    np.testing.assert_allclose(unit(word), single, rtol=LINEAR)
    assert sixteen > RAISED * single


@pytest.mark.parametrize("word", ["bfloat16", "float16"])
def test_sixteen_bits_keep_the_statistics_of_a_norm_in_float32(word):
    random = np.random.default_rng(4)
    x, gain = random.normal(size=(1, 1, 4096)), np.ones(4096)

    def row(declared: Any) -> float:
        """How far a whole row moves: single roundings average out over its width."""
        relative = perturbed(declared, lambda ops: ops.rms_norm("final_norm", x, gain, 1e-3))
        return float(np.sqrt(np.mean(np.square(relative.mean(axis=-1)))))

    assert row(word) < FORMATS[word].unit
    assert row({"results": word, "accumulate": word}) > FORMATS[word].unit


# --- Underflow ---


@pytest.mark.parametrize("word", ["float32", "bfloat16", "float16", "tensorfloat32"])
def test_what_underflows_has_the_smallest_normal_as_its_unit(word):
    zeros = np.zeros((2, 3, 4))
    deviation = units.deviations(lambda ops: {"y": ops.add("after_attention", zeros, zeros)}, recipe(word), 0)["y"]
    tiny = FORMATS[word].tiny
    assert tiny / 2 < units.unit(deviation).mean() < 2 * tiny


def test_products_that_underflow_in_float32_are_right():
    random = np.random.default_rng(5)
    a, b = (random.normal(size=(2, 3, 8)).astype(np.float32) * np.float32(1e-21) for _ in range(2))
    exact = a.astype(np.float64) * b.astype(np.float64)
    deviation = units.deviations(lambda ops: {"y": ops.multiply("ffn.product", a, b)}, recipe("float32"), 0)["y"]
    assert np.abs(a * b - exact).max() > 0
    assert compare(a * b, a * b - exact, units.unit(deviation)).conforms


# --- Gradients ---


def in_float32(row_sum: str) -> Any:
    """The operations with every result and gradient stored in float32, and either form of the softmax pullback."""
    kept: dict[int, Any] = {}

    def single(values: Any) -> Any:
        return tuple(None if value is None else np.asarray(value, np.float32) for value in values)

    def wrap(operation: Operation) -> Operation:
        def perform(stage: str, *inputs: Any) -> Any:
            return np.asarray(operation(stage, *inputs), np.float32)

        def vjp(stage: str, upstream: Any, output: Any, *inputs: Any) -> Any:
            if operation.name == "mix":
                kept[id(inputs[0])] = np.sum(upstream * output, axis=-1, keepdims=True)
            if operation.name == "softmax" and row_sum == "dO . O":
                return (output * (upstream - kept[id(output)]),)
            return single(operation.vjp(stage, upstream, output, *inputs))

        return Operation(operation.name, perform, vjp)

    return OPERATIONS.each(wrap)


@pytest.mark.parametrize("row_sum", ["sum(P dP)", "dO . O"])
def test_right_gradients_are_within_the_limits_in_both_forms_of_the_pullback(row_sum):
    worst = []
    for case in [*cases()[::2], example(tokens=1), example(style="peaked", tokens=6)]:
        known = truth(case, "float32")
        weights = {name: value.astype(np.float32) for name, value in known.parameters.items()}
        got = decoder.gradients(case.config, weights, *known.batch, in_float32(row_sum))
        exact = decoder.gradients(case.config, known.parameters, *known.batch)
        for name, value in got.items():
            assert value.dtype == np.float32
            found = compare(value, value - exact[name], units.unit(known.deviations[f"gradient.{name}"]))
            assert found.conforms, (name, str(found), case.describe())
            worst.append(found.worst)
    low, high = MEDIAN_WORST
    assert low < np.median(worst) < high


def test_the_two_forms_of_the_pullback_differ():
    known = truth(example(), "float32")
    weights = {name: value.astype(np.float32) for name, value in known.parameters.items()}
    forms = [in_float32(row_sum) for row_sum in ("sum(P dP)", "dO . O")]
    first, second = (decoder.gradients(known.case.config, weights, *known.batch, form) for form in forms)
    assert any((first[name] != second[name]).any() for name in first)


# --- Limits ---

T_TABLE = {  # two-sided, three decimals, as printed in any table of Student's t
    (16, 0.10): 1.746, (16, 0.05): 2.120, (16, 0.01): 2.921, (16, 0.001): 4.015,
    (2, 0.05): 4.303, (8, 0.05): 2.306, (10, 0.01): 3.169, (32, 0.05): 2.037, (120, 0.05): 1.980,
}  # fmt: skip
LAST_DIGIT = 0.0005


@pytest.mark.parametrize(("freedom", "chance"), T_TABLE)
def test_tails_are_those_of_the_t_table(freedom, chance):
    t = T_TABLE[freedom, chance]
    assert student_tail(t + LAST_DIGIT, freedom) < chance < student_tail(t - LAST_DIGIT, freedom)


def test_tails_begin_at_one_and_keep_their_digits_far_out():
    assert student_tail(0.0, RUNS) == 1.0
    # P(|T| > t) of two degrees of freedom is 1 - t / sqrt(2 + t^2), here without its cancellation.
    for t in (0.5, 1.0, 50.0, 1e4):
        root = math.sqrt(2 + t * t)
        assert student_tail(t, 2) == pytest.approx(2 / (root * (root + t)), rel=1e-9)


def test_limits_are_the_quantiles_of_one_false_alarm_in_a_million():
    for count in (1, 10, 1000, 10**6):
        assert count * student_tail(worst_allowed(count), RUNS) == pytest.approx(FALSE_ALARMS, rel=1e-6)


def test_limits_grow_with_the_elements_and_fall_with_the_runs():
    limits = [worst_allowed(count) for count in (1, 2, 10, 100, 1000, 10**5, 10**7)]
    assert limits == sorted(set(limits))
    assert worst_allowed(1000, runs=8) > worst_allowed(1000, runs=16) > worst_allowed(1000, runs=32)
    spreads = [spread_allowed(rows) for rows in (1, 2, 10, 100, 10**4)]
    assert spreads == sorted(set(spreads), reverse=True)


def test_limits_are_those_that_the_text_prints():
    assert f"{worst_allowed(10):.1f}\nfor 10 elements, {worst_allowed(1000):.1f} for 1,000" in text()


def test_honest_errors_are_within_the_limits_of_units_from_so_few_runs():
    random = np.random.default_rng(6)
    for _ in range(100):
        deviation, error = random.normal(size=(RUNS, 10, 100)), random.normal(size=(10, 100))
        assert compare(error, error, units.unit(deviation)).conforms


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_infinitely_wrong(value):
    got = np.array([1.0, value])
    found = compare(got, got - 1.0, np.ones(2))
    assert found.worst == math.inf
    assert found.index == (1,)
    assert not found.conforms


def test_an_exact_value_is_right_without_any_noise_and_an_inexact_one_is_not():
    assert compare(np.ones(3), np.zeros(3), np.zeros(3)).conforms
    assert not compare(np.ones(3), np.full(3, 1e-300), np.zeros(3)).conforms


def test_the_worst_element_is_named_with_what_came():
    error = np.array([[0.0, -3.0], [2.0, 0.0]])
    found = compare(error + 10, error, np.full((2, 2), 0.5))
    assert (found.index, found.worst, found.count) == ((0, 1), 6.0, error.size)
    assert (found.got, found.error, found.unit) == (7.0, -3.0, 0.5)
    assert str(found).startswith("6 x noise (")


def test_nothing_compared_conforms():
    empty = np.zeros((0, 3))
    assert compare(empty, empty, empty).conforms
