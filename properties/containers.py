"""Named arrays from a file that anybody may have written: `.safetensors` and `.npz`, bounded, without a dependency.

Every size is compared with what is really there before anything is allocated or read. Nothing is ever unpickled.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from decoderspec.properties.cases import Array

MOST_BYTES = 2**28  # of a file, and of what unpacks from it
HEADER_BYTES = 2**22  # of a safetensors header
MOST_ARRAYS = 10_000
DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4"}
ALLOWED = "float64, float32, float16, int64, int32 (bfloat16 in safetensors too)"


class ContainerError(ValueError):
    """A file that cannot be read: what came, and what is allowed."""


@dataclass(frozen=True)
class Contents:
    """Arrays by name, float64 or int64, and texts by name."""

    arrays: dict[str, Array] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)


def read(path: Path) -> Contents:
    """The contents of a file, by its ending. Raises `ContainerError` or `OSError`."""
    readers = {".safetensors": read_safetensors, ".npz": read_npz}
    if path.suffix not in readers:
        raise ContainerError(f"{path.name} ends in {path.suffix or 'nothing'}; allowed: {', '.join(readers)}")
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise ContainerError(f"{path.name} has {size:,} bytes; at most {MOST_BYTES:,} are read")
    return readers[path.suffix](path.read_bytes())


# --- safetensors: eight bytes of header length, a JSON header, the bytes of the tensors ---


def read_safetensors(data: bytes) -> Contents:
    """Tensors by name and the entries of `__metadata__`. Raises `ContainerError`."""
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > min(HEADER_BYTES, len(data) - 8):
        raise ContainerError(
            f"the header is said to have {length:,} bytes; there are {max(0, len(data) - 8):,}, and at most"
            f" {HEADER_BYTES:,} are allowed"
        )
    header = _json(data[8 : 8 + length])
    texts = header.pop("__metadata__", {})
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise ContainerError("__metadata__ must be a mapping of names to strings")
    if len(header) > MOST_ARRAYS:
        raise ContainerError(f"there are {len(header):,} tensors; at most {MOST_ARRAYS:,} are read")
    body = data[8 + length :]
    places = {name: _place(name, entry, len(body)) for name, entry in header.items()}
    _refuse_overlap(places)
    return Contents({name: _tensor(header[name], body[slice(*place)]) for name, place in places.items()}, texts)


def _json(text: bytes) -> dict[str, Any]:
    """A JSON object none of whose names is given twice."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({name for name, _ in pairs}) != len(pairs):
            raise ContainerError("the header has a name twice")
        return dict(pairs)

    try:
        found = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
    except ContainerError:
        raise
    except (ValueError, RecursionError) as reason:
        raise ContainerError(f"the header is not JSON: {reason}") from None
    if not isinstance(found, dict):
        raise ContainerError(f"the header must be a JSON object, got {type(found).__name__}")
    return found


def _place(name: str, entry: Any, total: int) -> tuple[int, int]:
    """Where the bytes of a tensor begin and end."""
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= set(entry):
        raise ContainerError(f"{name}: an entry has dtype, shape and data_offsets, got {entry!r:.80}")
    if entry["dtype"] not in tuple(DTYPES):  # a list has no hash
        raise ContainerError(f"{name} is {entry['dtype']!r:.40}; allowed: {', '.join(DTYPES)}")
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not _whole_numbers(shape) or not _whole_numbers(offsets) or len(offsets) != 2:
        raise ContainerError(f"{name}: shape {shape!r:.60} and data_offsets {offsets!r:.60} must be whole numbers")
    begin, end = offsets
    size = math.prod(shape) * np.dtype(DTYPES[entry["dtype"]]).itemsize
    if not begin <= end <= total or end - begin != size:
        raise ContainerError(
            f"{name}: shape {shape!r:.60} needs {size:,} bytes, data_offsets are {begin:,} to {end:,} of {total:,}"
        )
    return begin, end


def _whole_numbers(values: Any) -> bool:
    return isinstance(values, list) and all(type(v) is int and 0 <= v < 2**48 for v in values)


def _refuse_overlap(places: Mapping[str, tuple[int, int]]) -> None:
    ordered = sorted(places, key=lambda name: places[name])
    for before, name in pairwise(ordered):
        if places[name][0] < places[before][1]:
            raise ContainerError(f"{before} and {name} overlap: bytes {places[before]} and {places[name]}")


def _tensor(entry: Mapping[str, Any], data: bytes) -> Array:
    values = np.frombuffer(data, DTYPES[entry["dtype"]]).reshape(entry["shape"])
    if entry["dtype"] == "BF16":  # the upper half of a float32
        values = (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.int64 if values.dtype.kind == "i" else np.float64)


# --- npz: a zip archive of .npy files ---


def read_npz(data: bytes) -> Contents:
    """Arrays by name, and 0-d arrays of strings as texts. Raises `ContainerError`."""
    found = Contents()
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            total = sum(entry.file_size for entry in entries)
            if len(entries) > MOST_ARRAYS or total > MOST_BYTES:
                raise ContainerError(
                    f"{len(entries):,} arrays unpack to {total:,} bytes; at most {MOST_ARRAYS:,} and {MOST_BYTES:,}"
                )
            for entry in entries:
                _add(found, entry.filename.removesuffix(".npy"), _unpacked(archive, entry))
    except (ContainerError, MemoryError):
        raise
    except Exception as reason:  # zipfile lets through what struct, zlib, lzma, codecs and seek raise
        raise ContainerError(f"this is no readable npz: {reason}") from None
    return found


def _unpacked(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """The bytes of one entry, no more than it says it has."""
    with archive.open(entry) as stream:
        data = stream.read(entry.file_size + 1)
    if len(data) != entry.file_size:
        raise ContainerError(f"{entry.filename} has not the {entry.file_size:,} bytes that it says")
    return data


def _add(found: Contents, name: str, data: bytes) -> None:
    if name in found.arrays or name in found.texts:
        raise ContainerError(f"{name} is there twice")
    stream = io.BytesIO(data)
    shape, fortran, dtype = _npy_header(name, stream)
    if dtype.str[1:] in ("f8", "f4", "f2", "i8", "i4"):
        values = _elements(name, stream.read(), shape, fortran, dtype)
        found.arrays[name] = values.astype(np.int64 if dtype.kind == "i" else np.float64)
    elif dtype.kind == "U" and shape == ():
        found.texts[name] = str(_elements(name, stream.read(), shape, fortran, dtype)[()])
    else:
        raise ContainerError(f"{name} is {dtype} of shape {shape}; allowed: {ALLOWED}, or a 0-d string")


def _npy_header(name: str, stream: io.BytesIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether the first index runs fastest, and dtype."""
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    try:
        return readers[np.lib.format.read_magic(stream)](stream)
    except Exception as reason:  # the header is a Python expression, and its parser raises what it likes
        raise ContainerError(f"{name} is no npy array: {str(reason)[:200]}") from None


def _elements(name: str, data: bytes, shape: tuple[int, ...], fortran: bool, dtype: np.dtype[Any]) -> Array:
    size = math.prod(shape) * dtype.itemsize
    if len(data) != size or any(length < 0 for length in shape):
        raise ContainerError(f"{name}: shape {shape} of {dtype} needs {size:,} bytes, there are {len(data):,}")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")
