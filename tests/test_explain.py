"""`decoderspec explain` on the command line: what it prints, what it writes, and how it is refused."""

import json
import sys
from pathlib import Path

import pytest

from decoderspec.commands import explain as explain_command
from decoderspec.commands.explain import parser
from decoderspec.commands.main import main
from decoderspec.properties.cases import Case, fixed_cases
from decoderspec.properties.session import make_run
from decoderspec.properties.smallest import smaller, smallest
from decoderspec.spec.config import Config

RIGHT, WRONG, UNTESTED = 0, 1, 2
BANK = "decoderspec.faults.bank"
HERE = Path(__file__).parent
KERNELS = HERE / "kernels.py"
SUBJECTS = HERE / "subjects.py"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(HERE)])


def explain(*arguments):
    """Exit status and the JSON that it writes."""
    status = main(["explain", *arguments, "--json", "found.json"])
    return status, json.loads(Path("found.json").read_text(encoding="utf-8"))


def test_a_wrong_stage_is_told_with_its_cause_and_the_smallest_example(capsys):
    status, found = explain(f"{BANK}:scale-squared")
    printed = capsys.readouterr().out
    assert status == WRONG
    assert found["first_wrong_stage"] == "blocks.0.attention.weights"
    assert found["likely_causes"][0]["fault"] == "scale-squared"
    assert found["example"]["case"].startswith("V=2 d=2 h=1 f=1 N=1 max_positions=2 B=1 T=2")
    assert found["example"]["got"] != found["example"]["want"]
    assert "the smallest example that shows it: V=2 d=2" in printed
    assert "no other comes near" in printed
    assert "atol=1e-5" in printed


def test_a_decoder_that_conforms_is_said_to_with_what_was_compared(capsys, monkeypatch):
    monkeypatch.setattr(explain_command, "LONG", 5)  # the short cases are enough
    status, found = explain("decoderspec.reference:Reference")
    printed = capsys.readouterr().out
    assert status == RIGHT
    assert "nothing is wrong: 38 stages, the logits, the loss and 22 gradients compared" in printed
    assert f"{found['cases']} cases" in printed
    assert found["example"] is None


def test_a_wrong_derivative_is_told_with_the_gradient_that_shows_it(capsys):
    status, found = explain(f"{BANK}:matrix-gradient-halved")
    assert status == WRONG
    assert found["first_wrong_stage"] is None
    assert found["place"] == "the derivative of linear by its weight"
    assert found["example"]["stage"].startswith("gradient of blocks.")
    assert found["example"]["got"] == pytest.approx(found["example"]["want"] / 2)
    assert "one wrong derivative explains" in capsys.readouterr().out


def test_hints_reveal_one_step_at_a_time(capsys):
    said = {}
    for hint in (1, 2, 3):
        status, found = explain(f"{BANK}:scale-squared", "--hint", str(hint))
        said[hint] = capsys.readouterr().out + json.dumps({**found, "implementation": ""})
        said[hint] = said[hint].replace("scale-squared on", "")  # its name is what it was called by
        assert status == WRONG
    assert "attention.weights" in said[1]
    assert "divided" not in said[1] + said[2]
    assert "the kind: attention" in said[2]
    assert "the kind:" not in said[1]
    assert "divided by the head width" in said[3]


def test_two_faults_are_named_as_a_pair_where_none_alone_does_it(monkeypatch, capsys):
    """With logits alone; few faults are tried, so that there are few pairs."""
    from decoderspec.faults.bank import by_name
    from decoderspec.properties import causes

    few = tuple(by_name(name) for name in ("scale-squared", "gelu-for-silu", "post-norm"))
    monkeypatch.setattr(causes, "BANK", few)
    Path("both.py").write_text(BOTH, encoding="utf-8")
    status, found = explain("both.py:Both")
    assert status == WRONG
    assert set(found["likely_causes"][0]["fault"].split(" and ")) == {"scale-squared", "gelu-for-silu"}
    capsys.readouterr()


BOTH = """
from decoderspec.faults.bank import by_name
from decoderspec.faults.fault import FaultyReference
from decoderspec.faults.hypotheses import paired


class Logits:
    def __init__(self, model):
        self.logits = model.logits


class Both:
    name = "both"

    def build(self, config, parameters):
        both = paired(by_name("scale-squared"), by_name("gelu-for-silu"))
        return Logits(FaultyReference(both).build(config, parameters))
"""


# --- One operation ---

UNSCALED = """
import numpy as np
from kernels import attend


def unscaled(query, key, value):
    return attend(query * np.sqrt(query.shape[-1]), key, value)
"""
GAIN = """
from kernels import rms_norm, rms_norm_backward as right


def rms_norm_backward(upstream, x, gain, epsilon):
    dx, dgain = right(upstream, x, gain, epsilon)
    return dx, dgain / (x.shape[0] * x.shape[1])
"""


