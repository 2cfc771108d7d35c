"""Many runs with different seeds over implementations that are right: every verdict must be `conforms`.

    python -m decoderspec.bench.soak --runs 50 --json soak.json
    python -m decoderspec.bench.soak decoderspec.reference:Reference other.py:Adapter --runs 50 --json soak.json
    python -m decoderspec.bench.soak --json soak.json --page docs/soak.md

Each run is `decoderspec check` in a process of its own, with a seed of its own; implementations have their turns, the
reference and every formulation of the calibration (`bench/right.py`) where none is named. The file is written after
every run: a soak that is interrupted is worth what it has, and the same command goes on with it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from decoderspec import __version__
from decoderspec.bench.right import RIGHT

EVERY = ("decoderspec.reference:Reference", *(f"decoderspec.bench.right:{name}" for name in RIGHT))
SCHEMA = 1


@dataclass(frozen=True)
class Soaked:
    """One run: what it said, how near its nearest value came to a limit, and what it cost."""

    implementation: str  # what it calls itself, and what it declares
    named: str
    seed: int
    verdict: str
    failed: tuple[str, ...]  # requirements
    examples: int
    nearest: float  # the largest error as a part of what is allowed
    nearest_requirement: str
    seconds: float
    processor_seconds: float
    peak_megabytes: float


def soak(names: Sequence[str], seeds: Sequence[int], profile: str, file: Path, minutes: float | None) -> None:
    """Run what the file does not have yet, seed after seed, until it is done or the time is up."""
    done = read(file)
    start = time.monotonic()
    for seed in seeds:
        name = names[seed % len(names)]
        if any((each.named, each.seed) == (shown(name), seed) for each in done):
            continue
        if minutes is not None and time.monotonic() - start > 60 * minutes:
            return
        found = checked(name, seed, profile)
        done.append(found)
        write(file, done, profile)
        print(f"{found.implementation}  seed {seed}  {found.verdict}  {found.seconds:.0f} s", flush=True)


def checked(name: str, seed: int, profile: str) -> Soaked:
    """One run in a process of its own. Raises `RuntimeError` with its words where it leaves no report."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        options = [f"--profile={profile}", f"--seed={seed}", f"--json={file}"]
        command = [sys.executable, "-m", "decoderspec.commands.main", "check", name, *options]
        start = time.monotonic()
        with open(Path(folder) / "output", "w+b") as output:
            child = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
            _, status, usage = os.wait4(child.pid, 0)  # of the process and all that it waited for
            child.returncode = os.waitstatus_to_exitcode(status)
            output.seek(0)
            words = output.read().decode(errors="replace")
        if not file.exists():
            raise RuntimeError(f"{name} with seed {seed} left no report: {words}")
        document = json.loads(file.read_text(encoding="utf-8"))
    seconds = time.monotonic() - start
    return _soaked(shown(name), seed, document, seconds, usage)


def shown(name: str) -> str:
    """A name without the folders of a whole path, which say where it was run."""
    place, colon, attribute = name.rpartition(":")
    return f"{Path(place).name}{colon}{attribute}" if Path(place).is_absolute() else name


def _soaked(named: str, seed: int, document: Mapping[str, Any], seconds: float, usage: Any) -> Soaked:
    rows = document["requirements"]
    measured = {key: row for key, row in rows.items() if row["allowed"] and row["status"] in ("pass", "fail")}
    parts = {key: float(row["worst_noise"]) / float(row["allowed"]) for key, row in measured.items()}
    nearest = max(parts, key=parts.__getitem__, default="")
    declared = document["precision"]["declared"]
    failed = tuple(key for key, row in rows.items() if row["status"] in ("fail", "error"))
    return Soaked(
        f"{document['implementation']}, {declared if isinstance(declared, str) else 'a recipe'}", named, seed,
        document["verdict"], failed, sum(row["examples"] for row in rows.values()),
        parts.get(nearest, 0.0), nearest, round(seconds, 1), round(usage.ru_utime + usage.ru_stime, 1),
        round(usage.ru_maxrss / 1024, 1),
    )  # fmt: skip


def read(file: Path) -> list[Soaked]:
    """The runs of a file; none where there is no file yet."""
    if not file.exists():
        return []
    runs = json.loads(file.read_text(encoding="utf-8"))["runs"]
    return [Soaked(**{**run, "failed": tuple(run["failed"])}) for run in runs]


