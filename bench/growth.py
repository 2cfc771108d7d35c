"""How time and peak memory grow with T, d, N and V, beside what the formulas say: an accidental quadratic shows.

The expected exponents are slopes of counts at the very sizes that are measured, not asymptotes: for time that of the
multiplications and that of the numbers written, for memory those of the largest stage and of the sum of all stages.
An implementation is flagged when all of its interval lies above the larger of the two by more than `BEYOND`.

Memory is what Python's allocator saw or the growth of the process's resident peak (Linux), whichever is more; a device
is seen where the implementation offers `peak_memory()`, the bytes held at most since it was last asked.
"""

from __future__ import annotations

import contextlib
import ctypes
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from decoderspec.bench.clock import timed
from decoderspec.bench.engine import finisher
from decoderspec.bench.verdict import Slope, slope
from decoderspec.bench.work import BACKWARD, Size, covered, largest_step, numbers, products
from decoderspec.properties.cases import Case, arrays
from decoderspec.properties.checkpoint import BUILD
from decoderspec.properties.findings import Absent
from decoderspec.properties.subject import Subject, called, fresh, offers
from decoderspec.spec.config import Config
from decoderspec.spec.parameters import parameter_count

BEYOND = 0.5
SWEEPS, CALLS = 5, 2  # the best of so many calls is the time in a sweep


def _along(axis: str, base: Config, batch: int, values: Sequence[int]) -> tuple[Size, ...]:
    """Sizes that differ in one axis."""
    if axis == "T":
        return tuple(Size(f"T={t}", replace(base, max_positions=t), batch, t) for t in values)
    field = {"d": "model_width", "N": "layers", "V": "vocabulary_size"}[axis]
    tokens = base.max_positions
    return tuple(Size(f"{axis}={n}", replace(base, **{field: n}), batch, tokens) for n in values)


AXES = {
    "T": _along("T", Config(16, 16, 1, 16, 1, 1), 1, (128, 256, 512, 1024)),
    "d": _along("d", Config(16, 64, 2, 128, 1, 64), 1, (64, 128, 256, 512)),
    "N": _along("N", Config(16, 64, 2, 128, 1, 64), 1, (2, 4, 8, 16)),
    "V": _along("V", Config(500, 32, 2, 16, 1, 32), 1, (2000, 4000, 8000, 16000)),
}


@dataclass(frozen=True)
class Growth:
    """One exponent: of what in which measure along which axis, and the range that the formulas say."""

    what: str  # time or memory
    measure: str
    axis: str
    found: Slope
    expected: tuple[float, float]

    @property
    def suspicious(self) -> bool:
        """Whether it grows faster than the formulas by more than can be noise."""
        return self.found.low > self.expected[1] + BEYOND


def measure(subject: Subject) -> list[Growth]:
    """Every exponent of forward and gradients along the axes that the limits leave at least three sizes of.

    Raises `Absent` for a checkpoint, whose sizes are what they are.
    """
    if subject.checkpoint is not None:
        raise Absent(f"growth is fitted over sizes: {BUILD}")
    found = []
    for axis, sizes in AXES.items():
        inside, _ = covered(subject.limits, sizes)
        if len(inside) >= 3:
            found += _along_axis(subject, axis, inside)
    return found


def _along_axis(subject: Subject, axis: str, sizes: Sequence[Size]) -> list[Growth]:
    rows: dict[tuple[str, str], list[list[float]]] = {}
    for sweep in range(SWEEPS):
        for size in sizes:
            for key, value in _once(subject, size, with_memory=sweep == 0).items():
                by_sweep = rows.setdefault(key, [])
                by_sweep += [[] for _ in range(sweep + 1 - len(by_sweep))]
                by_sweep[sweep].append(value)
    x = [_value(axis, size) for size in sizes]
    return [
        Growth(what, name, axis, slope(x, by_sweep), expected(what, name, x, sizes))
        for (what, name), by_sweep in rows.items()
    ]


