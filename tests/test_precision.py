"""A declared precision is read into formats: what is not given follows from what is, and nonsense is refused."""

import numpy as np
import pytest

from decoderspec.spec.precision import (
    FORMATS,
    GENERAL_KEYS,
    NAMED_RECIPES,
    STAGE_KEYS,
    DeclarationError,
    Recipe,
    recipe,
)
from decoderspec.spec.stages import BLOCK_STAGES

SIXTEEN_BITS = ("bfloat16", "float16")
NUMPY = ("float64", "float32", "float16")
PARTS = [key for key in GENERAL_KEYS if key != "results"]


def part(found: Recipe, key: str) -> str:
    return str(getattr(found, key).name)


@pytest.mark.parametrize("name", NUMPY)
def test_formats_are_those_of_ieee(name):
    info, form = np.finfo(name), FORMATS[name]
    assert form.unit == info.eps / 2
    assert form.largest == info.max
    assert form.tiny in (info.smallest_normal, info.smallest_subnormal / 2)


def test_float16_keeps_its_subnormals():
    assert FORMATS["float16"].tiny == np.finfo(np.float16).smallest_subnormal / 2


def test_bfloat16_is_the_upper_half_of_float32():
    largest = np.array([0x7F7F0000], np.uint32).view(np.float32)[0]
    assert FORMATS["bfloat16"].largest == largest
    assert FORMATS["bfloat16"].tiny == np.finfo(np.float32).smallest_normal


@pytest.mark.parametrize("name", ["float64", "float32", "tensorfloat32"])
def test_a_word_means_that_format_everywhere(name):
    found = recipe(name)
    for key in ("results", "weights", "products", "gradients"):
        assert part(found, key) == name, key
    assert not found.stages


@pytest.mark.parametrize("name", SIXTEEN_BITS)
def test_a_word_of_16_bits_describes_stored_results_alone(name):
    found = recipe(name)
    assert {part(found, key) for key in ("results", "weights", "products", "gradients")} == {name}
    assert {part(found, key) for key in ("accumulate", "tables", "loss")} == {"float32"}


@pytest.mark.parametrize("name", SIXTEEN_BITS)
def test_a_lower_interior_is_declared(name):
    found = recipe({"results": name, "accumulate": name})
    assert {part(found, key) for key in ("accumulate", "tables", "loss")} == {name}


@pytest.mark.parametrize("key", PARTS)
def test_a_part_that_is_given_is_taken_as_it_is(key):
    assert part(recipe({"results": "float32", key: "float64"}), key) == "float64"


def test_nothing_given_is_float64():
    assert recipe({}).used == (FORMATS["float64"],)


@pytest.mark.parametrize("stage", STAGE_KEYS)
def test_a_stage_is_given_by_its_suffix(stage):
    found = recipe({"results": "float64", stage: "bfloat16"})
    assert found.stored(stage).name == "bfloat16"
    assert found.inner(stage).name == "float32"
    others = {found.stored(other).name for other in STAGE_KEYS if other != stage}
    assert others == {"float64"}


def test_every_stage_of_a_block_can_be_given():
    assert set(BLOCK_STAGES) < set(STAGE_KEYS)


def test_used_lists_every_format_that_some_rounding_uses():
    found = recipe({"results": "float32", "loss": "float64", "ffn.gate": "float16", "products": "tensorfloat32"})
    assert {form.name for form in found.used} == {"float32", "float64", "float16", "tensorfloat32"}


@pytest.mark.parametrize("name", NAMED_RECIPES)
def test_a_named_recipe_is_its_mapping(name):
    named, spelled = recipe(name), recipe(NAMED_RECIPES[name])
    for key in GENERAL_KEYS:
        assert part(named, key) == part(spelled, key)
    assert named.stages == spelled.stages
    assert named.declared == name


@pytest.mark.parametrize(
    ("declared", "came"),
    [
        ("float8", "float8"),
        ("", "''"),
        ("FLOAT32", "FLOAT32"),
        (32, "int"),
        (None, "NoneType"),
        (["float32"], "list"),
        (np.float32, "type"),
        ({"result": "float32"}, "result"),
        ({"blocks.0.ffn.gate": "float32"}, "blocks.0.ffn.gate"),
        ({"results": "half"}, "half"),
        ({"results": np.float32}, "float32"),
        ({"ffn.gate": None}, "None"),
        ({"results": "bfloat16-mixed"}, "bfloat16-mixed"),
        ({7: "float32"}, "7"),
    ],
)
def test_nonsense_is_refused_by_what_came(declared, came):
    with pytest.raises(DeclarationError, match=came):
        recipe(declared)


@pytest.mark.parametrize("declared", ["float8", {"result": "float32"}, {"results": "half"}])
def test_a_refusal_says_what_is_allowed(declared):
    with pytest.raises(DeclarationError, match=r"allowed: .*(float64|weights)"):
        recipe(declared)
