"""Verdicts follow from records: what is claimed or required decides, what is missing shows, what is known is named."""

import json
from dataclasses import replace

import numpy as np
import pytest
from made_up import DECODER, OPERATION, SKIP, contract, everything, record, report

from decoderspec.properties.cases import fixed_cases
from decoderspec.properties.causes import groups
from decoderspec.properties.report import ESSENTIAL, plain
from decoderspec.properties.summary import grades, render
from decoderspec.properties.xfails import Xfail
from decoderspec.spec.protocol import CONTRACTS
from decoderspec.spec.requirements import requirements

# --- Contracts ---


def test_everything_holds_and_nothing_is_claimed_by_name():
    made = report()
    assert made.contracts() == everything("conforms")
    assert made.conforms
    assert made.to_json()["verdict"] == "conforms"


@pytest.mark.parametrize("name", DECODER)
def test_one_failure_fails_its_contract_alone(name):
    made = report({name: "fail"})
    broken = requirements()[name].contract
    assert made.contracts() == everything("conforms") | {broken: "fails"}
    assert not made.conforms


@pytest.mark.parametrize("broken", CONTRACTS)
def test_what_is_not_claimed_is_observed_and_does_not_count(broken):
    claims = [name for name in CONTRACTS if name != broken]
    made = report(contract(broken, "fail"), claims=claims)
    assert made.contracts() == everything("conforms") | {broken: "observed"}
    assert made.conforms


@pytest.mark.parametrize("name", CONTRACTS)
def test_what_is_required_counts_though_it_is_not_claimed(name):
    statuses = contract(name, "fail")
    assert report(statuses, claims=[]).contracts()[name] == "observed"
    assert report(statuses, claims=[], required=[name]).contracts()[name] == "fails"
    assert not report(statuses, claims=[], required=[name]).conforms
    assert report(claims=[], required=[name]).conforms


@pytest.mark.parametrize("name", CONTRACTS)
@pytest.mark.parametrize("status", ["skip", "not_judged"])
def test_what_cannot_be_reached_is_absent_unless_it_is_claimed_or_required(name, status):
    statuses = contract(name, status)
    assert report(statuses).contracts() == everything("conforms") | {name: "absent"}
    assert report(statuses).conforms
    others = [each for each in CONTRACTS if each != name]
    assert report(statuses, claims=others).contracts()[name] == "absent"
    for explicit in ({"claims": CONTRACTS}, {"required": [name]}):
        assert report(statuses, **explicit).contracts()[name] == "fails"
        assert not report(statuses, **explicit).conforms


@pytest.mark.parametrize("name", [key for names in ESSENTIAL.values() for key in names if key in DECODER])
def test_a_claimed_contract_has_no_holes(name):
    statuses, holed = {name: "skip"}, requirements()[name].contract
    assert report(statuses).contracts()[holed] == "conforms"
    made = report(statuses, claims=[holed])
    assert made.contracts()[holed] == "fails"
    assert made.holes(holed) == [f"{name}: {SKIP}"]
    assert SKIP in render(made, [], [])


def test_what_only_some_offer_is_no_hole():
    made = report({"VAL-2": "skip", "ATT-1": "skip", "TIE-1": "skip", "INI-1": "skip"}, claims=CONTRACTS)
    assert made.contracts() == everything("conforms")


def test_nothing_claimed_and_nothing_required_is_no_verdict():
    made = report(claims=[])
    assert made.contracts() == everything("observed")
    assert not made.decided
    assert not made.conforms
    assert "no verdict" in render(made, [], [])


@pytest.mark.parametrize("status", ["skip", "not_judged", ""])
def test_nothing_judged_is_not_conformance(status):
    made = report(default=status)
    assert not made.tested
    assert not made.conforms
    assert "nothing was tested" in render(made, [], [])


# --- Parts ---


@pytest.mark.parametrize("name", DECODER)
def test_what_was_not_run_leaves_its_contract_without_a_verdict(name):
    made = report({name: ""})
    assert made.contracts() == everything("conforms") | {requirements()[name].contract: "partial"}
    assert (made.verdict, made.conforms, made.status) == ("partial", False, 0)
    assert made.not_run == made.to_json()["not_run"] == [name]
    assert "1 requirements were not run" in render(made, [], [])


def test_what_fails_in_a_part_fails():
    made = report({"VAL-1": "fail", "VAL-2": ""})
    assert made.contracts()["forward"] == "fails"
    assert (made.verdict, made.status) == ("fails", 1)


def test_what_was_not_run_where_nothing_is_claimed_changes_nothing():
    made = report(contract("inputs", ""), claims=["forward"])
    assert made.contracts()["inputs"] == "absent"
    assert (made.verdict, made.status) == ("conforms", 0)


@pytest.mark.parametrize("name", CONTRACTS)
def test_a_required_contract_of_which_nothing_was_run_is_not_green(name):
    made = report(contract(name, ""), required=[name])
    assert made.contracts()[name] == "partial"
    assert (made.verdict, made.status) == ("partial", 2)
    assert report(contract(name, "")).status == 0


