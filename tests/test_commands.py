"""Commands at the prompt: the exit status is the verdict, and what cannot be done is said in one line, never green."""

import csv
import json
import shutil
from pathlib import Path

import pytest

from decoderspec.commands import doctor, init, outputs, scoreboard
from decoderspec.commands.main import COMMANDS, main
from decoderspec.properties.cases import fixed_cases
from decoderspec.properties.kernels import KERNELS
from decoderspec.properties.reports.schema import schema, violations
from decoderspec.properties.reports.scoreboard import Entry
from decoderspec.spec.protocol import CAPABILITIES, CONTRACTS
from decoderspec.spec.requirements import requirements

HERE = Path(__file__).parent
SUBJECTS = HERE / "subjects.py"
KERNEL_FILE = HERE / "kernels.py"
QUICK = ("--profile", "quick")
VALUES_ALONE = ("--", "-q", "-k", "test_forward")  # what all properties say is tested once
CONFORMS, FAILS, NOTHING_SAID = 0, 1, 2
REPORT = {  # the public format
    "decoderspec", "spec", "implementation", "precision", "contracts", "verdict", "requirements", "capabilities",
    "limits", "grades", "caught", "not_covered", "environment", "seed",
}  # fmt: skip
BESIDE_IT = {
    "claims", "required", "holes", "not_run", "xfails", "emulates", "conduct", "bits", "stages", "findings", "problems",
    "seconds", "profile",
}  # fmt: skip
ROW = {"status", "contract", "examples", "worst_noise", "allowed", "reason"}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """Saved cases land beside whoever runs a command."""
    monkeypatch.chdir(tmp_path)


def check(name, *options, values_alone=True):
    return main(["check", f"{SUBJECTS}:{name}", *QUICK, *options, *(VALUES_ALONE if values_alone else ())])


# --- check ---


def test_a_right_implementation_exits_0_and_its_report_has_the_documented_keys(capsys):
    assert check("Right", "--json", "report.json", values_alone=False) == CONFORMS
    report = json.loads(Path("report.json").read_text(encoding="utf-8"))
    assert set(report) == REPORT | BESIDE_IT
    assert violations(report, schema()) == []
    assert report["verdict"] == "conforms"
    assert [stage["name"] for stage in report["stages"]] == ["logits"]
    assert report["implementation"] == "right"
    assert report["precision"] == {"declared": "float64", "observed": None}
    contracts = {"forward": "conforms", "training": "absent", "weights": "observed", "inputs": "observed"}
    assert report["contracts"] == contracts
    assert report["seed"] == 0
    assert set(report["capabilities"]) == set(CAPABILITIES)
    assert report["capabilities"]["initialize"]
    assert not report["capabilities"]["loss"]
    assert list(report["requirements"]) == [name for name in requirements() if not name.startswith("OPN")]
    for row in report["requirements"].values():
        assert set(row) >= ROW
        assert row["status"] in ("pass", "fail", "skip", "xfail", "not_judged")
    assert all(0 < relative < 1e-6 for relative in report["caught"].values() if isinstance(relative, float))
    assert any("loss(tokens, targets)" in each for each in report["not_covered"])
    printed = capsys.readouterr().out
    assert "right conforms (forward)" in printed
    assert "Traceback" not in printed


def test_a_wrong_implementation_exits_1_and_its_case_is_saved_and_explained(capsys):
    assert check("Wrong", "--json", "report.json") == FAILS
    printed = capsys.readouterr().out
    assert "wrong does not conform: forward fails, of (forward)" in printed
    assert requirements()["VAL-1"].sentence[:40] in printed
    assert "Traceback" not in printed
    report = json.loads(Path("report.json").read_text(encoding="utf-8"))
    assert (report["verdict"], report["contracts"]["forward"]) == ("fails", "fails")
    assert report["requirements"]["VAL-1"]["worst_noise"] > report["requirements"]["VAL-1"]["allowed"]
    assert violations(report, schema()) == []
    assert report["findings"][0]["counts"]
    assert report["findings"][0]["causes"]
    (case,) = Path("decoderspec-cases").glob("VAL-1-*")
    assert f"next: decoderspec explain {SUBJECTS}:Wrong --case {case}" in " ".join(printed.split())

    assert main(["explain", f"{SUBJECTS}:Wrong", "--case", str(case), "--json", "explained.json"]) == FAILS
    explained = json.loads(Path("explained.json").read_text(encoding="utf-8"))
    assert {"first_wrong_stage", "stages", "likely_causes"} <= set(explained)
    assert main(["explain", f"{SUBJECTS}:Right", "--case", str(case)]) == CONFORMS
    assert check("Wrong", "--case", str(case)) == FAILS
    assert check("Right", "--case", str(case)) == CONFORMS


