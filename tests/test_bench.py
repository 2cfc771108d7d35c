"""The verdict of the benchmarks: its statistics on made-up numbers, its files, and the command on a tiny engine."""

import json
import math
import os
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from decoderspec.bench import clock, engine, growth, page, process, stored, verdict, verdicts, work
from decoderspec.commands import bench as command
from decoderspec.commands.main import main
from decoderspec.properties.findings import Absent, Finding
from decoderspec.properties.session import make_run
from decoderspec.properties.subject import read_subject
from decoderspec.reference import Reference
from decoderspec.reference.decoder import decoder
from decoderspec.reference.operations import OPERATIONS, Operation
from decoderspec.spec.config import Config
from decoderspec.spec.parameters import parameter_shapes

DOCS = Path(__file__).parents[1] / "docs"
SMALL = work.SIZES[0]
TINY = work.Size("small", Config(5, 4, 2, 3, 1, 4), 2, 3)
QUANTISED = DOCS.parent / "examples" / "quantised.py"
HERE = f"{Path(__file__).resolve()}"
PLAN = engine.Plan(0.02, 2, 3)


class Small(Reference):
    """Measured at one size alone."""

    limits = {"tokens": {"max": 16}, "layers": [2], "vocabulary_size": {"max": 50}}  # noqa: RUF012


class Failing(Small):
    def build(self, config, parameters):
        raise OSError("weights.bin is missing")


class Ending(Small):
    def build(self, config, parameters):
        os._exit(3)


class Narrow(Reference):
    limits = {"head_width": [2], "heads": [1]}  # noqa: RUF012


# --- Statistics ---


def noise(seed, count, spread=0.02, shift=0.0):
    return (np.random.default_rng(seed).normal(size=count) * spread + shift).tolist()


@pytest.mark.parametrize(("risk", "freedom", "expected"), [(0.05, 10, 2.228), (0.01, 6, 3.707), (0.05, 11, 2.228)])
def test_quantiles_are_those_of_the_tables(risk, freedom, expected):
    assert verdict.quantile(risk, freedom) == pytest.approx(expected, abs=5e-4)


def test_intervals_hold_the_truth_as_often_as_they_say():
    changes = [verdict.change(noise(2 * k, 4), noise(2 * k + 1, 6)) for k in range(2000)]
    wrong = sum(not each.interval.low <= 1 <= each.interval.high for each in changes)
    assert 0.5 * verdict.RISK <= wrong / 2000 <= 1.5 * verdict.RISK


def test_the_risk_of_a_comparison_is_shared_so_that_identical_code_is_hardly_ever_slower():
    figures = [[verdict.change(noise((k, f, 0), 4), noise((k, f, 1), 4), 12) for f in range(12)] for k in range(200)]
    beside = sum(any(not f.interval.low <= 1 <= f.interval.high for f in comparison) for comparison in figures)
    slower = sum(any(f.verdict == "slower" for f in comparison) for comparison in figures)
    assert beside / 200 <= 2 * verdict.RISK
    assert slower <= 2


@pytest.mark.parametrize(
    ("shift", "spread", "expected"),
    [(0.2, 0.02, "slower"), (-0.2, 0.02, "faster"), (0.0, 0.002, "same"), (0.0, 0.2, "too noisy to tell")],
)
def test_verdict_follows_the_shift_and_the_noise(shift, spread, expected):
    found = verdict.change(noise(1, 12, spread), noise(2, 12, spread, shift))
    assert found.verdict == expected
    assert found.interval.low < math.exp(shift) < found.interval.high


def test_a_change_between_same_and_slower_is_not_called_either():
    assert verdict.change(noise(1, 12), noise(2, 12, shift=0.03)).verdict == "too noisy to tell"


def test_one_process_never_gives_a_verdict():
    found = verdict.change([0.0], [1.0])
    assert found.verdict == "too noisy to tell"
    assert math.isinf(found.seen)
    assert math.isinf(verdict.of_run([0.0]).high)


def test_the_slowdown_that_would_be_seen_is_seen_and_one_below_it_is_not():
    before, now = noise(1, 12), noise(2, 12)
    found = verdict.change(before, now)
    gap = math.log(1 + found.seen) - math.log(found.interval.middle)
    assert verdict.change(before, [each + gap + 0.001 for each in now]).verdict == "slower"
    assert verdict.change(before, [each + gap - 0.001 for each in now]).verdict != "slower"


def test_the_risk_is_shared_among_the_figures():
    before, now = noise(1, 12), noise(2, 12)
    alone, one_of_many = verdict.change(before, now), verdict.change(before, now, 100)
    assert one_of_many.interval.low < alone.interval.low
    assert one_of_many.interval.high > alone.interval.high


