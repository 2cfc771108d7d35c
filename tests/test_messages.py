"""Messages and arrays of the line protocol: every value to the bit, and a schema that says what our validation does."""

import json
from pathlib import Path

import numpy as np
import pytest

from decoderspec.adapters import encodings, messages
from decoderspec.adapters.encodings import EncodingError, parse_descriptions

# --- Messages and arrays ---

SPECIAL = [0.0, -0.0, 1.5, -np.pi, 5e-324, -1.7976931348623157e308, np.inf, -np.inf, np.nan]


@pytest.mark.parametrize("encoding", encodings.ENCODINGS)
def test_arrays_come_through_every_encoding_to_the_bit(encoding):
    given = {
        "real": np.array(SPECIAL).reshape(3, 3), "ids": np.array([[0, -1, 2**40]]), "none": np.empty((0, 4)),
        "one": np.array(2.5), "last": np.array([2**63 - 1, -(2**63)]),
    }  # fmt: skip
    described = parse_descriptions(encodings.describe(given), 100)
    if encoding == "raw":
        found = encodings.from_raw(described, b"".join(encodings.raw(given.values())))
    else:
        found = encodings.from_text(described, b"".join(encodings.text(given.values(), encoding)).decode(), encoding)
    assert list(found) == list(given)
    for name, value in given.items():
        assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape)
        assert found[name].tobytes() == value.tobytes()


@pytest.mark.parametrize("encoding", encodings.ENCODINGS)
def test_an_array_of_many_pieces_is_one_array(encoding, monkeypatch):
    monkeypatch.setattr(encodings, "PIECE", 24)
    given = [np.arange(29.0), np.arange(11)]
    described = parse_descriptions(encodings.describe({"x": given[0], "z": given[1]}), 100)
    if encoding == "raw":
        found = encodings.from_raw(described, b"".join(encodings.raw(given)))
    else:
        found = encodings.from_text(described, b"".join(encodings.text(given, encoding)).decode(), encoding)
    assert np.array_equal(found["x"], given[0])
    assert np.array_equal(found["z"], given[1])


@pytest.mark.parametrize(("dtype", "bits", "expected"), [
    ("float32", b"\0\0\xc0\x3f", 1.5), ("float16", b"\0\x3e", 1.5), ("bfloat16", b"\xc0\x3f", 1.5),
    ("float32", b"\0\0\x80\x7f", np.inf), ("bfloat16", b"\x80\x7f", np.inf),
])  # fmt: skip
def test_a_child_may_answer_in_a_smaller_format(dtype, bits, expected):
    assert encodings.from_raw(parse_descriptions([f"x {dtype} 1"], 1), bits)["x"] == [expected]
    text = encodings.from_text(
        parse_descriptions([f"x {dtype} 1"], 1), "inf" if expected == np.inf else "0x1.8p+0", "hex"
    )
    assert text["x"] == [expected]


@pytest.mark.parametrize("word", ["1.5", "10", "0x", "0x1p+99999", "nil", "", "１", "0x1p0 "])
def test_what_is_no_hexadecimal_float_is_named(word):
    with pytest.raises(EncodingError):
        encodings.from_text(parse_descriptions(["x float64 1"], 1), word, "hex")


@pytest.mark.parametrize(
    "described", ["x", "x float64 -1", "x float64  1", "x float128 1", "x float64 1.5", " float64 1"]
)
def test_what_describes_no_array_is_named(described):
    with pytest.raises(EncodingError, match="describes no array"):
        parse_descriptions([described], 100)


# --- The published schema ---

SCHEMA = json.loads((Path(messages.__file__).parent / "protocol.schema.json").read_text(encoding="utf-8"))
REQUEST = {"id": 3, "call": "rms_norm", "epsilon": 1e-3, "arrays": ["x float64 2 3", "gain float64 3"], "data": ""}
STARTED = {"id": 1, "protocol": 1, "name": "x", "encoding": "raw", "offers": ["logits"], "limits.heads": [2]}
REPLY = {"id": 3, "arrays": ["logits float64 2 3"], "data": "AAAA"}
REFUSAL = {"id": 3, "error": "no", "category": "vocabulary"}
BUILD = {
    "id": 2, "call": "build", "model": 1, "vocabulary_size": 2, "model_width": 2.5, "heads": True,
    "feed_forward_width": 1, "layers": 0, "max_positions": 4, "rope_base": "inf", "rms_epsilon": 0.0, "arrays": [],
}  # fmt: skip


