"""The diagnosis names the stage and the fault, over the whole bank; and says so when it does not know."""

import json

import numpy as np
import pytest

from decoderspec.faults.bank import BANK, by_name
from decoderspec.faults.case import Case
from decoderspec.faults.diagnosis import Observed, diagnose, diagnose_case
from decoderspec.faults.fault import Fault, FaultyReference, swap
from decoderspec.properties import cases
from decoderspec.spec.config import Config
from decoderspec.spec.precision import recipe

SMALL = cases.Case(Config(5, 8, 2, 3, 2, 6, 30.0, 1e-2), batch=2, tokens=4, seed=3)  # two blocks, and quick to judge
FORWARD = [fault for fault in BANK if fault.level == "forward"]
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
    for fault in FORWARD:
        if visible(fault, SMALL):
            setting, model = built(fault, SMALL)
            found = diagnose_case(setting, Observed(stages=model.stages(setting.tokens)), bank=(fault,))
            if found.first_wrong_stage is None or not fault.starts_at(found.first_wrong_stage):
                missed.append((fault.name, found.first_wrong_stage))
    assert not missed


def test_with_logits_alone_the_fault_and_its_stage_are_named_for_nearly_all():
    seen = [fault for fault in FORWARD if visible(fault, SMALL)]
    named, placed = 0, 0
    for fault in seen:
        setting, model = built(fault, SMALL)
        found = diagnose_case(setting, Observed(logits=model.logits(setting.tokens)))
        named += fault.name in [cause.fault for cause in found.causes]
        placed += bool(found.causes) and fault.starts_at(found.causes[0].stage)
    assert len(seen) > 200
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
    for fault in BANK:
        if fault.level in ("loss", "gradient"):
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


def test_a_right_implementation_has_no_wrong_stage_and_no_cause():
    fault = Fault(name="none", stage="", family="", sentence="", breaks=())
    setting, model = built(fault, SMALL)
    found = diagnose_case(setting, Observed(stages=model.stages(setting.tokens)))
    assert not found.wrong
    assert found.first_wrong_stage is None
    assert found.causes == ()


def test_an_unknown_fault_is_said_to_be_unknown_but_its_stage_is_found():
    strange = Fault(
        name="strange", stage="ffn.product", family="", sentence="", breaks=(),
        operations=swap(multiply=lambda a, b: a * b * 1.0371),
    )  # fmt: skip
    setting, model = built(strange, SMALL)
    found = diagnose_case(setting, Observed(stages=model.stages(setting.tokens)))
    assert found.first_wrong_stage == "blocks.0.ffn.product"
    assert found.causes == ()
    assert "no known fault" in found.describe()


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
    assert "likely cause: post-norm" in found.describe()
