"""The kill table on a sample; CI runs the whole of it as a command."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from decoderspec.commands import faults as command
from decoderspec.commands import kills
from decoderspec.commands.catalogue import FAMILIES, entry, page
from decoderspec.commands.kills import Kill, Table, declared, drawn, properties
from decoderspec.faults.bank import BANK, by_name
from decoderspec.faults.equivalents import EQUIVALENT
from decoderspec.properties.findings import Finding
from decoderspec.spec.requirements import requirements

PAGE = Path(__file__).parent.parent / "docs" / "faults.md"
TABLE = Table()


def sample():
    """The last fault of each family at each precision: the first ones are what everybody thinks of."""
    return {(fault.family, str(fault.precision)): fault for fault in BANK}.values()


def found(name):
    (each,) = (each for each in properties() if each.name == name)
    return each


LOGITS = found("test_logits_are_right_within_the_noise")


@pytest.fixture
def values_alone(monkeypatch):
    """Properties of values only, and a fault that is none."""
    harmless = replace(EQUIVALENT[0], breaks=("VAL-1",))
    monkeypatch.setattr(kills, "properties", lambda: [LOGITS])
    monkeypatch.setattr(kills, "by_name", lambda name: harmless)
    monkeypatch.setattr(kills, "ESTIMATED_FROM", 5)
    return harmless.name


@pytest.mark.parametrize("fault", sample(), ids=lambda fault: fault.name)
def test_a_fault_of_each_family_and_precision_is_killed_as_declared(fault):
    kill = TABLE.kill(fault.name)
    assert kill.as_declared, kill.faults() or kill.message
    assert kill.requirement in fault.breaks
    assert kill.fixed
    assert kill.chance == 1.0


def test_what_is_no_fault_survives(values_alone):
    kill = Table("quick").kill(values_alone)
    assert not kill.requirement
    assert not kill.as_declared
    assert "SURVIVES" in command.line(kill)


def test_a_kill_by_another_requirement_is_not_as_declared(monkeypatch):
    blamed = replace(by_name("post-norm"), breaks=("TIE-2",))
    monkeypatch.setattr(kills, "properties", lambda: [LOGITS])
    monkeypatch.setattr(kills, "by_name", lambda name: blamed)
    kill = Table().kill("post-norm")
    assert kill.requirement == "VAL-1"
    assert not kill.as_declared
    assert "does not declare" in command.line(kill)


def test_a_declared_requirement_that_holds_is_told(monkeypatch):
    boasting = replace(by_name("rotation-missing"), breaks=("VAL-1", "SHP-1"))
    monkeypatch.setattr(kills, "by_name", lambda name: boasting)
    kill = Table().kill(boasting.name)
    assert kill.holds == ("SHP-1",)
    assert not kill.as_declared
    assert "SHP-1 holds" in command.line(kill)


def test_the_chance_of_a_kill_by_the_search_is_estimated(monkeypatch):
    monkeypatch.setattr(kills, "_on_fixed", lambda run, found: None)
    monkeypatch.setattr(kills, "ESTIMATED_FROM", 12)
    kill = Table("quick").kill("norm-without-gain")
    assert not kill.fixed
    assert 0.9 < kill.chance <= 1.0
    assert kill.examples >= 1


def test_every_random_example_counts():
    run = TABLE.run(by_name("logits-with-bias"))
    tried, failed = drawn(run, LOGITS, 8)
    assert tried == 8
    assert [place for place, _ in failed] == list(range(1, 9))
    assert all(isinstance(finding, Finding) for _, finding in failed)


def test_a_fault_that_the_suite_cannot_judge_has_survived(monkeypatch):
    def broken(run, fault):
        raise ZeroDivisionError("of our own")

    monkeypatch.setattr(kills, "_kills", broken)
    kill = Table().kill("post-norm")
    assert not kill.as_declared
    assert "ZeroDivisionError: of our own" in kill.message


def test_every_requirement_of_a_model_has_a_fault_and_a_property():
    killing = {found.name for fault in BANK for found in declared(fault)}
    assert killing == {found.name for found in properties()}
    covered = {requirement for found in properties() for requirement in found.requirements}
    assert {name for name in requirements() if not name.startswith(("OPN", "BIG"))} <= covered


def test_the_command_prints_and_writes_the_table(tmp_path, capsys):
    file, markdown = tmp_path / "kills.json", tmp_path / "faults.md"
    names = ["post-norm", "loss-summed"]
    assert command.run([*names, "--json", str(file), "--markdown", str(markdown)]) == 0
    printed = capsys.readouterr().out
    assert "2 of 2 faults are killed as declared" in printed
    made = json.loads(file.read_text())
    assert [fault["fault"] for fault in made["faults"]] == names
    assert made["survivors"] == []
    assert made["faults"][0]["requirement"] == "VAL-1"
    assert made["properties"]["test_loss_is_the_mean_over_all_positions"] == 1
    assert "### post-norm" in markdown.read_text()


def test_the_command_fails_for_a_survivor(values_alone, monkeypatch, capsys):
    monkeypatch.setattr(command, "by_name", lambda name: by_name("post-norm"))
    assert command.run([values_alone, "--profile", "quick"]) == 1
    assert "SURVIVES" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["no-such-fault"], ["post-norm", "--family", "loss"]])
def test_the_command_says_that_there_is_no_such_fault(arguments, capsys):
    assert command.run(arguments) == 2
    assert "fault" in capsys.readouterr().err


def test_the_page_says_where_a_fault_hides_and_what_a_loose_comparison_sees():
    kill = TABLE.kill("norm-in-float32", spread=True)
    text = entry(by_name(kill.fault), kill)
    assert "VAL-1 on the fixed case" in text
    assert "a comparison at 1e-5 passes" in text
    hidden = TABLE.kill("rotation-missing", spread=True)
    assert "no layers" in hidden.hides
    assert "it hides on '" in entry(by_name(hidden.fault), hidden)
    assert "nothing" in entry(by_name("post-norm"), Kill("post-norm"))


def test_the_page_in_the_documentation_has_every_fault():
    """`decoderspec faults --markdown docs/faults.md` makes it anew."""
    text = PAGE.read_text(encoding="utf-8")
    assert headings(text) == headings(page(BANK, [Kill(fault.name) for fault in BANK]))
    for fault in BANK:
        assert fault.sentence[1:] in text, fault.name
    assert {fault.family for fault in BANK} == set(FAMILIES)


def headings(text):
    return [line for line in text.splitlines() if line.startswith("#")]
