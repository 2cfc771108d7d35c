"""One operation on its own: a right kernel and derivative conform, and the smallest mistake in either does not."""

from dataclasses import replace
from pathlib import Path

import kernels
import numpy as np
import pytest

from decoderspec.properties import test_operation
from decoderspec.properties.findings import Absent, Finding
from decoderspec.properties.kernels import KERNELS
from decoderspec.properties.operation import OperationCase
from decoderspec.properties.session import operation_run

FILE = Path(kernels.__file__)
MISTAKE = 1 + 1e-9  # relative: a million roundings of float64
PROPERTIES = [
    found
    for found in (getattr(value, "property", None) for value in list(vars(test_operation).values()))
    if hasattr(found, "requirements")
]
EACH = pytest.mark.parametrize("name", KERNELS)
MIXING = [name for name, kernel in KERNELS.items() if kernel.causal_inputs]


def run_of(name, forward=None, backward=None):
    run = operation_run(f"{FILE}:{name}", name, profile="quick")
    forward, backward = forward or run.operation.forward, backward or run.operation.backward
    run.__dict__["operation"] = replace(run.operation, forward=forward, backward=backward)
    return run


def cases(run, count):
    return [case for case in run.fixed if test_operation.runnable(case)][:count]


def fails(requirement, run, count=2):
    """What the properties of a requirement say on the first cases; empty where they hold."""
    for case in cases(run, count):
        for found in PROPERTIES:
            try:
                if requirement in found.requirements:
                    found.check(run, case)
            except Finding as finding:
                return finding.message
    return ""


def scaled(value, name=None):
    """A result, or one gradient of it, with a small mistake."""
    if isinstance(value, tuple):
        return tuple(scaled(each) if index == name else each for index, each in enumerate(value))
    return value * MISTAKE


@EACH
def test_every_operation_has_a_kernel_with_a_derivative(name):
    assert callable(getattr(kernels, name))
    assert callable(getattr(kernels, name + "_backward"))


@EACH
@pytest.mark.parametrize("requirement", ["OPN-1", "OPN-2", "OPN-3"])
def test_a_right_kernel_conforms(name, requirement):
    assert fails(requirement, run_of(name), count=3 if name == "block" else 8) == ""


@EACH
def test_a_small_mistake_in_the_output_is_found(name):
    wrong = run_of(name, lambda *inputs: getattr(kernels, name)(*inputs) * MISTAKE)
    assert f"{name}: off by" in fails("OPN-1", wrong)


def gradients_of(name):
    """Places of the gradients that a derivative returns."""
    case = OperationCase(operation_run(f"{FILE}:{name}", name).operation, run_of(name).fixed[0])
    return [key for key in case.inputs if key in case.arrays]


GRADIENTS = [(name, place, key) for name in KERNELS for place, key in enumerate(gradients_of(name))]


@pytest.mark.parametrize(("name", "place", "key"), GRADIENTS, ids=[f"{name}-{key}" for name, _, key in GRADIENTS])
def test_a_small_mistake_in_one_gradient_is_found_and_named(name, place, key):
    def wrong(*inputs):
        found = getattr(kernels, name + "_backward")(*inputs)
        if name != "block":
            return scaled(found, place)
        dx, others = found
        return (scaled(dx), others) if key == "x" else (dx, {**others, key: scaled(others[key])})

    assert f"gradient of {key}" in fails("OPN-2", run_of(name, backward=wrong))


@pytest.mark.parametrize("name", MIXING)
def test_a_kernel_that_looks_back_only_conforms(name):
    assert fails("OPN-4", run_of(name)) == ""


@pytest.mark.parametrize("name", MIXING)
def test_a_kernel_that_looks_ahead_is_found(name):
    def leaking(*inputs):
        output = getattr(kernels, name)(*inputs)
        return output + 1e-15 * output[..., -1:, :]

    assert "moved" in fails("OPN-4", run_of(name, leaking))


@pytest.mark.parametrize("name", [name for name in KERNELS if name not in MIXING])
def test_what_mixes_no_positions_is_not_asked_about_them(name):
    with pytest.raises(Absent, match="mix positions"):
        fails("OPN-4", run_of(name))