def test_one_case_alone_is_no_verdict():
    made = report(contract("training", "skip"))
    made.run = replace(made.run, cases=tuple(fixed_cases()[:1]))
    assert made.contracts() == everything("partial") | {"training": "absent"}
    assert (made.verdict, made.status) == ("partial", 0)
    assert "which alone is no verdict" in render(made, [], [])


def test_what_the_suite_could_not_run_is_no_conformance():
    made = report({"DET-1": "error"}, claims=["training"])
    assert not made.conforms
    assert [each["property"] for each in made.errors()] == ["test_DET-1"]
    assert "please report" in render(made, [], [])


# --- Requirements ---


def test_a_requirement_has_the_worst_status_of_its_properties():
    made = report()
    made.records += [record("VAL-1", "fail", worst_noise=99.0, allowed=12.0), record("VAL-1", "skip")]
    row = made.rows()["VAL-1"]
    assert (row["status"], row["worst_noise"], row["allowed"]) == ("fail", 99.0, 12.0)
    assert row["examples"] == 9


def test_a_property_of_two_requirements_counts_for_both():
    made = report({"TIE-1": "", "TIE-2": ""})
    made.records.append(record("TIE-1", "fail", requirements=["TIE-1", "TIE-2"]))
    rows = made.rows()
    assert rows["TIE-1"]["status"] == rows["TIE-2"]["status"] == "fail"


def test_rows_are_all_requirements_in_the_order_of_the_text():
    assert list(report().rows()) == DECODER
    assert list(report(only="rms_norm").rows()) == OPERATION


def test_an_operation_is_judged_by_its_own_requirements():
    made = report(only="rms_norm")
    assert made.contracts() == {"forward": "conforms", "training": "conforms", "weights": "absent", "inputs": "absent"}
    assert report({"OPN-2": "skip"}, only="rms_norm").conforms
    assert not report({"OPN-2": "skip"}, only="rms_norm", claims=["training"]).conforms
    assert not report({"OPN-1": "skip"}, only="rms_norm", claims=["forward"]).conforms
    assert report(only="rms_norm", claims=["forward", "training"]).conforms
    assert not report({"OPN-1": "fail"}, only="rms_norm").conforms


def test_a_requirement_speaks_with_the_worst_of_its_failures():
    made = report({"VAL-1": ""})
    made.records += [
        record("VAL-1", "fail", worst_noise=noise, allowed=12.0, excess=noise / 12) for noise in (20.0, 90.0)
    ]
    assert made.rows()["VAL-1"]["worst_noise"] == 90.0


# --- Known failures ---


@pytest.mark.parametrize("noises", [(20.0, 90.0), (90.0, 20.0), (20.0, None)])
def test_a_ceiling_must_cover_every_failure_of_its_requirement(noises):
    made = report({"VAL-1": ""}, xfails=[Xfail("VAL-1", "norms", at_most=40.0)])
    made.records += [record("VAL-1", "fail", worst_noise=noise, allowed=12.0) for noise in noises]
    assert made.rows()["VAL-1"]["status"] == "fail"
    assert not made.conforms


def test_a_property_of_two_requirements_is_shown_while_one_of_them_is_not_known():
    made = report({"TIE-1": "", "TIE-2": ""}, xfails=[Xfail("TIE-1", "roles")])
    made.records.append(record("TIE-1", "fail", requirements=["TIE-1", "TIE-2"]))
    assert [made.rows()[name]["status"] for name in ("TIE-1", "TIE-2")] == ["xfail", "fail"]
    assert len(made.failures()) == 1


def test_the_summary_prints_the_reason_of_each_known_failure():
    made = report({"INP-1": "fail"}, xfails=[Xfail("INP-1", "wraps -1", "https://example.org/1")])
    text = " ".join(render(made, [], []).split())
    assert "INP-1 fails as listed (wraps -1 (https://example.org/1))" in text


def test_a_known_failure_does_not_fail_its_contract():
    made = report({"INP-1": "fail"}, xfails=[Xfail("INP-1", "wraps", "https://example.org/1")])
    assert made.rows()["INP-1"]["status"] == "xfail"
    assert made.rows()["INP-1"]["reason"] == "wraps (https://example.org/1)"
    assert made.conforms
    assert made.failures() == []


@pytest.mark.parametrize(("noise", "status"), [(39.0, "xfail"), (40.0, "xfail"), (41.0, "fail"), (None, "fail")])
def test_a_ceiling_keeps_a_known_gap_a_test(noise, status):
    known = [Xfail("VAL-1", "float32 norms", at_most=40.0)]
    made = report({"VAL-1": "fail"}, xfails=known, VAL_1={"worst_noise": noise, "allowed": 12.0})
    assert made.rows()["VAL-1"]["status"] == status
    assert made.conforms == (status == "xfail")


