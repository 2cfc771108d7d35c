"""Names, order, number, values and life of the parameters, and their initialization."""

import numpy as np

from decoderspec.properties.cases import Array, Case
from decoderspec.properties.findings import Absent, Finding
from decoderspec.properties.history import settle
from decoderspec.properties.registry import checks, checks_once
from decoderspec.properties.run import Run
from decoderspec.properties.subject import SubjectModel
from decoderspec.properties.truth import Truth
from decoderspec.spec.arrays import round_to
from decoderspec.spec.config import Config
from decoderspec.spec.parameters import TABLE, parameter_count, parameter_shapes
from decoderspec.spec.protocol import WITH_TARGETS

DRAWN = 20_000  # parameters: of these every initial value is drawn again


def trainable(case: Case) -> bool:
    """Whether every matrix of a case does something that shows, and changed ones do not overflow."""
    return case.config.layers > 0 and case.style == "plain"


@checks("WGT-1", needs=["parameters"])
def test_parameters_have_the_names_in_order(run: Run, case: Case) -> None:
    """Names are canonical (through the declared layout), complete, and in canonical order."""
    names, expected = list(run.model(case).parameters()), list(parameter_shapes(case.config))
    if names != expected:
        missing, extra = sorted(set(expected) - set(names)), sorted(set(names) - set(expected))
        what = f"missing {missing[:4]}" if missing else f"unknown {extra[:4]}" if extra else f"order {names[:4]}.."
        raise Finding(f"parameter names are not those of the specification: {what}", "parameters")


@checks("WGT-2", needs=["parameters"])
def test_parameters_have_the_shapes_and_the_count(run: Run, case: Case) -> None:
    """Shapes are those of the specification; scalars number `V d + N (4 d^2 + 3 d f + 2 d) + d`, no head among them."""
    values = run.model(case).parameters()
    for name, shape in parameter_shapes(case.config).items():
        if name in values and values[name].shape != shape:
            raise Finding(f"{name} has shape {values[name].shape}, the specification says {shape}", "parameters")
    count, expected = sum(value.size for value in values.values()), parameter_count(case.config)
    if count != expected:
        raise Finding(f"there are {count} scalars, the specification says {expected}", "parameters")


@checks("WGT-3")
def test_parameters_hold_what_was_given(run: Run, case: Case) -> None:
    """The values handed out are those handed in, to the last bit; of a checkpoint they have the declared format."""
    if case == run.fixed[0]:
        _require_format(run)
    run.need("parameters")
    given, held = run.truth(case).parameters, run.model(case).parameters()
    for name, value in given.items():
        if name not in held:
            raise Finding(f"parameters() has no {name}, which the model was built from", "parameters")
        run.same_bits(name, held[name], value, "a parameter does not hold what it was built from")


def _require_format(run: Run) -> None:
    """Weights that are drawn were rounded already."""
    checkpoint, form = run.subject.checkpoint, run.subject.recipe.weights
    unlike = checkpoint.unlike(run.subject.layout, form) if checkpoint else []
    if unlike:
        raise Finding(
            f"load() returned {unlike[0]} with values that {form.name}, declared for the weights, does not have"
            f" (so have {len(unlike)} parameters in all); declare them as they are, precision = {{'weights': ..}}",
            "parameters",
        )


@checks("WGT-4", needs=["assign"], builds=True, where=trainable)
def test_an_assigned_parameter_takes_effect(run: Run, case: Case) -> None:
    """After every one but the table is assigned the logits are those of the new values: no earlier copy is in use."""
    run.truth(case).require_whole()
    model = run.subject.build(case.config, run.truth(case).parameters)
    settle(run, case, model, "logits", "stages")
    after = _assigned(run, case, model, [name for name in run.truth(case).parameters if name != TABLE])
    logits = model.logits(after.batch[0])
    run.judge("logits after parameters were assigned", after.logits.judge(logits, after.units["logits"]), "parameters")
    given = model.stages(after.batch[0]) if model.has("stages") else {}
    if "logits" in given:
        shown = after.logits.judge(after.logits.high + (given["logits"] - logits), after.units["logits"])
        run.judge("the last stage after parameters were assigned", shown, "parameters")
    model.close()


@checks(
    "WGT-4",
    needs=["assign", "gradients"],
    builds=True,
    search=False,
    most=3,
    where=lambda case: trainable(case) and case.config.vocabulary_size > 1,
)
def test_an_assigned_parameter_takes_effect_in_training(run: Run, case: Case) -> None:
    """After every parameter is assigned loss and gradients, of the roles too, are those of the new values."""
    run.truth(case).require_whole()
    model = run.subject.build(case.config, run.truth(case).parameters)
    settle(run, case, model, *WITH_TARGETS)
    after = _assigned(run, case, model, list(run.truth(case).parameters))
    gradients = model.gradients(*after.batch)
    run.judge("gradients after an assignment", after.judge_slope(tuple(gradients), gradients), "parameters")
    if model.has("loss"):
        loss = np.asarray(model.loss(*after.batch))
        run.judge("loss after an assignment", after.loss.judge(loss, after.loss_unit()), "parameters")
    if model.has("role_gradients"):
        for role, value in zip(("lookup", "head"), model.role_gradients(*after.batch), strict=True):
            run.judge(f"gradient as {role} after an assignment", after.judge_slope((role,), {role: value}), role)
    model.close()


