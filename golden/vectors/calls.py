"""Vectors of the whole model: the calls of a case in order, each with what is expected of it.

Truth of the logits, the loss and the stages from the oracle's forward pass, of gradients by one difference for each
scalar, so for small cases. A call that names an earlier one (`again`) is expected to answer as that one does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from decoderspec.golden.vectors import results
from decoderspec.golden.vectors.inputs import (
    VectorError,
    array,
    config_of,
    ids,
    parameters_of,
    require_exact,
    seed_of,
)
from decoderspec.golden.vectors.results import Json
from decoderspec.reference import oracle, units
from decoderspec.reference.arithmetic import Exact
from decoderspec.reference.operations import Array
from decoderspec.spec.config import Config
from decoderspec.spec.errors import SpecError
from decoderspec.spec.parameters import TABLE, parameter_count, parameter_shapes
from decoderspec.spec.validation import validate_config

ALL = "all"  # the slope of all parameters together
EXACT_ZEROS = ("attention.weights", "lookup")  # ATT-1, TIE-2


@dataclass
class Built:
    """A model of some case as it is now: the parameters change where a call assigns one."""

    config: Config
    parameters: dict[str, Array]
    precisions: tuple[str, ...]

    @classmethod
    def of(cls, case: Json) -> Built:
        """The model of a case. Raises `VectorError`."""
        try:
            config = validate_config(config_of(case["config"]))
        except SpecError as reason:
            raise VectorError(f"the configuration is none: {reason}") from None
        built = cls(config, parameters_of(case["parameters"], config), tuple(case["precisions"]))
        for name, value in built.parameters.items():
            require_exact(value, built.precisions, name)
        return built

    def assign(self, name: str, entry: Json) -> None:
        """Another value for one parameter. Raises `VectorError`."""
        if name not in self.parameters:
            raise VectorError(f"{name} is no parameter")
        value = array(entry, parameter_shapes(self.config)[name])
        require_exact(value, self.precisions, name)
        self.parameters = {**self.parameters, name: value}


def completed(case: Json, others: Mapping[str, Json]) -> Json:
    """The case with what is expected of each call; `others` are the cases by id whose models a call may name."""
    models = {case["id"]: Built.of(case)}
    calls: list[Json] = []
    for place, call in enumerate(case["calls"]):
        name = call.get("model", case["id"])
        if name not in models:
            if name not in others:
                raise VectorError(f"call {place} is for the model of {name!r}, which is no case")
            models[name] = Built.of(others[name])
        if "again" in call and not (call["again"] < place and calls[call["again"]]["call"] == call["call"]):
            raise VectorError(f"call {place} is expected to answer as {call['again']}, which is no such call before it")
        calls.append(_expected(models[name], call, seed_of(f"{case['id']}/{place}")))
    return {**case, "calls": calls}


def _expected(model: Built, call: Json, seed: int) -> Json:
    """The call with what is expected of it, written here or in the call that it repeats."""
    if call["call"] == "assign":
        model.assign(call["name"], call["value"])
        return call
    if call["call"] == "parameters":
        names, count = list(model.parameters), parameter_count(model.config)
        return {**call, "expected": {"names": names, "scalars": count}}
    at = Asked(model, *_batch(model, call), seed)
    return call if "again" in call else {**call, "expected": getattr(at, call["call"])()}


def _batch(model: Built, call: Json) -> tuple[Array, Array | None]:
    tokens = ids(call["tokens"], model.config.vocabulary_size)
    targets = ids(call["targets"], model.config.vocabulary_size) if "targets" in call else None
    if tokens.shape[1] > model.config.max_positions or (targets is not None and targets.shape != tokens.shape):
        raise VectorError(f"tokens are {tokens.shape} for {model.config.max_positions} positions, and not the targets")
    return tokens, targets


@dataclass
class Asked:
    """One call on one model: a method for each kind."""

    model: Built
    tokens: Array
    targets: Any
    seed: int
    moved: dict[str, Any] = field(default_factory=dict)

    @property
    def at(self) -> tuple[Config, dict[str, Array], Array]:
        """Configuration, parameters, tokens."""
        return self.model.config, self.model.parameters, self.tokens

    def logits(self) -> Json:
        """Of every position."""
        return {"logits": self.stages(("logits",))["stages"]["logits"]}

    def stages(self, keep: tuple[str, ...] | None = None) -> Json:
        """Every stage, from the tokens on."""
        truth = results.forward(
            lambda digits, arithmetic: oracle.forward(*self.at, keep=keep, digits=digits, arithmetic=arithmetic)
        )
        moved = results.deviations(units.stage_values(*self.at, {}), self.model.precisions, self.seed)
        found = {
            name: results.result(value, moved[name], exact_zeros=name.endswith(EXACT_ZEROS))
            for name, value in truth.items()
        }
        return {"stages": found}

    def loss(self) -> Json:
        """A scalar."""
        truth = results.forward(
            lambda digits, arithmetic: {
                "loss": oracle.loss(*self.at, self.targets, digits=digits, arithmetic=arithmetic)
            }
        )
        return {"loss": results.result(truth["loss"], self._moved["loss"])}

    def gradients(self) -> Json:
        """Of each parameter, with the slope along the signs of each, and of all together."""
        exact = oracle.gradients(*self.at, self.targets, **self._options)
        expected = self._by_element(exact)
        signs = {name: results.sign_pattern(value.shape) for name, value in exact.items()}
        whole = results.slopes(sum(np.sum(value * signs[name]) for name, value in exact.items()))
        parts = [results.along(self._moved[f"gradient.{name}"], signs[name]) for name in exact]
        moved = {precision: np.sum([part[precision] for part in parts], axis=0) for precision in parts[0]}
        return {**expected, "slopes": expected["slopes"] | {ALL: results.result(whole, moved)}}

    def role_gradients(self) -> Json:
        """Of the table as lookup and as head, and of their sum."""
        lookup, head = oracle.role_gradients(*self.at, self.targets, **self._options)
        total = results.gradient(lookup + head, self._moved[f"gradient.{TABLE}"])
        return {**self._by_element({"lookup": lookup, "head": head}), "sum": total}

    def _by_element(self, exact: Mapping[str, Exact]) -> Json:
        gradients, slopes = {}, {}
        for name, value in exact.items():
            signs, moved = results.sign_pattern(value.shape), self._moved[f"gradient.{name}"]
            zeros = name in EXACT_ZEROS
            gradients[name] = results.gradient(value, moved, exact_zeros=zeros)
            slope = results.slopes(np.sum(value * signs))
            slopes[name] = results.result(slope, results.along(moved, signs))
        return {"gradients": gradients, "slopes": slopes}

    @property
    def _options(self) -> dict[str, Any]:
        return {"digits": results.SLOPE_DIGITS, "arithmetic": oracle.fastest()}

    @cached_property
    def _moved(self) -> Any:
        """What the noise does to the loss and every gradient."""
        computation = units.training_values(*self.at, self.targets)
        return results.deviations(computation, self.model.precisions, self.seed)
