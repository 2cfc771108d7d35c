"""A bank of wrong kernels, forward and backward: `--as` kills every one of them, and lets right ones pass."""

from dataclasses import replace

import kernels
import numpy as np
import pytest
from kernels import attend, silu
from wrong_kernels import BACKWARD, FORWARD, buffered, overflowing

from decoderspec.faults.numbers import storing
from decoderspec.properties import test_operation
from decoderspec.properties.cases import STYLES
from decoderspec.properties.findings import Absent, Finding
from decoderspec.properties.kernels import KERNELS
from decoderspec.properties.operation import OperationCase
from decoderspec.properties.registry import PROPERTIES, examine
from decoderspec.properties.run import Entry
from decoderspec.properties.session import operation_run
from decoderspec.reference.operations import OPERATIONS
from decoderspec.reference.tape import Tape, accumulate
from decoderspec.spec.precision import recipe

OPERATION = sorted(  # the quick ones first
    (found for found in PROPERTIES if found.check.__module__ == test_operation.__name__), key=lambda found: found.long
)


def killers(name, requirements=("OPN-1", "OPN-2", "OPN-3", "OPN-4"), precision=None, profile="default", **changed):
    """The requirements that fail on the fixed cases, the first of them or none."""
    run = operation_run(f"{kernels.__file__}:{name}", name, precision=precision, profile=profile)
    run.__dict__["operation"] = replace(run.operation, **changed)
    for found in OPERATION:
        run.entry = Entry()
        try:
            with np.errstate(all="ignore"):
                if found.requirements[0] in requirements:
                    examine(run, replace(found, search=False))
        except Finding:
            return found.requirements[0]
        except Absent:
            continue
    return None


def ids(keys):
    return [f"{name}: {what}" for name, what in keys]


@pytest.mark.parametrize("key", FORWARD, ids=ids(FORWARD))
def test_a_wrong_forward_is_killed(key):
    assert killers(key[0], forward=FORWARD[key]) in ("OPN-1", "OPN-3", "OPN-4")


@pytest.mark.parametrize("key", BACKWARD, ids=ids(BACKWARD))
def test_a_wrong_derivative_is_killed(key):
    assert killers(key[0], ["OPN-2"], backward=BACKWARD[key]) == "OPN-2"


@pytest.mark.parametrize("name", sorted(set(KERNELS) - {"block"}))
def test_a_right_kernel_passes_every_fixed_case(name):
    assert killers(name) is None


def test_one_output_for_each_shape_is_seen_from_the_derivative_too():
    forward = buffered(attend)

    def overwriting(upstream, *inputs):
        forward(*inputs)
        return kernels.attend_backward(upstream, *inputs)

    assert killers("attend", ["OPN-2"], forward=forward, backward=overwriting) == "OPN-2"


@pytest.mark.parametrize("name", ["silu", "swiglu"])
def test_loud_gates_overflow_float32_where_that_is_declared(name):
    def wrong(gate, up=1.0):
        return overflowing(gate.astype(np.float32)) * np.asarray(up, np.float32)

    def right(gate, up=1.0):
        return silu(gate.astype(np.float32)) * np.asarray(up, np.float32)

    assert killers(name, ["OPN-1"], "float32", forward=wrong) == "OPN-1"
    assert killers(name, ["OPN-1"], "float32", forward=right) is None


def stored_in(name, precision):
    """The reference's composition with every result and gradient rounded, forward and derivative."""
    operations, kernel = storing(recipe(precision), OPERATIONS), KERNELS[name]

    def backward(upstream, *inputs):
        tape, real = Tape(), [x for x in inputs if isinstance(x, np.ndarray) and x.dtype.kind == "f"]
        output = kernel.compute(tape.recording(operations), *inputs)
        leaves = {str(place): x for place, x in enumerate(real)}
        return tuple(accumulate(tape, np.broadcast_to(upstream, output.shape), leaves).leaves.values())

    return {"forward": lambda *inputs: kernel.compute(operations, *inputs), "backward": backward}


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", sorted(set(KERNELS) - {"block"}))
def test_a_right_kernel_of_16_bits_passes_every_quick_case(name, precision):
    right = stored_in(name, precision)
    assert killers(name, ["OPN-1", "OPN-2"], precision, "quick", **right) is None


@pytest.mark.parametrize("style", [*STYLES, "loud", "shouting"])
@pytest.mark.parametrize("name", KERNELS)
def test_what_is_true_is_finite_in_float16(name, style):
    run = operation_run(f"{kernels.__file__}:{name}", name, precision="float16")
    case = replace(run.fixed[0], config=replace(run.fixed[0].config, feed_forward_width=1), style=style)
    example = OperationCase(run.operation, case)
    found = [*example.outputs(OPERATIONS).values(), *example.slopes(OPERATIONS).values(), *example.inputs.values()]
    assert all(np.isfinite(np.asarray(each).astype(np.float16)).all() for each in found)


def test_every_operation_is_in_the_bank():
    for bank in (FORWARD, BACKWARD):
        assert {name for name, _ in bank} == set(KERNELS)


def test_every_property_of_operations_kills():
    forward = {killers(name, forward=FORWARD[name, what]) for name, what in FORWARD if name in ("add", "attend")}
    assert forward | {"OPN-2"} == {each.requirements[0] for each in OPERATION}