def test_what_fails_outside_the_claims_is_shown_and_exits_0_unless_it_is_required(capsys):
    assert check("WrongInWhatItDoesNotClaim", values_alone=False) == CONFORMS
    printed = capsys.readouterr().out
    assert "seen, but in contracts that are not claimed" in printed
    assert "INP-1" in printed
    required = ("--require", "forward,inputs", "--", "-q", "-k", "out_of_range or right_within")
    assert check("WrongInWhatItDoesNotClaim", *required, values_alone=False) == FAILS


def test_claiming_nothing_is_no_verdict(capsys):
    assert check("ClaimsNothing") == NOTHING_SAID
    assert "no verdict" in capsys.readouterr().out
    assert check("ClaimsNothing", "--require", "forward") == CONFORMS
    assert check("Right", "--claims", "") == NOTHING_SAID  # an unset variable in somebody's CI


def test_a_claim_that_cannot_be_reached_exits_1_and_says_what_to_add(capsys):
    reached = ("--", "-q", "-k", "test_forward or test_training")
    assert check("ClaimsTooMuch", *reached, values_alone=False) == FAILS
    assert "claimed, but LOS-1: loss(tokens, targets)" in capsys.readouterr().out


def test_a_decoder_that_cannot_be_built_exits_1_with_the_users_own_frame(capsys):
    assert check("Unbuildable", "--json", "report.json") == FAILS
    report = json.loads(Path("report.json").read_text(encoding="utf-8"))
    assert report["verdict"] == "fails"
    assert not report["capabilities"]["loss"]
    printed = capsys.readouterr().out
    assert "build raised OSError on valid input: weights.bin is missing" in printed
    assert str(SUBJECTS) in printed
    assert "please report" not in printed


def test_known_failures_exit_0_and_stop_to_be_known_beyond_their_ceiling(capsys):
    entries = [{"requirement": name, "reason": "up is off"} for name in ("VAL-1", "INP-1")]
    Path("known.json").write_text(json.dumps(entries), encoding="utf-8")
    assert check("Wrong", "--xfails", "known.json") == CONFORMS
    printed = " ".join(capsys.readouterr().out.split())
    assert "1 known" in printed
    assert "VAL-1 fails as listed (up is off)" in printed
    assert "INP-1 does not fail as listed: it matches nothing" in printed
    Path("known.json").write_text(json.dumps([entries[0] | {"at_most": 20}]), encoding="utf-8")
    assert check("Wrong", "--xfails", "known.json") == FAILS


def test_options_in_the_environment_do_not_thin_the_properties_out(monkeypatch, capsys):
    monkeypatch.setenv("PYTEST_ADDOPTS", "-k nothing_has_this_name")
    assert check("Right") == CONFORMS
    assert "nothing was tested" not in capsys.readouterr().out


def test_a_selection_of_tests_is_a_part_and_no_verdict(capsys):
    assert check("Right", "--json", "report.json") == CONFORMS
    printed = capsys.readouterr().out
    assert "forward   partial" in printed
    assert "there is no verdict" in printed
    assert "conforms" not in printed
    report = json.loads(Path("report.json").read_text(encoding="utf-8"))
    assert (report["verdict"], report["contracts"]["forward"]) == ("partial", "partial")
    assert "CAU-1" in report["not_run"]
    assert check("Right", "--require", "inputs") == NOTHING_SAID  # of which nothing was run


def test_a_run_that_stops_at_its_first_failure_fails_and_blames_nobody_else(capsys):
    assert check("Wrong", "--json", "report.json", "--", "-q", "-x", values_alone=False) == FAILS
    assert "please report" not in capsys.readouterr().out
    assert "CAU-1" in json.loads(Path("report.json").read_text(encoding="utf-8"))["not_run"]


def test_every_report_is_written_at_once_and_again_from_the_stored_one(capsys):
    kinds = [kind for kind in outputs.RENDERERS if kind != "json"]
    given = [word for kind in kinds for word in (f"--{kind}", f"first.{kind}")]
    assert check("Wrong", "--json", "report.json", *given) == FAILS
    again = [word for kind in kinds for word in (f"--{kind}", f"second.{kind}")]
    assert main(["report", "report.json", *again]) == CONFORMS
    for kind in kinds:
        first = Path(f"first.{kind}").read_text(encoding="utf-8")
        assert "VAL-1" in first or kind == "badge"
        assert first == Path(f"second.{kind}").read_text(encoding="utf-8")


# --- Several, and the project's own table ---

