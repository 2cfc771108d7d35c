"""What a valid configuration, parameter set, token batch and target batch are, checked once at the public boundary.

The order of the checks is data too: `spec.errors.ORDER` lists the codes of each operation as they are checked here.
"""

import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from decoderspec.spec.config import Config
from decoderspec.spec.errors import MAX_SCALARS, SpecError, error, owned_by
from decoderspec.spec.parameters import TABLE, iterate_parameters, parameter_count
from decoderspec.spec.shown import shown
from decoderspec.spec.stages import BLOCK_STAGES, stage_shape, suffix

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Record = TypeVar("Record", bound="DataclassInstance")

INTEGER_FIELDS = ("vocabulary_size", "model_width", "heads", "feed_forward_width", "layers", "max_positions")
REAL_FIELDS = ("rope_base", "rms_epsilon")
BLOCK_OWNERS = {  # the start of a parameter's name within its block -> who owns it, outermost first
    "attention_norm.": ("DecoderBlockError.AttentionNorm", "RmsNormError.Parameter"),
    "attention.": ("DecoderBlockError.Attention", "MultiHeadAttentionError.Parameter"),
    "ffn_norm.": ("DecoderBlockError.FeedForwardNorm", "RmsNormError.Parameter"),
    "ffn.": ("DecoderBlockError.FeedForward", "SwiGluError.Parameter"),
}


# --- Configuration ---


def validate_config(config: Config) -> Config:
    """The configuration in Python's own numbers, which do not overflow; raises the first error, also for N = 0."""
    config = plain_numbers(config, INTEGER_FIELDS, REAL_FIELDS)
    _validate_sizes(config)
    if not math.isfinite(config.rope_base) or config.rope_base <= 0:
        raise error("DecoderModelError.InvalidRopeBase", value=config.rope_base)
    if not math.isfinite(config.rms_epsilon) or config.rms_epsilon < 0:
        raise error("DecoderModelError.InvalidRmsEpsilon", value=config.rms_epsilon)
    _validate_amount(config)
    return config


def plain_numbers(config: Record, integers: Sequence[str], reals: Sequence[str]) -> Record:
    """The record with its fields as `int` and `float`; raises `ConfigError` where a field is no such number."""
    for field in integers:
        value = getattr(config, field)
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Integral):
            raise error("ConfigError.NotAnInteger", field=field, value=value)
    for field in integers:
        if getattr(config, field) < 0:
            raise error("ConfigError.Negative", field=field, value=getattr(config, field))
    for field in reals:
        value = getattr(config, field)
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
            raise error("ConfigError.NotANumber", field=field, value=value)
    plain = {field: int(getattr(config, field)) for field in integers}
    return replace(config, **plain, **{field: _as_float(getattr(config, field)) for field in reals})


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer beyond every float
        return math.inf if value > 0 else -math.inf


def _validate_sizes(config: Config) -> None:
    if config.vocabulary_size == 0:
        raise error("DecoderModelError.EmptyVocabulary")
    if config.model_width == 0:
        raise error("DecoderModelError.ZeroModelWidth")
    if config.heads == 0:
        raise error("DecoderModelError.ZeroHeadCount")
    if config.model_width % config.heads:
        raise error("DecoderModelError.ModelWidthNotDivisible", model_width=config.model_width, heads=config.heads)
    if config.head_width % 2:
        raise error("DecoderModelError.OddHeadWidth", head_width=config.head_width)
    if config.feed_forward_width == 0:
        raise error("DecoderModelError.ZeroFeedForwardWidth")
    if config.max_positions == 0:
        raise error("DecoderModelError.ZeroPositionCapacity")


def _validate_amount(config: Config) -> None:
    """Refuse what no memory holds before any is touched: the table on its own first, then the whole."""
    if parameter_count(replace(config, layers=0)) > MAX_SCALARS:
        with owned_by("DecoderModelError.Embedding"):
            raise error(
                "EmbeddingError.AllocationFailed", vocabulary_size=config.vocabulary_size, width=config.model_width
            )
    if parameter_count(config) > MAX_SCALARS:
        raise error("DecoderModelError.LayerAllocationFailed", layers=config.layers)


def validate_seed(seed: Any) -> int:
    """The seed as a Python integer in `0..2^64-1`."""
    is_integer = isinstance(seed, numbers.Integral) and not isinstance(seed, bool)
    if not is_integer or not 0 <= seed < 2**64:
        raise error("GeneratorError.Seed", seed=seed)
    return int(seed)


# --- Parameters ---


