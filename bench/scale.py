"""What a check costs: against the size of the model, the number of examples, and the number of workers; and its memory.

    python -m decoderspec.bench.scale --json scale.json --page docs/scale.md

Time is processor time, which a busy machine hardly changes, of the check and of all that it starts. That of two workers
is the time of the one that works longest: what a machine with two free processors would take.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from decoderspec.reference import Reference

NAME = "decoderspec.bench.scale:Sized"
LIMITS, FOLDER = "DECODERSPEC_SCALE_LIMITS", "DECODERSPEC_SCALE_FOLDER"
WIDTHS, LAYERS = (8, 32, 64), (1, 4, 8)
PROFILES = ("quick", "default")
PAIRS = 3
SMALL = {"heads": [2], "head_width": [4], "layers": [1], "tokens": [2, 8], "batch": [1, 2]}
# What two workers are compared at: profile, limits, and which properties.
PARTS: dict[str, tuple[str, Mapping[str, Any], str]] = {
    "a whole run": ("default", {}, ""),
    "a long search": ("thorough", SMALL, "test_forward or test_causality or test_batch"),
}
Row = dict[str, Any]


class Sized(Reference):
    """The reference within the limits that the environment gives, so that a child process has them too."""

    name = "reference of a size"

    @property
    def limits(self) -> Any:
        """What may be drawn."""
        return json.loads(os.environ.get(LIMITS, "{}"))


def pytest_sessionfinish(session: Any) -> None:
    """As a plugin of pytest: what this worker took, at its end."""
    if FOLDER in os.environ and hasattr(session.config, "workerinput"):
        worker = session.config.workerinput["workerid"]
        Path(os.environ[FOLDER], worker).write_text(repr(_processor_seconds()), encoding="ascii")


def _processor_seconds() -> float:
    found = os.times()
    return found.user + found.system + found.children_user + found.children_system


def measured(profile: str, limits: Mapping[str, Any], workers: int, seed: int, part: str = "") -> Row:
    """One check in a process of its own. Raises `RuntimeError` with its words where it does not conform."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        command = [sys.executable, "-m", "decoderspec.commands.main", "check", NAME, f"--profile={profile}"]
        command += [f"--seed={seed}", f"--json={file}", f"-n{workers}"]
        command += ["--", "-p", "decoderspec.bench.scale"] if workers else []
        command += ["-k", part] if part else []
        environment = {**os.environ, LIMITS: json.dumps(limits), FOLDER: folder, "OMP_NUM_THREADS": "1"}
        with open(Path(folder) / "output", "w+b") as output:
            start = time.monotonic()
            child = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
            _, status, usage = os.wait4(child.pid, 0)
            seconds = time.monotonic() - start
            child.returncode = os.waitstatus_to_exitcode(status)
            output.seek(0)
            words = output.read().decode(errors="replace")
        if child.returncode:
            raise RuntimeError(words)
        document = json.loads(file.read_text(encoding="utf-8"))
        each = [float(path.read_text(encoding="ascii")) for path in Path(folder).glob("gw*")]
    return {
        "profile": profile, "limits": dict(limits), "workers": workers, "seed": seed, "seconds": round(seconds, 1),
        "processor_seconds": round(usage.ru_utime + usage.ru_stime, 1), "longest_worker": max(each, default=0.0),
        "peak_megabytes": round(usage.ru_maxrss / 1024), "verdict": document["verdict"],
        "examples": sum(row["examples"] for row in document["requirements"].values()),
    }  # fmt: skip


