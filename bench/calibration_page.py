"""What a calibration found: distributions of both statistics, the tails against theory, and the page made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from decoderspec.properties.cases import SMALLEST, Array
from decoderspec.reference.limits import (
    FALSE_ALARMS,
    GRADIENT_FALSE_ALARMS,
    f_tail,
    spread_allowed,
    student_tail,
    worst_allowed,
)
from decoderspec.reference.noise import RUNS

QUANTILES = (0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999)
SHOWN = (0.5, 0.99, 0.99999)
FIELDS = 5  # worst, spread, count, freedom, case
TAIL = 1e-2  # of the examples, the outermost of which the tail is fitted on
LEAST = 50  # examples in a tail that is worth a fit
CHANCES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
GRID = np.linspace(0.0, 40.0, 4001)


def summary(numbers: Mapping[tuple[str, str], Iterable[float]], failed: Sequence[str]) -> dict[str, Any]:
    """Distributions by result and by formulation, and the tails, as plain JSON values."""
    table = {key: np.asarray(value, np.float64).reshape(-1, FIELDS) for key, value in numbers.items()}
    over = {key: fractions(value, key[1]) for key, value in table.items()}
    names = dict.fromkeys(name for _, name in table)
    values = _joined(table, lambda name: "gradient" not in name and name != "loud")
    elements = _joined(table, lambda name: name.startswith("gradient."))
    formulations = dict.fromkeys(how for how, _ in table)
    return {
        "comparisons": int(sum(len(value) for value in table.values())),
        "beyond": len(failed),
        "failed": list(failed),
        "results": {name: both([v for k, v in over.items() if k[1] == name]) for name in names},
        "formulations": {how: both([v for k, v in over.items() if k[0] == how]) for how in formulations},
        "tails": {"values": tails(values, FALSE_ALARMS), "gradient elements": tails(elements, GRADIENT_FALSE_ALARMS)},
    }


def _joined(table: Mapping[tuple[str, str], Array], wanted: Callable[[str], bool]) -> Array:
    """All comparisons of the results that are wanted."""
    return np.concatenate([np.zeros((0, FIELDS)), *[value for (_, name), value in table.items() if wanted(name)]])


def fractions(values: Array, name: str) -> Array:
    """Both statistics over their limits, `[comparisons, 2]`; those of a gradient by element are larger."""
    chance = GRADIENT_FALSE_ALARMS if "gradient." in name else FALSE_ALARMS
    limits = [_each(limit, values[:, of], chance) for limit, of in ((worst_allowed, 2), (spread_allowed, 3))]
    return np.asarray(values[:, :2] / np.stack(limits, axis=1))


def _each(function: Any, values: Array, chance: float) -> Array:
    """A limit, computed once for each distinct count."""
    known, where = np.unique(np.round(values, 2), return_inverse=True)
    return np.asarray([function(float(value), chance) for value in known])[where.ravel()]


def both(parts: Sequence[Array]) -> dict[str, Any]:
    """Quantiles and maximum of both statistics over their limits."""
    worst, spread = np.concatenate(parts).T
    return {"comparisons": len(worst), "worst": distribution(worst), "spread": distribution(spread)}


def distribution(values: Array) -> dict[str, float]:
    """Quantiles by name, and the maximum."""
    found = {str(q): round(float(np.quantile(values, q)), 4) for q in QUANTILES}
    return found | {"max": round(float(np.max(values)), 4)}


# --- Tails ---


def tails(values: Array, limit: float) -> dict[str, Any]:
    """Of the least likely comparison of each example, how often theory gives so little chance, for both statistics.

    `limit` is the chance where limits stand.
    """
    chance = np.array([student_tail(float(t), RUNS) for t in GRID])
    worst = values[:, 2] * np.exp(np.interp(values[:, 0], GRID, np.log(np.maximum(chance, 1e-300))))
    judged = values[values[:, 3] > 1]  # one independent element is what the other statistic sees
    spread = _spread_chances(judged[:, 1], judged[:, 3])
    return {"worst": tail(_least(worst, values[:, 4]), limit), "spread": tail(_least(spread, judged[:, 4]), limit)}


def _least(chances: Array, cases: Array) -> Array:
    """The smallest chance of each case."""
    order = np.argsort(cases, kind="stable")
    starts = np.flatnonzero(np.diff(cases[order], prepend=-1.0))
    return np.asarray(np.minimum.reduceat(chances[order], starts)) if len(starts) else np.zeros(0)


def _spread_chances(spread: Array, freedom: Array) -> Array:
    """The chance that theory gives to a mean as large."""
    grid = np.exp(np.linspace(0, np.log(max(2.0, float(np.max(freedom, initial=1.0)))), 40))
    sizes = np.linspace(0.05, 8.0, 160)
    table = np.array([[np.log(max(f_tail(s * s, g, RUNS * g), 1e-300)) for s in sizes] for g in grid])
    lower = np.clip(np.searchsorted(grid, freedom, "right") - 1, 0, len(grid) - 1)  # less freedom, more chance
    column = np.clip((spread - sizes[0]) / (sizes[1] - sizes[0]), 0, len(sizes) - 1.001)
    left, part = column.astype(int), column % 1
    return np.asarray(np.exp(table[lower, left] * (1 - part) + table[lower, left + 1] * part))


def tail(chances: Array, limit: float) -> dict[str, Any]:
    """Observed fractions beyond each theoretical chance, and Hill's (1975) exponent of the tail in that chance.

    An exponent of 1 says that the tail falls as theory does, more than 1 that it falls faster. The rate of false alarms
    is the fitted tail at the chance where the limits stand.
    """
    count = len(chances)
    found: dict[str, Any] = {f"{p:g}": float(np.mean(chances <= p)) for p in CHANCES} if count else {}
    beyond = np.sort(chances)[: max(LEAST, int(count * TAIL))]
    if len(beyond) < LEAST:
        return {"examples": count, "observed": found}
    start = min(float(beyond[-1]), 1.0)
    exponent = 1.0 / max(float(np.mean(np.log(start / np.maximum(beyond, 1e-300)))), 1e-9)
    rate = len(beyond) / count * (limit / start) ** exponent
    low = exponent * (1 - 2 / np.sqrt(len(beyond)))  # two standard errors of the estimate down
    return {
        "examples": count,
        "observed": found,
        "from": start,
        "used": len(beyond),
        "exponent": round(exponent, 2),
        "rate": float(f"{rate:.2g}"),
        "rate_low": float(f"{len(beyond) / count * (limit / start) ** low:.2g}"),
    }


# --- The page ---

HEAD = """# Calibration of the limits

