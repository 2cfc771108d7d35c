"""A dump: what an engine that is not here computed, as named arrays in a file; `docs/dump.md` lists the names.

A dump is judged as far as it goes: each stage whose inputs are there, and the logits by hypotheses. Without parameters
only the stages that use none can be judged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from decoderspec.faults.case import Case as Setting
from decoderspec.faults.diagnosis import Diagnosis, Observed, diagnose_case
from decoderspec.properties.cases import Array, Case, arrays, draw_parameters
from decoderspec.properties.containers import ContainerError, Contents, read
from decoderspec.properties.settings import read_precision
from decoderspec.reference.sampled import inputs_of
from decoderspec.spec.config import Config
from decoderspec.spec.errors import SpecError
from decoderspec.spec.parameters import parameter_shapes
from decoderspec.spec.precision import DeclarationError, recipe
from decoderspec.spec.shown import cut
from decoderspec.spec.stages import stage_names, stage_shape, suffix
from decoderspec.spec.validation import validate_config, validate_parameter, validate_targets, validate_tokens

MOST_PRODUCTS = 2**24  # of one forward pass: the oracle takes a few microseconds for each
ROLES = ("gradient.lookup", "gradient.head")
WITHOUT_PARAMETERS = (
    "attention.rotated_query", "attention.rotated_key", "attention.weights", "attention.heads", "attention.merged",
    "after_attention", "ffn.silu", "ffn.product", "output",
)  # fmt: skip


class DumpError(ValueError):
    """A dump that cannot be judged: what came, what is allowed, what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(cut(message))


@dataclass(frozen=True)
class Dump:
    """What is in a dump, canonical: where it was computed, what came out, and which stages can be judged."""

    setting: Setting
    observed: Observed
    judged: tuple[str, ...]

    def diagnosis(self, pairs: bool = False) -> Diagnosis:
        """What is wrong with it."""
        return diagnose_case(self.setting, self.observed, pairs=pairs, judged=self.judged)

    def describe(self) -> str:
        """Sizes and precision on one line."""
        batch, tokens = self.setting.tokens.shape
        declared = self.setting.recipe.declared
        words = declared if isinstance(declared, str) else "a recipe"
        return f"{Case(self.setting.config, batch, tokens).describe().rpartition(' plain')[0]}, {words}"


def read_dump(path: Path, config: Path | None = None, precision: str | None = None, case: Case | None = None) -> Dump:
    """The dump of a file; what it does not hold is taken from a case. Raises `DumpError` or `OSError`."""
    try:
        return _dump(read(path), config, precision, case)
    except (ContainerError, SpecError, DeclarationError, DumpError) as reason:
        raise DumpError(f"{path}: {reason}") from None


def _dump(contents: Contents, file: Path | None, precision: str | None, case: Case | None) -> Dump:
    config = _config(contents, file, case)
    declared = read_precision(precision or contents.texts.get("precision"))
    if declared is None:
        raise DumpError("no precision is declared: give --precision, or a text named precision in the file")
    rule, known = recipe(declared), dict(contents.arrays)
    tokens = validate_tokens(config, _taken(known, "tokens", None if case is None else arrays(case)[0]))
    _refuse_large(config, *tokens.shape)
    targets = known.pop("targets", None if case is None else arrays(case)[1])
    wanted = None if targets is None else validate_targets(config, tokens, targets)
    stages = _stages(config, tokens, known)
    parameters = _parameters(config, known) or (draw_parameters(case, rule) if case else {})
    loss = _loss(known, wanted)
    gradients, roles = _gradients(config, known, wanted)
    if known:
        raise DumpError(_unknown(min(known), config))
    if not parameters and (loss is not None or gradients or roles):
        raise DumpError("the loss and the gradients can be judged with the parameters alone: they are not in the file")
    judged = tuple(stages) if parameters else _free(config, stages)
    if not judged and loss is None and not gradients and not roles:
        raise DumpError(
            "nothing in it can be judged: give logits or stages, and the parameters by their canonical names"
            " (without them a stage that uses none is judged where its inputs are there too)"
        )
    whole = parameters or {name: np.ones(shape) for name, shape in parameter_shapes(config).items()}
    setting = Setting(config, whole, tokens, wanted, rule)
    return Dump(setting, Observed(stages=stages, loss=loss, gradients=gradients, role_gradients=roles), judged)


