"""The README's promises: each command and snippet in it is run here, or by another test, or it is said why not."""

import ast
import contextlib
import doctest
import inspect
import re
from dataclasses import fields
from pathlib import Path

import pytest

from decoderspec.commands.main import COMMANDS, main
from decoderspec.properties.kernels import KERNELS
from decoderspec.properties.session import conformance
from decoderspec.properties.settings import KEYS
from decoderspec.properties.subject import read_subject
from decoderspec.properties.xfails import read_xfails
from decoderspec.spec.config import Config
from decoderspec.spec.precision import recipe
from decoderspec.spec.protocol import CAPABILITIES

HOUSE = Path(__file__).parent.parent
TEXT = (HOUSE / "README.md").read_text(encoding="utf-8")
FENCES = re.findall(r"^```(\w*)\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
PROSE = re.sub(r"^```.*?^```", "", TEXT, flags=re.MULTILINE | re.DOTALL)
INDENTED = re.findall(r"^ {4}.*$", PROSE, re.MULTILINE)
SPANS = [
    " ".join(span.split()) for span in re.findall(r"`([^`]+)`", re.sub(r"^ {4}.*$", "", PROSE, flags=re.MULTILINE))
]
COMMAND = re.compile(rf"^(\. |python|pip |pytest |node |decoderspec |--|({'|'.join(COMMANDS)}) )")  # how one begins
QUICK = ("--profile", "quick", "--", "-q", "-k", "test_forward or test_operation")
INSTALLS = "installs; .ci/run and .ci/package do the same in fresh environments"

HERE = {  # what the README has -> what is run for it, in a folder with mine.py, quickly
    "decoderspec check mine.py:logits": ("check", "mine.py:logits", *QUICK),
    "decoderspec check examples/rms_norm_kernel.py:rms_norm --as rms_norm": (
        "check", str(HOUSE / "examples" / "rms_norm_kernel.py:rms_norm"), "--as", "rms_norm", *QUICK,
    ),
    "--html report.html --markdown summary.md --badge badge.json --junit results.xml": (
        "check", "mine.py:Adapter", "--html", "report.html", "--markdown", "summary.md", "--badge", "badge.json",
        "--junit", "results.xml", *QUICK,
    ),
    "decoderspec golden report model": ("golden", "report", "model"),
    "decoderspec doctor": ("doctor",),
}  # fmt: skip
ELSEWHERE = {  # by which test
    "decoderspec init torch":
        "test_commands.py::test_what_init_writes_runs_as_it_stands_by_the_sentence_that_it_prints",
    "decoderspec init c": "test_examples.py::test_a_scaffold_builds_and_conforms_by_the_commands_that_it_names",
    "init rust": "test_examples.py::test_a_scaffold_builds_and_conforms_by_the_commands_that_it_names",
    "decoderspec check --command ./decoder": "test_examples.py::test_an_example_conforms_to_what_it_can_reach",
    "decoderspec vectors vectors/": "test_vectors.py::test_all_files_together_are_small_enough_to_keep",
    "pytest --pyargs decoderspec.properties --implementation mine.py:Adapter":
        "test_plugin.py::test_a_right_implementation_passes_by_package_name",
    "decoderspec check": "test_commands.py::test_where_nothing_is_named_the_project_says_what_is_tested",
    "--xfails": "test_commands.py::test_known_failures_exit_0_and_stop_to_be_known_beyond_their_ceiling",
    "--require forward": "test_commands.py::test_claiming_nothing_is_no_verdict",
    "check a.py:A b.py:B --csv marks.csv":
        "test_commands.py::test_several_implementations_have_one_table_and_none_ends_it",
    "--hint 1": "test_explain.py::test_hints_reveal_one_step_at_a_time",
    "--against OTHER": "test_commands.py::test_explain_against_another_compares_both",
    "--dump FILE": "test_dump.py::test_a_right_dump_conforms_and_a_wrong_one_is_placed_and_named",
    "decoderspec bench mine.py:Adapter --save main.json":
        "test_bench.py::test_the_command_measures_saves_and_compares",
    "--against main.json --fail-above 5": "test_bench.py::test_the_command_measures_saves_and_compares",
    "--growth": "test_bench.py::test_growth_is_fitted_along_every_axis_that_the_limits_leave",
    "golden compare": "test_golden.py::test_command_prints_a_document_and_accepts_it_back",
    "decoderspec faults": "test_kills.py::test_the_command_prints_and_writes_the_table",
}  # fmt: skip
NOT_RUN = {  # and why
    "python3 -m venv .venv && .venv/bin/pip install . && .venv/bin/decoderspec check --self": INSTALLS,
    ".venv/bin/pip install -e '.[dev,parallel,arb]' && .venv/bin/pytest -n 2": INSTALLS,
    "pip install 'decoderspec[arb]'": INSTALLS,
    ". .venv/bin/activate": "changes the shell of whoever types it",
}
RECIPE = "precision = "  # an indented part that is output: what is observed of a decoder
SNIPPETS = {  # how each begins -> by which test of this file
    "# mine.py": "test_the_function_is_an_implementation_when_it_is_filled",
    "class Adapter:": "test_the_adapter_shows_every_method_that_there_is",
    "from decoderspec.properties.session import conformance": "test_the_line_for_ones_own_tests_makes_a_test_each",
    ">>> import numpy as np": "test_the_prompt_session_prints_what_is_shown",
}
MODEL = """
class Model:
    def __init__(self, config, parameters):
        self.config, self.parameters = config, layout(Adapter.layout).invert(config, parameters)

    def logits(self, tokens):
        return whole(self.config, self.parameters, tokens)
"""


def snippet(start):
    """The one block of Python that begins so."""
    (found,) = (text for language, text in FENCES if language == "python" and text.startswith(start))
    return found


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """The file of the README, with a decoder in the place of its dots."""
    function = snippet("# mine.py").replace("    ...\n", "    return whole(config, parameters, tokens)\n")
    adapter, model, _ = snippet("class Adapter:").partition("class Model:")
    assert model
    head = (
        f"import sys\n\nsys.path.insert(0, {str(HOUSE / 'examples')!r})\nfrom plain_function import logits as whole\n"
    )
    head += "from decoderspec.spec.layout import layout\n"
    path = tmp_path / "mine.py"
    path.write_text("\n".join([head, function, adapter, MODEL]), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return path


# --- Commands ---


def commands():
    """Every command, or part of one, in the text; output that is indented too is none."""
    indented = [line.strip() for line in INDENTED if RECIPE not in line and not line.startswith("     ")]
    return {*indented, *filter(COMMAND.match, SPANS)}


def test_every_command_is_known():
    known = [*HERE, *ELSEWHERE, *NOT_RUN]
    assert len(known) == len(set(known))
    assert sorted(commands()) == sorted(known)


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize("command", HERE)
def test_a_command_runs(command, capsys):
    assert main(HERE[command]) == 0
    assert capsys.readouterr().out
    for name in re.findall(r"\w+\.(?:html|md|json|xml)\b", command):
        assert Path(name).stat().st_size > 0


@pytest.mark.parametrize("where", sorted(set(ELSEWHERE.values())))
def test_what_is_run_elsewhere_is_run(where):
    file, _, name = where.partition("::")
    assert f"\ndef {name}(" in (Path(__file__).parent / file).read_text(encoding="utf-8")


def test_every_option_is_one_of_some_command(capsys):
    for command in COMMANDS:
        with contextlib.suppress(SystemExit):
            main([command, "--help"])
    known = set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) | {"--pyargs", "--implementation"}  # pytest's, ours
    assert set(re.findall(r"(?<=[ `])--[a-z][a-z-]*", PROSE)) <= known


# --- Snippets ---


def test_every_snippet_is_known():
    starts = [text.partition("\n")[0] for language, text in FENCES if language == "python"]
    assert sorted(starts) == sorted(SNIPPETS)
    assert set(SNIPPETS.values()) <= set(globals())


def test_the_function_is_an_implementation_when_it_is_filled(mine):
    scope = {}
    exec(snippet("# mine.py"), scope)
    assert scope["logits"].claims == ["forward"]
    assert "whole(config, parameters, tokens)" in mine.read_text(encoding="utf-8")  # and test_a_command_runs runs it


def test_the_adapter_shows_every_method_that_there_is():
    source, scope = snippet("class Adapter:"), {}
    exec(source, scope)
    subject = read_subject(scope["Adapter"]())
    assert (subject.name, subject.claims) == ("mine", ("forward", "training"))
    recipe(ast.literal_eval(re.search(r"# or a recipe: (\{.*\})", source)[1]))
    for name, words in CAPABILITIES.items():
        if "on the implementation" not in words:
            arguments = ", ".join(list(inspect.signature(getattr(scope["Model"], name)).parameters)[1:])
            assert words.startswith(f"{name}({arguments})"), name


def test_the_line_for_ones_own_tests_makes_a_test_each(mine):
    scope = {}
    exec(snippet("from decoderspec.properties.session"), scope)
    (cases,) = (mark for mark in scope["test_decoder"].pytestmark if mark.name == "parametrize")
    assert scope["conformance"] is conformance
    assert any(each.startswith("VAL-1-") for each in cases.kwargs["ids"])
    assert mine.exists()


def test_the_prompt_session_prints_what_is_shown():
    found = doctest.DocTestParser().get_doctest(snippet(">>> import numpy"), {}, "README", None, 0)
    results = doctest.DocTestRunner(verbose=False).run(found)
    assert results.attempted >= 3
    assert results.failed == 0


# --- What it lists, and what it shows ---


def test_its_lists_are_those_of_the_code(tmp_path):
    assert ", ".join(field.name for field in fields(Config)) in SPANS
    (operations,) = (span.split() for span in SPANS if span.startswith("embed "))
    assert set(operations) == set(KERNELS)
    (entries,) = (span for span in SPANS if span.startswith('[{"requirement"'))
    (tmp_path / "known.json").write_text(entries, encoding="utf-8")
    assert [entry.requirement for entry in read_xfails(tmp_path / "known.json")] == ["VAL-1"]
    table = re.search(r"`\[tool\.decoderspec\]`(.*?)rest", TEXT, re.DOTALL)[1]
    assert set(re.findall(r"`(\w+)`", table)) <= set(KEYS)


def test_the_recipe_that_is_shown_is_the_one_that_is_observed():
    """`test_llama` holds that it is observed."""
    llama = pytest.importorskip("decoderspec.adapters.transformers_llama", reason="transformers is an extra")
    shown = " ".join(INDENTED).partition(RECIPE)[2]
    assert ast.literal_eval(" ".join(shown[: shown.index("}") + 1].split())) == llama.SHIPPED


def test_the_failure_that_is_shown_is_what_is_printed(tmp_path, monkeypatch, capsys):
    """But for figures, the counts of a whole run and the requirements that fail in it; one page takes it apart."""
    pytest.importorskip("torch", reason="PyTorch is an extra")
    (shown,) = (text for language, text in FENCES if not language and "finding 1" in text)
    old, new = SPANS[SPANS.index("/ math.sqrt(q.shape[-1])") :][:2]
    source = (HOUSE / "examples" / "plain_torch.py").read_text(encoding="utf-8")
    assert old in source
    (tmp_path / "mine.py").write_text(source.replace(old, new), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert main(["check", "mine.py:PlainTorch", *QUICK]) == 1
    printed = finding(capsys.readouterr().out)
    assert finding(shown) == printed
    assert (
        finding((HOUSE / "docs" / "reading-a-report.md").read_text(encoding="utf-8").replace("```", "\n\n")) == printed
    )


def finding(text):
    """The lines of the first finding without figures and without what fails with it, in one."""
    lines = text.partition("finding 1")[2].partition("\n\n")[0].splitlines()
    words = " ".join(line for line in lines if "fails with it" not in line).split()
    return [re.sub(r"-?\d+\.?\d*(e[+-]\d+)?", "0", word) for word in words]
