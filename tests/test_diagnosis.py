"""The diagnosis names the stage and the fault, over the whole bank; and says so when it does not know."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from decoderspec.bench import diagnosis
from decoderspec.faults import derivatives, hypotheses
from decoderspec.faults.bank import BANK, by_name
from decoderspec.faults.case import Case
from decoderspec.faults.diagnosis import Observed, diagnose, diagnose_case
from decoderspec.faults.fault import Fault, FaultyReference, alone, swap
from decoderspec.faults.local import local_reports
from decoderspec.faults.words import describe
from decoderspec.properties import cases
from decoderspec.properties.truth import Truth
from decoderspec.spec.config import Config
from decoderspec.spec.precision import recipe

SMALL = cases.Case(Config(5, 8, 2, 3, 2, 6, 30.0, 1e-2), batch=2, tokens=4, seed=3)  # two blocks, and quick to judge
FORWARD = [fault for fault in BANK if fault.level == "forward"]
SAMPLE = FORWARD[::8]  # bench/diagnosis.py measures all of them
TRAINING = [fault for fault in BANK if fault.level in ("loss", "gradient")]
RIGHT = Fault(name="none", stage="", family="", sentence="", breaks=())
PAGE = Path(__file__).parent.parent / "docs" / "diagnosis.md"
KNOWN = {}


def case_at(case, precision):
    key = (case, str(precision))
    if key not in KNOWN:
        rule = recipe(precision)
        KNOWN[key] = Case(case.config, cases.draw_parameters(case, rule), *cases.arrays(case), rule, case.seed)
    return KNOWN[key]


def built(fault, case, precision=None):
    """The fault's model of a case, at its own precision or another."""
    setting = case_at(case, precision or fault.precision)
    return setting, FaultyReference(fault).build(case.config, setting.parameters)


def visible(fault, case):
    setting, model = built(fault, case)
    logits = model.logits(setting.tokens)
    right = (*setting.tokens.shape, case.config.vocabulary_size)
    return logits.shape == right and diagnose_case(setting, Observed(logits=logits), bank=()).wrong


def test_with_stages_the_right_stage_is_named_for_every_visible_fault():
    missed = []
    for fault in SAMPLE:
        if visible(fault, SMALL):
            setting, model = built(fault, SMALL)
            found = diagnose_case(setting, Observed(stages=model.stages(setting.tokens)), bank=(fault,))
            if found.first_wrong_stage is None or not fault.starts_at(found.first_wrong_stage):
                missed.append((fault.name, found.first_wrong_stage))
    assert not missed


def test_with_logits_alone_the_fault_and_its_stage_are_named_for_nearly_all():
    seen = [fault for fault in SAMPLE if visible(fault, SMALL)]
    named, placed = 0, 0
    for fault in seen:
        setting, model = built(fault, SMALL)
        found = diagnose_case(setting, Observed(logits=model.logits(setting.tokens)))
        named += fault.name in [cause.fault for cause in found.causes]
        placed += bool(found.causes) and fault.starts_at(found.causes[0].stage)
    assert len(seen) > 25
    assert named >= 0.9 * len(seen)
    assert placed >= 0.95 * len(seen)


def test_rounding_of_an_implementation_does_not_hide_the_cause():
    """At float32, where what is observed has roundings that the hypothesis has not."""
    names = (
        "norm-fourth-root", "half-split-rotation", "post-norm", "gelu-for-silu", "logits-capped", "blocks-reversed",
        "scale-of-model-width", "heads-interleaved", "mask-fills-minus-ten", "norm-epsilon-outside-root",
    )  # fmt: skip
    for name in names:
        fault = Fault(**{**vars(by_name(name)), "precision": "float32"})
        setting, model = built(fault, SMALL)
        found = diagnose_case(setting, Observed(logits=model.logits(setting.tokens)))
        assert name in [cause.fault for cause in found.causes], name


def test_training_faults_are_named_and_their_derivative_is_placed():
    for fault in TRAINING[::8]:
        found = trained(fault, SMALL)
        assert not found.wrong or fault.name in [cause.fault for cause in found.causes], fault.name


