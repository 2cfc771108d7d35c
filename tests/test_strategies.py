"""Limits are data: every case that is drawn or fixed lies within them, and limits that no case meets are refused."""

import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoderspec.properties.cases import STYLES, TOKEN_STYLES, Case, arrays, fixed_cases, long_cases
from decoderspec.properties.strategies import (
    LIMIT_KEYS,
    PREFERRED,
    allowed,
    cases,
    check_limits,
    contexts,
    fixed,
    shapes,
    smallest_case,
    within,
)
from decoderspec.spec.config import Config
from decoderspec.spec.precision import DeclarationError
from decoderspec.spec.validation import validate_config

FIELDS = ("vocabulary_size", "heads", "feed_forward_width", "layers", "max_positions", "rope_base", "rms_epsilon")
NARROW = [
    {},
    {"head_width": [64, 128], "model_width": {"multiple_of": 64}},
    {"head_width": 64, "heads": [2]},
    {"model_width": [96]},
    {"model_width": {"min": 100, "max": 130, "multiple_of": 8}, "head_width": {"min": 8}},
    {"tokens": [8]},
    {"tokens": {"min": 64}},
    {"tokens": [3, 48], "max_positions": {"min": 40}},
    {"tokens": {"multiple_of": 4}, "max_positions": {"multiple_of": 16, "min": 16}},
    {"max_positions": 2048},
    {"max_positions": [2, 64], "tokens": [3, 50]},
    {"vocabulary_size": {"min": 32_000}, "layers": {"min": 1}},
    {"vocabulary_size": range(100, 104)},
    {"feed_forward_width": {"multiple_of": 3, "min": 10, "max": 14}},
    {"layers": [0]},
    {"batch": 1},
    {"batch": {4, 5}},
    {"rope_base": [10_000.0], "rms_epsilon": {"min": 1e-9, "max": 1e-8}},
    {"rope_base": {"min": 2e6}},
    {"rms_epsilon": 0},
    {"configurations": 2},
]  # fmt: skip
EACH = pytest.mark.parametrize("limits", NARROW, ids=str)


def fits(limit: Any, value: Any) -> bool:
    """What a limit says, written apart from the strategies."""
    if isinstance(limit, Mapping):
        ends = limit.get("min", -math.inf) <= value <= limit.get("max", math.inf)
        return ends and value % limit.get("multiple_of", value or 1) == 0
    return value in limit if hasattr(limit, "__contains__") else value == limit


def outside(limits: Mapping[str, Any], case: Case) -> list[str]:
    """The fields of a case that its limits exclude."""
    values = {name: getattr(case.config, name) for name in FIELDS}
    values |= {"model_width": case.config.model_width, "head_width": case.config.head_width}
    values |= {"batch": case.batch, "tokens": case.tokens}
    return [name for name, limit in limits.items() if name != "configurations" and not fits(limit, values[name])]


def assert_valid(case: Case) -> None:
    validate_config(case.config)
    assert 1 <= case.tokens <= case.config.max_positions
    assert case.batch >= 1


def one_limit(field: str) -> st.SearchStrategy[Any]:
    if field in ("rope_base", "rms_epsilon"):
        return st.lists(st.sampled_from(PREFERRED[field]), min_size=1, max_size=3)
    step = 2 if field == "head_width" else 1
    sizes = st.integers(1, 40).map(lambda n: n * step)
    lists = st.one_of(sizes, st.lists(sizes, min_size=1, max_size=3), st.sets(sizes, min_size=1, max_size=3))
    ranges = st.fixed_dictionaries(
        {}, optional={"min": sizes, "max": sizes.map(lambda n: n + 80), "multiple_of": sizes}
    )
    return st.one_of(lists, ranges)


@st.composite
def limits_of_all_kinds(draw: st.DrawFn) -> dict[str, Any]:
    fields = draw(st.lists(st.sampled_from(sorted(PREFERRED)), unique=True, max_size=4))
    return {field: draw(one_limit(field)) for field in fields}


@settings(max_examples=300, deadline=None)
@given(limits_of_all_kinds(), st.data())
def test_every_case_is_valid_and_within_whatever_limits_are_accepted(limits, data):
    try:
        check_limits(limits)
    except DeclarationError:
        return
    case = data.draw(cases(limits))
    assert_valid(case)
    assert outside(limits, case) == []
    for moved in fixed(limits, "quick")[0]:
        assert_valid(moved)
        assert outside(limits, moved) == []


@EACH
def test_limits_that_can_be_met_are_accepted(limits):
    check_limits(limits)


