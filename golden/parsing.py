"""A document as labelled lines of fields, whoever wrote it."""

from __future__ import annotations

import re
from collections import Counter

NUMBER = re.compile(r"-?\d+\.\d+")
BLANKS = re.compile(r" (?![^\[]*\])")  # not those between brackets
IDENTITY = ("stage", "name", "head", "query", "token")  # fields of a trace line that say which line it is
NAMING = {"SHAPE": 1, "STAGE": 1, "WEIGHT": 2, "MERGE": 1, "PROBE": 1, "stage": 2, "logits": 1}  # how many of them

Fields = dict[str, str]


def parse(kind: str, text: str) -> dict[str, Fields]:
    """Fields of each line by the line's label; a label that returns is told apart by `#2`, `#3`."""
    lines: dict[str, Fields] = {}
    seen: Counter[str] = Counter()
    for line in text.splitlines():
        label, fields = _report_line(line) if kind == "report" else _trace_line(line)
        seen[label] += 1
        lines[label if seen[label] == 1 else f"{label}#{seen[label]}"] = fields
    return lines


def numbers(value: str) -> list[float]:
    """The decimal numbers in a field."""
    return [float(found) for found in NUMBER.findall(value)]


def _report_line(line: str) -> tuple[str, Fields]:
    """`label=text name:value name:value`."""
    label, _, rest = line.partition("=")
    fields: Fields = {}
    text = []
    for token in BLANKS.split(rest):
        name, colon, value = token.partition(":")
        if colon:
            fields[name] = value
        else:
            text.append(token)
    return label, {**({"text": " ".join(text)} if text else {}), **fields}


def _trace_line(line: str) -> tuple[str, Fields]:
    """`LABEL|name=value|name=value`, or the same with blanks."""
    tokens = line.split("|") if "|" in line else BLANKS.split(line)
    fields = {name: value for name, _, value in (token.partition("=") for token in tokens[1:] if token)}
    naming = [name for name in fields if name in IDENTITY][: NAMING.get(tokens[0], 0)]
    return " ".join([tokens[0], *(f"{name}={fields.pop(name)}" for name in naming)]), fields