def trained(fault, case):
    setting, model = built(fault, case)
    batch = setting.tokens, setting.targets
    return diagnose_case(
        setting,
        Observed(model.logits(batch[0]), {}, model.loss(*batch), model.gradients(*batch), model.role_gradients(*batch)),
    )


@pytest.mark.parametrize(
    ("name", "derivative"),
    [
        ("gain-gradient-averaged", "rms_norm by its gain"),
        ("value-gradient-missing", "mix by its value"),
        ("lookup-gradient-overwrites", "embed"),
        ("loss-gradient-not-averaged", "nll"),
        ("silu-slope-is-sigmoid", "silu"),
        ("matrix-gradient-halved", "linear by its weight"),
    ],
)
def test_the_wrong_derivative_is_found_without_knowing_the_fault(name, derivative):
    assert derivative in trained(by_name(name), SMALL).derivatives


def from_gradients(name):
    """What is said of a fault from its gradients alone, with no faults to compare with."""
    setting, model = built(by_name(name), SMALL)
    batch = setting.tokens, setting.targets
    seen = Observed(gradients=model.gradients(*batch), role_gradients=model.role_gradients(*batch))
    return diagnose_case(setting, seen, bank=())


@pytest.mark.parametrize(
    ("name", "derivative"),
    [
        ("norm-pullback-without-variance", "rms_norm by its stream"),
        ("loss-gradient-scaled", "nll"),
        ("head-input-gradient-missing", "project by its input"),
        ("up-gradient-missing", "multiply by its up"),
        ("table-gradient-twice", derivatives.ADDED_UP),
        ("roles-exchanged", derivatives.TOLD_APART),
        ("gradients-doubled", derivatives.FINISHED),
    ],
)
def test_one_derivative_is_named_where_the_gradients_decide(name, derivative):
    found = from_gradients(name)
    assert found.derivatives == (derivative,)
    assert f"one wrong derivative explains these gradients: {derivative}" in describe(found)


def test_what_the_gradients_cannot_decide_is_said_to_be_undecidable():
    """The gradient of the scores is too large by a factor: so it would be if that of the softmax or the mix were."""
    found = from_gradients("scale-missing-in-pullback")
    assert "scores by its query and key" in found.derivatives
    assert len(found.derivatives) > 1
    assert "cannot decide whose derivative is wrong" in describe(found)


def test_least_squares_exclude_what_other_gradients_being_wrong_does_not():
    """Softmax and mix would change the same gradients; what was given is none that the mix could have led to."""
    found = from_gradients("softmax-pullback-diagonal")
    assert "softmax" in found.derivatives
    assert "mix by its weights" not in found.derivatives


def test_a_right_implementation_has_no_wrong_stage_and_no_cause_and_it_is_said_plainly():
    setting, model = built(RIGHT, SMALL)
    found = diagnose_case(setting, Observed(stages=model.stages(setting.tokens)))
    assert not found.wrong
    assert found.first_wrong_stage is None
    assert found.causes == ()
    assert describe(found).startswith("nothing is wrong: 38 stages and the logits compared")


def test_a_stage_that_is_wrong_in_the_mean_alone_is_marked():
    """Every element of a stage is off by three times its noise: no single one is beyond its limit."""
    setting, model = built(RIGHT, SMALL)
    stages = model.stages(setting.tokens)
    name = "blocks.1.ffn.output"
    unit = setting.stage_noise(stages, setting.recipe)[name][0]
    stages[name] = stages[name] + 3 * unit
    found = diagnose_case(setting, Observed(stages=stages), bank=())
    (report,) = [report for report in found.stages if report.name == name]
    assert report.noise < report.allowed
    assert found.first_wrong_stage == name
    assert report.to_json()["mean_noise"] > report.to_json()["mean_allowed"]
    assert "<- first wrong, in the mean" in describe(found)