def write(file: Path, runs: Sequence[Soaked], profile: str) -> None:
    """Everything so far, in one step: a reader never sees half a file."""
    document = {
        "schema": SCHEMA, "decoderspec": __version__, "profile": profile,
        "python": platform.python_version(), "platform": f"{platform.system()} {platform.machine()}",
        "runs": [asdict(run) for run in runs],
    }  # fmt: skip
    part = file.with_name(file.name + ".part")
    part.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    part.replace(file)


# --- The page ---

TEXT = """# A soak

{count} `{profile}` runs over implementations that are right, each with a seed of its own ({python}, {platform}):
formulations of the [calibration](calibration.md) claim the contracts forward and training. False alarms, which are
runs that did not conform: {alarms}. Each seed draws other cases.

| implementation | runs | conform | examples | nearest a limit | processor seconds, median | peak memory |
| --- | --- | --- | --- | --- | --- | --- |
{rows}

"Nearest a limit" is the largest error of all runs as a part of what is allowed, and its requirement: 1 would be an
alarm. Examples are of all runs: cases that one property looked at; properties share their cases. Peak memory is of the
largest single process (of `decoderspec check` and its children).

The page is made of a file that the same command goes on with where it was interrupted:

{commands}
    python -m decoderspec.bench.soak --json soak.json --page docs/soak.md
"""


def page(runs: Sequence[Soaked], document: Mapping[str, Any]) -> str:
    """The runs in words; every figure is computed from them."""
    by_name: dict[str, list[Soaked]] = {}
    for run in runs:
        by_name.setdefault(run.implementation, []).append(run)
    alarms = [run for run in runs if run.verdict != "conforms"]
    text = TEXT.format(
        count=len(runs), profile=document["profile"], python=f"Python {document['python']}",
        platform=document["platform"], alarms=len(alarms),
        rows="\n".join(_row(name, each) for name, each in by_name.items()),
        commands="\n".join(_commands(runs)),
    )  # fmt: skip
    alarmed = [f"- {run.implementation}, seed {run.seed}: {', '.join(run.failed) or run.verdict}" for run in alarms]
    return text + ("\nRuns that did not conform:\n\n" + "\n".join(alarmed) + "\n" if alarmed else "")


def _commands(runs: Sequence[Soaked]) -> Iterator[str]:
    """What repeats them, for each stretch of seeds; implementations are named where they are not the usual ones."""
    names = dict.fromkeys(run.named for run in sorted(runs, key=lambda run: run.seed))
    named = "" if set(names) <= set(EVERY) else " " + " ".join(names)
    seeds = sorted({run.seed for run in runs})
    for first in (seed for seed in seeds if seed - 1 not in seeds):
        count = next(count for count in range(1, len(seeds) + 1) if first + count not in seeds)
        yield f"    python -m decoderspec.bench.soak --first-seed {first} --runs {count} --json soak.json{named}"


def _row(name: str, runs: Sequence[Soaked]) -> str:
    nearest = max(runs, key=lambda run: run.nearest)
    conform = sum(run.verdict == "conforms" for run in runs)
    cells = [
        name, len(runs), conform, f"{sum(run.examples for run in runs):,}",
        f"{nearest.nearest:.2f} ({nearest.nearest_requirement}, seed {nearest.seed})",
        f"{median(run.processor_seconds for run in runs):.0f}", f"{max(run.peak_megabytes for run in runs):.0f} MB",
    ]  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def parser() -> argparse.ArgumentParser:
    """The arguments."""
    made = argparse.ArgumentParser(prog="python -m decoderspec.bench.soak", description=__doc__.partition("\n")[0])
    made.add_argument(
        "names", nargs="*", metavar="implementation", help="the reference and all formulations unless given"
    )
    made.add_argument("--runs", type=int, default=50, help="how many, each with a seed of its own; 50 unless given")
    made.add_argument("--first-seed", type=int, default=1, help="the first of them, 1 unless given")
    made.add_argument("--profile", default="default", help="quick, default or thorough")
    made.add_argument("--minutes", type=float, help="start no run after so many")
    made.add_argument("--json", type=Path, required=True, metavar="FILE", help="the runs, so far and from now on")
    made.add_argument("--page", type=Path, metavar="FILE", help="write the page of what the file has, and run nothing")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Soak, or write the page; 1 where a run did not conform."""
    options = parser().parse_args(arguments)
    if options.page is None:
        seeds = range(options.first_seed, options.first_seed + options.runs)
        soak(options.names or EVERY, seeds, options.profile, options.json, options.minutes)
    else:
        document = json.loads(options.json.read_text(encoding="utf-8"))
        options.page.write_text(page(read(options.json), document), encoding="utf-8")
    return int(any(run.verdict != "conforms" for run in read(options.json)))


if __name__ == "__main__":
    sys.exit(main())
