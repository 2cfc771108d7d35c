"""Running a command in a process of its own: an implementation that ends the process must not end it green."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

GUARDED = ("check", "explain", "bench")  # the commands that run somebody's code
SENTINEL = "DECODERSPEC_FINISHED"  # names the file that a command writes when it has come to its end
UNSAID = 2


def run(arguments: Sequence[str]) -> int:
    """The exit status of the command; 2, with a word, where its process ended before it did."""
    with tempfile.TemporaryDirectory() as folder:
        finished = Path(folder) / "finished"
        command = [sys.executable, "-m", "decoderspec.commands.main", *arguments]
        try:
            status = subprocess.call(command, env={**os.environ, SENTINEL: str(finished)})
        except KeyboardInterrupt:
            print("interrupted: no verdict", file=sys.stderr)
            return UNSAID
        if finished.exists():
            return status
    how = f"killed by signal {-status}" if status < 0 else f"ended with status {status}"
    print(
        f"decoderspec: the process was {how} before there was a verdict: the implementation, or a library of its,"
        " ended it in a call on valid input",
        file=sys.stderr,
    )
    return UNSAID


def finish() -> None:
    """Say that the command has come to its end, where somebody waits to hear it."""
    if SENTINEL in os.environ:
        Path(os.environ[SENTINEL]).touch()
