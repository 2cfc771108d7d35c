"""A JAX function as an implementation, and what it costs to compile: few shapes, and all properties on them."""

import importlib.util
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings

from decoderspec.properties.run import DEAR_SHAPE, PROFILES
from decoderspec.properties.session import run_over
from decoderspec.reference import Reference
from decoderspec.spec.arrays import to_numpy
from decoderspec.spec.precision import DeclarationError

EXAMPLE = Path(__file__).parents[1] / "examples" / "plain_jax.py"


class Compiling(Reference):
    """As a compiler would: the first call on each shape of a configuration is dear, every other one is not."""

    claims = ("forward",)

    def __init__(self):
        self.compiled = set()

    def build(self, config, parameters):
        model = super().build(config, parameters)

        def logits(tokens):
            if (config, tokens.shape) not in self.compiled:
                time.sleep(DEAR_SHAPE * 1.5)
                self.compiled.add((config, tokens.shape))
            return model.logits(tokens)

        return SimpleNamespace(logits=logits)


def test_a_dear_first_call_is_found_and_shapes_are_spared():
    run = run_over(Compiling(), profile="quick")
    assert run.has_dear_shapes
    assert len(run.fixed) == PROFILES["quick"].shapes
    assert any(note.startswith("case: ") for note in run.not_covered)


def test_the_search_keeps_to_shapes_that_are_compiled():
    run = run_over(Compiling(), profile="quick")
    known = {(case.config, case.batch, case.tokens) for case in run.fixed}
    drawn = []

    @settings(max_examples=10, database=None)
    @given(run.drawn)
    def draw(case):
        drawn.append(case)

    draw()
    assert {(case.config, case.batch, case.tokens) for case in drawn} <= known
    assert len({case.seed for case in drawn}) > 1


def test_nothing_is_spared_where_calls_are_cheap():
    run = run_over(Reference(), profile="quick")
    assert not run.has_dear_shapes
    assert len(run.fixed) > 10
    assert not run.unasked


def test_shapes_can_be_declared():
    run = run_over(Reference(), profile="quick")
    run.subject.limits = {"shapes": 3}
    assert len(run.fixed) == 3
    assert "more than 3 shapes" in run.not_covered


def test_a_number_of_shapes_is_required():
    subject = Reference()
    subject.limits = {"shapes": 0}
    with pytest.raises(DeclarationError, match="limits of shapes are 0; allowed: a number of them"):
        run_over(subject)


@pytest.mark.parametrize(("claims", "profile", "asked"), [
    (("forward",), "quick", False), (("forward", "inputs"), "quick", True), (None, "quick", True),
    (("forward",), "default", True),
])  # fmt: skip
def test_bad_configurations_that_are_compiled_are_asked_where_inputs_count(claims, profile, asked):
    run = run_over(Reference(), profile=profile, claims=claims)
    run.subject.claims = claims
    run.__dict__["has_dear_shapes"] = True
    assert bool(run.unasked) != asked


@pytest.fixture(scope="module")
def example():
    pytest.importorskip("jax", reason="JAX is an extra")
    spec = importlib.util.spec_from_file_location("plain_jax", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_everything_that_the_adapter_offers_is_right(example, name):
    run = run_over(getattr(example, name), profile="quick")
    case = run._awkward[0][0]
    truth, model = run.truth(case), run.model(case)
    tokens, targets = truth.batch
    assert truth.judge_logits(model.logits(tokens)).conforms
    assert all(found.conforms for found in truth.judge_stages(model.stages(tokens)).values())
    assert truth.loss.judge(np.asarray(model.loss(tokens, targets)), truth.loss_unit()).conforms
    gradients = model.gradients(tokens, targets)
    assert truth.judge_slope(tuple(gradients), gradients).conforms
    lookup, head = model.role_gradients(tokens, targets)
    np.testing.assert_allclose(lookup + head, gradients["token_embedding.weight"], rtol=1e-4, atol=1e-5)
    assert to_numpy(model.model.logits(tokens))[1] == name


def test_an_assigned_array_must_have_the_shape(example):
    run = run_over(example.float32, profile="quick")
    with pytest.raises(ValueError, match=r"norm must have shape \(12,\), got \(3,\)"):
        run.model(run._awkward[0][0]).model.assign("norm", np.ones(3))