def test_a_known_failure_of_one_requirement_excuses_no_other():
    made = report({"INP-1": "fail", "INP-2": "fail"}, xfails=[Xfail("INP-1", "wraps")])
    assert not made.conforms
    assert [each["requirements"] for each in made.failures()] == [["INP-2"]]


@pytest.mark.parametrize("status", ["pass", "skip", "error"])
def test_only_a_failure_can_be_known(status):
    made = report({"VAL-1": status}, xfails=[Xfail("VAL-1", "was wrong once")])
    assert made.rows()["VAL-1"]["status"] == status
    assert "VAL-1 does not fail as listed" in render(made, [], [])
    assert made.to_json()["xfails"][0]["misfit"]


def test_a_known_failure_of_what_is_not_asked_is_said_and_nothing_more():
    made = report(only="rms_norm", xfails=[Xfail("VAL-1", "of the whole decoder")])
    assert made.conforms
    text = " ".join(render(made, [], []).split())
    assert "VAL-1 does not fail as listed: it matches nothing" in text


# --- Words and documents ---


HOSTILE = "evil\x1b[2J\x07\u202e\ud800\nmade up conforms"


def test_nothing_that_an_implementation_says_moves_the_cursor_or_makes_a_line():
    made = report({"VAL-1": "fail"}, name=HOSTILE, VAL_1={"reason": f"logits: {HOSTILE}"})
    text = render(made, groups(made.run, made.failures()), [""])
    text.encode("utf-8")
    assert all(char == "\n" or char.isprintable() for char in text)
    assert text.splitlines()[0].count("\\nmade up conforms") == 1


def test_failures_of_one_cause_are_one_finding():
    statuses = dict.fromkeys(("VAL-1", "CAU-1", "BAT-2", "INP-1", "INP-2", "DET-1"), "fail")
    made = report(statuses)
    found = groups(made.run, made.failures())
    assert [group.title for group in found] == ["values", "state", "inputs"]
    assert [each["requirements"][0] for each in found[0].records] == ["VAL-1", "CAU-1", "BAT-2"]


def test_wrong_values_explain_wrong_training_and_right_values_do_not():
    both = report({"VAL-1": "fail", "GRA-1": "fail", "LOS-1": "fail"})
    assert len(groups(both.run, both.failures())) == 1
    alone = report({"CAU-2": "fail", "GRA-1": "fail"})
    assert [group.title for group in groups(alone.run, alone.failures())] == ["values", "loss and gradients"]


def test_the_summary_says_what_failed_in_the_words_of_the_text_and_of_the_finding():
    made = report(
        {"VAL-1": "fail"}, VAL_1={"worst_noise": 99.0, "allowed": 12.0, "reason": "logits: off", "case": "V=5 d=4"}
    )
    found = groups(made.run, made.failures())
    text = " ".join(render(made, found, ["decoderspec explain mine.py:A --case x.json"]).split())
    assert requirements()["VAL-1"].sentence in text
    for part in (
        "logits: off",
        "case: V=5 d=4",
        "99 x noise (12.0 allowed)",
        "does not conform",
        "next: decoderspec explain",
    ):
        assert part in text


def test_what_is_only_observed_is_a_line_and_no_finding():
    made = report({"INP-1": "fail"}, claims=["forward"])
    found = groups(made.run, made.failures())
    text = render(made, found, [""] * len(found))
    assert "seen, but in contracts that are not claimed" in text
    assert "finding 1" not in text
    assert "made up conforms (forward)" in text


def test_what_to_add_is_said_once():
    made = report({"LOS-1": "skip", "TIE-1": "skip"})
    assert made.untested() == [SKIP]


def test_grades_tell_bitwise_from_within_the_noise():
    rows = {"DET-1": {"status": "pass", "worst_noise": None}, "BAT-2": {"status": "pass", "worst_noise": 1.5}}
    rows |= {"CAU-2": {"status": "fail", "worst_noise": None}, "BAT-3": {"status": "skip", "worst_noise": None}}
    assert grades(rows) == {
        "replay": "bitwise",
        "later tokens changed": "differs",
        "row alone": "within 1.5 x noise",
    }


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (float("inf"), "inf"),
        (float("nan"), "nan"),
        (-np.inf, "-inf"),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.array([1.0, np.nan]), [1.0, "nan"]),
        ((1, None, True), [1, None, True]),
        ({1: {"a": (2,)}}, {"1": {"a": [2]}}),
        (range(2), [0, 1]),
        (int, "<class 'int'>"),
    ],
    ids=repr,
)
def test_documents_hold_only_what_json_has(value, expected):
    assert plain(value) == expected
    json.loads(json.dumps(plain(value), allow_nan=False))


def test_a_report_with_infinite_errors_is_valid_json():
    made = report({"VAL-1": "fail"}, VAL_1={"worst_noise": float("inf"), "allowed": 12.0})
    document = json.loads(json.dumps(made.to_json(), allow_nan=False))
    assert document["requirements"]["VAL-1"]["worst_noise"] == "inf"