@pytest.mark.parametrize("precision", ["float64", "float32", "bfloat16", "bfloat16-mixed"])
def test_stages_are_judged_as_the_properties_judge_them(precision):
    """Both statistics and their limits; stages that are handed out finer than declared too."""
    rule = recipe(precision)
    setting, _ = built(RIGHT, SMALL, precision)
    stages = FaultyReference(RIGHT).build(SMALL.config, setting.parameters).stages(setting.tokens)
    theirs = Truth(SMALL, setting.parameters, rule).judge_stages(stages)
    for report in local_reports(setting, stages):
        assert report.comparison.excess == pytest.approx(theirs[report.name].excess, rel=1e-6)
        assert report.conforms == theirs[report.name].conforms


def test_the_noise_of_a_hypothesis_treats_rows_that_are_alike_as_the_truth_does():
    """For the right formulas both are the same noise."""
    for case in cases.fixed_cases():
        if case.note in ("one id everywhere", "seventeen rows, seventeen heads", "all sizes differ"):
            setting, _ = built(RIGHT, case, "float32")
            whole = hypotheses.Hypothesis((RIGHT,), "logits", hypotheses._forward_values(setting, RIGHT, {}, "logits"))
            exact = hypotheses.computed(setting, whole)
            mine, theirs = hypotheses.own_noise(setting, whole, exact), setting.stage_noise({}, setting.recipe)
            assert np.allclose(mine["logits"][0], theirs["logits"][0], rtol=1e-6)
            assert mine["logits"][1] == pytest.approx(theirs["logits"][1], rel=1e-6)


def test_what_the_right_formulas_do_as_well_is_no_cause():
    """Wrong in the mean alone, in bfloat16: every fault that does not touch the stage is within the noise of it."""
    (case,) = [case for case in cases.fixed_cases() if case.note == "several blocks of keys"]
    setting, model = built(by_name("bfloat16-rotary-angles"), case)
    found = diagnose_case(setting, Observed(stages=model.stages(setting.tokens)))
    assert found.first_wrong_stage == "blocks.0.attention.rotated_query"
    assert {cause.fault for cause in found.causes} == {"rotary-angles-in-bfloat16", "bfloat16-rotary-angles"}


def test_a_hypothesis_that_is_nowhere_near_is_not_a_number():
    found = trained(by_name("scale-squared"), SMALL)
    assert found.next is not None
    assert not found.next.near
    assert "next hypothesis: no other comes near" in describe(found)
    assert found.to_json()["next"]["near"] is False


def test_a_hypothesis_that_is_near_is_told_with_its_distance():
    """In bfloat16 the two approximations of the same activation are within a few hundred roundings."""
    setting, model = built(replace(by_name("gelu-for-silu"), precision="bfloat16"), SMALL)
    found = diagnose_case(setting, Observed(logits=model.logits(setting.tokens)))
    assert found.next is not None
    assert f"next hypothesis: {found.next.fault}, {found.next.noise:.3g} x noise" in describe(found)


def test_it_is_said_why_a_fixed_tolerance_passes_it():
    """A product that is too large by a hundred-millionth is within 1e-5, and far above the noise."""
    slight = Fault(
        name="slight", stage="ffn.product", family="", sentence="", breaks=(),
        operations=swap(multiply=lambda a, b: a * b * (1 + 1e-8)),
    )  # fmt: skip
    setting, model = built(slight, SMALL)
    found = diagnose_case(setting, Observed(logits=model.logits(setting.tokens)), bank=())
    assert found.wrong
    assert found.closeness.error < 1e-5 < found.closeness.width
    assert "a test at atol=1e-5 passes it" in describe(found)


def test_it_is_said_that_initial_parameters_hide_it():
    """Gains of one hide a gain that is left out."""
    found = trained(by_name("final-norm-without-gain"), SMALL)
    assert found.closeness.error > 1e-5 > found.closeness.fresh
    assert "passes it with freshly initialized parameters" in describe(found)


