"""The report in words, for somebody who has not read the specification."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from decoderspec import __version__
from decoderspec.faults.words import closeness, said
from decoderspec.properties.causes import Group
from decoderspec.properties.printable import one_line, printable
from decoderspec.properties.report import Report, plain
from decoderspec.properties.xfails import misfit
from decoderspec.spec.requirements import requirements

WIDTH = 100
GRADES = {
    "replay": "DET-1",
    "later tokens changed": "CAU-2",
    "other rows changed": "BAT-1",
    "rows permuted": "BAT-3",
    "row alone": "BAT-2",
    "shorter prefix": "CAU-3",
    "gradients replayed": "GRA-3",
}


def grades(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """How far calls that should agree do: `bitwise`, or within how much noise."""
    found: dict[str, str] = {}
    for name, requirement in GRADES.items():
        row = rows.get(requirement, {"status": "skip"})
        if row["status"] == "pass":
            noise = row["worst_noise"]
            found[name] = "bitwise" if not noise else f"within {noise:.2g} x noise"
        elif row["status"] == "fail":
            found[name] = "differs"
    return found


def render(report: Report, groups: Sequence[Group], next_commands: Sequence[str]) -> str:
    """The whole summary, safe for a terminal whatever the implementation calls itself."""
    parts = [_head(report), _contracts(report)]
    decided = [group for group in groups if _decides(report, group)]
    commands = dict(zip(map(id, groups), next_commands, strict=True))
    parts += [_finding(report, number, group, commands[id(group)]) for number, group in enumerate(decided, 1)]
    parts += [_observed(report, [group for group in groups if group not in decided])]
    parts += [_errors(report), _conduct(report), _knowledge(report), _verdict(report)]
    return printable("\n\n".join(part for part in parts if part) + "\n")


def finding_json(report: Report, group: Group, next_command: str) -> dict[str, Any]:
    """A finding for the document, with the words that the summary has for it."""
    return group.to_json() | {
        "headline": _title(group),
        "causes": list(_causes(report, group)),
        "counts": _decides(report, group),
        "next": next_command,
    }


def _head(report: Report) -> str:
    subject, run = report.run.subject, report.run
    declared = plain(subject.recipe.declared)
    words = declared if isinstance(declared, str) else "a recipe"
    about = f"declared {words}   profile {run.profile.name}, seed {run.seed}"
    return f"decoderspec {__version__}   {one_line(subject.name)}   {about}"


def _contracts(report: Report) -> str:
    rows = report.rows()
    return "\n".join(_contract_line(report, name, verdict, rows) for name, verdict in report.contracts().items())


def _contract_line(report: Report, name: str, verdict: str, rows: Mapping[str, Mapping[str, Any]]) -> str:
    mine = {key: row for key, row in rows.items() if row["contract"] == name}
    count = {
        status: sum(row["status"] == status for row in mine.values()) for status in ("pass", "fail", "xfail", "skip")
    }
    words = [f"{count['pass']} hold"]
    words += [f"{count['fail']} do not"] if count["fail"] else []
    words += [f"{count['xfail']} known"] if count["xfail"] else []
    lost = len(set(mine) & set(report.not_run))
    words += [f"{count['skip'] - lost} not reached"] if count["skip"] > lost else []
    words += [f"{lost} not run"] if lost else []
    line = f"  {name:9s} {'FAILS' if verdict == 'fails' else verdict:9s} {', '.join(words)}"
    noisy = {key: row for key, row in mine.items() if row["worst_noise"] and row["allowed"]}
    if noisy:
        key = max(noisy, key=lambda k: noisy[k]["worst_noise"] / noisy[k]["allowed"])
        row = noisy[key]
        word = "worst" if row["worst_noise"] > row["allowed"] else "nearest the limit"
        line += f"; {word} {key}: {row['worst_noise']:.3g} x noise ({row['allowed']:.1f} allowed)"
        line += f" in {row['where']}" if row.get("where") else ""
    for hole in report.holes(name):
        line += f"\n            claimed, but {hole}"
    return line


def _decides(report: Report, group: Group) -> bool:
    """Whether a failure of the group belongs to a contract that counts."""
    names = [name for record in group.records for name in record["requirements"]]
    return any(report.decides(requirements()[name].contract) for name in names)


def _observed(report: Report, groups: Sequence[Group]) -> str:
    """What fails where nothing is claimed: a line each."""
    if not groups:
        return ""
    lines = ["seen, but in contracts that are not claimed:"]
    for record in [record for group in groups for record in group.records]:
        lines += _wrapped(f"{record['requirements'][0]}  {record['reason']}")
    return "\n".join(lines)


def _finding(report: Report, number: int, group: Group, next_command: str) -> str:
    names = list(dict.fromkeys(name for record in group.records for name in record["requirements"]))
    shown = group.shown
    lines = [f"finding {number}: {_title(group)}"]
    if shown["stage"] == "inputs":
        return "\n".join([*lines, *_refusals(group)])
    requirement = shown["requirements"][0]
    lines += _wrapped(f"{requirement}  {requirements()[requirement].sentence}")
    lines += _wrapped(f"seen: {shown['reason']}")
    if shown["case"]:
        lines += _wrapped(f"case: {shown['case']}")
    for cause in _causes(report, group):
        lines += _wrapped(f"likely cause: {cause}")
    if group.diagnosis is not None:
        lines += _wrapped(" ".join(closeness(group.diagnosis)))
    if len(names) > 1:
        lines += _wrapped(f"fails with it: {', '.join(names[1:])}")
    if next_command:
        lines.append(f"    next: {next_command}")
    return "\n".join(lines)


def _refusals(group: Group) -> Iterator[str]:
    """What was not refused, a few of each requirement, with what became of it."""
    for record in group.records:
        requirement = record["requirements"][0]
        yield from _wrapped(f"{requirement}  {requirements()[requirement].sentence}")
        outcomes = list(record["details"].items())
        for probe, outcome in outcomes[:5]:
            yield from _wrapped(f"  - {probe.removeprefix(requirement + '/')}: {outcome}")
        if len(outcomes) > 5:
            yield from _wrapped(f"  - and {len(outcomes) - 5} more; --json has them all")


def _title(group: Group) -> str:
    if group.shown["stage"] == "inputs":
        return "bad input is not refused as it must be"
    if group.diagnosis is None:
        return str(group.title)
    causes = group.diagnosis.causes
    first = group.diagnosis.first_wrong_stage
    if first and len(group.diagnosis.stages) < 2:
        return f"{first} are wrong (stages() would place it)" if not causes else f"{first}: like {causes[0].fault}"
    if first:
        return f"{first} is the first stage that is wrong"
    return (
        f"{causes[0].stage}: it behaves like {causes[0].fault}" if causes else f"{group.stage or group.title} is wrong"
    )


def _causes(report: Report, group: Group) -> Iterator[str]:
    """What a finding's cause may be, likeliest first; empty where nothing was diagnosed."""
    if group.diagnosis is None:
        return
    observed = report.observed
    if observed and observed != plain(report.run.subject.recipe.declared) and group.title == "values":
        yield (
            "parts are computed in a coarser format than declared, and the formulas are right:"
            f" it conforms when it declares precision = {observed!r}"
        )
        return
    for cause in group.diagnosis.causes[:3]:
        yield "; ".join(said(cause))
    if not group.diagnosis.causes and group.title == "values" and group.shown["worst_noise"] is not None:
        yield "no known fault reproduces this"


