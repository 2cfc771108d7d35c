"""What is wrong with one operation: its own error, and the faults of the bank that do the same to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from decoderspec.faults.bank import BANK
from decoderspec.faults.case import Case as Setting
from decoderspec.faults.diagnosis import Closeness, Diagnosis, closeness_of
from decoderspec.faults.fault import Fault, Substitution, unchanged, untouched
from decoderspec.faults.hypotheses import RIGHT, Cause, Found, Hypothesis, Values, ranked
from decoderspec.faults.local import FINEST, StageReport, right_bits
from decoderspec.faults.training import GradientReport
from decoderspec.properties.cases import Array, Case
from decoderspec.properties.findings import Absent
from decoderspec.properties.operation import OperationCase
from decoderspec.properties.run import Run
from decoderspec.reference.decoder import decoder as right_decoder
from decoderspec.reference.operations import OPERATIONS

COMPOSITE = ("attend", "swiglu", "block")  # whose stages say more than their own name


def operation_diagnosis(run: Run, case: Case, bank: Sequence[Fault] = BANK) -> Diagnosis:
    """The output and the gradients of the operation under test, judged, and the likely causes. Raises `Finding`."""
    example = OperationCase(run.operation, case)
    output = example.call()
    report, near = _judged(example, output)
    gradients, given = _gradients(example)
    found: Found = ((), None, 0)
    if not report.conforms:
        found = _causes(example, "forward", {"output": output}, bank)
    elif not all(each.conforms for each in gradients):
        found = _causes(example, "gradient", given, bank)
    wrong = [f"{example.kernel.name} by its {each.name}" for each in gradients if not each.conforms]
    return Diagnosis(
        stages=(report,), causes=found[0], next=found[1], gradients=gradients, derivatives=tuple(wrong),
        tried=found[2], closeness=None if report.conforms else near,
    )  # fmt: skip


def _judged(example: OperationCase, output: Array) -> tuple[StageReport, Closeness | None]:
    comparison, error = example.judge(output), example.error(output)
    unit = example.unit(FINEST)
    report = StageReport(
        example.kernel.name, comparison.worst, comparison.allowed, right_bits(error, unit), comparison.conforms,
        comparison,
    )  # fmt: skip
    return report, closeness_of(example.kernel.name, error, example.unit(example.subject.recipe))


def _gradients(example: OperationCase) -> tuple[tuple[GradientReport, ...], dict[str, Array]]:
    """Each gradient along its direction; none where the operation comes without a derivative."""
    try:
        given = example.call_backward()
    except Absent:
        return (), {}
    reports = (GradientReport(name, example.judge_gradient(name, value)) for name, value in given.items())
    return tuple(reports), given


def _causes(example: OperationCase, level: str, seen: Values, bank: Sequence[Fault]) -> Found:
    """The faults of the bank that change this operation, against what it gave out."""
    compute = example.outputs if level == "forward" else example.slopes
    right = compute(OPERATIONS)

    def values(fault: Fault) -> Callable[[Substitution], Values]:
        return lambda over: compute(over(fault.operations(OPERATIONS)))

    tried = [Hypothesis((fault,), "", values(fault)) for fault in bank if _concerns(fault, level)]
    case, subject = example.case, example.subject
    setting = Setting(case.config, {}, np.zeros((1, 1), np.int64), None, subject.recipe, case.seed)
    changing = [each for each in tried if _changes(each, right)]
    causes, beyond, count = ranked(setting, changing, seen, Hypothesis((RIGHT,), "", values(RIGHT)))
    return tuple(_renamed(example, cause) for cause in causes), beyond, count


def _concerns(fault: Fault, level: str) -> bool:
    """Whether a fault is a substitution of operations that shows at that level."""
    plain = fault.decoder is right_decoder and fault.model is None and fault.gradient is untouched
    backward = fault.level == "gradient"
    return plain and fault.operations is not unchanged and backward == (level == "gradient")


def _changes(hypothesis: Hypothesis, right: Values) -> bool:
    """Whether it makes anything of this operation other than the right values."""
    try:
        with np.errstate(all="ignore"):
            made = hypothesis.values(unchanged)
    except (ValueError, IndexError, ZeroDivisionError):  # it takes the whole decoder's shapes
        return False
    return any(not np.array_equal(made[name], right[name]) for name in right)


def _renamed(example: OperationCase, cause: Cause) -> Cause:
    """The cause with the operation as its stage, unless the stages within say more."""
    name = example.kernel.name
    return cause if name in COMPOSITE or cause.stage.startswith("gradient") else cause.at(name)
