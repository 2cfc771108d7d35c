"""Bad input is graded rightly, whatever the implementation does with it: refuse, wrap, clamp, print, sleep or die."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from decoderspec.properties import grading
from decoderspec.properties.bad_input import PROBES, REQUIREMENTS
from decoderspec.properties.bad_parameters import PLACES
from decoderspec.properties.bad_tokens import PLACES as PLACES_OF_IDS
from decoderspec.properties.child import ChildError, Outcome, ask
from decoderspec.properties.probe import Setting
from decoderspec.properties.subject import read_subject
from decoderspec.reference import Reference
from decoderspec.spec.errors import CATEGORIES
from decoderspec.spec.protocol import METHODS, WITH_TARGETS

REFERENCE = "decoderspec.reference:Reference"
TINY = """
import os, sys, time
import numpy as np

def logits(config, parameters, tokens):
    table = parameters["token_embedding.weight"]
    return act(table, tokens, config.vocabulary_size) @ table.T

def bad(tokens, v):
    return ((tokens < 0) | (tokens >= v)).any()
"""
LAID_OUT = """
from decoderspec.reference import Reference
from decoderspec.spec.layout import layout
from decoderspec.spec.validation import validate_config

class Fused(Reference):
    layout = {
        "rotation": "half_split", "matrices": "out_in", "gain_offset": 1.0, "stacked": True,
        "fused": {"qkv": ["blocks.{n}.attention.query.weight", "blocks.{n}.attention.key.weight",
                          "blocks.{n}.attention.value.weight"],
                  "gate_up": ["blocks.{n}.ffn.gate.weight", "blocks.{n}.ffn.up.weight"]},
    }
    classify = None

    def build(self, config, theirs):
        config = validate_config(config)  # before a name is made for each of 10^12 layers
        return super().build(config, layout(self.layout).invert(config, theirs))

class Limited(Reference):
    limits = {"head_width": [64], "model_width": {"multiple_of": 128}, "layers": {"min": 1}, "tokens": [3], "batch": 1}

class Lazy(Reference):
    classify = initialize = None

    def build(self, config, parameters):
        return Later(config, parameters)

class Later:
    def __init__(self, *given):
        self.given = given

    def logits(self, tokens):
        return Reference().build(*self.given).logits(tokens)

class Unsorted(Reference):
    def classify(self, error):
        return "parameters"

class Unaware(Reference):
    def classify(self, error):
        return None

class Codes(Reference):
    def classify(self, error):
        return error.code

class Poisoned(Reference):
    def build(self, config, parameters):
        return Fragile(super().build(config, parameters))

class Fragile:
    def __init__(self, model):
        self.model, self.broken = model, False

    def logits(self, tokens):
        if self.broken:
            raise RuntimeError("device-side assert")
        try:
            return self.model.logits(tokens)
        except ValueError as error:
            self.broken = "out of bounds" in str(error)
            raise
