"""What one call may do to another: nothing."""

from dataclasses import replace

import numpy as np

from decoderspec.properties.cases import Array, Case, affordable, other_ids
from decoderspec.properties.findings import Finding
from decoderspec.properties.registry import checks
from decoderspec.properties.run import Run
from decoderspec.properties.subject import called, fresh
from decoderspec.reference.limits import compare


@checks("DET-1", long=True)
def test_the_same_call_gives_the_same_bits(run: Run, case: Case) -> None:
    """Logits of the same tokens are equal to the last bit, whatever was called in between."""
    tokens, model = run.truth(case).batch[0], run.model(case)
    first = model.logits(tokens)
    shapes = () if run.has_dear_shapes else reshaped(case, tokens)
    for between in (other_ids(case, tokens), *shapes, tokens[:1, : max(1, case.tokens // 2)]):
        model.logits(between)
        run.same_bits("logits", model.logits(tokens), first, "the same tokens gave other logits the second time")
    if affordable(case):
        for capability in ("loss", "gradients"):
            if model.has(capability):
                getattr(model, capability)(*run.truth(case).batch)
        again = model.logits(tokens)
        run.same_bits("logits", again, first, "the same tokens gave other logits after loss and gradients")


def reshaped(case: Case, tokens: Array) -> list[Array]:
    """The same ids in the same order as one row, where the context is long enough."""
    return [tokens.reshape(1, -1)] if case.batch > 1 and tokens.size <= case.config.max_positions else []


@checks("DET-2")
def test_an_earlier_result_stays_as_it_was(run: Run, case: Case) -> None:
    """What was returned is not overwritten by a later call: logits, stages and gradients."""
    tokens, targets = run.truth(case).batch
    model, why = run.model(case), "a result that was returned earlier was overwritten"
    calls = {"logits": (tokens,), "stages": (tokens,), "gradients": (tokens, targets)}
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


@checks("DET-3")
def test_the_tokens_are_left_alone(run: Run, case: Case) -> None:
    """The caller's arrays of token and target ids are not written to."""
    model, (tokens, targets) = run.model(case), run.truth(case).batch
    for capability in ("logits", "loss", "gradients"):
        if not model.has(capability):
            continue
        handed = [fresh(tokens)] if capability == "logits" else [fresh(tokens), fresh(targets)]
        called(capability, getattr(model.model, capability), *handed)
        for what, array, kept in zip(("tokens", "targets"), handed, (tokens, targets), strict=False):
            run.same_bits(what, array, kept, f"the array of {what} that {capability} was given was written to")


@checks("DET-4", builds=True)
def test_two_models_do_not_disturb_each_other(run: Run, case: Case) -> None:
    """A model gives the same bits while another, with other parameters, is built and used; the other is right too.

    A checkpoint is loaded a second time, with the same parameters.
    """
    tokens, model = run.truth(case).batch[0], run.model(case)
    first = model.logits(tokens)
    beside = run.truth(replace(case, seed=case.seed + 1, stored=None))
    other = run.subject.build(case.config, beside.parameters)
    other.logits(beside.batch[0][:1, : max(1, case.tokens // 2)])  # a short sequence first
    moved = other.logits(beside.batch[0])
    if not run.sampled and run.truth(case).logits.judge(first, run.truth(case).units["logits"]).conforms:  # else VAL-1
        run.judge("logits of a second model", beside.logits.judge(moved, beside.units["logits"]))
    run.same_bits("logits", model.logits(tokens), first, "logits changed after another model was built and used")
    again = other.logits(beside.batch[0])
    run.same_bits("logits", again, moved, "the second model's logits changed after the first was used")
    other.close()


@checks("GRA-3", needs=["gradients"])
def test_gradients_do_not_add_up_over_calls(run: Run, case: Case) -> None:
    """A second call returns the same gradients within rounding, not the sum of both, nor those of other tokens."""
    truth, model = run.truth(case), run.model(case)
    tokens, targets = truth.batch
    other = model.gradients(other_ids(case, tokens), targets)
    first = model.gradients(tokens, targets)
    same = all(np.array_equal(value, other[name]) for name, value in first.items())
    if case.config.vocabulary_size > 1 and same and any(value.any() for value in first.values()):
        raise Finding("other tokens were given the same gradients", "gradients")
    second = model.gradients(tokens, targets)
    for name, value in first.items():
        if not np.isfinite(value).all():
            continue  # GRA-1 says so
        unit = np.sqrt(np.mean(np.square(truth.deviations[f"gradient.{name}"]), axis=0))
        unit = np.maximum(unit, np.max(unit) / 8)
        run.judge(
            f"gradient of {name}, called twice,", compare(second[name], (second[name] - value) / np.sqrt(2), unit)
        )


@checks("WGT-5", needs=["parameters"])
def test_calls_leave_the_parameters_alone(run: Run, case: Case) -> None:
    """Logits, loss and gradients do not write to the parameters."""
    truth, model = run.truth(case), run.model(case)
    before = model.parameters()
    model.logits(truth.batch[0])
    if model.has("loss"):
        model.loss(*truth.batch)
    if model.has("gradients"):
        model.gradients(*truth.batch)
    after = model.parameters()
    if list(after) != list(before):
        raise Finding("the names of the parameters changed after a call", "parameters")
    for name, value in before.items():
        run.same_bits(name, after[name], value, "a call changed a parameter")
