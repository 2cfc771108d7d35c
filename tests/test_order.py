"""The verdict is a function of the implementation and the seed: not of the order, the workers, or what ran before."""

import sys
from pathlib import Path

import pytest

from decoderspec.properties.check import check
from decoderspec.properties.properties import all_properties

SUBJECTS = Path(__file__).with_name("subjects.py")
ENOUGH = 7  # properties, after which a run is interrupted
SHUFFLED = """
import random

import pytest

ORDER = []


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    random.Random(1).shuffle(items)
    ORDER.extend(item.name for item in items)
"""


def judged(subject, **options):
    """What a quick run says of each requirement: the status, and the nearest value to the last bit."""
    found = check(f"{SUBJECTS}:{subject}", profile="quick", **options)
    assert found.extras["problems"] == []
    return {name: (row["status"], row["worst_noise"]) for name, row in found.rows().items()}, found.verdict


@pytest.fixture(scope="module", params=["Right", "Wrong"])
def subject(request):
    return request.param


@pytest.fixture(scope="module")
def expected(subject):
    found, verdict = judged(subject)
    assert verdict == ("conforms" if subject == "Right" else "fails")
    return found, verdict


def test_the_verdict_is_the_same_again_in_one_process_and_in_another_order(subject, expected, tmp_path, monkeypatch):
    (tmp_path / "shuffled.py").write_text(SHUFFLED, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "shuffled", raising=False)
    assert judged(subject, pytest_arguments=("-p", "shuffled")) == expected
    usual, order = [test.property.name for test in all_properties()], sys.modules["shuffled"].ORDER
    assert {name.partition("[")[0] for name in order} == set(usual)
    further = ["[further]" in name for name in order]
    assert further != sorted(further)


def test_the_verdict_is_the_same_with_two_workers(subject, expected):
    pytest.importorskip("xdist", reason="pytest-xdist is an extra")
    assert judged(subject, workers=2) == expected


def test_the_verdict_is_the_same_after_a_run_that_was_interrupted(subject, expected, tmp_path):
    place = str(tmp_path / "database")
    seen = []

    def interrupting(record):
        seen.append(record)
        if len(seen) == ENOUGH:
            raise KeyboardInterrupt

    interrupted = check(f"{SUBJECTS}:{subject}", profile="quick", database=place, progress=interrupting)
    assert interrupted.status == 2
    assert interrupted.not_run
    assert judged(subject, database=place) == expected
