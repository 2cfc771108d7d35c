"""The pages: what is generated is fresh, what is named is there, what is promised is what the code does."""

import contextlib
import importlib
import importlib.util
import inspect
import re
import shlex
from pathlib import Path

import pytest

from decoderspec.adapters.command import LIMITS
from decoderspec.adapters.messages import PROTOCOL
from decoderspec.commands.main import COMMANDS, main
from decoderspec.golden import tables
from decoderspec.golden.vectors import files as vectors
from decoderspec.properties import replay
from decoderspec.properties.report import SPEC_VERSION
from decoderspec.properties.settings import KEYS
from decoderspec.properties.strategies import check_limits
from decoderspec.properties.subject import read_subject
from decoderspec.reference import oracle
from decoderspec.spec.layout import KEYS as LAYOUT_KEYS
from decoderspec.spec.layout import layout
from decoderspec.spec.precision import GENERAL_KEYS, NAMED_RECIPES, recipe
from decoderspec.spec.protocol import CAPABILITIES, CONTRACTS

HOUSE = Path(__file__).parent.parent
DOCS, TESTS = HOUSE / "docs", HOUSE / "tests"
FOLDERS = ("adapters", "bench", "commands", "faults", "golden", "properties", "reference", "spec")
OF_THE_PROTOCOL = {"command", "command_operation", "encodings", "messages", "process"}  # for whatever is in no Python
API = (DOCS / "api.md").read_text(encoding="utf-8")
ADAPTERS = (DOCS / "adapters.md").read_text(encoding="utf-8")
CONTRIBUTING = (HOUSE / "CONTRIBUTING.md").read_text(encoding="utf-8")
EXTRAS = {"decoderspec.adapters.torch_module": "torch", "decoderspec.adapters.jax_function": "jax"}


# --- Pages ---


@pytest.mark.parametrize("name", tables.PAGES)
def test_a_generated_page_is_what_the_code_prints(name):
    """`python -m decoderspec.golden.tables docs` makes them anew."""
    assert (DOCS / name).read_text(encoding="utf-8") == tables.PAGES[name]()


def test_every_schema_is_published():
    found = {str(path.relative_to(HOUSE)) for name in FOLDERS for path in (HOUSE / name).rglob("*.schema.json")}
    assert found == {f"{each.folder}/{each.file}" for each in tables.SCHEMAS}


def test_every_requirement_has_a_section_and_a_property_in_its_table():
    text = tables.requirements_page()
    known = tables.requirements()
    assert [name for names in tables.sections(tables.text()).values() for name in names] == list(known)
    assert all(tables.properties_by_requirement().values())
    assert text.count("](../properties/test_") == sum(map(len, tables.properties_by_requirement().values()))


def test_the_index_has_every_page_and_the_site_the_same_in_that_order():
    text = (DOCS / "index.md").read_text(encoding="utf-8")
    shown = [link.removesuffix(".md").replace("../", "/") for link in re.findall(r"^- \[.*?\]\((\S+)\)", text, re.M)]
    (tree,) = re.findall(r"```\{toctree\}\n:hidden:\n\n(.*?)```", text, re.DOTALL)
    assert shown == tree.split()
    assert {name for name in shown if not name.startswith("/")} == {path.stem for path in DOCS.glob("*.md")} - {"index"}


# --- What is stable ---


def names():
    """What the tables of the page name, in full."""
    return re.findall(r"`(decoderspec(?:\.\w+)+)`", API.partition("## From Python")[2].partition("What `check`")[0])


@pytest.mark.parametrize("name", names())
def test_a_name_that_is_said_to_be_public_is_there(name):
    module, _, attribute = name.rpartition(".")
    if module in EXTRAS and importlib.util.find_spec(EXTRAS[module]) is None:
        pytest.skip(f"{EXTRAS[module]} is an extra")
    assert hasattr(importlib.import_module(module), attribute)


