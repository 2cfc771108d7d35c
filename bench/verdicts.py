"""Does the verdict hold: comparisons of identical code, and of code that was made slower on purpose.

    python -m decoderspec.bench.verdicts --repeats 20 --json docs/benchmarks.json

Each run is a process of its own, as it is for a user; runs of right and of slowed code take turns, on whatever else the
machine has to do. Each run of identical code is compared with the next one, and each slowed run with the one before it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from decoderspec.bench.clock import own_time
from decoderspec.bench.stored import Comparison, Stored, compare, read
from decoderspec.reference.model import DecoderModel, Reference
from decoderspec.spec.config import Config

SLOWDOWN = 1.15
HOME = "decoderspec.bench.verdicts"


class Slowed(Reference):
    """The reference, every call of which takes 15 percent longer than it did."""

    def build(self, config: Config, parameters: Mapping[str, Any]) -> Any:
        """A slowed model, built slowly."""
        return SlowedModel(_slowly(super().build, config, parameters))


class SlowedModel:
    """A model whose calls are waited for."""

    def __init__(self, model: DecoderModel) -> None:
        self._model = model

    def logits(self, tokens: Any) -> Any:
        """As the reference's."""
        return _slowly(self._model.logits, tokens)

    def loss(self, tokens: Any, targets: Any) -> Any:
        """As the reference's."""
        return _slowly(self._model.loss, tokens, targets)

    def gradients(self, tokens: Any, targets: Any) -> Any:
        """As the reference's."""
        return _slowly(self._model.gradients, tokens, targets)


def _slowly(call: Any, *arguments: Any) -> Any:
    start = own_time()
    result = call(*arguments)
    until = start + SLOWDOWN * (own_time() - start)
    while own_time() < until:
        pass
    return result


def figures(attribute: str, profile: str, folder: Path) -> list[Stored]:
    """The figures of one run in a process of its own."""
    path = folder / "figures.json"
    here = [str(Path(__file__).parent / "test_engine.py"), "-q", "-p", "no:cacheprovider", "-c", os.devnull]
    named = [f"--implementation={HOME}:{attribute}", f"--decoderspec-profile={profile}", f"--benchmark-json={path}"]
    subprocess.run([sys.executable, "-m", "pytest", *here, *named], check=True, stdout=subprocess.DEVNULL)
    return read(path)


def experiment(repeats: int, profile: str, keep: Path | None = None) -> dict[str, Any]:
    """Both series, with what the machine had to do meanwhile; kept after every repeat."""
    identical, slowed, loads = [], [], []
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        before = figures("Reference", profile, Path(name))
        for _ in range(repeats):
            slowed.append(compare(before, figures("Slowed", profile, Path(name))))
            now = figures("Reference", profile, Path(name))
            identical.append(compare(before, now))
            before = now
            loads.append(os.getloadavg()[0])
            print(
                f"{len(loads)}: load {loads[-1]:.1f}, identical {identical[-1].verdicts}, slowed {slowed[-1].verdicts}",
                flush=True,
            )
            found = {
                "repeats": len(loads), "profile": profile, "slowdown": SLOWDOWN, "loads": loads,
                "cores": os.cpu_count(), "identical": summary(identical), "slowed": summary(slowed),
                "figures": [[*f.key, f.tokens_per_second, *vars(f.ratio).values()] for f in now],
            }  # fmt: skip
            if keep:
                keep.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


def summary(compared: Sequence[Comparison]) -> dict[str, Any]:
    """How many comparisons have any figure of a verdict, and how many figures have it; every change by figure."""
    verdicts = ("slower", "faster", "same", "too noisy to tell")
    changes = [(key, change) for each in compared for key, change in each.changes.items()]
    counts = Counter(change.verdict for _, change in changes)
    return {
        "comparisons": {v: sum(v in each.verdicts for each in compared) for v in verdicts},
        "figures": {v: counts[v] for v in verdicts},
        "by_figure": {
            " ".join(key): Counter(c.verdict for k, c in changes if k == key) for key in dict(changes)
        },
        "changes": [[*key, *vars(change.interval).values()] for key, change in changes],
    }  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    """Run both series, print and keep what came of them."""
    parser = argparse.ArgumentParser(prog="python -m decoderspec.bench.verdicts", description=__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--profile", default="quick")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    found = experiment(given.repeats, given.profile, given.json)
    for name in ("identical", "slowed"):
        print(name, found[name]["comparisons"], found[name]["figures"])


if __name__ == "__main__":
    main()