@pytest.mark.parametrize(
    ("hint", "shown", "hidden"),
    [
        (1, ["blocks.0.attention.weights"], ["hint 2, ", "scale", "seen before"]),
        (2, ["blocks.0.attention.weights", "hint 2, the kind: attention"], ["scale", "divided", "seen before"]),
        (3, ["blocks.0.attention.weights", "attention", "scale-squared", "divided by the head width"], []),
    ],
)
def test_hints_come_in_steps(hint, shown, hidden):
    setting, model = built(by_name("scale-squared"), SMALL)
    found = diagnose_case(setting, Observed(stages=model.stages(setting.tokens)))
    text, plain = describe(found, hint), json.dumps(found.to_json(hint))
    assert all(word in text for word in shown)
    assert not any(word in text or word in plain for word in hidden)
    assert set(found.to_json(hint)) == {
        "hint", "wrong", "first_wrong_stage", "place", *(["kind"] if hint > 1 else []),
        *(["likely_causes"] if hint > 2 else []),
    }  # fmt: skip


def test_a_hint_of_a_wrong_derivative_names_the_derivative_alone():
    found = trained(by_name("gain-gradient-averaged"), SMALL)
    assert "hint 1, the stage: the derivative of rms_norm by its gain" in describe(found, 1)
    assert "averaged" not in describe(found, 1) + json.dumps(found.to_json(1))


def test_the_measured_bank_is_this_bank_and_the_rates_are_those_that_are_wanted():
    """Measure again with `python -m decoderspec.bench.diagnosis --page docs/diagnosis.md` when faults are added."""
    text = PAGE.read_text(encoding="utf-8")
    assert f"{len(BANK)} faults (digest `{diagnosis.digest()}`)" in text
    for name, wanted in diagnosis.TARGETS.items():
        (row,) = re.findall(rf"\| {re.escape(diagnosis.WORDS[name])} \| (\d+) \| (\d+) \|", text)
        assert int(row[0]) / int(row[1]) >= wanted, name


def test_the_measurement_counts_what_is_missed(monkeypatch):
    """A fault whose stage is declared wrongly is missed by every count of stages, and named all the same."""
    monkeypatch.setattr(diagnosis, "candidates", lambda: [SMALL])
    lying = replace(by_name("gelu-for-silu"), name="lying", stage="attention.query", also=())
    found = diagnosis.forward([lying, by_name("scale-squared")])
    assert (found["stage, with stages"].right, found["stage, with stages"].tried) == (1, 2)
    assert found["fault, logits alone"].right == 2
    assert found["stage, left out, logits alone"].silent == 2
    behind = diagnosis.backward([by_name("gain-gradient-averaged"), by_name("square-matrix-pulled-back-untransposed")])
    assert (behind.placed.right, behind.placed.silent, behind.decided) == (1, 1, 1)


def test_an_unknown_fault_is_said_to_be_unknown_but_its_stage_is_found():
    strange = Fault(
        name="strange", stage="ffn.product", family="", sentence="", breaks=(),
        operations=swap(multiply=lambda a, b: a * b * 1.0371),
    )  # fmt: skip
    setting, model = built(strange, SMALL)
    found = diagnose_case(setting, Observed(stages=model.stages(setting.tokens)))
    assert found.first_wrong_stage == "blocks.0.ffn.product"
    assert found.causes == ()
    assert "no known fault" in describe(found)


def test_the_first_fault_is_named_where_two_are_present():
    """Each stage is judged on its own inputs, so that the second fault does not hide the first."""
    first, second = by_name("scale-of-model-width"), by_name("gelu-for-silu")
    both = Fault(**{**vars(first), "operations": lambda ops: second.operations(first.operations(ops))})
    setting, model = built(both, SMALL)
    found = diagnose_case(setting, Observed(stages=model.stages(setting.tokens)))
    assert found.first_wrong_stage == "blocks.0.attention.weights"
    assert found.causes[0].fault == "scale-of-model-width"
    wrong = {report.name.partition(".")[2].partition(".")[2] for report in found.stages if not report.conforms}
    assert wrong == {"attention.weights", "ffn.silu"}


