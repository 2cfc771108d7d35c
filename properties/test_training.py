"""Loss and gradients against the oracle, and the two roles of the tied table."""

from collections.abc import Mapping

import numpy as np

from decoderspec.properties.cases import Array, Case, affordable, elementwise, other_ids, sloping
from decoderspec.properties.findings import Finding
from decoderspec.properties.history import orders, unsettle
from decoderspec.properties.observed import own_loss
from decoderspec.properties.registry import checks
from decoderspec.properties.run import Run
from decoderspec.properties.truth import Truth
from decoderspec.reference.limits import compare_gradient
from decoderspec.reference.units import unit
from decoderspec.spec.parameters import TABLE


@checks("LOS-1", needs=["loss"], long=True)
def test_loss_is_the_mean_over_all_positions(run: Run, case: Case) -> None:
    """The loss is the mean of `-log softmax(logits)[target]` over all `B*T` positions, within the noise."""
    if run.sampled or not affordable(case):  # the logits are judged apart
        run.judge("loss, of the logits given,", own_loss(run, case, run.subject.recipe))
        return
    truth, model = run.truth(case), run.model(case)
    unsettle(run, case, model, "loss")
    for batch in orders(run, case):
        loss = np.asarray(model.loss(*batch))
        run.judge("loss", truth.loss.judge(loss, truth.loss_unit()))


@checks("GRA-1", needs=["gradients"], where=sloping, long=True)
def test_gradients_are_right_along_a_direction(run: Run, case: Case) -> None:
    """Gradients of all parameters together, projected on a random direction, give the true slope of the loss."""
    truth, model = run.truth(case), run.model(case)
    unsettle(run, case, model, "gradients")
    for batch in orders(run, case):
        _require_slope(run, truth, model.gradients(*batch))


def _require_slope(run: Run, truth: Truth, gradients: Mapping[str, Array]) -> None:
    """All gradients together; only where those are wrong each alone, to place it."""
    for name, value in gradients.items():
        if not np.isfinite(value).all():
            raise Finding(f"the gradient of {name} is not finite on valid input", f"gradient.{name}")
    together = truth.judge_slope(tuple(gradients), gradients)
    for name in () if together.conforms else gradients:
        run.judge(f"gradient of {name}", truth.judge_slope((name,), gradients), f"gradient.{name}")
    run.judge("slope of the loss", together)


@checks("GRA-2", needs=["gradients"], where=elementwise, search=False, most=3)
def test_every_element_of_every_gradient_is_right(run: Run, case: Case) -> None:
    """On the smallest cases each element is compared with its own true derivative."""
    truth = run.truth(case)
    gradients = run.model(case).gradients(*truth.batch)
    for name, comparison in truth.judge_elements(gradients).items():
        run.judge(f"gradient of {name}", comparison, f"gradient.{name}")


def _resolved(case: Case) -> bool:
    """Whether each parameter by itself moves the loss: a derivative of zero takes the oracle all its digits."""
    return case.config.vocabulary_size > 1 and case.style != "silent"


@checks("GRA-4", needs=["gradients"], search=False, most=5, where=_resolved)
def test_the_gradient_of_each_parameter_is_right_along_a_direction(run: Run, case: Case) -> None:
    """As GRA-1, one parameter at a time, on the fixed cases."""
    truth = run.truth(case)
    gradients = run.model(case).gradients(*truth.batch)
    names = list(gradients) if case.config.layers <= 2 else [TABLE]
    truth.know_slopes([(name,) for name in names])
    for name in names:
        run.judge(f"gradient of {name}", truth.judge_slope((name,), gradients), f"gradient.{name}")


@checks("TIE-1", needs=["gradients", "role_gradients"])
def test_the_roles_of_the_table_add_up(run: Run, case: Case) -> None:
    """The table's gradient is the sum of its gradients as lookup and as head."""
    truth, model = run.truth(case), run.model(case)
    model.role_gradients(other_ids(case, truth.batch[0]), truth.batch[1])  # what is kept of other tokens must not count
    whole = model.gradients(*truth.batch)[TABLE]
    lookup, head = model.role_gradients(*truth.batch)
    error = (lookup + head - whole) / np.sqrt(2)
    run.judge("sum of the two roles", compare_gradient(whole, error, unit(truth.deviations[f"gradient.{TABLE}"])))


@checks("TIE-2", needs=["role_gradients"], long=True)
def test_the_lookup_role_touches_only_rows_that_occur(run: Run, case: Case) -> None:
    """Rows of ids that are absent from the batch have gradient exactly 0 in the lookup role."""
    tokens, targets = run.truth(case).batch
    lookup, _ = run.model(case).role_gradients(tokens, targets)
    absent = np.setdiff1d(np.arange(case.config.vocabulary_size), tokens)
    if lookup[absent].any():
        row = int(absent[lookup[absent].any(axis=1)][0])
        raise Finding(f"id {row} does not occur, but its row has a gradient in the lookup role", "gradient.lookup")


@checks("TIE-3", needs=["role_gradients"], where=lambda case: case.config.vocabulary_size > 1)
def test_each_role_has_its_own_gradient(run: Run, case: Case) -> None:
    """The gradients of the table as lookup and as head are each right along a direction."""
    truth, model = run.truth(case), run.model(case)
    unsettle(run, case, model, "role_gradients")
    for batch in orders(run, case):
        for role, value in zip(("lookup", "head"), model.role_gradients(*batch), strict=True):
            slope = truth.judge_slope((role,), {role: value})
            run.judge(f"gradient of the table as {role}", slope, f"gradient.{role}")
