"""What chapter 32's programs print about the whole model: computed here, every time, from the reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from decoderspec.golden import fixtures
from decoderspec.golden.differences import GradientCheck, check
from decoderspec.golden.refusals import refuses
from decoderspec.reference.model import DecoderModel
from decoderspec.reference.operations import OPERATIONS, Array, Gradients, Operation, Operations
from decoderspec.reference.splitmix64 import SplitMix64
from decoderspec.spec.parameters import FINAL_GAIN, TABLE, parameter_count

Probe = tuple[Array, Array]
PROBE: Probe = (fixtures.PROBE_TOKENS, fixtures.PROBE_TARGETS)


@dataclass(frozen=True)
class ModelEvidence:
    """Everything in the two documents of the model, still as values."""

    stages: Mapping[str, Array]  # lookup, each block, final norm: `[1, 3, 4]` each
    logits: Array  # [1, 3, 5]
    loss: float
    predictions: Sequence[int]
    parameter_names: Sequence[str]
    scalars: int
    untied_scalars: int
    lookup_and_head: bool
    decomposition_error: float
    ownership: Mapping[str, bool]
    depths_valid: bool
    errors: Mapping[str, bool]
    causality: Mapping[str, bool]
    table_check: GradientCheck
    gain_check: GradientCheck
    stack_gradients: int
    replay_bitwise: bool

    @property
    def gradients_passed(self) -> bool:
        """Both checks, and a finite gradient for every parameter of the stack."""
        complete = self.stack_gradients == len(self.parameter_names)
        return self.table_check.passed and self.gain_check.passed and complete


def model_evidence(operations: Operations = OPERATIONS) -> ModelEvidence:
    """Run the fixture, all of it, with the right operations or with substitutes."""
    model = fixtures.model(operations)
    stages = model.stages(fixtures.TOKENS)
    logits = stages["logits"]
    table_check, gain_check = _gradient_checks(operations)
    names, scalars = list(model.parameters()), sum(value.size for value in model.parameters().values())
    return ModelEvidence(
        stages=_named(stages),
        logits=logits,
        loss=model.loss(fixtures.TOKENS, fixtures.TARGETS),
        predictions=[int(best) for best in np.argmax(logits[0], axis=-1)],
        parameter_names=names,
        scalars=scalars,
        untied_scalars=scalars + model.parameters()[TABLE].size,
        lookup_and_head=_one_table(operations),
        decomposition_error=_decomposition_error(operations),
        ownership=_ownership(names),
        depths_valid=all(_depth_is_valid(operations, layers) for layers in (0, 1, 2)),
        errors=_errors(model),
        causality=_causality(model, logits),
        table_check=table_check,
        gain_check=gain_check,
        stack_gradients=_finite_gradients(model),
        replay_bitwise=np.array_equal(fixtures.model(operations).logits(fixtures.TOKENS), logits),
    )


def _named(stages: Mapping[str, Array]) -> dict[str, Array]:
    """The streams that the documents show, under their names."""
    blocks = {f"block-{layer}": f"blocks.{layer}.output" for layer in range(fixtures.MODEL_CONFIG.layers)}
    ours = {"embedding": "embedding", **blocks, "final-norm": "final_norm"}
    return {name: stages[stage] for name, stage in ours.items()}


# --- One table in two roles ---


def _one_table(operations: Operations) -> bool:
    """Writing into the live table moves the lookup of an id that is present, and alone the logit of one that is not."""
    model = fixtures.model(operations)
    table, absent = model.parameters()[TABLE], fixtures.CHANGED_TOKEN
    before = model.stages(fixtures.TOKENS)
    table[absent] += 1.0
    head = model.stages(fixtures.TOKENS)
    table[fixtures.TOKENS[0, 0]] += 1.0
    lookup = model.stages(fixtures.TOKENS)
    moved = (head["logits"] != before["logits"]).all(axis=(0, 1)).nonzero()[0].tolist()
    return moved == [absent] and not np.array_equal(lookup["embedding"], head["embedding"])


def _decomposition_error(operations: Operations) -> float:
    """Largest difference between the table's gradient and the sum of what it is with either use detached."""
    unit_gain = np.ones_like(fixtures.PROBE_GAIN)
    of_lookup = replace(operations, project=_detached(operations.project, 1))
    of_head = replace(operations, embed=_detached(operations.embed, 0))
    full, lookup, head = (
        fixtures.probe_model(fixtures.PROBE_TABLE.copy(), unit_gain, each).gradients(*PROBE)[TABLE]
        for each in (operations, of_lookup, of_head)
    )
    return float(np.max(np.abs(full - lookup - head)))


def _detached(operation: Operation, index: int) -> Operation:
    """The operation without a gradient for one of its inputs."""

    def vjp(*arguments: object) -> Gradients:
        gradients = list(operation.vjp(*arguments))
        gradients[index] = None
        return tuple(gradients)

    return replace(operation, vjp=vjp)


