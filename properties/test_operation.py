"""One operation or one block on its own."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from decoderspec.properties.cases import Array, Case, affordable, sloping
from decoderspec.properties.findings import Absent, Finding
from decoderspec.properties.operation import OperationCase
from decoderspec.properties.registry import checks, small
from decoderspec.properties.run import Run

MANY = 10_000  # ids: more than that only show whether they fit in 16 bits


def runnable(case: Case) -> bool:
    """A block needs a layer, and the loss is no loss with one id."""
    return case.config.layers > 0 and several_ids(case)


def several_ids(case: Case) -> bool:
    """The loss is no loss with one id."""
    return case.config.vocabulary_size > 1


def mixing(case: Case) -> bool:
    """Whether there are later positions."""
    return several_ids(case) and case.tokens > 1


@checks("OPN-1", where=several_ids, long=True)
def test_the_operation_is_right_within_the_noise(run: Run, case: Case) -> None:
    """The output differs from the oracle's by no more than rounding explains."""
    if not _concerns(run, case):
        return
    example = OperationCase(run.operation, case)
    run.judge(example.kernel.name, example.judge(example.call()))


@checks("OPN-2", where=sloping, long=True)
def test_the_derivative_is_right_along_a_direction(run: Run, case: Case) -> None:
    """Each input's gradient gives the true slope of the output's projection on a random upstream gradient.

    So does that of a second call; its bits may differ where a kernel adds up in whatever order.
    """
    if not _concerns(run, case, slopes=True):
        return
    example = OperationCase(run.operation, case)
    first, second = example.call_backward(), example.call_backward()
    for name, gradient in first.items():
        _judge_gradient(run, example, name, gradient)
        if not np.array_equal(gradient, second[name]):
            _judge_gradient(run, example, name, second[name], " of a second call")


def _judge_gradient(run: Run, example: OperationCase, name: str, gradient: Array, which: str = "") -> None:
    if not np.isfinite(gradient).all():
        raise Finding(f"the gradient of {name}{which} is not finite on valid input", name)
    run.judge(f"gradient of {name}{which}", example.judge_gradient(name, gradient), name)


@checks("OPN-2", where=several_ids)
def test_the_derivative_spares_its_inputs_and_earlier_results(run: Run, case: Case) -> None:
    """The arrays handed in are as they were, and no later call overwrites what was handed out."""
    if not _concerns(run, case):
        return
    example = OperationCase(run.operation, case)
    what = f"the derivative of {example.kernel.name}"
    pulled = _spared(run, example.backward, *example.pulled(example.inputs))
    output, gradients = example.forward(*example.arguments(example.inputs)), example.gradients(pulled)
    kept, others = example.output(output), example.scaled(0.5)
    example.backward(*example.pulled(others))
    run.same_bits(example.kernel.name, example.output(output), kept, f"{what} overwrote an earlier output")
    example.forward(*example.arguments(others))
    for name, gradient in example.gradients(pulled).items():
        run.same_bits(f"gradient of {name}", gradient, gradients[name], f"a later call overwrote what {what} gave")


@checks("OPN-3", where=several_ids)
def test_the_same_call_gives_the_same_bits_and_spares_its_inputs(run: Run, case: Case) -> None:
    """A second call gives the first result, the arrays handed in and the results handed out stay as they are."""
    if not _concerns(run, case):
        return
    example = OperationCase(run.operation, case)
    name, given = example.kernel.name, _spared(run, example.forward, *example.arguments(example.inputs))
    first = example.output(given)
    run.same_bits(name, example.call(), first, "the same inputs gave another output the second time")
    example.call(example.scaled(0.5))
    run.same_bits(name, example.output(given), first, "a later call overwrote an output handed out before")


@checks("OPN-4", where=mixing, long=True)
def test_later_positions_leave_earlier_rows_bits(run: Run, case: Case) -> None:
    """Attention and the block look back only."""
    if not _concerns(run, case):
        return
    example = OperationCase(run.operation, case)
    if not example.kernel.causal_inputs:
        raise Absent("only attend and block mix positions")
    before = example.call()
    for cut in {case.tokens // 2, case.tokens - 1}:
        changed = dict(example.inputs)
        for name in example.kernel.causal_inputs:
            changed[name] = np.array(changed[name])
            changed[name][..., cut:, :] = changed[name][..., cut:, :] * 1.5 + 0.25
        after = example.call(changed)
        why = f"positions from {cut} on were changed and an earlier row moved"
        run.same_bits(example.kernel.name, after[..., :cut, :], before[..., :cut, :], why)


def _concerns(run: Run, case: Case, slopes: bool = False) -> bool:
    """Whether a case has something to show of this operation, at a bearable price.

    A block needs a layer, and is long or wide in its parts; a table of very many rows is there for the ids alone.
    """
    if run.only == "block":
        found = case.config.layers > 0 and (small(case) if slopes else affordable(case))
    else:
        found = not slopes or case.config.vocabulary_size <= MANY or run.only in ("embed", "nll")
    if not found:
        run.pass_over()
    return found


def _spared(run: Run, function: Callable[..., Any], *arguments: Any) -> Any:
    """What a call hands out; a finding where it wrote to an array that it was handed."""
    handed = list(_arrays(arguments))
    kept = [np.array(array) for array in handed]
    given = function(*arguments)
    for array, before in zip(handed, kept, strict=True):
        run.same_bits("input", array, before, "an input array was written to")
    return given


def _arrays(arguments: tuple[Any, ...]) -> Iterator[Array]:
    """The arrays among the arguments, those of a block's parameters too."""
    for each in arguments:
        if isinstance(each, Mapping):
            yield from each.values()
        elif isinstance(each, np.ndarray):
            yield each
