"""Measuring somebody's engine: each call between two runs of a yardstick, in visits spread over the whole run.

A visit builds a model afresh and times a few pairs of each measure; then comes the next size, and after all of them the
next sweep. Where a build is dear, a size's visits share one model and come in a row. All of it is done in several
processes, one after the other (`bench.process`).

An implementation may offer, on itself:

    yardstick(rows, inner, columns, products, numbers, sweeps) -> a function of no arguments that carries out so many
        products `[rows, inner] @ [inner, columns]` and sweeps that read and write so many numbers, on its device
    synchronize()   returns when everything that was asked of the device is done

Without `synchronize`, results that are not on the CPU are read into NumPy within the time.
"""

from __future__ import annotations

import gc
import itertools
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import log, sqrt
from statistics import median
from typing import Any

import numpy as np

from decoderspec.bench.clock import own_time, timed
from decoderspec.bench.work import MEASURES, Load, Size, load
from decoderspec.properties.cases import Case, arrays
from decoderspec.properties.findings import Finding
from decoderspec.properties.loading import FunctionImplementation
from decoderspec.properties.run import DEAR_BUILD
from decoderspec.properties.subject import Subject, called, fresh, offers
from decoderspec.spec.arrays import to_numpy

Call = Callable[[], Any]
Pair = tuple[float, float]  # seconds of the call, and of the yardstick around it


@dataclass(frozen=True)
class Plan:
    """How long to look: seconds in all, so many processes, and sweeps in each."""

    seconds: float
    processes: int
    sweeps: int

    @property
    def share(self) -> float:
        """Seconds of one process."""
        return self.seconds / self.processes


PLANS = {"quick": Plan(6, 4, 3), "default": Plan(42, 6, 4), "thorough": Plan(300, 14, 6)}  # by profile


@dataclass(frozen=True)
class Figure:
    """One measure at one size: the visits of each process, each with its pairs."""

    measure: str
    size: Size
    processes: list[list[list[Pair]]] = field(default_factory=list)

    @property
    def logs(self) -> list[float]:
        """Of each process, the median over visits of the median over pairs of the log ratio."""
        return [
            median(median(log(call / yard) for call, yard in pairs) for pairs in visits) for visits in self.processes
        ]

    @property
    def seconds(self) -> list[float]:
        """Of every call, in the order in which they were made."""
        return [call for visits in self.processes for pairs in visits for call, _ in pairs]

    @property
    def tokens_per_second(self) -> float:
        """At the median time of a call."""
        return self.size.positions / median(self.seconds)


def measure(subject: Subject, sizes: Sequence[Size], plan: Plan, seed: int = 0) -> list[Figure]:
    """One process's part: every measure that is offered at every size.

    Raises `Finding` for a call that fails on valid input.
    """
    benches = [_Bench(subject, size) for size in sizes]
    share = plan.share / plan.sweeps / max(1, sum(len(bench.visits) for bench in benches))
    if any(bench.build_seconds > DEAR_BUILD for bench in benches):
        schedule = [[bench] * plan.sweeps for bench in benches]
    else:
        order = random.Random(seed)
        schedule = [order.sample(benches, len(benches)) for _ in range(plan.sweeps)]
    for bench in itertools.chain.from_iterable(schedule):
        bench.visit(share)
    for bench in benches:
        bench.close()
    return [Figure(name, bench.size, [visits]) for bench in benches for name, visits in bench.visits.items()]


