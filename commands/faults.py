"""`decoderspec faults`: the kill table, which says what the suite catches, by which requirement and how soon."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from decoderspec import __version__
from decoderspec.commands.catalogue import page
from decoderspec.commands.kills import Kill, Table, properties
from decoderspec.commands.outputs import require_writable
from decoderspec.faults.bank import BANK, by_name
from decoderspec.faults.fault import Fault
from decoderspec.properties.run import PROFILES

EXAMPLES = """examples:
  decoderspec faults                          every fault of the bank, some minutes
  decoderspec faults post-norm loss-summed    these
  decoderspec faults --family rotary          one family
  decoderspec faults --markdown faults.md     a page to browse: how each looks, and what catches it

exit status: 0 each is killed by every requirement that it is said to break, 1 one is not, 2 there is no such fault"""


def parser() -> argparse.ArgumentParser:
    """The arguments, with examples."""
    made = argparse.ArgumentParser(
        prog="decoderspec faults", epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("names", nargs="*", metavar="NAME", help="faults by name; all of them where none is named")
    made.add_argument("--family", choices=sorted({fault.family for fault in BANK}), help="the faults of one family")
    made.add_argument("--profile", default="default", choices=PROFILES, help="of the runs")
    made.add_argument("--seed", type=int, default=0, help="of the search")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the table there")
    made.add_argument("--markdown", type=Path, metavar="FILE", help="write a page to browse there")
    return made


def run(arguments: Sequence[str]) -> int:
    """Kill, print, write."""
    options = parser().parse_args(list(arguments))
    try:
        faults = chosen(options.names, options.family)
        for path in filter(None, (options.json, options.markdown)):
            require_writable(path)
    except (KeyError, OSError) as reason:
        print(f"decoderspec: {reason.args[0] if isinstance(reason, KeyError) else reason}", file=sys.stderr)
        return 2
    start = time.perf_counter()
    kills = _all(Table(options.profile, options.seed), faults, spread=options.markdown is not None)
    counts = per_property(kills)
    unused = [name for name, count in counts.items() if not count] if len(faults) == len(BANK) else []
    seconds = time.perf_counter() - start
    print(summary(kills, counts, unused, seconds))
    if options.json:
        found = to_json(kills, counts, options.profile, options.seed, seconds)
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    if options.markdown:
        options.markdown.write_text(page(faults, kills), encoding="utf-8")
    return 0 if all(kill.as_declared for kill in kills) and not unused else 1


def chosen(names: Sequence[str], family: str | None) -> list[Fault]:
    """The faults that are named, or all. Raises `KeyError` for a name that there is not, or is of another family."""
    found = [by_name(name) for name in names] or list(BANK)
    of_family = [fault for fault in found if family in (None, fault.family)]
    if not of_family:
        raise KeyError(f"none of these faults is of the family {family}")
    return of_family


def _all(table: Table, faults: Sequence[Fault], spread: bool) -> list[Kill]:
    """Each fault's kill, printed as it comes."""
    print(f"{'fault':<44} {'killed by':<9} {'examples':>8} {'seconds':>8} {'chance':>8}  on")
    found = []
    for place, fault in enumerate(faults):
        if not place or fault.family != faults[place - 1].family:
            print(f"\n{fault.family}")
        with _Showing(f"{place + 1}/{len(faults)} {fault.name}"):
            kill = table.kill(fault.name, spread)
        print(line(kill), flush=True)
        found.append(kill)
    return found


class _Showing:
    """What is being tried, on a terminal, for as long as it is."""

    def __init__(self, text: str) -> None:
        self._text = text if sys.stderr.isatty() else ""

    def __enter__(self) -> None:
        if self._text:
            sys.stderr.write(f"\r\x1b[K{self._text}")
            sys.stderr.flush()

    def __exit__(self, *_: object) -> None:
        if self._text:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def line(kill: Kill) -> str:
    """One row of the table."""
    if not kill.requirement:
        return f"  {kill.fault:<42} SURVIVES  {kill.message}".rstrip()
    chance = "1" if kill.fixed else f"{kill.chance:.5f}"
    text = f"  {kill.fault:<42} {kill.requirement:<9} {kill.examples:>8} {kill.seconds:>8.2f} {chance:>8}  {kill.case}"
    return "; ".join([text.rstrip(), *kill.faults()])


def per_property(kills: Iterable[Kill]) -> dict[str, int]:
    """How many of the faults that are declared for it each property kills."""
    counts = {found.name: 0 for found in properties()}
    for name in (name for kill in kills for name in kill.tests):
        counts[name] += 1
    return counts


def summary(kills: Sequence[Kill], counts: dict[str, int], unused: Sequence[str], seconds: float) -> str:
    """The figures."""
    searched = [kill for kill in kills if kill.as_declared and not kill.fixed]
    wrong = [kill for kill in kills if not kill.as_declared]
    killed = len(kills) - len(wrong)
    lines = ["", f"{killed} of {len(kills)} faults are killed as declared, {len(searched)} by the search alone;"
             f" {seconds:.0f} s"]  # fmt: skip
    lines += [line(kill) for kill in wrong]
    lines += ["", "kills by property, of the faults that it must kill"]
    lines += [f"  {count:>4}  {name}" for name, count in counts.items() if count]
    lines += [f"  kills nothing: {name}" for name in unused]
    return "\n".join(lines)


def to_json(
    kills: Sequence[Kill], counts: dict[str, int], profile: str, seed: int, seconds: float
) -> dict[str, object]:
    """The table as plain data."""
    return {
        "decoderspec": __version__, "profile": profile, "seed": seed, "seconds": round(seconds, 1),
        "survivors": [kill.fault for kill in kills if not kill.as_declared],
        "properties": counts,
        "faults": [asdict(kill) | _described(by_name(kill.fault)) for kill in kills],
    }  # fmt: skip


def _described(fault: Fault) -> dict[str, object]:
    precision = fault.precision if isinstance(fault.precision, str) else dict(fault.precision)
    return {
        "stage": fault.stage, "family": fault.family, "sentence": fault.sentence, "source": fault.source,
        "breaks": list(fault.breaks), "precision": precision,
    }  # fmt: skip
