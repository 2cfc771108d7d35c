"""One call under watch: what it raised, how long it took, what it allocated, and what it did to the machine.

Time is processor time (`SECONDS`), and ten times that by the clock for what sleeps. Memory is the address space, which
may grow by `room` bytes during the call: what wants more gets a `MemoryError`. An audit hook of Python sees each file
that is opened for writing, moved or removed, each program and connection, each code object that is executed, and each
class that is unpickled.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import sysconfig
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np

from decoderspec.properties.findings import HOUSE as OURS
from decoderspec.spec.errors import ERRORS

SECONDS = 10.0
SHOWN = 4000  # characters that an error may have: a message is to be read
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.chmod", "os.truncate")
PROGRAMS = (
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.fork",
    "os.posix_spawn",
    "socket.connect",
    "pickle.find_class",
)
PLACES = tuple(str(Path(place).resolve()) for place in sysconfig.get_paths().values())
HOUSE = tuple(map(str, OURS))


class Hung(BaseException):
    """The time was over."""


@dataclass
class Seen:
    """What the audit hook saw during one call."""

    armed: bool = False
    outputs: tuple[str, ...] = ()  # files and folders that may be written
    sources: tuple[str, ...] = ()  # files and folders whose code may be executed
    programs: bool = False
    deeds: list[str] = field(default_factory=list)

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Note what may not be; what would change a file elsewhere is stopped as well."""
        if not self.armed:
            return
        if (event == "open" and _is_writing(arguments)) or event in CHANGES:
            if not _within(arguments[0], (*self.outputs, os.devnull)):
                self.deeds.append(f"{event} of {arguments[0]!r:.200}")
                raise PermissionError(f"the fuzz keeps {arguments[0]!r:.200} from being changed")
        elif event in PROGRAMS and not self.programs:
            self.deeds.append(f"{event} {arguments!r:.200}")
            raise PermissionError(f"the fuzz keeps {event} from happening")
        elif event == "exec" and isinstance(arguments[0], CodeType):
            name, by = arguments[0].co_filename, sys._getframe(1).f_code.co_filename
            made = name == "<string>" and not _within(by, HOUSE)  # the standard library writes classes of records so
            if not made and not name.startswith("<frozen ") and not _within(name, (*PLACES, *HOUSE, *self.sources)):
                self.deeds.append(f"code of {name!r:.200} was executed")


def _is_writing(arguments: tuple[Any, ...]) -> bool:
    """Whether an `open` event is one for writing a file by its name."""
    return not isinstance(arguments[0], int) and bool(arguments[2] & WRITING)


def _within(path: Any, places: Collection[str]) -> bool:
    try:
        real = os.path.realpath(os.fsdecode(path))
    except (TypeError, ValueError):
        return False
    return any(real == place or real.startswith(place.rstrip(os.sep) + os.sep) for place in places)


SEEN = Seen()


def install() -> None:
    """Put the audit hook in place; Python has no way to take one out, so it is idle between calls."""
    if not getattr(install, "done", False):
        sys.addaudithook(SEEN.hear)
        install.done = True  # type: ignore[attr-defined]
        sys.dont_write_bytecode = True


@contextmanager
def _limited(room: int) -> Iterator[None]:
    """A limit of processor time, of time by the clock, and of address space."""

    def over(*_: object) -> None:
        raise Hung

    before = resource.getrlimit(resource.RLIMIT_AS)
    handlers = [(number, signal.signal(number, over)) for number in (signal.SIGPROF, signal.SIGALRM)]
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + room, before[1]))
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.setitimer(signal.ITIMER_REAL, 10 * SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        resource.setrlimit(resource.RLIMIT_AS, before)
        for number, handler in handlers:
            signal.signal(number, handler)


@dataclass(frozen=True)
class Judgement:
    """`valid`, `refused` with the kind of refusal, or `bug` with what was wrong."""

    status: str
    words: str = ""


def judge(
    call: Callable[[], object],
    refusals: tuple[type[Exception], ...],
    *,
    room: int,
    outputs: Collection[Path] = (),
    sources: Collection[Path] = (),
    programs: bool = False,
) -> Judgement:
    """Make the call and say what became of it."""
    install()
    SEEN.deeds, SEEN.programs = [], programs
    SEEN.outputs, SEEN.sources = (tuple(os.path.realpath(each) for each in group) for group in (outputs, sources))
    state, raised = (np.geterr(), os.getcwd()), None
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            with _limited(room):
                SEEN.armed = True
                call()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raised = error
        finally:
            SEEN.armed = False
    wrong = _wrong(raised, refusals)
    if not wrong and SEEN.deeds:
        wrong = SEEN.deeds[0]
    if not wrong and warned:
        wrong = f"a warning was printed: {warned[0].category.__name__}: {warned[0].message!s:.200}"
    if not wrong and (np.geterr(), os.getcwd()) != state:
        wrong = "the error state of NumPy or the current folder was changed"
    if wrong:
        return Judgement("bug", wrong)
    return Judgement("valid") if raised is None else Judgement("refused", kind(raised))


def kind(error: BaseException) -> str:
    """The code of a refusal that has one, down to the one that caused it; else its class."""
    chain = getattr(error, "chain", None)
    return str(chain()[-1]) if chain else type(error).__name__


def _wrong(raised: BaseException | None, refusals: tuple[type[Exception], ...]) -> str:
    """What is wrong with what was raised; empty where nothing is."""
    if raised is None:
        return ""
    if isinstance(raised, Hung):
        return f"it took more than {SECONDS:g} s of processor time, or ten times that by the clock"
    if not isinstance(raised, refusals):
        return f"{type(raised).__name__} came out of {_place(raised)}: {raised!s:.200}"
    words = str(raised)
    if not words.strip() or len(words) > SHOWN:
        return f"{type(raised).__name__} has a message of {len(words)} characters"
    if "Traceback" in words or "MemoryError" in words:
        return f"{type(raised).__name__} shows the inside: {words[:200]}"
    if getattr(raised, "code", next(iter(ERRORS))) not in ERRORS:
        return f"{type(raised).__name__} has the code {raised.code!r}, which is not in the table"  # type: ignore[attr-defined]
    return ""


def _place(error: BaseException) -> str:
    """File and line of the last frame."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return f"{Path(at.tb_frame.f_code.co_filename).name}:{at.tb_lineno}" if at else "nowhere"
