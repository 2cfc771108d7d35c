"""Emulated engines: each conforms as what it is, and is told what it is where it is declared as another."""

from dataclasses import replace

import numpy as np
import pytest

from decoderspec.bench.formulations import FORMULATIONS, Kernels
from decoderspec.faults.bank import by_name
from decoderspec.faults.fault import FaultyReference
from decoderspec.properties.observed import explained, observed_bits, observed_recipe
from decoderspec.properties.session import run_over
from decoderspec.reference import decoder
from decoderspec.spec.precision import FORMATS, recipe

FORWARD = ("forward",)
NORMS_IN_FLOAT32 = {
    "results": "float64", "attention_norm": "float32", "ffn_norm": "float32", "final_norm": "float32",
}  # fmt: skip
ENGINES = {  # what it computes in -> what it is wrongly declared as
    "tensorfloat32 products": ("float32-tf32", "float32"),
    "float16 cache": ("float32-kv16", "float32"),
    "bfloat16": ("bfloat16", {"weights": "bfloat16", "results": "float32"}),
    "float16": ("float16", {"weights": "float16", "results": "float32"}),
    "float32 norms in float64": (NORMS_IN_FLOAT32, "float64"),
}
EACH = pytest.mark.parametrize("name", ENGINES)
LARGE = 0.05  # an epsilon that none of the cases has for which a recipe is first sought
BITS = 2.0  # that a stage may be better or worse than the format it is stored in


class Engine:
    """The first formulation at a recipe, declared as something."""

    claims = FORWARD

    def __init__(self, computes_in, declared):
        self.name, self.precision, self.computes_in = f"computes in {computes_in}", declared, recipe(computes_in)

    def build(self, config, parameters):
        return EngineModel(self, config, parameters)


class EngineModel:
    def __init__(self, engine, config, parameters):
        computes_in = engine.computes_in
        self.dtype = np.float64 if computes_in.results.name == "float64" else np.float32
        self.config, self.weights = config, {name: value.astype(self.dtype) for name, value in parameters.items()}
        self.operations = Rounding(FORMULATIONS[0], computes_in, self.dtype, self.weights).operations()

    def logits(self, tokens):
        return self.stages(tokens)["logits"]

    def stages(self, tokens):
        with np.errstate(all="ignore"):
            return decoder.stages(self.config, self.weights, tokens, self.operations)


class Rounding(Kernels):
    """With float32 inside the stages that are stored in it, as a norm that is cast up and down again."""

    def rms_norm(self, stage, x, gain, epsilon):
        form = self._stored("rms_norm", stage)
        if form.bits >= FORMATS["float32"].bits and self.dtype is np.float64 and form.name == "float32":
            inner = Kernels(self.how, recipe("float32"), np.float32)
            return inner.rms_norm(stage, x.astype(np.float32), gain.astype(np.float32), epsilon)
        return super().rms_norm(stage, x, gain, epsilon)


def worst(run):
    """Each comparison of stages and logits over the fixed cases that is beyond its limit."""
    found = []
    for case in run.fixed:
        truth, model = run.truth(case), run.model(case)
        given = model.stages(truth.batch[0])
        compared = {**truth.judge_stages(given), "all logits": truth.judge_logits(given["logits"])}
        found += [(case.note, stage, str(each)) for stage, each in compared.items() if not each.conforms]
    return found


@EACH
def test_an_engine_conforms_as_what_it_is(name):
    computes_in, _ = ENGINES[name]
    assert worst(run_over(Engine(computes_in, computes_in))) == []


@EACH
def test_an_engine_does_not_conform_as_what_it_is_not(name):
    assert worst(run_over(Engine(*ENGINES[name]))) != []


@EACH
def test_the_recipe_that_is_observed_conforms_when_it_is_declared(name):
    computes_in, declared = ENGINES[name]
    run = run_over(Engine(computes_in, declared))
    observed = explained(run, observed_recipe(observed_bits(run)))
    assert observed
    assert worst(run_over(Engine(computes_in, observed))) == []


class EpsilonDoubled(Engine):
    """A final norm that is stored in bfloat16, and wrong where epsilon is large."""

    def __init__(self):
        super().__init__({"results": "float32", "final_norm": "bfloat16"}, "float32")

    def build(self, config, parameters):
        model = super().build(config, parameters)
        norm = model.operations.rms_norm

        def wrong(stage, x, gain, epsilon):
            doubled = stage == "final_norm" and epsilon > LARGE
            return norm(stage, x, gain, 2 * epsilon if doubled else epsilon)

        model.operations = replace(model.operations, rms_norm=replace(norm, perform=wrong))
        return model


def test_a_recipe_to_paste_holds_on_every_case_and_not_on_a_few():
    run = run_over(EpsilonDoubled())
    assert max(case.config.rms_epsilon for case in run.sample) < LARGE
    observed = observed_recipe(observed_bits(run))
    assert observed == {"results": "float32", "final_norm": "bfloat16"}
    assert explained(run, observed) is None


def test_no_recipe_is_observed_where_a_derivative_is_wrong():
    run = run_over(FaultyReference(by_name("norm-pullback-without-epsilon")))
    observed = observed_recipe(observed_bits(run))
    assert observed == "float64"
    assert explained(run, observed) is None


def test_products_of_tensorfloat32_are_told_from_stages_in_float16():
    run = run_over(Engine("float32-tf32", "float32"))
    assert observed_recipe(observed_bits(run)) == {"results": "float32", "products": "tensorfloat32"}


@EACH
def test_bits_are_those_of_the_formats(name):
    computes_in = recipe(ENGINES[name][0])
    bits = observed_bits(run_over(Engine(*ENGINES[name])))
    for stage in ("attention_norm", "attention.value", "ffn.product", "ffn.silu", "after_attention"):
        if computes_in.products.name == "tensorfloat32" and stage == "attention.value":
            expected = FORMATS["tensorfloat32"].bits
        else:
            expected = computes_in.stored(stage).bits
        assert expected - BITS < bits[stage] < expected + BITS, stage


@pytest.mark.parametrize(
    ("coarse", "recipe"),
    [
        (("attention.rotated_key",), {"results": "float64", "attention.rotated_key": "float16"}),
        (("attention.rotated_query", "attention.rotated_key"), {"results": "float64", "tables": "float16"}),
    ],
)
def test_a_table_is_blamed_only_where_both_that_it_turns_are_coarse(coarse, recipe):
    fine = dict.fromkeys(("attention.query", "attention.rotated_query", "attention.rotated_key", "ffn.up"), 53.0)
    assert observed_recipe(fine | dict.fromkeys(coarse, 11.0)) == recipe