def validate_parameters(config: Config, parameters: Mapping[str, ArrayLike]) -> dict[str, NDArray[np.float64]]:
    """Fresh float64 copies in canonical order, from parameters in any order; every name first, then every value.

    Names are walked, not listed: the first one missing ends the walk, however many layers are claimed.
    """
    shapes = {}
    for name, shape in iterate_parameters(config):
        if name not in parameters:
            raise error("ParameterError.Missing", name=name)
        shapes[name] = shape
    for name in parameters:
        if name not in shapes:
            raise error("ParameterError.Unknown", name=name)
    return {name: validate_value(name, shape, parameters[name]).copy() for name, shape in shapes.items()}


def validate_parameter(config: Config, name: str, value: ArrayLike) -> NDArray[np.float64]:
    """The value of one parameter, checked as in `validate_parameters`."""
    for known, shape in iterate_parameters(config):
        if known == name:
            return validate_value(name, shape, value)
    raise error("ParameterError.Unknown", name=name)


def validate_value(name: str, shape: tuple[int, ...], value: ArrayLike) -> NDArray[np.float64]:
    """Finite real numbers of that shape as float64; no copy where the value is such an array already."""
    array = validate_real(name, value)
    if array.shape != shape:
        raise error("ParameterError.Shape", name=name, expected=shape, actual=array.shape)
    converted = np.asarray(array, dtype=np.float64)
    if not np.isfinite(converted).all():
        raise error("ParameterError.NotFinite", name=name)
    return converted


def validate_real(name: str, value: ArrayLike) -> NDArray[Any]:
    """An array of real numbers, whatever its shape; booleans, complex numbers, objects and ragged lists are none."""
    if isinstance(value, np.ma.MaskedArray):
        raise error("ParameterError.Dtype", name=name, dtype="a masked array")
    try:
        array = np.asarray(value)
    except ValueError:
        raise error("ParameterError.Dtype", name=name, dtype="ragged lists") from None
    except MemoryError:
        raise
    except Exception as reason:  # whatever the library of the value raises
        raise error("ParameterError.Dtype", name=name, dtype=_unreadable(value, reason)) from None
    if array.dtype.kind not in "fiu":
        raise error("ParameterError.Dtype", name=name, dtype=str(array.dtype))
    return array


def validate_parameter_layout(config: Config, parameters: Sequence[tuple[str, ArrayLike]]) -> None:
    """Configuration, count, name at every index, then dtype, shape and finiteness of every value. Binds nothing."""
    config = validate_config(config)
    expected = 2 + 9 * config.layers
    if len(parameters) != expected:
        raise error("DecoderModelError.ParameterCountMismatch", expected=expected, actual=len(parameters))
    validate_parameter_names(config, [name for name, _ in parameters])
    for (name, shape), (_, value) in zip(iterate_parameters(config), parameters, strict=True):
        owned_value(name, shape, value)


def validate_parameter_names(config: Config, names: Iterable[str]) -> None:
    """Every name stands at its canonical index."""
    for index, ((expected, _), actual) in enumerate(zip(iterate_parameters(config), names, strict=True)):
        if actual != expected:
            raise error("DecoderModelError.ParameterNameMismatch", index=index, expected=expected, actual=actual)


def owned_value(name: str, shape: tuple[int, ...], value: ArrayLike) -> NDArray[np.float64]:
    """`validate_value` of a canonical name, its refusal attributed to the component that owns the parameter."""
    if name == TABLE:
        with owned_by("DecoderModelError.Embedding"), owned_by("EmbeddingError.Parameter"):
            return validate_value(name, shape, value)
    if not name.startswith("blocks."):
        with owned_by("DecoderModelError.FinalNorm"), owned_by("RmsNormError.Parameter"):
            return validate_value(name, shape, value)
    place, layer = suffix(name), int(name.split(".")[1])
    block, component = next(owner for start, owner in BLOCK_OWNERS.items() if place.startswith(start))
    with owned_by("DecoderModelError.Block", layer=layer), owned_by(block), owned_by(component):
        return validate_value(name, shape, value)


# --- Tokens and targets ---


def validate_tokens(config: Config, tokens: ArrayLike) -> NDArray[np.int64]:
    """The token ids as int64 `[B, T]`; shape and context are checked before the ids themselves."""
    ids = validate_token_shape(config, tokens)
    validate_token_ids(config, ids)
    return ids.astype(np.int64)


