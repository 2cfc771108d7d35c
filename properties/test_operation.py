"""One operation or one block on its own."""

import numpy as np

from decoderspec.properties.cases import Case
from decoderspec.properties.findings import Absent, Finding
from decoderspec.properties.operation import OperationCase
from decoderspec.properties.registry import checks
from decoderspec.properties.run import Run
from decoderspec.properties.subject import called


def runnable(case: Case) -> bool:
    """A block needs a layer, and the loss is no loss with one id."""
    return case.config.layers > 0 and case.config.vocabulary_size > 1


@checks("OPN-1", where=runnable, long=True)
def test_the_operation_is_right_within_the_noise(run: Run, case: Case) -> None:
    """The output differs from the oracle's by no more than rounding explains."""
    example = OperationCase(run.operation, case)
    run.judge(example.kernel.name, example.judge(example.call()))


@checks("OPN-2", where=runnable)
def test_the_derivative_is_right_along_a_direction(run: Run, case: Case) -> None:
    """Each input's gradient gives the true slope of the output's projection on a random upstream gradient."""
    example = OperationCase(run.operation, case)
    for name, gradient in example.call_backward().items():
        if not np.isfinite(gradient).all():
            raise Finding(f"the gradient of {name} is not finite on valid input", name)
        run.judge(f"gradient of {name}", example.judge_gradient(name, gradient), name)


@checks("OPN-3", where=runnable)
def test_the_same_call_gives_the_same_bits_and_spares_its_inputs(run: Run, case: Case) -> None:
    """A second call gives the first result, and the arrays handed in are as they were."""
    example = OperationCase(run.operation, case)
    first = example.call()
    run.same_bits(example.kernel.name, example.call(), first, "the same inputs gave another output the second time")
    arguments = example.arguments(example.inputs)
    called(example.kernel.name, run.operation.forward, *arguments)
    for handed, kept in zip(arguments, example.arguments(example.inputs), strict=True):
        if isinstance(handed, np.ndarray):
            run.same_bits("input", handed, kept, "an input array was written to")


@checks("OPN-4", where=lambda case: runnable(case) and case.tokens > 1)
def test_later_positions_leave_earlier_rows_bits(run: Run, case: Case) -> None:
    """Attention and the block look back only."""
    example = OperationCase(run.operation, case)
    if not example.kernel.causal_inputs:
        raise Absent("only attend and block mix positions")
    before, cut = example.call(), case.tokens // 2 or 1
    changed = dict(example.inputs)
    for name in example.kernel.causal_inputs:
        changed[name] = np.array(changed[name])
        changed[name][..., cut:, :] = changed[name][..., cut:, :] * 1.5 + 0.25
    after = example.call(changed)
    why = f"positions from {cut} on were changed and an earlier row moved"
    run.same_bits(example.kernel.name, after[..., :cut, :], before[..., :cut, :], why)
