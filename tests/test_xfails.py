"""Known failures are read from JSON and TOML alike, and anything doubtful in the file is refused."""

import json

import pytest

from decoderspec.properties.xfails import Xfail, XfailError, known, misfit, read_xfails

KNOWN = {"requirement": "INP-1", "reason": "wraps -1 around", "link": "https://example.org/1"}
VALUE = {"requirement": "VAL-1", "reason": "float32 norms", "at_most": 40}


def written(tmp_path, text, name="known.json"):
    path = tmp_path / name
    path.write_text(text if isinstance(text, str) else json.dumps(text), encoding="utf-8")
    return path


def test_json_and_toml_say_the_same(tmp_path):
    tables = "\n".join(
        "[[xfail]]\n" + "\n".join(f"{key} = {json.dumps(value)}" for key, value in entry.items())
        for entry in (KNOWN, VALUE)
    )
    from_toml = read_xfails(written(tmp_path, tables, "known.toml"))
    assert from_toml == read_xfails(written(tmp_path, [KNOWN, VALUE]))
    assert from_toml == [Xfail(**KNOWN), Xfail(**VALUE)]


def test_an_empty_list_is_no_failure(tmp_path):
    assert read_xfails(written(tmp_path, [])) == []


def test_an_entry_without_a_ceiling_covers_any_failure():
    assert all(Xfail(**KNOWN).covers(noise) for noise in (None, 0.0, 1e300))


def test_a_ceiling_covers_up_to_itself_and_nothing_that_has_no_figure():
    known = Xfail(**VALUE)
    assert known.covers(40.0)
    assert not known.covers(40.1)
    assert not known.covers(None)


ROW = {"status": "fail", "examples": 3, "worst_noise": 90.0}


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({**ROW, "status": "xfail"}, ""),
        ({**ROW, "status": "pass"}, "it holds, in 3 examples"),
        (ROW, "by 90 x noise, and at most 40 is known"),
        ({**ROW, "worst_noise": None}, "without a figure"),
        ({**ROW, "status": "skip"}, "matches nothing"),
        ({**ROW, "status": "not_judged"}, "matches nothing"),
        ({**ROW, "status": "error"}, "could not be judged"),
        (None, "matches nothing"),
    ],
)
def test_an_entry_that_does_not_describe_what_was_seen_says_why(row, words):
    found = misfit(Xfail(**VALUE), row)
    assert words in found
    assert bool(found) == bool(words)


def test_the_entry_that_foresaw_a_failure_is_of_its_requirement_and_within_its_ceiling():
    entries = [Xfail(**KNOWN), Xfail(**VALUE)]
    assert known(entries, ["INP-1"], None) == entries[0]
    assert known(entries, ["VAL-2", "VAL-1"], 40.0) == entries[1]
    assert known(entries, ["VAL-1"], 41.0) is None
    assert known(entries, ["VAL-2"], 1.0) is None


@pytest.mark.parametrize(
    "document",
    [
        "", "{", "null", "{}", '"VAL-1"', "[1]", "[[]]", "[null]", "[" * 100_000,
        [{"requirement": "VAL-1"}],
        [{"reason": "no requirement"}],
        [{**KNOWN, "requirements": ["VAL-1"]}],
        [{**KNOWN, "reason": 1}],
        [{**KNOWN, "link": None}],
        [{**KNOWN, "at_most": "40"}],
        [{**KNOWN, "at_most": True}],
        [{**KNOWN, "requirement": "VAL-99"}],
        [{**KNOWN, "requirement": "val-1"}],
        [{**KNOWN, "requirement": ["VAL-1"]}],
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_by_file(tmp_path, document):
    with pytest.raises(XfailError, match=r"known\.json"):
        read_xfails(written(tmp_path, document))


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(XfailError, match="cannot be read"):
        read_xfails(tmp_path / "known.json")


def test_a_file_that_is_not_text_is_refused(tmp_path):
    path = tmp_path / "known.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(XfailError, match="cannot be read"):
        read_xfails(path)


@pytest.mark.parametrize(
    "text", ["xfail = 1", "[xfail]\nreason = 'a table, not a list'", "[[known]]\nreason = 'b'", "="]
)
def test_toml_without_xfail_tables_is_refused(tmp_path, text):
    with pytest.raises(XfailError, match=r"known\.toml"):
        read_xfails(written(tmp_path, text, "known.toml"))
