"""Shapes, values and stages against the oracle."""

import numpy as np

from decoderspec.properties.cases import Case, other_ids
from decoderspec.properties.findings import Finding, NotJudged
from decoderspec.properties.registry import checks
from decoderspec.properties.run import Run
from decoderspec.spec.stages import suffix


@checks("SHP-1", long=True)
def test_logits_have_one_row_per_token_and_one_column_per_id(run: Run, case: Case) -> None:
    """`[B, T]` ids give finite logits `[B, T, V]`."""
    logits = run.model(case).logits(run.truth(case).batch[0])
    if not np.isfinite(logits).all():
        index = tuple(int(i[0]) for i in (~np.isfinite(logits)).nonzero())
        raise Finding(f"logits{list(index)} is {logits[index]} on valid input", "logits")


@checks("VAL-1", long=True)
def test_logits_are_right_within_the_noise(run: Run, case: Case) -> None:
    """The logits differ from the oracle's by no more than rounding explains."""
    truth = run.truth(case)
    logits = run.model(case).logits(truth.batch[0])
    run.judge("logits", truth.judge_logits(logits))


@checks("VAL-2", needs=["stages"], long=True)
def test_each_stage_is_right_on_its_own_inputs(run: Run, case: Case) -> None:
    """Every stage given is the oracle's operation on the stages given before it, within the noise of that step."""
    truth = run.truth(case)
    given = run.model(case).stages(truth.batch[0])
    if not given:
        raise NotJudged("stages() hands out no stage")
    for stage, comparison in truth.judge_stages(given).items():
        run.judge(stage, comparison, stage)


@checks("VAL-3", needs=["stages"])
def test_the_last_stage_is_what_logits_returns(run: Run, case: Case) -> None:
    """`stages` describes the same computation as `logits`."""
    truth = run.truth(case)
    model = run.model(case)
    model.stages(other_ids(case, truth.batch[0]))  # what is kept of other tokens must not count
    given = model.stages(truth.batch[0])
    if "logits" in given:
        error = given["logits"] - model.logits(truth.batch[0])
        run.judge("logits", truth.logits.judge(truth.logits.high + error, truth.units["logits"]))


@checks("RES-1", where=lambda case: case.style == "silent", search=False)
def test_silent_branches_leave_the_stream_unchanged(run: Run, case: Case) -> None:
    """With both output matrices zero every block is the identity: logits are `RMSNorm(E[z]) @ E^T`."""
    truth = run.truth(case)
    logits = run.model(case).logits(truth.batch[0])
    run.judge("residual stream", truth.logits.judge(logits, truth.units["logits"]), "output")


@checks("ATT-1", needs=["stages"], long=True, where=lambda case: case.tokens > 1 and case.config.layers > 0)
def test_future_keys_have_weight_exactly_zero(run: Run, case: Case) -> None:
    """A key after the query has attention weight 0, not merely a small one."""
    given = run.model(case).stages(run.truth(case).batch[0])
    if not any(suffix(stage) == "attention.weights" for stage in given):
        raise NotJudged("stages() hands out no attention.weights")
    for stage, weights in given.items():
        if suffix(stage) == "attention.weights":
            future = np.where(np.tri(case.tokens, dtype=bool), 0.0, weights)
            if future.any():
                b, h, t, s = (int(i[0]) for i in future.nonzero())
                raise Finding(
                    f"{stage}: query {t} gives key {s}, which is after it, the weight {future[b, h, t, s]:.6g}"
                    f" (row {b}, head {h}); it must be exactly 0",
                    stage,
                )
