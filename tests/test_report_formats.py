"""Every rendering of a report is made of its JSON document alone, says the same, and trusts no name in it."""

import csv
import io
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from made_up import DECODER, contract, document, everything

from decoderspec.commands import outputs
from decoderspec.commands.main import main
from decoderspec.properties.reports import badge, junit, markdown, page, scoreboard
from decoderspec.properties.reports.schema import KINDS, StoredError, read, schema, violations
from decoderspec.properties.xfails import Xfail
from decoderspec.spec.protocol import CONTRACTS
from decoderspec.spec.requirements import requirements

HOSTILE = "</title><script>alert(1)</script>\x1b[31m\u202e|`@team`\n## conforms\ud800<img src=http://x.example/y>"
WRONG = {
    "VAL_1": {"worst_noise": 99.0, "allowed": 12.0, "excess": 8.25, "reason": "logits: off", "case": "a note: V=5 d=4"}
}
KNOWN = [Xfail("VAL-1", "norms", "https://example.org/1", 100), Xfail("INP-1", "x")]
DOCUMENTS = {
    "all hold": document(),
    "one fails": document({"VAL-1": "fail"}, **WRONG),
    "infinite": document({"VAL-1": "fail"}, VAL_1={"worst_noise": float("inf"), "allowed": 12.0}),
    "known": document({"VAL-1": "fail"}, xfails=KNOWN, **WRONG),
    "a hole": document({"LOS-1": "skip"}, claims=["training"]),
    "claimed and never reached": document(contract("inputs", "not_judged"), claims=["inputs"]),
    "observed": document({"INP-1": "fail"}, claims=["forward"]),
    "a part": document({"VAL-2": ""}),
    "nothing": document(default="skip"),
    "no claims": document(claims=[]),
    "an error": document({"DET-1": "error"}),
    "an operation": document(only="rms_norm"),
    "hostile": document({"VAL-1": "fail"}, name=HOSTILE, VAL_1={"reason": HOSTILE, "case": HOSTILE}),
}  # fmt: skip
each_document = pytest.mark.parametrize("what", DOCUMENTS)


# --- The schema ---


@each_document
def test_every_report_fits_the_published_schema(what):
    assert violations(json.loads(json.dumps(DOCUMENTS[what])), schema()) == []


def test_the_schema_and_its_page_name_exactly_the_keys_of_a_report():
    assert list(schema()["properties"]) == schema()["required"]
    assert set(schema()["properties"]) == set(DOCUMENTS["all hold"])
    text = (Path(__file__).parents[1] / "docs" / "report.md").read_text(encoding="utf-8")
    described = re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
    inner = [key for rule in ("row", "xfail", "stage", "finding") for key in schema()["$defs"][rule]["properties"]]
    assert described == [*schema()["required"], *inner]


def test_the_schema_uses_only_what_is_checked():
    known = {"type", "enum", "pattern", "minimum", "properties", "required", "additionalProperties", "items", "$ref",
             "propertyNames"}  # fmt: skip
    words = {"$schema", "$defs", "title", "description"}

    def walk(rule):
        assert set(rule) <= known | words, rule
        assert set([rule["type"]] if isinstance(rule.get("type"), str) else rule.get("type", [])) <= set(KINDS)
        for each in (*rule.get("properties", {}).values(), *rule.get("$defs", {}).values()):
            walk(each)
        for each in filter(None, (rule.get("items"), rule.get("additionalProperties"))):
            walk(each)

    walk(schema())


def changed(path, value):
    made = json.loads(json.dumps(DOCUMENTS["one fails"]))
    *outer, last = path
    place = made
    for key in outer:
        place = place[key]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return made


