"""The fault bank: every fault is documented, changes what it says it breaks, and is 1 to 5 lines of difference."""

import numpy as np
import pytest

from decoderspec.faults.bank import BANK, by_name
from decoderspec.faults.equivalents import EQUIVALENT, UNSEEN_IN_LOGITS
from decoderspec.faults.fault import FaultyReference
from decoderspec.properties.cases import arrays, draw_parameters, fixed_cases, long_cases
from decoderspec.properties.test_training import affordable
from decoderspec.reference import units
from decoderspec.reference.limits import compare
from decoderspec.reference.model import Reference
from decoderspec.spec.precision import recipe
from decoderspec.spec.requirements import requirements
from decoderspec.spec.stages import BLOCK_STAGES

CASES = fixed_cases() + long_cases("default")
BY_PRECISION = {}


def setting(index, precision):
    """Parameters, ids, the reference's values and noise units of a case."""
    key = (index, str(precision))
    if key not in BY_PRECISION:
        case, rule = CASES[index], recipe(precision)
        parameters, (tokens, targets) = draw_parameters(case, rule), arrays(case)
        if not affordable(case):
            compute = units.stage_values(case.config, parameters, tokens, {})
        else:
            compute = units.training_values(case.config, parameters, tokens, targets)
        unit = {name: units.unit(value) for name, value in units.deviations(compute, rule, case.seed).items()}
        model = Reference().build(case.config, parameters)
        BY_PRECISION[key] = parameters, tokens, targets, model, unit
    return BY_PRECISION[key]


def differs(got, right, unit):
    if got.shape != right.shape:
        return True
    with np.errstate(invalid="ignore"):
        return not compare(got, (got - right) / np.sqrt(2), unit).conforms


def logits_differ(fault, index):
    parameters, tokens, _, model, unit = setting(index, fault.precision)
    got = FaultyReference(fault).build(CASES[index].config, parameters).logits(tokens)
    return differs(got, model.logits(tokens), unit["logits"])


def stages_differ(fault, index):
    parameters, tokens, _, model, unit = setting(index, fault.precision)
    got, right = FaultyReference(fault).build(CASES[index].config, parameters).stages(tokens), model.stages(tokens)
    return any(differs(value, right[name], unit[name]) for name, value in got.items())


def weights_of_the_future(fault, index):
    parameters, tokens, _, _, _ = setting(index, fault.precision)
    stages = FaultyReference(fault).build(CASES[index].config, parameters).stages(tokens)
    return any(np.triu(value, 1).any() for name, value in stages.items() if name.endswith("attention.weights"))


def prefix_bits_move(fault, index):
    parameters, tokens, _, _, _ = setting(index, fault.precision)
    model = FaultyReference(fault).build(CASES[index].config, parameters)
    other = tokens.copy()
    other[:, -1] = (other[:, -1] + 1) % CASES[index].config.vocabulary_size
    return (model.logits(tokens)[:, :-1] != model.logits(other)[:, :-1]).any()


def test_every_fault_says_what_it_is():
    known = requirements()
    for fault in BANK:
        assert fault.sentence, fault.name
        assert fault.breaks, fault.name
        assert set(fault.breaks) <= set(known), fault.name
        assert fault.level == "contract" or fault.family != "state", fault.name
    names = [fault.name for fault in BANK]
    assert len(names) == len(set(names))


def test_forward_faults_start_at_a_stage_of_the_text():
    stages = {"embedding", *BLOCK_STAGES, "final_norm", "logits"}
    for fault in BANK:
        if fault.level == "forward":
            assert {fault.stage, *fault.also} <= stages, fault.name


def test_every_requirement_of_a_model_has_a_fault_that_breaks_it():
    broken = {requirement for fault in BANK for requirement in fault.breaks}
    assert {name for name in requirements() if not name.startswith(("OPN", "BIG"))} <= broken


def test_a_fault_is_found_by_its_name():
    assert by_name("post-norm").name == "post-norm"
    with pytest.raises(KeyError, match="post-norm"):
        by_name("postnorm-norm")


@pytest.mark.parametrize("fault", [f for f in BANK if f.level == "forward"], ids=lambda fault: fault.name)
def test_forward_faults_show_on_a_fixed_case(fault):
    """In the logits, unless only stages or bits are said to change."""
    seen = stages_differ if fault.breaks == ("VAL-2",) else logits_differ
    seen = weights_of_the_future if fault.breaks == ("ATT-1",) else seen
    seen = prefix_bits_move if "CAU-2" in fault.breaks else seen
    assert any(seen(fault, index) for index in range(len(CASES)))


@pytest.mark.parametrize("fault", [f for f in BANK if f.level in ("loss", "gradient")], ids=lambda fault: fault.name)
def test_training_faults_show_on_a_fixed_case_and_leave_the_logits(fault):
    """The forward pass is right to the bit; the loss or a gradient is not."""
    for index in (index for index, case in enumerate(CASES) if affordable(case)):
        parameters, tokens, targets, right, unit = setting(index, fault.precision)
        wrong = FaultyReference(fault).build(CASES[index].config, parameters)
        if fault.precision == "float64":
            assert np.array_equal(wrong.logits(tokens), right.logits(tokens))
        seen = (of_loss if fault.level == "loss" else of_gradients)(wrong, tokens, targets)
        known = of_loss(right, tokens, targets) | of_gradients(right, tokens, targets)
        if any(differs(value, known[name], unit[name]) for name, value in seen.items()):
            return
    pytest.fail("no case shows it")


def of_loss(model, tokens, targets):
    return {"loss": np.asarray(model.loss(tokens, targets))}


def of_gradients(model, tokens, targets):
    gradients, (lookup, head) = model.gradients(tokens, targets), model.role_gradients(tokens, targets)
    named = {f"gradient.{name}": value for name, value in gradients.items()}
    return {**named, units.LOOKUP: lookup, units.HEAD: head}


@pytest.mark.parametrize("fault", EQUIVALENT, ids=lambda fault: fault.name)
def test_equivalent_mutants_show_nowhere(fault):
    assert fault.proof
    for index in range(len(CASES)):
        assert not stages_differ(fault, index)


@pytest.mark.parametrize("fault", UNSEEN_IN_LOGITS, ids=lambda fault: fault.name)
def test_some_mutants_show_in_stages_alone(fault):
    assert not any(logits_differ(fault, index) for index in range(len(CASES) - 1))
    assert stages_differ(fault, 0)


def test_a_fault_at_a_lower_precision_rounds_all_its_results():
    fault = by_name("rotary-table-in-float16")
    parameters, tokens, _, _, _ = setting(0, fault.precision)
    stages = FaultyReference(fault).build(CASES[0].config, parameters).stages(tokens)
    assert all(np.array_equal(value, value.astype(np.float32)) for value in stages.values())
