"""From records to a report: statuses of requirements, verdicts of contracts, and the JSON document."""

from __future__ import annotations

import math
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from decoderspec import __version__
from decoderspec.properties.findings import Finding
from decoderspec.properties.run import Run
from decoderspec.properties.subject import looked_up
from decoderspec.properties.xfails import Xfail, known, misfit
from decoderspec.spec.protocol import CAPABILITIES, CONTRACTS
from decoderspec.spec.requirements import requirements

SPEC_VERSION = "1"
WORST_FIRST = ("error", "fail", "xfail", "not_judged", "pass", "skip")
JUDGED = ("pass", "fail", "xfail")
NOT_RUN = "not run"
ESSENTIAL = {
    "forward": ("VAL-1", "OPN-1"),
    "training": ("LOS-1", "GRA-1", "OPN-2"),
    "weights": ("WGT-1", "WGT-2", "WGT-3"),
    "inputs": (),
}
SAMPLED = ("BIG-1",)  # what stands for VAL-1 there
LIBRARIES = (
    "torch",
    "transformers",
    "litgpt",
    "x_transformers",
    "jax",
    "jaxlib",
    "mlx",
    "tensorflow",
    "numba",
    "flint",
)


@dataclass
class Report:
    """Everything that one check found out."""

    run: Run
    records: list[dict[str, Any]]
    required: tuple[str, ...] = ()
    xfails: Sequence[Xfail] = ()
    extras: dict[str, Any] = field(default_factory=dict)  # recipe, bits, stages, caught, grades, findings, problems, ..

    def rows(self) -> dict[str, dict[str, Any]]:
        """One row per requirement of the text that such a subject can meet, in its order."""
        alone = bool(self.run.only)
        return {name: self._row(name) for name in requirements() if name.startswith("OPN") == alone}

    def _row(self, name: str) -> dict[str, Any]:
        mine = [record for record in self.records if name in record["requirements"]]
        worst = min(mine, key=_badness, default=None)
        row: dict[str, Any] = {
            "status": worst["status"] if worst else "skip",
            "contract": requirements()[name].contract,
            "examples": sum(record["examples"] for record in mine),
            "worst_noise": worst.get("worst_noise") if worst else None,
            "allowed": worst.get("allowed") if worst else None,
            "reason": worst["reason"] if worst else NOT_RUN,
        }
        if worst:
            row |= {key: worst[key] for key in ("where", "stage", "case", "details") if worst.get(key)}
        if seconds := round(sum(record["seconds"] for record in mine), 3):
            row["seconds"] = seconds
        failed = [record for record in mine if record["status"] == "fail"]
        entries = [known(self.xfails, [name], record["worst_noise"]) for record in failed]
        if row["status"] == "fail" and all(entries):
            row |= {"status": "xfail", "reason": str(entries[0])}
        return row

    @property
    def not_run(self) -> list[str]:
        """Requirements that no property was run for: with a selection of them, or when the process ended."""
        run = {name for record in self.records for name in record["requirements"]}
        return [name for name in requirements() if name.startswith("OPN") == bool(self.run.only) and name not in run]

    def contracts(self) -> dict[str, str]:
        """By contract: `conforms`, `fails`, `partial`, `observed` or `absent`.

        `partial` counts for the verdict and holds as far as it was run, but a part of it was not; `observed` is
        reachable and not claimed.
        """
        rows = self.rows()
        return {
            name: self._contract(name, {key: row for key, row in rows.items() if row["contract"] == name})
            for name in CONTRACTS
        }

    def _contract(self, name: str, rows: Mapping[str, Mapping[str, Any]]) -> str:
        reached = [row["status"] for row in rows.values() if row["status"] not in ("skip", "not_judged")]
        if not self.decides(name):
            return "observed" if reached else "absent"
        if {"fail", "error"} & set(reached) or self.holes(name):
            return "fails"
        lost = set(rows) & set(self.not_run)
        if not reached and not lost:
            return "fails" if self.is_explicit(name) else "absent"
        return "partial" if lost or self.run.cases else "conforms"

    def is_explicit(self, name: str) -> bool:
        """Whether a contract was claimed or required by name."""
        return name in self.required or name in (self.run.subject.claims or ())

    def decides(self, name: str) -> bool:
        """Whether a contract counts for the verdict: claimed, required, or reachable where nothing is claimed.

        Where samples stand for the truth no gradient is judged, so training counts only when it is claimed by name.
        """
        silent = self.run.subject.claims is None and not (self.run.sampled and name == "training")
        return self.is_explicit(name) or silent

    def holes(self, name: str) -> list[str]:
        """Essential requirements of a contract claimed by name that could not be tested, with what to add.

        Of a checkpoint that is judged by samples the values are essential whatever is claimed: bits alone say little.
        """
        sampled = bool(self.run.sampled) and name == "forward"
        if not self.is_explicit(name) and not (sampled and self.decides(name)):
            return []
        rows, essential = self.rows(), SAMPLED if sampled else ESSENTIAL[name]
        asked = [key for key in essential if key in rows and key not in self.not_run]
        return [f"{key}: {rows[key]['reason']}" for key in asked if rows[key]["status"] == "skip"]

    @property
    def tested(self) -> bool:
        """Whether anything was judged at all."""
        return any(record["status"] in JUDGED for record in self.records)

    @property
    def decided(self) -> list[str]:
        """The contracts that count; none where nothing is claimed or required, and then there is no verdict."""
        return [name for name in CONTRACTS if self.decides(name)]

    @property
    def verdict(self) -> str:
        """`conforms`, `fails`, or `partial` where only a part was run and that holds."""
        found = self.contracts().values()
        if not self.tested or not self.decided or self.errors() or "fails" in found:
            return "fails"
        return "partial" if "partial" in found else "conforms"

    @property
    def conforms(self) -> bool:
        """Everything that is claimed or required holds, all of it was run, and something is."""
        return self.verdict == "conforms"

    @property
    def status(self) -> int:
        """The exit status: 0 nothing that counts fails, 1 something does, 2 there is nothing to base a verdict on."""
        judged = {requirements()[name].contract for name, row in self.rows().items() if row["status"] in JUDGED}
        unknown = self.verdict == "partial" and not set(self.required) <= judged
        if not self.tested or not self.decided or self.errors() or self.extras.get("problems") or unknown:
            return 2
        return 1 if self.verdict == "fails" else 0

    @property
    def observed(self) -> str | Mapping[str, str] | None:
        """The recipe that explains the bits that are right; None if it is the declared one and a value still fails."""
        found: str | Mapping[str, str] | None = self.extras.get("recipe") or None
        off = any(row["status"] in ("fail", "xfail") and row["allowed"] is not None for row in self.rows().values())
        return None if off and found == plain(self.run.subject.recipe.declared) else found

    def errors(self) -> list[dict[str, Any]]:
        """Properties that the suite itself could not run."""
        return [record for record in self.records if record["status"] == "error"]

    def failures(self) -> list[dict[str, Any]]:
        """Records of properties that failed, of a requirement that is not known to."""
        new = {name for name, row in self.rows().items() if row["status"] in ("fail", "error")}
        return [r for r in self.records if r["status"] == "fail" and new & set(r["requirements"])]

    def to_json(self) -> dict[str, Any]:
        """The document: its keys are a public format."""
        subject, rows = self.run.subject, self.rows()
        return {
            "decoderspec": __version__,
            "spec": SPEC_VERSION,
            "implementation": subject.name,
            "precision": {"declared": plain(subject.recipe.declared), "observed": self.observed},
            "contracts": self.contracts(),
            "verdict": self.verdict,
            "requirements": plain(rows),
            "capabilities": {name: offered(self.run, name) for name in CAPABILITIES},
            "claims": None if subject.claims is None else list(subject.claims),
            "required": list(self.required),
            "holes": {name: holes for name in CONTRACTS if (holes := self.holes(name))},
            "not_run": self.not_run,
            "xfails": [asdict(entry) | {"misfit": misfit(entry, rows.get(entry.requirement))} for entry in self.xfails],
            "emulates": list(subject.emulates),
            "conduct": self.conduct(),
            "limits": plain(dict(subject.limits)),
            "grades": plain(self.extras.get("grades", {})),
            "bits": plain(self.extras.get("bits", {})),
            "stages": plain(self.extras.get("stages", [])),
            "caught": plain(self.extras.get("caught", {})),
            "findings": plain(self.extras.get("findings", [])),
            "problems": plain(self.extras.get("problems", [])),
            "not_covered": self.run.not_covered + self.untested(),
            "environment": environment(subject.dtypes),
            "seconds": plain(self.extras.get("seconds", {})),
            "profile": self.run.profile.name,
            "seed": self.run.seed,
        }

    def conduct(self) -> list[str]:
        """What the implementation does beside answering, each once."""
        return list(dict.fromkeys(effect for record in self.records for effect in record.get("conduct", ())))

    def untested(self) -> list[str]:
        """What could not be tested, and what to add so that it can."""
        reasons = dict.fromkeys(r["reason"] for r in self.records if r["status"] in ("skip", "not_judged"))
        return [reason for reason in reasons if reason]


def _badness(record: Mapping[str, Any]) -> tuple[int, float]:
    """The order in which records speak for their requirement: by status, then by how far beyond the limit."""
    excess = record.get("excess")
    return WORST_FIRST.index(record["status"]), -math.inf if excess is None else -float(excess)


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
        "libraries": {name: version for name in LIBRARIES if (version := _version(name))},
        "dtypes": dict(dtypes),
    }


def _version(library: str) -> str:
    """What a library that the run has loaded says of itself; empty where it was not loaded, or says nothing."""
    found = looked_up(sys.modules.get(library), "__version__")
    return found if isinstance(found, str) else ""


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