def test_an_operation_is_explained_with_the_faults_that_do_the_same_to_it(capsys):
    Path("mine.py").write_text(UNSCALED, encoding="utf-8")
    status, found = explain("mine.py:unscaled", "--as", "attend")
    assert status == WRONG
    assert [stage["name"] for stage in found["stages"]] == ["attend"]
    assert found["likely_causes"][0]["fault"] == "scale-missing"
    assert found["first_wrong_stage"] == "attention.weights"
    assert found["example"]["case"].startswith("V=2 d=2 h=1")
    assert "seen before" in capsys.readouterr().out


def test_the_derivative_of_an_operation_is_explained_likewise():
    Path("mine.py").write_text(GAIN, encoding="utf-8")
    status, found = explain("mine.py:rms_norm", "--as", "rms_norm")
    assert status == WRONG
    assert found["derivatives"] == ["rms_norm by its gain"]
    assert found["likely_causes"][0]["fault"] == "gain-gradient-averaged"


def test_an_operation_that_conforms_is_said_to(capsys):
    status, found = explain(f"{KERNELS}:rms_norm", "--as", "rms_norm")
    assert status == RIGHT
    assert "nothing is wrong: 1 stage and 2 gradients compared" in capsys.readouterr().out
    assert not found["likely_causes"]


def test_a_failing_check_of_an_operation_names_the_likely_cause(capsys):
    Path("mine.py").write_text(UNSCALED, encoding="utf-8")
    assert main(["check", "mine.py:unscaled", "--as", "attend", "--profile", "quick"]) == WRONG
    assert "likely cause: scale-missing" in " ".join(capsys.readouterr().out.split())


# --- Against another ---


def test_two_of_one_name_are_told_apart(capsys):
    Path("a.py").write_text("from subjects import Right", encoding="utf-8")
    Path("b.py").write_text(
        "from subjects import Wrong as W\n\n\nclass Right(W):\n    name = 'right'\n", encoding="utf-8"
    )
    status, found = explain("a.py:Right", "--against", "b.py:Right")
    printed = capsys.readouterr().out
    assert status == RIGHT
    first, second = found["against"]["names"]
    assert first.endswith("a.py:Right)")
    assert second.endswith("b.py:Right)")
    assert f"1: {first}\n2: {second}" in printed
    assert found["against"]["nearer"] == {"1": ["logits"], "2": []}
    assert "1 is nearer" in printed


# --- What is refused ---


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give an implementation or --dump FILE"),
        (["a.py:A", "--dump", "x.npz"], "give an implementation or --dump FILE"),
        (["a.py:A", "--hint", "4"], "invalid choice"),
        (["a.py:A", "--config", "c.json"], "--config belongs to --dump"),
        (["a.py:A", "--as", "attend", "--case", "c.json"], "--as is for a function"),
        (["a.py:A", "--against", "b.py:B", "--hint", "1"], "--against compares two"),
        (["a.py:A", "--against", "b.py:B", "--as", "add"], "--against compares two"),
    ],
)
def test_options_that_do_not_go_together_are_refused(arguments, words, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["explain", *arguments])
    assert stopped.value.code == UNTESTED
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        [f"{KERNELS}:rms_norm", "--as", "nothing"],
        [f"{KERNELS}:missing", "--as", "attend"],
        [f"{SUBJECTS}:Right", "--precision", "float12"],
        [f"{SUBJECTS}:Right", "--precision", "{'results': 'float12'}"],
        ["--dump", "missing.npz"],
    ],
)
def test_what_cannot_be_looked_at_exits_2_with_a_word(arguments, capsys):
    assert main(["explain", *arguments]) == UNTESTED
    assert capsys.readouterr().err.startswith("decoderspec: ")


def test_the_examples_of_the_help_are_accepted():
    for line in parser().epilog.splitlines():
        words = line.split("   ")[0].split()
        if words[:2] == ["decoderspec", "explain"]:
            assert parser().parse_args(words[2:])


# --- The smallest case ---


def test_the_smallest_case_is_the_smallest_on_which_it_shows():
    run = make_run("decoderspec.reference:Reference")
    case = fixed_cases()[0]
    found = smallest(run, case, lambda c: c.tokens >= 3 and c.config.heads == 2)
    assert (found.tokens, found.config.heads) == (5, 2)  # its half, 2, is too few
    assert (found.batch, found.config.layers, found.config.feed_forward_width) == (1, 1, 1)
    assert smallest(run, case, lambda c: False) == case


def test_every_smaller_case_is_valid_and_smaller():
    case = Case(Config(11, 12, 2, 7, 2, 9, 100.0, 1e-3), 2, 5, 1, "peaked")
    for other in smaller(case):
        config = other.config
        assert config.head_width % 2 == 0
        assert config.model_width == config.heads * config.head_width
        assert other.tokens <= config.max_positions
        assert other != case