KILLER = """
import os, sys
sys.path.insert(0, {folder!r})
from subjects import Right, Wrong

class Killer(Right):
    def build(self, config, parameters):
        os._exit(0)
"""


def test_several_implementations_have_one_table_and_none_ends_it(capsys):
    Path("theirs.py").write_text(KILLER.format(folder=str(HERE)), encoding="utf-8")
    names = [f"theirs.py:{name}" for name in ("Right", "Killer", "Missing", "Wrong")]
    assert main(["check", *names, *QUICK, "--seed", "3", "--csv", "marks.csv", *VALUES_ALONE]) == NOTHING_SAID
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:5]] == names
    assert "partial" in lines[1]
    assert "ended" in lines[2]
    assert "has no 'Missing'" in lines[3]
    assert "FAILS" in lines[4]
    with Path("marks.csv").open(encoding="utf-8", newline="") as sheet:
        rows = list(csv.DictReader(sheet))
    assert [row["name"] for row in rows] == names
    assert [row["verdict"] for row in rows] == ["partial", "none", "none", "fails"]
    assert [row["seed"] for row in rows] == ["3", "", "", "3"]
    assert rows[3]["fails"] == "VAL-1"
    assert "has no 'Missing'" in rows[2]["error"]


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [([0, 0], CONFORMS), ([0, 1], FAILS), ([1, 0], FAILS), ([1, 2, 0], NOTHING_SAID), ([2, 2], NOTHING_SAID)],
)
def test_of_several_the_worst_decides(statuses, expected, monkeypatch, capsys):
    left = iter(statuses)
    monkeypatch.setattr(scoreboard, "tested", lambda name, *_: (Entry(name, error="made up"), next(left)))
    assert main(["check", *(f"mine.py:M{status}" for status in statuses)]) == expected
    assert f"{statuses.count(0)} of {len(statuses)} conform" in capsys.readouterr().out


def known(requirement):
    Path("known.json").write_text(json.dumps([{"requirement": requirement, "reason": "up is off"}]), encoding="utf-8")
    return "known.json"


def test_where_nothing_is_named_the_project_says_what_is_tested(monkeypatch, capsys):
    known("VAL-1")
    Path("mine.py").write_text(KILLER.format(folder=str(HERE)), encoding="utf-8")
    Path("deep").mkdir()
    Path("pyproject.toml").write_text(
        '[tool.decoderspec]\nimplementation = "mine.py:Wrong"\nprofile = "quick"\nseed = 5\nxfails = "known.json"\n',
        encoding="utf-8",
    )
    monkeypatch.chdir("deep")
    assert main(["check", *VALUES_ALONE]) == CONFORMS
    printed = capsys.readouterr().out
    assert "profile quick, seed 5" in printed
    assert "VAL-1 fails as listed" in printed
    assert main(["check", "--seed", "6", "--xfails", "../none.json"]) == NOTHING_SAID
    Path("none.json").write_text("[]", encoding="utf-8")
    assert main(["check", "--seed", "6", "--xfails", "none.json", *VALUES_ALONE]) == FAILS
    assert "seed 6" in capsys.readouterr().out
    assert check("Right", "--seed", "0") == CONFORMS  # what is named is not the table's


