"""A shared database of failing examples: what one run, worker or host has found is replayed first by the next.

It is Hypothesis' own: a directory, or a Redis server. A failure is stored as soon as it is seen, before it is made
smaller, so that a process which ends in the middle loses nothing. What no longer fails is removed, as Hypothesis does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import hypothesis
from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase

from decoderspec import __version__
from decoderspec.properties.loading import LoadError

ALLOWED = "a directory, or redis://host:port/number of a Redis server (rediss:// for TLS)"
KEPT = timedelta(days=90)  # how long a server keeps what no run has asked for
CONNECT_SECONDS, ANSWER_SECONDS = 5, 10
PARTS = (b".secondary", b".pareto")  # Hypothesis keeps these beside the failures


@dataclass
class Store:
    """An opened database, and why it was given up where it was."""

    database: ExampleDatabase
    place: str  # without a password
    problem: str = ""


@dataclass(eq=False)
class Scoped(ExampleDatabase):
    """The part of a store that belongs to one property of one subject."""

    store: Store
    scope: bytes
    keeps: bool = field(default=False)  # what was not judged again must not be removed

    def __post_init__(self) -> None:
        super().__init__()

    def fetch(self, key: bytes) -> Iterable[bytes]:
        """The examples of a part."""
        found: list[bytes] = self._asked(lambda: list(self.store.database.fetch(self._own(key))))
        return found

    def save(self, key: bytes, value: bytes) -> None:
        """Add an example."""
        self._asked(lambda: self.store.database.save(self._own(key), value))

    def delete(self, key: bytes, value: bytes) -> None:
        """Remove an example, unless whoever asks has stopped looking."""
        if not self.keeps:
            self._asked(lambda: self.store.database.delete(self._own(key), value))

    def move(self, src: bytes, dest: bytes, value: bytes) -> None:
        """From one part to another."""
        self._asked(lambda: self.store.database.move(self._own(src), self._own(dest), value))

    @property
    def saved(self) -> bool:
        """Whether there is a failure to replay."""
        return bool(self.fetch(b"") or self.fetch(PARTS[0]))

    def _own(self, key: bytes) -> bytes:
        """Hypothesis' key follows the source of the test, which all properties share: only its part is kept."""
        return self.scope + next((part for part in PARTS if key.endswith(part)), b"")

    def _asked(self, ask: Callable[[], Any]) -> Any:
        """The answer; nothing once the store has failed, for the search goes on without it."""
        if not self.store.problem:
            try:
                return ask()
            except Exception as reason:  # each client library has its own
                self.store.problem = f"the example database {self.store.place} was lost on the way: {reason}"
        return []


def scoped(store: Store, *scope: object) -> Scoped:
    """A part of the store; a run of another version reads the stored choices differently, so it has its own."""
    words = "\n".join(map(repr, (__version__, hypothesis.__version__, *scope)))
    return Scoped(store, sha256(words.encode(errors="backslashreplace")).hexdigest().encode())


def opened(place: str) -> Store:
    """The database at a place. Raises `LoadError` where there is none, or none can be made."""
    scheme, mark, _ = place.partition("://")
    if mark and scheme not in ("redis", "rediss"):
        raise LoadError(f"there is no example database of the kind {scheme}://; allowed: {ALLOWED}")
    return _redis(place) if mark else _directory(place)


def _directory(place: str) -> Store:
    path = Path(place).absolute()  # an implementation may change the folder that it runs in
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as reason:
        raise LoadError(
            f"the example database {place!r} cannot be made: {reason.strerror}; allowed: {ALLOWED}"
        ) from None
    if not place or not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise LoadError(f"the example database {place!r} cannot be written to; allowed: {ALLOWED}")
    return Store(DirectoryBasedExampleDatabase(path), str(path))


def _redis(place: str) -> Store:
    try:
        from hypothesis.extra.redis import RedisExampleDatabase
        from redis import Redis
        from redis.exceptions import RedisError
    except ImportError:
        raise LoadError(
            "an example database on a Redis server needs its client: pip install 'decoderspec[redis]'"
        ) from None
    shown = _without_password(place)
    limits = {"socket_connect_timeout": CONNECT_SECONDS, "socket_timeout": ANSWER_SECONDS}
    try:
        client = Redis.from_url(place, **limits)
        client.ping()
    except ValueError as reason:
        raise LoadError(f"{shown} is not the address of a Redis server ({reason}); allowed: {ALLOWED}") from None
    except (RedisError, OSError) as reason:
        raise LoadError(
            f"no Redis server answers at {shown}: {reason}; start one with `redis-server --port PORT`"
        ) from None
    return Store(RedisExampleDatabase(client, expire_after=KEPT), shown)


def _without_password(place: str) -> str:
    """An address that may be shown."""
    _, mark, host = place.rpartition("@")
    return f"{urlsplit(place).scheme}://{host}" if mark else place
