"""A fault: the reference with one thing wrong, and what a person must know to recognise it.

Nearly every fault is a substitution: of one operation (`swap`), of the composition (`decoder`), of one check, or of
one method of the model. Everything that is not substituted is the reference's. `FaultyReference` makes an
implementation of a fault, so that whatever tests implementations can be tried on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from decoderspec.faults.numbers import storing
from decoderspec.reference import decoder as right
from decoderspec.reference.model import CHECKED, Reference
from decoderspec.reference.operations import Array, Gradients, Operation, Operations
from decoderspec.reference.splitmix64 import SplitMix64, initialize
from decoderspec.reference.tape import Gradient, Tape, accumulate
from decoderspec.spec import validation
from decoderspec.spec.config import Config
from decoderspec.spec.parameters import TABLE
from decoderspec.spec.precision import recipe
from decoderspec.spec.stages import stage_names, suffix

Weights = Mapping[str, Array]
Substitution = Callable[[Operations], Operations]
Decoder = Callable[[Operations, Config, Weights, Array], Array]
Level = Literal["forward", "loss", "gradient", "contract"]  # the first result in which a fault can show


def unchanged(operations: Operations) -> Operations:
    """The right operations."""
    return operations


def untouched(gradient: Gradient, _tokens: Array) -> Gradient:
    """The right gradients."""
    return gradient


def drawn(config: Config, seed: int) -> dict[str, Array]:
    """The right initial parameters."""
    return initialize(config, SplitMix64(validation.validate_seed(seed)))


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One way in which decoders have been wrong, or could be."""

    name: str
    stage: str  # where it starts: the suffix of a stage, `loss`, `gradient.OPERATION`, `parameters`, `tokens`, ..
    family: str
    sentence: str  # what is wrong, and so why a person would write it
    source: str = ""  # where it was seen, if in public
    breaks: tuple[str, ...]  # requirements that it must break
    level: Level = "forward"
    also: tuple[str, ...] = ()  # other stages in which it starts, where the first is absent or unaffected
    precision: str | Mapping[str, str] = "float64"
    operations: Substitution = unchanged
    decoder: Decoder = right.decoder
    gradient: Callable[[Gradient, Array], Gradient] = untouched  # of the gradients and the token ids
    tokens: Callable[[Config, Any], Array] = validation.validate_tokens
    targets: Callable[[Config, Array, Any], Array] = validation.validate_targets
    config: Callable[[Config], Config] = validation.validate_config
    parameters: Callable[[Config, Mapping[str, Any]], Weights] = validation.validate_parameters
    initial: Callable[[Config, int], Weights] = drawn
    classify: Callable[[BaseException], str | None] = Reference().classify
    model: type[FaultyModel] | None = None  # with a method of its own

    def starts_at(self, stage: str) -> bool:
        """Whether the fault starts in that stage of some block."""
        return suffix(stage) in (self.stage, *self.also)


# --- Substitutions ---


def swap(**functions: Callable[..., Any]) -> Substitution:
    """Other plain functions for operations by name: `swap(rms_norm=f, rms_norm_vjp=g)`; the others stay right."""

    def change(operations: Operations) -> Operations:
        for name, function in functions.items():
            operations = _swapped(operations, name, function)
        return operations

    return change


def _swapped(operations: Operations, name: str, function: Callable[..., Any]) -> Operations:
    name, is_vjp, _ = name.partition("_vjp")
    old: Operation = getattr(operations, name)
    if is_vjp:
        new = replace(old, vjp=lambda _stage, *arguments: _without_none(function(*arguments), arguments[2:]))
    else:
        new = replace(old, perform=lambda _stage, *inputs: function(*inputs))
    return replace(operations, **{name: new})


def _without_none(gradients: Gradients, inputs: tuple[Any, ...]) -> Gradients:
    """A gradient that a pullback forgets is zero; what is no real array has none."""

    def real(value: Any) -> bool:
        return isinstance(value, np.ndarray) and value.dtype.kind == "f"

    pairs = zip(gradients, inputs, strict=True)
    return tuple(np.zeros_like(value) if found is None and real(value) else found for found, value in pairs)


def at(places: tuple[str, ...] | str, change: Substitution) -> Substitution:
    """A substitution in force at some stages only, named by suffix (`ffn_norm`, `attention.query/flat`)."""
    within = (places,) if isinstance(places, str) else places
    return _where(lambda stage: suffix(stage) in within, change)


def alone(place: str, change: Substitution) -> Substitution:
    """A substitution in force at one stage of one block, and at the steps on the way to it."""
    return _where(lambda stage: stage.partition("/")[0] == place, change)