UNREADABLE = {
    "nothing named": ["check", *QUICK],
    "an empty name": ["check", "", *QUICK],
    "no such file": ["check", "missing.py:Adapter"],
    "no such attribute": ["check", f"{SUBJECTS}:Missing"],
    "no such module": ["check", "no_such_package_here:Adapter"],
    "a file without an attribute": ["check", str(SUBJECTS)],
    "a precision that is none": ["check", f"{SUBJECTS}:Misdeclared"],
    "a precision given that is none": ["check", f"{SUBJECTS}:Right", "--precision", "float12"],
    "limits that no case meets": ["check", f"{SUBJECTS}:Unlimited"],
    "an unknown contract required": ["check", f"{SUBJECTS}:Right", "--require", "speed"],
    "an unknown contract claimed": ["check", f"{SUBJECTS}:Right", "--claims", "speed"],
    "an unknown profile": ["check", f"{SUBJECTS}:Right", "--profile", "slow"],
    "an unknown operation": ["check", f"{KERNEL_FILE}:rms_norm", "--as", "layer_norm"],
    "an operation that is not there": ["check", f"{KERNEL_FILE}:layer_norm", "--as", "rms_norm"],
    "no xfail file": ["check", f"{SUBJECTS}:Right", "--xfails", "missing.json"],
    "an xfail file that is none": ["check", f"{SUBJECTS}:Right", "--xfails", str(SUBJECTS)],
    "no case": ["check", f"{SUBJECTS}:Right", "--case", "missing.json"],
    "a case that is none": ["check", f"{SUBJECTS}:Right", "--case", str(SUBJECTS)],
    "several, one of them empty": ["check", f"{SUBJECTS}:Right", ""],
    "several, and one report": ["check", f"{SUBJECTS}:Right", f"{SUBJECTS}:Wrong", "--html", "report.html"],
    "a page that cannot be written": ["check", f"{SUBJECTS}:Right", "--html", "missing/report.html"],
    "two reports in one file": ["check", f"{SUBJECTS}:Right", "--html", "report", "--json", "report"],
    "a precision that is no mapping": ["check", f"{SUBJECTS}:Right", "--precision", "{'results': 1}"],
    "a report that cannot be written": ["check", f"{SUBJECTS}:Right", "--json", "missing/report.json"],
    "explain: no such file": ["explain", "missing.py:Adapter"],
    "explain: no case": ["explain", f"{SUBJECTS}:Right", "--case", "missing.json"],
    "explain: no other": ["explain", f"{SUBJECTS}:Right", "--against", f"{SUBJECTS}:Missing"],
    "explain: nothing can be built": ["explain", f"{SUBJECTS}:Unbuildable"],
    "explain: a report that cannot be written": ["explain", f"{SUBJECTS}:Right", "--json", "missing/report.json"],
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_what_cannot_be_tested_exits_2_in_one_line(capsys, what):
    assert main(UNREADABLE[what]) == NOTHING_SAID
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.strip()
    assert "Traceback" not in printed.err


MISTYPED = [[], ["chek"], ["check", "--profle", "quick"], ["explain"], ["init"], ["init", "fortran"]]


@pytest.mark.parametrize("arguments", MISTYPED, ids=str)
def test_a_mistyped_command_exits_2(arguments, capsys):
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == NOTHING_SAID
    assert "usage" in capsys.readouterr().err


def test_a_file_that_leaves_at_import_is_not_green(capsys):
    Path("leaves.py").write_text("import sys\nsys.exit(0)\n", encoding="utf-8")
    assert main(["check", "leaves.py:Adapter"]) == NOTHING_SAID


def test_no_test_that_was_selected_is_not_green(capsys):
    assert check("Right", "--", "-q", "-k", "nothing_has_this_name", values_alone=False) == NOTHING_SAID
    assert "nothing was tested" in capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples(command, capsys):
    try:
        status = main([command, "--help"])
    except SystemExit as left:
        status = left.code
    assert not status
    assert command in capsys.readouterr().out


# --- check --as ---


@pytest.mark.parametrize("name", ["rms_norm", "attend", "silu", "nll", "embed"])
def test_a_right_operation_exits_0(name, capsys):
    assert main(["check", f"{KERNEL_FILE}:{name}", "--as", name, *QUICK, "--claims", "forward,training"]) == CONFORMS
    assert "conforms (forward, training)" in capsys.readouterr().out


def test_a_wrong_operation_exits_1(capsys):
    source = KERNEL_FILE.read_text(encoding="utf-8")
    wrong = source.replace("/ np.sqrt((x**2).sum(-1, keepdims=True) / x.shape[-1] + epsilon)",
                           "/ (np.sqrt((x**2).sum(-1, keepdims=True) / x.shape[-1]) + epsilon)")  # fmt: skip
    assert wrong != source
    Path("wrong.py").write_text(wrong, encoding="utf-8")
    assert main(["check", "wrong.py:rms_norm", "--as", "rms_norm", *QUICK, "--json", "report.json"]) == FAILS
    report = json.loads(Path("report.json").read_text(encoding="utf-8"))
    assert [name for name, row in report["requirements"].items() if row["status"] == "fail"] == ["OPN-1"]
    assert set(report) == REPORT | BESIDE_IT
    assert report["findings"][0]["next"] == "decoderspec explain wrong.py:rms_norm --as rms_norm"
    assert main(["check", f"{KERNEL_FILE}:linear", "--as", "rotate", *QUICK]) == FAILS  # other arguments altogether


def test_every_operation_is_named_where_one_is_not_known(capsys):
    main(["check", f"{KERNEL_FILE}:rms_norm", "--as", "layer_norm"])
    message = capsys.readouterr().err
    assert all(name in message for name in KERNELS)


# --- explain ---


def test_explain_of_a_right_decoder_exits_0(capsys):
    assert main(["explain", f"{SUBJECTS}:Right"]) == CONFORMS
    assert "right on" in capsys.readouterr().out


def test_explain_against_another_compares_both(capsys):
    reference = "decoderspec.reference:Reference"
    assert main(["explain", reference, "--against", reference]) == CONFORMS
    printed = capsys.readouterr().out
    assert "nearer by a bit or more" in printed
    assert fixed_cases()[0].describe() in printed


# --- golden ---


@pytest.mark.parametrize("chapter", ["block", "model"])
@pytest.mark.parametrize("kind", ["report", "trace"])
def test_golden_prints_the_documents(kind, chapter, capsys):
    kept = (HERE.parent / "golden" / f"{chapter}_{kind}.txt").read_text(encoding="utf-8")
    assert main(["golden", kind, chapter]) == CONFORMS
    assert capsys.readouterr().out == kept


# --- init and doctor ---

IN_PYTHON = [name for name, kind in init.KINDS.items() if kind.suffix == ".py"]  # others: test_examples.py
SENTENCES = {kind: init.sentence(kind, Path("adapter.py")).split()[2:] for kind in IN_PYTHON}


@pytest.mark.parametrize("kind", IN_PYTHON)
def test_what_init_writes_runs_as_it_stands_by_the_sentence_that_it_prints(kind, capsys):
    if kind == "jax":
        pytest.importorskip("jax", reason="JAX is not installed")
    if kind == "torch":
        torch = pytest.importorskip("torch", reason="PyTorch is an extra")
        torch.set_num_threads(1)  # on a busy machine threads wait longer for one another than they compute
    assert main(["init", kind]) == CONFORMS
    printed = capsys.readouterr().out
    assert f"decoderspec check {' '.join(SENTENCES[kind])}" in printed
    claimed = ("--", "-q", "-k", "test_forward or test_training or test_weights or test_operation")
    assert main(["check", *SENTENCES[kind], *QUICK, *claimed]) == CONFORMS
    assert " hold" in capsys.readouterr().out


@pytest.mark.parametrize("kind", IN_PYTHON)
def test_templates_mark_what_to_fill_and_name_their_own_sentence(kind):
    main(["init", kind, "mine.py"])
    text = Path("mine.py").read_text(encoding="utf-8")
    assert text.count("FILL") > 2
    assert f"`{init.sentence(kind, Path('mine.py'))}`" in text
    assert "{file}" not in text
    compile(text, "mine.py", "exec")


def test_templates_are_those_of_the_kinds():
    folder = HERE.parent / "commands" / "templates"
    assert {path.name for path in folder.iterdir()} == {f"{name}{kind.suffix}.txt" for name, kind in init.KINDS.items()}


def test_init_never_overwrites(capsys):
    Path("adapter.py").write_text("mine", encoding="utf-8")
    assert main(["init", "function"]) == NOTHING_SAID
    assert "File exists" in capsys.readouterr().err
    assert Path("adapter.py").read_text(encoding="utf-8") == "mine"


UNUSABLE = ["adapter", "adapter.txt", "missing/adapter.py", "numpy.py", "json.py", "decoderspec.py"]


@pytest.mark.parametrize("path", UNUSABLE)
def test_init_refuses_a_name_that_check_could_not_load(path, capsys):
    assert main(["init", "function", path]) == NOTHING_SAID
    assert "is not written" in capsys.readouterr().err
    assert not Path(path).exists()


def test_the_sentence_survives_a_name_with_a_blank():
    assert init.sentence("function", Path("my adapter.py")) == "decoderspec check 'my adapter.py':logits"


def test_doctor_says_what_is_installed_and_exits_0(capsys):
    assert main(["doctor"]) == CONFORMS
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert {"decoderspec", "python", *(part.name for part in doctor.PARTS)} <= set(lines)
    assert doctor.installed("numpy") in lines["numpy"]


def test_doctor_says_how_to_get_what_is_missing(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "installed", lambda name: "")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert main(["doctor"]) == CONFORMS
    printed = capsys.readouterr().out
    assert printed.count("not installed") == len(doctor.PARTS) + 1
    assert "pip install 'decoderspec[torch]'" in printed


def test_contracts_are_named_where_one_is_not_known(capsys):
    main(["check", f"{SUBJECTS}:Right", "--require", "speed"])
    message = capsys.readouterr().err
    assert all(name in message for name in CONTRACTS)


def test_parts_of_the_doctor_are_distinct():
    assert len({part.name for part in doctor.PARTS}) == len(doctor.PARTS)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_a_report_that_cannot_be_written_is_said_after_what_was_found(capsys):
    assert main(["check", f"{KERNEL_FILE}:rms_norm", "--as", "rms_norm", *QUICK, "--json", "/dev/full"]) == NOTHING_SAID
    printed = capsys.readouterr()
    assert "conforms" in printed.out
    assert "No space left" in printed.err