def sizes() -> dict[str, list[Mapping[str, Any]]]:
    """Limits along two axes."""
    return {
        "width": [{"heads": [2], "head_width": [width // 2]} for width in WIDTHS],
        "layers": [{"layers": [layers]} for layers in LAYERS],
    }


def measure(file: Path, pairs: int) -> None:
    """Everything that the file does not have yet, written as it comes."""
    rows = read(file)

    def once(kind: str, profile: str, limits: Mapping[str, Any], workers: int, seed: int, part: str = "") -> None:
        key = {"kind": kind, "profile": profile, "limits": dict(limits), "workers": workers, "seed": seed}
        if not any(key.items() <= row.items() for row in rows):
            rows.append({**measured(profile, limits, workers, seed, part), "kind": kind})
            file.write_text(json.dumps({"rows": rows}, indent=1) + "\n", encoding="utf-8")
            print(rows[-1], flush=True)

    for pair in range(pairs):
        for name, (profile, limits, part) in PARTS.items():
            for workers in (1, 2):
                once(name, profile, limits, workers, pair, part)
    for profile in PROFILES:
        once("examples", profile, {}, 0, 0)
    for kind, along in sizes().items():
        for limits in along:
            once(kind, "quick", limits, 0, 0)


def read(file: Path) -> list[Row]:
    """The measurements of a file; none where there is no file yet."""
    if not file.exists():
        return []
    rows: list[Row] = json.loads(file.read_text(encoding="utf-8"))["rows"]
    return rows


def speed_ups(rows: Sequence[Row], part: str) -> list[float]:
    """How many times the examples per second of one worker two have, in each pair of runs with the same seed."""
    pairs: dict[int, dict[int, Row]] = {}
    for row in rows:
        if row["kind"] == part:
            pairs.setdefault(row["seed"], {})[row["workers"]] = row
    both = [pair for pair in pairs.values() if len(pair) == 2]
    return [_rate(pair[2]) / _rate(pair[1]) for pair in both]


def _rate(row: Row) -> float:
    return float(row["examples"] / row["longest_worker"])


# --- The page and its picture ---

TEXT = """# What a check costs

Processor seconds of the check of the reference and of all that it starts, on one machine; where the implementation is
dearer than the reference it adds its own. `python -m decoderspec.bench.scale --json scale.json --page docs/scale.md`
measures again.

![processor seconds against the size of the model](scale.svg)

| what | profile | examples | processor seconds | peak memory of the largest process |
| --- | --- | --- | --- | --- |
{rows}

Peak memory was {peak} MB at most. A run keeps at most two models, and of the truths that it computed those asked for
last, {kept} MiB of them: memory does not grow with the number of examples, but with the largest case alone, whose noise
is {runs} runs of every stage side by side. With workers it is so much for each. Where that is too much, `limits` keep
the cases small.

Two workers against one, the same seed in each pair, by the processor time of the worker that works longest:

| what | times the examples per second of one, in each pair |
| --- | --- |
{ratios}

"A whole run" is of the `default` profile; "a long search" is `thorough` on small models, forward, causality and batch:
what most of a campaign is. Each worker starts, imports and computes the truths of the fixed cases for itself, so a
short run gains less than a long one.
"""


def page(rows: Sequence[Row]) -> str:
    """The measurements in words; every figure is computed from them."""
    from decoderspec.properties.run import KEPT_BYTES
    from decoderspec.reference.noise import RUNS

    found = {part: speed_ups(rows, part) for part in PARTS}
    return TEXT.format(
        rows="\n".join(_line(row) for row in rows if row["kind"] not in PARTS),
        peak=max(row["peak_megabytes"] for row in rows), kept=KEPT_BYTES // 2**20, runs=RUNS,
        ratios="\n".join(f"| {part} | {', '.join(f'{ratio:.2f}' for ratio in each)} |" for part, each in found.items()),
    )  # fmt: skip


def _line(row: Row) -> str:
    cells = [_name(row), row["profile"], row["examples"], row["processor_seconds"], f"{row['peak_megabytes']} MB"]
    return f"| {' | '.join(map(str, cells))} |"


def _name(row: Row) -> str:
    limits = row["limits"]
    if row["kind"] == "width":
        return f"model width {limits['heads'][0] * limits['head_width'][0]}"
    return f"layers {limits['layers'][0]}" if row["kind"] == "layers" else "any size"


def picture(rows: Sequence[Row]) -> str:
    """A bar for each size."""
    shown = [row for row in rows if row["kind"] in ("width", "layers")]
    longest, lines = max(row["processor_seconds"] for row in shown), []
    for number, row in enumerate(shown):
        y, length = 20 * number + 8, 420 * row["processor_seconds"] / longest
        lines.append(f'<text x="112" y="{y + 11}" text-anchor="end">{_name(row)}</text>')
        lines.append(f'<rect x="120" y="{y}" width="{length:.0f}" height="14" fill="#2c6fbb"/>')
        lines.append(f'<text x="{126 + length:.0f}" y="{y + 11}">{row["processor_seconds"]:.0f} s</text>')
    size = f'viewBox="0 0 620 {20 * len(shown) + 10}" font-family="sans-serif" font-size="12"'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', *lines, "</svg>"]) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write the page where one is asked for."""
    made = argparse.ArgumentParser(prog="python -m decoderspec.bench.scale", description=__doc__.partition("\n")[0])
    made.add_argument(
        "--pairs", type=int, default=PAIRS, help=f"of runs with one and two workers, {PAIRS} unless given"
    )
    made.add_argument(
        "--json", type=Path, required=True, metavar="FILE", help="the measurements, so far and from now on"
    )
    made.add_argument("--page", type=Path, metavar="FILE", help="write the page, and its picture beside it")
    options = made.parse_args(arguments)
    measure(options.json, options.pairs)
    if options.page is not None:
        rows = read(options.json)
        options.page.write_text(page(rows), encoding="utf-8")
        options.page.with_suffix(".svg").write_text(picture(rows), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