@EACH
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_drawn_cases_are_within_the_limits(limits, data):
    case = data.draw(cases(limits))
    assert_valid(case)
    assert outside(limits, case) == []
    assert case.style in STYLES
    assert case.token_style in TOKEN_STYLES


@EACH
def test_fixed_cases_are_moved_within_the_limits_or_reported_as_lost(limits):
    found, lost = fixed(limits, "default")
    for case in found:
        assert_valid(case)
        assert outside(limits, case) == []
    notes = [case.note for case in found] + lost
    assert sorted(notes) == sorted(case.note for case in fixed_cases() + long_cases("default"))
    assert smallest_case(limits) in found


def test_without_limits_the_fixed_cases_are_as_they_are():
    assert fixed({}, "quick") == (fixed_cases() + long_cases("quick"), [])


def test_a_field_within_its_limits_is_not_moved():
    for case in fixed_cases():
        sizes = {name: [getattr(case.config, name)] for name in FIELDS}
        widths = {"model_width": [case.config.model_width], "head_width": [case.config.head_width]}
        limits = {**sizes, **widths, "batch": [case.batch], "tokens": [case.tokens]}
        assert within(limits, case) == case


def test_a_fixed_case_that_loses_its_point_is_lost():
    long = long_cases("default")[0]
    assert within({"tokens": {"max": 16}}, long) is None
    layerless = next(case for case in fixed_cases() if case.config.layers == 0)
    assert within({"layers": {"min": 1}}, layerless) is None


def test_a_pool_is_all_that_is_drawn_from():
    pool = tuple(case.config for case in fixed_cases()[:2])

    @settings(max_examples=30, deadline=None)
    @given(cases({}, pool))
    def drawn(case):
        assert case.config in pool
        assert_valid(case)

    drawn()


def test_shapes_are_pairs_whose_product_is_a_model_width():
    pairs = shapes({"model_width": {"multiple_of": 64}, "head_width": [64, 128]})
    assert pairs
    assert all(width in (64, 128) and (heads * width) % 64 == 0 for heads, width in pairs)


def test_small_sizes_never_dominate():
    for field, small in (("head_width", 2), ("heads", 1), ("tokens", 1), ("vocabulary_size", 1)):
        values = allowed({}, field)
        assert values.count(small) == 1
        assert len(values) > 3


def test_a_context_leaves_room_for_the_tokens():
    assert min(contexts({"tokens": [8, 9]})) >= 8
    assert 48 in contexts({"tokens": [3, 48]})


@pytest.mark.parametrize("field", [key for key in LIMIT_KEYS if key != "configurations"])
@pytest.mark.parametrize(
    "limit",
    [[], (), "64", ["64"], int, [None], [True], True, -1, [-1], [0.5, "x"], math.nan, math.inf, {"min": math.inf},
     {"least": 3}, {"min": "3"}, {"min": True}, {"multiple_of": 0}, {"multiple_of": -8}, {"min": 9, "max": 7},
     {"max": -1}],
    ids=repr,
)  # fmt: skip
def test_limits_that_no_case_meets_are_refused(field, limit):
    with pytest.raises(DeclarationError, match="limits"):
        check_limits({field: limit})


@pytest.mark.parametrize(
    "limits",
    [
        {"width": [64]},
        {"head_width": [3]},
        {"head_width": {"min": 3, "max": 3}},
        {"layers": [1.0]},
        {"heads": [0]},
        {"rope_base": [0.0]},
        {"rms_epsilon": [-1e-6]},
        {"configurations": 0},
        {"configurations": "few"},
        {"head_width": [64], "model_width": [96]},
        {"head_width": [64], "heads": [3], "model_width": {"multiple_of": 128}},
        {"tokens": [8], "max_positions": [4]},
        {"tokens": {"min": 65}, "max_positions": {"max": 64}},
        [("head_width", 64)],
    ],
    ids=str,
)
def test_limits_that_contradict_one_another_or_the_text_are_refused(limits):
    with pytest.raises(DeclarationError, match=r"limits|heads"):
        check_limits(limits)


def test_every_numeric_field_of_a_configuration_can_be_limited():
    assert set(Config.__dataclass_fields__) <= set(LIMIT_KEYS)


def test_ids_and_targets_of_fixed_cases_are_valid_and_their_notes_distinct():
    every = fixed_cases() + long_cases("quick")
    assert len({case.note for case in every}) == len(every)
    for case in every:
        for ids in arrays(case):
            assert ids.shape == (case.batch, case.tokens)
            assert 0 <= ids.min() <= ids.max() < case.config.vocabulary_size
