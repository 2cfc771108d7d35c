"""A child that fails costs a finding in plain words and a restart, never the run."""

import gc
import json
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

from decoderspec.adapters.command import LIMITS, CommandError, CommandImplementation
from decoderspec.adapters.encodings import NotCarried
from decoderspec.adapters.process import Child, ChildDied, ChildHung, ChildLost, ChildMisspoke, Refused
from decoderspec.commands.main import main
from decoderspec.properties.cases import fixed_cases
from decoderspec.properties.check import check
from decoderspec.properties.child import ask
from decoderspec.properties.conduct import taken, watched
from decoderspec.properties.findings import Finding
from decoderspec.properties.loading import LoadError, load
from decoderspec.properties.session import run_over
from decoderspec.spec.config import Config
from decoderspec.spec.parameters import parameter_shapes

CHILD = Path(__file__).parent / "line_child.py"
CONFIG = Config(7, 8, 2, 5, 1, 6)
TOKENS = np.array([[0, 1, 2], [6, 5, 4]])
START, CALL = (LIMITS[kind][0] for kind in ("start", "call"))


def command(*words):
    return shlex.join([sys.executable, "-E", str(CHILD), *words])


def child(*words):
    return CommandImplementation(command(*words))


def parameters(seed=0):
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape) for name, shape in parameter_shapes(CONFIG).items()}


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setenv(CALL, "0.3")


# --- What a child does wrong ---

