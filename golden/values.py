"""Golden values beyond the fixtures: a few larger seeded models with the oracle's logits, loss and gradients.

Kept in `values.json`, which needs no Python to be read: every number is a decimal string, arrays are flat and
row-major beside their shape. Computing them takes about a minute, so tests only sample what is kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import mpmath
import numpy as np

from decoderspec import __version__
from decoderspec.reference import oracle
from decoderspec.reference.limits import FALSE_ALARMS, GRADIENT_FALSE_ALARMS, worst_allowed
from decoderspec.reference.operations import Array
from decoderspec.reference.splitmix64 import SplitMix64, initialize
from decoderspec.reference.units import deviations, training_values, unit
from decoderspec.spec.config import Config
from decoderspec.spec.precision import recipe

PATH = Path(__file__).with_name("values.json")
DIGITS = 30
GUARD = 8  # more digits are computed than written
PRECISION = "float64"

HEADER = {
    "schema": "values.schema.json",
    "generator": f"decoderspec {__version__}",
    "digits": DIGITS,
    "precision": PRECISION,
    "notes": {
        "parameters": "the float64 values themselves: drawn from the seed, but for the gains, which lie in 1/2 to 3/2",
        "values": "true values for these parameters, correct in every digit shown",
        "noise": "root mean square error of a correct float64 implementation, element by element",
        "allowed": "|computed - value| / noise stays below this; docs/calibration.md says how often not",
    },
}


@dataclass(frozen=True)
class ValueCase:
    """One seeded model with its tokens; `comment` says what it is there for."""

    id: str
    comment: str
    config: Config
    seed: int
    tokens: tuple[tuple[int, ...], ...]
    targets: tuple[tuple[int, ...], ...]

    def parameters(self) -> dict[str, Array]:
        """Initial values, with gains that are distinct and exact in every binary format."""
        drawn = initialize(self.config, SplitMix64(self.seed))
        return {
            name: _gains(value.size, at) if value.ndim == 1 else value for at, (name, value) in enumerate(drawn.items())
        }


def _gains(width: int, at: int) -> Array:
    """Sixteenths from 1/2 to 3/2 in a mixed order, another one for each gain."""
    steps: Array = (np.arange(width) * 7 + at * 5) % 17
    return 0.5 + steps / 16.0


CASES = (
    ValueCase(
        "three-layers",
        "heads of width 4, a repeated id, ids 0 and V-1, as many tokens as fit",
        Config(9, 8, 2, 6, 3, 5, 500.0, 1e-3),
        1,
        ((0, 3, 8, 3, 5),),
        ((3, 8, 3, 5, 0),),
    ),
    ValueCase(
        "batch-of-two",
        "heads of width 6, two rows that share a prefix, f smaller than d",
        Config(7, 12, 2, 5, 1, 8, 10000.0, 1e-6),
        2,
        ((1, 2, 6, 6), (1, 2, 0, 4)),
        ((2, 6, 6, 1), (2, 0, 4, 1)),
    ),
    ValueCase(
        "one-wide-head",
        "a single head of width 10, f larger than d, no epsilon",
        Config(11, 10, 1, 12, 1, 4, 3.0, 0.0),
        3,
        ((10, 0, 10),),
        ((0, 10, 4),),
    ),
    ValueCase(
        "four-heads-deep",
        "four heads of width 2 in four layers, an odd feed-forward width",
        Config(5, 8, 4, 3, 4, 6, 10000.0, 1e-5),
        4,
        ((4, 1, 0, 2),),
        ((1, 0, 2, 2),),
    ),
)


def rewrite() -> Path:
    """Compute all cases and keep them."""
    content = {**HEADER, "cases": [compute(case) for case in CASES]}
    PATH.write_text(_one_line_per_list(json.dumps(content, indent=1)) + "\n", encoding="utf-8", newline="\n")
    return PATH


def _one_line_per_list(text: str) -> str:
    """Indented JSON with every list of plain values on one line."""
    return re.sub(r"\[[^\[\]{}]*\]", lambda found: " ".join(found[0].split()), text)


def kept() -> Any:
    """What is kept, as JSON gives it."""
    return json.loads(PATH.read_text(encoding="utf-8"))


def compute(case: ValueCase) -> dict[str, Any]:
    """One case of the file, with the oracle's values and the noise around them."""
    parameters = case.parameters()
    at = case.config, parameters, case.tokens
    gradients = oracle.gradients(*at, case.targets, digits=DIGITS + GUARD)
    noise = noise_units(case, parameters)
    sizes = asdict(case.config)
    constants = {name: repr(sizes[name]) for name in ("rope_base", "rms_epsilon")}
    return {
        **asdict(case),
        "config": {**sizes, **constants},
        "parameters": {name: _array(value, [repr(float(x)) for x in value.flat]) for name, value in parameters.items()},
        "logits": _judged(oracle.logits(*at, digits=DIGITS + GUARD), noise["logits"]),
        "loss": _judged(np.array(oracle.loss(*at, case.targets, digits=DIGITS + GUARD)), noise["loss"]),
        "gradients": {
            name: _judged(value, noise[f"gradient.{name}"], GRADIENT_FALSE_ALARMS) for name, value in gradients.items()
        },
    }


def noise_units(case: ValueCase, parameters: Mapping[str, Array]) -> dict[str, Array]:
    """Of the logits, the loss and the gradients (`gradient.NAME`), among all stages."""
    computation = training_values(case.config, parameters, np.array(case.tokens), np.array(case.targets))
    return {name: unit(each) for name, each in deviations(computation, recipe(PRECISION), case.seed).items()}


def _array(array: Any, values: list[str]) -> dict[str, Any]:
    return {"shape": list(array.shape), "values": values}


def _judged(truth: Any, noise: Array, chance: float = FALSE_ALARMS) -> dict[str, Any]:
    return {
        **_array(truth, [mpmath.nstr(value, DIGITS, strip_zeros=False) for value in truth.flat]),
        "noise": [f"{value:.3g}" for value in np.ravel(noise)],
        "allowed": f"{worst_allowed(truth.size, chance):.3g}",
    }
