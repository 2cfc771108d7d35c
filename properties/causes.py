"""From failing requirements to findings: what failed for one reason is one finding, with stage and likely cause."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from decoderspec.faults.bank import BANK
from decoderspec.faults.diagnosis import Diagnosis, Observed, diagnose
from decoderspec.faults.fault import Fault
from decoderspec.properties.cases import Case
from decoderspec.properties.findings import Absent, Finding
from decoderspec.properties.operation_causes import operation_diagnosis
from decoderspec.properties.run import Run
from decoderspec.spec.stages import suffix

VALUES = ("SHP-1", "VAL-1", "VAL-2", "VAL-3", "RES-1", "ATT-1", "CAU-1", "CAU-2", "CAU-3", "BAT-1", "BAT-2", "BAT-3")
LIVE = ("WGT-4", "TIE-4")
TRAINING = ("LOS-1", "GRA-1", "GRA-2", "GRA-4", "TIE-1", "TIE-2", "TIE-3")
STATE = ("DET-1", "DET-2", "DET-3", "DET-4", "GRA-3", "WGT-5")
INPUTS = ("CFG-1", "CFG-2", "INP-1", "INP-2", "INP-3", "INP-4", "INP-5", "INP-6", "INP-7")
CALLS = 3  # failures with the very same words: the call itself is at fault, not what it computes
OPERATION = ("OPN-1", "OPN-2")
FAMILIES = (
    ("values", VALUES),
    ("loss and gradients", TRAINING),
    ("state", STATE),
    ("live parameters", LIVE),
    ("inputs", INPUTS),
)


@dataclass
class Group:
    """One finding: the failures that it explains, the one to show, and the diagnosis where there is one."""

    title: str
    records: list[dict[str, Any]]
    diagnosis: Diagnosis | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def shown(self) -> dict[str, Any]:
        """The failure on the smallest case, values first."""
        return self.records[0]

    @property
    def case(self) -> Case | None:
        """The failing case, where there is one that can be drawn again."""
        replays = [record["replay"] for record in self.records if record["replay"]]
        return Case.from_json(replays[0]) if replays else None

    def to_json(self) -> dict[str, Any]:
        """For the report."""
        found: dict[str, Any] = {
            "title": self.title,
            "requirements": [name for record in self.records for name in record["requirements"]],
            "message": self.shown["reason"],
            "stage": self.stage,
            "case": self.shown["case"],
        }
        if self.diagnosis is not None:
            found["diagnosis"] = self.diagnosis.to_json()
        return found

    @property
    def stage(self) -> str:
        """The first wrong stage where stages are known, else that of the likely cause, else that of the failure."""
        if self.diagnosis is None:
            return str(self.shown["stage"])
        causes = self.diagnosis.causes
        return str(self.diagnosis.first_wrong_stage or (causes[0].stage if causes else self.shown["stage"]))


def groups(run: Run, failures: Sequence[dict[str, Any]]) -> list[Group]:
    """The failures by cause."""
    if not failures:
        return []
    same = [record for record in failures if sum(record["reason"] == other["reason"] for other in failures) >= CALLS]
    found = [Group(same[0]["reason"].splitlines()[0], same)] if same else []
    left = [record for record in failures if record not in same]
    for title, names in FAMILIES:
        mine = sorted(
            (record for record in left if set(record["requirements"]) & set(names)),
            key=lambda record: names.index(record["requirements"][0]),
        )
        left = [record for record in left if record not in mine]
        if mine:
            found.append(Group(title, mine, _diagnosed(run, mine, lambda case: diagnosis(run, case))))
    if run.only:
        found += _of_operation(run, left)
        left = [record for record in left if not set(record["requirements"]) & set(OPERATION)]
    found += [Group(record["stage"] or record["property"], [record]) for record in left]
    return _merged(found)


def _of_operation(run: Run, records: Sequence[dict[str, Any]]) -> list[Group]:
    """The output, and if that is right the derivative: with its likely cause where a known fault reproduces it."""
    found = []
    for name in OPERATION:
        mine = [record for record in records if name in record["requirements"]]
        if mine:
            what = run.only if name == "OPN-1" else f"the derivative of {run.only}"
            said = _diagnosed(run, mine, lambda case: operation_diagnosis(run, case))
            found.append(Group(f"{what} is wrong", mine, said if said and said.causes else None))
    return found


def _merged(found: list[Group]) -> list[Group]:
    """Wrong values make loss, gradients and assigned parameters wrong: unless these are wrong by themselves too."""
    values = next((group for group in found if group.title == "values"), None)
    if values is None or not any("VAL-1" in record["requirements"] for record in values.records):
        return found
    for group in [g for g in found if g.title == "state"]:  # a second model is wrong as the first one is
        beside = [record for record in group.records if "DET-4" in record["requirements"]]
        values.records += beside
        group.records = [record for record in group.records if record not in beside]
        if not group.records:
            found.remove(group)
    for group in [g for g in found if g.title in ("loss and gradients", "live parameters")]:
        values.records += group.records
        found.remove(group)
    return found


def _diagnosed(
    run: Run, records: Sequence[dict[str, Any]], diagnose_one: Callable[[Case], Diagnosis]
) -> Diagnosis | None:
    """The diagnosis of the first failing case whose values can be looked at."""
    case = Group("", list(records)).case
    if case is None:
        return None
    try:
        return diagnose_one(run.cases[0] if run.cases else case)
    except Finding:
        return None  # a call that raises has said so itself
    except Exception as reason:  # a diagnosis is help: it must not cost the verdict
        records[0]["reason"] += f"\n(the diagnosis itself failed: {type(reason).__name__}: {reason})"
        return None


def diagnosis(run: Run, case: Case, *, bank: Sequence[Fault] | None = None, pairs: bool = False) -> Diagnosis:
    """What the oracle, the noise and the bank (all of it, if not said) say of one case. Raises `Finding`."""
    truth, seen = run.truth(case), observed(run, case)
    given = case.config, truth.parameters, *truth.batch, run.subject.recipe, seen
    return diagnose(*given, bank=BANK if bank is None else bank, seed=case.seed, pairs=pairs)


def signature(found: Diagnosis) -> tuple[object, ...]:
    """What makes two cases show the same: the kind of the first wrong stage, the loss, and whose gradients."""
    first = next((suffix(report.name) for report in found.stages if not report.conforms), None)
    gradients = {suffix(report.name) for report in found.gradients if not report.conforms}
    return first, found.loss is None or found.loss.conforms, first is None and bool(gradients)


def observed(run: Run, case: Case) -> Observed:
    """Everything that the implementation offers on one case; what fails in itself is left out."""
    truth, model = run.truth(case), run.model(case)
    tokens, targets = truth.batch

    def offered(capability: str, call: Any) -> Any:
        if not model.has(capability):
            return None
        try:
            return call()
        except (Finding, Absent):
            return None

    return Observed(
        logits=offered("logits", lambda: model.logits(tokens)),
        stages=offered("stages", lambda: model.stages(tokens)) or {},
        loss=offered("loss", lambda: model.loss(tokens, targets)),
        gradients=offered("gradients", lambda: model.gradients(tokens, targets)),
        role_gradients=offered("role_gradients", lambda: model.role_gradients(tokens, targets)),
    )
