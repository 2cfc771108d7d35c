"""Changing a valid document in one place: a JSON tree, TOML text, bytes or a word.

Whatever is drawn comes from the generator that is handed in, so that an input can be made again from its number.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

LONG = "x" * 100_000
DEEP = 5000
JSON_WORDS = (  # values as text: some are no JSON, some are JSON that few readers expect
    "NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1e-999", "-0", "0", "-1", "1", "2", "0.5", "1.0", "true",
    "false", "null", "[]", "{}", "[[]]", "[null]", '{"": null}', '""', '"x"', '"nan"', '"0x1p+3"', '"0x1p+99999"',
    '"-1"', '"\\u0000"', '"\\ud800"', '"\\u202e\\u001b[31m"', '"../../etc/passwd"', '"__import__"', "1" + "0" * 400,
    "9" * 5000, str(2**31), str(2**53), str(2**63), str(2**64), f'"{LONG}"', "[" * DEEP + "]" * DEEP,
    '{"a":' * DEEP + "1" + "}" * DEEP, "[" + "0," * 3000 + "0]", "01", "'x'", "undefined", '{"a":1,"a":2}', '"=1+1"',
    '"<script>"', '"a\\nb"',
)  # fmt: skip
TOML_WORDS = (
    "nan", "-inf", "1e999", "0", "-1", "1.5", "true", "[]", "{}", '""', '"x"', '"\\u0000"', '"\\U0001F600"', '"a\\nb"',
    "0x" + "f" * 5000, "9" * 5000, str(2**64), "1979-05-27", "07:32:00", "[1, 2]", '["forward"]', "{a = 1}",
    f'"{LONG}"', "[" * DEEP + "]" * DEEP, "'''x'''", '"../x"', "[[1], {a = [nan]}]",
)  # fmt: skip
WORDS = (
    "", " ", ":", "::", "-", "--", "-1", "0", "x", "\x00", "\n", "\udc80", "\u202e", "\x1b[31m", "é", "*", "~", "/",
    ".", "..", "../x", "a" * 300, LONG, "nan", "inf", "1e999", "9" * 5000, "None", "{}", "{'results': 'float32'}",
    "[" * 300, "%s", "{0}",
)  # fmt: skip


# --- JSON ---


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place of a tree below its root, by keys and indices."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield (*path, key)
        yield from places(each, (*path, key))


def changed_json(rng: Random, document: Any, count: int) -> bytes:
    """The text of a document with so many places changed."""
    made, texts = copy.deepcopy(document), dict[str, str]()
    later = 0
    for _ in range(count):
        if rng.random() < 0.15:
            later += 1
        else:
            _change_tree(rng, made, texts)
    text = json.dumps(made)
    for marker, word in texts.items():
        text = text.replace(f'"{marker}"', word)
    data = text.encode()
    for _ in range(later):
        data = damaged(rng, data)
    return data


def _change_tree(rng: Random, document: Any, texts: dict[str, str]) -> None:
    """Change one place; a marker stands where a word of JSON is put in later."""
    path = rng.choice(list(places(document)) or [()])
    if not path:
        return
    owner, key = document, path[-1]
    for step in path[:-1]:
        owner = owner[step]
    marker, value = f"@{len(texts)}@{rng.random()}@", owner[key]
    match rng.choice(("word", "word", "near", "near", "near", "remove", "add", "rename", "double", "move")):
        case "word":
            owner[key], texts[marker] = marker, rng.choice(JSON_WORDS)
        case "near":
            owner[key] = near(rng, value)
        case "remove":
            del owner[key]
        case "double" if isinstance(owner, dict):
            again = f"{json.dumps(value)}, {json.dumps(key)}: {rng.choice((json.dumps(value), *JSON_WORDS))}"
            owner[key], texts[marker] = marker, again
        case "rename" if isinstance(owner, dict):
            owner[changed_word(rng, key)] = owner.pop(key)
        case "add" if isinstance(owner, dict):
            owner[rng.choice(WORDS)], texts[marker] = marker, rng.choice(JSON_WORDS)
        case "move":
            owner[key] = copy.deepcopy(_at(document, rng.choice(list(places(document)))))
        case _:  # lists
            owner.insert(key, copy.deepcopy(value)) if isinstance(owner, list) else owner.pop(key)


def _at(document: Any, path: Sequence[Any]) -> Any:
    for step in path:
        document = document[step]
    return document


def near(rng: Random, value: Any) -> Any:
    """A value of the same type, not far away: what a check of types alone does not see."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int):
        return rng.choice((value + 1, value - 1, -value, 2 * value, value + 2**32, 0, 10**12))
    if isinstance(value, float):
        return rng.choice((-value, value * 2, value / 3, value * 1e300, value * 1e-300, 0.0, 1))
    if isinstance(value, str):
        return changed_word(rng, value)
    if isinstance(value, list):
        return rng.choice((value[:-1], value[::-1], value * 2, [value], value[1:]))
    return {key: each for key, each in value.items() if rng.random() < 0.8} if isinstance(value, dict) else value


# --- Words, text, bytes ---


def changed_word(rng: Random, word: str) -> str:
    """A word with a letter taken out, doubled, exchanged or put in; or another word."""
    at = rng.randrange(len(word) + 1)
    odd = rng.choice(("", " ", ".", ":", "/", "-", "=", "\x00", "\n", "\udc80", "\u202e", "0", "9", "A", "é", "{n}"))
    return rng.choice((
        word[:at] + word[at + 1 :], word[:at] + odd + word[at:], word[:at] + odd + word[at + 1 :], word[:at], word[at:],
        word.upper(), word * 2, rng.choice(WORDS),
    ))  # fmt: skip


def changed_toml(rng: Random, text: str, count: int) -> bytes:
    """TOML with so many lines changed: a value, a key, a line twice or not at all; or damaged bytes."""
    data = text.encode()
    for _ in range(count):
        lines = data.decode(errors="surrogateescape").split("\n")
        at = rng.randrange(len(lines))
        key, equals, value = lines[at].partition(" = ")
        match rng.choice(("word", "word", "word", "near", "key", "remove", "double", "damage")):
            case "word" if equals:
                lines[at] = f"{key} = {rng.choice(TOML_WORDS)}"
            case "near" if equals:
                lines[at] = f"{key} = {changed_word(rng, value)}"
            case "key":
                lines[at] = f"{changed_word(rng, key)}{equals}{value}"
            case "remove":
                del lines[at]
            case "double":
                lines.insert(at, lines[at])
            case _:
                data = damaged(rng, data)
                continue
        data = "\n".join(lines).encode(errors="surrogatepass")
    return data


def damaged(rng: Random, data: bytes) -> bytes:
    """Bytes cut off, flipped, put in, taken out or repeated."""
    at = rng.randrange(len(data) + 1)
    end = min(len(data), at + rng.choice((1, 1, 2, 8, 100)))
    match rng.choice(("cut", "flip", "flip", "byte", "insert", "remove", "repeat", "empty")):
        case "cut":
            return data[:at]
        case "flip" if at < len(data):
            return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
        case "byte" if at < len(data):
            return data[:at] + bytes([rng.choice((0, 255, 34, 92, 91, 123, rng.randrange(256)))]) + data[at + 1 :]
        case "insert":
            return data[:at] + rng.randbytes(rng.choice((1, 1, 4, 50))) + data[at:]
        case "remove":
            return data[:at] + data[end:]
        case "repeat":
            return data[:end] + data[at:]
    return b"" if rng.random() < 0.1 else data[at:]
