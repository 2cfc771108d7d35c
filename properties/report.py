"""From records to a report: statuses of requirements, verdicts of contracts, and the JSON document."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from decoderspec import __version__
from decoderspec.properties.findings import Finding
from decoderspec.properties.run import Run
from decoderspec.properties.xfails import Xfail
from decoderspec.spec.protocol import CAPABILITIES, CONTRACTS
from decoderspec.spec.requirements import requirements

SPEC_VERSION = "1"
WORST_FIRST = ("error", "fail", "xfail", "not_judged", "pass", "skip")
ESSENTIAL = {
    "forward": ("VAL-1", "OPN-1"),
    "training": ("LOS-1", "GRA-1", "OPN-2"),
    "weights": ("WGT-1", "WGT-2", "WGT-3"),
    "inputs": (),
}


@dataclass
class Report:
    """Everything that one check found out."""

    run: Run
    records: list[dict[str, Any]]
    required: tuple[str, ...] = ()
    xfails: Sequence[Xfail] = ()
    extras: dict[str, Any] = field(default_factory=dict)  # observed, caught, grades, findings

    def rows(self) -> dict[str, dict[str, Any]]:
        """One row per requirement of the text that such a subject can meet, in its order."""
        alone = bool(self.run.only)
        return {name: self._row(name) for name in requirements() if name.startswith("OPN") == alone}

    def _row(self, name: str) -> dict[str, Any]:
        mine = [record for record in self.records if name in record["requirements"]]
        worst = min(mine, key=lambda record: WORST_FIRST.index(record["status"]), default=None)
        row: dict[str, Any] = {
            "status": worst["status"] if worst else "skip",
            "contract": requirements()[name].contract,
            "examples": sum(record["examples"] for record in mine),
            "worst_noise": worst.get("worst_noise") if worst else None,
            "allowed": worst.get("allowed") if worst else None,
            "reason": worst["reason"] if worst else "not run",
        }
        if worst:
            row |= {key: worst[key] for key in ("where", "stage", "case", "seconds") if worst.get(key)}
        for xfail in self.xfails:
            if xfail.requirement == name and row["status"] == "fail" and xfail.covers(row["worst_noise"]):
                row |= {"status": "xfail", "reason": f"{xfail.reason} ({xfail.link})" if xfail.link else xfail.reason}
        return row

    def contracts(self) -> dict[str, str]:
        """`conforms`, `fails`, `observed` (reachable, not claimed) or `absent`, by contract."""
        rows = self.rows()
        return {
            name: self._contract(name, [row for row in rows.values() if row["contract"] == name]) for name in CONTRACTS
        }

    def _contract(self, name: str, rows: Sequence[Mapping[str, Any]]) -> str:
        reached = [row for row in rows if row["status"] not in ("skip", "not_judged")]
        if not reached:
            return "fails" if self.is_explicit(name) else "absent"
        if not self.decides(name):
            return "observed"
        broken = any(row["status"] in ("fail", "error") for row in reached)
        return "fails" if broken or self.holes(name) else "conforms"

    def is_explicit(self, name: str) -> bool:
        """Whether a contract was claimed or required by name."""
        return name in self.required or name in (self.run.subject.claims or ())

    def decides(self, name: str) -> bool:
        """Whether a contract counts for the verdict: claimed, required, or reachable where nothing is claimed."""
        return self.is_explicit(name) or self.run.subject.claims is None

    def holes(self, name: str) -> list[str]:
        """Essential requirements of a contract claimed by name that could not be tested, with what to add."""
        if not self.is_explicit(name):
            return []
        rows = self.rows()
        return [
            f"{key}: {rows[key]['reason']}" for key in ESSENTIAL[name] if key in rows and rows[key]["status"] == "skip"
        ]

    @property
    def tested(self) -> bool:
        """Whether anything was judged at all."""
        return any(record["status"] in ("pass", "fail", "xfail") for record in self.records)

    @property
    def decided(self) -> list[str]:
        """The contracts that count; none where nothing is claimed or required, and then there is no verdict."""
        return [name for name in CONTRACTS if self.decides(name)]

    @property
    def conforms(self) -> bool:
        """Everything that is claimed or required holds, and something is."""
        return self.tested and bool(self.decided) and "fails" not in self.contracts().values() and not self.errors()

    def errors(self) -> list[dict[str, Any]]:
        """Properties that the suite itself could not run."""
        return [record for record in self.records if record["status"] == "error"]

    def failures(self) -> list[dict[str, Any]]:
        """Records of properties that failed and are not known to."""
        known = {name for name, row in self.rows().items() if row["status"] == "xfail"}
        return [r for r in self.records if r["status"] == "fail" and not known & set(r["requirements"])]

    def to_json(self) -> dict[str, Any]:
        """The document: its keys are a public format."""
        subject = self.run.subject
        return {
            "decoderspec": __version__,
            "spec": SPEC_VERSION,
            "implementation": subject.name,
            "precision": {"declared": plain(subject.recipe.declared), "observed": self.extras.get("recipe")},
            "contracts": self.contracts(),
            "verdict": "conforms" if self.conforms else "fails",
            "requirements": plain(self.rows()),
            "capabilities": {name: offered(self.run, name) for name in CAPABILITIES},
            "claims": None if subject.claims is None else list(subject.claims),
            "required": list(self.required),
            "limits": plain(dict(subject.limits)),
            "grades": plain(self.extras.get("grades", {})),
            "bits": plain(self.extras.get("bits", {})),
            "caught": plain(self.extras.get("caught", {})),
            "findings": plain(self.extras.get("findings", [])),
            "not_covered": self.run.not_covered + self.untested(),
            "environment": environment(subject.dtypes),
            "seconds": plain(self.extras.get("seconds", {})),
            "profile": self.run.profile.name,
            "seed": self.run.seed,
        }

    def untested(self) -> list[str]:
        """What could not be tested, and what to add so that it can."""
        reasons = dict.fromkeys(r["reason"] for r in self.records if r["status"] in ("skip", "not_judged"))
        return [reason for reason in reasons if reason]


def offered(run: Run, capability: str) -> bool:
    """Whether the implementation or its model has an optional method; one that cannot be built has none."""
    if capability == "initialize":
        return callable(getattr(run.subject.implementation, capability, None))
    try:
        return capability in run.capabilities
    except Finding:
        return False


def environment(dtypes: Mapping[str, str]) -> dict[str, Any]:
    """What the run depended on."""
    import hypothesis
    import mpmath

    return {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "numpy": np.__version__,
        "mpmath": mpmath.__version__,
        "hypothesis": hypothesis.__version__,
        "executable": sys.implementation.name,
        "dtypes": dict(dtypes),
    }


def plain(value: Any) -> Any:
    """The same value in JSON's own types; infinities and NaN become words, since JSON has none."""
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (str, bool, type(None), int)):
        return value
    if isinstance(value, (float, np.floating)):
        return float(value) if np.isfinite(value) else str(float(value))
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, Iterable):
        return [plain(entry) for entry in value]
    return str(value)
