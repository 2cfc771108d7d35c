"""Arrays on the wire of the line protocol: a description of each in the message, and their values in one of three ways.

`hex`: every value as text, floats as C's `%a` writes them, integers in decimal, all separated by one blank.
`base64`: the little-endian bytes of each array, arrays separated by one blank. `raw`: the little-endian bytes of all
arrays, one after the other, after the line. NaN and infinities come through each of them.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

ENCODINGS = ("hex", "base64", "raw")
DTYPES = {"float64": "<f8", "float32": "<f4", "float16": "<f2", "bfloat16": "<u2", "int64": "<i8"}
PIECE = 3 * 2**18  # bytes at a time; a multiple of 3, so that pieces of base64 join
DESCRIPTION = re.compile(rf"(\S{{1,200}}) ({'|'.join(DTYPES)})((?: (?:0|[1-9]\d{{0,14}})){{0,8}})", re.ASCII)
HEXADECIMAL = re.compile(r"[+-]?(?:0x[0-9a-f.]+(?:p[+-]?\d+)?|nan|inf|infinity)", re.ASCII | re.IGNORECASE)
DECIMAL = re.compile(r"-?\d{1,19}", re.ASCII)


class EncodingError(ValueError):
    """Arrays that are not as they are described."""


class NotCarried(TypeError):
    """A value for which the protocol has no type: booleans, strings, objects, complex numbers, ragged lists."""


@dataclass(frozen=True)
class Description:
    """One array of a message before its values are read."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many values."""
        return math.prod(self.shape)

    @property
    def width(self) -> int:
        """Bytes of a value."""
        return np.dtype(DTYPES[self.dtype]).itemsize

    def __str__(self) -> str:
        return " ".join([self.name, self.dtype, *map(str, self.shape)])


def carried(name: str, value: Any) -> Array:
    """The value as contiguous float64 or int64. Raises `NotCarried` for what is neither a float nor an integer."""
    try:
        array = np.asarray(value)
    except ValueError:
        raise NotCarried(f"{name}: the line protocol carries arrays, got ragged lists") from None
    kinds = {"f": np.float64, "i": np.int64, "u": np.int64}
    if array.dtype.kind not in kinds or (array.dtype.kind == "u" and array.max(initial=0) > np.iinfo(np.int64).max):
        raise NotCarried(f"{name}: the line protocol carries float64 and int64, got {array.dtype}")
    return np.ascontiguousarray(array, dtype=kinds[array.dtype.kind]).reshape(array.shape)  # a scalar stays one


# --- Writing: float64 and int64 ---


def describe(arrays: Mapping[str, Array]) -> list[str]:
    """What stands in the field `arrays`. Raises `NotCarried` for a name that is no single word."""
    for name in arrays:
        if not name or name.split() != [name]:
            raise NotCarried(f"the line protocol separates by blanks, so {name!r} can be no name")
    return [str(Description(name, str(array.dtype), array.shape)) for name, array in arrays.items()]


def text(arrays: Iterable[Array], encoding: str) -> Iterator[bytes]:
    """The field `data` in pieces, as `hex` or `base64`."""
    write = _hexadecimal if encoding == "hex" else _base64
    for place, array in enumerate(array for array in arrays if array.size or encoding != "hex"):
        yield b" " if place else b""
        yield from write(array)


def raw(arrays: Iterable[Array]) -> Iterator[memoryview]:
    """The bytes after the line in pieces."""
    for array in arrays:
        whole = _bytes(array)
        yield from (whole[start : start + PIECE] for start in range(0, len(whole), PIECE))


def _bytes(array: Array) -> memoryview:
    little = array.astype(DTYPES[str(array.dtype)], copy=False)
    return memoryview(little.reshape(-1).view(np.uint8).data)


def _hexadecimal(array: Array) -> Iterator[bytes]:
    for start in range(0, array.size, PIECE):
        values = array.reshape(-1)[start : start + PIECE].tolist()
        words = map(float.hex, values) if array.dtype.kind == "f" else map(str, values)
        yield (b" " if start else b"") + " ".join(words).encode()


def _base64(array: Array) -> Iterator[bytes]:
    yield from (base64.b64encode(piece) for piece in raw([array]))


# --- Reading: every dtype ---


def parse_descriptions(given: Sequence[str], most: int) -> list[Description]:
    """The arrays that a message announces, at most so many values together. Raises `EncodingError`."""
    found = []
    for one in given:
        match = DESCRIPTION.fullmatch(one)
        if match is None:
            allowed = f"a name, a dtype of {', '.join(DTYPES)}, sizes"
            raise EncodingError(f"{one[:80]!r} describes no array; allowed: {allowed}")
        found.append(Description(match[1], match[2], tuple(map(int, match[3].split()))))
    if len({each.name for each in found}) != len(found):
        raise EncodingError("two arrays have one name")
    total = sum(each.size for each in found)
    if total > most:
        announced = "; ".join(map(str, found))[:120]
        raise EncodingError(f"{total} values are announced ({announced}), {most} are the most that is read")
    return found


def from_text(descriptions: Sequence[Description], data: str, encoding: str) -> dict[str, Array]:
    """The arrays of a `data` field. Raises `EncodingError`."""
    return (_from_hexadecimal if encoding == "hex" else _from_base64)(descriptions, data)


def from_raw(descriptions: Sequence[Description], data: bytes) -> dict[str, Array]:
    """The arrays of the bytes after a line, exactly as many as are announced."""
    found, start = {}, 0
    for each in descriptions:
        stop = start + each.size * each.width
        found[each.name] = _array(each, data[start:stop])
        start = stop
    return found


def _from_base64(descriptions: Sequence[Description], data: str) -> dict[str, Array]:
    parts = data.split(" ") if descriptions else []
    if len(parts) != len(descriptions):
        raise EncodingError(f"data has {len(parts)} arrays, {len(descriptions)} are announced")
    found = {}
    for each, part in zip(descriptions, parts, strict=True):
        try:
            content = base64.b64decode(part, validate=True)
        except (binascii.Error, ValueError) as reason:
            raise EncodingError(f"data of {each.name} is no base64: {reason}") from None
        if len(content) != each.size * each.width:
            raise EncodingError(f"{each} takes {each.size * each.width} bytes, data has {len(content)}")
        found[each.name] = _array(each, content)
    return found


def _array(each: Description, content: bytes) -> Array:
    array = np.frombuffer(content, DTYPES[each.dtype]).reshape(each.shape)
    if each.dtype == "bfloat16":  # the upper half of a float32
        return (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return array.astype(each.dtype)


def _from_hexadecimal(descriptions: Sequence[Description], data: str) -> dict[str, Array]:
    words = data.split(" ") if data else []
    if len(words) != sum(each.size for each in descriptions):
        raise EncodingError(f"data has {len(words)} values, {sum(each.size for each in descriptions)} are announced")
    found, start = {}, 0
    for each in descriptions:
        found[each.name] = _values(each, words[start : start + each.size])
        start += each.size
    return found


def _values(each: Description, words: Sequence[str]) -> Array:
    form, read = (DECIMAL, int) if each.dtype == "int64" else (HEXADECIMAL, float.fromhex)
    for word in words:
        if form.fullmatch(word) is None:
            raise EncodingError(f"{word[:40]!r} is no value of {each}; floats are written as 0x1.8p+1, nan, inf, -inf")
    dtype = "float32" if each.dtype == "bfloat16" else each.dtype
    try:
        return np.array([read(word) for word in words], dtype=np.dtype(dtype)).reshape(each.shape)
    except (ValueError, OverflowError) as reason:
        raise EncodingError(f"data of {each.name}: {reason}") from None
