"""The plugin in somebody else's pytest: properties by package name, a test per requirement, and several processes."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from decoderspec.properties.loading import LoadError
from decoderspec.properties.properties import all_properties
from decoderspec.properties.session import conformance, name_of
from decoderspec.reference import Reference
from decoderspec.spec.precision import DeclarationError

SUBJECTS = Path(__file__).with_name("subjects.py")
KERNELS = Path(__file__).with_name("kernels.py")
PROPERTIES = ("--pyargs", "decoderspec.properties", "--decoderspec-profile", "quick")
A_PART = ("-k", "test_forward or test_weights")
pytest_plugins = ["pytester"]
USAGE_ERROR = pytest.ExitCode.USAGE_ERROR.value
MINE = """
from decoderspec.properties.session import conformance
from subjects import {name}

test_decoder = conformance({name}(), profile="quick")
"""


@pytest.fixture
def run_pytest(pytester, monkeypatch):
    """Runs pytest in a folder of its own; with several workers in a process of its own too."""
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.syspath_prepend(SUBJECTS.parent)

    def run(*arguments):
        if "-n" in arguments:
            return in_a_process(*arguments)
        done = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:xdist", *arguments)
        return done.ret, done.stdout.str() + done.stderr.str()

    def in_a_process(*arguments):
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
        environment["PYTHONPATH"] = os.pathsep.join([str(SUBJECTS.parent), environment.get("PYTHONPATH", "")])
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *map(str, arguments)]
        done = subprocess.run(command, cwd=pytester.path, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    return run


def counted(output):
    """The last line's counts: `{"passed": 23, "skipped": 18}`."""
    words = output.strip().splitlines()[-1].strip("= ").replace(",", "").split(" in ")[0].split()
    return dict(zip(words[1::2], map(int, words[0::2]), strict=True))


def parts():
    """How many tests the properties are: two where one goes beyond its cheap fixed cases."""
    return sum(1 + test.property.goes_further for test in all_properties())


def written(folder, text, name="test_mine.py"):
    (folder / name).write_text(textwrap.dedent(text), encoding="utf-8")


def test_a_right_implementation_passes_by_package_name(run_pytest):
    status, output = run_pytest(*PROPERTIES, "--implementation", f"{SUBJECTS}:Right", "-rs")
    assert status == pytest.ExitCode.OK, output
    assert sum(counted(output).values()) == parts()
    assert f"decoderspec: {SUBJECTS}:Right" in output
    assert "loss(tokens, targets) -> float lets the loss be tested" in output


def test_a_wrong_implementation_fails_in_plain_words(run_pytest):
    status, output = run_pytest(*PROPERTIES, *A_PART, "--implementation", f"{SUBJECTS}:Wrong")
    assert status == pytest.ExitCode.TESTS_FAILED
    assert "requirements: ['VAL-1']" in output
    assert "x noise" in output
    assert "case: " in output
    for frame in ("registry.py", "Traceback", "hypothesis"):
        assert frame not in output.lower().partition("failures")[2], frame


def test_several_processes_judge_the_same(run_pytest):
    pytest.importorskip("xdist", reason="pytest-xdist is an extra")
    arguments = (*PROPERTIES, *A_PART, "-p", "xdist", "-n", "2")
    status, output = run_pytest(*arguments, "--implementation", f"{SUBJECTS}:Right")
    assert status == pytest.ExitCode.OK, output
    alone = counted(run_pytest(*PROPERTIES, *A_PART, "--implementation", f"{SUBJECTS}:Right")[1])
    together = counted(output)
    assert (together["passed"], together["skipped"]) == (alone["passed"], alone["skipped"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing.py:Adapter", "there is no file missing.py"),
        (f"{SUBJECTS}:Missing", "has no 'Missing'"),
        (f"{SUBJECTS}:Misdeclared", "float12"),
        (f"{SUBJECTS}:Unlimited", "limits of head_width"),
    ],
)
def test_what_cannot_be_loaded_is_one_usage_error(run_pytest, name, message):
    status, output = run_pytest(*PROPERTIES, "--implementation", name)
    assert status == USAGE_ERROR
    assert message in output
    assert "Traceback" not in output


def test_what_cannot_be_loaded_is_one_usage_error_in_several_processes_too(run_pytest):
    pytest.importorskip("xdist", reason="pytest-xdist is an extra")
    status, output = run_pytest(*PROPERTIES, "--implementation", "missing.py:Adapter", "-n", "2")
    assert status == USAGE_ERROR
    assert "there is no file missing.py" in output
    assert "Traceback" not in output