def _where(holds: Callable[[str], bool], change: Substitution) -> Substitution:
    def both(operations: Operations) -> Operations:
        wrong = change(operations)
        return operations.each(lambda old: _choose(old, getattr(wrong, old.name), holds))

    return both


def _choose(old: Operation, new: Operation, holds: Callable[[str], bool]) -> Operation:
    def perform(stage: str, *inputs: Any) -> Array:
        return (new if holds(stage) else old).perform(stage, *inputs)

    def vjp(stage: str, *arguments: Any) -> Any:
        return (new if holds(stage) else old).vjp(stage, *arguments)

    return Operation(old.name, perform, vjp)


def in_turn(*changes: Substitution) -> Substitution:
    """One substitution after the other."""

    def change(operations: Operations) -> Operations:
        for each in changes:
            operations = each(operations)
        return operations

    return change


# --- The implementation ---


class FaultyModel:
    """The reference's model with one fault; a fault of state overrides a method."""

    def __init__(self, fault: Fault, config: Config, weights: Weights) -> None:
        self.fault, self.config, self.weights = fault, config, weights
        declared = recipe(fault.precision)
        self.operations = fault.operations(storing(declared, CHECKED))

    def logits(self, tokens: Any) -> Array:
        """Token ids `[B, T]` to logits `[B, T, V]`."""
        return self.forward(self.operations, self.fault.tokens(self.config, tokens))

    def forward(self, operations: Operations, ids: Array) -> Array:
        """Logits of checked ids; a model may have few enough faults to overflow, which is not worth a warning."""
        with np.errstate(all="ignore"):
            return self.fault.decoder(operations, self.config, self.weights, ids)

    def stages(self, tokens: Any) -> dict[str, Array]:
        """The stages that the composition goes through, in forward order."""
        tape = Tape()
        self.forward(tape.recording(self.operations), self.fault.tokens(self.config, tokens))
        values = tape.stages()
        return {name: values[name] for name in stage_names(self.config.layers) if name in values}

    def loss(self, tokens: Any, targets: Any) -> float:
        """Mean negative log likelihood of the targets, in nats."""
        ids, wanted = self.checked(tokens, targets)
        return float(self.taped(Tape(), ids, wanted))

    def gradients(self, tokens: Any, targets: Any) -> dict[str, Array]:
        """Gradient of the loss by each parameter."""
        return self.gradient(tokens, targets).leaves

    def role_gradients(self, tokens: Any, targets: Any) -> tuple[Array, Array]:
        """The table's gradient as the lookup and as the head."""
        gradient = self.gradient(tokens, targets)
        nothing = np.zeros_like(self.weights[TABLE])
        lookup, head = (gradient.uses.get((TABLE, use), nothing) for use in ("embedding", "logits"))
        return lookup, head

    def gradient(self, tokens: Any, targets: Any) -> Gradient:
        """All gradients, by leaf and by use."""
        tape = Tape()
        ids, wanted = self.checked(tokens, targets)
        with np.errstate(all="ignore"):
            value = self.taped(tape, ids, wanted)
            return self.fault.gradient(accumulate(tape, np.ones_like(value), self.weights), ids)

    def taped(self, tape: Tape, ids: Array, wanted: Array) -> Array:
        """The loss, with every call on the tape."""
        operations = tape.recording(self.operations)
        with np.errstate(all="ignore"):
            return operations.nll("loss", self.forward(operations, ids), wanted)

    def checked(self, tokens: Any, targets: Any) -> tuple[Array, Array]:
        """Token and target ids after the checks."""
        ids = self.fault.tokens(self.config, tokens)
        return ids, self.fault.targets(self.config, ids, targets)

    def parameters(self) -> dict[str, Array]:
        """The live arrays by canonical name, in canonical order."""
        return dict(self.weights)

    def assign(self, name: str, value: Any) -> None:
        """Write one parameter in place."""
        self.weights[name][...] = validation.validate_parameter(self.config, name, value)


class FaultyReference:
    """The reference with a fault, as an implementation under test."""

    def __init__(self, fault: Fault) -> None:
        self.fault, self.name, self.precision = fault, fault.name, fault.precision

    def build(self, config: Config, parameters: Mapping[str, Any]) -> FaultyModel:
        """A model on copies of the parameters."""
        config = self.fault.config(config)
        return self._model(config, self.fault.parameters(config, parameters))

    def initialize(self, config: Config, seed: int) -> FaultyModel:
        """A model with initial parameters drawn from the seed."""
        config = self.fault.config(config)
        return self._model(config, self.fault.initial(config, seed))

    def classify(self, error: BaseException) -> str | None:
        """The category of a refusal."""
        return self.fault.classify(error)

    def _model(self, config: Config, weights: Weights) -> FaultyModel:
        return (self.fault.model or FaultyModel)(self.fault, config, weights)
