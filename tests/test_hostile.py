"""A wrong implementation cannot hurt the run: it is told what it did, and what is tested next is tested as ever."""

import os
import random
import re
import sys
from collections import OrderedDict

import hostile
import numpy as np
import pytest

from decoderspec.commands.main import main
from decoderspec.properties import conduct, test_forward, test_state, test_training
from decoderspec.properties.cases import Case
from decoderspec.properties.child import ask
from decoderspec.properties.findings import Finding
from decoderspec.properties.loading import LoadError, load
from decoderspec.properties.record import record
from decoderspec.properties.report import Report
from decoderspec.properties.run import PROFILES, Entry, Run
from decoderspec.properties.session import run_over
from decoderspec.properties.subject import ALIVE, read_subject
from decoderspec.reference import Reference
from decoderspec.spec.config import Config
from decoderspec.spec.precision import DeclarationError

HERE = os.path.dirname(__file__)
CASE = Case(Config(5, 4, 2, 3, 1, 4), batch=2, tokens=3, seed=1)
MODULES = (test_forward, test_state, test_training)
ASKED = {"SHP-1", "VAL-1", "DET-1", "DET-2", "DET-3", "WGT-5", "LOS-1", "GRA-1"}
TRUTHS = OrderedDict()  # of the one case, whoever is under test
FAILS = {  # implementation -> a requirement that it fails, and the words for what it did
    "Leaves": ("VAL-1", "logits raised SystemExit on valid input: 0"),
    "Recurses": ("VAL-1", "logits raised RecursionError on valid input"),
    "RaisesItsOwn": ("VAL-1", r"logits raised Unprintable on valid input: \(its message cannot be read\)"),
    "Skips": ("VAL-1", "logits raised Skipped on valid input: not today"),
    "RunsOutOfMemory": ("VAL-1", "logits raised MemoryError on valid input"),
    "ReturnsObjects": ("VAL-1", "expected an array of real numbers, got numpy.ndarray of dtype object"),
    "ReturnsFloat16": ("VAL-1", "logits: off by .* x noise"),
    "ReturnsNan": ("SHP-1", "nan"),
    "ReturnsItsBuffer": ("DET-2", "a result that was returned earlier was overwritten"),
    "ReturnsTheTokens": ("VAL-1", r"logits have shape \(2, 3, 1\), the specification says \(2, 3, 5\)"),
    "ReturnsTooMuch": ("VAL-1", "no right answer has that many values"),
    "ReturnsAGenerator": ("VAL-1", "got generator"),
    "ReturnsMasked": ("VAL-1", "a masked array: what is masked has no value"),
    "ReturnsWhatCannotBeRead": ("VAL-1", "logits: reading it raised SystemExit: the device is lost"),
    "ReturnsAMappingThatFails": ("GRA-1", "gradients: reading it raised SystemError: no names"),
    "WritesToTokens": ("DET-3", "the array of tokens that logits was given was written to"),
    "ChangesTheFolder": ("VAL-1", "logits: off by .* x noise"),
}
TOLD = {  # implementation -> what it is told, which fails nothing
    "ChangesTheErrorState": "logits changes the error state of NumPy",
    "ReplacesNumpy": "logits replaces functions of NumPy: numpy.exp, numpy.sqrt",
    "SetsTheRandomState": "logits draws from the global random state, or sets it",
    "Prints": "logits prints to standard output",
    "ReplacesStandardOutput": "logits replaces standard output",
    "StartsThreads": "logits leaves threads running",
}
HARMLESS = ("WritesToParameters", "WritesToTheConfiguration", "AnswersNone", "AnswersWithErrors", "KeepsModels")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def _as_it_was():
    """The state of the process that an implementation may not change, but for its folder."""
    before = np.geterr(), random.getstate(), sys.stdout, np.exp
    yield
    assert (np.geterr(), random.getstate(), sys.stdout, np.exp) == before
    assert hostile.NUMPY_EXP is np.exp


def examined(subject) -> Report:
    """Some properties of values, state and training on one case, one after the other, as the plugin runs them."""
    conduct.taken()
    run, records = run_over(subject, profile="quick"), []
    run.cases, run.truths = (CASE,), TRUTHS
    tests = [each for module in MODULES for name, each in vars(module).items() if name.startswith("test_")]
    for test in (each for each in tests if ASKED & set(each.property.requirements)):
        run.entry, raised = Entry(), None
        try:
            test(run)
        except Exception as found:
            raised = found
        records.append(record(test.property, run, raised))
    return Report(run, records)


def statuses(report):
    return {name: row["status"] for name, row in report.rows().items() if row["reason"] != "not run"}