def test_all_of_the_oracle_is_said_to_be_public():
    functions = {name for name, value in inspect.getmembers(oracle, inspect.isfunction) if not name.startswith("_")}
    ours = {name for name in functions if getattr(oracle, name).__module__.startswith("decoderspec.reference")}
    assert ours == {name.rpartition(".")[2] for name in names() if ".oracle." in name}


EXITS = {  # (command, exit code) -> what is run for it, or by which test it is held
    ("check", 0): "test_commands.py::test_a_right_implementation_exits_0_and_its_report_has_the_documented_keys",
    ("check", 1): "test_commands.py::test_a_wrong_implementation_exits_1_and_its_case_is_saved_and_explained",
    ("check", 2): ("check", ""),
    ("explain", 0): "test_commands.py::test_explain_of_a_right_decoder_exits_0",
    ("explain", 1): "test_commands.py::test_a_wrong_implementation_exits_1_and_its_case_is_saved_and_explained",
    ("explain", 2): ("explain", "missing.py:Adapter"),
    ("bench", 0): "test_bench.py::test_the_command_measures_saves_and_compares",
    ("bench", 1): "test_bench.py::test_the_command_measures_saves_and_compares",
    ("bench", 2): ("bench", "missing.py:Adapter"),
    ("faults", 0): "test_kills.py::test_the_command_prints_and_writes_the_table",
    ("faults", 1): "test_kills.py::test_the_command_fails_for_a_survivor",
    ("faults", 2): ("faults", "no-such-fault"),
    ("golden", 0): ("golden", "report", "model"),
    ("golden", 1): "test_golden.py::test_command_reports_differences_of_bytes",
    ("golden", 2): ("golden", "nothing"),
    ("vectors", 0): "test_vectors.py::test_a_folder_of_some_files_verifies_by_itself",
    ("vectors", 1): "test_vectors.py::test_a_change_is_found_and_named",
    ("vectors", 2): ("vectors", "--verify", "missing"),
    ("report", 0): "test_commands.py::test_every_report_is_written_at_once_and_again_from_the_stored_one",
    ("report", 2): ("report", "missing.json"),
    ("init", 0): ("init", "function"),
    ("init", 2): ("init", "function", "missing/adapter.py"),
    ("doctor", 0): ("doctor",),
}


def test_every_exit_code_of_the_page_is_held_and_no_other():
    rows = re.findall(r"^\| `decoderspec (\w+)` \|(.*?)\|(.*?)\|(.*?)\|$", API, re.MULTILINE)
    assert {name for name, *_ in rows} == set(COMMANDS)
    assert {(name, code) for name, *cells in rows for code, cell in enumerate(cells) if cell.strip()} == set(EXITS)


@pytest.mark.parametrize(("command", "code"), EXITS)
def test_an_exit_code_is_what_the_page_says(command, code, tmp_path, monkeypatch, capsys):
    if isinstance(EXITS[command, code], str):
        assert_is_a_test(EXITS[command, code])
        return
    monkeypatch.chdir(tmp_path)
    assert main(EXITS[command, code]) == code
    printed = capsys.readouterr()
    assert printed.err if code else printed.out


def assert_is_a_test(where):
    file, _, name = where.partition("::")
    assert f"\ndef {name}(" in (TESTS / file).read_text(encoding="utf-8"), where


def test_the_numbers_of_the_page_are_those_of_the_code():
    rows = dict(re.findall(r"^\| ([a-z ]+) \| `\w+` of .*? \| (\d+) \|", API, re.MULTILINE))
    assert rows == {
        "specification": SPEC_VERSION,
        "line protocol": str(PROTOCOL),
        "saved case": str(replay.VERSION),
        "vectors": str(vectors.VERSION),
    }


def test_the_keys_and_options_of_the_page_are_those_of_the_code(request):
    handed = API.partition("## What you hand over")[2].partition("## What you get")[0]
    table = handed.partition("keys of `[tool.decoderspec]` are")[2].partition(";")[0]
    assert sorted(re.findall(r"`(\w+)`", table)) == sorted(KEYS)
    assert set(re.findall(r"`(DECODERSPEC_\w+)`", handed)) == {variable for variable, _ in LIMITS.values()}
    (group,) = (each for each in request.config._parser._groups if each.name == "decoderspec")
    ours = {name for option in group.options for name in option.names()}
    assert set(re.findall(r"`(--[a-z-]+)`", handed)) == ours


