"""A run in several processes, one after the other: what differs between runs then differs within one.

`python -m decoderspec.bench.process` is the child: it reads what to load as one JSON line from its standard input,
measures its part, and writes its figures to the file that it was told.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from decoderspec.bench.engine import Figure, Plan, measure
from decoderspec.bench.work import Size, sizes_of
from decoderspec.properties.findings import Finding
from decoderspec.properties.run import Run
from decoderspec.properties.session import make_run

FEWEST = 3  # processes, however long they take
AT_MOST = 8.0  # times the planned seconds, where others use the machine


def run_in_processes(run: Run, sizes: Sequence[Size], plan: Plan) -> list[Figure]:
    """Every figure, of all processes. Raises `Finding` for what fails in any of them."""
    run.subject.close()
    figures: dict[tuple[str, str], Figure] = {}
    start = time.perf_counter()
    for seed in range(plan.processes):
        taken = time.perf_counter() - start
        if seed >= FEWEST and taken + taken / seed > AT_MOST * plan.seconds:
            break  # slower than planned: fewer processes, and wider intervals
        for part in _child(run, sizes, plan, seed):
            figures.setdefault((part.measure, part.size.name), part).processes.extend(
                [] if seed == 0 else part.processes
            )
    return list(figures.values())


def _child(run: Run, sizes: Sequence[Size], plan: Plan, seed: int) -> list[Figure]:
    """The part of one process."""
    if not run.name:  # nothing to load it by: this process is the only one
        return measure(run.subject, sizes, plan, seed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "part.json"
        told = {
            "name": run.name, "precision": run.options.get("precision"), "seed": seed, "plan": asdict(plan),
            "sizes": [size.name for size in sizes], "path": str(path),
        }  # fmt: skip
        ran = subprocess.run(
            [sys.executable, "-m", __name__], input=json.dumps(told), text=True, capture_output=True, check=False
        )
        if not path.exists():
            said = ran.stderr.strip().splitlines()
            raise Finding(f"the process that measured ended with status {ran.returncode}: {'; '.join(said[-1:])}")
        answer = json.loads(path.read_text(encoding="utf-8"))
    if "finding" in answer:
        raise Finding(answer["finding"])
    named = {size.name: size for size in sizes}
    return [Figure(measure, named[size], processes) for measure, size, processes in answer["figures"]]


def _answer(told: Mapping[str, Any]) -> dict[str, Any]:
    run = make_run(told["name"], precision=told["precision"])
    sizes = [size for size in sizes_of(run.subject) if size.name in told["sizes"]]
    try:
        found = measure(run.subject, sizes, Plan(**told["plan"]), told["seed"])
    except Finding as finding:
        return {"finding": str(finding)}
    return {"figures": [[figure.measure, figure.size.name, figure.processes] for figure in found]}


def main() -> None:
    """The child."""
    told = json.loads(sys.stdin.readline())
    Path(told["path"]).write_text(json.dumps(_answer(told)), encoding="utf-8")


if __name__ == "__main__":
    main()