@EACH
def test_a_kernel_that_works_in_place_is_found(name):
    def in_place(*inputs):
        output = getattr(kernels, name)(*inputs)
        array = next(each for each in inputs if isinstance(each, np.ndarray) and each.dtype.kind == "f")
        array += 1
        return output

    assert "written to" in fails("OPN-3", run_of(name, in_place))


@EACH
def test_a_kernel_that_gives_other_bits_the_second_time_is_found(name):
    calls = []

    def drifting(*inputs):
        calls.append(1)
        return getattr(kernels, name)(*inputs) * (1 + len(calls) * 1e-15)

    assert "second time" in fails("OPN-3", run_of(name, drifting))


@EACH
def test_a_derivative_that_works_in_place_is_found(name):
    def in_place(*arguments):
        found = getattr(kernels, name + "_backward")(*arguments)
        given = [*arguments, *(arguments[2].values() if name == "block" else ())]
        array = [each for each in given if isinstance(each, np.ndarray) and each.dtype.kind == "f"][-1]
        array += 1
        return found if array is not arguments[0] else tuple(np.array(each) for each in found)

    assert "written to" in fails("OPN-2", run_of(name, backward=in_place))


@EACH
def test_without_a_derivative_what_to_add_is_said(name):
    run = run_of(name)
    run.__dict__["operation"] = replace(run.operation, backward=None)
    with pytest.raises(Absent, match="_backward"):
        fails("OPN-2", run)


@pytest.mark.parametrize("value", [None, np.zeros(3), np.zeros((1, 1, 1, 1, 1)), "text", [[1.0], [1.0, 2.0]]], ids=repr)
@EACH
def test_what_is_no_array_of_the_shape_is_a_finding(name, value):
    assert fails("OPN-1", run_of(name, lambda *inputs: value)).startswith(name)


@pytest.mark.parametrize("value", [None, (), (np.zeros(3),), np.full((2, 5, 12), np.nan), {"x": np.zeros(3)}], ids=repr)
@EACH
def test_what_is_no_gradient_is_a_finding(name, value):
    assert fails("OPN-2", run_of(name, backward=lambda *inputs: value))


def test_gradients_of_a_block_come_by_name():
    def nameless(*inputs):
        return kernels.block_backward(*inputs)[0], {}

    assert "no gradient of attention_norm.gain" in fails("OPN-2", run_of("block", backward=nameless))


@EACH
@pytest.mark.parametrize("requirement", ["OPN-1", "OPN-3"])
def test_a_kernel_that_raises_is_a_finding(name, requirement):
    def raising(*inputs):
        raise SystemExit(0)

    assert "raised SystemExit" in fails(requirement, run_of(name, raising))


@EACH
def test_a_kernel_in_float32_conforms_as_such_and_not_as_float64(name):
    def single(*inputs):
        def cast(value):
            if isinstance(value, dict):
                return {key: cast(each) for key, each in value.items()}
            return value.astype(np.float32) if isinstance(value, np.ndarray) and value.dtype == np.float64 else value

        return np.asarray(getattr(kernels, name)(*map(cast, inputs)), np.float32)

    as_declared = operation_run(f"{FILE}:{name}", name, profile="quick", precision="float32")
    as_declared.__dict__["operation"] = replace(as_declared.operation, forward=single)
    assert fails("OPN-1", as_declared) == ""
    if name != "embed":  # which rounds nothing: its parameters are float64 where that is declared
        assert "off by" in fails("OPN-1", run_of(name, single))


def test_limits_and_precision_of_a_function_are_its_own(tmp_path):
    source = FILE.read_text(encoding="utf-8")
    path = tmp_path / "limited.py"
    path.write_text(f'{source}\nsilu.limits = {{"tokens": [2]}}\nsilu.precision = "float32"\n', encoding="utf-8")
    run = operation_run(f"{path}:silu", "silu")
    assert {case.tokens for case in run.fixed} == {2}
    assert run.subject.recipe.declared == "float32"