def _value(axis: str, size: Size) -> int:
    c = size.config
    return {"T": size.tokens, "d": c.model_width, "N": c.layers, "V": c.vocabulary_size}[axis]


def _once(subject: Subject, size: Size, *, with_memory: bool) -> dict[tuple[str, str], float]:
    """Seconds of each measure on a fresh model, and bytes if they are wanted."""
    case = Case(size.config, size.batch, size.tokens)
    model = called(
        "build", subject.implementation.build, size.config, subject.theirs(size.config, subject.parameters(case))
    )
    tokens, targets = (fresh(each) for each in arrays(case))
    finish, found = finisher(subject.implementation), dict[tuple[str, str], float]()
    for name, method, arguments in (("forward", "logits", (tokens,)), ("gradients", "gradients", (tokens, targets))):
        if not offers(model, method):
            continue
        function = getattr(model, method)

        def call(function: Any = function, arguments: Any = arguments) -> None:
            finish(function(*arguments))

        called(name, call)
        found["time", name] = min(timed(call) for _ in range(CALLS))
        if with_memory:
            found["memory", name] = max(1, peak(call, subject.implementation))
    if offers(model, "close"):
        called("close", model.close)
    return found


def expected(what: str, name: str, x: Sequence[int], sizes: Sequence[Size]) -> tuple[float, float]:
    """The smaller and the larger of the formulas' slopes at these sizes."""
    times = BACKWARD if name == "gradients" else 1
    if what == "time":
        counts = [[times * products(size) for size in sizes], [times * numbers(size) for size in sizes]]
    else:
        kept = [parameter_count(size.config) if name == "gradients" else 0 for size in sizes]
        counts = [
            [count(size) + more for size, more in zip(sizes, kept, strict=True)] for count in (largest_step, numbers)
        ]
    slopes = sorted(slope(x, [row]).middle for row in counts)
    return slopes[0], slopes[-1]


# --- Memory ---


def peak(call: Callable[[], Any], implementation: Any) -> int:
    """Bytes that a call holds at most beyond what was held before it."""
    if offers(implementation, "peak_memory"):
        implementation.peak_memory()
        call()
        return int(implementation.peak_memory())
    resident = _resident_growth(call)
    tracemalloc.start()
    try:
        call()
        return max(tracemalloc.get_traced_memory()[1], resident)
    finally:
        tracemalloc.stop()


def _resident_growth(call: Callable[[], Any]) -> int:
    """How far the resident peak rises during a call; 0 where the system does not tell."""
    reset = Path("/proc/self/clear_refs")
    with contextlib.suppress(OSError, AttributeError):  # a libc without it keeps freed pages, and hides some growth
        ctypes.CDLL(None).malloc_trim(0)
    try:
        reset.write_text("5", encoding="ascii")
        before = _status("VmRSS")
        call()
        return max(0, _status("VmHWM") - before)
    except OSError:
        return 0


def _status(field: str) -> int:
    """A field of the process's memory, in bytes."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field):
            return 1024 * int(line.split()[1])
    return 0


# --- Words ---


def table(grown: Sequence[Growth]) -> list[str]:
    """A line for each exponent."""
    if not grown:
        return []
    lines = ["", f"{'growth of':<18} {'in':<3} {'exponent':<22} the formulas at these sizes"]
    for each in grown:
        ends = f"{each.found.middle:.2f} [{each.found.low:.2f}, {each.found.high:.2f}]"
        low, high = each.expected
        said = f"{low:.2f}" if high - low < 0.005 else f"{low:.2f} to {high:.2f}"
        flag = "  GROWS FASTER" if each.suspicious else ""
        lines.append(f"{each.measure + ' ' + each.what:<18} {each.axis:<3} {ends:<22} {said}{flag}")
    return lines


def to_json(each: Growth) -> dict[str, Any]:
    """One exponent as plain data."""
    return {
        "what": each.what, "measure": each.measure, "axis": each.axis, "exponent": vars(each.found),
        "expected": list(each.expected), "faster": each.suspicious,
    }  # fmt: skip