Generated by `python -m decoderspec.bench.calibration --page docs/calibration.md FILES`; each file by
`python -m decoderspec.bench.calibration --cases N --precision P --seed S --json FILE`. Do not edit.

Right decoders in five formulations (`bench/formulations.py`) are run over the cases of the suite's own strategy, the
fixed cases, and hard ones among them (`bench/calibration_cases.py`: loud and shouting scores, zero rows, underflow,
mixed scales, cancellation, silent branches, long and wide ones, 65,539 words, eight layers). Each result is
compared with the truth in noise units. Both statistics are fractions of their limits: 1 would be a false alarm.

- **flat**: products folded into one, root directly, row sum `sum(P dP)`, loss `lse - logit`.
- **batched, fused**: a product per row of the batch, one for query, key and value, row sum `dO . O`.
- **sequential**: every partial sum rounded in order (up to 4,096 terms), root as `exp(-0.5 ln m)`, loss `-log p`.
- **einsum**: NumPy's own loops, root as `exp(-0.5 ln m)`, row sum `dO . O`.
- **blocked**: attention over blocks of keys with a running maximum, row sum `dO . O`, loss `-log p`.

Under `bfloat16` and `float16` sums are float32 and every result, also on the way, is rounded when it is stored; under
`float32-kv16` keys and values are stored in float16; under `float32-tf32` operands of products are rounded to 11 bits.
Element by element, gradients are judged by their worst element alone, since all can hang on one rounding, and in the
smallest models alone; what is called larger is not judged so, and shown. The gradients of cases in which a score times
the unit roundoff exceeds 0.25 are left out: a score of 110 in bfloat16 is off by half, and nothing follows in
proportion. For that reason the suite draws no loud or shouting case and has one of each, on which these formulations
stay within the limits; here they are drawn by the thousand, and what lies beyond a limit in them is listed.

