"""Weights that are theirs: what `load() -> (config, parameters, model)` hands out, judged as it stands.

For an existing checkpoint, a quantised model, or a class that initialises itself: nothing can be drawn, so truth is
computed from the weights that are handed out, and only the tokens vary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from decoderspec.properties.cases import Array, Case
from decoderspec.properties.findings import Absent
from decoderspec.spec.arrays import ArrayError, round_to, to_numpy
from decoderspec.spec.config import Config
from decoderspec.spec.errors import SpecError
from decoderspec.spec.layout import Layout, LayoutError
from decoderspec.spec.parameters import parameter_count, parameter_shapes
from decoderspec.spec.precision import DeclarationError, Format
from decoderspec.spec.validation import validate_config

WHOLE = 50_000  # scalars: the whole truth of a case with gradients takes about a second; beyond, samples are judged
FORM = "load() must return (config, parameters, model)"
BUILD = "build(config, parameters) instead of load() lets other configurations and parameters be tried"
SHAPES = (  # batch, tokens, ids: what each is there for
    (2, 5, "any", "two rows"),
    (3, 8, "ends", "three rows, the first and last id"),
    (1, 1, "any", "one token"),
    (2, 6, "same", "one id everywhere"),
    (1, 37, "any", "several blocks of keys"),
    (1, 70, "last", "70 positions"),
)


@dataclass(frozen=True, repr=False)
class Checkpoint:
    """One model with its configuration and its parameters, canonical and exactly as handed out."""

    config: Config
    parameters: dict[str, Array]
    model: Any

    @property
    def is_whole(self) -> bool:
        """Whether the whole truth is affordable."""
        return parameter_count(self.config) <= WHOLE

    def require(self, config: Config) -> None:
        """Raise `Absent` for any configuration but its own."""
        if config != self.config:
            raise Absent(BUILD)

    def unlike(self, declared: Layout, form: Format) -> list[str]:
        """Parameters that hold, as they are stored, values which the format does not have."""
        found = []
        for name, value in self.parameters.items():
            for stored in declared.apply(self.config, {name: value}).values():
                found += [] if np.array_equal(stored, round_to(stored, form)) else [name]
        return found

    def cases(self, limits: Mapping[str, Any]) -> list[Case]:
        """Batches of tokens of several shapes, each as long as the context and the limits allow."""
        from decoderspec.properties import strategies  # brings Hypothesis, which most children can do without

        found: dict[tuple[int, int, str], Case] = {}
        for number, (batch, tokens, ids, note) in enumerate(SHAPES, 1):
            rows, length = strategies.shape_within(limits, self.config, batch, tokens)
            found.setdefault((rows, length, ids), Case(self.config, rows, length, number, "plain", ids, note))
        return list(found.values())


def read_checkpoint(implementation: Any, declared: Layout) -> Checkpoint:
    """What `load` hands out, in canonical names and layout. Raises `DeclarationError`."""
    try:
        given = implementation.load()
    except Exception as reason:
        raise DeclarationError(f"load() raised {type(reason).__name__}: {reason}") from reason
    if not isinstance(given, tuple) or len(given) != 3:
        raise DeclarationError(f"{FORM}, got {type(given).__name__}")
    config, parameters, model = given
    if not isinstance(parameters, Mapping):
        raise DeclarationError(f"{FORM}, where parameters map names to arrays, got {type(parameters).__name__}")
    known = _config(config)
    theirs = {str(name): _read(name, value) for name, value in parameters.items()}
    return Checkpoint(known, _canonical(known, declared, theirs), model)


def _config(given: Any) -> Config:
    """Their configuration: anything with the eight attributes."""
    missing = [field.name for field in fields(Config) if not hasattr(given, field.name)]
    if missing:
        raise DeclarationError(f"{FORM}, where config has the attributes of Config; it has no {', '.join(missing)}")
    try:
        return validate_config(Config(**{field.name: getattr(given, field.name) for field in fields(Config)}))
    except SpecError as reason:
        raise DeclarationError(f"load() returned a configuration that is not valid: {reason}") from reason


def _read(name: Any, value: Any) -> Array:
    try:
        array, _ = to_numpy(value)
    except ArrayError as reason:
        raise DeclarationError(f"load() returned a parameter {name} that cannot be read: {reason}") from None
    if not np.isfinite(array).all():
        raise DeclarationError(f"load() returned a parameter {name} that is not finite")
    return array


def _canonical(config: Config, declared: Layout, theirs: Mapping[str, Array]) -> dict[str, Array]:
    try:
        found = declared.invert(config, theirs)
    except LayoutError as reason:
        raise DeclarationError(f"the declared layout does not fit what load() returned: {reason}") from reason
    shapes = parameter_shapes(config)
    missing, unknown = [n for n in shapes if n not in found], [n for n in found if n not in shapes]
    if missing or unknown:
        raise DeclarationError(
            f"load() must return the parameters of the declared layout and no others (a tied head counts once):"
            f" missing {missing[:4]}, unknown {unknown[:4]}"
        )
    for name, shape in shapes.items():
        if found[name].shape != shape:
            raise DeclarationError(f"load() returned {name} of shape {found[name].shape}, the sizes say {shape}")
    return {name: found[name] for name in shapes}
