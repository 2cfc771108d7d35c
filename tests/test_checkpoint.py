"""Weights that are theirs: what `load` hands out is judged as it stands, and nothing else is asked of it."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from decoderspec.commands.main import main
from decoderspec.properties import big, checkpoint
from decoderspec.properties.bad_input import PROBES
from decoderspec.properties.check import check
from decoderspec.properties.findings import Absent, Finding
from decoderspec.properties.grading import NOT_JUDGED, grade
from decoderspec.properties.probe import Setting
from decoderspec.properties.session import run_over
from decoderspec.properties.subject import read_subject
from decoderspec.properties.test_weights import test_parameters_hold_what_was_given as parameters_hold
from decoderspec.reference import Reference
from decoderspec.spec.config import Config
from decoderspec.spec.layout import layout
from decoderspec.spec.parameters import parameter_shapes
from decoderspec.spec.precision import DeclarationError

EXAMPLE = Path(__file__).parents[1] / "examples" / "quantised.py"
SIZES = Config(7, 8, 2, 5, 1, 6, 100.0, 1e-3)


def example():
    spec = importlib.util.spec_from_file_location("quantised", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def weights(seed=0, config=SIZES):
    rng = np.random.default_rng(seed)
    shapes = parameter_shapes(config).items()
    return {name: rng.normal(size=shape) / (1 if len(shape) == 1 else shape[0] ** 0.5) for name, shape in shapes}


class Loaded:
    name = "loaded"
    claims = ("forward", "weights")

    def load(self):
        given = weights()
        return SIZES, given, Reference().build(SIZES, given)


class HalfSplit(Loaded):
    layout = {"rotation": "half_split", "matrices": "out_in", "gain_offset": 1.0}  # noqa: RUF012 - a declaration

    def load(self):
        config, given, model = super().load()
        return config, layout(self.layout).apply(config, given), model


class WithOtherWeights(Loaded):
    """Hands out one set and computes with another: a quantised model whose original is shown."""

    def load(self):
        config, given, _ = super().load()
        rounded = {name: np.rint(value * 16) / 16 for name, value in given.items()}
        return config, given, Reference().build(config, rounded)


def returning(value):
    class Wrong(Loaded):
        def load(self):
            return value

    return Wrong()


def test_the_example_of_the_documentation_conforms(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status = main(["check", f"{EXAMPLE}:Quantised", "--profile", "quick", "--json", "report.json"])
    report = json.loads((tmp_path / "report.json").read_text())
    assert status == 0
    assert report["contracts"]["forward"] == "conforms"
    assert report["requirements"]["VAL-1"]["status"] == "pass"
    assert report["grades"]["new process"] == report["grades"]["replay"] == "bitwise"
    for name in ("CFG-1", "CFG-2", "INP-6"):
        assert report["requirements"][name]["status"] == "not_judged"
        assert "build(config, parameters)" in report["requirements"][name]["reason"]
    assert "any configuration and parameters but those of load()" in report["not_covered"]


def test_truth_is_computed_from_what_is_handed_out():
    run = run_over(WithOtherWeights())
    case = run.fixed[0]
    assert not run.truth(case).judge_logits(run.model(case).logits(run.truth(case).batch[0])).conforms


@pytest.mark.parametrize("made", [Loaded, HalfSplit])
def test_weights_come_back_through_the_declared_layout(made):
    run = run_over(made())
    for name, value in weights().items():
        np.testing.assert_allclose(run.subject.parameters(run.fixed[0])[name], value, rtol=1e-15, atol=1e-15)
    case = run.fixed[0]
    assert run.truth(case).judge_logits(run.model(case).logits(run.truth(case).batch[0])).conforms


def test_only_tokens_vary():
    run = run_over(Loaded())
    assert {case.config for case in run.fixed} == {SIZES}
    assert len({(case.batch, case.tokens, case.token_style) for case in run.fixed}) == len(run.fixed) > 3
    assert max(case.tokens for case in run.fixed) == SIZES.max_positions
    with pytest.raises(Absent, match=r"build\(config, parameters\)"):
        run.model(replace(run.fixed[0], config=replace(SIZES, heads=1)))


def test_values_that_the_declared_format_does_not_have_are_found():
    run = run_over(Loaded(), precision="bfloat16")
    with pytest.raises(Finding, match="values that bfloat16, declared for the weights, does not have"):
        parameters_hold(run)
    parameters_hold(run_over(Loaded(), precision={"results": "bfloat16", "weights": "float64"}))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (weights(), r"must return \(config, parameters, model\), got dict"),
        (({}, weights(), None), "it has no vocabulary_size"),
        ((replace(SIZES, heads=3), weights(), None), "a configuration that is not valid"),
        ((SIZES, [], None), "parameters map names to arrays"),
        (
            (SIZES, {**weights(), "lm_head.weight": np.ones((7, 8))}, None),
            r"a tied head counts once.*unknown \['lm_head",
        ),
        ((SIZES, {**weights(), "final_norm.gain": np.ones(3)}, None), r"final_norm.gain of shape \(3,\)"),
        ((SIZES, {**weights(), "final_norm.gain": np.full(8, np.nan)}, None), "not finite"),
        ((SIZES, {**weights(), "final_norm.gain": "ones"}, None), "cannot be read"),
    ],
)
def test_what_load_returns_is_read_strictly(given, said):
    with pytest.raises(DeclarationError, match=said):
        read_subject(returning(given))


def test_a_load_that_raises_is_no_verdict(tmp_path, capsys):
    (tmp_path / "gone.py").write_text(
        "class Gone:\n    def load(self):\n        raise OSError('model.bin is missing')\n"
    )
    assert main(["check", f"{tmp_path / 'gone.py'}:Gone"]) == 2
    assert "load() raised OSError: model.bin is missing" in capsys.readouterr().err


def test_bad_configurations_and_parameters_are_not_asked_for():
    setting = Setting(read_subject(Loaded()))
    for name in ("CFG-1/zero-heads", "CFG-2/layers", "INP-6/transposed-ffn.gate.weight"):
        assert grade(PROBES[name], setting).grade == NOT_JUDGED, name
    assert grade(PROBES["INP-1/V/last"], setting).ok


def test_a_large_one_is_judged_by_samples(monkeypatch):
    monkeypatch.setattr(checkpoint, "WHOLE", 100)
    run = run_over(Loaded(), profile="quick")
    with pytest.raises(Absent, match="samples of the stages"):
        run.truth(run.fixed[0]).judge_logits(np.zeros(1))
    big.judge_checkpoint(run)
    assert run.entry.examples == big.BATCHES
    with pytest.raises(Finding, match="sampled"):
        big.judge_checkpoint(run_over(WithOtherWeights(), profile="quick"))


class WithoutGates(Loaded):
    def load(self):
        config, given, model = super().load()
        shown = SimpleNamespace(logits=model.logits)
        shown.stages = lambda z: {name: value for name, value in model.stages(z).items() if "ffn.gate" not in name}
        return config, given, shown


def test_a_large_one_needs_every_stage(monkeypatch):
    monkeypatch.setattr(checkpoint, "WHOLE", 100)
    with pytest.raises(Absent, match=r"it lacks ffn\.gate"):
        big.judge_checkpoint(run_over(WithoutGates(), profile="quick"))


def test_a_large_one_without_stages_does_not_conform(monkeypatch, tmp_path):
    monkeypatch.setattr(checkpoint, "WHOLE", 100)
    source = EXAMPLE.read_text().replace('claims = ("forward",)', "claims = None")
    (tmp_path / "large.py").write_text(source)
    report = check(f"{tmp_path / 'large.py'}:Quantised", profile="quick")
    assert report.contracts()["forward"] == "fails"
    assert report.holes("forward")[0].startswith("BIG-1: stages(tokens)")