FAULTS = {
    "crash": (ChildDied, "was killed: Aborted, in logits; its standard error ends with: about to crash"),
    "exit": (ChildDied, "ended with status 3, in logits"),
    "half": (ChildDied, "was killed: Aborted, in logits"),
    "hang": (ChildHung, "did not answer logits within 0.3 s"),
    "half a refusal": (ChildHung, "did not answer logits within"),
    "rubbish": (ChildMisspoke, "not JSON: 'loading weights .. done' .*print to standard error"),
    "not an object": (ChildMisspoke, "a message is a JSON object"),
    "nested": (ChildMisspoke, "a message is flat: the field 'arrays' holds list"),
    "wrong id": (ChildMisspoke, "it has the id 2, the request has 3"),
    "no id": (ChildMisspoke, "it has the id None"),
    "wrong shape": (ChildMisspoke, r"logits has shape \[2, 3, 1, 7\], the specification says \[2, 3, 7\]"),
    "wrong count": (ChildMisspoke, "logits float64 2 3 7 takes 336 bytes, data has 330"),
    "wrong encoding": (ChildMisspoke, "data has 2 arrays, 1 are announced"),
    "wrong field": (ChildMisspoke, "a reply has a field 'shape'; allowed: id, arrays, data"),
    "wrong name": (ChildMisspoke, "it has no array logits; it has scores"),
    "wrong category": (ChildMisspoke, "there is no category 'mood'; allowed: configuration"),
    "endless line": (ChildMisspoke, "a line is longer than the"),
    "huge array": (ChildMisspoke, "1000000000000 values are announced"),
    "huge number": (ChildMisspoke, "describes no array"),
    "not UTF-8": (ChildMisspoke, "a line is not UTF-8"),
    "NaN": (ChildMisspoke, "NaN is no number of standard JSON"),
    "deep": (ChildMisspoke, "a line is not JSON"),
    "flood and crash": (ChildDied, "that nobody reads the last word"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_of_a_child_says_what_it_was_and_the_next_call_finds_another_child(fault, impatient):
    kind, words = FAULTS[fault]
    model = child(f"logits={fault}").build(CONFIG, parameters())
    with pytest.raises(kind, match=words) as raised:
        model.logits(TOKENS)
    assert len(str(raised.value)) < 1000
    assert model.loss(TOKENS, TOKENS) == 0.0
    held = model.parameters()
    assert all(np.array_equal(held[name], value) for name, value in parameters().items())


def test_a_second_reply_is_found_at_the_next_call():
    model = child("logits=twice").build(CONFIG, parameters())
    assert model.logits(TOKENS).shape == (2, 3, 7)
    with pytest.raises(ChildMisspoke, match="it has the id 3, the request has 4"):
        model.loss(TOKENS, TOKENS)
    assert model.loss(TOKENS, TOKENS) == 0.0


def test_a_flood_of_standard_error_stops_nothing():
    model = child("logits=flood").build(CONFIG, parameters())
    assert model.logits(TOKENS).shape == (2, 3, 7)


def test_a_call_that_hung_once_gets_a_tenth_of_its_time():
    implementation = child("logits=hang")
    implementation._limits["call"] = 1.0
    model = implementation.build(CONFIG, parameters())
    for seconds in ("1 s", "0.1 s", "0.1 s"):
        with pytest.raises(ChildHung, match=f"within {seconds}"):
            model.logits(TOKENS)


def test_a_child_that_reads_nothing_is_not_written_to_forever(impatient):
    reader = "import sys,json; m=json.loads(sys.stdin.readline()); print(json.dumps({'id': m['id'], 'protocol': 1,"
    reader += "'name': 'deaf', 'encoding': 'raw', 'offers': ['logits']}), flush=True); import time; time.sleep(1000)"
    implementation = CommandImplementation(shlex.join([sys.executable, "-c", reader]))
    wide = Config(2000, 100, 1, 1, 0, 1)
    given = {name: np.ones(shape) for name, shape in parameter_shapes(wide).items()}
    with pytest.raises(ChildHung, match="did not answer build within"):
        implementation.build(wide, given)


def test_what_a_wrapper_started_ends_with_it(tmp_path, impatient):
    script = tmp_path / "wrapper.sh"
    script.write_text(f"#!/bin/sh\n{command('logits=hang')}\nexit 0\n", encoding="utf-8")
    script.chmod(0o755)
    model = CommandImplementation(str(script)).build(CONFIG, parameters())
    with pytest.raises(ChildHung):
        model.logits(TOKENS)


@pytest.mark.parametrize("fault", ["crash", "hang", "rubbish", "wrong id", "endless line", "NaN"])
def test_a_child_that_does_not_start_cannot_be_loaded(fault, monkeypatch):
    monkeypatch.setenv(START, "0.5")
    with pytest.raises(LoadError, match="does not start"):
        load("command:" + command(f"start={fault}"))


@pytest.mark.parametrize(("words", "message"), [
    (('declares={"protocol": 2}',), "it speaks protocol 2, this suite speaks 1"),
    (('declares={"encoding": "morse"}',), "there is no encoding 'morse'; allowed: hex"),
    (('declares={"offers": ["logit"]}',), "nothing called 'logit' can be offered"),
    (('declares={"name": 3}',), "the field name must be of the kind text"),
    (("offers=rms_norm",), "offers no logits; test one of what it offers with --as: rms_norm"),
])  # fmt: skip
def test_a_start_message_that_cannot_be_used_says_why(words, message):
    with pytest.raises(LoadError, match=message):
        load("command:" + command(*words))


@pytest.mark.parametrize("name", ["", "no-such-decoder", "'unfinished"])
def test_a_command_that_cannot_be_started_exits_2_with_a_word(name, capsys):
    assert main(["check", "--command", name]) == 2
    assert capsys.readouterr().err.startswith("decoderspec: ")


def test_a_time_limit_that_is_none_is_named(monkeypatch):
    monkeypatch.setenv(CALL, "soon")
    with pytest.raises(CommandError, match=rf"got 'soon' \({CALL}\)"):
        child()


# --- What it offers ---


def test_capabilities_are_those_that_the_child_offers():
    implementation = child("offers=logits,stages")
    model = implementation.build(CONFIG, parameters())
    assert [hasattr(model, name) for name in ("logits", "stages", "loss", "parameters")] == [True, True, False, False]
    assert not hasattr(implementation, "initialize")
    assert not hasattr(implementation, "classify")
    implementation = child()
    assert hasattr(implementation.build(CONFIG, parameters()), "loss")
    assert hasattr(implementation, "initialize")
    assert hasattr(implementation, "classify")


def test_declarations_come_through_flat_fields():
    declares = {
        "precision.results": "bfloat16", "precision.attention.weights": "float32", "claims": ["forward"],
        "layout.rotation": "half_split", "layout.names.token_embedding.weight": "embed", "layout.stacked": False,
        "limits.head_width": [64, 128], "limits.model_width.multiple_of": 64,
    }  # fmt: skip
    implementation = child("declares=" + json.dumps(declares))
    assert implementation.precision == {"results": "bfloat16", "attention.weights": "float32"}
    assert implementation.claims == ["forward"]
    names = {"token_embedding.weight": "embed"}
    assert implementation.layout == {"rotation": "half_split", "names": names, "stacked": False}
    assert implementation.limits == {"head_width": [64, 128], "model_width": {"multiple_of": 64}}
    assert not hasattr(implementation, "emulates")


def test_a_refusal_carries_its_category_and_keeps_the_child():
    implementation = child("right")
    model = implementation.build(CONFIG, parameters())
    home = implementation.child()
    with pytest.raises(Refused) as raised:
        model.logits(TOKENS + 5)
    assert implementation.classify(raised.value) == "vocabulary"
    assert implementation.classify(ValueError()) is None
    assert implementation.child() is home


def test_what_the_protocol_has_no_type_for_is_refused_by_a_type():
    model = child().build(CONFIG, parameters())
    for given in (TOKENS > 0, TOKENS.astype(str), TOKENS.astype(complex), [[1, 2], [3]], [[None]]):
        with pytest.raises(NotCarried):
            model.logits(given)


def test_a_model_in_a_new_child_holds_what_was_assigned():
    implementation = child("logits=crash")
    model = implementation.build(CONFIG, parameters())
    model.assign("final_norm.gain", np.full(8, 3.0))
    with pytest.raises(ChildDied):
        model.logits(TOKENS)
    sent = []
    implementation.reply, keep = (
        lambda call, *rest, **on: sent.append(call) or keep(call, *rest, **on),
        implementation.reply,
    )
    model.parameters()
    assert sent == ["build", "assign", "parameters"]


def test_the_child_ends_with_its_last_model_and_with_its_owner():
    implementation = child()
    models = [implementation.build(CONFIG, parameters()) for _ in range(2)]
    running = implementation.child()
    models[0].close()
    assert not running.ended
    models[1].close()
    assert running.ended
    again = implementation.child()
    del implementation, models
    gc.collect()
    assert again.ended


# --- In the suite ---


def test_a_call_that_is_lost_is_a_finding():
    run = run_over(child("logits=crash"))
    with pytest.raises(Finding, match="logits raised ChildDied on valid input: the child was killed"):
        run.model(run.fixed[0]).logits(TOKENS)


def test_the_requirements_beside_a_fault_are_still_tested():
    chosen = ("-q", "-k", "right_within or loss_is or gradients_are")
    name = "command:" + command("right", "gradients=crash")
    report = check(name, profile="quick", cases=fixed_cases()[:1], pytest_arguments=chosen)
    rows = report.rows()
    assert [rows[name]["status"] for name in ("VAL-1", "LOS-1", "GRA-1")] == ["pass", "pass", "fail"]
    assert "gradients raised ChildDied on valid input: the child was killed: Aborted" in rows["GRA-1"]["reason"]


@pytest.mark.parametrize(("words", "grade"), [((), "refused in its category"), (("loss=crash",), "died")])
def test_bad_input_is_asked_in_a_process_that_loads_the_command_by_its_name(words, grade):
    outcomes = {each.probe: each for each in ask("command:" + command("right", *words), requirements=["INP-1"])}
    assert outcomes["INP-1/V/last"].grade == "refused in its category"
    assert outcomes["INP-1/V/first/loss"].grade == grade
    assert outcomes["INP-1/V-1"].ok


def test_every_fault_is_one_of_a_lost_child():
    assert all(issubclass(kind, ChildLost) for kind, _ in FAULTS.values())


def test_the_threads_that_look_after_a_child_are_not_the_implementations():
    taken()
    with watched("build"):
        child = Child([sys.executable, "-c", "input()"])
    child.end()
    assert taken() == []
