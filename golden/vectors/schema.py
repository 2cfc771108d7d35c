"""The few words of JSON Schema that `vectors.schema.json` uses, so that no library is needed to check a file.

`test_vectors` holds that the file uses no other word.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from decoderspec.golden.vectors.files import SCHEMA
from decoderspec.golden.vectors.results import Json

KINDS = ("index", "operation", "model", "initialization", "errors")
TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool) and _finite(value),
}


@cache
def definitions() -> Json:
    """The parts of the schema by name."""
    found: Json = json.loads(SCHEMA.read_text(encoding="utf-8"))["$defs"]
    return found


def violations(value: Any, schema: Json, path: str = "$") -> Iterator[str]:
    """What in a value breaks the schema, by its place."""
    while "$ref" in schema:
        schema = definitions()[schema["$ref"].rpartition("/")[2]]
    kind = schema.get("type")
    if kind is None:
        return
    if not TYPES[kind](value):
        yield f"{path} is {_shown(value)}, which is no {kind}"
        return
    yield from _PARTS[kind](value, schema, path)


def _object(value: Json, schema: Json, path: str) -> Iterator[str]:
    known, others = schema.get("properties", {}), schema.get("additionalProperties", {})
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{path}.{name} is missing"
    for name, item in value.items():
        if name not in known and others is False:
            yield f"{path}.{name[:60]} is not known"
        else:
            yield from violations(item, known.get(name, others), f"{path}.{name[:60]}")


def _array(value: list[Any], schema: Json, path: str) -> Iterator[str]:
    low, high = schema.get("minItems", 0), schema.get("maxItems", math.inf)
    if not low <= len(value) <= high:
        yield f"{path} has {len(value)} items, allowed are {low} to {high}"
        return
    for place, item in enumerate(value):
        yield from violations(item, schema["items"], f"{path}[{place}]")


def _string(value: str, schema: Json, path: str) -> Iterator[str]:
    fits = "pattern" not in schema or re.fullmatch(schema["pattern"], value)  # all of ours are anchored at both ends
    if len(value) > schema.get("maxLength", math.inf) or not fits:
        yield f"{path} is {_shown(value)}, which does not fit {schema.get('pattern', 'its length')}"


def _number(value: float, schema: Json, path: str) -> Iterator[str]:
    low, high = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
    if not low <= value <= high:
        yield f"{path} is {_shown(value)}, allowed are {low} to {high}"


_PARTS: dict[str, Callable[..., Iterator[str]]] = {
    "object": _object,
    "array": _array,
    "string": _string,
    "integer": _number,
    "number": _number,
}


def _finite(value: float) -> bool:
    """Whether a float64 holds it."""
    return abs(value) <= 1.7976931348623157e308


def _shown(value: Any) -> str:
    text = json.dumps(value) if isinstance(value, str | int | float | bool | None) else type(value).__name__
    return text if len(text) <= 60 else f"{text[:57]}..."