def _wrapped(text: str) -> list[str]:
    return [
        line
        for piece in text.splitlines()
        for line in textwrap.wrap(
            piece, WIDTH, initial_indent="    ", subsequent_indent="      ", break_on_hyphens=False
        )
    ]


def _errors(report: Report) -> str:
    lines = [f"    {record['property']}: {record['reason']}" for record in report.errors()]
    lines += [f"    {problem}" for problem in report.extras.get("problems", [])]
    return "\n".join(["the suite itself failed; please report this:", *lines]) if lines else ""


def _conduct(report: Report) -> str:
    found = report.conduct()
    return (
        "\n".join(["beside answering, which fails nothing and would surprise others", *(f"  {each}" for each in found)])
        if found
        else ""
    )


def _knowledge(report: Report) -> str:
    extras, lines = report.extras, []
    if report.observed:
        lines.append(f"observed    precision = {report.observed!r}")
    if extras.get("bits"):
        lines += _block("bits right", _bits(report))
    graded = extras.get("grades", {})
    if graded:
        bitwise = [name for name, grade in graded.items() if grade == "bitwise"]
        rest = [f"{name} {grade}" for name, grade in graded.items() if grade != "bitwise"]
        lines += _block("repeats", "; ".join([*rest, *([f"bitwise: {', '.join(bitwise)}"] if bitwise else [])]))
    if extras.get("caught"):
        shown = {name: value for name, value in extras["caught"].items() if math.isfinite(value)}
        text = ", ".join(f"{name} {value:.0e}" for name, value in shown.items())
        lines += _block("would catch", f"relative errors, in the logits alone, of {text}")
    lost = report.run.not_covered + report.untested()
    if lost:
        lines += _block("not covered", "; ".join(lost))
    for entry in report.xfails:
        wrong = misfit(entry, report.rows().get(entry.requirement))
        also = f" does not fail as listed: {wrong}" if wrong else ""
        lines += _block("xfail file", f"{entry.requirement}{also or ' fails as listed'} ({entry})")
    return "\n".join(lines)


def _bits(report: Report) -> str:
    """The stages with the fewest right bits, against what the declared format of each can give."""
    recipe, bits = report.run.subject.recipe, report.extras["bits"]
    able = {stage: (recipe.loss if stage == "loss" else recipe.stored(stage)).bits for stage in bits}
    fewest = sorted(bits, key=lambda stage: bits[stage] - able[stage])[:4]
    shown = ", ".join(f"{stage} {bits[stage]:.0f} of {able[stage]}" for stage in fewest)
    return f"fewest, of {len(bits)} stages, each on its own inputs: {shown}"


def _block(label: str, text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=f"{label:12s}", subsequent_indent=" " * 12, break_on_hyphens=False)


def _verdict(report: Report) -> str:
    if not report.tested:
        return "nothing was tested"
    found = report.contracts()
    decided = ", ".join(name for name, verdict in found.items() if report.decides(name) and verdict != "absent")
    if not decided:
        return "nothing is claimed or required, so there is no verdict"
    fails = ", ".join(name for name, verdict in found.items() if verdict == "fails") or "nothing"
    verb = "fail" if "," in fails else "fails"
    words = {"conforms": "conforms", "fails": f"does not conform: {fails} {verb}, of", "partial": _part(report)}
    name, seconds = one_line(report.run.subject.name), report.extras["seconds"]
    took = f"{seconds['total']:.0f} s, {seconds.get('implementation', 0.0):.0f} s of it its own"
    return f"{name} {words[report.verdict]} ({decided}) in {took}"


def _part(report: Report) -> str:
    """What a run of a part is worth."""
    if report.run.cases:
        return "is right on this case, which alone is no verdict on"
    lost = len(report.not_run)
    return f"fails nothing that was run, but {lost} requirements were not run, so there is no verdict on all of"
