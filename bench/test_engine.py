"""Somebody's engine as benchmarks: `pytest --pyargs decoderspec.bench --implementation mine.py:Adapter`.

Everything is measured before the first test (`bench.engine`, in the processes of `bench.process`); the tests hand the
times that were taken to pytest-benchmark, so that its tables, files and comparisons work on them. `decoderspec bench`
is the same with a verdict.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from decoderspec.bench.engine import PLANS, Figure
from decoderspec.bench.process import run_in_processes
from decoderspec.bench.stored import KEY, extra_info
from decoderspec.bench.work import MEASURES, QUICK, SIZES, covered, sizes_of
from decoderspec.properties.run import Run

Figures = dict[tuple[str, str], Figure]
MEASURED = pytest.StashKey[Figures]()


class Replay:
    """A clock that tells times which were taken earlier, one after the other."""

    def __init__(self) -> None:
        self._now = 0.0
        self._durations: Iterator[float] = iter(())

    def load(self, durations: Sequence[float]) -> None:
        """The times to tell."""
        self._durations = iter(durations)

    def advance(self) -> None:
        """What is timed: it takes as long as it took."""
        self._now += next(self._durations, 0.0)

    def __call__(self) -> float:
        """Seconds so far."""
        return self._now


CLOCK = Replay()


@pytest.fixture
def figures(decoderspec_run: Run, pytestconfig: pytest.Config) -> Figures:
    """Everything that the implementation offers at the sizes within its limits, measured once a session."""
    if MEASURED not in pytestconfig.stash:
        run, profile = decoderspec_run, decoderspec_run.profile.name
        wanted = tuple(size for size in sizes_of(run.subject) if profile != "quick" or size.name in QUICK)
        found = run_in_processes(run, covered(run.subject.limits, wanted)[0], PLANS[profile])
        pytestconfig.stash[MEASURED] = {(figure.measure, figure.size.name): figure for figure in found}
    return pytestconfig.stash[MEASURED]


@pytest.mark.parametrize("size", [size.name for size in SIZES])
@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.benchmark(timer=CLOCK)
def test_engine(benchmark: Any, decoderspec_run: Run, figures: Figures, measure: str, size: str) -> None:
    """One measure at one size."""
    figure = figures.get((measure, size))
    if figure is None:
        pytest.skip(f"{measure} at size {size} is not offered, outside the limits, or not in this profile")
    CLOCK.load(figure.seconds)
    benchmark.extra_info[KEY] = extra_info(decoderspec_run.subject, figure)
    benchmark.group = measure
    benchmark.pedantic(CLOCK.advance, rounds=len(figure.seconds))