def changed(message):
    """The message itself, and others with one field wrong, missing or too many."""
    yield message
    for name, value in message.items():
        yield {key: kept for key, kept in message.items() if key != name}
        for other in (None, 1, 1.5, True, "word", "", [], [1], ["logits"], ["x float64 -1"], {}, [[]]):
            if other != value:
                yield {**message, name: other}
    yield {**message, "further": 1}


def satisfies(schema, value):
    """Whether a value has the schema, as far as ours use the language."""
    if "$ref" in schema:
        return satisfies(SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]], value)
    kinds = {"integer": int, "number": (int, float), "boolean": bool, "string": str, "array": list, "object": dict}
    allowed = [schema["type"]] if isinstance(schema.get("type"), str) else schema.get("type", [])
    if allowed and not any(
        isinstance(value, kinds[kind]) and (kind == "boolean" or not isinstance(value, bool)) for kind in allowed
    ):
        return False
    if "enum" in schema and not any(value == each and type(value) is type(each) for each in schema["enum"]):
        return False
    if "const" in schema and (value != schema["const"] or type(value) is not type(schema["const"])):
        return False
    if "anyOf" in schema and not any(satisfies(each, value) for each in schema["anyOf"]):
        return False
    if isinstance(value, str):
        return "pattern" not in schema or bool(encodings.re.search(schema["pattern"], value))
    if isinstance(value, list):
        return all(satisfies(schema.get("items", {}), each) for each in value)
    return not isinstance(value, dict) or _has_the_fields(schema, value)


def _has_the_fields(schema, value):
    named, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for name, each in value.items():
        own = [named[name]] if name in named else [s for p, s in patterns.items() if encodings.re.search(p, name)]
        if (not own and schema.get("additionalProperties", True) is False) or not all(satisfies(s, each) for s in own):
            return False
    dependent = schema.get("dependentRequired", {})
    return all(name in value for name in schema.get("required", [])) and all(
        name in value for key, names in dependent.items() if key in value for name in names
    )


def accepts(check, message):
    """Whether our own validation takes a message, read as a line."""
    try:
        check(messages.parse(json.dumps(message).encode()))
        if "arrays" in message:
            parse_descriptions(message["arrays"], 2**40)
    except (messages.MessageError, EncodingError):
        return False
    return True


@pytest.mark.parametrize(("kind", "check", "example"), [
    ("request", messages.check_request, REQUEST), ("request", messages.check_request, BUILD),
    ("started", messages.check_started, STARTED), ("reply", messages.check_reply, REPLY),
    ("reply", messages.check_reply, REFUSAL),
])  # fmt: skip
def test_the_published_schema_and_our_validation_agree(kind, check, example):
    assert accepts(check, example)
    seen = set()
    for message in changed(example):
        expected = satisfies({"$ref": f"#/$defs/{kind}"}, message)
        assert accepts(check, message) == expected, message
        seen.add(expected)
    assert seen == {True, False}


def test_the_published_schema_has_every_call_with_its_fields():
    found = {}
    for request in SCHEMA["$defs"]["request"]["anyOf"]:
        record = SCHEMA["$defs"][request["$ref"].rpartition("/")[2]]
        fields = tuple(name for name in record["properties"] if name not in ("id", "call", "data"))
        found |= dict.fromkeys(record["properties"]["call"]["enum"], fields)
        assert tuple(record["required"]) == ("id", "call", *fields)
    assert found == messages.CALLS
    assert SCHEMA["$defs"]["started"]["properties"]["offers"]["items"]["enum"] == list(messages.OFFERS)
