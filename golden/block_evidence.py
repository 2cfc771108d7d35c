"""What chapter 31's programs print about one block: computed here, every time, from the reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from decoderspec.golden import fixtures
from decoderspec.golden.differences import check
from decoderspec.golden.refusals import refuses
from decoderspec.reference.block import DecoderBlock, DecoderBlockForward
from decoderspec.reference.operations import OPERATIONS, Array, Operations
from decoderspec.reference.splitmix64 import SplitMix64
from decoderspec.spec.parameters import BLOCK_PARAMETERS

STAGES = {  # their name -> ours
    "attention_norm": "attention_norm",
    "attention_branch": "attention.output",
    "after_attention": "after_attention",
    "feed_forward_norm": "ffn_norm",
    "feed_forward_branch": "ffn.output",
    "output": "output",
}


@dataclass(frozen=True)
class BlockEvidence:
    """Everything in the two documents of the block, still as values."""

    stages: Mapping[str, Array]  # `input`, their six stages, `[1, 3, 4]` each
    weights: Array  # [1, h, T, S]
    allowed: Array  # [1, h, T, S], true where a change of the key reached the query
    probe_logits: Array  # [1, 3, 3]
    post_norm: Array  # first stage in post-norm order
    order: Mapping[str, bool]
    exact_merges: tuple[bool, bool]
    causality: Mapping[str, bool]
    parameters: Mapping[str, Array]
    ownership: Mapping[str, bool]
    gradient_checks: tuple[int, int]  # coordinates of the input, of the parameters
    gradients_passed: bool
    tape_finite: bool
    errors: Mapping[str, bool]
    recurrence: Sequence[float]
    history: Mapping[str, bool]
    replay_bitwise: bool


def block_evidence(operations: Operations = OPERATIONS) -> BlockEvidence:
    """Run the fixture, all of it, with the right operations or with substitutes."""
    block = fixtures.block(operations)
    record = block.forward(fixtures.INPUT)
    stages = {"input": fixtures.INPUT, **{name: record.stages[ours] for name, ours in STAGES.items()}}
    post_norm = layer_norm_rows(fixtures.INPUT + _attention_of(block, fixtures.INPUT), fixtures.LAYER_NORM_EPSILON)
    order = _order(block, record, post_norm)
    checks, passed = _gradient_checks(block)
    states = rnn_style_states(fixtures.RECURRENCE_INPUTS)
    return BlockEvidence(
        stages=stages,
        weights=record.stages["attention.weights"],
        allowed=np.broadcast_to(_reached(block), record.stages["attention.weights"].shape),
        probe_logits=record.output @ fixtures.PROBE,
        post_norm=post_norm,
        order=order,
        exact_merges=_exact_merges(stages),
        causality=_causality(block, record),
        parameters=block.parameters(),
        ownership=_ownership(block),
        gradient_checks=checks,
        gradients_passed=passed,
        tape_finite=_tape_finite(block),
        errors=_errors(block),
        recurrence=states,
        history=_history(states, order, post_norm),
        replay_bitwise=_same(fixtures.block(operations).forward(fixtures.INPUT).stages, record.stages),
    )


# --- Order and merges ---


def _attention_of(block: DecoderBlock, x: Array) -> Array:
    """Attention on rows that no norm has touched: those of a block whose norm leaves them alone."""
    untouched = replace(block.operations.rms_norm, perform=lambda _stage, x, _gain, _epsilon: x)
    return (
        replace(block, operations=replace(block.operations, rms_norm=untouched)).forward(x).stages["attention.output"]
    )


def _order(block: DecoderBlock, record: DecoderBlockForward, post_norm: Array) -> dict[str, bool]:
    """Each norm has seen the stream that entered its branch, and moving the first one changes the result."""
    stages = record.stages
    norm = block.operations.rms_norm
    first = norm("attention_norm", fixtures.INPUT, block.attention_norm.gain, block.attention_norm.epsilon)
    second = norm("ffn_norm", stages["after_attention"], block.feed_forward_norm.gain, block.feed_forward_norm.epsilon)
    is_pre_norm = np.array_equal(first, stages["attention_norm"]) and np.array_equal(second, stages["ffn_norm"])
    return {
        "pre_norm": is_pre_norm,
        "post_norm_differs": not np.allclose(post_norm, stages["after_attention"], rtol=0, atol=fixtures.TOLERANCE),
    }


def _exact_merges(stages: Mapping[str, Array]) -> tuple[bool, bool]:
    first = np.array_equal(stages["input"] + stages["attention_branch"], stages["after_attention"])
    second = np.array_equal(stages["after_attention"] + stages["feed_forward_branch"], stages["output"])
    return first, second


# --- Causality ---


def _causality(block: DecoderBlock, record: DecoderBlockForward) -> dict[str, bool]:
    """Outputs before and after the last input row changes."""
    changed = fixtures.INPUT.copy()
    changed[0, -1] = fixtures.CHANGED_ROW
    after = block.forward(changed).output
    future = np.triu(np.ones(record.stages["attention.weights"].shape[-2:], dtype=bool), 1)
    return {
        "prefix_0_bitwise": np.array_equal(record.output[0, 0], after[0, 0]),
        "prefix_1_bitwise": np.array_equal(record.output[0, 1], after[0, 1]),
        "suffix_changed": not np.array_equal(record.output[0, 2], after[0, 2]),
        "future_probabilities_zero": not record.stages["attention.weights"][..., future].any(),
    }


def _reached(block: DecoderBlock) -> Array:
    """`[T, S]`: whether the output at each query moves when the input at each key does."""
    before = block.forward(fixtures.INPUT).output[0]
    reached = []
    for key in range(before.shape[0]):
        changed = fixtures.INPUT.copy()
        changed[0, key] = fixtures.CHANGED_ROW
        reached.append((block.forward(changed).output[0] != before).any(axis=-1))
    return np.stack(reached, axis=-1)


# --- Parameters and gradients ---


def _ownership(block: DecoderBlock) -> dict[str, bool]:
    names = list(block.parameters())
    return {
        "bias_free": not any("bias" in name for name in names),
        "stable_order": names == [f"{fixtures.PREFIX}.{name}" for name in BLOCK_PARAMETERS],
        "distinct": not any(np.shares_memory(a, b) for a, b in combinations(block.parameters().values(), 2)),
    }


def _gradient_checks(block: DecoderBlock) -> tuple[tuple[int, int], bool]:
    """All coordinates of the input and of the nine parameters against central differences."""
    x = fixtures.INPUT.copy()
    gradients = block.forward(x).pullback(fixtures.UPSTREAM)

    def loss() -> float:
        return float(np.sum(block.forward(x).output * fixtures.UPSTREAM))

    of_input = check(x, gradients.input, loss)
    of_parameters = [check(value, gradients.parameters[name], loss) for name, value in block.parameters().items()]
    counts = of_input.coordinates, sum(each.coordinates for each in of_parameters)
    return counts, of_input.passed and all(each.passed for each in of_parameters)


def _tape_finite(block: DecoderBlock) -> bool:
    """Every recorded value and every gradient is finite."""
    record = block.forward(fixtures.INPUT)
    values = list(record.stages.values())
    gradients = record.pullback(fixtures.UPSTREAM)
    values += [gradients.input, *gradients.parameters.values()]
    return all(bool(np.isfinite(value).all()) for value in values)


# --- Refusals ---


def _errors(block: DecoderBlock) -> dict[str, bool]:
    consumed = block.forward(fixtures.INPUT)
    consumed.pullback(fixtures.UPSTREAM)
    x = fixtures.INPUT
    return {
        "configuration": _configurations_refused(),
        "component_width": refuses("DecoderBlockError.ComponentWidthMismatch", _mismatched(block)),
        "input_rank": refuses("MultiHeadAttentionError.InputRank", lambda: block.forward(x[0])),
        "input_width": refuses("RmsNormError.InputWidth", lambda: block.forward(x[..., :3])),
        "empty_tokens": refuses("MultiHeadAttentionError.EmptyTokens", lambda: block.forward(x[:, :0])),
        "position_range": refuses("RopeError.PositionOutOfRange", lambda: block.forward(x, 4)),
        "released_input": refuses("TensorAutodiffError.Released", lambda: block.forward(consumed)),
    }


def _mismatched(block: DecoderBlock) -> Callable[[], object]:
    wide = replace(fixtures.BLOCK_CONFIG, model_width=8)
    other = DecoderBlock.new("other", wide, SplitMix64(0))
    return lambda: DecoderBlock.from_parts(
        block.attention_norm, other.attention, block.feed_forward_norm, block.feed_forward
    )


def _configurations_refused() -> bool:
    """One bad number for each component, and the caller's generator untouched by all."""
    generator = SplitMix64(fixtures.SEED)
    bad: dict[str, dict[str, float]] = {
        "RmsNormError.ZeroFeatureWidth": {"model_width": 0},
        "RmsNormError.InvalidEpsilon": {"rms_epsilon": -1.0},
        "MultiHeadAttentionError.ZeroHeadCount": {"heads": 0},
        "MultiHeadAttentionError.ModelWidthNotDivisible": {"heads": 3},
        "RopeError.OddFeatureWidth": {"heads": 4},
        "RopeError.ZeroPositionCapacity": {"max_positions": 0},
        "RopeError.InvalidBase": {"rope_base": 0.0},
        "SwiGluError.ZeroHiddenWidth": {"feed_forward_width": 0},
    }

    def attempt(change: Mapping[str, float]) -> Callable[[], object]:
        config = replace(fixtures.BLOCK_CONFIG, **change)  # type: ignore[arg-type]  # the fields by name
        return lambda: DecoderBlock.new("bad", config, generator)

    return all(refuses(code, attempt(change)) for code, change in bad.items()) and generator.state == fixtures.SEED