@checks("TIE-4", needs=["assign"], where=lambda case: case.config.layers <= 2 and case.style == "plain", builds=True)
def test_the_assigned_table_serves_both_roles(run: Run, case: Case) -> None:
    """One live table: writing it changes the lookup and the head alike."""
    run.truth(case).require_whole()
    model = run.subject.build(case.config, run.truth(case).parameters)
    settle(run, case, model, "logits")
    after = _assigned(run, case, model, [TABLE])
    logits = model.logits(after.batch[0])
    run.judge(f"logits after {TABLE} was assigned", after.logits.judge(logits, after.units["logits"]), "parameters")
    model.close()


def _assigned(run: Run, case: Case, model: SubjectModel, names: list[str]) -> Truth:
    """Assign other values to those parameters that are tensors of their own; what is true from then on."""
    truth, rng = run.truth(case), np.random.default_rng((case.seed, 3))
    alone = run.subject.layout.rename(case.config)
    values = {
        name: round_to(truth.parameters[name] * (1 + rng.uniform(0.25, 0.75)) + 0.125, run.subject.recipe.weights)
        for name in ([name for name in names if name in alone] or names[:1])
    }
    changed = run.subject.layout.invert(case.config, run.subject.theirs(case.config, {**truth.parameters, **values}))
    order = list(values.items())[:: -1 if case.seed % 2 else 1]  # what is refreshed by one alone must not depend on it
    for name, value in order:
        model.assign(name, value + 1)  # an earlier assignment must not be the one that counts
        model.assign(name, value)
    held = model.parameters() if model.has("parameters") else {}
    for name in values:
        if name in held:
            run.same_bits(name, held[name], changed[name], "parameters() does not hand out what was assigned")
    return Truth(case, changed, run.subject.recipe, beyond=run.sampled)


@checks_once("INI-1")
def test_initial_parameters_follow_from_the_seed(run: Run) -> None:
    """Initial values are SplitMix64's, in the documented order, rounded to the precision of the weights."""
    for case in run.fixed[:2] if run.pool else filter(lambda case: parameter_count(case.config) < DRAWN, run.fixed):
        for seed in (0, 32, 2**63 + 12345):
            run.entry.examples += 1
            held = _initialized(run, case.config, seed)
            for name, expected in initial(case.config, seed).items():
                unit = 4 * run.subject.recipe.weights.unit
                wrong = ~(np.abs(held[name] - expected) <= unit * np.abs(expected))  # NaN is wrong too
                if wrong.any():
                    index = tuple(int(i[0]) for i in wrong.nonzero())
                    raise Finding(
                        f"seed {seed}: {name}{list(index)} is {held[name][index]!r},"
                        f" the specification draws {expected[index]!r}",
                        "initialization",
                    )


@checks_once("INI-1")
def test_an_initialized_model_computes_with_its_parameters(run: Run) -> None:
    """A model that draws its own parameters is the decoder of its configuration, as one that was handed them."""
    case = run.fixed[0]
    run.entry.examples += 1
    truth = Truth(case, _initialized(run, case.config, case.seed), run.subject.recipe)
    model = run.subject.initialize(case.config, case.seed)
    run.judge("logits of an initialized model", truth.judge_logits(model.logits(truth.batch[0])), "initialization")
    model.close()


@checks_once("INI-2")
def test_the_same_seed_gives_the_same_parameters(run: Run) -> None:
    """Two models initialized from one seed are equal to the last bit, and another seed gives another model."""
    config = run.fixed[0].config
    first, second, other = (_initialized(run, config, seed) for seed in (5, 5, 6))
    run.entry.examples += 3
    for name, value in first.items():
        run.same_bits(name, second[name], value, "the same seed gave other initial parameters")
    if all(np.array_equal(value, other[name]) for name, value in first.items()):
        raise Finding("another seed gave the same initial parameters", "initialization")


def _initialized(run: Run, config: Config, seed: int) -> dict[str, Array]:
    model = run.subject.initialize(config, seed)
    if not model.has("parameters"):
        raise Absent("parameters() on the model that initialize returns lets the initialization be tested")
    held = model.parameters()
    model.close()
    shapes = parameter_shapes(config)
    if list(held) != list(shapes):
        raise Finding(f"the initialized model has the parameters {', '.join(held)}", "initialization")
    for name, value in held.items():
        if value.shape != shapes[name]:
            raise Finding(f"the initialized {name} has shape {value.shape}, not {shapes[name]}", "initialization")
    return held


def initial(config: Config, seed: int) -> dict[str, Array]:
    """Initial parameters by the text of the specification, one draw at a time in Python's integers."""
    state, mask = seed, 2**64 - 1

    def unit() -> float:
        nonlocal state
        state = v = (state + 0x9E3779B97F4A7C15) & mask
        v = (v ^ (v >> 30)) * 0xBF58476D1CE4E5B9 & mask
        v = (v ^ (v >> 27)) * 0x94D049BB133111EB & mask
        return float((v ^ (v >> 31)) >> 11) / 2**53

    values: dict[str, Array] = {}
    for name, shape in parameter_shapes(config).items():
        limit = (6 / sum(shape)) ** 0.5
        drawn = [limit * (2 * unit() - 1) for _ in range(shape[0] * shape[1])] if len(shape) == 2 else [1.0] * shape[0]
        values[name] = np.array(drawn).reshape(shape)
    return values
