"""A case follows from a few numbers, its parameters are what the declared format can hold, awkward ones among them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoderspec.properties import registry
from decoderspec.properties.cases import (
    STYLES,
    TOKEN_STYLES,
    Case,
    Stored,
    affordable,
    arrays,
    draw_parameters,
    fixed_cases,
    long_cases,
    other_ids,
    round_to,
)
from decoderspec.properties.check import Collector
from decoderspec.properties.properties import all_properties
from decoderspec.properties.run import PROFILES
from decoderspec.properties.session import make_run
from decoderspec.reference import decoder
from decoderspec.spec.config import Config
from decoderspec.spec.parameters import TABLE, parameter_shapes
from decoderspec.spec.precision import FORMATS, recipe

CASE = Case(Config(7, 12, 3, 5, 2, 6, 10.0, 1e-3), 2, 5, 3)
EVERY_STYLE = tuple(dict.fromkeys([*STYLES, *(case.style for case in fixed_cases() + long_cases("quick"))]))
NUMPY = {"float64": np.float64, "float32": np.float32, "float16": np.float16}
OVERFLOWS = 700.0  # an exponential without its maximum does, in float64 beyond 709
NORMAL = st.floats(2.0**-14, 2.0**15)  # normal in every format


@given(st.lists(st.tuples(NORMAL, st.sampled_from([1, -1])), min_size=1))
@pytest.mark.parametrize("name", NUMPY)
def test_rounding_is_that_of_numpy(name, values):
    given_ = np.array([value * sign for value, sign in values])
    np.testing.assert_array_equal(round_to(given_, FORMATS[name]), given_.astype(NUMPY[name]).astype(np.float64))


@settings(deadline=None)  # importing PyTorch takes its time
@given(st.lists(NORMAL, min_size=1))
def test_rounding_to_bfloat16_is_that_of_pytorch(values):
    torch = pytest.importorskip("torch", reason="PyTorch is an extra")
    given_ = np.array(values, np.float32).astype(np.float64)  # PyTorch goes by way of float32
    expected = torch.from_numpy(given_).to(torch.bfloat16).to(torch.float64).numpy()
    np.testing.assert_array_equal(round_to(given_, FORMATS["bfloat16"]), expected)


@pytest.mark.parametrize("name", FORMATS)
def test_rounding_goes_to_the_nearest_and_ties_to_even(name):
    form = FORMATS[name]
    step = 2 * form.unit  # between neighbours of 1
    if name != "float64":
        assert round_to(np.array([1 + step / 2]), form) == 1.0
        assert round_to(np.array([1 + 1.5 * step]), form) == 1 + 2 * step
        assert round_to(np.array([1 + 0.51 * step]), form) == 1 + step
    assert round_to(np.array([1 + step, 0.0, -1.0]), form).tolist() == [1 + step, 0.0, -1.0]


@given(st.lists(NORMAL, min_size=1))
@pytest.mark.parametrize("name", FORMATS)
def test_rounding_twice_changes_nothing_and_once_no_more_than_the_unit(name, values):
    form = FORMATS[name]
    once = round_to(np.array(values), form)
    np.testing.assert_array_equal(round_to(once, form), once)
    assert (np.abs(once - values) <= form.unit * np.abs(values)).all()


# --- Parameters ---


@pytest.mark.parametrize("style", EVERY_STYLE)
@pytest.mark.parametrize("precision", ["float64", "float32", "bfloat16", "float16"])
def test_parameters_are_canonical_finite_and_representable(style, precision):
    declared = recipe(precision)
    drawn = draw_parameters(replace(CASE, style=style), declared)
    assert {name: value.shape for name, value in drawn.items()} == parameter_shapes(CASE.config)
    for name, value in drawn.items():
        assert value.dtype == np.float64, name
        assert np.abs(value).max() < declared.weights.largest, name
        np.testing.assert_array_equal(round_to(value, declared.weights), value, err_msg=name)


def test_the_same_case_has_the_same_arrays_and_another_seed_others():
    for make in (lambda case: draw_parameters(case, recipe("float64")), lambda case: dict(enumerate(arrays(case)))):
        first, again, other = make(CASE), make(replace(CASE)), make(replace(CASE, seed=CASE.seed + 1))
        for name, value in first.items():
            np.testing.assert_array_equal(again[name], value)
        assert any((other[name] != value).any() for name, value in first.items())


def test_parameters_do_not_depend_on_batch_tokens_or_note():
    one = draw_parameters(CASE, recipe("float64"))
    other = draw_parameters(replace(CASE, batch=1, tokens=2, token_style="same", note="x"), recipe("float64"))
    for name, value in one.items():
        np.testing.assert_array_equal(other[name], value)


def test_a_coarser_precision_rounds_the_same_parameters():
    fine, coarse = (draw_parameters(CASE, recipe(word)) for word in ("float64", "bfloat16"))
    for name, value in fine.items():
        np.testing.assert_array_equal(round_to(value, FORMATS["bfloat16"]), coarse[name])


@pytest.mark.parametrize("case", fixed_cases(), ids=lambda case: case.note)
def test_gains_are_distinct_from_one_and_hold_a_zero(case):
    gains = [v for name, v in draw_parameters(case, recipe("float64")).items() if name.endswith("gain")]
    for gain in gains:
        assert (gain != 1).any()
        assert (np.count_nonzero(gain == 0) == 1) == (gain.size > 3)
    if case.style == "plain":
        assert all((gain * 64 == np.rint(gain * 64)).all() for gain in gains)  # an offset of one is exact


def test_gains_of_both_signs_are_among_the_fixed_cases():
    drawn = [draw_parameters(case, recipe("float64")) for case in fixed_cases()]
    gains = np.concatenate([v for each in drawn for name, v in each.items() if name.endswith("gain")])
    assert (gains < 0).any()
    assert (gains > 0).any()


# --- What the fixed cases are there for ---


def fixed(note: str) -> tuple[Case, dict, dict]:
    case = next(case for case in fixed_cases() if note in case.note)
    weights = draw_parameters(case, recipe("float64"))
    return case, weights, decoder.stages(case.config, weights, arrays(case)[0])


def test_the_first_case_has_sizes_that_all_differ():
    case = fixed_cases()[0]
    c = case.config
    assert c.feed_forward_width != c.model_width
    assert c.vocabulary_size != case.tokens
    assert c.heads != c.head_width
    assert len({c.vocabulary_size, c.model_width, c.feed_forward_width, c.head_width, case.tokens, case.batch}) == 6


def test_scores_and_logits_of_the_loud_case_overflow_without_a_maximum():
    case, _, stages = fixed("overflow")
    q, k = (stages[f"blocks.0.attention.rotated_{role}"] for role in ("query", "key"))
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(case.config.head_width)
    assert scores[..., np.tri(case.tokens, dtype=bool)].max() > OVERFLOWS
    assert stages["logits"].max() > OVERFLOWS


def test_branches_of_the_silent_case_add_nothing():
    _, _, stages = fixed("the stream alone")
    np.testing.assert_array_equal(stages["final_norm"].shape, stages["embedding"].shape)
    np.testing.assert_array_equal(stages["blocks.1.output"], stages["embedding"])


def test_rows_of_the_small_case_are_no_larger_than_epsilon():
    case, _, stages = fixed("epsilon as large as the rows")
    assert np.mean(np.square(stages["embedding"])) < case.config.rms_epsilon


def test_some_rows_of_zeros_are_looked_up():
    _, weights, stages = fixed("rows of zeros")
    assert (~stages["embedding"].any(axis=-1)).any()
    assert weights[TABLE].any()


def test_the_ids_that_padding_drops_are_among_the_targets():
    for case in fixed_cases():
        if case.batch * case.tokens > 1:
            assert {0, case.config.vocabulary_size - 1} <= set(arrays(case)[1].ravel().tolist())


def test_long_cases_pass_the_blocks_and_tables_that_hide_leaks():
    assert long_cases("quick")[0].tokens > 65
    lengths = [case.tokens for case in long_cases("default")]
    assert any(length % 64 == 0 for length in lengths)
    assert any(length > 512 for length in lengths)
    assert max(case.config.vocabulary_size for case in long_cases("default")) > 2**16


def test_some_long_case_has_two_of_everything_and_some_is_trained_beyond_positions_in_bfloat16():
    cases = long_cases("default")
    assert any(min(c.tokens - 128, c.batch - 1, c.config.heads - 1, c.config.layers - 1) > 0 for c in cases)
    assert any(case.tokens > 256 and affordable(case) for case in cases)


# --- Tokens and description ---


@pytest.mark.parametrize("style", TOKEN_STYLES)
def test_token_styles_are_what_they_say(style):
    ids = arrays(replace(CASE, token_style=style, seed=9))[0]
    v = CASE.config.vocabulary_size
    ranges = {"same": {v - 1}, "ends": {0, v - 1}, "last": {v - 3, v - 2, v - 1}, "any": set(range(v))}
    assert set(ids.ravel().tolist()) <= ranges[style]
    assert (len(np.unique(ids)) == 1) == (style == "same")


@given(st.integers(2, 9), st.integers(0, 99))
def test_other_ids_differ_everywhere(v, seed):
    tokens = np.random.default_rng(seed).integers(0, v, (2, 5))
    changed = other_ids(replace(CASE, config=replace(CASE.config, vocabulary_size=v)), tokens)
    assert (changed != tokens).all()
    assert 0 <= changed.min() <= changed.max() < v


def test_a_case_survives_json_and_says_all_its_numbers():
    for case in fixed_cases():
        assert Case.from_json(case.to_json()) == case
    described = CASE.describe()
    for part in ("V=7", "d=12", "h=3", "f=5", "N=2", "max_positions=6", "B=2", "T=5", "seed=3"):
        assert part in described


def test_stored_arrays_are_taken_as_they_are_but_for_the_declared_rounding():
    tokens, targets = arrays(CASE)
    drawn = draw_parameters(CASE, recipe("float64"))
    case = replace(CASE, stored=Stored(drawn, tokens, targets))
    assert arrays(case)[0] is tokens
    for name, value in draw_parameters(case, recipe("float16")).items():
        np.testing.assert_array_equal(value, round_to(drawn[name], FORMATS["float16"]))


# --- Two parts ---


@pytest.mark.parametrize("profile", PROFILES)
def test_the_two_parts_of_a_property_are_the_whole_of_it(profile):
    run = make_run("decoderspec.reference:Reference", profile=profile)
    for test in (test for test in all_properties() if test.property.goes_further):
        whole = registry.asked(run, test.property)
        parts = []
        for run.part in registry.PARTS:
            parts.append(registry.asked(run, test.property))
        run.part = ""
        assert sorted(map(whole.index, [*parts[0], *parts[1]])) == list(range(len(whole)))
        assert all(registry.small(case) for case in parts[0])


def recorded(**changed):
    """A record of a property, as a part of one leaves it."""
    usual = {"property": "test_it", "part": "", "status": "pass", "examples": 3, "requirements": ["VAL-1"]}
    return usual | changed


FAILS, HOLDS = recorded(part="first", status="fail"), recorded(part="first")
NOTHING = recorded(part="further", status="not_judged", examples=0)


@pytest.mark.parametrize(
    ("records", "standing"),
    [
        ([FAILS, recorded(part="further", status="fail")], [FAILS]),  # whichever part ran first
        ([recorded(part="further", status="fail"), FAILS], [FAILS]),
        ([FAILS, NOTHING], [FAILS]),
        ([FAILS], [FAILS]),
        ([HOLDS], []),  # the process that ran the other one ended
        ([HOLDS, NOTHING], [HOLDS]),
        ([HOLDS, recorded(part="further", status="fail")], [HOLDS, recorded(part="further", status="fail")]),
        ([recorded(status="not_judged", examples=0)], [recorded(status="not_judged", examples=0)]),
    ],
)
def test_a_first_part_that_fails_speaks_for_both_and_an_empty_one_for_none(records, standing):
    collector = Collector(lambda record: None)
    collector.records = records
    assert collector.judged() == standing
