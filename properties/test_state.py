"""What one call may do to another: nothing."""

import numpy as np

from decoderspec.properties.cases import Case, affordable, other_ids, sloping
from decoderspec.properties.findings import Finding
from decoderspec.properties.history import batches, beside, disturb, reshaped, settle, unsettle
from decoderspec.properties.registry import checks
from decoderspec.properties.run import Run
from decoderspec.properties.subject import called, fresh
from decoderspec.reference.limits import compare_gradient
from decoderspec.spec.protocol import METHODS, WITH_TARGETS, arguments


@checks("DET-1", long=True)
def test_the_same_call_gives_the_same_bits(run: Run, case: Case) -> None:
    """Logits of the same tokens are equal to the last bit, whatever was called in between."""
    tokens, model = run.truth(case).batch[0], run.model(case)
    first = model.logits(tokens)
    for between, _ in batches(run, case):
        model.logits(between)
        run.same_bits("logits", model.logits(tokens), first, "the same tokens gave other logits the second time")
    if affordable(case):
        settle(run, case, model, *WITH_TARGETS)
        again = model.logits(tokens)
        run.same_bits("logits", again, first, "the same tokens gave other logits after loss and gradients")
        disturb(run, case, model)
        again = model.logits(tokens)
        run.same_bits("logits", again, first, "the same tokens gave other logits after loss and gradients of others")
    buffer = fresh(other_ids(case, tokens))
    called("logits", model.model.logits, buffer)
    buffer[...] = tokens
    refilled = model.read("logits", called("logits", model.model.logits, buffer))["logits"]
    run.same_bits("logits", refilled, first, "the same tokens gave other logits in an array that had held others")


@checks("DET-2")
def test_an_earlier_result_stays_as_it_was(run: Run, case: Case) -> None:
    """What was returned is not overwritten by a later call of any kind: logits, stages, loss and gradients."""
    tokens, targets = run.truth(case).batch
    model, why = run.model(case), "a result that was returned earlier was overwritten"
    calls = {name: arguments(name, tokens, targets) for name in METHODS}
    kept, before = {}, {}
    for name, given in calls.items():
        if model.has(name):
            kept[name] = model.raw(name, *given)
            before[name] = model.read(name, kept[name])
    for name in kept:
        model.raw(name, other_ids(case, tokens), *calls[name][1:])
    for name, value in kept.items():
        for part, array in model.read(name, value).items():
            run.same_bits(part, array, before[name][part], why)


@checks("DET-2", search=False, most=2)
def test_what_is_written_into_a_result_reaches_no_later_one(run: Run, case: Case) -> None:
    """A result is the caller's: writing into it does not change what the same call returns."""
    tokens, model = run.truth(case).batch[0], run.model(case)
    first, handed = model.logits(tokens), model.raw("logits", tokens)
    if isinstance(handed, np.ndarray) and handed.flags.writeable:
        handed[...] = 0
    run.same_bits("logits", model.logits(tokens), first, "what was written into a result came back in the next")


@checks("DET-3")
def test_the_tokens_are_left_alone(run: Run, case: Case) -> None:
    """The caller's arrays of token and target ids are not written to."""
    model, (tokens, targets) = run.model(case), run.truth(case).batch
    for capability in METHODS:
        if not model.has(capability):
            continue
        handed = arguments(capability, fresh(tokens), fresh(targets))
        called(capability, getattr(model.model, capability), *handed)
        for what, array, kept in zip(("tokens", "targets"), handed, (tokens, targets), strict=False):
            run.same_bits(what, array, kept, f"the array of {what} that {capability} was given was written to")


@checks("DET-4", builds=True)
def test_two_models_do_not_disturb_each_other(run: Run, case: Case) -> None:
    """A model gives the same bits while another, with other parameters, is built and used; the other is right too.

    Of the same configuration, or of another base and epsilon where that may be. A checkpoint is loaded a second time.
    """
    there = beside(run, case)
    tokens, model, truth = run.truth(case).batch[0], run.model(case), run.truth(there)
    first = model.logits(tokens)
    other = run.subject.build(there.config, truth.parameters)
    for ids in () if run.has_dear_shapes else reshaped(run, there):
        other.logits(ids)
    moved = other.logits(truth.batch[0])
    if not run.sampled and run.truth(case).logits.judge(first, run.truth(case).units["logits"]).conforms:  # else VAL-1
        run.judge("logits of a second model", truth.logits.judge(moved, truth.units["logits"]))
    run.same_bits("logits", model.logits(tokens), first, "logits changed after another model was built and used")
    again = other.logits(truth.batch[0])
    run.same_bits("logits", again, moved, "the second model's logits changed after the first was used")
    other.close()


@checks("GRA-1", needs=["gradients"], search=False, most=2, builds=True, where=sloping)
def test_gradients_are_right_beside_another_model(run: Run, case: Case) -> None:
    """With another model built and used, of another base and epsilon where that may be, both have right gradients."""
    there = beside(run, case)
    run.truth(case).require_whole()
    other = run.subject.build(there.config, run.truth(there).parameters)
    for which, at, model in (("a second", there, other), ("the first", case, run.model(case))):
        gradients = model.gradients(*run.truth(at).batch)
        run.judge(f"slope of the loss of {which} model", run.truth(at).judge_slope(tuple(gradients), gradients))
    other.close()


@checks("GRA-3", needs=["gradients"])
def test_gradients_do_not_add_up_over_calls(run: Run, case: Case) -> None:
    """A second call returns the same gradients within rounding, not the sum of both."""
    truth, model = run.truth(case), run.model(case)
    tokens, targets = truth.batch
    model.gradients(other_ids(case, tokens), targets)  # what adds up would show; what is kept, GRA-1 finds
    first = model.gradients(tokens, targets)
    second = model.gradients(tokens, targets)
    for name, value in first.items():
        if not np.isfinite(value).all():
            continue  # GRA-1 says so
        unit = np.sqrt(np.mean(np.square(truth.deviations[f"gradient.{name}"]), axis=0))
        unit = np.maximum(unit, np.max(unit) / 8)
        again = compare_gradient(second[name], (second[name] - value) / np.sqrt(2), unit)
        run.judge(f"gradient of {name}, called twice,", again)


@checks("WGT-5", needs=["parameters"])
def test_calls_leave_the_parameters_alone(run: Run, case: Case) -> None:
    """No call but `assign` writes to the parameters."""
    model = run.model(case)
    before = model.parameters()
    unsettle(run, case, model, *METHODS)
    after = model.parameters()
    if list(after) != list(before):
        raise Finding("the names of the parameters changed after a call", "parameters")
    for name, value in before.items():
        run.same_bits(name, after[name], value, "a call changed a parameter")
