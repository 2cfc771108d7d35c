"""What CI installs: the oldest releases that are claimed, and a lock in which each file has its hash."""

import re
import tomllib
from pathlib import Path

import pytest

HOUSE = Path(__file__).parent.parent
PROJECT = tomllib.loads((HOUSE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
LOCK = HOUSE / ".ci" / "lock.txt"


def floors(requirements):
    """`name>=release` as pairs."""
    return {tuple(re.fullmatch(r"([\w-]+)>=([\d.]+)", each).groups()) for each in requirements}


def pins(file):
    text = file.read_text(encoding="utf-8")
    return dict(re.findall(r"^([\w.-]+)==([^\s\\]+)", text, flags=re.MULTILINE))


def release(text):
    return tuple(map(int, re.findall(r"\d+", text)))


def padded(text):
    return (*release(text), 0, 0)[:3]


def test_the_oldest_releases_that_are_tested_are_those_that_are_claimed():
    claimed = floors([*PROJECT["dependencies"], *EXTRAS["parallel"], *EXTRAS["redis"]])
    tested = pins(HOUSE / ".ci" / "minimum.txt")
    assert {(name, padded(floor)) for name, floor in claimed} == {(n, padded(each)) for n, each in tested.items()}


@pytest.mark.parametrize("name", ["", "parallel", "redis", "arb", "dev", "docs"])
def test_the_lock_has_everything_that_is_asked_for_and_new_enough(name):
    locked = pins(LOCK)
    for package, floor in floors(EXTRAS[name] if name else PROJECT["dependencies"]):
        assert release(locked[package]) >= release(floor), package


def test_each_locked_file_has_its_hash_and_no_source_is_named():
    lines = [line for line in LOCK.read_text(encoding="utf-8").splitlines() if line and line[0] not in "# "]
    assert len(lines) == len(pins(LOCK))
    assert all(line.endswith("\\") for line in lines)  # its hashes follow
    assert "://" not in LOCK.read_text(encoding="utf-8")
    assert "torch" not in pins(LOCK)