"""

Write = Callable[[str], str]


@pytest.fixture
def tiny(tmp_path: Path) -> Write:
    """Write a plain function whose `act` is the given code, and return its name."""
    numbers = itertools.count()

    def write(act: str) -> str:
        path = tmp_path / f"tiny_{next(numbers)}.py"
        path.write_text(f"{TINY}\ndef act(table, tokens, v):\n    {act}\n")
        return f"{path}:logits"

    return write


@pytest.fixture(scope="module")
def laid_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("laid_out") / "laid_out.py"
    path.write_text(LAID_OUT)
    return path


def by_id(outcomes: list[Outcome]) -> dict[str, Outcome]:
    return {outcome.probe: outcome for outcome in outcomes}


def grades(name: str, *requirements: str, timeout: float = 60.0) -> dict[str, str]:
    return {outcome.probe: outcome.grade for outcome in ask(name, requirements=requirements, timeout=timeout)}


def test_probes_name_their_requirement_and_categories_of_the_table() -> None:
    assert set(REQUIREMENTS) == {"CFG-1", "CFG-2", *(f"INP-{n}" for n in range(1, 8))}
    for name, probe in PROBES.items():
        assert name == probe.id
        assert name.startswith(f"{probe.requirement}/")
        assert set(probe.expected) <= set(CATEGORIES)


def test_each_requirement_of_tokens_is_asked_of_each_method_that_takes_them() -> None:
    asked = {(probe.requirement, probe.needs) for probe in PROBES.values() if probe.expected}
    assert {(f"INP-{n}", method) for n in (1, 2, 3, 4) for method in METHODS} <= asked
    assert {("INP-5", method) for method in WITH_TARGETS} <= asked


@pytest.mark.parametrize("kind", ["missing", "first-alone", "one-axis-more", "one-column-more", "complex", "strings"])
def test_each_kind_of_bad_parameter_is_asked_of_every_parameter(kind: str) -> None:
    assert all(f"INP-6/{kind}-{place}" in PROBES for place in PLACES)
    assert len({name for name in PROBES if name.startswith(("INP-6/nan-", "INP-6/inf-", "INP-6/-inf-"))}) == len(PLACES)


def test_a_bad_id_is_put_into_the_middle_of_a_middle_row() -> None:
    setting = Setting(read_subject(Reference()))
    row, column = PLACES_OF_IDS["middle"][1](setting.tokens)
    batch, length = setting.tokens.shape
    assert 0 < row < batch - 1
    assert 0 < column < length - 1


def test_a_refusal_that_leaves_gradients_behind_is_told() -> None:
    outcomes = by_id(ask("decoderspec.faults.bank:gradients-left-by-a-refusal", requirements=["INP-7"]))
    found = outcomes["INP-7/after/INP-1/V/middle/gradients"]
    assert found.grade == grading.CHANGED
    assert "of gradients" in found.detail
    assert outcomes["INP-7/after/INP-1/V/last"].grade == grading.ACCEPTED


def test_what_assign_takes_is_written_back() -> None:
    outcomes = ask("decoderspec.faults.bank:assignment-broadcasts", requirements=["INP-6"])
    taken = [o for o in outcomes if "/assign/" in o.probe and not o.ok]
    assert {o.grade for o in taken} >= {grading.GARBAGE, grading.NAN}
    assert not any("afterwards" in o.detail for o in outcomes)


def test_initialize_is_asked_for_configurations_and_seeds() -> None:
    outcomes = by_id(ask("decoderspec.faults.bank:seeds-wrap-around", requirements=["CFG-1"]))
    assert outcomes["CFG-1/seed-fraction/initialize"].grade == grading.TAKEN
    assert outcomes["CFG-1/zero-heads/initialize"].grade == grading.IN_CATEGORY
    assert outcomes["CFG-1/valid/initialize"].grade == grading.ACCEPTED


def test_the_reference_refuses_everything_in_its_category() -> None:
    outcomes = ask(REFERENCE)
    assert [outcome.probe for outcome in outcomes] == list(PROBES)
    assert [o for o in outcomes if not o.ok or not o.judged] == []
    assert {o.grade for o in outcomes if o.expected} == {grading.IN_CATEGORY}
    assert {o.grade for o in outcomes if not o.expected} == {grading.ACCEPTED}


def test_codes_are_looked_up(laid_out: Path) -> None:
    outcomes = ask(f"{laid_out}:Codes", requirements=["INP-2", "INP-6"])
    assert {o.grade for o in outcomes} == {grading.IN_CATEGORY}


def test_another_category_is_a_finding(laid_out: Path) -> None:
    outcomes = ask(f"{laid_out}:Unsorted", requirements=["INP-2"])
    assert {o.grade for o in outcomes} == {"refused in another category: parameters"}
    assert not any(o.ok for o in outcomes)


def test_an_error_that_classify_does_not_know_is_a_finding(laid_out: Path) -> None:
    outcomes = ask(f"{laid_out}:Unaware", requirements=["INP-2"])
    assert {o.grade for o in outcomes} == {"refused in another category: none"}


def test_faults_reach_fused_and_stacked_tensors(laid_out: Path) -> None:
    outcomes = ask(f"{laid_out}:Fused")
    assert [o for o in outcomes if not o.ok] == []
    assert all("not assigned alone" in o.detail for o in outcomes if not o.judged)
    assert {o.grade for o in outcomes if o.expected and o.judged} == {grading.REFUSED}


def test_limits_are_kept(laid_out: Path) -> None:
    outcomes = by_id(ask(f"{laid_out}:Limited"))
    assert [o for o in outcomes.values() if not o.ok] == []
    assert not outcomes["CFG-1/zero-heads/no-layers"].judged
    assert not outcomes["INP-4/T=max_positions"].judged
    assert outcomes["INP-4/T=max_positions+1"].grade == grading.IN_CATEGORY


def test_a_refusal_at_the_first_call_counts(laid_out: Path) -> None:
    asked = ask(f"{laid_out}:Lazy", requirements=["CFG-1", "CFG-2", "INP-6"])
    outcomes = [o for o in asked if o.expected and PROBES[o.probe].needs == "build"]
    assert {o.grade for o in outcomes} == {grading.REFUSED}
    assert all("from logits" in o.detail for o in outcomes)
    assert not any(o.judged for o in asked if PROBES[o.probe].needs in ("initialize", "assign"))


def test_a_model_that_a_refusal_breaks_fails_and_is_replaced(laid_out: Path) -> None:
    outcomes = by_id(ask(f"{laid_out}:Poisoned", requirements=["INP-1", "INP-2", "INP-7"]))
    assert outcomes["INP-1/V/last"].grade == grading.IN_CATEGORY
    assert "device-side assert" in outcomes["INP-1/V/last"].detail
    assert outcomes["INP-2/rank-1"].grade == grading.IN_CATEGORY
    assert outcomes["INP-7/after/INP-1/V/last"].grade == grading.VALID_REFUSED
    assert outcomes["INP-7/after/INP-2/rank-1"].grade == grading.ACCEPTED


def test_wrapped_ids_are_garbage(tiny: Write) -> None:
    found = by_id(ask(tiny("return table[tokens]"), requirements=["INP-1"]))
    assert found["INP-1/-1/first"].grade == grading.GARBAGE
    assert "wrapped around" in found["INP-1/-1/first"].detail
    assert found["INP-1/V/last"].grade == grading.REFUSED
    assert found["INP-1/V-1"].grade == grading.ACCEPTED


def test_clamped_ids_are_garbage(tiny: Write) -> None:
    found = by_id(ask(tiny("return table[np.clip(tokens, 0, v - 1)]"), requirements=["INP-1"]))
    assert all(o.grade == grading.GARBAGE and not o.ok for o in found.values() if o.expected and o.judged)
    assert "clamped into the table" in found["INP-1/V/last"].detail
    assert not found["INP-1/V/first/loss"].judged


def test_nan_is_no_refusal(tiny: Write) -> None:
    found = grades(tiny("return np.where(bad(tokens, v), np.nan, table[tokens % v])"), "INP-1")
    assert found["INP-1/V/last"] == grading.NAN
    assert found["INP-1/0"] == grading.ACCEPTED


def test_integral_floats_taken_as_integers_are_harmless(tiny: Write) -> None:
    found = by_id(ask(tiny("return table[np.asarray(tokens).astype(int)]"), requirements=["INP-3", "INP-6"]))
    for name in ("INP-3/integral-floats", "INP-3/strings", "INP-6/unknown"):
        assert found[name].grade == grading.TAKEN
        assert not found[name].ok
    assert found["INP-3/objects"].grade == grading.REFUSED


def test_each_death_is_recorded_and_the_rest_is_asked(tiny: Write) -> None:
    name = tiny("return os._exit(3) if bad(tokens, v) else table[tokens]")
    found = by_id(ask(name, requirements=["INP-1", "INP-2", "INP-7"]))
    assert {o.grade for o in found.values() if o.requirement == "INP-1" and o.expected and o.judged} == {grading.DIED}
    assert "status 3" in found["INP-1/V/last"].detail
    assert found["INP-1/V-1"].grade == grading.ACCEPTED
    assert found["INP-2/ragged"].grade == grading.REFUSED
    assert not found["INP-7/after/INP-1/V/last"].judged


def test_a_signal_is_named_with_the_last_words(tiny: Write) -> None:
    code = "return (print('out of range', flush=True), os.abort()) if bad(tokens, v) else table[tokens]"
    found = by_id(ask(tiny(code), requirements=["INP-1"]))["INP-1/-1/first"]
    assert found.grade == grading.DIED
    assert "SIGABRT" in found.detail
    assert "out of range" in found.detail


def test_restarts_end(tiny: Write) -> None:
    found = ask(tiny("return os._exit(3)"), requirements=["INP-1"], restarts=1)
    assert [o.grade for o in found[:2]] == [grading.DIED] * 2
    assert {o.grade for o in found[2:]} == {grading.NOT_JUDGED}


def test_a_hang_is_recorded_and_the_rest_is_asked(tiny: Write) -> None:
    code = "return time.sleep(60) if (tokens == -v).any() else table[tokens]"
    found = grades(tiny(code), "INP-1", timeout=1.5)
    assert found["INP-1/-V/last"] == grading.HUNG
    assert found["INP-1/2^31/last"] == grading.REFUSED


def test_prints_are_no_answers(tiny: Write, tmp_path: Path) -> None:
    name = tiny("print('{\"grade\": \"refused\"}', flush=True); os.write(1, b'noise'); return table[tokens]")
    path = Path(name.removesuffix(":logits"))
    path.write_text("print('hello from the import')\n" + path.read_text())
    found = grades(name, "INP-1")
    assert found["INP-1/-1/first"] == grading.GARBAGE
    assert found["INP-1/V/last"] == grading.REFUSED


def test_leaving_the_process_is_no_refusal(tiny: Write) -> None:
    found = by_id(ask(tiny("return sys.exit(1) if bad(tokens, v) else table[tokens]"), requirements=["INP-1"]))
    assert found["INP-1/V/last"].grade == grading.DIED
    assert "SystemExit" in found["INP-1/V/last"].detail


@pytest.mark.parametrize(
    ("error", "grade"),
    [("NotImplementedError", grading.NOT_IMPLEMENTED), ("MemoryError", grading.OUT_OF_MEMORY)],
)
def test_some_errors_refuse_nothing(tiny: Write, error: str, grade: str) -> None:
    found = by_id(ask(tiny(f"if bad(tokens, v): raise {error}\n    return table[tokens]"), requirements=["INP-1"]))
    assert found["INP-1/V/last"].grade == grade
    assert not found["INP-1/V/last"].ok


def test_refusing_valid_input_fails_the_controls(tiny: Write) -> None:
    code = "if (tokens >= v - 1).any(): raise ValueError('too large')\n    return table[tokens]"
    found = by_id(ask(tiny(code), requirements=["INP-1"]))
    assert found["INP-1/V-1"].grade == grading.VALID_REFUSED
    assert not found["INP-1/V-1"].ok


@pytest.mark.parametrize("code", ["import no_such_module", "import sys; sys.exit(1)", "import os; os._exit(1)"])
def test_what_cannot_be_loaded_is_one_error(tmp_path: Path, code: str) -> None:
    path = tmp_path / "broken.py"
    path.write_text(code)
    with pytest.raises(ChildError, match=r"broken\.py:logits cannot be loaded"):
        ask(f"{path}:logits")


def test_unknown_requirements_are_refused() -> None:
    with pytest.raises(ValueError, match="INP-99"):
        ask(REFERENCE, requirements=["INP-99"])
