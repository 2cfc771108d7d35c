"""`[tool.decoderspec]` says what is tested and how; anything doubtful in it is refused by file and key."""

import json

import pytest

from decoderspec.properties.settings import KEYS, WORDS, Settings, project_settings, read_precision
from decoderspec.properties.xfails import Xfail, XfailError
from decoderspec.spec.precision import DeclarationError

KNOWN = {"requirement": "VAL-1", "reason": "norms"}
WHOLE = """
[tool.decoderspec]
implementation = "tests/adapter.py:Adapter"
as = "rms_norm"
profile = "thorough"
seed = 7
precision = { results = "bfloat16", tables = "float32" }
claims = ["forward", "training"]
require = "inputs"
xfails = "tests/known.json"
"""


def project(folder, text):
    (folder / "tests").mkdir(exist_ok=True)
    (folder / "tests" / "known.json").write_text(json.dumps([KNOWN]), encoding="utf-8")
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")
    return folder


def table(line, name='implementation = "a:b"'):
    return f"[tool.decoderspec]\n{name}\n{line}\n"


def test_every_key_is_read_and_paths_are_those_of_the_file(tmp_path):
    below = project(tmp_path, WHOLE) / "tests"
    assert project_settings(below) == Settings(
        implementation=f"{tmp_path}/tests/adapter.py:Adapter", operation="rms_norm", profile="thorough", seed=7,
        precision={"results": "bfloat16", "tables": "float32"}, claims=("forward", "training"), required=("inputs",),
        xfails=(Xfail(**KNOWN),),
    )  # fmt: skip
    assert all(f"{key} =" in WHOLE for key in KEYS)


def test_options_override_and_what_is_not_given_stays(tmp_path):
    found = project_settings(project(tmp_path, WHOLE))
    assert found.overridden(dict.fromkeys(WORDS)) == found
    given = {"claims": "", "seed": 0, "profile": "quick", "precision": "float32", "require": "forward,weights"}
    made = found.overridden(given)
    assert (made.claims, made.seed, made.profile, made.precision) == ((), 0, "quick", "float32")
    assert made.required == ("forward", "weights")
    assert made.implementation == found.implementation


def test_the_nearest_file_that_has_the_table_counts(tmp_path):
    inner = tmp_path / "inner" / "deep"
    inner.mkdir(parents=True)
    project(tmp_path, table(""))
    (tmp_path / "inner" / "pyproject.toml").write_text("[tool.other]\n", encoding="utf-8")
    assert project_settings(inner).implementation == "a:b"
    (inner / "pyproject.toml").write_text(table("", 'implementation = "c:d"'), encoding="utf-8")
    assert project_settings(inner).implementation == "c:d"


def test_no_table_is_no_error(tmp_path):
    assert project_settings(tmp_path) is None


def test_a_module_and_a_whole_path_stay_as_they_are(tmp_path):
    for name in ("package.module:Adapter", "/somewhere/adapter.py:Adapter"):
        assert project_settings(project(tmp_path, table("", f"implementation = '{name}'"))).implementation == name


@pytest.mark.parametrize("text", [
    "[tool.decoderspec", "tool = 1\n[tool.decoderspec]", table("speed = 1"),
    table("Profile = 'quick'"), table("seed = '1'"),
    table("seed = true"), table("seed = 1.0"), table("profile = 1"), table("claims = ['speed']"), table("claims = 3"),
    table("require = [1]"), table("xfails = ['known.json']"), table("precision = 3"),
    table("precision = { results = 1 }"),
    table("as = false"), table("", "implementation = ['a:b']"), table("", "implementation = ''"), table("", "seed = 1"),
    "[tool]\ndecoderspec = 1",
], ids=repr)  # fmt: skip
def test_what_cannot_be_read_is_refused_by_file(tmp_path, text):
    with pytest.raises(DeclarationError, match=r"pyproject\.toml"):
        project_settings(project(tmp_path, text))


def test_an_unknown_key_is_refused_with_those_that_are_allowed(tmp_path):
    with pytest.raises(DeclarationError) as refused:
        project_settings(project(tmp_path, table("speed = 1")))
    assert all(key in str(refused.value) for key in ("speed", *KEYS))


def test_an_xfail_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(XfailError, match=r"none\.json"):
        project_settings(project(tmp_path, table("xfails = 'none.json'")))


def test_a_file_that_is_not_text_is_refused(tmp_path):
    (tmp_path / "pyproject.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(DeclarationError, match="cannot be read"):
        project_settings(tmp_path)


@pytest.mark.parametrize(("text", "found"), [
    (None, None), ("float32", "float32"), ("", ""), ("{'results': 'float32'}", {"results": "float32"}),
    (' {"results": "float32"}', {"results": "float32"}),
])  # fmt: skip
def test_a_recipe_is_given_as_a_report_prints_it(text, found):
    assert read_precision(text) == found


@pytest.mark.parametrize("text", ["{", "{1}", "{'results': 1}", "{'results'}", "{__import__('os')}", "{" * 10_000])
def test_what_is_no_recipe_is_refused(text):
    with pytest.raises(DeclarationError):
        read_precision(text)