def test_interval_of_a_run_is_that_of_a_mean():
    found = verdict.of_run([math.log(k) for k in (2, 4, 8)])  # even degrees of freedom: 2, with t = 4.303
    assert found.middle == pytest.approx(4)
    assert math.log(found.high / 4) == pytest.approx(4.303 * math.log(2) / math.sqrt(3), rel=1e-3)


def test_fails_above_a_percentage_only_where_the_whole_interval_is():
    found = verdict.Change(verdict.Interval(1.06, 1.1, 1.14), 0.1)
    assert found.exceeds(5)
    assert not found.exceeds(7)


# --- Growth ---


def test_slope_of_a_power_is_its_exponent():
    found = verdict.slope([1, 2, 4, 8], [[3.0 * n**2 for n in (1, 2, 4, 8)], [n**1.5 for n in (1, 2, 4, 8)]])
    assert (found.low, found.high) == pytest.approx((1.5, 2.0))


def test_multiplications_of_the_formulas_are_those_that_the_reference_carries_out():
    size, counted = work.Size("", Config(5, 4, 2, 3, 2, 6), 2, 5), []

    def counting(operation):
        def perform(stage, *inputs):
            output = operation(stage, *inputs)
            if operation.name in ("linear", "project", "scores", "mix"):
                terms = inputs[0].shape[-1]
                counted.append(output.size * terms)
            return output

        return Operation(operation.name, perform, operation.vjp)

    weights = {name: np.ones(shape) for name, shape in parameter_shapes(size.config).items()}
    decoder(OPERATIONS.each(counting), size.config, weights, np.zeros((2, 5), dtype=np.int64))
    assert sum(counted) == work.products(size)


def test_expected_exponents_are_those_of_the_formulas_far_out():
    far = growth._along("T", Config(16, 4, 1, 4, 1, 1), 1, (10**5, 10**6, 10**7))
    assert growth.expected("time", "forward", [10**5, 10**6, 10**7], far) == pytest.approx((2, 2), abs=0.01)
    deep = growth._along("N", Config(2, 4, 1, 4, 1, 4), 1, (1000, 2000, 4000))
    assert growth.expected("memory", "forward", [1000, 2000, 4000], deep) == pytest.approx((0, 1), abs=0.01)


def test_an_accidental_quadratic_is_flagged_and_the_formulas_growth_is_not():
    suspicious = growth.Growth("time", "forward", "N", verdict.Slope(1.9, 2.0, 2.1), (0.98, 1.0))
    plain = growth.Growth("time", "forward", "N", verdict.Slope(0.9, 1.0, 1.1), (0.98, 1.0))
    uncertain = growth.Growth("time", "forward", "N", verdict.Slope(1.2, 2.0, 2.4), (0.98, 1.0))
    assert [each.suspicious for each in (suspicious, plain, uncertain)] == [True, False, False]
    assert "GROWS FASTER" in growth.table([suspicious])[-1]


def test_growth_is_fitted_along_every_axis_that_the_limits_leave(monkeypatch):
    along = {axis: growth._along(axis, Config(5, 8, 2, 3, 1, 4), 1, (2, 4, 8)) for axis in "TN"}
    monkeypatch.setattr(growth, "AXES", along)
    subject = read_subject(Reference())
    found = growth.measure(subject)
    assert {(each.what, each.measure, each.axis) for each in found} == {
        (what, name, axis) for what in ("time", "memory") for name in ("forward", "gradients") for axis in "TN"
    }
    subject.limits = {"layers": [1]}
    assert {each.axis for each in growth.measure(subject)} == {"T"}


def test_peak_memory_is_that_of_the_largest_arrays_alive():
    size = 8 * 2**20
    assert growth.peak(lambda: np.ones(2**20) + np.ones(2**20), None) == pytest.approx(2 * size, rel=0.5)


def test_peak_memory_of_a_device_is_asked_for():
    class Device:
        def peak_memory(self):
            return 12345

    assert growth.peak(lambda: None, Device()) == 12345


# --- Measuring ---


def test_each_measure_is_timed_in_every_sweep():
    found = engine.measure(read_subject(Reference()), [TINY], PLAN)
    assert {figure.measure for figure in found} == set(work.MEASURES)
    assert [len(visits) for figure in found for visits in figure.processes] == [PLAN.sweeps] * len(found)
    pairs = [pair for figure in found for visits in figure.processes for visit in visits for pair in visit]
    assert all(call > 0 and yard > 0 for call, yard in pairs)
    assert all(math.isfinite(value) for figure in found for value in figure.logs)


def test_dear_builds_are_built_once(monkeypatch):
    monkeypatch.setattr(engine, "DEAR_BUILD", 0.0)
    built = []

    class Counting(Reference):
        def build(self, config, parameters):
            built.append(config)
            return super().build(config, parameters)

    (build,) = (f for f in engine.measure(read_subject(Counting()), [TINY], PLAN) if f.measure == "build")
    assert len(build.processes[0]) == 1
    assert len(built) == 1 + len(build.processes[0][0])


