"""Seconds of a call without those in which it stood in line for a processor.

On a machine that others use too, a call of more than a few milliseconds is interrupted, and one of less is not: plain
wall time then makes long calls slower than short ones, whatever they do. Linux tells how long a thread was ready to run
and did not (`schedstat`, the second field, in nanoseconds). Waiting for a device is not waiting in line, and counts.
Where the system does not tell, the time is plain wall time.
"""

import os
import time
from collections.abc import Callable
from typing import Any

SMALLEST = 1e-9


def _opened() -> int | None:
    """The counters of the thread that imports this, which is the one that measures."""
    try:
        return os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


_SCHEDSTAT = _opened()


def waited() -> float:
    """Seconds that this thread has stood in line so far; 0 where the system does not tell."""
    if _SCHEDSTAT is None:
        return 0.0
    try:
        return int(os.pread(_SCHEDSTAT, 100, 0).split()[1]) * 1e-9
    except (OSError, ValueError, IndexError):
        return 0.0


def timed(call: Callable[[], Any]) -> float:
    """Seconds that a call takes."""
    before, start = waited(), time.perf_counter()
    call()
    taken = time.perf_counter() - start
    return max(SMALLEST, taken - (waited() - before))


def own_time() -> float:
    """Seconds from some beginning, without those spent in line."""
    return time.perf_counter() - waited()
