"""A diagnosis in words, whole or as a hint: for somebody who reads a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from decoderspec.faults.diagnosis import ATOL, Diagnosis
from decoderspec.faults.hypotheses import Cause

SHOWN = 3  # causes in full; those of the same function are named
TOLERANCE = f"{ATOL:g}".replace("e-0", "e-")
HINTS = {1: "the stage", 2: "the kind", 3: "the cause"}


def describe(found: Diagnosis, hint: int = 0) -> str:
    """The diagnosis for a terminal: all of it, or so many hints (1 the stage, 2 the kind too, 3 the cause too)."""
    if not found.wrong:
        return "\n".join(_right_lines(found))
    if hint:
        return "\n".join(_hint_lines(found, hint))
    parts = (_stage_lines, _loss_lines, _gradient_lines, _cause_lines, _next_lines, closeness, _example_lines)
    return "\n".join(line for part in parts for line in part(found))


def _right_lines(found: Diagnosis) -> Iterator[str]:
    yield f"nothing is wrong: {found.compared} compared, each within the noise of the declared precision"
    limits = {report.name: report.comparison.excess for report in found.stages}
    limits |= {f"gradient of {report.name}": report.noise / report.allowed for report in found.gradients}
    limits |= {"loss": found.loss.noise / found.loss.allowed} if found.loss else {}
    if limits:
        name = max(limits, key=lambda each: limits[each])
        yield f"nearest its limit: {name}, at {limits[name]:.2f} of it"
    if [report.name for report in found.stages] == ["logits"]:
        yield "what is inside was not seen: stages() would show it"


def _hint_lines(found: Diagnosis, hint: int) -> Iterator[str]:
    yield f"hint 1, the stage: {found.place}"
    if hint >= 2:
        yield f"hint 2, the kind: {found.kind or 'none of the known kinds of mistakes does the same'}"
    if hint >= 3:
        yield "hint 3, the cause:"
        yield from _cause_lines(found)
    else:
        yield f"`--hint {hint + 1}` also says {HINTS[hint + 1]}"


def _stage_lines(found: Diagnosis) -> Iterator[str]:
    if not found.stages:
        return
    yield f"{'stage':<34} {'error':>10} {'allowed':>8} {'bits':>5}   in noise units, each on its own inputs"
    first = next((report.name for report in found.stages if not report.conforms), None)
    for report in found.stages:
        mark = "" if report.conforms else "  <- first wrong" if report.name == first else "  wrong too"
        if not report.conforms and report.noise <= report.allowed:
            mean = report.comparison
            mark += f", in the mean: {mean.spread:.3g} ({mean.spread_allowed:.2f} allowed)"
        yield f"{report.name:<34} {report.noise:>10.3g} {report.allowed:>8.1f} {report.bits:>5.1f}{mark}"
    if found.after and first:
        yield f"the fault lies after {found.after} and not after {first}"


def _loss_lines(found: Diagnosis) -> Iterator[str]:
    if found.loss is not None:
        verdict = "right" if found.loss.conforms else "WRONG"
        yield (
            f"loss, given its own logits: {verdict}, {found.loss.noise:.3g} x noise ({found.loss.allowed:.1f} allowed)"
        )


def _gradient_lines(found: Diagnosis) -> Iterator[str]:
    wrong = [report for report in found.gradients if not report.conforms]
    for report in wrong:
        yield f"gradient of {report.name}: {report.comparison}"
    if len(found.derivatives) == 1:
        yield f"one wrong derivative explains these gradients: {found.derivatives[0]}"
    elif found.derivatives:
        yield f"these gradients cannot decide whose derivative is wrong; each explains them: {_or(found.derivatives)}"
    elif wrong:
        yield "no single wrong derivative explains these gradients"


def _or(names: Iterable[str]) -> str:
    return "; or ".join(names)


def said(cause: Cause) -> list[str]:
    """A likely cause: what is wrong, how well it reproduces what was given, and where it was seen."""
    seen = [f"seen before: {cause.source}"] if cause.source else []
    reproduces = f"reproduces what was given to {cause.noise:.3g} x noise ({cause.allowed:.1f} allowed)"
    return [f"{cause.fault} ({cause.stage}): {cause.sentence}", reproduces, *seen]


def _cause_lines(found: Diagnosis) -> Iterator[str]:
    for cause in found.causes[:SHOWN]:
        first, *rest = said(cause)
        yield f"likely cause: {first}"
        yield from (f"  {part}" for part in rest)
    if found.causes[SHOWN:]:
        yield f"  the same on this case: {', '.join(cause.fault for cause in found.causes[SHOWN:])}"
    if not found.causes:
        yield f"likely cause: no known fault reproduces this ({found.tried} tried)"


def _next_lines(found: Diagnosis) -> Iterator[str]:
    name = "next hypothesis" if found.causes else "nearest hypothesis"
    other: Cause | None = found.next
    if other is not None and other.near:
        yield f"{name}: {other.fault}, {other.noise:.3g} x noise ({other.allowed:.1f} allowed)"
    elif found.tried:
        yield f"{name}: {'no other' if found.causes else 'none'} comes near"


def closeness(found: Diagnosis) -> Iterator[str]:
    """Whether a usual comparison would have passed it."""
    near = found.closeness
    if near is None:
        return
    error = f"the largest error of {near.what} is {near.error:.2g}"
    if near.error <= ATOL:
        yield f"a test at atol={TOLERANCE} passes it: {error}, which is within {TOLERANCE};"
        yield f"  {TOLERANCE} is {near.width:.2g} times the noise there"
        return
    yield f"a test at atol={TOLERANCE} sees it on this case: {error}"
    if near.fresh is not None and near.fresh <= ATOL:
        yield f"  but passes it with freshly initialized parameters, where such a fault makes {near.fresh:.2g}"


def _example_lines(found: Diagnosis) -> Iterator[str]:
    if found.example is not None:
        yield f"the smallest example that shows it: {found.example.case}"
        want = f"{found.example.want:.9g}" if math.isfinite(found.example.want) else "a finite value"
        yield f"  {found.example.name}{list(found.example.index)}: got {found.example.got:.9g}, want {want}"