"""


TAIL_TEXT = f"""\
Theory gives every comparison a chance: that the worst of `n` elements lies as far out as it does (`n` times the tail
of Student's t with 16 degrees of freedom), or the mean of so many independent ones (Snedecor's F). Limits stand where
that chance is {FALSE_ALARMS:g}, those of gradients by element, whose tail is longer than theory's, where it is
{GRADIENT_FALSE_ALARMS:g}. Of each example the smallest chance counts, over all results and all five formulations, which
share its noise; examples are independent. The table has how many examples had one so small. The exponent says
how fast this falls from one decade to the next, by Hill's estimate (1975) on the outermost hundredth of the examples:
1 is as fast as theory, more is faster. Carried on to the limit it gives the false alarms per example, of a
decoder that is right in five ways at once; in brackets the same with an exponent two standard errors smaller. An
extrapolation over some decades, then, with its error beside it.

*Values* are logits, loss, stages on their own inputs, and slopes: of all parameters together, of each, and of both
roles of the table. *Gradient elements* are those of models of up to {SMALLEST} parameters, which alone the suite judges
by element, and on three fixed cases (GRA-2). Loud and shouting cases are not in it: the suite does not draw them.
"""


def page(found: Sequence[Mapping[str, Any]]) -> str:
    """All of it in Markdown."""
    parts = [HEAD, _overview(found), _tails(found)]
    parts += [_precision(each) for each in found]
    return "\n".join(parts)


def _overview(found: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        "## In short",
        "",
        "| precision | cases | comparisons | beyond a limit | largest worst | largest mean | truth |",
    ]
    lines.append("| --- | ---: | ---: | ---: | ---: | ---: | --- |")
    for each in found:
        worst = max(result["worst"]["max"] for result in each["results"].values())
        spread = max(result["spread"]["max"] for result in each["results"].values())
        truth = each["truth"]
        if each["certified"]:
            truth += f", within {each['truth_off']:.1g} units of the certified oracle on {each['certified']} cases"
        cells = (each["precision"], f"{each['cases']:,}", f"{each['comparisons']:,}", each["beyond"])
        lines.append("| " + " | ".join(map(str, (*cells, f"{worst:.2f}", f"{spread:.2f}", truth))) + " |")
    return "\n".join([*lines, ""])


def _tails(found: Sequence[Mapping[str, Any]]) -> str:
    """The argument for the rate of false alarms."""
    lines = [
        "## The tail",
        "",
        TAIL_TEXT,
        "| precision | statistic | " + " | ".join(f"{p:g}" for p in CHANCES) + " | exponent | false alarms |",
        "| --- | --- |" + " ---: |" * (len(CHANCES) + 2),
    ]
    for each in found:
        for of, name in (("values", "worst"), ("values", "spread"), ("gradient elements", "worst")):
            fit = each["tails"][of][name]
            cells = [f"{fit['observed'].get(f'{p:g}', 0):.1g}" for p in CHANCES]
            rates = ["", ""]
            if "exponent" in fit:
                rates = [f"{fit['exponent']:.2f}", f"{fit['rate']:.0e} ({fit['rate_low']:.0e})"]
            lines.append("| " + " | ".join([each["precision"], f"{of}, {name}", *cells, *rates]) + " |")
    return "\n".join([*lines, ""])


def _precision(found: Mapping[str, Any]) -> str:
    overflowed = found.get("overflowed", 0)
    note = f" {overflowed} runs left the range of the format and were not compared." if overflowed else ""
    note += f" {found['note']}" if "note" in found else ""  # what was said of a run by hand
    lines = [f"## {found['precision']}", "", f"{found['cases']:,} cases, seed {found['seed']}.{note}", ""]
    lines += [*_table("result", found["results"]), "", *_table("formulation", found["formulations"])]
    if found["failed"]:
        lines += ["", "Beyond a limit:", "", *[f"- {line}" for line in found["failed"][:20]]]
    return "\n".join([*lines, ""])


def _table(what: str, rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    heads = [f"{name} {q}" for name in ("worst", "mean") for q in (*map(str, SHOWN), "max")]
    lines = [f"| {what} | comparisons | " + " | ".join(heads) + " |", "| --- | ---: |" + " ---: |" * len(heads)]
    for name, row in rows.items():
        cells = [f"{row[s][q]:.2f}" for s in ("worst", "spread") for q in (*map(str, SHOWN), "max")]
        lines.append(f"| {name} | {row['comparisons']:,} | " + " | ".join(cells) + " |")
    return lines
