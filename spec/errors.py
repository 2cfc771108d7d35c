"""Errors: one table of codes, each with a category and a message, and the order in which they are checked.

A code is qualified, since variant names repeat: `DecoderModelError.EmptyTokens`. Its category is the word a user
reasons with. A message names its payload in braces; `{source}` stands for the failure that caused this one, which is
kept as `__cause__` and lends its category. The reference raises from this table; the suite asks others for categories.
"""

import math
import string
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from decoderspec.spec.shown import MOST, cut, shown

CATEGORIES = (
    "configuration",
    "parameters",
    "component",
    "token_shape",
    "context",
    "vocabulary",
    "target_shape",
    "target_vocabulary",
    "numeric",
    "resource",
)
OF_ITS_CAUSE = "of its cause"  # stands for the category in the rows that wrap another failure
MAX_SCALARS = 2**40  # more parameters, or values in one stage, are refused before memory is touched


class SpecError(ValueError):
    """A refusal by the specification: `code`, `category` and the payload in `values`."""

    def __init__(self, code: str, category: str, message: str, values: dict[str, object]) -> None:
        super().__init__(message)
        self.code = code
        self.category = category
        self.values = values

    def chain(self) -> tuple[str, ...]:
        """The codes from this failure down to the one that caused it all."""
        cause = self.__cause__
        return (self.code, *(cause.chain() if isinstance(cause, SpecError) else ()))


@dataclass(frozen=True)
class ErrorRow:
    """One line of the table: `message` is a format string over the payload."""

    code: str
    category: str
    message: str

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the payload, in the order of the message."""
        names = (name for _, name, _, _ in string.Formatter().parse(self.message))
        return tuple(name for name in names if name is not None and name != "source")

    @property
    def wraps(self) -> bool:
        """Whether another failure causes this one."""
        return self.category == OF_ITS_CAUSE


def error(code: str, cause: SpecError | None = None, **values: object) -> SpecError:
    """The error of that code, ready to raise; the payload must be exactly the table's fields."""
    row = ERRORS[code]
    if set(values) != set(row.fields) or row.wraps != (cause is not None):
        raise TypeError(f"{code} carries {row.fields}, cause {row.wraps}; got {tuple(values)}, cause {cause!r}")
    words = {name: _written(value) for name, value in values.items()}
    category = row.category if cause is None else cause.category
    failure = SpecError(code, category, row.message.format(source=cause, **words), values)
    failure.__cause__ = cause
    return failure


@contextmanager
def owned_by(code: str, **values: object) -> Iterator[None]:
    """Attribute a refusal inside the `with` to an owner: raises the owner's error, caused by it."""
    try:
        yield
    except SpecError as cause:
        raise error(code, cause, **values) from cause


class _Written(str):
    """A value that is written already; a message that asks for its `repr` gets the same."""

    __repr__ = str.__str__


def _written(value: object) -> object:
    """What stands for a value in a message: itself where it is short, since the message says how it is written."""
    if isinstance(value, float):
        return debug(value)
    if isinstance(value, str):
        return value if len(value) <= MOST else _Written(cut(value, MOST))
    return value if type(value) is int and abs(value) < 10**MOST else _Written(shown(value))