def test_a_process_that_ends_is_told_in_words():
    run = make_run(f"{HERE}:Ending", profile="quick")
    with pytest.raises(Finding, match="the process that measured ended with status 3"):
        process.run_in_processes(run, [SMALL], PLAN)


def test_processes_are_measured_one_after_the_other_and_kept_apart():
    figures = process.run_in_processes(make_run(f"{HERE}:Small"), [SMALL], PLAN)
    assert {figure.measure for figure in figures} == set(work.MEASURES)
    assert all(len(figure.processes) == len(figure.logs) == PLAN.processes for figure in figures)


def test_pairs_alternate_between_the_yardstick_and_the_call():
    told = []
    engine.pairs(lambda: told.append("call"), lambda: told.append("yard"), 0.0)
    assert told == ["yard", "yard", "call", "yard"]


def test_their_yardstick_and_their_synchronize_are_used():
    told = []

    class Device(Reference):
        def yardstick(self, rows, inner, columns, products, numbers, sweeps):
            return lambda: told.append("yardstick")

        def synchronize(self):
            told.append("synchronize")

    subject = read_subject(Device())
    engine.measure(subject, [TINY], PLAN)
    assert engine.yardstick_name(subject) == "its own"
    assert "yardstick" in told
    assert all(after == "synchronize" for each, after in pairwise(told) if each == "yardstick")


def test_a_yardstick_that_is_no_function_is_a_finding():
    class Device(Reference):
        def yardstick(self, *_):
            return 3

    with pytest.raises(Finding, match="yardstick returned int"):
        engine.measure(read_subject(Device()), [TINY], PLAN)


def test_lazy_results_are_read_and_those_on_the_cpu_are_not():
    class Lazy:
        read = 0

        def __array__(self, dtype=None, copy=None):
            Lazy.read += 1
            return np.zeros(2)

    finish = engine.finisher(Reference())
    finish({"a": Lazy()})
    finish(np.zeros(3))
    assert Lazy.read == 1


def test_sizes_outside_the_limits_are_not_covered():
    inside, lost = work.covered(Small.limits)
    assert [size.name for size in inside] == ["small"]
    assert lost == ["medium", "prefill", "long", "wide"]


def test_time_in_line_for_a_processor_is_taken_off(monkeypatch):
    told = iter([1.0, 1.5])
    monkeypatch.setattr(clock, "waited", lambda: next(told))
    monkeypatch.setattr(time, "perf_counter", iter([10.0, 12.0]).__next__)
    assert clock.timed(lambda: None) == pytest.approx(1.5)


def test_a_slowed_call_takes_fifteen_percent_longer_by_its_own_clock(monkeypatch):
    now = iter([0.0, 1.0, 1.05, 1.1, 1.16])
    monkeypatch.setattr(verdicts, "own_time", lambda: next(now))
    assert verdicts._slowly(lambda: "result") == "result"
    assert next(now, None) is None


def test_a_checkpoint_is_measured_at_its_own_configuration_and_never_built():
    run = make_run(str(QUANTISED) + ":Quantised")
    inside, lost = work.covered(run.subject.limits, work.sizes_of(run.subject))
    assert {size.config for size in inside} == {run.subject.checkpoint.config}
    assert lost  # longer than its context
    figures = engine.measure(run.subject, inside[:1], PLAN)
    assert {figure.measure for figure in figures} == {"forward"}
    with pytest.raises(Absent, match="growth"):
        growth.measure(run.subject)


# --- Files ---


def document(**changes):
    info = {
        "schema": stored.SCHEMA, "implementation": "mine", "precision": "float64", "measure": "forward",
        "size": "small", "sizes": TINY.describe(), "yardstick": "NumPy float64", "processes": noise(1, 6),
        "tokens_per_second": 5.0,
    }  # fmt: skip
    return {"benchmarks": [{"extra_info": {stored.KEY: info | changes}}]}


def figures(tmp_path, **changes):
    path = tmp_path / "figures.json"
    path.write_text(json.dumps(document(**changes)), encoding="utf-8")
    return stored.read(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("[]", "no file of pytest-benchmark"),
        ('{"verdict": 1}', "no file of pytest-benchmark"),
        ('{"benchmarks": [{"extra_info": {}}]}', "no figures of decoderspec"),
        (json.dumps(document(schema=99)), "schema 99, this is schema 1"),
        (json.dumps(document(processes="abc")), "cannot be read"),
    ],
)
def test_files_that_hold_no_figures_are_refused_in_words(tmp_path, capsys, text, said):
    path = tmp_path / "main.json"
    path.write_text(text, encoding="utf-8")
    assert main(["bench", f"{HERE}:Small", "--against", str(path)]) == 2
    assert said in capsys.readouterr().err