def _config(contents: Contents, file: Path | None, case: Case | None) -> Config:
    text: str | bytes | None = file.read_bytes() if file else contents.texts.get("config")
    if text is None and case is not None:
        return case.config
    if text is None:
        raise DumpError("there is no configuration: give --config FILE, or a text named config in the file")
    try:
        config = Config(**json.loads(text))
    except (ValueError, TypeError, RecursionError) as reason:
        allowed = ", ".join(Config.__dataclass_fields__)
        raise DumpError(f"the configuration must be a JSON object of {allowed}: {reason}") from None
    found = validate_config(config)
    if case is not None and found != case.config:
        raise DumpError(f"the configuration is {asdict(found)}, that of the case {asdict(case.config)}")
    return found


def _taken(known: dict[str, Array], name: str, instead: Any) -> Array:
    """An array that must be there, out of what is left to read."""
    if name not in known and instead is None:
        raise DumpError(f"there are no {name}: give an integer array [B, T] of that name")
    if name in known and instead is not None and not np.array_equal(known[name], instead):
        raise DumpError(f"its {name} are not those of the case")
    return known.pop(name, instead)


def _refuse_large(config: Config, batch: int, tokens: int) -> None:
    """Before anything is made for each layer: the oracle counts every product."""
    d, f, v = config.model_width, config.feed_forward_width, config.vocabulary_size
    products = batch * tokens * (config.layers * (4 * d * d + 3 * d * f + 2 * tokens * d) + d * v)
    if products > MOST_PRODUCTS:
        raise DumpError(
            f"a forward pass of it takes {products:,} products, more than the {MOST_PRODUCTS:,} that the oracle can be"
            " asked for: dump fewer tokens, or a smaller model of the same kind"
        )


def _stages(config: Config, tokens: Array, known: dict[str, Array]) -> dict[str, Array]:
    """Stages in forward order; an infinite or missing number in one is a wrong value, to be judged."""
    names = [name for name in stage_names(config.layers) if name in known]
    for name in names:
        expected = stage_shape(name, config, *tokens.shape)
        if known[name].shape != expected:
            raise DumpError(f"{name} has shape {known[name].shape}, its configuration and tokens say {expected}")
    return {name: known.pop(name).astype(np.float64) for name in names}


def _parameters(config: Config, known: dict[str, Array]) -> dict[str, Array]:
    """All of them or none."""
    shapes = parameter_shapes(config)
    given = [name for name in shapes if name in known]
    if given and len(given) < len(shapes):
        lost = next(name for name in shapes if name not in known)
        raise DumpError(f"it has {len(given)} of {len(shapes)} parameters: {lost} is missing; give all or none")
    return {name: validate_parameter(config, name, known.pop(name)) for name in given}


def _loss(known: dict[str, Array], targets: Array | None) -> float | None:
    loss = known.pop("loss", None)
    if loss is None:
        return None
    if loss.size != 1:
        raise DumpError(f"the loss has shape {loss.shape}; a single number is expected")
    if targets is None:
        raise DumpError("a loss can be judged with its targets alone: give an integer array [B, T] named targets")
    return float(loss.reshape(()))


def _gradients(
    config: Config, known: dict[str, Array], targets: Array | None
) -> tuple[dict[str, Array] | None, tuple[Array, Array] | None]:
    """Of the parameters, and of the table's two roles."""
    shapes = parameter_shapes(config)
    table = next(iter(shapes.values()))
    expected = {f"gradient.{name}": shape for name, shape in shapes.items()} | dict.fromkeys(ROLES, table)
    given = {name: known.pop(name).astype(np.float64) for name in expected if name in known}
    for name, value in given.items():
        if value.shape != expected[name]:
            raise DumpError(f"{name} has shape {value.shape}, its configuration says {expected[name]}")
    if given and targets is None:
        raise DumpError("gradients can be judged with the targets alone: give an integer array [B, T] named targets")
    if len(roles := [given.pop(name) for name in ROLES if name in given]) == 1:
        raise DumpError(f"of the table's two roles one is missing: give both {ROLES[0]} and {ROLES[1]}, or neither")
    leaves = {name.removeprefix("gradient."): value for name, value in given.items()}
    return leaves or None, (roles[0], roles[1]) if roles else None


def _free(config: Config, stages: Mapping[str, Array]) -> tuple[str, ...]:
    """The stages that use no parameter and whose inputs are there."""
    return tuple(
        name
        for name in stages
        if suffix(name) in WITHOUT_PARAMETERS and all(each in stages for each in inputs_of(name, config.layers))
    )


def _unknown(name: str, config: Config) -> str:
    some = ", ".join(stage_names(config.layers)[:3])
    return (
        f"{name!r:.80} is no name of a dump; allowed: tokens, targets, loss, stages ({some}, ..), parameters"
        " (token_embedding.weight, ..) and gradient.NAME"
    )