def test_two_faults_are_found_as_a_pair_from_logits_alone():
    first, second = by_name("scale-of-model-width"), by_name("gelu-for-silu")
    both = Fault(**{**vars(first), "operations": lambda ops: second.operations(first.operations(ops))})
    setting, model = built(both, SMALL)
    few = [first, second, *FORWARD[:12]]
    found = diagnose_case(setting, Observed(logits=model.logits(setting.tokens)), bank=few, pairs=True)
    assert {first.name, second.name} == set(found.causes[0].fault.split(" and "))


def test_a_missing_stage_is_bracketed():
    fault = by_name("half-split-rotation")
    setting, model = built(fault, SMALL)
    stages = model.stages(setting.tokens)
    some = ("attention_norm", "after_attention", "logits")
    kept = {name: value for name, value in stages.items() if name.endswith(some)}
    found = diagnose_case(setting, Observed(stages=kept))
    assert (found.after, found.first_wrong_stage) == ("blocks.0.attention_norm", "blocks.0.after_attention")
    assert "half-split-rotation" in [cause.fault for cause in found.causes]


def test_values_that_are_not_finite_are_wrong_and_named():
    setting, model = built(by_name("silu-overflows"), cases.fixed_cases()[2])
    found = diagnose_case(setting, Observed(stages=model.stages(setting.tokens)))
    assert found.first_wrong_stage is not None
    assert found.first_wrong_stage.endswith("ffn.silu")
    assert "silu-overflows" in [cause.fault for cause in found.causes]


def test_the_loss_is_judged_on_its_own_logits():
    found = trained(by_name("loss-summed"), SMALL)
    assert found.loss is not None
    assert not found.loss.conforms
    assert found.causes[0].fault == "loss-summed"


def test_bits_are_those_of_the_precision():
    for precision, bits in (("float32", 24), ("bfloat16", 8)):
        fault = Fault(name="none", stage="", family="", sentence="", breaks=(), precision=precision)
        setting, model = built(fault, SMALL)
        found = diagnose_case(setting, Observed(stages=model.stages(setting.tokens)))
        assert not found.wrong
        assert np.median([report.bits for report in found.stages if report.bits < 53]) == pytest.approx(bits, abs=2.5)


def test_a_diagnosis_is_plain_data_and_a_page():
    setting, model = built(by_name("post-norm"), SMALL)
    found = diagnose(
        SMALL.config, setting.parameters, setting.tokens, setting.targets, setting.recipe,
        Observed(logits=model.logits(setting.tokens)),
    )  # fmt: skip
    plain = json.loads(json.dumps(found.to_json()))
    assert {"first_wrong_stage", "stages", "likely_causes"} <= set(plain)
    assert {"fault", "stage", "noise"} <= set(plain["likely_causes"][0])
    assert {"name", "noise", "allowed", "bits"} <= set(plain["stages"][0])
    assert "likely cause: post-norm" in describe(found)


def only(place, name):
    """A fault of the bank at one stage of one block."""
    fault = by_name(name)
    return replace(fault, operations=alone(place, fault.operations))


@pytest.mark.parametrize(
    ("name", "place"), [("norm-epsilon-left-out", "final_norm"), ("scale-squared", "blocks.1.attention.weights")]
)
def test_a_fault_at_one_place_alone_is_named_from_the_logits(name, place):
    setting, model = built(only(place, name), SMALL)
    found = diagnose_case(setting, Observed(logits=model.logits(setting.tokens)))
    assert f"{name} at {place} alone" in [cause.fault for cause in found.causes]
    assert all(cause.stage.rpartition(".")[0] == place.rpartition(".")[0] for cause in found.causes)


def test_a_cause_is_placed_at_the_stage_that_is_wrong():
    setting, model = built(only("final_norm", "norm-epsilon-left-out"), SMALL)
    found = diagnose_case(setting, Observed(stages=model.stages(setting.tokens)))
    assert (found.causes[0].fault, found.causes[0].stage) == ("norm-epsilon-left-out", "final_norm")
