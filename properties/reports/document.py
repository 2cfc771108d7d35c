"""What every rendering of a report says in the same words, read from the JSON document alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from decoderspec.properties.printable import one_line
from decoderspec.spec.protocol import CAPABILITIES
from decoderspec.spec.requirements import requirements

Document = Mapping[str, Any]
Row = Mapping[str, Any]
STATUS = {
    "pass": "holds", "fail": "fails", "xfail": "known", "skip": "not tested", "not_judged": "not judged",
    "error": "error",
}  # fmt: skip


def figure(value: Any) -> float:
    """A number of the document: infinities and NaN are words there, and nothing is NaN here."""
    return math.nan if value is None else float(value)


def number(value: Any) -> str:
    """Three digits, for readers."""
    return f"{figure(value):.3g}"


def name(document: Document) -> str:
    """What the implementation calls itself, on one line."""
    return one_line(document["implementation"]) or "(without a name)"


def precision(value: Any) -> str:
    """A precision: a word, or a recipe as it can be pasted."""
    return value if isinstance(value, str) else repr(value)


def rows(document: Document, contract: str) -> dict[str, Row]:
    """The requirements of a contract."""
    return {key: row for key, row in document["requirements"].items() if row["contract"] == contract}


def sentence(requirement: str) -> str:
    """The sentence of the text; empty for one that this version's text does not have."""
    found = requirements().get(requirement)
    return found.sentence if found else ""


def why(requirement: str) -> str:
    """The reason that the text gives."""
    found = requirements().get(requirement)
    return found.why if found else ""


def counted(document: Document, contract: str) -> str:
    """How many requirements of a contract hold, and how many do not."""
    mine = rows(document, contract)
    lost = [key for key in mine if key in document["not_run"]]
    count = {status: sum(row["status"] == status for row in mine.values()) for status in STATUS}
    numbers = {
        "hold": count["pass"],
        "do not": count["fail"] + count["error"],
        "known": count["xfail"],
        "not reached": count["skip"] - len(lost),
        "not judged": count["not_judged"],
        "not run": len(lost),
    }
    return ", ".join(f"{number} {what}" for what, number in numbers.items() if number or what == "hold")


def nearest(found: Mapping[str, Row]) -> tuple[str, Row] | None:
    """The requirement nearest to its limit, or furthest beyond it."""
    judged = {key: row for key, row in found.items() if row["worst_noise"] is not None and row["allowed"]}
    if not judged:
        return None
    return max(judged.items(), key=lambda item: figure(item[1]["worst_noise"]) / figure(item[1]["allowed"]))


def noise(row: Row) -> str:
    """An error beside its limit."""
    return f"{number(row['worst_noise'])} x noise ({figure(row['allowed']):.1f} allowed)"


def decided(document: Document) -> list[str]:
    """The contracts that count and could be reached."""
    return [key for key, verdict in document["contracts"].items() if verdict in ("conforms", "fails", "partial")]


def verdict(document: Document) -> str:
    """The verdict in one sentence, naming the contracts."""
    contracts = document["contracts"]
    if document["problems"] or any(row["status"] == "error" for row in document["requirements"].values()):
        return "The suite itself failed, so there is no verdict."
    if not any(row["status"] in ("pass", "fail", "xfail") for row in document["requirements"].values()):
        return "Nothing was tested."
    if not decided(document):
        return "Nothing is claimed or required, so there is no verdict."
    fails = [key for key, found in contracts.items() if found == "fails"]
    if fails:
        return f"Does not conform: {', '.join(fails)}."
    if document["verdict"] == "partial":
        return "Only a part was run, and it holds: no verdict."
    return f"Conforms: {', '.join(decided(document))}."


def case(text: str) -> tuple[str, str]:
    """A case as its note and its sizes."""
    note, colon, sizes = text.rpartition(": ")
    return (note, sizes) if colon else ("", text)


def to_add(document: Document) -> list[str]:
    """What one more method would let be tested."""
    return [
        CAPABILITIES[key] for key, offered in document["capabilities"].items() if not offered and key in CAPABILITIES
    ]


def elsewhere(document: Document) -> list[str]:
    """What was not covered, but for what a method would add."""
    return [entry for entry in document["not_covered"] if entry not in CAPABILITIES.values()]


def unclaimed(document: Document) -> Iterator[tuple[str, Row]]:
    """Failures in contracts that do not count."""
    for key, row in document["requirements"].items():
        if row["status"] == "fail" and document["contracts"][row["contract"]] == "observed":
            yield key, row
