"""Bad input is asked in a spawned process, since it can poison a device or kill whoever runs it.

`ask` is the parent. It starts `python -m decoderspec.properties.child`, writes one JSON line on its standard input
(what to load, which probes to ask) and reads one JSON line for each probe. The child answers on a duplicate of its
standard output and turns the output itself away, so that nothing the implementation prints can reach the parent as an
answer. Where the child dies, hangs or is left unusable, another one goes on with the next probe.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from decoderspec.properties.bad_input import PROBES, REQUIREMENTS
from decoderspec.properties.cases import Array
from decoderspec.properties.grading import DIED, HUNG, Grade, grade, not_judged, spoiled
from decoderspec.properties.loading import load
from decoderspec.properties.probe import Probe, Setting
from decoderspec.properties.subject import read_subject, words
from decoderspec.spec.shown import cut

LOAD_SECONDS = 60.0  # at least: importing an array library from a cold disk is slow
CLOSE_SECONDS = 2.0
RESTARTS = 40
POLL_SECONDS = 0.1  # how soon a death is seen where a process left behind keeps the channel open
TAIL = 2000  # characters of what the child printed last


class ChildError(Exception):
    """The implementation cannot be loaded by its name in a process of its own."""


@dataclass(frozen=True)
class Outcome:
    """The answer to one probe. `ok` is false when the requirement does not hold; true also where nothing was judged."""

    probe: str
    requirement: str
    sentence: str  # what is bad, or what is valid
    expected: tuple[str, ...]  # the categories of a right refusal; none where the input is valid and must be taken
    grade: str
    detail: str
    ok: bool
    judged: bool


def ask(
    name: str,
    *,
    precision: str | Mapping[str, str] | None = None,
    claims: Sequence[str] | None = None,
    timeout: float = 60.0,
    requirements: Collection[str] | None = None,
    restarts: int = RESTARTS,
) -> list[Outcome]:
    """Ask the implementation of that name (as in `loading.load`) for refusals: an outcome for each probe, in order.

    `timeout` is in seconds, for each probe. Raises `ChildError` where the name cannot be loaded.
    """
    unknown = set(requirements or ()) - set(REQUIREMENTS)
    if unknown:
        raise ValueError(f"no probes for {', '.join(sorted(unknown))}; allowed: {', '.join(REQUIREMENTS)}")
    request = {"name": name, "precision": precision, "claims": claims, "path": [str(p) for p in sys.path]}
    waiting = asked = [p for p in PROBES.values() if requirements is None or p.requirement in requirements]
    found: dict[str, Outcome] = {}
    for _ in range(1 + restarts):
        found |= {probe.id: _outcome(probe, skip) for probe in waiting if (skip := _fatal(probe, found))}
        waiting = [probe for probe in waiting if probe.id not in found]
        if not waiting:
            break
        found |= {outcome.probe: outcome for outcome in _session(request, waiting, timeout)}
    left = not_judged(f"not asked: {restarts} restarts of the process were not enough")
    return [found.get(probe.id) or _outcome(probe, left) for probe in asked]


def _fatal(probe: Probe, found: Mapping[str, Outcome]) -> Grade | None:
    """The grade of a probe that would only repeat a death."""
    before = found.get(probe.after)
    if before is None or before.grade not in (DIED, HUNG):
        return None
    return not_judged(f"{before.probe} {before.grade}")


def _outcome(probe: Probe, given: Grade) -> Outcome:
    return Outcome(probe.id, probe.requirement, probe.sentence, probe.expected, **asdict(given))


def _session(request: Mapping[str, Any], probes: Sequence[Probe], timeout: float) -> Iterator[Outcome]:
    """Yield the outcomes of one child, at least one, up to the first after which it cannot go on."""
    with _Child({**request, "probes": [probe.id for probe in probes]}) as child:
        _loaded(child, str(request["name"]), max(timeout, LOAD_SECONDS))
        for probe in probes:
            try:
                answer = child.answer(timeout)
            except _Silent as silence:
                yield _outcome(probe, Grade(silence.grade, str(silence)))
                return
            spent = answer.pop("spent")
            yield _outcome(probe, Grade(**answer))
            if spent:
                return


def _loaded(child: _Child, name: str, timeout: float) -> None:
    try:
        failure = child.answer(timeout)["failure"]
    except _Silent as silence:
        failure = str(silence)
    if failure:
        raise ChildError(f"{name} cannot be loaded in a process of its own: {failure}")


class _Silent(Exception):
    """No answer came: the child died or hung."""

    def __init__(self, grade: str, reason: str) -> None:
        super().__init__(reason)
        self.grade = grade


class _Child:
    """A running child, as the parent sees it; `with` ends it."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self.printed = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child
        # -P keeps the current directory out, whose files may bear the names of some library's.
        command = [sys.executable, "-P", "-m", "decoderspec.properties.child"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.printed, start_new_session=True
        )
        self.lines: queue.Queue[bytes] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self._send(request)

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._end(CLOSE_SECONDS if kind is None else 0.0)
        self.printed.close()

    def answer(self, timeout: float) -> dict[str, Any]:
        """The next answer. Raises `_Silent` when the child dies or hangs first."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            try:
                line = self.lines.get(timeout=POLL_SECONDS)
            except queue.Empty:
                if self.process.poll() is None:
                    continue
                line = b""
            if not line:
                raise _Silent(DIED, self._death())
            return dict(json.loads(line))
        self._end(0.0)
        raise _Silent(HUNG, f"no answer within {timeout:g} s")

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as answers:
            for line in answers:
                self.lines.put(line)
        self.lines.put(b"")

    def _send(self, request: Mapping[str, Any]) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self.process.stdin as stdin:  # a death is seen at the first answer
            stdin.write(json.dumps(request).encode() + b"\n")

    def _death(self) -> str:
        """How the process ended, and the last line that it printed."""
        self._end(CLOSE_SECONDS)
        self.printed.seek(max(0, self.printed.seek(0, os.SEEK_END) - TAIL))
        last = self.printed.read().decode(errors="replace").strip().rpartition("\n")[2]
        code = self.process.returncode
        ended = f"killed by {signal.Signals(-code).name}" if code < 0 else f"the process ended with status {code}"
        return f"{ended}; it printed last: {last}" if last else ended

    def _end(self, patience: float) -> None:
        """Wait for the process that long, then kill it and what it started."""
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            if sys.platform == "win32":
                self.process.kill()
            else:
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


# --- In the child ---


def main() -> None:
    """Answer one request, and end without waiting for what the implementation leaves running."""
    reply, request = _connect()
    setting = _load(request, reply)
    if setting is not None:
        _answer_all(setting, request["probes"], reply)
        with contextlib.suppress(BaseException):  # every answer is given
            setting.subject.close()
    os._exit(0)


Reply = Callable[[Mapping[str, Any]], None]


def _connect() -> tuple[Reply, dict[str, Any]]:
    """The private channel and the request; standard output joins the errors, standard input is empty from here on."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    request = json.loads(sys.stdin.readline())
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    return lambda answer: print(json.dumps(answer), file=channel, flush=True), request


def _load(request: Mapping[str, Any], reply: Reply) -> Setting | None:
    sys.path[:] = request["path"]  # so that each name is found where the parent finds it
    try:
        setting = Setting(read_subject(load(request["name"]), request["precision"], request["claims"]))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # an import may call sys.exit
        reply({"failure": cut(f"{type(error).__name__}: {words(error)}")})
        return None
    reply({"failure": ""})
    return setting


def _answer_all(setting: Setting, probes: Sequence[str], reply: Reply) -> None:
    """One line for each probe, up to the first after which the shared model is of no more use."""
    usual = _usual(setting)
    for name in probes:
        given = grade(PROBES[name], setting)
        trouble = "" if usual is None else spoiled(setting, usual)
        reply({**asdict(given), "detail": "; ".join(filter(None, (given.detail, trouble))), "spent": bool(trouble)})
        if trouble:
            return


def _usual(setting: Setting) -> Array | None:
    """Valid logits before anything bad; None where there are none to compare with."""
    try:
        return setting.valid()
    except KeyboardInterrupt:
        raise
    except BaseException:  # a test framework's word for skipping is one, and no Exception
        return None


if __name__ == "__main__":
    main()