# --- History ---


def rnn_style_states(inputs: Sequence[float]) -> list[float]:
    """A carried state, `s = tanh(x / 2 + 3 s / 4)`: recurrence in its smallest form, no LSTM gate."""
    states = [0.0]
    for value in inputs:
        states.append(math.tanh(0.5 * value + 0.75 * states[-1]))
    return states[1:]


def layer_norm_rows(x: Array, epsilon: float) -> Array:
    """Rows with their mean taken off and divided by their deviation: unit gain, no bias."""
    centred = x - np.mean(x, axis=-1, keepdims=True)
    normalized: Array = centred / np.sqrt(np.mean(np.square(centred), axis=-1, keepdims=True) + epsilon)
    return normalized


def _history(states: Sequence[float], order: Mapping[str, bool], post_norm: Array) -> dict[str, bool]:
    first_changed = rnn_style_states((-1.0, *fixtures.RECURRENCE_INPUTS[1:]))
    centred = np.allclose(np.mean(post_norm, axis=-1), 0.0, atol=fixtures.TOLERANCE)
    return {
        "sequential_recurrence": states[-1] != first_changed[-1],
        "original_post_norm": bool(centred),
        "modern_pre_norm": order["pre_norm"],
        "numeric_order_contrast": order["post_norm_differs"],
    }


def _same(ours: Mapping[str, Array], theirs: Mapping[str, Array]) -> bool:
    return all(np.array_equal(value, theirs[name]) for name, value in ours.items())
