"""The messages of the line protocol: which fields each has, and reading a child's line with nothing taken on trust.

A message is one flat JSON object: its values are words, numbers, truth values or lists of words and numbers, never
objects. `protocol.schema.json` beside this file says the same for other languages. Numbers are finite, as in standard
JSON; a constant of a configuration that is not is written as the word `nan`, `inf` or `-inf`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from decoderspec.adapters.encodings import ENCODINGS, NotCarried
from decoderspec.spec.config import Config
from decoderspec.spec.errors import CATEGORIES
from decoderspec.spec.shown import cut

PROTOCOL = 1  # raised when a message changes its meaning

CONFIG = tuple(field.name for field in fields(Config))
OPERATIONS: dict[str, tuple[str, ...]] = {  # operation -> its constants; every other input is an array
    "embed": (), "rms_norm": ("epsilon",), "linear": (), "rotate": ("base", "offset"), "attend": (), "silu": (),
    "swiglu": (), "add": (), "project": (), "nll": (), "block": (*CONFIG, "offset"),
}  # fmt: skip
CALLS: dict[str, tuple[str, ...]] = {  # call -> the fields beside `id` and `call`
    "start": ("protocol",),
    "build": ("model", *CONFIG, "arrays"),
    "initialize": ("model", *CONFIG, "seed"),
    "logits": ("model", "arrays"),
    "stages": ("model", "arrays"),
    "loss": ("model", "arrays"),
    "gradients": ("model", "arrays"),
    "role_gradients": ("model", "arrays"),
    "parameters": ("model",),
    "assign": ("model", "arrays"),
    "close": ("model",),
    **{name: (*constants, "arrays") for name, constants in OPERATIONS.items()},
    **{f"{name}_backward": (*constants, "arrays") for name, constants in OPERATIONS.items()},
}
OFFERS = (*(call for call in CALLS if call not in ("start", "build", "close")), "classify")
STARTED = ("protocol", "name", "encoding", "offers")  # a start message has these, and what it declares
DECLARED = ("precision", "claims", "emulates")
DECLARED_PARTS = ("precision.", "layout.", "limits.")  # fields of declarations that are mappings, as `layout.rotation`
NESTED = {"limits": 2, "layout": 2, "precision": 1}  # how many names deep; the last may have points of its own
NOT_FINITE = ("nan", "inf", "-inf")
ERROR_WORDS = 2000  # characters of a child's error that are kept

KINDS: dict[str, Callable[[Any], bool]] = {
    "integer": lambda value: type(value) is int,
    "constant": lambda value: type(value) in (int, float, bool) or value in NOT_FINITE,
    "digits": lambda value: isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 20,
    "text": lambda value: isinstance(value, str),
    "words": lambda value: isinstance(value, list) and all(isinstance(each, str) for each in value),
}
FIELDS = {
    "id": "integer", "call": "text", "protocol": "integer", "model": "integer", "seed": "digits", "arrays": "words",
    "data": "text", "name": "text", "encoding": "text", "offers": "words", "claims": "words", "emulates": "words",
    "precision": "text", "error": "text", "category": "text",
    **dict.fromkeys((*CONFIG, "epsilon", "base", "offset"), "constant"),
}  # fmt: skip


class MessageError(ValueError):
    """A line that is no message of the protocol: says what came and what is allowed."""

    def __init__(self, words: str) -> None:
        super().__init__(cut(words))


def constant(name: str, value: Any) -> Any:
    """A number as JSON can say it. Raises `NotCarried` for what is none."""
    value = value.item() if hasattr(value, "item") else value
    if type(value) is float and not math.isfinite(value):
        return str(value)
    if type(value) not in (int, float, bool):
        raise NotCarried(f"{name}: the line protocol carries numbers, got {type(value).__name__}")
    return value


def request(number: int, call: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """A checked request of that call; `data` is added by whoever writes it. Raises `MessageError`."""
    message = {"id": number, "call": call, **values}
    check_request(message)
    return message


def check_request(message: Mapping[str, Any]) -> None:
    """Raise `MessageError` unless a request has the fields of its call, `data` aside, and each is of its kind."""
    _check_kinds(message)
    call = message.get("call")
    if call not in CALLS:
        raise MessageError(f"there is no call {call!r}")
    _check_names(f"the request {call}", message, ("id", "call", *CALLS[call]), ("data",) if "arrays" in message else ())


def check_reply(message: Mapping[str, Any]) -> None:
    """Raise `MessageError` unless a message is a reply: a refusal, or arrays, or nothing but its number."""
    _check_kinds(message)
    if "error" in message:
        _check_names("a refusal", message, ("id", "error"), ("category",))
        if message.get("category", CATEGORIES[0]) not in CATEGORIES:
            raise MessageError(f"there is no category {message['category']!r}; allowed: {', '.join(CATEGORIES)}")
        return
    _check_names("a reply", message, ("id",), ("arrays", "data"))
    if "data" in message and "arrays" not in message:
        raise MessageError("a reply has data without arrays")


def check_started(message: Mapping[str, Any]) -> None:
    """Raise `MessageError` unless a message is a start message of this protocol."""
    _check_kinds(message)
    own = tuple(name for name in message if name.startswith(DECLARED_PARTS))
    _check_names("a start message", message, ("id", *STARTED), (*DECLARED, *own))
    if message["protocol"] != PROTOCOL:
        raise MessageError(f"it speaks protocol {message['protocol']}, this suite speaks {PROTOCOL}")
    if message["encoding"] not in ENCODINGS:
        raise MessageError(f"there is no encoding {message['encoding']!r}; allowed: {', '.join(ENCODINGS)}")
    for offer in message["offers"]:
        if offer not in OFFERS:
            raise MessageError(f"nothing called {offer!r} can be offered; allowed: {', '.join(OFFERS)}")


def _check_kinds(message: Mapping[str, Any]) -> None:
    for name, value in message.items():
        if name in FIELDS and not KINDS[FIELDS[name]](value):
            raise MessageError(f"the field {name} must be of the kind {FIELDS[name]}, got {str(value)[:80]!r}")


def _check_names(what: str, message: Mapping[str, Any], required: tuple[str, ...], further: tuple[str, ...]) -> None:
    for name in required:
        if name not in message:
            raise MessageError(f"{what} has no field {name}")
    for name in message:
        if name not in required and name not in further:
            raise MessageError(f"{what} has a field {name[:80]!r}; allowed: {', '.join((*required, *further))}")


def declarations(started: Mapping[str, Any]) -> dict[str, Any]:
    """What a start message declares, `layout.rotation` and its like gathered into mappings."""
    found: dict[str, Any] = {name: started[name] for name in DECLARED if name in started}
    for name, value in started.items():
        if name.startswith(DECLARED_PARTS):
            first, *path = name.split(".", 1)
            _put(found, first, path[0], value)
    return found


def _put(found: dict[str, Any], first: str, rest: str, value: Any) -> None:
    """Set `found[first][rest]`; the parts of a limit, of `layout.names` and of `layout.fused` are one level deeper."""
    place = found[first] = found[first] if isinstance(found.get(first), dict) else {}
    if NESTED[first] > 1 and "." in rest:
        middle, rest = rest.split(".", 1)
        place = place.setdefault(middle, {})
        if not isinstance(place, dict):
            raise MessageError(f"{first}.{middle} is declared as a value and as a mapping")
    place[rest] = value


# --- A line ---


def parse(line: bytes) -> dict[str, Any]:
    """The message of a line. Raises `MessageError` for whatever is not one flat object of standard JSON."""
    try:
        message = json.loads(line.decode(), parse_constant=_no_number, object_pairs_hook=_unique)
    except UnicodeDecodeError:
        raise MessageError(f"a line is not UTF-8: {_shown(line)}") from None
    except MessageError:
        raise
    except (ValueError, RecursionError):
        raise MessageError(
            f"a line is not JSON: {_shown(line)} (standard output is for messages alone: print to standard error)"
        ) from None
    if not isinstance(message, dict):
        raise MessageError(f"a message is a JSON object, got {_shown(line)}")
    for name, value in message.items():
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, (dict, list)) or each is None:
                raise MessageError(f"a message is flat: the field {name[:80]!r} holds {type(each).__name__}")
            if isinstance(each, float) and not math.isfinite(each):
                raise MessageError(f"the field {name[:80]!r} holds a number beyond float64")
    return message


def _no_number(word: str) -> Any:
    raise MessageError(f"{word} is no number of standard JSON: what is not finite travels in an array")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise MessageError("a message has a field twice")
    return found


def _shown(line: bytes) -> str:
    text = line[:80].decode(errors="replace").rstrip("\n")
    return repr(text) + (".." if len(line) > 80 else "")
