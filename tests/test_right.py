"""The formulations as implementations: each answers as its kernels do, and what they are called is what there is."""

import numpy as np
import pytest

from decoderspec.bench import right, soak
from decoderspec.bench.calibration import PRECISIONS, parameters, run
from decoderspec.bench.formulations import FORMULATIONS
from decoderspec.properties.cases import Case, arrays, fixed_cases
from decoderspec.properties.session import make_run
from decoderspec.properties.test_state import test_gradients_do_not_add_up_over_calls as adding_up
from decoderspec.spec.config import Config
from decoderspec.spec.precision import recipe


@pytest.mark.parametrize("name", right.RIGHT)
def test_an_implementation_gives_what_the_calibration_measures(name):
    case, implementation = fixed_cases()[0], getattr(right, name)
    declared = recipe(implementation.precision)
    weights = parameters(case, declared)
    expected = run(implementation.how, declared, case, weights)
    model = implementation.build(case.config, weights)
    tokens, targets = arrays(case)
    assert np.array_equal(model.logits(tokens), expected["logits"])
    assert model.loss(tokens, targets) == expected["loss"]
    for parameter, gradient in model.gradients(tokens, targets).items():
        assert np.array_equal(gradient, expected[f"gradient.{parameter}"])
    lookup, head = model.role_gradients(tokens, targets)
    assert np.array_equal(lookup, expected["gradient.lookup"])
    assert np.array_equal(head, expected["gradient.head"])
    handed = any(stage.endswith("attention.weights") for stage in model.stages(tokens))
    assert handed != implementation.how.blocked


def test_there_is_one_for_each_formulation_and_precision_and_no_other():
    assert len(right.RIGHT) == len(FORMULATIONS) * len(PRECISIONS)
    with pytest.raises(AttributeError, match="no formulation 'flat_float8'"):
        _ = right.flat_float8


def test_other_tokens_may_have_the_same_gradients():
    """A soak found this case: where a softmax is saturated, what differs between two batches may add nothing."""
    config = Config(2, 18, 3, 3, 0, 4, 10.0, 1e-3)
    run = make_run("decoderspec.bench.right:sequential_float64", profile="quick")
    adding_up.property.check(run, Case(config, 2, 2, 1104, "spiky"))


def test_the_page_of_a_soak_names_the_seeds_that_it_was_run_with():
    name = "decoderspec.bench.right:flat_float64"
    ran = [soak.Soaked("flat", name, seed, "conforms", (), 1, 0.1, "VAL-1", 1.0, 1.0, 1.0) for seed in (1, 2, 7)]
    text = soak.page(ran, {"profile": "quick", "python": "3", "platform": "any"})
    assert "--first-seed 1 --runs 2 --json soak.json\n" in text
    assert "--first-seed 7 --runs 1 --json soak.json\n" in text
    assert text.count("--first-seed") == 2
