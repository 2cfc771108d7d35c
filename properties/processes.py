"""The same call in other processes: a new one, and one with another number of threads.

Graded, never required: nothing in the specification says that threads or processes must not change a last bit. The
parent starts two children at once, `python -m decoderspec.properties.processes`, each of which loads the implementation
by its name, answers and leaves its logits in a file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from decoderspec.properties.cases import Array, Case, arrays
from decoderspec.properties.loading import load
from decoderspec.properties.subject import Subject, read_subject
from decoderspec.spec.config import Config

THREADS = (  # what array libraries take the number of their threads from
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "RAYON_NUM_THREADS",
    "NPROC",
)  # fmt: skip
# Large enough that libraries do share its products out among threads, which they do not for a few hundred numbers.
WIDE = Case(Config(127, 192, 2, 192, 1, 64, 100.0, 1e-3), 1, 61, 1, note="wide enough for threads")
SECONDS = 120.0  # for a child: importing an array library on a busy machine takes its time
WEIGHTS = "weights"


def repeated(run: Any) -> dict[str, str]:
    """By kind of process: `bitwise`, within how much noise, `differs`, or why it was not asked."""
    if not run.name:
        reason = "not asked: it has no name by which another process could load it"
        return {"new process": reason, "another thread count": reason}
    if run.cases or run.only:
        return {}
    cases, threads = _cases(run), thread_count()
    expected = answers(run.subject, cases)
    other = {name: str(2 if threads == 1 else 1) for name in THREADS}
    with tempfile.TemporaryDirectory() as folder:
        children = {
            "new process": _Child(run, cases, Path(folder, "new.npz"), {}),
            "another thread count": _Child(run, cases, Path(folder, "threads.npz"), other),
        }
        found = {kind: child.answers() for kind, child in children.items()}
    return {kind: got if isinstance(got, str) else _grade(run, cases, expected, got) for kind, got in found.items()}


def thread_count() -> int:
    """How many threads this process was told to use, or else has processors for."""
    told = os.environ.get("OMP_NUM_THREADS", "")
    return int(told) if told.isdecimal() else os.cpu_count() or 1


def answers(subject: Subject, cases: Sequence[Case]) -> dict[str, Array]:
    """The logits of each case, and the weights of a checkpoint as a digest. Raises `Finding`."""
    found = {str(number): subject.model(case).logits(arrays(case)[0]) for number, case in enumerate(cases)}
    if subject.checkpoint is not None:
        digest = hashlib.sha256()
        for value in subject.checkpoint.parameters.values():
            digest.update(value.tobytes())
        found[WEIGHTS] = np.frombuffer(digest.digest(), np.uint8)
    return found


def _cases(run: Any) -> list[Case]:
    """The first fixed case and a wide one, where that is within the limits and no build or shape is dear."""
    from decoderspec.properties import strategies

    if run.subject.checkpoint is not None:
        return [run.fixed[0], run.fixed[-1]]
    wide = None if run.pool or run.is_dear else strategies.within(run.subject.limits, WIDE)
    return [run.fixed[0], *([wide] if wide else [])]


def _grade(run: Any, cases: Sequence[Case], expected: Mapping[str, Array], got: Mapping[str, Array]) -> str:
    """How far two processes agree."""
    from decoderspec.reference.limits import compare

    if not np.array_equal(got.get(WEIGHTS, 0), expected.get(WEIGHTS, 0)):
        return "not asked: load() hands out other weights there"
    changed = [number for number in range(len(cases)) if not np.array_equal(got[str(number)], expected[str(number)])]
    if not changed:
        return "bitwise"
    if run.sampled:
        return "differs"
    noise = 0.0
    for number in changed:
        before, after = expected[str(number)], got[str(number)]
        found = compare(after, (after - before) / np.sqrt(2), run.truth(cases[number]).units["logits"])
        if not found.conforms:
            return "differs"
        noise = max(noise, found.worst)
    return f"within {noise:.2g} x noise"


class _Child:
    """A process that gives the same answers."""

    def __init__(self, run: Any, cases: Sequence[Case], file: Path, environment: Mapping[str, str]) -> None:
        self.file = file
        request = {"name": run.name, "path": [str(place) for place in sys.path], "file": str(file)}
        request |= {"cases": [case.to_json() for case in cases], "threads": int(environment.get(THREADS[0], 0))}
        request |= {key: run.options.get(key) for key in ("precision", "claims")}
        # -P keeps the current directory out, whose files may bear the names of some library's.
        command = [sys.executable, "-P", "-m", "decoderspec.properties.processes"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            env={**os.environ, **environment}, text=True,
        )  # fmt: skip
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self.process.stdin as stdin:
            stdin.write(json.dumps(request))
        self.process.stdin = None  # `communicate` would flush it

    def answers(self) -> dict[str, Array] | str:
        """What it left, or why there is nothing."""
        try:
            _, printed = self.process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            return f"not asked: no answer within {SECONDS:g} s"
        if self.process.returncode:
            last = printed.strip().rpartition("\n")[2]
            return f"not asked: the process ended with status {self.process.returncode}: {last[:200]}"
        with np.load(self.file) as given:
            return {name: given[name] for name in given.files}


def main() -> None:
    """Answer one request, and end without waiting for what the implementation leaves running."""
    request = json.loads(sys.stdin.read())
    sys.path.extend(place for place in request["path"] if place not in sys.path)
    subject = read_subject(load(request["name"]), request["precision"], request["claims"])
    torch = sys.modules.get("torch")
    if torch is not None and request["threads"]:  # an adapter may have set it on import
        torch.set_num_threads(request["threads"])
    found: Any = answers(subject, [Case.from_json(case) for case in request["cases"]])
    np.savez(request["file"], **found)
    os._exit(0)


if __name__ == "__main__":
    main()