def test_nothing_named_is_a_usage_error(run_pytest):
    status, output = run_pytest(*PROPERTIES)
    assert status == USAGE_ERROR
    assert "give --implementation" in output


def test_an_unknown_profile_is_a_usage_error(run_pytest):
    arguments = ("--pyargs", "decoderspec.properties", "--decoderspec-profile", "slow")
    status, output = run_pytest(*arguments, "--implementation", f"{SUBJECTS}:Right")
    assert status == USAGE_ERROR
    assert "no profile 'slow'" in output


def test_properties_can_be_listed_without_an_implementation(run_pytest):
    status, output = run_pytest(*PROPERTIES, "--collect-only", "-q")
    assert status == pytest.ExitCode.OK, output
    assert output.count("::test_") == parts()


def test_first_come_values_then_bad_input_then_what_takes_long(run_pytest):
    _, output = run_pytest(*PROPERTIES, "--collect-only", "-q")
    tests = [line.rpartition("/")[2] for line in output.splitlines() if "::" in line]
    first = list(dict.fromkeys(test.partition("::")[0] for test in tests if "[further]" not in test))
    assert first[0] == "test_forward.py"
    assert first[-1] == "test_inputs.py"
    assert "test_operation.py" not in first
    further = ["[further]" in test for test in tests]
    assert further == sorted(further)


def test_where_time_is_limited_a_property_is_done_before_the_next_begins(run_pytest):
    _, output = run_pytest(*PROPERTIES, "--collect-only", "-q", "--decoderspec-time-limit", "60")
    tests = [line.rpartition("/")[2] for line in output.splitlines() if "::" in line]
    pairs = [test.replace("[first]", "[further]") for test in tests if "[first]" in test]
    assert [tests[tests.index(pair) - 1].replace("[first]", "[further]") for pair in pairs] == pairs


def test_one_operation_is_judged_by_its_own_properties_alone(run_pytest):
    name = ("--implementation", f"{KERNELS}:silu", "--decoderspec-as", "silu")
    status, output = run_pytest(*PROPERTIES, *name)
    assert status == pytest.ExitCode.OK, output
    assert counted(output) == {"passed": 8, "skipped": 2}  # each property in two parts


# --- In somebody's own test file ---


@pytest.mark.parametrize("mode", ["prepend", "importlib"])
def test_conformance_is_a_test_for_each_property(run_pytest, pytester, mode):
    written(pytester.path, MINE.format(name="Right"))
    status, output = run_pytest(f"--import-mode={mode}", "--collect-only", "-q")
    assert status == pytest.ExitCode.OK, output
    for test in all_properties():
        identifier = "+".join(test.property.requirements) + "-" + test.property.name
        assert f"test_mine.py::test_decoder[{identifier}]" in output


def test_conformance_passes_for_a_right_decoder_bad_input_included(run_pytest, pytester):
    written(pytester.path, MINE.format(name="Right"))
    status, output = run_pytest("-q", "-rs")
    assert status == pytest.ExitCode.OK, output
    found = counted(output)
    assert sum(found.values()) == len(all_properties())
    assert "child process" not in output  # the class is found again by its file
    assert found["passed"] > found["skipped"]


def test_conformance_fails_for_a_wrong_decoder_with_the_smallest_case(run_pytest, pytester):
    written(pytester.path, MINE.format(name="Wrong"))
    status, output = run_pytest("-q", "-k", "VAL-1 or CAU-2")
    assert status == pytest.ExitCode.TESTS_FAILED
    assert counted(output) == {"failed": 1, "passed": 1, "deselected": len(all_properties()) - 2}
    assert "smallest case: all sizes differ: V=" in output
    assert "x noise" in output


def test_conformance_runs_in_several_processes(run_pytest, pytester):
    pytest.importorskip("xdist", reason="pytest-xdist is an extra")
    written(pytester.path, MINE.format(name="Right"))
    status, output = run_pytest("-q", "-n", "2", "-k", "VAL or CAU")
    assert status == pytest.ExitCode.OK, output
    assert counted(output)["passed"] >= len(["VAL-1", "CAU-1", "CAU-2", "CAU-3"])


def test_a_local_class_is_judged_but_for_bad_input(run_pytest, pytester):
    written(pytester.path, """
        from decoderspec.properties.session import conformance
        from subjects import Right

        def adapter():
            class Local(Right):
                pass
            return Local()

        test_decoder = conformance(adapter(), profile="quick")
    """)  # fmt: skip
    status, output = run_pytest("-q", "-rs", "-k", "INP-1 or SHP-1")
    assert status == pytest.ExitCode.OK, output
    assert counted(output) == {"passed": 1, "skipped": 1, "deselected": len(all_properties()) - 2}
    assert "needs a name to load the implementation by" in output