class _Bench:
    """One size: what is handed to the implementation, and what was measured."""

    def __init__(self, subject: Subject, size: Size) -> None:
        self.subject, self.size = subject, size
        case = Case(size.config, size.batch, size.tokens)
        self.stands = subject.checkpoint.model if subject.checkpoint else None  # loaded once, by no call of ours
        self.theirs = {} if subject.checkpoint else subject.theirs(size.config, subject.parameters(case))
        self.tokens, self.targets = (fresh(each) for each in arrays(case))
        self.finish = finisher(subject.implementation)
        start = time.perf_counter()
        self.model = called("build", self._build)
        self.build_seconds = time.perf_counter() - start
        self.calls = self._calls()
        for name, call in self.calls.items():
            called(name, call)  # the first call may compile, and is where a failure is told as one
        self.visits: dict[str, list[list[Pair]]] = {name: [] for name in MEASURES if name in {"build", *self.calls}}
        if subject.checkpoint or isinstance(subject.implementation, FunctionImplementation):
            del self.visits["build"]  # nothing is built
        self.yards = {name: yardstick(subject, load(name, size)) for name in self.visits}

    def _build(self) -> Any:
        if self.stands is not None:
            return self.stands
        model = self.subject.implementation.build(self.size.config, dict(self.theirs))
        self.finish(None)
        return model

    def _calls(self) -> dict[str, Call]:
        """The timed calls of the model that is at hand."""
        both = (self.tokens, self.targets)
        asked: Mapping[str, tuple[str, tuple[Any, ...]]] = {
            "forward": ("logits", (self.tokens,)), "loss": ("loss", both), "gradients": ("gradients", both),
        }  # fmt: skip
        return {
            measure: self._call(getattr(self.model, method), arguments)
            for measure, (method, arguments) in asked.items()
            if offers(self.model, method)
        }

    def _call(self, method: Callable[..., Any], arguments: tuple[Any, ...]) -> Call:
        finish = self.finish
        return lambda: finish(method(*arguments))

    def visit(self, seconds: float) -> None:
        """A model afresh unless that is dear, then pairs of each measure for so many seconds each."""
        if self.build_seconds <= DEAR_BUILD:
            self.close()
            self.model = self._build()
            self.calls = self._calls()
        for name, visits in self.visits.items():
            if name == "build":
                if self.build_seconds > DEAR_BUILD and visits:
                    continue  # once, where it is dear
                call: Call = self._build_and_close
            else:
                call = self.calls[name]
                call()  # caches that a fresh model fills
            visits.append(pairs(call, self.yards[name], seconds))

    def _build_and_close(self) -> None:
        model = self._build()
        if offers(model, "close"):
            model.close()

    def close(self) -> None:
        """Let go of a model that was built."""
        if self.model is not self.stands and offers(self.model, "close"):
            called("close", self.model.close)
        self.model, self.calls = None, {}


def pairs(call: Call, yard: Call, seconds: float) -> list[Pair]:
    """Calls with the geometric mean of the yardsticks before and after each, for so long; one pair at least."""
    found: list[Pair] = []
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yard()
        until = own_time() + seconds
        before = timed(yard)
        while not found or own_time() < until:
            taken, after = timed(call), timed(yard)
            found.append((taken, sqrt(before * after)))
            before = after
    finally:
        if enabled:
            gc.enable()
    return found


# --- Their runtime ---


def finisher(implementation: Any) -> Callable[[Any], Any]:
    """What makes sure that a result is there: their `synchronize`, or else reading what may not be."""
    if offers(implementation, "synchronize"):
        return lambda _result: implementation.synchronize()
    return _read


def _read(result: Any) -> None:
    for value in result.values() if isinstance(result, Mapping) else (result,):
        if (
            value is not None
            and not isinstance(value, (float, np.generic))
            and str(getattr(value, "device", "")) != "cpu"
        ):
            to_numpy(value)


def yardstick_name(subject: Subject) -> str:
    """What the yardstick is carried out by: figures are comparable only where it is the same."""
    if offers(subject.implementation, "yardstick"):
        return "its own"
    return f"NumPy {_dtype(subject).__name__}"


def _dtype(subject: Subject) -> type[np.floating[Any]]:
    """The declared precision, where NumPy multiplies matrices in it; float32 below."""
    return np.float64 if subject.recipe.results.name == "float64" else np.float32


def yardstick(subject: Subject, work: Load) -> Call:
    """A function that carries out the work: theirs where they offer one, else NumPy's."""
    if offers(subject.implementation, "yardstick"):
        arguments = (work.rows, work.inner, work.columns, work.products, work.numbers, work.sweeps)
        theirs = called("yardstick", subject.implementation.yardstick, *arguments)
        if not callable(theirs):
            raise Finding(f"yardstick returned {type(theirs).__name__}, which is no function to time", "yardstick")
        finish = finisher(subject.implementation)
        return lambda: finish(theirs())
    drawn, dtype = np.random.default_rng(0), _dtype(subject)
    left, right = (drawn.normal(size=s).astype(dtype) for s in ((work.rows, work.inner), (work.inner, work.columns)))
    product, source = left @ right, drawn.normal(size=work.numbers).astype(dtype)
    target = np.empty_like(source)

    def numpy() -> None:
        for _ in range(work.products):
            np.matmul(left, right, out=product)
        for _ in range(work.sweeps):
            np.negative(source, out=target)

    return numpy