def _ownership(names: Sequence[str]) -> dict[str, bool]:
    return {
        "bias_free": not any("bias" in name for name in names),
        "stable_order": names[0] == TABLE and names[-1] == FINAL_GAIN,
    }


def _depth_is_valid(operations: Operations, layers: int) -> bool:
    """A model of that depth has its parameters and gives finite logits of the right shape."""
    model = fixtures.model(operations, layers)
    logits = model.logits(fixtures.TOKENS)
    shape = (*fixtures.TOKENS.shape, fixtures.MODEL_CONFIG.vocabulary_size)
    scalars = sum(value.size for value in model.parameters().values())
    is_whole = len(model.parameters()) == 2 + 9 * layers and scalars == parameter_count(model.config)
    return is_whole and logits.shape == shape and bool(np.isfinite(logits).all())


# --- Refusals ---


def _errors(model: DecoderModel) -> dict[str, bool]:
    tokens, targets = fixtures.TOKENS, fixtures.TARGETS
    size, capacity = model.config.vocabulary_size, model.config.max_positions
    too_long = np.zeros((1, capacity + 1), dtype=np.int64)
    return {
        "configuration": _configurations_refused(),
        "context": refuses("DecoderModelError.ContextLengthExceeded", lambda: model.logits(too_long)),
        "vocabulary": refuses("EmbeddingError.TokenIdOutOfBounds", lambda: model.logits(_last_is(tokens, size))),
        "target": _targets_refused(model, targets),
    }


def _targets_refused(model: DecoderModel, targets: Array) -> bool:
    attempts: dict[str, Callable[[], object]] = {
        "DecoderModelError.TargetCountMismatch": lambda: model.loss(fixtures.TOKENS, targets[:, :-1]),
        "DecoderModelError.TargetIdOutOfBounds": lambda: model.loss(
            fixtures.TOKENS, _last_is(targets, model.config.vocabulary_size)
        ),
    }
    return all(refuses(code, attempt) for code, attempt in attempts.items())


def _configurations_refused() -> bool:
    """Every field, with blocks and without, and the caller's generator untouched by all."""
    generator = SplitMix64(fixtures.SEED)
    bad: dict[str, dict[str, float]] = {
        "EmptyVocabulary": {"vocabulary_size": 0},
        "ZeroModelWidth": {"model_width": 0},
        "ZeroHeadCount": {"heads": 0},
        "ModelWidthNotDivisible": {"heads": 3},
        "OddHeadWidth": {"heads": 4},
        "ZeroFeedForwardWidth": {"feed_forward_width": 0},
        "ZeroPositionCapacity": {"max_positions": 0},
        "InvalidRopeBase": {"rope_base": float("nan")},
        "InvalidRmsEpsilon": {"rms_epsilon": -1e-6},
    }

    def attempt(change: Mapping[str, float], layers: int) -> Callable[[], object]:
        config = replace(fixtures.MODEL_CONFIG, layers=layers, **change)  # type: ignore[arg-type]  # the fields by name
        return lambda: DecoderModel.new(config, generator)

    cases = [(f"DecoderModelError.{variant}", attempt(change, n)) for variant, change in bad.items() for n in (0, 2)]
    return all(refuses(code, made) for code, made in cases) and generator.state == fixtures.SEED


# --- Causality and gradients ---


def _last_is(ids: Array, last: int) -> Array:
    changed = ids.copy()
    changed[0, -1] = last
    return changed


def _causality(model: DecoderModel, before: Array) -> dict[str, bool]:
    after = model.logits(_last_is(fixtures.TOKENS, fixtures.CHANGED_TOKEN))
    return {
        "prefix_0_bitwise": np.array_equal(before[0, 0], after[0, 0]),
        "prefix_1_bitwise": np.array_equal(before[0, 1], after[0, 1]),
        "suffix_changed": not np.array_equal(before[0, 2], after[0, 2]),
    }


def _gradient_checks(operations: Operations) -> tuple[GradientCheck, GradientCheck]:
    """All coordinates of the tied table and of the final gain, in the model without blocks."""
    model = fixtures.probe_model(fixtures.PROBE_TABLE.copy(), fixtures.PROBE_GAIN.copy(), operations)
    gradients = model.gradients(*PROBE)
    leaves = model.parameters()
    table, gain = (check(leaves[name], gradients[name], lambda: model.loss(*PROBE)) for name in (TABLE, FINAL_GAIN))
    return table, gain


def _finite_gradients(model: DecoderModel) -> int:
    gradients = model.gradients(fixtures.TOKENS, fixtures.TARGETS)
    return sum(bool(np.isfinite(value).all()) for value in gradients.values())
