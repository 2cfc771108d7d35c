"""What an implementation hands out, read as NumPy: any array library, device and floating dtype.

All by duck typing: no array library is imported here; whoever handed the value out has imported its own.
"""

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoderspec.spec.precision import FORMATS, Format


class ArrayError(TypeError):
    """A value that is not an array of real numbers."""


def to_numpy(value: Any, most: int | None = None) -> tuple[NDArray[np.float64], str]:
    """A fresh float64 copy of any shape, and the name of the dtype in which it came (`bfloat16`, `int64`).

    Takes anything with `detach`, `__array__` or `__dlpack__`, numbers, and nested lists of numbers. Raises
    `ArrayError` for strings, objects, booleans, complex numbers, ragged lists, masked arrays and what cannot be read,
    and for more values than `most`, before they are copied: a view may claim any number without holding them.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise ArrayError("expected an array of real numbers, got a masked array: what is masked has no value")
    try:
        array, dtype = _read(value)
    except Exception as reason:  # whatever the library of the value raises
        raise ArrayError(f"cannot read {_described(value)} as an array: {reason}") from reason
    # The float formats of ml_dtypes have the kind of raw bytes, told from records by having no fields.
    is_real = array.dtype.kind in "fiu" or (array.dtype.kind == "V" and "float" in dtype)
    if not is_real or array.dtype.names is not None:
        raise ArrayError(f"expected an array of real numbers, got {_described(value)} of dtype {dtype}")
    if most is not None and array.size > most:
        raise ArrayError(f"got an array of shape {array.shape}: no right answer has that many values")
    return np.array(array, dtype=np.float64, order="C"), dtype


def _read(value: Any) -> tuple[NDArray[Any], str]:
    """The value as some NumPy array, widened where NumPy lacks its dtype, and the name of its own dtype."""
    value = value.detach().cpu() if hasattr(value, "detach") else value
    dtype = str(getattr(value, "dtype", "")).rpartition(".")[2]  # `torch.bfloat16`, `mlx.core.float32`
    if "bfloat16" in dtype or "float8" in dtype:
        value = _widened(value)
    if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
        array = _from_dlpack(value)
    else:
        array = np.asarray(value)
    return array, dtype or str(array.dtype)


def _widened(value: Any) -> Any:
    """The same numbers in float32, by the library's own cast: `float()`, or `astype` to its own float32."""
    if hasattr(value, "float"):
        return value.float()
    float32 = getattr(sys.modules.get(type(value).__module__), "float32", np.float32)
    return value.astype(float32)


def _from_dlpack(value: Any) -> NDArray[Any]:
    on_cpu = value.__dlpack_device__()[0] == 1
    # Copying from another device is newer than the oldest NumPy taken here: asked for only where needed.
    return np.from_dlpack(value) if on_cpu else np.from_dlpack(value, device="cpu", copy=True)


def _described(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


def round_to(value: NDArray[Any], form: Format) -> NDArray[Any]:
    """The nearest values of that format, its subnormals included (its largest value is the caller's business)."""
    if form.bits == FORMATS["float64"].bits:
        return value
    _, exponent = np.frexp(value)
    places = form.bits - np.maximum(exponent, form.lowest + 1)
    rounded: NDArray[Any] = np.ldexp(np.rint(np.ldexp(value, places)), -places)
    return rounded
