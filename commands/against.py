"""Two implementations of a decoder on one case: which is nearer the truth, stage by stage."""

from __future__ import annotations

from typing import Any

from decoderspec.faults.diagnosis import Diagnosis
from decoderspec.properties.run import Run

A_BIT = 1.0  # less is chance


def against(found: Diagnosis, theirs: Diagnosis, runs: tuple[Run, Run]) -> tuple[str, dict[str, Any]]:
    """The stages that both offer, with the bits of each that are right, in words and as plain data.

    The two are numbered 1 and 2, since they may have one name.
    """
    names = labels(*runs)
    bits = {report.name: report.bits for report in theirs.stages}
    rows = [(report.name, report.bits, bits[report.name]) for report in found.stages if report.name in bits]
    first = [name for name, mine, its in rows if mine >= its + A_BIT]
    second = [name for name, mine, its in rows if its >= mine + A_BIT]
    lines = [
        f"1: {names[0]}",
        f"2: {names[1]}",
        f"{'stage':<34} {'1':>6} {'2':>6}   bits right, each on its own inputs",
    ]
    for name, mine, its in rows:
        mark = "   1 is nearer" if name in first else "   2 is nearer" if name in second else ""
        lines.append(f"{name:<34} {mine:>6.1f} {its:>6.1f}{mark}")
    lines.append(f"nearer by a bit or more: 1 in {len(first)} of {len(rows)} stages, 2 in {len(second)}")
    stages = [{"name": name, "bits": [mine, its]} for name, mine, its in rows]
    return "\n".join(lines), {"names": list(names), "stages": stages, "nearer": {"1": first, "2": second}}


def labels(first: Run, second: Run) -> tuple[str, str]:
    """Their names; with what they were loaded by where these are the same."""
    if first.subject.name != second.subject.name:
        return first.subject.name, second.subject.name
    return f"{first.subject.name} ({first.name})", f"{second.subject.name} ({second.name})"
