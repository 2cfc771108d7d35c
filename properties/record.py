"""What a property leaves behind: a record of plain JSON values, which reports are made of and workers can send."""

from __future__ import annotations

import traceback
from typing import Any

from decoderspec.properties.cases import Case
from decoderspec.properties.conduct import spent, taken
from decoderspec.properties.findings import Absent, Finding, NotJudged
from decoderspec.properties.loading import LoadError
from decoderspec.reference.limits import Comparison
from decoderspec.spec.precision import DeclarationError


def record(found: Any, run: Any, raised: BaseException | None) -> dict[str, Any]:
    """The record of one property after it ran (or could not)."""
    status, reason = _status(raised)
    entry = run.entry if run is not None else None
    made: dict[str, Any] = {
        "requirements": list(found.requirements),
        "property": found.name,
        "part": run.part if run is not None else "",
        "status": status,
        "reason": reason,
        "examples": entry.examples if entry else 0,
        "seconds": round(entry.seconds, 3) if entry else 0.0,
        "own_seconds": round(spent(), 4),
        "case": "",
        "stage": "",
        "replay": None,
        "conduct": taken(),
    }
    comparison = raised.comparison if isinstance(raised, Finding) else entry.worst if entry else None
    made |= _comparison(comparison, entry.where if entry and comparison is entry.worst else "")
    if isinstance(raised, Finding):
        case = raised.details.get("case")
        made["stage"] = raised.stage
        made["details"] = {k: v for k, v in raised.details.items() if isinstance(v, (str, int, float, list, dict))}
        if isinstance(case, Case):
            made["case"] = (f"{case.note}: " if case.note else "") + case.describe()
            made["replay"] = case.to_json()
    return made


def _status(raised: BaseException | None) -> tuple[str, str]:
    match raised:
        case None:
            return "pass", ""
        case Finding():
            return "fail", str(raised)
        case Absent():
            return "skip", str(raised)
        case NotJudged():
            return "not_judged", str(raised)
        case LoadError() | DeclarationError():
            return "error", str(raised)
        case _:
            text = "".join(traceback.format_exception(raised))
            return "error", f"the suite itself failed: {text[-3000:]}"


def _comparison(comparison: Comparison | None, where: str) -> dict[str, Any]:
    if comparison is None:
        return {"worst_noise": None, "allowed": None, "where": where}
    return {
        "worst_noise": comparison.worst,
        "allowed": comparison.allowed,
        "mean_noise": comparison.spread,
        "mean_allowed": comparison.spread_allowed,
        "excess": comparison.excess,
        "where": where,
    }