BROKEN = [
    (["verdict"], None), (["verdict"], "fine"), (["speed"], 1), (["contracts", "forward"], "passes"), (["seed"], "0"),
    (["seed"], True), (["requirements", "VAL-1", "status"], "ok"), (["requirements", "VAL-1", "worst_noise"], "large"),
    (["requirements", "VAL-1", "examples"], -1), (["requirements", "VAL-1", "reason"], None), (["findings"], {}),
    (["findings", 0, "requirements", 0], "val-1"), (["stages", 0, "possible"], 0), (["claims"], ["speed"]),
    (["stages", 0, "excess"], []), (["problems"], [1]),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value"), BROKEN, ids=str)
def test_what_does_not_fit_the_schema_is_refused_with_its_place(path, value, tmp_path):
    made = changed(path, value)
    (tmp_path / "report.json").write_text(json.dumps(made), encoding="utf-8")
    with pytest.raises(StoredError, match=str(path[-1] if value is None or path[-1] == "speed" else path[0])):
        read(tmp_path / "report.json")


# --- Every rendering ---


@each_document
@pytest.mark.parametrize("name", outputs.RENDERERS)
def test_every_document_is_rendered_the_same_from_memory_and_from_disk(name, what):
    _, render = outputs.RENDERERS[name]
    stored = json.loads(json.dumps(DOCUMENTS[what]))
    text = render(stored)
    assert text == render(DOCUMENTS[what])
    text.encode("utf-8")
    assert text.endswith("\n")


@pytest.mark.parametrize("render", [badge.render, page.render, markdown.render])
@each_document
def test_the_verdict_names_contracts(render, what):
    text = render(DOCUMENTS[what])
    fails = [name for name, verdict in DOCUMENTS[what]["contracts"].items() if verdict == "fails"]
    if fails and what != "an error":
        assert ", ".join(fails) in text


@pytest.mark.parametrize("render", [page.render, markdown.render])
def test_a_failure_is_shown_with_the_sentence_its_smallest_case_and_what_was_seen(render):
    text = render(DOCUMENTS["one fails"])
    for part in (requirements()["VAL-1"].sentence, "logits: off", "V=5 d=4", "99 x noise (12.0 allowed)", "a note"):
        assert part in text


@pytest.mark.parametrize("render", [page.render, markdown.render])
def test_known_failures_are_shown_with_reason_and_link_and_those_that_do_not_fit_with_why(render):
    text = render(DOCUMENTS["known"])
    for part in ("norms", "https://example.org/1", "it holds, in 3 examples of this run"):
        assert part in text
    assert "does not fail as listed" in text.lower()


@pytest.mark.parametrize("render", [page.render, markdown.render])
def test_what_is_seen_and_not_claimed_is_shown_and_is_no_finding(render):
    text = render(DOCUMENTS["observed"])
    assert "INP-1 does not hold" in text
    assert "not claimed" in text
    assert not re.search("Findings?( 1|<)", text)


# --- Markdown ---


def test_nothing_of_a_hostile_name_is_markdown_html_or_a_mention():
    text = markdown.render(DOCUMENTS["hostile"])
    outside = re.sub(r"(`{3,})text\n.*?\n\1", "", text, flags=re.DOTALL)
    assert "<script" not in outside
    assert "<img" not in outside
    assert "@team" not in outside
    assert not re.search(r"^## conforms", outside, re.MULTILINE)
    assert all(char == "\n" or char.isprintable() for char in text)


def test_every_row_of_a_table_has_as_many_cells_as_its_head():
    for made in DOCUMENTS.values():
        for table in re.findall(r"(?:^\|.*\n)+", markdown.render(made), re.MULTILINE):
            assert len({line.count("|") for line in table.splitlines()}) == 1


def test_a_fence_is_longer_than_any_within_it():
    text = markdown.render(document({"VAL-1": "fail"}, VAL_1={"reason": "a\n`````\n# b"}))
    assert "``````text\na\n`````\n# b\n``````" in text


# --- Badge ---


@pytest.mark.parametrize(
    ("what", "message", "colour"),
    [
        ("all hold", "forward, training, weights, inputs", "brightgreen"),
        ("one fails", "fails: forward", "red"),
        ("known", "forward, training, weights, inputs (1 known)", "brightgreen"),
        ("a hole", "fails: training", "red"),
        ("observed", "forward", "brightgreen"),
        ("a part", "partly run: forward, training, weights, inputs", "yellow"),
        ("nothing", "nothing was tested", "lightgrey"),
        ("no claims", "nothing is claimed or required, so there is no verdict", "lightgrey"),
        ("an error", "the suite itself failed, so there is no verdict", "lightgrey"),
    ],
)
def test_the_badge_names_the_contracts(what, message, colour):
    made = json.loads(badge.render(DOCUMENTS[what]))
    assert made == {"schemaVersion": 1, "label": "decoderspec", "message": message, "color": colour}


# --- JUnit ---


def cases(what):
    root = ElementTree.fromstring(junit.render(DOCUMENTS[what]))
    return root, {case.get("name").split()[0]: case for case in root.iter("testcase")}


@each_document
def test_junit_has_a_case_for_each_requirement_and_is_red_exactly_when_something_fails(what):
    root, found = cases(what)
    assert set(DOCUMENTS[what]["requirements"]) <= set(found)
    red = list(root.iter("failure")) + list(root.iter("error"))
    assert bool(red) == (DOCUMENTS[what]["verdict"] == "fails" and what not in ("nothing", "no claims"))
    for suite in root:
        for kind, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(suite.get(kind)) == len(list(suite.iter(tag)))
        assert int(suite.get("tests")) == len(suite.findall("testcase"))


def test_junit_says_in_plain_words_what_was_seen_and_on_which_case():
    _, found = cases("one fails")
    assert found["VAL-1"].get("name") == f"VAL-1 {requirements()['VAL-1'].sentence}"
    assert found["VAL-1"].get("classname") == "decoderspec.forward"
    (failure,) = found["VAL-1"]
    assert (failure.get("message"), failure.text) == ("logits: off", "logits: off\ncase: a note: V=5 d=4")
    assert cases("observed")[1]["INP-1"][0].get("message").startswith("not claimed: ")
    assert cases("known")[1]["VAL-1"][0].get("message").startswith("known: norms")
    assert cases("a hole")[1]["LOS-1"][0].tag == "failure"


# --- CSV ---


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_a_row_counts_what_holds_and_names_what_fails():
    (row,) = rows(scoreboard.render(DOCUMENTS["one fails"]))
    assert (row["verdict"], row["forward"], row["inputs"]) == ("fails", "fails", "conforms")
    assert (row["passed"], row["failed"], row["fails"]) == (str(len(DECODER) - 1), "1", "VAL-1")
    assert (row["worst"], row["worst_noise"], row["allowed"]) == ("VAL-1", "99", "12")
    assert rows(scoreboard.render(DOCUMENTS["a hole"]))[0]["missing"] == "LOS-1"


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@x", "\t=1", "a,b", 'a"b', "a\nb"])
def test_no_cell_is_a_formula_and_every_row_is_one_line(name):
    text = scoreboard.to_csv([scoreboard.Entry(name, DOCUMENTS["all hold"]), scoreboard.Entry(name, error=name)])
    assert len(text.splitlines()) == 3
    for row in rows(text):
        assert set(row) == set(scoreboard.COLUMNS)
        assert not row["name"].startswith(("=", "+", "-", "@", "\t"))


# --- The command ---


def test_a_stored_report_is_rendered_again(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("report.json").write_text(json.dumps(DOCUMENTS["one fails"]), encoding="utf-8")
    assert (
        main(["report", "report.json", "--html", "a.html", "--badge", "a.json", "--junit", "a.xml", "--csv", "a.csv"])
        == 0
    )
    assert capsys.readouterr().out == ""
    assert Path("a.html").read_text(encoding="utf-8") == page.render(DOCUMENTS["one fails"])
    assert main(["report", "report.json"]) == 0
    assert capsys.readouterr().out == markdown.render(DOCUMENTS["one fails"])


@pytest.mark.parametrize("arguments", [
    ["missing.json"], ["."], ["text.json"], ["report.json", "--html", "missing/a.html"],
    ["report.json", "--html", "a", "--csv", "a"], ["report.json", "--html", "."],
], ids=str)  # fmt: skip
def test_what_cannot_be_read_or_written_exits_2_in_one_line(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("report.json").write_text(json.dumps(DOCUMENTS["all hold"]), encoding="utf-8")
    Path("text.json").write_text("{", encoding="utf-8")
    assert main(["report", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1


def test_contracts_of_the_schema_are_those_of_the_protocol():
    assert schema()["$defs"]["name"]["enum"] == list(CONTRACTS)
    assert set(everything("")) == set(schema()["properties"]["contracts"]["properties"])