def validate_loss(config: Config, tokens: ArrayLike, targets: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Token and target ids `[B, T]`: token shape, context, target count, target ids, and only then token ids."""
    ids = validate_token_shape(config, tokens)
    wanted = validate_targets(config, ids, targets)
    validate_token_ids(config, ids)
    return ids.astype(np.int64), wanted


def validate_token_shape(config: Config, tokens: ArrayLike) -> NDArray[Any]:
    """The ids as some array of integers: rank two, neither axis empty, T at most `max_positions`."""
    ids = _array(tokens, "TokenError")
    if ids.ndim != 2:
        raise error("DecoderModelError.TokenRank", rank=ids.ndim)
    batch, length = ids.shape
    if batch == 0:
        raise error("DecoderModelError.EmptyBatch")
    if length == 0:
        raise error("DecoderModelError.EmptyTokens")
    if length > config.max_positions:
        raise error("DecoderModelError.ContextLengthExceeded", tokens=length, max_positions=config.max_positions)
    if batch * length > MAX_SCALARS:  # a broadcast view claims any number of ids without holding them
        raise error("DecoderModelError.TokenCountOverflow", batch=batch, tokens=length)
    validate_stage_sizes(config, batch, length, (*(BLOCK_STAGES if config.layers else ()), "final_norm", "logits"))
    _require_integers(ids, "TokenError", tokens)
    return ids


def validate_stage_sizes(config: Config, batch: int, tokens: int, stages: Iterable[str]) -> None:
    """No stage holds more than `MAX_SCALARS` values."""
    for stage in stages:
        scalars = math.prod(stage_shape(stage, config, batch, tokens))
        if scalars > MAX_SCALARS:
            raise error("ResourceError.StageTooLarge", stage=stage, scalars=scalars, allowed=MAX_SCALARS)


def validate_token_ids(config: Config, ids: NDArray[Any]) -> None:
    """Every id lies in `0..V-1`; negative ids are never wrapped around."""
    for position in _outside(config, ids):
        with owned_by("DecoderModelError.Embedding"):
            raise _out_of_bounds("EmbeddingError.TokenIdOutOfBounds", config, ids, int(position))


def validate_targets(config: Config, ids: NDArray[Any], targets: ArrayLike) -> NDArray[np.int64]:
    """The target ids as int64 in the shape of the tokens: one for each token, `[B, T]` or flat, each in `0..V-1`."""
    wanted = _array(targets, "TargetError")
    if wanted.size != ids.size:
        raise error("DecoderModelError.TargetCountMismatch", expected=ids.size, actual=wanted.size)
    if wanted.shape not in (ids.shape, (ids.size,)):
        raise error("TargetError.Shape", expected=ids.shape, actual=wanted.shape)
    _require_integers(wanted, "TargetError", targets)
    for position in _outside(config, wanted):
        raise _out_of_bounds("DecoderModelError.TargetIdOutOfBounds", config, wanted, int(position))
    return wanted.reshape(ids.shape).astype(np.int64)


def _outside(config: Config, ids: NDArray[Any]) -> NDArray[np.int64]:
    """Flat position of the first id that is no row of the table; empty when all are."""
    return np.flatnonzero((ids < 0) | (ids >= config.vocabulary_size))[:1]


def _out_of_bounds(code: str, config: Config, ids: NDArray[Any], position: int) -> SpecError:
    return error(code, position=position, id=int(ids.flat[position]), vocabulary_size=config.vocabulary_size)


def _array(values: ArrayLike, family: str) -> NDArray[Any]:
    if isinstance(values, np.ma.MaskedArray):
        raise error(f"{family}.NotIntegers", dtype="a masked array")
    try:
        return np.asarray(values)
    except ValueError:
        raise error(f"{family}.Ragged") from None
    except MemoryError:
        raise
    except Exception as reason:
        raise error(f"{family}.NotIntegers", dtype=_unreadable(values, reason)) from None


def _unreadable(value: object, reason: Exception) -> str:
    return f"a value of type {type(value).__name__} that cannot be read: {shown(reason)}"


def _require_integers(array: NDArray[Any], family: str, given: ArrayLike) -> None:
    """Integers of any width, Python's own included; a list may hide booleans among integers, an array cannot."""
    if array.dtype.kind in "iu" and not isinstance(given, (list, tuple)):
        return
    elements = array if array.dtype.kind == "O" else np.asarray(given, dtype=object)
    kinds = {type(element) for element in elements.flat} if array.dtype.kind in "iuO" else set()
    if kinds & {bool, np.bool_}:
        raise error(f"{family}.NotIntegers", dtype="bool")
    if not kinds or not all(issubclass(kind, numbers.Integral) for kind in kinds):
        raise error(f"{family}.NotIntegers", dtype=str(array.dtype))
