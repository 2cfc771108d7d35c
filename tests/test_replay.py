"""A saved case comes back to the last bit, and a file that is anything else is refused in words."""

import copy
import json
import re
from dataclasses import fields, replace
from functools import cache
from importlib.resources import files

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoderspec.properties import replay
from decoderspec.properties.cases import Case, arrays, draw_parameters, fixed_cases
from decoderspec.properties.replay import ReplayError
from decoderspec.properties.truth import Truth
from decoderspec.spec.config import Config
from decoderspec.spec.parameters import parameter_shapes
from decoderspec.spec.precision import recipe
from decoderspec.spec.validation import validate_config

CASE = Case(Config(5, 4, 2, 3, 1, 4, 10.0, 1e-3), 2, 3, 7, note="a note")
SCHEMA = json.loads(files("decoderspec.properties").joinpath("replay.schema.json").read_text(encoding="utf-8"))


def saved(folder, case=CASE, precision="float64"):
    declared = recipe(precision)
    truth = Truth(case, draw_parameters(case, declared), declared)
    return replay.write(folder / "deep" / "case.json", truth, ["VAL-1"], precision), truth


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    path, _ = saved(tmp_path_factory.mktemp("replay"))
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("mutated")


def refused(folder, text):
    """The message of the refusal; None where it was read."""
    path = folder / "case.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    try:
        replay.read(path)
    except ReplayError as reason:
        return str(reason)
    return None


# --- There and back ---


@pytest.mark.parametrize("case", [CASE, *fixed_cases()[:4]], ids=lambda case: case.note)
@pytest.mark.parametrize("precision", ["float64", "bfloat16"])
def test_a_case_comes_back_to_the_last_bit(tmp_path, case, precision):
    path, truth = saved(tmp_path, case, precision)
    back = replay.read(path)
    assert (back.config, back.batch, back.tokens, back.note) == (case.config, case.batch, case.tokens, case.note)
    for got, expected in zip(arrays(back), truth.batch, strict=True):
        np.testing.assert_array_equal(got, expected, strict=True)
    parameters = draw_parameters(back, recipe("float64"))
    assert list(parameters) == list(truth.parameters)
    for name, value in truth.parameters.items():
        assert parameters[name].tobytes() == value.tobytes(), name


def test_awkward_numbers_come_back_to_the_last_bit(tmp_path):
    case = replace(CASE, seed=8)
    weights = draw_parameters(case, recipe("float64"))
    awkward = [-0.0, 5e-324, 2.0**-1022, 0.1, 1 / 3, np.nextafter(1, 2), 1e-300, -1e300]
    gain = weights["final_norm.gain"]
    for number in awkward:
        gain[0] = number
        packed = replay._packed(gain)
        back = replay._unpacked(json.loads(json.dumps(packed)), gain.shape)
        assert back.tobytes() == gain.tobytes(), number


def test_the_file_holds_the_truth_and_its_noise(tmp_path):
    path, truth = saved(tmp_path)
    written = json.loads(path.read_text(encoding="utf-8"))
    for name, expected in (("logits", truth.logits.high), ("noise", truth.units["logits"])):
        values = [float.fromhex(number) for number in written["expected"][name]["values"]]
        np.testing.assert_array_equal(np.reshape(values, written["expected"][name]["shape"]), expected)
    assert written["precision"] == "float64"
    assert written["requirements"] == ["VAL-1"]


def test_two_cases_that_were_read_are_not_one(tmp_path):
    path, _ = saved(tmp_path)
    first, second = replay.read(path), replay.read(path)
    assert first != second
    assert len({first, second}) == 2


def test_a_recipe_is_kept_as_it_was_declared(tmp_path):
    declared = {"results": "float64", "loss": "float32"}
    path, _ = saved(tmp_path, precision=declared)
    assert json.loads(path.read_text(encoding="utf-8"))["precision"] == declared


# --- The schema ---


def violations(value, schema, path="$"):
    """What of the schema does not hold: the part of the language that it uses, so that no library is needed."""
    schema = SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float)}
    if isinstance(value, bool) or not isinstance(value, kinds.get(schema.get("type"), object)):
        return [f"{path} is {value!r}"]
    if isinstance(value, str):
        return [] if re.search(schema.get("pattern", ""), value) else [f"{path} is {value!r}"]
    if isinstance(value, (int, float)):
        return [] if value >= schema.get("minimum", value) else [f"{path} is {value!r}"]
    if isinstance(value, list):
        return [v for i, each in enumerate(value) for v in violations(each, schema.get("items", {}), f"{path}[{i}]")]
    known, others = schema.get("properties", {}), schema.get("additionalProperties", {})
    found = [f"{path}.{name} is missing" for name in schema.get("required", ()) if name not in value]
    found += [f"{path}.{name} is unknown" for name in value if name not in known and others is False]
    inner = {name: known.get(name, others or {}) for name in value}
    return found + [v for name, each in value.items() for v in violations(each, inner[name], f"{path}.{name}")]


@pytest.mark.parametrize("case", [CASE, fixed_cases()[0], fixed_cases()[2]], ids=lambda case: case.note)
def test_what_is_written_fits_the_schema(tmp_path, case):
    path, _ = saved(tmp_path, case)
    assert violations(json.loads(path.read_text(encoding="utf-8")), SCHEMA) == []


