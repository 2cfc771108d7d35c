"""How long a default run takes to its first failure, over the fault bank: seconds of processor time, in its order.

    python -m decoderspec.bench.first_failure --every 8

Each fault is a run of its own, with no truth kept from another; starting Python and collecting is measured once and
added. Bad input is asked in a child process, whose time counts.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from functools import partial
from statistics import median

from decoderspec.faults.bank import BANK
from decoderspec.faults.fault import Fault, FaultyReference
from decoderspec.properties.properties import all_properties
from decoderspec.properties.registry import FURTHER, PARTS, caught, examine
from decoderspec.properties.run import Entry
from decoderspec.properties.session import run_over

HOME = "decoderspec.faults.bank"
WANTED = 15  # seconds at most


def spent() -> float:
    """Processor time of this process and of the children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def first_failure(fault: Fault) -> tuple[float, str]:
    """Seconds until a property fails, and its name; the seconds of the whole run and nothing where none does."""
    run, start = run_over(FaultyReference(fault), f"{HOME}:{fault.name}"), spent()
    try:
        for run.part, test in ((part, test) for part in PARTS for test in all_properties()):
            found = test.property
            if run.part == FURTHER and not found.goes_further:
                continue
            run.entry = Entry()
            look = partial(examine, run, found) if found.over_cases else partial(found.check, run)
            if "BIG-1" not in found.requirements and caught(look):
                return spent() - start, found.name
        return spent() - start, ""
    finally:
        run.subject.close()


def starting() -> float:
    """Seconds from the command to the first property: importing and collecting."""
    start = spent()
    subprocess.run(
        [sys.executable, "-m", "pytest", "--pyargs", "decoderspec.properties", "--collect-only", "-q"],
        capture_output=True, check=False,
    )  # fmt: skip
    return spent() - start


def main() -> None:
    """Print the slowest, and the median and the most."""
    parser = argparse.ArgumentParser(prog="python -m decoderspec.bench.first_failure", description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="of the bank, one fault of so many")
    start, faults = starting(), BANK[:: parser.parse_args().every]
    found = []
    for fault in faults:
        seconds, name = first_failure(fault)
        found.append(start + seconds)
        print(f"{start + seconds:6.1f} s  {fault.name}: {name or 'survives'}", flush=True)
    beyond = sum(seconds > WANTED for seconds in found)
    print(f"start {start:.1f} s; {len(found)} faults: median {median(found):.1f} s, at most {max(found):.1f} s")
    print(f"{beyond} of them above {WANTED} s")


if __name__ == "__main__":
    main()
