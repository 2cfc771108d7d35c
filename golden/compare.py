"""Somebody's document against the right one, field by field, with what each difference looks like."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from decoderspec.golden.documents import document
from decoderspec.golden.mistakes import MISTAKES
from decoderspec.golden.parsing import NUMBER, Fields, numbers, parse

LAST_DIGIT = 2.5e-6  # two units of the sixth digit, and what the parsing adds
COUNTS = {  # a wrong value of a counting field -> what it looks like
    ("scalars", "284"): "an untied head: its table is counted as a second parameter",
    ("tensors", "21"): "an untied head: its table is listed as a second parameter",
    ("saved", "0"): "an untied head",
    ("scalars", "116"): "one gain shared by both norms, or left out",
    ("tensors", "8"): "one gain shared by both norms, or left out",
}
FALSE = {  # a field that should be true -> what its being false looks like
    "prefix_0_bitwise": "a later token reaches an earlier row: no causal mask, or one added after the softmax",
    "prefix_1_bitwise": "a later token reaches an earlier row: no causal mask, or one added after the softmax",
    "suffix_changed": "the changed last row has no effect: a mask that hides the query's own position",
    "future_probabilities_zero": "masked probabilities are small, not 0: mask with minus infinity before the softmax",
    "passed": "an analytic gradient disagrees with its central difference",
    "tape_finite": "a value or a gradient is not finite",
    "stable_order": "parameters are listed in another order than they are documented in",
    "distinct": "two parameters share their memory",
    "bias_free": "a bias is listed among the parameters",
    "lookup_and_head": "a copied head: lookup and logits do not read one live table",
    "replay": "the run depends on something beside its inputs",
    "bitwise": "the run depends on something beside its inputs",
    "released_input": "a record that was pulled back is still accepted",
    "zero_one_two": "some depth fails: N = 0 is legal",
}


@dataclass(frozen=True)
class Difference:
    """One field, or one property of the whole text, that is not as it should be."""

    field: str
    expected: str
    actual: str
    looks_like: tuple[str, ...] = ()

    def __str__(self) -> str:
        guess = f"; looks like: {', or '.join(self.looks_like)}" if self.looks_like else ""
        return f"{self.field}: expected {self.expected}, got {self.actual}{guess}"


def compare(kind: str, subject: str, text: str) -> list[Difference]:
    """Every difference from the right document; empty when the text is the same byte for byte."""
    right = document(kind, subject)
    if text == right:
        return []
    if not text.strip():
        return [Difference("text", f"{right.count(chr(10))} lines", "nothing")]
    found = [*_form(right, text), *_content(kind, subject, right, _plain(text))]
    return found or [Difference("text", "the document byte for byte", "other blanks or another order of fields")]


# --- The form of the text ---


def _plain(text: str) -> str:
    """The text without what `_form` has reported."""
    plain = text.removeprefix("\ufeff").replace("\r\n", "\n")
    return re.sub(r"[ \t]+$", "", plain, flags=re.MULTILINE)


def _form(right: str, text: str) -> Iterator[Difference]:
    lines, count = right.count("\n"), len(text.rstrip().splitlines())
    if text.startswith("\ufeff"):
        yield Difference("encoding", "UTF-8 without a mark", "a byte order mark at the start")
    if "\r" in text:
        yield Difference("line ends", r"\n", r"\r\n", ("text written on Windows",))
    if not text.endswith("\n"):
        yield Difference("end", "a newline", "none", ("a last line printed without its newline",))
    elif text.endswith("\n\n"):
        yield Difference("end", "one newline", "an empty line", ("a newline printed twice",))
    if count != lines:
        yield Difference("lines", str(lines), str(count))
    if re.search(r"[ \t]\r?$", text, flags=re.MULTILINE):
        yield Difference("line ends", "no blanks before the newline", "trailing blanks")


# --- Its fields ---


def _content(kind: str, subject: str, right: str, text: str) -> Iterator[Difference]:
    expected, actual = parse(kind, right), parse(kind, text)
    for label in expected:
        if label not in actual:
            yield Difference(label, "this line", "no such line")
    for label in actual:
        if label not in expected and label.strip():
            yield Difference(label, "no such line", "this line")
    shared = [label for label in expected if label in actual]
    if shared != [label for label in actual if label in expected]:
        yield Difference("lines", "in the order of the document", "in another order")
    for label in shared:
        yield from _fields(kind, subject, label, expected[label], actual[label])


def _fields(kind: str, subject: str, label: str, expected: Fields, actual: Fields) -> Iterator[Difference]:
    for name in [*expected, *(name for name in actual if name not in expected)]:
        wanted, came = expected.get(name, "no such field"), actual.get(name, "no such field")
        if wanted != came:
            yield Difference(f"{label}.{name}", wanted, came, tuple(_guesses(kind, subject, label, name, wanted, came)))


def _guesses(kind: str, subject: str, label: str, name: str, wanted: str, came: str) -> list[str]:
    if re.sub(r"\s", "", came) == re.sub(r"\s", "", wanted):
        return ["blanks where there are none, or none where there are"]
    if (name, came) in COUNTS:
        return [COUNTS[name, came]]
    if (wanted, came) in (("true", "false"), ("bitwise", "mismatch")):
        return [FALSE[key] for key in (name, label) if key in FALSE][:1]
    if not NUMBER.search(wanted):
        return []
    known = _guesses_of_numbers(wanted, came) or list(_mistaken(kind, subject).get((label, name, came), ()))
    if not known and label.startswith("stage name=embedding"):
        return ["another initialization: these rows come straight from the generator"]
    return known


def _guesses_of_numbers(wanted: str, came: str) -> list[str]:
    """What the way of writing says; empty where the values themselves differ."""
    ours, theirs = numbers(wanted), numbers(came)
    if re.search(r"\d,\d+(,|\]|$)", came) and "." not in came:
        return ["a decimal comma: the number format of a locale"]
    if came.replace("-0.000000", "0.000000") == wanted:
        return ["a negative zero: values smaller than 0.5e-6 print as 0.000000"]
    if len(ours) != len(theirs):
        return [f"{len(theirs)} values instead of {len(ours)}"]
    if ours == theirs or any(len(digits.partition(".")[2]) != 6 for digits in NUMBER.findall(came)):
        return ["another number of digits than six"] if "e-" not in wanted else []
    if all(abs(a - b) <= LAST_DIGIT for a, b in zip(ours, theirs, strict=True)):
        return ["the last digit: single precision, or digits cut off instead of rounded"]
    return []


@lru_cache
def _mistaken(kind: str, subject: str) -> dict[tuple[str, str, str], tuple[str, ...]]:
    """Which mistakes give which wrong value to which field of numbers."""
    right = parse(kind, document(kind, subject))
    found: dict[tuple[str, str, str], tuple[str, ...]] = {}
    for mistake, operations in MISTAKES.items():
        for label, fields in parse(kind, document(kind, subject, operations)).items():
            for name, value in fields.items():
                if NUMBER.search(value) and value != right.get(label, {}).get(name):
                    key = label, name, value
                    found[key] = (*found.get(key, ()), mistake)
    return found
