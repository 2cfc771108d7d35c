"""docs/implementations.md, from stored reports of real implementations: what each is, and what it takes in silence.

`python -m decoderspec.bench.implementations docs/implementations > docs/implementations.md`, where the folder holds
reports of `decoderspec check NAME --profile quick --json FILE`, each named `MODULE.ATTRIBUTE.json`. Nothing on the page
is copied by hand but `NOTES`. With `--again` every report whose library is installed is made anew, and what the verdict
of a contract or the observed recipe has become is told: exit status 1 where one has changed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

SILENT = ("taken and harmless", "finite garbage", "NaN", "died", "hung")
HEAD = """# Real implementations

What the suite said of decoders that others wrote, each section from one report in `docs/implementations/`. The page is
written from them by `python -m decoderspec.bench.implementations docs/implementations`; the command in a section writes
its report anew. The adapters import nothing of the suite but the specification, and the library that they adapt.

The requirement nearest its limit is given with its error in units of what rounding explains, and the limit in brackets.
**Repeats** are grades: replay, later tokens and other rows must be bitwise, the rest may be within the noise. Bad input
was asked in a child process although none claims the contract `inputs`; what is not listed was refused or not asked.
"""
NOTES = {  # by the start of an implementation's name, said once
    "decoder, JAX": """`examples/plain_jax.py` through `adapters/jax_function.py`, compiled once for each
configuration and shape. A first call that is slower than the second by 0.2 s is taken for a compilation, and shapes
are spared: 2 in the quick profile, 5 by default, 10 in the thorough one, each with all properties. JAX wraps
negative ids, clamps those beyond the table and, without 64 bits, cuts an id of 2^40.""",
    "LitGPT": """Norms and rotation tables are computed in float32 in every dtype,
attention is not: with those two declared, everything else is held to float64, in both of its layouts of pairs. Query,
key and value are one matrix; `lm_head` is a module of its own, which the adapter ties to the table.""",
    "x-transformers": """A real negative control: its RMSNorm has no epsilon.
Where epsilon is not limited it fails, and the fault bank names the cause; within `limits = {"rms_epsilon": [0.0]}` it
is this decoder. What the adapter had to go around: tied logits are scaled by `dim ** -0.5` unless told otherwise; the
gated layer keeps a bias that no setting removes; the base of the rotation has no setting of its own; with one head
there is no output matrix, and a head width of 2 divides by zero; attention and feed-forward alternate in one list;
gains are stored minus one; the linear half of the gated layer comes before the gate. Cast to bfloat16, it keeps the
frequencies and angles of its rotation in bfloat16 too: the case of 70 positions finds it, and declared as
`{"results": "bfloat16", "tables": "bfloat16"}` that stage holds. In float64 its tables and its softmax are float32.""",
    "transformers": """Norms, rotation tables and the eager softmax are computed
in float32 whatever the dtype.""",
}


def page(reports: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """The lines of the page, from reports by the names that were checked."""
    yield HEAD
    said: set[str] = set()
    for name, report in reports.items():
        yield f"## {report['implementation']}\n"
        for start in [start for start in NOTES if report["implementation"].startswith(start) and start not in said]:
            said.add(start)
            yield NOTES[start] + "\n"
        yield from _section(name, report)


def _section(name: str, report: Mapping[str, Any]) -> Iterator[str]:
    """What one report says, as a list."""
    precision, rows = report["precision"], report["requirements"]
    yield f"- command: `decoderspec check {name} --profile {report['profile']}`"
    yield f"- contracts: {', '.join(f'{contract} {verdict}' for contract, verdict in report['contracts'].items())}"
    libraries = report["environment"].get("libraries", {})
    yield f"- with: {', '.join(f'{library} {version}' for library, version in libraries.items()) or 'NumPy alone'}"
    yield f"- declared: `{precision['declared']}`; observed: `{precision['observed'] or 'no recipe explains it'}`"
    yield f"- nearest the limit: {_nearest(rows)}"
    for finding in report["findings"]:
        if finding["counts"]:
            yield f"- finding: {finding['headline']}{_causes(finding)}"
    yield f"- repeats: {', '.join(f'{call} {grade}' for call, grade in report['grades'].items())}"
    yield f"- bad input taken: {_taken(rows)}"
    yield f"- limits: {report['limits'] or 'none'}\n"


def _causes(finding: Mapping[str, Any]) -> str:
    found = [str(cause).partition("; reproduces")[0] for cause in finding["causes"][:1]]
    return f" ({found[0]})" if found else ""


def _nearest(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """The requirement whose worst comparison came nearest to its limit, or went furthest beyond."""
    judged = {name: row for name, row in rows.items() if isinstance(row["worst_noise"], float) and row["allowed"]}
    if not judged:
        return "nothing was compared"
    name = max(judged, key=lambda key: judged[key]["worst_noise"] / judged[key]["allowed"])
    row = judged[name]
    return f"{name}, {row['worst_noise']:.3g} x noise ({row['allowed']:.1f})"


def _taken(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """By requirement, how many bad inputs were taken, and as what."""
    parts = []
    for name, row in rows.items():
        kinds = Counter(next((word for word in SILENT if text.startswith(word)), "") for text in _details(name, row))
        counts = ", ".join(f"{count} {word}" for word, count in kinds.items() if word)
        parts += [f"{name} ({counts})"] if counts else []
    return "; ".join(parts) or "none that was asked"


def _details(name: str, row: Mapping[str, Any]) -> Sequence[str]:
    return list(row.get("details", {}).values()) if name.startswith(("CFG", "INP")) else []


def stored(folder: Path) -> dict[str, dict[str, Any]]:
    """The reports of a folder, by the names that were checked."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        module, attribute = path.stem.split(".")
        place = f"examples/{module}.py" if module.startswith("plain_") else f"decoderspec.adapters.{module}"
        found[f"{place}:{attribute}"] = json.loads(path.read_text(encoding="utf-8"))
    return found


def again(folder: Path) -> Iterator[str]:
    """Make every report of a folder anew, and yield what has changed of its verdicts and its observed recipe."""
    for (name, before), path in zip(stored(folder).items(), sorted(folder.glob("*.json")), strict=True):
        new = path.with_suffix(".new")
        command = [sys.executable, "-m", "decoderspec.commands.main", "check", name, "--profile", before["profile"]]
        ran = subprocess.run([*command, "--json", str(new)], capture_output=True, text=True, check=False)
        if not new.exists():
            print(f"{name}: not run: {(ran.stderr.strip().splitlines() or ['no report'])[-1]}", file=sys.stderr)
            continue
        now = json.loads(new.read_text(encoding="utf-8"))
        new.replace(path)
        print(f"{name}: {now['seconds']['total']:.0f} s", file=sys.stderr)
        for what, was, became in (
            ("contracts", before["contracts"], now["contracts"]),
            ("observed", before["precision"]["observed"], now["precision"]["observed"]),
        ):
            if was != became:
                yield f"{name}: {what} were {was} and are {became}"


def main(arguments: Sequence[str]) -> int:
    """Print the page of the reports in a folder, or with `--again` what has changed."""
    folder = Path(arguments[0])
    if "--again" not in arguments:
        print("\n".join(page(stored(folder))), end="")
        return 0
    changed = list(again(folder))
    print("\n".join(changed) or "nothing has changed")
    return int(bool(changed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