@pytest.fixture(scope="module")
def right():
    """What becomes of each requirement where nothing is wrong."""
    return statuses(examined(hostile.Hostile()))


@pytest.mark.parametrize("name", FAILS)
def test_what_it_does_is_a_finding_in_plain_words(name):
    requirement, words = FAILS[name]
    report = examined(getattr(hostile, name)())
    row = report.rows()[requirement]
    assert row["status"] == "fail"
    assert re.search(words, row["reason"]), row["reason"]
    assert "error" not in statuses(report).values()
    assert report.verdict == "fails"


@pytest.mark.parametrize("name", ["ReturnsItsBuffer", "WritesToTokens", "ReturnsAMappingThatFails"])
def test_what_is_right_beside_it_still_holds(name, right):
    found = statuses(examined(getattr(hostile, name)()))
    wrong = {key for key, status in found.items() if status != right[key]}
    assert wrong
    assert all(key.startswith(("DET", "GRA", "TIE", "WGT")) for key in wrong), wrong


def test_a_failure_that_passes_is_held_against_one_requirement_alone():
    found = statuses(examined(hostile.FailsOnce()))
    assert len([name for name, status in found.items() if status == "fail"]) == 1


@pytest.mark.parametrize("name", TOLD)
def test_what_reaches_beyond_its_call_is_put_back_and_told(name, right):
    report = examined(getattr(hostile, name)())
    assert TOLD[name] in report.conduct()
    assert statuses(report) == right
    assert report.to_json()["conduct"] == report.conduct()


def test_a_slow_call_is_told(monkeypatch):
    monkeypatch.setattr(conduct, "SLOW", 0.0)
    assert any(words.endswith(" s for one call") for words in examined(Reference()).conduct())


@pytest.mark.parametrize("name", HARMLESS)
def test_what_harms_nobody_else_changes_no_verdict(name, right):
    report = examined(getattr(hostile, name)())
    assert statuses(report) == right
    assert report.conduct() == []


def test_the_reference_does_nothing_beside_answering():
    assert examined(Reference()).conduct() == []


def test_models_that_somebody_keeps_are_no_longer_ours():
    run = Run(read_subject(hostile.KeepsModels()), "", PROFILES["quick"])
    for seed in range(4):
        run.model(Case(CASE.config, 1, 2, seed))
    assert len(run.subject.models) == ALIVE


def test_a_model_that_fails_to_close_is_told_so():
    subject = read_subject(hostile.FailsToClose())
    for seed in range(ALIVE):
        subject.model(Case(CASE.config, 1, 2, seed))
    with pytest.raises(Finding, match="close raised SystemExit on valid input: closed twice"):
        subject.model(Case(CASE.config, 1, 2, ALIVE))


def test_an_implementation_that_declares_nonsense_is_refused():
    with pytest.raises(DeclarationError, match="precision must be a word or a mapping, got function"):
        read_subject(hostile.AnswersEverything())


@pytest.mark.parametrize("name", ["Skips", "RaisesItsOwn", "AnswersWithErrors"])
def test_bad_input_is_asked_to_its_end_whatever_comes(name):
    outcomes = ask(f"{HERE}/hostile.py:{name}", requirements=["INP-2", "INP-7"])
    assert all(outcome.grade for outcome in outcomes)
    assert any(outcome.judged for outcome in outcomes)


def test_a_module_that_changes_numpy_is_told_and_undone(tmp_path):
    path = tmp_path / "patches.py"
    path.write_text("import numpy as np\nnp.matmul = None\nnp.seterr(all='raise')\nclass A:\n    build = None\n")
    conduct.taken()
    load(f"{path}:A")
    found = ["its module replaces functions of NumPy: numpy.matmul", "its module changes the error state of NumPy"]
    assert conduct.taken() == found
    assert np.matmul is not None


@pytest.mark.parametrize(
    "source", ["raise BaseException('x' * 10**6)", "import pytest; pytest.skip('no', allow_module_level=True)"]
)
def test_a_module_that_cannot_be_run_is_one_short_error(tmp_path, source):
    path = tmp_path / "broken.py"
    path.write_text(source)
    with pytest.raises(LoadError, match=r"broken\.py cannot be run") as found:
        load(f"{path}:A")
    assert len(str(found.value)) < 2100


def test_a_case_is_saved_where_the_command_was_given(tmp_path, capsys):
    name = f"{HERE}/hostile.py:ChangesTheFolder"
    selected = ["--", "-q", "-k", "test_logits_are_right"]
    assert main(["check", name, "--profile", "quick", "--json", "report.json", *selected]) == 1
    assert (tmp_path / "report.json").is_file()
    assert list((tmp_path / "decoderspec-cases").glob("*.json"))
    assert "logits changes the current folder" in capsys.readouterr().out