def debug(value: float) -> str:
    """A number as the chapters print it (Rust's `{:?}`): `1e-7`, `10000.0`, `NaN`, `inf`."""
    if math.isnan(value):
        return "NaN"
    mantissa, _, exponent = repr(float(value)).partition("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent)}" if exponent else mantissa


def _family(family: str, *rows: tuple[str, str, str]) -> dict[str, ErrorRow]:
    return {f"{family}.{name}": ErrorRow(f"{family}.{name}", *rest) for name, *rest in rows}


# Chapter 32 of the course the specification grew from, in the order of its enumeration.
_MODEL = _family(
    "DecoderModelError",
    ("EmptyVocabulary", "configuration", "decoder vocabulary must contain at least one token"),
    ("ZeroModelWidth", "configuration", "decoder model width must be nonzero"),
    ("ZeroHeadCount", "configuration", "decoder head count must be nonzero"),
    (
        "ModelWidthNotDivisible",
        "configuration",
        "decoder model width {model_width} must be divisible by head count {heads}",
    ),
    ("OddHeadWidth", "configuration", "decoder per-head width must be even for RoPE, got {head_width}"),
    ("ZeroFeedForwardWidth", "configuration", "decoder feed-forward width must be nonzero"),
    ("ZeroPositionCapacity", "configuration", "decoder context capacity must be nonzero"),
    ("InvalidRopeBase", "configuration", "decoder RoPE base must be finite and positive, got {value}"),
    ("InvalidRmsEpsilon", "configuration", "decoder RMSNorm epsilon must be finite and nonnegative, got {value}"),
    ("LayerAllocationFailed", "resource", "could not reserve {layers} decoder blocks"),
    ("ParameterAllocationFailed", "resource", "could not reserve {tensors} decoder parameter handles"),
    ("ParameterCountMismatch", "parameters", "decoder parameter count must be {expected}, got {actual}"),
    ("TargetAllocationFailed", "resource", "could not reserve {targets} decoder target indices"),
    ("Embedding", OF_ITS_CAUSE, "token embedding: {source}"),
    ("Block", OF_ITS_CAUSE, "decoder block {layer}: {source}"),
    ("FinalNorm", OF_ITS_CAUSE, "final RMSNorm: {source}"),
    ("Initialization", OF_ITS_CAUSE, "{source}"),
    ("LayerCountMismatch", "component", "decoder config needs {expected} blocks, but received {actual}"),
    ("EmbeddingVocabularyMismatch", "component", "token embedding vocabulary must be {expected}, got {actual}"),
    ("EmbeddingWidthMismatch", "component", "token embedding width must be {expected}, got {actual}"),
    ("BlockModelWidthMismatch", "component", "decoder block {layer} model width must be {expected}, got {actual}"),
    ("BlockHeadCountMismatch", "component", "decoder block {layer} head count must be {expected}, got {actual}"),
    (
        "BlockFeedForwardWidthMismatch",
        "component",
        "decoder block {layer} feed-forward width must be {expected}, got {actual}",
    ),
    (
        "BlockPositionCapacityMismatch",
        "component",
        "decoder block {layer} position capacity must be {expected}, got {actual}",
    ),
    ("BlockRopeBaseMismatch", "component", "decoder block {layer} RoPE base must be {expected}, got {actual}"),
    (
        "BlockRmsEpsilonMismatch",
        "component",
        "decoder block {layer} {norm} RMSNorm epsilon must be {expected}, got {actual}",
    ),
    ("FinalNormWidthMismatch", "component", "final RMSNorm width must be {expected}, got {actual}"),
    ("FinalNormEpsilonMismatch", "component", "final RMSNorm epsilon must be {expected}, got {actual}"),
    (
        "ParameterNameMismatch",
        "parameters",
        'decoder parameter {index} must be named "{expected}", got "{actual}"',
    ),
    ("TokenRank", "token_shape", "decoder token shape must have rank two [batch, tokens], got rank {rank}"),
    ("EmptyBatch", "token_shape", "decoder batch must be nonempty"),
    ("EmptyTokens", "token_shape", "decoder token sequence must be nonempty"),
    ("TokenCountOverflow", "resource", "decoder token count overflows for batch {batch} and length {tokens}"),
    ("TokenCountMismatch", "token_shape", "decoder token shape needs {expected} IDs, but received {actual}"),
    (
        "ContextLengthExceeded",
        "context",
        "decoder sequence length {tokens} exceeds context capacity {max_positions}",
    ),
    ("TargetCountMismatch", "target_shape", "decoder loss needs {expected} targets, but received {actual}"),
    (
        "TargetIdOutOfBounds",
        "target_vocabulary",
        "target token ID {id} at flat position {position} is out of bounds for vocabulary size {vocabulary_size}",
    ),
    ("Autodiff", OF_ITS_CAUSE, "decoder {stage}: {source}"),
)

# Chapter 31, in the order of its enumeration.
_BLOCK = _family(
    "DecoderBlockError",
    ("AttentionNorm", OF_ITS_CAUSE, "attention RMSNorm: {source}"),
    ("Attention", OF_ITS_CAUSE, "causal multi-head attention: {source}"),
    ("AttentionResidual", OF_ITS_CAUSE, "attention residual merge: {source}"),
    ("FeedForwardNorm", OF_ITS_CAUSE, "feed-forward RMSNorm: {source}"),
    ("FeedForward", OF_ITS_CAUSE, "SwiGLU feed-forward: {source}"),
    ("FeedForwardResidual", OF_ITS_CAUSE, "feed-forward residual merge: {source}"),
    ("ComponentWidthMismatch", "component", "decoder-block {component} width must be {expected}, got {actual}"),
    ("Initialization", OF_ITS_CAUSE, "{source}"),
)

# The families that the chapters name and leave to earlier ones: variants, payloads and messages are ours.
_COMPONENTS = {
    **_family(
        "EmbeddingError",
        ("AllocationFailed", "resource", "could not reserve a table of {vocabulary_size} rows of width {width}"),
        ("Parameter", OF_ITS_CAUSE, "{source}"),
        (
            "TokenIdOutOfBounds",
            "vocabulary",
            "token ID {id} at flat position {position} is out of bounds for vocabulary size {vocabulary_size}",
        ),
    ),
    **_family(
        "RmsNormError",
        ("ZeroFeatureWidth", "configuration", "feature width must be nonzero"),
        ("InvalidEpsilon", "configuration", "epsilon must be finite and nonnegative, got {value}"),
        ("Parameter", OF_ITS_CAUSE, "{source}"),
        ("InputRank", "token_shape", "input must have a feature axis, got rank {rank}"),
        ("InputWidth", "token_shape", "input width must be {expected}, got {actual}"),
        ("ZeroEnergyRow", "numeric", "row {row} has zero mean square, and epsilon is zero"),
        ("Autodiff", OF_ITS_CAUSE, "{source}"),
    ),
    **_family(
        "MultiHeadAttentionError",
        ("ZeroModelWidth", "configuration", "model width must be nonzero"),
        ("ZeroHeadCount", "configuration", "head count must be nonzero"),
        (
            "ModelWidthNotDivisible",
            "configuration",
            "model width {model_width} must be divisible by head count {heads}",
        ),
        ("Rope", OF_ITS_CAUSE, "RoPE: {source}"),
        ("Parameter", OF_ITS_CAUSE, "{source}"),
        ("InputRank", "token_shape", "input must have rank three [batch, tokens, features], got rank {rank}"),
        ("EmptyTokens", "token_shape", "token axis must be nonempty"),
    ),
    **_family(
        "RopeError",
        ("OddFeatureWidth", "configuration", "feature width must be even, got {width}"),
        ("ZeroPositionCapacity", "configuration", "position capacity must be nonzero"),
        ("InvalidBase", "configuration", "base must be finite and positive, got {value}"),
        ("InvalidOffset", "context", "position offset must be a nonnegative integer, got {value!r}"),
        (
            "PositionOutOfRange",
            "context",
            "{tokens} positions from {offset} exceed position capacity {max_positions}",
        ),
    ),
    **_family(
        "SwiGluError",
        ("ZeroInputWidth", "configuration", "input width must be nonzero"),
        ("ZeroHiddenWidth", "configuration", "hidden width must be nonzero"),
        ("ZeroOutputWidth", "configuration", "output width must be nonzero"),
        ("Parameter", OF_ITS_CAUSE, "{source}"),
    ),
    **_family("ResidualError", ("ShapeMismatch", "component", "cannot add {branch} to {stream}")),
    **_family(
        "InitializationError",
        ("DuplicateName", "component", 'parameter name "{name}" is used twice'),
        ("SharedArray", "component", "{name} and {other} are the same array"),
    ),
    **_family("TensorAutodiffError", ("Released", "component", "the record has been pulled back already")),
}

# What Rust's types ruled out, and Python's do not.
_PYTHON = {
    **_family(
        "ConfigError",
        ("NotAnInteger", "configuration", "{field} must be an integer, got {value!r}"),
        ("Negative", "configuration", "{field} must not be negative, got {value}"),
        ("NotANumber", "configuration", "{field} must be a real number, got {value!r}"),
    ),
    **_family("GeneratorError", ("Seed", "configuration", "seed must be an integer in 0..2^64-1, got {seed!r}")),
    **_family(
        "ParameterError",
        ("Missing", "parameters", "parameter {name} is missing"),
        ("Unknown", "parameters", "parameter {name} does not belong to this configuration"),
        ("Rank", "parameters", "{name} must have rank {expected}, got {actual}"),
        ("Shape", "parameters", "{name} must have shape {expected}, got {actual}"),
        ("NotFinite", "parameters", "{name} holds values that are not finite"),
        ("Dtype", "parameters", "{name} must hold real numbers, got {dtype}"),
    ),
    **_family(
        "TokenError",
        ("Ragged", "token_shape", "token IDs must form a rectangular array [batch, tokens]"),
        ("NotIntegers", "token_shape", "token IDs must be integers, got {dtype}"),
    ),
    **_family(
        "TargetError",
        ("Ragged", "target_shape", "target IDs must form a rectangular array [batch, tokens]"),
        ("Shape", "target_shape", "targets must have shape {expected}, got {actual}"),
        ("NotIntegers", "target_shape", "target IDs must be integers, got {dtype}"),
    ),
    **_family(
        "InputError",
        ("NotReal", "token_shape", "input must be an array of real numbers, got {dtype}"),
        ("NotFinite", "numeric", "input holds values that are not finite"),
        ("UpstreamShape", "token_shape", "gradient of the output must have shape {expected}, got {actual}"),
    ),
    **_family(
        "ResourceError",
        ("StageTooLarge", "resource", "stage {stage} would hold {scalars} values, more than {allowed}"),
    ),
}

ERRORS = {**_MODEL, **_BLOCK, **_COMPONENTS, **_PYTHON}

UNREACHABLE = {  # code -> why no Python input provokes it; nothing is built for these
    "DecoderModelError.ParameterAllocationFailed": "LayerAllocationFailed comes first, and Python does not overflow",
    "DecoderModelError.TargetAllocationFailed": "the targets arrive as an array, which holds its memory already",
    "DecoderModelError.TokenCountMismatch": "an array carries its own shape",
    "DecoderModelError.Autodiff": "the tape of a model is made and consumed inside one call",
    "DecoderBlockError.AttentionResidual": "the widths of all components and of the input have been compared",
    "DecoderBlockError.FeedForwardResidual": "the widths of all components have been compared",
    "ResidualError.ShapeMismatch": "the widths of all components and of the input have been compared",
}

_CONFIGURATION = (
    "ConfigError.NotAnInteger",
    "ConfigError.Negative",
    "ConfigError.NotANumber",
    *(code for code, row in _MODEL.items() if row.category == "configuration"),
    "EmbeddingError.AllocationFailed",
    "DecoderModelError.LayerAllocationFailed",
)
_VALUES = ("ParameterError.Dtype", "ParameterError.Shape", "ParameterError.NotFinite")
_TOKENS = (
    "TokenError.Ragged",
    "DecoderModelError.TokenRank",
    "DecoderModelError.EmptyBatch",
    "DecoderModelError.EmptyTokens",
    "DecoderModelError.ContextLengthExceeded",
    "DecoderModelError.TokenCountOverflow",
    "ResourceError.StageTooLarge",
    "TokenError.NotIntegers",
)
_TARGETS = (
    "TargetError.Ragged",
    "DecoderModelError.TargetCountMismatch",
    "TargetError.Shape",
    "TargetError.NotIntegers",
    "DecoderModelError.TargetIdOutOfBounds",
)
_IDS = ("EmbeddingError.TokenIdOutOfBounds", "RmsNormError.ZeroEnergyRow")
ORDER = {  # operation -> what is checked, first to last, by the code at the end of the chain
    "configuration": _CONFIGURATION,
    "build": (*_CONFIGURATION, "ParameterError.Missing", "ParameterError.Unknown", *_VALUES),
    "from_parameters": (
        *_CONFIGURATION,
        "DecoderModelError.ParameterCountMismatch",
        "DecoderModelError.ParameterNameMismatch",
        *_VALUES,
        "InitializationError.SharedArray",
    ),
    "from_parts": (
        *_CONFIGURATION,
        "DecoderModelError.EmbeddingVocabularyMismatch",
        "DecoderModelError.EmbeddingWidthMismatch",
        "DecoderModelError.LayerCountMismatch",
        "DecoderModelError.BlockModelWidthMismatch",
        "DecoderModelError.BlockHeadCountMismatch",
        "DecoderModelError.BlockFeedForwardWidthMismatch",
        "DecoderModelError.BlockPositionCapacityMismatch",
        "DecoderModelError.BlockRopeBaseMismatch",
        "DecoderModelError.BlockRmsEpsilonMismatch",
        "DecoderModelError.FinalNormWidthMismatch",
        "DecoderModelError.FinalNormEpsilonMismatch",
        "DecoderModelError.ParameterNameMismatch",
        "InitializationError.SharedArray",
    ),
    "forward": (*_TOKENS, *_IDS),
    "loss": (*_TOKENS, *_TARGETS, *_IDS),
    "block": (
        "ConfigError.NotAnInteger",
        "ConfigError.Negative",
        "ConfigError.NotANumber",
        "RmsNormError.ZeroFeatureWidth",
        "RmsNormError.InvalidEpsilon",
        "MultiHeadAttentionError.ZeroHeadCount",
        "MultiHeadAttentionError.ModelWidthNotDivisible",
        "RopeError.OddFeatureWidth",
        "RopeError.ZeroPositionCapacity",
        "RopeError.InvalidBase",
        "SwiGluError.ZeroHiddenWidth",
        "DecoderModelError.LayerAllocationFailed",
    ),
    "block_from_parts": (
        "DecoderBlockError.ComponentWidthMismatch",
        "InitializationError.DuplicateName",
        "InitializationError.SharedArray",
    ),
    "block_forward": (
        "TensorAutodiffError.Released",
        "InputError.NotReal",
        "ResourceError.StageTooLarge",
        "InputError.NotFinite",
        "RmsNormError.InputRank",
        "RmsNormError.InputWidth",
        "RmsNormError.ZeroEnergyRow",
        "MultiHeadAttentionError.InputRank",
        "MultiHeadAttentionError.EmptyTokens",
        "RopeError.InvalidOffset",
        "RopeError.PositionOutOfRange",
    ),
}
