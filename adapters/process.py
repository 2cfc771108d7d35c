"""A child process that speaks the line protocol: one request, one reply, and no wait is forever.

What goes wrong is an error of a kind of its own, in plain words and with the tail of the child's standard error; the
child is then gone, and whoever owns it starts another.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from decoderspec.adapters import encodings, messages
from decoderspec.adapters.encodings import Array, Description, EncodingError
from decoderspec.adapters.messages import ERROR_WORDS, MessageError

OURS = "decoderspec"  # how the names of threads begin that look after a child
CLOSE_SECONDS = 2.0  # for a child to end once its standard input has
POLL_SECONDS = 0.05  # how soon after its time a call is ended
TAIL = 4096  # bytes of standard error that are kept
TAIL_SHOWN = 240  # characters of them in a message
LINE = 2**16  # bytes of a reply beside its values
VALUE = 32  # bytes of a value, at most: `-0x1.fffffffffffffp-1022` and a blank
LARGEST = 2**28  # values of a reply, whatever was asked for


class Refused(Exception):
    """The child answered with an error: `category` is one of ours, or None."""

    def __init__(self, words: str, category: str | None) -> None:
        super().__init__(words)
        self.category = category


class ChildLost(Exception):
    """The child died, hung or broke the protocol, and is gone; the next call starts another."""


class ChildDied(ChildLost):
    """It ended in the middle of a call."""


class ChildHung(ChildLost):
    """It did not answer in time."""


class ChildMisspoke(ChildLost):
    """What it answered is no reply to what was asked."""


@dataclass(frozen=True)
class Expected:
    """What a reply may hold: `shapes` by name, exact where `fixed`, else to size it by; `complete` asks for all."""

    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    fixed: bool = True
    complete: bool = False

    @property
    def values(self) -> int:
        """The most values that are read: twice what is right, so that what is wrong can be named."""
        right = abs(sum(int(math.prod(shape)) for shape in self.shapes.values()))
        return min(2 * right + 1024, LARGEST) if self.shapes else 0

    @property
    def line(self) -> int:
        """The longest line that is read, in bytes."""
        return LINE + VALUE * self.values + 256 * len(self.shapes)

    def check(self, descriptions: Sequence[Description]) -> None:
        """Raise `EncodingError` for an array that is missing or of a wrong shape."""
        names = [each.name for each in descriptions]
        for name in self.shapes if self.complete else ():
            if name not in names:
                raise EncodingError(f"it has no array {name}; it has {', '.join(names[:8]) or 'none'}")
        for each in descriptions if self.fixed else ():
            if each.name in self.shapes and each.shape != tuple(self.shapes[each.name]):
                raise EncodingError(
                    f"{each.name} has shape {list(each.shape)}, the specification says {list(self.shapes[each.name])}"
                )


NOTHING = Expected()


class Child:
    """A running child. Raises `OSError` where the command cannot be started."""

    def __init__(self, command: Sequence[str]) -> None:
        pipe = subprocess.PIPE
        # A group of its own, so that a wrapper's own children end with it.
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
        self._tail = b""
        self._drain = threading.Thread(target=self._read_errors, daemon=True, name=f"{OURS}: errors of a child")
        self._drain.start()
        self._over = threading.Event()
        self._seconds, self._deadline, self._late = 0.0, math.inf, False
        threading.Thread(target=self._watch, daemon=True, name=f"{OURS}: time of a child").start()
        self._number = 0
        self.encoding = ""  # as its start message says
        self.ended = False

    def start(self, seconds: float) -> dict[str, Any]:
        """Its start message. Raises `ChildLost`."""
        with self._conversation("start"):
            self._send("start", {"protocol": messages.PROTOCOL}, {}, seconds)
            started = self._reply("start", NOTHING, seconds, messages.check_started)
        self.encoding = started["encoding"]
        return started

    def ask(
        self, call: str, values: Mapping[str, Any], arrays: Mapping[str, Array], expected: Expected, seconds: float
    ) -> dict[str, Array]:
        """The arrays of the reply. Raises `Refused` and `ChildLost`."""
        described = {"arrays": encodings.describe(arrays)} if arrays or "arrays" in messages.CALLS[call] else {}
        with self._conversation(call):
            self._send(call, {**values, **described}, arrays, seconds)
            reply = self._reply(call, expected, seconds, messages.check_reply)
            if "error" not in reply:
                return self._arrays(reply, expected, seconds)
        raise Refused(reply["error"][:ERROR_WORDS], reply.get("category"))

    def end(self, patience: float = CLOSE_SECONDS) -> None:
        """Close its standard input, wait that long, then kill it and what it started. Never raises."""
        self.ended = True
        self._over.set()
        with contextlib.suppress(OSError):
            self._stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience)
        self._kill()
        self._process.wait()
        self._drain.join(1.0)
        with contextlib.suppress(OSError):
            self._stdout.close()

    # --- One conversation ---

    @contextlib.contextmanager
    def _conversation(self, call: str) -> Iterator[None]:
        """Whatever goes wrong in it ends the child, an interrupt included: what it says later answers nothing."""
        self._number += 1
        try:
            yield
        except (MessageError, EncodingError) as reason:
            raise ChildMisspoke(f"the child's reply to {call} is none: {reason}{self._last_words()}") from None
        except OSError:  # a pipe that broke
            raise self._gone(call) from None
        except BaseException:
            self.end(0.0)
            raise

    def _send(self, call: str, values: Mapping[str, Any], arrays: Mapping[str, Array], seconds: float) -> None:
        line = json.dumps(messages.request(self._number, call, values), allow_nan=False).encode()
        for piece in self._pieces(line, arrays.values()) if arrays else [line + b"\n"]:
            with self._within(seconds):
                self._stdin.write(piece)
        with self._within(seconds):
            self._stdin.flush()

    def _pieces(self, line: bytes, arrays: Iterable[Array]) -> Iterator[bytes | memoryview]:
        """The request and its values, never all of them in memory at once."""
        if self.encoding == "raw":
            yield line + b"\n"
            yield from encodings.raw(arrays)
            return
        yield line[:-1] + b', "data": "'
        yield from encodings.text(arrays, self.encoding)
        yield b'"}\n'

    def _reply(self, call: str, expected: Expected, seconds: float, check: Any) -> dict[str, Any]:
        with self._within(seconds):
            line = self._stdout.readline(expected.line)
        if not line.endswith(b"\n"):
            if len(line) < expected.line:
                raise self._gone(call)
            raise MessageError(f"a line is longer than the {expected.line} bytes that any right reply has")
        message = messages.parse(line)
        if message.get("id") != self._number or type(message["id"]) is not int:
            raise MessageError(f"it has the id {message.get('id')!r}, the request has {self._number}")
        check(message)
        return message

    def _arrays(self, reply: Mapping[str, Any], expected: Expected, seconds: float) -> dict[str, Array]:
        descriptions = encodings.parse_descriptions(reply.get("arrays", []), expected.values)
        expected.check(descriptions)
        if self.encoding != "raw":
            return encodings.from_text(descriptions, reply.get("data", ""), self.encoding)
        if "data" in reply:
            raise MessageError("with the encoding raw, values follow the line and there is no field data")
        count = sum(each.size * each.width for each in descriptions)
        return encodings.from_raw(descriptions, self._bytes(count, seconds))

    def _bytes(self, count: int, seconds: float) -> bytes:
        found = bytearray()
        while len(found) < count:
            with self._within(seconds):
                piece = self._stdout.read(min(count - len(found), encodings.PIECE))
            if not piece:
                raise BrokenPipeError
            found += piece
        return bytes(found)

    # --- Limits and ends ---

    @contextlib.contextmanager
    def _within(self, seconds: float) -> Iterator[None]:
        """Kill the child when this takes longer: its pipes then end, and so does whoever waits for them."""
        self._seconds, self._deadline = seconds, time.monotonic() + seconds
        try:
            yield
        finally:
            self._deadline = math.inf

    def _watch(self) -> None:
        while not self._over.wait(POLL_SECONDS):
            if time.monotonic() > self._deadline:
                self._late = True
                self._kill()
                return

    def _kill(self) -> None:
        with contextlib.suppress(OSError):
            if sys.platform == "win32":
                self._process.kill()
            else:
                os.killpg(self._process.pid, signal.SIGKILL)

    def _gone(self, call: str) -> ChildLost:
        """Why there is nobody to answer any more."""
        self.end()
        if self._late:
            return ChildHung(f"the child did not answer {call} within {self._seconds:g} s{self._last_words()}")
        code = self._process.returncode
        how = f"was killed: {signal.strsignal(-code)}" if code < 0 else f"ended with status {code}"
        return ChildDied(f"the child {how}, in {call}{self._last_words()}")

    def _last_words(self) -> str:
        """What it printed last on standard error."""
        self.end(0.0)
        text = " ".join(self._tail.decode(errors="replace").split())
        text = "".join(letter if letter.isprintable() else "?" for letter in text)
        return f"; its standard error ends with: {text[-TAIL_SHOWN:]}" if text else "; its standard error is empty"

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as errors:
            while piece := os.read(errors.fileno(), 65536):
                self._tail = (self._tail + piece)[-TAIL:]

    @property
    def _stdin(self) -> Any:
        return self._process.stdin

    @property
    def _stdout(self) -> Any:
        return self._process.stdout