def test_the_schema_knows_every_field(document):
    assert list(SCHEMA["properties"]) == SCHEMA["required"] == list(document)
    names = [field.name for field in fields(Config)]
    assert list(SCHEMA["$defs"]["config"]["properties"]) == SCHEMA["$defs"]["config"]["required"] == names


@pytest.mark.parametrize("key", ["format", "version", "tokens", "config", "expected"])
def test_the_schema_refuses_what_the_reader_needs(document, key):
    assert violations({name: value for name, value in document.items() if name != key}, SCHEMA)
    assert violations({**document, key: None}, SCHEMA)


# --- Refusals ---


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ReplayError, match="cannot be read"):
        replay.read(tmp_path / "case.json")


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(ReplayError, match="cannot be read"):
        replay.read(tmp_path)


TEXTS = ["", "{", "null", "[]", "3", '"case"', "{}", b"\xff\xfe", b"\x00", "[" * 100_000, '{"format": "other"}', "NaN"]


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: repr(text[:20]))
def test_what_is_not_a_case_is_refused(folder, text):
    assert str(folder / "case.json") in refused(folder, text)


@pytest.mark.parametrize("version", [0, 2, "1", None, [1]])
def test_another_version_is_refused_by_both_numbers(folder, document, version):
    message = refused(folder, json.dumps({**document, "version": version}))
    assert repr(version) in message
    assert "reads version 1" in message


def changed(document, path, value):
    made = copy.deepcopy(document)
    place = made
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return json.dumps(made)


GAIN = "final_norm.gain"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["config", "heads"], 0),
        (["config", "heads"], 3),
        (["config", "layers"], 2),
        (["config", "layers"], 10**10),
        (["config", "layers"], "1"),
        (["config", "vocabulary_size"], 4),
        (["config", "max_positions"], 2),
        (["config", "rope_base"], float("nan")),
        (["config", "rope_base"], "10"),
        (["config", "rms_epsilon"], -1.0),
        (["config"], []),
        (["config"], {}),
        (["config", "width"], 4),
        (["tokens"], [[0, 1, 2]]),
        (["tokens"], [[0, 1, 5], [0, 1, 2]]),
        (["tokens"], [[0, 1, -1], [0, 1, 2]]),
        (["tokens"], [[0, 1, 2.0], [0, 1, 2]]),
        (["tokens"], [[0, 1, True], [0, 1, 2]]),
        (["tokens"], [[0, 1, 10**30], [0, 1, 2]]),
        (["tokens"], [[0, 1], [0, 1, 2]]),
        (["tokens"], [[], []]),
        (["tokens"], []),
        (["tokens"], "012"),
        (["targets"], [[0, 1], [2, 3]]),
        (["targets"], None),
        (["parameters"], []),
        (["parameters", "lm_head.weight"], {"shape": [1], "values": ["0x1p+0"]}),
        (["parameters", GAIN], None),
        (["parameters", GAIN, "shape"], [2, 2]),
        (["parameters", GAIN, "shape"], 4),
        (["parameters", GAIN, "values"], ["0x1p+0"] * 3),
        (["parameters", GAIN, "values"], ["nan"] * 4),
        (["parameters", GAIN, "values"], ["inf"] * 4),
        (["parameters", GAIN, "values"], ["0x1p+99999"] * 4),
        (["parameters", GAIN, "values"], [1.0] * 4),
        (["parameters", GAIN, "values"], "1111"),
    ],
    ids=str,
)
def test_a_case_that_is_not_valid_is_refused(folder, document, path, value):
    assert refused(folder, changed(document, path, value))


def places(value, path=()):
    """Every place in a document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, each in inner for place in places(each, (*path, key)))]


NUMBERS = st.one_of(st.integers(), st.floats(), st.sampled_from([0, 1, 2, 10**12, -1, "0x1p+3", "1", "", True, None]))
VALUES = st.recursive(
    NUMBERS, lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)), max_leaves=5
)


@cache
def all_places(text):
    return places(json.loads(text))[1:]


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_a_case_changed_in_one_place_is_read_as_a_valid_one_or_refused(folder, document, data):
    place = data.draw(st.sampled_from(all_places(json.dumps(document))))
    if data.draw(st.booleans()):
        text = changed(document, place, data.draw(VALUES))
    else:
        made = copy.deepcopy(document)
        owner = made
        for key in place[:-1]:
            owner = owner[key]
        del owner[place[-1]]
        text = json.dumps(made)
    if refused(folder, text) is None:
        assert_valid(replay.read(folder / "case.json"))


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_damaged_file_is_read_as_a_valid_one_or_refused(folder, document, data):
    text = bytearray(json.dumps(document).encode())
    place = data.draw(st.integers(0, len(text) - 1))
    if data.draw(st.booleans()):
        text[place] = data.draw(st.integers(0, 255))
    else:
        del text[place:]
    if refused(folder, bytes(text)) is None:
        assert_valid(replay.read(folder / "case.json"))


def assert_valid(case):
    validate_config(case.config)
    tokens, targets = arrays(case)
    assert tokens.shape == targets.shape == (case.batch, case.tokens)
    assert case.tokens <= case.config.max_positions
    for ids in (tokens, targets):
        assert 0 <= ids.min() <= ids.max() < case.config.vocabulary_size
    parameters = draw_parameters(case, recipe("float64"))
    assert {name: value.shape for name, value in parameters.items()} == parameter_shapes(case.config)
    assert all(np.isfinite(value).all() for value in parameters.values())