# --- Help ---


def helped(command, capsys):
    with contextlib.suppress(SystemExit):
        main([command, "--help"])
    return capsys.readouterr().out


def parsed(words):
    """Whether the command's own parser takes the words; what comes after `--` is pytest's."""
    module = importlib.import_module(f"decoderspec.commands.{words[0]}")
    given = words[1 : words.index("--")] if "--" in words else words[1:]
    if hasattr(module, "parser"):
        module.parser().parse_args(given)
    return words[0] in COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_has_examples_that_it_takes_and_its_exit_status(command, capsys):
    text = helped(command, capsys)
    examples = [shlex.split(line) for line in re.findall(r"^  decoderspec (.*?)(?:  +.*)?$", text, re.MULTILINE)]
    assert len(examples) >= 2
    assert all(words[0] == command and parsed(words) for words in examples)
    status = " ".join(text.partition("exit status: ")[2].splitlines()[:1])
    assert {int(code) for code in re.findall(r"\b[012]\b", status)} == {c for name, c in EXITS if name == command}


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", *(f"docs/{path.name}" for path in sorted(DOCS.glob("*.md")))])
def test_a_command_on_a_page_is_one_that_its_parser_takes(page):
    text = (HOUSE / page).read_text(encoding="utf-8")
    lines = re.findall(r"^    decoderspec (.*?)(?:  +.*)?$", text, re.MULTILINE)
    assert all(parsed(shlex.split(line)) for line in lines)


# --- Writing an adapter ---


def test_the_declarations_of_the_page_are_read_as_they_stand():
    scope = {}
    for source in re.findall(r"```python\n(.*?)```", ADAPTERS, re.DOTALL):
        exec(source, scope)
    adapter, model = scope["Adapter"], scope["Model"]
    assert read_subject(adapter()).claims == ("forward", "training")
    assert scope["logits"].claims == ["forward"]
    assert {name for name in CAPABILITIES if not hasattr(model, name)} == {"initialize"}
    recipe(scope["precision"])
    check_limits(scope["limits"])
    assert layout(scope["layout"]).gain_offset == 1.0
    assert {*scope["layout"], "stacked"} == set(LAYOUT_KEYS)


def test_the_tables_of_the_page_are_complete():
    def first_column(heading):
        section = ADAPTERS.partition(f"## {heading}")[2].partition("\n## ")[0]
        return re.findall(r"^\| `([\w.]+)` \|", section, re.MULTILINE)

    assert first_column("Claims") == list(CONTRACTS)
    assert set(first_column("Precision")) == set(GENERAL_KEYS)
    assert set(first_column("A class")) == {"logits", *CAPABILITIES} - {"initialize"}
    assert all(f"`{name}`" in ADAPTERS for name in NAMED_RECIPES)


# --- Contributing ---


def test_the_tests_that_are_named_are_there():
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", CONTRIBUTING)
    assert len(named) > 10
    for file, name in named:
        assert_is_a_test(f"{file}::{name}")


def test_every_adapter_and_example_is_named_in_a_test():
    text = "\n".join(path.read_text(encoding="utf-8") for path in TESTS.glob("*.py"))
    adapters = {path.stem for path in (HOUSE / "adapters").glob("*.py")} - OF_THE_PROTOCOL - {"__init__"}
    examples = {path.name for path in (HOUSE / "examples").iterdir() if path.is_file()}
    unnamed = {name for name in adapters | examples if name not in text and name.removesuffix(".py") not in text}
    assert unnamed == set()


def test_no_page_names_the_machine_that_wrote_it():
    for path in [*HOUSE.glob("*.md"), *DOCS.glob("*.md")]:
        assert not re.search(r"(?<![\w.])/(work|home|root|tmp|opt)/", path.read_text(encoding="utf-8")), path.name