def test_the_plugin_does_not_show_in_other_peoples_tests(run_pytest, pytester):
    written(pytester.path, "def test_of_mine():\n    assert True\n")
    status, output = run_pytest("-q")
    assert status == pytest.ExitCode.OK
    assert "decoderspec" not in output


def test_the_plugin_imports_nothing_of_the_suite_before_it_is_needed():
    code = (
        "import sys, decoderspec.properties.plugin;"
        "print([name for name in sys.modules if name.startswith(('decoderspec.', 'numpy', 'mpmath', 'hypothesis'))])"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "['decoderspec.properties', 'decoderspec.properties.plugin']"


# --- The project's own table, and its xfail file ---

TABLE = """
[tool.decoderspec]
implementation = "mine.py:Wrong"
profile = "quick"
xfails = "known.json"
"""
KNOWN = '[{"requirement": "VAL-1", "reason": "up is off"}, {"requirement": "CAU-2", "reason": "was so once"}]'


@pytest.fixture
def project(pytester):
    written(pytester.path, "from subjects import Right, Wrong\n", "mine.py")
    written(pytester.path, TABLE, "pyproject.toml")
    written(pytester.path, KNOWN, "known.json")
    written(pytester.path, """
        from decoderspec.properties.session import conformance
        test_decoder = conformance()
    """)  # fmt: skip
    return pytester.path


def listed(output):
    """What a run says of the xfail file's entries."""
    return [line for line in output.splitlines() if "the xfail file lists" in line]


@pytest.mark.parametrize("arguments", [(), PROPERTIES[:2]], ids=["conformance", "by package name"])
def test_the_projects_table_names_what_is_tested_and_what_is_known(run_pytest, project, arguments):
    status, output = run_pytest(*arguments, "-q", "-rx", "-k", "VAL-1 or CAU-2 or right_within or suffix")
    assert status == pytest.ExitCode.OK, output
    assert counted(output)["xfailed"] == 1
    assert "known: up is off" in output
    assert [("CAU-2 (was so once)" in line, "VAL-1" in line) for line in listed(output)] == [(True, False)]


def test_an_option_beside_the_table_overrides_it(run_pytest, project):
    written(project, "[]", "none.json")
    status, output = run_pytest(*PROPERTIES, "--decoderspec-xfails", "none.json", "-q", "-k", "right_within")
    assert status == pytest.ExitCode.TESTS_FAILED
    assert listed(output) == []


def test_a_table_that_cannot_be_read_is_one_usage_error(run_pytest, project):
    written(project, TABLE + "speed = 1\n", "pyproject.toml")
    status, output = run_pytest(*PROPERTIES)
    assert status == USAGE_ERROR
    assert "has no key 'speed'" in output
    assert "Traceback" not in output


def test_what_is_required_fails_though_it_is_not_claimed(run_pytest):
    name = ("--implementation", f"{SUBJECTS}:WrongInWhatItDoesNotClaim", "-q", "-k", "out_of_range")
    assert counted(run_pytest(*PROPERTIES, *name)[1])["xfailed"] == 1
    status, output = run_pytest(*PROPERTIES, *name, "--decoderspec-require", "inputs")
    assert status == pytest.ExitCode.TESTS_FAILED
    assert counted(output)["failed"] == 1


def test_a_ceiling_holds_in_ones_own_tests_too(run_pytest, project):
    written(project, KNOWN.replace('"up is off"', '"up is off", "at_most": 20'), "known.json")
    status, output = run_pytest("-q", "-k", "VAL-1")
    assert status == pytest.ExitCode.TESTS_FAILED, output


def test_conformance_without_a_subject_or_a_table_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LoadError, match=r"tool\.decoderspec"):
        conformance()
    with pytest.raises(DeclarationError, match="no option 'profil'"):
        conformance("decoderspec.reference:Reference", profil="quick")


# --- Without pytest's command line ---


def test_conformance_takes_names_classes_and_functions():
    for subject in (Reference(), Reference, "decoderspec.reference:Reference", f"{SUBJECTS}:Right"):
        (mark,) = conformance(subject, profile="quick").pytestmark
        assert len(mark.args[1]) == len(mark.kwargs["ids"]) == len(all_properties())


def test_a_class_is_named_so_that_another_process_finds_it():
    class Local:
        pass

    assert name_of(Local()) == ""
    name = name_of(Reference())
    assert name.endswith("model.py:Reference")
    assert Path(name.rpartition(":")[0]).is_file()
    assert name_of(Reference) == name
