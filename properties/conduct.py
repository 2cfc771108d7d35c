"""What an implementation does beside answering: what reaches beyond its own call is put back and told.

None of it breaks a requirement of the text. It is put back so that what is tested next starts from the same state, and
told since it would surprise whoever uses the implementation.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from decoderspec.adapters.process import OURS
from decoderspec.spec.shown import cut

SLOW = 10.0  # seconds of one call
NUMPY = {  # before anybody's code is run
    module: {name: value for name, value in vars(module).items() if not name.startswith("_")}
    for module in (np, np.linalg, np.random)
}
NOTED: dict[str, None] = {}  # in the order in which it was seen
SPENT = [0.0]  # seconds of all calls since they were asked for


def taken() -> list[str]:
    """What was noted since this was asked last."""
    found = list(NOTED)
    NOTED.clear()
    return found


def spent() -> float:
    """Seconds that the implementation took for all calls since this was asked last."""
    total, SPENT[0] = SPENT[0], 0.0
    return total


@contextlib.contextmanager
def watched(what: str) -> Iterator[None]:
    """Put back what the code within changes, and note it of `what`, such as `logits`."""
    before = _State()
    try:
        yield
    finally:
        SPENT[0] += time.perf_counter() - before.started
        NOTED.update(dict.fromkeys(f"{what} {effect}" for effect in before.put_back()))


class _Overheard:
    """A stream that passes on what is written, and knows that something was."""

    def __init__(self, stream: Any) -> None:
        self.stream, self.heard = stream, False

    def write(self, text: str) -> Any:
        """What the stream says."""
        self.heard = True
        return self.stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@dataclass
class _State:
    """The state of the process that a call may not change, as it is when this is made."""

    started: float = field(default_factory=time.perf_counter)
    errors: Any = field(default_factory=np.geterr)
    drawn: Any = field(default_factory=lambda: (random.getstate(), _numpy_random()))
    folder: str = field(default_factory=lambda: _folder())
    threads: int = field(default_factory=lambda: _threads())
    output: Any = field(default_factory=lambda: sys.stdout)
    overheard: _Overheard = field(init=False)

    def __post_init__(self) -> None:
        self.overheard = _Overheard(self.output)
        sys.stdout = self.overheard

    def put_back(self) -> Iterator[str]:
        """Yield what was changed, in words, once it is as it was."""
        if self.overheard.heard:
            yield "prints to standard output"
        if sys.stdout is not self.overheard:
            yield "replaces standard output"
        sys.stdout = self.output
        if names := _replaced():
            yield f"replaces functions of NumPy: {cut(', '.join(names), 100)}"
        if np.geterr() != self.errors:
            np.seterr(**self.errors)
            yield "changes the error state of NumPy"
        if (random.getstate(), _numpy_random()) != self.drawn:
            random.setstate(self.drawn[0])
            np.random.set_state(_as_state(self.drawn[1]))  # noqa: NPY002 - the global state is what is looked after
            yield "draws from the global random state, or sets it"
        if _folder() != self.folder:  # left as it is, since it may be where the implementation looks for its weights
            yield "changes the current folder"
        if _threads() > self.threads:
            yield "leaves threads running"
        if (seconds := time.perf_counter() - self.started) > SLOW:
            yield f"takes {seconds:.0f} s for one call"


def _threads() -> int:
    """How many threads run, but for those of ours that look after a child."""
    return sum(not thread.name.startswith(OURS) for thread in threading.enumerate())


def _numpy_random() -> tuple[Any, ...]:
    """The state of NumPy's global generator as something that can be compared."""
    state: Any = np.random.get_state()  # noqa: NPY002 - the global state is what is looked after
    return state[0], state[1].tobytes(), *state[2:]


def _as_state(state: tuple[Any, ...]) -> Any:
    name, keys, *rest = state
    return name, np.frombuffer(keys, np.uint32), *rest


def _folder() -> str:
    """The current folder; empty where it was removed."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def _replaced() -> list[str]:
    """Names of NumPy that stand for something else than they did, set back."""
    found = []
    for module, kept in NUMPY.items():
        now = vars(module)
        with contextlib.suppress(Exception):  # what was put there may refuse to be compared
            if kept.items() <= now.items():  # the very same values: nothing is compared but identities
                continue
        for name, value in kept.items():
            if now.get(name) is not value:
                setattr(module, name, value)
                found.append(f"{module.__name__}.{name}")
    return found
