"""Number formats and precision recipes: what an implementation declares about its rounding (section 8 of the text).

A recipe is a word or a mapping. The keys of a mapping are the general ones below or the suffix of a stage, the
values are formats. What is not given follows from what is:

    results      stored results of every stage          float64
    weights      the parameters handed to `build`       results
    accumulate   sums, statistics, exponentials         results, but float32 for 16-bit results
    products     operands of matrix products            results
    tables       rotary frequencies, angles, cos, sin   accumulate
    loss         the loss and everything inside it      accumulate
    gradients    stored gradients                       results
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from decoderspec.spec.shown import cut, shown
from decoderspec.spec.stages import BLOCK_STAGES


class DeclarationError(ValueError):
    """A declaration that the suite cannot read: what came, and what is allowed."""

    def __init__(self, message: str) -> None:
        super().__init__(cut(message))


@dataclass(frozen=True)
class Format:
    """A binary floating-point format: unit roundoff `2^-bits`, smallest additive error, largest finite value."""

    name: str
    bits: int  # of the significand, the hidden one included
    lowest: int  # exponent of the smallest normal number
    tiny: float  # what underflow may cost: the smallest normal, or half the smallest subnormal where they are kept
    largest: float

    @property
    def unit(self) -> float:
        """Unit roundoff: the largest relative error of one rounding to nearest."""
        return 2.0**-self.bits


FORMATS = {
    "float64": Format("float64", 53, -1022, 2.0**-1022, 1.7976931348623157e308),
    "float32": Format("float32", 24, -126, 2.0**-126, 3.4028234663852886e38),
    "tensorfloat32": Format("tensorfloat32", 11, -126, 2.0**-126, 3.4011621342146535e38),
    "float16": Format("float16", 11, -14, 2.0**-25, 65504.0),
    "bfloat16": Format("bfloat16", 8, -126, 2.0**-126, 3.3895313892515355e38),
}
GENERAL_KEYS = ("weights", "results", "accumulate", "products", "tables", "loss", "gradients")
STAGE_KEYS = ("embedding", *BLOCK_STAGES, "final_norm", "logits")
NAMED_RECIPES: dict[str, dict[str, str]] = {
    "bfloat16-mixed": {"weights": "float32", "results": "bfloat16", "gradients": "float32"},
    "float32-tf32": {"results": "float32", "accumulate": "float32", "products": "tensorfloat32"},
    "float32-kv16": {"results": "float32", "attention.rotated_key": "float16", "attention.value": "float16"},
}


@dataclass(frozen=True)
class Recipe:
    """Which format each part of a computation rounds to."""

    declared: str | Mapping[str, str]
    weights: Format
    results: Format
    accumulate: Format
    products: Format  # what the operands of a matrix product are rounded to
    tables: Format
    loss: Format
    gradients: Format
    stages: Mapping[str, Format] = field(default_factory=dict)  # by the suffix of the stage

    def stored(self, suffix: str) -> Format:
        """The format that the results of a stage are stored in."""
        return self.stages.get(suffix, self.results)

    def inner(self, suffix: str) -> Format:
        """The format of the statistics and sums inside a stage: its own when declared, but float32 inside 16 bits."""
        return _at_least_float32(self.stages[suffix]) if suffix in self.stages else self.accumulate

    @property
    def used(self) -> tuple[Format, ...]:
        """Every format that some rounding uses."""
        general = (self.results, self.accumulate, self.products, self.tables, self.loss, self.gradients)
        return tuple(dict.fromkeys((*general, *self.stages.values())))


def _at_least_float32(form: Format) -> Format:
    return FORMATS["float32"] if form.bits < FORMATS["float32"].bits else form


def recipe(declared: str | Mapping[str, str]) -> Recipe:
    """Read a declaration: a format, a named recipe, or a mapping. Raises `DeclarationError`."""
    if isinstance(declared, str):
        mapping = NAMED_RECIPES.get(declared, {"results": declared})
        if declared not in NAMED_RECIPES and declared not in FORMATS:
            allowed = ", ".join([*FORMATS, *NAMED_RECIPES])
            raise DeclarationError(f"precision {shown(declared)} is not known; allowed: {allowed}, or a mapping")
    elif isinstance(declared, Mapping):
        mapping = dict(declared)
    else:
        raise DeclarationError(f"precision must be a word or a mapping, got {type(declared).__name__}")
    return _read(declared, {key: _format(key, value) for key, value in mapping.items()})


def _format(key: str, value: object) -> Format:
    if key not in GENERAL_KEYS and key not in STAGE_KEYS:
        allowed = ", ".join(GENERAL_KEYS)
        raise DeclarationError(f"precision has no part {shown(key)}; allowed: {allowed}, or a stage such as ffn.gate")
    if not isinstance(value, str) or value not in FORMATS:
        raise DeclarationError(f"precision of {key} is {shown(value)}; allowed: {', '.join(FORMATS)}")
    return FORMATS[value]


def _read(declared: str | Mapping[str, str], given: Mapping[str, Format]) -> Recipe:
    results = given.get("results", FORMATS["float64"])
    accumulate = given.get("accumulate", _at_least_float32(results))
    return Recipe(
        declared=declared,
        weights=given.get("weights", results),
        results=results,
        accumulate=accumulate,
        products=given.get("products", results),
        tables=given.get("tables", accumulate),
        loss=given.get("loss", accumulate),
        gradients=given.get("gradients", results),
        stages={key: form for key, form in given.items() if key in STAGE_KEYS},
    )
