"""Loss and gradients against the oracle, and the two roles of the tied table."""

import numpy as np

from decoderspec.properties.cases import Case, affordable, other_ids
from decoderspec.properties.findings import Finding
from decoderspec.properties.observed import own_loss
from decoderspec.properties.registry import checks
from decoderspec.properties.run import Run
from decoderspec.properties.truth import ONE_ROUNDING
from decoderspec.reference.limits import compare
from decoderspec.reference.units import unit
from decoderspec.spec.parameters import TABLE, parameter_count

SMALLEST = 300  # parameters: every element's true derivative is affordable below


@checks("LOS-1", needs=["loss"], where=affordable, long=True)
def test_loss_is_the_mean_over_all_positions(run: Run, case: Case) -> None:
    """The loss is the mean of `-log softmax(logits)[target]` over all `B*T` positions, within the noise."""
    if run.sampled:  # the logits are judged apart
        run.judge("loss, of the logits given,", own_loss(run, case, run.subject.recipe))
        return
    truth, model = run.truth(case), run.model(case)
    tokens, targets = truth.batch
    model.loss(other_ids(case, tokens), targets)  # what is kept of another batch must not count
    loss = np.asarray(model.loss(tokens, targets))
    run.judge("loss", truth.loss.judge(loss, truth.loss_unit()))


def sloping(case: Case) -> bool:
    """Whether the loss has a slope, at an affordable price."""
    return case.config.vocabulary_size > 1 and affordable(case)


@checks("GRA-1", needs=["gradients"], where=sloping, long=True)
def test_gradients_are_right_along_a_direction(run: Run, case: Case) -> None:
    """Gradients of all parameters together, projected on a random direction, give the true slope of the loss."""
    truth = run.truth(case)
    gradients = run.model(case).gradients(*truth.batch)
    for name, value in gradients.items():
        if not np.isfinite(value).all():
            raise Finding(f"the gradient of {name} is not finite on valid input", f"gradient.{name}")
    together = truth.judge_slope(tuple(gradients), gradients)
    if together.conforms:
        run.judge("slope of the loss", together)
        return
    for name in gradients:  # place it
        run.judge(f"gradient of {name}", truth.judge_slope((name,), gradients), f"gradient.{name}")
    run.judge("gradients", together)


@checks("GRA-2", needs=["gradients"], where=lambda case: 1 < parameter_count(case.config) <= SMALLEST, search=False)
def test_every_element_of_every_gradient_is_right(run: Run, case: Case) -> None:
    """On the smallest cases each element is compared with its own true derivative."""
    truth = run.truth(case)
    gradients = run.model(case).gradients(*truth.batch)
    for name, comparison in truth.judge_elements(gradients).items():
        run.judge(f"gradient of {name}", comparison, f"gradient.{name}")


@checks("GRA-4", needs=["gradients"], search=False, most=5, where=lambda case: case.config.vocabulary_size > 1)
def test_the_gradient_of_each_parameter_is_right_along_a_direction(run: Run, case: Case) -> None:
    """As GRA-1, one parameter at a time, on the fixed cases."""
    truth = run.truth(case)
    gradients = run.model(case).gradients(*truth.batch)
    names = list(gradients) if case.config.layers <= 2 else [TABLE]
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
    run.judge("sum of the two roles", compare(whole, error, unit(truth.deviations[f"gradient.{TABLE}"]), ONE_ROUNDING))


@checks("TIE-2", needs=["role_gradients"], where=affordable, long=True)
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
    truth = run.truth(case)
    lookup, head = run.model(case).role_gradients(*truth.batch)
    run.judge("gradient of the table as lookup", truth.judge_slope(("lookup",), {"lookup": lookup}), "gradient.lookup")
    run.judge("gradient of the table as head", truth.judge_slope(("head",), {"head": head}), "gradient.head")
