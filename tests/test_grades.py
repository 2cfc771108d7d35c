"""Grades of what nothing requires: the same call in a new process, and with another number of threads."""

from dataclasses import replace

import numpy as np
import pytest
from tests.subjects import Right

from decoderspec.properties import processes
from decoderspec.properties.check import check
from decoderspec.properties.session import make_run, run_over

DRIFTING = """
import os
from types import SimpleNamespace
import numpy as np
from decoderspec.reference import Reference

class Drifting(Reference):
    name = "drifting"
    limits = {"layers": [1], "tokens": [4], "vocabulary_size": [5], "model_width": [8], "batch": [2]}
    size = 0.0
    def build(self, config, parameters):
        model = super().build(config, parameters)
        threads = int(os.environ["OMP_NUM_THREADS"]) if "OMP_NUM_THREADS" in os.environ else 1
        factor = 1 + self.size * (threads - 1) if self.size else 1.0
        return SimpleNamespace(logits=lambda tokens: model.logits(tokens) * factor)

class Slightly(Drifting):
    size = 2.0**-52

class Wildly(Drifting):
    size = 0.1

class Departing(Drifting):
    def build(self, config, parameters):
        if os.environ.get("OMP_NUM_THREADS") != "1":
            raise SystemExit("no such device")
        return super().build(config, parameters)
"""


@pytest.fixture
def drifting(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    path = tmp_path / "drifting.py"
    path.write_text(DRIFTING)
    return lambda name: make_run(f"{path}:{name}", profile="quick")


def test_equal_processes_agree_to_the_last_bit(drifting):
    assert processes.repeated(drifting("Drifting")) == {"new process": "bitwise", "another thread count": "bitwise"}


def test_what_threads_change_is_told_in_noise(drifting):
    found = processes.repeated(drifting("Slightly"))
    assert found["new process"] == "bitwise"
    assert found["another thread count"].startswith("within ")
    assert 0 < float(found["another thread count"].split()[1]) < 5


def test_more_than_rounding_differs(drifting):
    assert processes.repeated(drifting("Wildly"))["another thread count"] == "differs"


def test_a_process_that_ends_is_said(drifting):
    found = processes.repeated(drifting("Departing"))
    assert found["new process"] == "bitwise"
    assert found["another thread count"].startswith("not asked: the process ended with status 1")
    assert "no such device" in found["another thread count"]


def test_without_a_name_nothing_can_be_asked():
    found = processes.repeated(run_over(Right()))
    assert set(found) == {"new process", "another thread count"}
    assert all(grade.startswith("not asked: it has no name") for grade in found.values())


def test_a_wide_case_is_asked_where_the_limits_allow():
    from decoderspec.reference import Reference

    assert [case.note for case in processes._cases(run_over(Reference()))][1:] == [processes.WIDE.note]
    assert len(processes._cases(run_over(Right()))) == 1
    assert processes.WIDE.config.model_width * processes.WIDE.tokens > 10_000


def test_grades_decide_nothing(drifting):
    run = drifting("Wildly")
    report = check(run.name, profile="quick", claims=["forward"])
    assert report.extras["processes"]["another thread count"] == "differs"
    assert report.conforms


def test_the_first_case_alone_is_asked_where_shapes_are_dear(monkeypatch):
    run = run_over(Right())
    run.__dict__["has_dear_shapes"] = True
    assert len(processes._cases(run)) == 1


def test_answers_are_the_logits_of_each_case():
    run = run_over(Right())
    cases = [run.fixed[0], replace(run.fixed[0], seed=9)]
    found = processes.answers(run.subject, cases)
    np.testing.assert_array_equal(found["1"], run.model(cases[1]).logits(run.truth(cases[1]).batch[0]))