def test_a_file_that_is_not_there_is_refused(tmp_path, capsys):
    assert main(["bench", f"{HERE}:Small", "--against", str(tmp_path / "none.json")]) == 2
    assert "cannot be read: No such file" in capsys.readouterr().err


@pytest.mark.parametrize("what", ["implementation", "precision"])
def test_another_implementation_or_precision_is_compared_and_said(tmp_path, what):
    found = stored.compare(figures(tmp_path), figures(tmp_path, **{what: "other"}))
    assert found.changes
    assert any(f"another {what}" in remark for remark in found.remarks)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"size": "wide"}, "not in the file"),
        ({"sizes": {"batch": 7}}, "another size under the same name"),
        ({"yardstick": "its own"}, "another yardstick"),
    ],
)
def test_what_is_not_the_same_question_is_not_compared(tmp_path, changes, said):
    found = stored.compare(figures(tmp_path), figures(tmp_path, **changes))
    assert not found.changes
    assert any(said in each for each in found.not_compared)


# --- The command ---


@pytest.fixture
def briefly(monkeypatch):
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # benchmarks are not run in parallel
    monkeypatch.setitem(engine.PLANS, "quick", PLAN)


@pytest.mark.usefixtures("briefly")
def test_the_benchmarks_run_under_pytest_and_its_own_compare_reads_their_file(tmp_path, capsys):
    path = tmp_path / "figures.json"
    arguments = [f"--implementation={HERE}:Small", "--decoderspec-profile=quick", f"--benchmark-json={path}"]
    assert pytest.main(["--pyargs", "decoderspec.bench", *arguments, "-p", "no:cacheprovider"]) == 0
    printed = capsys.readouterr().out
    assert "test_engine[forward-small]" in printed
    assert "test_oracle" not in printed
    assert {figure.measure for figure in stored.read(path)} == set(work.MEASURES)
    read = subprocess.run(
        [sys.executable, "-m", "pytest_benchmark", "compare", str(path)], capture_output=True, text=True, check=False
    )
    assert read.returncode == 0, read.stderr
    assert "test_engine[forward-small]" in read.stdout


@pytest.mark.usefixtures("briefly")
def test_the_command_measures_saves_and_compares(tmp_path, capsys, monkeypatch):
    saved, report = tmp_path / "main.json", tmp_path / "report.json"
    assert main(["bench", f"{HERE}:Small", "--quick", "--save", str(saved)]) == 0
    capsys.readouterr()
    before = stored.read(saved)
    monkeypatch.setattr(stored, "read", lambda _: [_quiet(each, 0.0) for each in before])
    monkeypatch.setattr(command, "read", stored.read)
    monkeypatch.setattr(command, "measured", lambda *_: [_quiet(each, 0.5) for each in before])
    arguments = ["bench", f"{HERE}:Small", "--quick", "--against", str(saved), "--json", str(report)]
    assert main(arguments) == 0
    assert main([*arguments, "--fail-above", "5"]) == 1
    assert main([*arguments, "--fail-above", "90"]) == 0
    printed, found = capsys.readouterr().out, json.loads(report.read_text(encoding="utf-8"))
    assert "tokens/s" in printed
    assert "slower" in printed
    assert "not covered by the limits: medium" in printed
    assert {each["verdict"] for each in found["figures"]} == {"slower"}
    assert (len(found["figures"]), found["fails"]) == (len(before), [])


def _quiet(figure, by):
    """A figure with processes that hardly differ, slower by so much than it was."""
    return replace(figure, logs=tuple(figure.logs[0] + by + k * 1e-4 for k in range(6)))


@pytest.mark.usefixtures("briefly")
def test_an_implementation_that_fails_is_told_in_words(capsys):
    assert main(["bench", f"{HERE}:Failing", "--quick"]) == 2
    assert "build raised OSError on valid input: weights.bin is missing" in capsys.readouterr().err


def test_limits_that_leave_no_size_are_told_in_words(capsys):
    assert main(["bench", f"{HERE}:Narrow", "--quick"]) == 2
    assert "no size is within its limits" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["nothing"], "does not name an implementation"), ([f"{HERE}:Small", "--fail-above", "5"], "needs --against")],
)
def test_what_cannot_be_run_is_told_in_words(capsys, arguments, said):
    assert main(["bench", *arguments]) == 2
    assert said in capsys.readouterr().err


# --- The page ---


def test_page_and_picture_are_those_of_the_figures():
    found = json.loads((DOCS / "benchmarks.json").read_text(encoding="utf-8"))
    assert set(found) == set(page.PARTS)
    assert (DOCS / "benchmarks.md").read_text(encoding="utf-8") == page.page(found)
    assert (DOCS / "benchmarks.svg").read_text(encoding="utf-8") == page.picture(found)
