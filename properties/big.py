"""A model of real width, or a large checkpoint, judged by samples of every stage, each on its own inputs.

A sample is a few rows, heads and words: an error that is confined to other elements is not seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from decoderspec.properties import strategies
from decoderspec.properties.cases import Array, Case, Stored, arrays
from decoderspec.properties.findings import Absent, NotJudged
from decoderspec.properties.run import Run
from decoderspec.properties.subject import SubjectModel
from decoderspec.properties.truth import DIGITS, Exact
from decoderspec.reference import sampled, units
from decoderspec.reference.limits import Comparison
from decoderspec.reference.operations import Operations
from decoderspec.reference.sampled import Operands, Row
from decoderspec.spec.config import Config
from decoderspec.spec.parameters import TABLE, parameter_shapes
from decoderspec.spec.precision import Recipe
from decoderspec.spec.stages import stage_names, suffix

REAL = Config(32000, 2048, 32, 2816, 1, 64, 500000.0, 1e-5)
TOKENS = 6
REAL_WIDTH = 1024  # below it a model is not of real width
ROWS, COLUMNS = 3, 6  # of each stage
BATCHES = 3  # of a checkpoint, whose tokens alone can vary


def real_case(limits: Mapping[str, Any], seed: int) -> Case:
    """The case within the limits, its parameters drawn in bulk. Raises `NotJudged` where the limits leave none."""
    case = strategies.within(limits, Case(REAL, 1, TOKENS, seed, note="real width"))
    if case is None or case.config.model_width < REAL_WIDTH:
        raise NotJudged(f"BIG-1: the limits exclude a model width of {REAL_WIDTH} and more")
    rng, config = np.random.default_rng((seed, 4)), case.config
    parameters = {name: _draw(name, shape, rng) for name, shape in parameter_shapes(config).items()}
    tokens = rng.integers(0, config.vocabulary_size, (case.batch, case.tokens))
    return replace(case, stored=Stored(parameters, tokens, tokens))


def _draw(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Activations stay near one; every value is one of float32's."""
    drawn: Array = rng.standard_normal(shape, np.float32)
    if len(shape) == 1:
        drawn = 1 + drawn / 4
    elif name != TABLE:
        drawn *= np.float32(shape[0] ** -0.5)
    return drawn.astype(np.float64)


@dataclass(frozen=True)
class Sampled:
    """The stages that a model handed out, to be judged by samples."""

    case: Case
    parameters: Mapping[str, Array]
    stages: Mapping[str, Array]
    recipe: Recipe

    def comparisons(self) -> Iterator[tuple[str, Comparison]]:
        """Every stage whose inputs were handed out too."""
        inputs = {**self.stages, "tokens": arrays(self.case)[0]}
        rng = np.random.default_rng((self.case.seed, 5))
        for name in stage_names(self.case.config.layers):
            known = name in self.stages and all(
                each in inputs for each in sampled.inputs_of(name, self.case.config.layers)
            )
            if known:
                yield name, self._compare(name, inputs, rng)

    def _compare(self, name: str, inputs: Mapping[str, Any], rng: np.random.Generator) -> Comparison:
        got, at = self.stages[name], (self.case.config, self.parameters, name, inputs)
        rows = [_row(got.shape[:-1], rng, last) for last in range(ROWS)]
        size = got.shape[-1]
        columns = np.unique(np.concatenate([[0, size - 1], rng.integers(0, size, COLUMNS - 2)]))
        truth = Exact.of(sampled.stage(*at, rows, columns, digits=DIGITS))
        unit = [self._unit(name, sampled.operands(*at, row, columns), columns) for row in rows]
        return truth.judge(np.stack([got[row][columns] for row in rows]), np.stack(unit))

    def _unit(self, name: str, of: Operands, columns: Array) -> Array:
        """Noise units of the same operation on the same slices."""
        moved = units.deviations(lambda ops: {"row": performed(ops, name, of)}, self.recipe, self.case.seed)["row"]
        row = np.pad(units.unit(moved).reshape(-1), (0, of.zeros))
        return row if of.columns is None else row[columns]


def _row(shape: tuple[int, ...], rng: np.random.Generator, number: int) -> Row:
    """The last row of all, the first, then any."""
    if number < 2:
        return tuple(size - 1 if number == 0 else 0 for size in shape)
    return tuple(int(rng.integers(size)) for size in shape)


def performed(ops: Operations, name: str, of: Operands) -> Array:
    """The operation on one row, in the shapes that the record has: `[1, 1, n]`, or with heads `[1, 1, 1, n]`."""
    x, *others = of.inputs
    match of.operation:
        case "values":
            return ops.embed(name, x, np.zeros((1, 1), np.int64))
        case "rms_norm" | "linear":
            return getattr(ops, of.operation)(name, x[None], *others)  # type: ignore[no-any-return]  # by its name
        case "rotate":
            base, position = others
            table = ops.rotary(f"{name}/table", np.array([position]), x.shape[-1], base)
            return ops.rotate(name, x[None, None], table)
        case "attention_weights":
            query = np.broadcast_to(x, others[0].shape)[None, None]  # the row asked for is the last
            scores = ops.scores(f"{name}/scores", query, others[0][None, None])
            return ops.softmax(name, scores)[..., -1:, :]
        case "silu":
            return ops.silu(name, x[None])
        case _:
            return getattr(ops, of.operation)(name, x[None], others[0][None])  # type: ignore[no-any-return]  # as above


def judge(run: Run) -> None:
    """Build the model, take its stages, and compare samples of each."""
    case = real_case(run.subject.limits, run.seed)
    run.subject.close()  # whatever stands there is small beside what comes
    parameters = run.subject.parameters(case)
    model = run.subject.build(case.config, parameters)
    try:
        _judge(run, case, model, parameters)
    finally:
        model.close()


def judge_checkpoint(run: Run) -> None:
    """The samples of a few batches. Raises `Absent` where a stage is missing: what follows it hangs in the air."""
    for case in run.fixed[:BATCHES]:
        judged = _judge(run, case, run.model(case), run.subject.parameters(case))
        missing = [name for name in stage_names(case.config.layers) if name not in judged]
        if missing:
            shown = ", ".join(dict.fromkeys(suffix(name) for name in missing))
            raise Absent(f"stages() must hand out every stage of so large a model; it lacks {shown}, or what they need")


def _judge(run: Run, case: Case, model: SubjectModel, parameters: Mapping[str, Array]) -> set[str]:
    """The names of the stages that were judged, the logits as `logits` returns them."""
    run.entry.examples += 1
    tokens, judged = arrays(case)[0], set()
    stages = {**model.stages(tokens), "logits": model.logits(tokens)}
    for name, comparison in Sampled(case, parameters, stages, run.subject.recipe).comparisons():
        run.judge(f"{name}, sampled", comparison, name)
        judged.add(name)
    return judged
