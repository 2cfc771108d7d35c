"""Reading a stored report: what does not fit the published schema is refused in words, before anything is drawn."""

from __future__ import annotations

import json
import re
import sys
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

KINDS: dict[str, Any] = {
    "object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool,
    "null": type(None),
}  # fmt: skip


class StoredError(ValueError):
    """A file that is not a report of this version: what came and what is allowed."""


@cache
def schema() -> dict[str, Any]:
    """The published schema of the JSON report."""
    text = files("decoderspec.properties").joinpath("report.schema.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def read(path: Path) -> dict[str, Any]:
    """The document of a stored report. Raises `StoredError`."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as reason:
        raise StoredError(f"{path} cannot be read: {reason}") from None
    wrong = violations(document, schema())
    if wrong:
        raise StoredError(f"{path} is not a report that this version reads: {wrong[0]}")
    found: dict[str, Any] = document
    return found


def violations(value: Any, rule: dict[str, Any], path: str = "report") -> list[str]:
    """What of the schema a value breaks; of the schema language, the part that the schema uses."""
    rule = schema()["$defs"][rule["$ref"].rpartition("/")[2]] if "$ref" in rule else rule
    if "enum" in rule and value not in rule["enum"]:
        return [f"{path} is {value!r:.80}; allowed: {', '.join(rule['enum'])}"]
    kinds = rule.get("type", list(KINDS))
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if not any(_is(value, kind) for kind in kinds):
        return [f"{path} is {value!r:.80}; allowed: {' or '.join(kinds)}"]
    if isinstance(value, str) and "pattern" in rule and not re.fullmatch(rule["pattern"], value):  # all are anchored
        return [f"{path} is {value!r:.80}; allowed: {rule['pattern']}"]
    if isinstance(value, (int, float)) and value < rule.get("minimum", value):
        return [f"{path} is {value!r}; allowed: {rule['minimum']} and more"]
    if isinstance(value, list):
        return [v for i, each in enumerate(value) for v in violations(each, rule.get("items", {}), f"{path}[{i}]")]
    return _of_mapping(value, rule, path) if isinstance(value, dict) else []


def _of_mapping(value: dict[str, Any], rule: dict[str, Any], path: str) -> list[str]:
    inner, others = rule.get("properties", {}), rule.get("additionalProperties", {})
    found = [f"{path} has no {name}" for name in rule.get("required", ()) if name not in value]
    found += [
        f"{path} has {name!r:.80}, which is no key of it" for name in value if name not in inner and others is False
    ]
    for name in value if "propertyNames" in rule else ():
        found += violations(name, rule["propertyNames"], f"a name in {path}")
    for name, each in value.items():
        found += violations(each, inner.get(name, others or {}), f"{path}.{name}")
    return found


def _is(value: Any, kind: str) -> bool:
    """Whether a value is of a JSON type; a boolean is no number, nor is an integer beyond every float."""
    if not isinstance(value, KINDS[kind]) or (isinstance(value, bool) and kind != "boolean"):
        return False
    return kind not in ("integer", "number") or isinstance(value, float) or abs(value) <= sys.float_info.max
