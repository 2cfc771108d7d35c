"""Reports on made-up records, so that what is said of them can be tested without running anything."""

from types import SimpleNamespace

from decoderspec.properties.causes import groups
from decoderspec.properties.report import Report
from decoderspec.properties.run import PROFILES, Run
from decoderspec.properties.subject import read_subject
from decoderspec.properties.summary import finding_json, grades
from decoderspec.spec.protocol import CONTRACTS
from decoderspec.spec.requirements import requirements

DECODER = [name for name in requirements() if not name.startswith("OPN")]
OPERATION = [name for name in requirements() if name.startswith("OPN")]
SKIP = "loss(tokens, targets) -> float lets the loss be tested"


def record(name, status="pass", **changes):
    made = {
        "requirements": [name], "property": f"test_{name}", "status": status, "reason": "", "examples": 3,
        "seconds": 0.1, "case": "", "stage": "", "replay": None, "worst_noise": None, "allowed": None, "where": "",
    }  # fmt: skip
    made["reason"] = {"fail": f"{name} does not hold", "skip": SKIP, "not_judged": "emulated"}.get(status, "")
    return made | changes


def unbuildable(config, parameters):
    raise ValueError("a report is made of records: it builds nothing that it could not do without")


def report(statuses=None, *, name="made up", claims=None, required=(), xfails=(), only="", default="pass", **changes):
    """A report on made-up records: `default` for each requirement but those given."""
    subject = read_subject(SimpleNamespace(name=name, claims=claims, build=unbuildable))
    names = OPERATION if only else DECODER
    given = dict.fromkeys(names, default) | (statuses or {})
    records = [
        record(name, status, **changes.get(name.replace("-", "_"), {})) for name, status in given.items() if status
    ]
    made = Report(Run(subject, "", PROFILES["quick"], only=only), records, tuple(required), list(xfails))
    made.extras |= {"seconds": {"total": 1.0}, "problems": []}
    return made


def contract(name, status):
    """A status for every requirement of a contract."""
    return {key: status for key in DECODER if requirements()[key].contract == name}


def everything(status):
    return dict.fromkeys(CONTRACTS, status)


STAGES = [
    {"name": name, "noise": noise, "allowed": 15.0, "mean_noise": 0.5, "mean_allowed": 1.5, "excess": noise / 15,
     "bits": bits, "possible": 53}
    for name, noise, bits in (("embedding", 0.0, 53.0), ("attention.weights", 3e15, 2.9), ("logits", 3.0, None))
]  # fmt: skip


def document(statuses=None, **changes):
    """The JSON document of such a report, completed as `check` does."""
    made = report(statuses, **changes)
    made.extras |= {"caught": {"embed": 1e-15, "add": float("inf")}, "stages": STAGES}
    made.extras["grades"] = grades(made.rows())
    made.extras["findings"] = [finding_json(made, group, "") for group in groups(made.run, made.failures())]
    return made.to_json()
