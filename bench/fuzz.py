"""Fuzzing whatever the suite reads: valid documents changed in one place, each taken or refused in our own words.

    python -m decoderspec.bench.fuzz --inputs 100000 --seed 0 --json fuzz.json
    python -m decoderspec.bench.fuzz --surface replay --at 4711     one input again, with its traceback

The same seed makes the same inputs, whichever surfaces are run. `docs/fuzzing.md` says what is held against an input.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from decoderspec.bench.fuzz_commands import COMMANDS
from decoderspec.bench.fuzz_files import FILES
from decoderspec.bench.fuzz_guard import Judgement, judge
from decoderspec.bench.fuzz_surfaces import SURFACES, Attempt, Surface

ALL = (*SURFACES, *FILES, *COMMANDS)
KEPT = 20  # bugs of a surface that are listed


@dataclass
class Result:
    """What became of the inputs of one surface."""

    surface: str
    inputs: int = 0
    one_place: int = 0
    valid: int = 0
    refused: int = 0
    seconds: float = 0.0
    refusals: Counter[str] = field(default_factory=Counter)
    bugs: dict[str, list[int]] = field(default_factory=dict)  # in words without their numbers -> the inputs

    def count(self, number: int, changes: int, judgement: Judgement) -> None:
        """Take in one input."""
        self.inputs += 1
        self.one_place += changes == 1
        self.valid += judgement.status == "valid"
        self.refused += judgement.status == "refused"
        if judgement.status == "refused":
            self.refusals[judgement.words] += 1
        if judgement.status == "bug":
            self.bugs.setdefault(re.sub(r"-?\d{2,}", "N", judgement.words), []).append(number)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        listed = dict(list(self.bugs.items())[:KEPT])
        return vars(self) | {"refusals": dict(self.refusals.most_common()), "bugs": listed, "kinds": len(self.bugs)}


def changes(rng: Random) -> int:
    """In how many places a document is changed: mostly one; none shows that the valid document is taken."""
    return rng.choices((0, 1, 2, 4), (5, 75, 12, 8))[0]


def made(surface: Surface, make: Any, seed: int, number: int) -> tuple[int, Attempt]:
    """The input of that number, and in how many places it is changed."""
    rng = Random(f"{seed} {surface.name} {number}")
    count = changes(rng)
    return count, make(rng, count)


def fuzz(surface: Surface, inputs: int, seed: int, first: int = 0) -> Result:
    """So many inputs of one surface, in a folder of their own."""
    found, start, here = Result(surface.name), time.perf_counter(), os.getcwd()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place).resolve()
        os.chdir(folder)
        try:
            make = surface.prepare(folder)
            for number in range(first, first + inputs):
                count, attempt = made(surface, make, seed, number)
                judgement = _judged(surface, attempt)
                if not count and judgement.status == "refused":
                    judgement = Judgement("bug", f"the valid document is refused: {judgement.words}")
                found.count(number, count, judgement)
        finally:
            os.chdir(here)
    found.seconds = round(time.perf_counter() - start, 1)
    return found


def _fuzz(name: str, inputs: int, seed: int) -> Result:
    """`fuzz` by the name of the surface, for a process of its own."""
    found = fuzz(next(each for each in ALL if each.name == name), inputs, seed)
    print(f"{name}: {found.seconds} s, {len(found.bugs)} bugs", file=sys.stderr, flush=True)
    return found


def _judged(surface: Surface, attempt: Attempt) -> Judgement:
    return judge(
        attempt.call, surface.refusals, room=surface.room,
        outputs=attempt.outputs, sources=attempt.sources, programs=attempt.programs,
    )  # fmt: skip


def again(surface: Surface, seed: int, number: int) -> None:
    """Show one input, make its call without a guard, and let whatever it raises through."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place).resolve()
        os.chdir(folder)
        count, attempt = made(surface, surface.prepare(folder), seed, number)
        print(f"{surface.name} {number}, changed in {count} places: {attempt.shown[:2000]}")
        print("it is taken:", repr(attempt.call())[:500])


def share(surfaces: Sequence[Surface], inputs: int) -> dict[str, int]:
    """How many inputs each surface has of the whole; at least `inputs` together."""
    whole = sum(surface.share for surface in surfaces)
    return {surface.name: -int(-inputs * surface.share // whole) for surface in surfaces}


def table(results: Sequence[Result]) -> str:
    """One line for each surface, and every bug below."""
    names = ("inputs", "one_place", "valid", "refused")
    rows = [(found.surface, *(getattr(found, name) for name in names), found.seconds) for found in results]
    rows.append(("all", *(sum(row[column] for row in rows) for column in range(1, 6))))
    lines = [f"{'surface':<14}{'inputs':>9}{'one place':>11}{'taken':>9}{'refused':>9}{'seconds':>9}{'bugs':>6}"]
    for row, bugs in zip(rows, [*(len(f.bugs) for f in results), sum(len(f.bugs) for f in results)], strict=True):
        lines.append(f"{row[0]:<14}{row[1]:>9,}{row[2]:>11,}{row[3]:>9,}{row[4]:>9,}{row[5]:>9.1f}{bugs:>6}")
    for found in results:
        for words, numbers in list(found.bugs.items())[:KEPT]:
            lines.append(f"\n{found.surface} {numbers[0]} ({len(numbers)} inputs): {words}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzz, print, write; the exit status is 1 where an input found a bug."""
    parser = argparse.ArgumentParser(prog="python -m decoderspec.bench.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000, help="over all surfaces")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--surface", action="append", choices=[each.name for each in ALL], help="these alone")
    parser.add_argument("--at", type=int, metavar="NUMBER", help="one input of a surface again")
    parser.add_argument("--workers", type=int, default=1, help="processes, one surface at a time in each")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    options = parser.parse_args(arguments)
    chosen = [each for each in ALL if not options.surface or each.name in options.surface]
    if options.at is not None:
        again(chosen[0], options.seed, options.at)
        return 0
    counts, results = share(chosen, options.inputs), list[Result]()
    with ProcessPoolExecutor(options.workers) as pool:
        for found in pool.map(_fuzz, counts, counts.values(), [options.seed] * len(counts)):
            results.append(found)
            if options.json:  # as they come: a run may be ended before it is done
                kept = {"seed": options.seed, "surfaces": [result.to_json() for result in results]}
                options.json.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    print(table(results))
    return int(any(result.bugs for result in results))


if __name__ == "__main__":
    sys.exit(main())
