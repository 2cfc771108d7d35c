"""A command that speaks the line protocol as an implementation: `command:./decoder --flag`.

What the child offers is there, and nothing else: a model has `loss` where the child's start message offers it. A child
that is lost is started again by the next call, and a model that lived in it is built again from what is known of it.
"""

from __future__ import annotations

import os
import shlex
import weakref
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from decoderspec.adapters import messages
from decoderspec.adapters.encodings import Array, NotCarried, carried
from decoderspec.adapters.messages import CONFIG
from decoderspec.adapters.process import NOTHING, Child, ChildHung, Expected, Refused
from decoderspec.spec.config import Config
from decoderspec.spec.layout import layout
from decoderspec.spec.parameters import parameter_shapes
from decoderspec.spec.stages import stage_names, stage_shape

PREFIX = "command:"
LIMITS = {  # in the environment, so that they reach whoever loads the command again by its name
    "start": ("DECODERSPEC_START_TIMEOUT", 60.0),  # importing an array library from a cold disk is slow
    "call": ("DECODERSPEC_CALL_TIMEOUT", 30.0),
}
IMPATIENCE = 10  # a call that hung once is given that part of its time from then on


class CommandError(Exception):
    """A command that cannot be started, or does not say what it is."""


def time_limit(kind: str) -> float:
    """Seconds for `start` or `call`. Raises `CommandError` for a variable that holds no positive number."""
    variable, usual = LIMITS[kind]
    word = os.environ.get(variable, str(usual))
    try:
        seconds = float(word)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise CommandError(f"a time limit is a positive number of seconds, got {word!r} ({variable})")
    return seconds


class CommandImplementation:
    """The child as an implementation; its attributes are what its start message declares. Raises `CommandError`."""

    def __init__(self, command: str) -> None:
        try:
            self._words = shlex.split(command)
        except ValueError as reason:
            raise CommandError(f"{command!r} cannot be split into words: {reason}") from None
        if not self._words:
            raise CommandError("the command is empty; give for example './decoder --flag'")
        self._limits = {kind: time_limit(kind) for kind in LIMITS}
        self._hung: set[str] = set()
        self._living: list[Child] = []  # one at most; a list, so that the finalizer needs no `self`
        weakref.finalize(self, _end_all, self._living)
        self._models = 0
        self._open: set[int] = set()
        started = self._first_start(command)
        self.name: str = started["name"]
        self.offers: tuple[str, ...] = tuple(started["offers"])
        for name, value in messages.declarations(started).items():
            setattr(self, name, value)  # precision, layout, limits, claims, emulates: those that are declared
        for name in ("initialize", "classify"):
            if name in self.offers:
                setattr(self, name, getattr(self, f"_{name}"))

    def build(self, config: Config, parameters: Mapping[str, Any]) -> Any:
        """A model in the child: a record with the methods that the child offers."""
        arrays = {name: carried(name, value) for name, value in parameters.items()}
        return self._opened(_Model(self, config, {"build": arrays}))

    def reply(
        self,
        call: str,
        values: Mapping[str, Any],
        arrays: Mapping[str, Array],
        expected: Expected = NOTHING,
        on: Child | None = None,
    ) -> dict[str, Array]:
        """The arrays of the reply. Raises `Refused` and `ChildLost`."""
        try:
            return (on or self.child()).ask(call, values, arrays, expected, self._patience(call))
        except ChildHung:
            self._hung.add(call)
            raise

    def child(self) -> Child:
        """The running child; another one where the last is gone. Raises `ChildLost`."""
        if not self._living or self._living[0].ended:
            self._living[:] = [Child(self._words)]
            try:
                self._living[0].start(self._patience("start"))
            except ChildHung:
                self._hung.add("start")
                raise
        return self._living[0]

    def closed(self, number: int) -> None:
        """A model is done with; with the last of them the child ends, which may hold a device's memory."""
        self._open.discard(number)
        if not self._open:
            _end_all(self._living)

    def _opened(self, model: _Model) -> Any:
        model.child()  # builds it
        self._open.add(model.number)
        return SimpleNamespace(
            close=model.close,
            **{name: getattr(model, name) for name in METHODS if name in self.offers},
        )

    def _initialize(self, config: Config, seed: int) -> Any:
        if type(seed) is not int or seed < 0:
            raise NotCarried(f"seed: the line protocol carries integers from 0 on, got {seed!r}")
        return self._opened(_Model(self, config, {"initialize": {}}, {"seed": str(seed)}))

    def _classify(self, error: BaseException) -> str | None:
        return error.category if isinstance(error, Refused) else None

    def next_number(self) -> int:
        """Of a model."""
        self._models += 1
        return self._models

    def _patience(self, call: str) -> float:
        seconds = self._limits["start" if call == "start" else "call"]
        return seconds / IMPATIENCE if call in self._hung else seconds

    def _first_start(self, command: str) -> dict[str, Any]:
        try:
            child = Child(self._words)
            self._living[:] = [child]
            return child.start(self._limits["start"])
        except OSError as reason:
            raise CommandError(f"{command!r} cannot be started: {reason.strerror or reason}") from None
        except Exception as reason:
            raise CommandError(f"{command!r} does not start: {reason}") from None


def _end_all(living: list[Child]) -> None:
    while living:
        living.pop().end()


class _Model:
    """One model in the child, with what it takes to build it again in another."""

    def __init__(
        self,
        owner: CommandImplementation,
        config: Config,
        made: Mapping[str, Mapping[str, Array]],
        further: Mapping[str, Any] | None = None,
    ) -> None:
        self.owner, self.config, self.number = owner, config, owner.next_number()
        ((self._call, self._given),) = made.items()
        fields = {name: messages.constant(name, getattr(config, name)) for name in CONFIG}
        self._values = {"model": self.number, **fields, **(further or {})}
        self._written: dict[str, Array] = {}
        self._home: Child | None = None

    def child(self) -> Child:
        """The child that it lives in: built there first, with what was assigned, where it is not there yet."""
        child = self.owner.child()
        if child is not self._home:
            self.owner.reply(self._call, self._values, self._given, on=child)
            for name, value in self._written.items():
                self.owner.reply("assign", {"model": self.number}, {name: value}, on=child)
            self._home = child
        return child

    def logits(self, tokens: Any) -> Array:
        """`[B, T, V]`."""
        return self._reply("logits", self._about(["logits"], tokens, complete=True), tokens=tokens)["logits"]

    def stages(self, tokens: Any) -> dict[str, Array]:
        """By name; any of them may be missing."""
        return self._reply("stages", self._about(stage_names(self.config.layers), tokens), tokens=tokens)

    def loss(self, tokens: Any, targets: Any) -> Array:
        """A single number."""
        return self._reply("loss", Expected({"loss": ()}, complete=True), tokens=tokens, targets=targets)["loss"]

    def gradients(self, tokens: Any, targets: Any) -> dict[str, Array]:
        """By the names of the declared layout."""
        return self._reply("gradients", self._like_parameters(), tokens=tokens, targets=targets)

    def role_gradients(self, tokens: Any, targets: Any) -> tuple[Array, Array]:
        """Of the table: as the lookup, as the head."""
        shape = (self.config.vocabulary_size, self.config.model_width)
        expected = Expected(dict.fromkeys(("lookup", "head"), shape), complete=True)
        found = self._reply("role_gradients", expected, tokens=tokens, targets=targets)
        return found["lookup"], found["head"]

    def parameters(self) -> dict[str, Array]:
        """By the names of the declared layout."""
        return self._reply("parameters", self._like_parameters())

    def assign(self, name: str, value: Any) -> None:
        """Write one parameter in place."""
        written = carried(name, value).copy()
        self._reply("assign", NOTHING, **{name: written})
        self._written[name] = written

    def close(self) -> None:
        """Let the child free it."""
        home, self._home = self._home, None
        if home is not None and not home.ended:
            self.owner.reply("close", {"model": self.number}, {}, on=home)
        self.owner.closed(self.number)

    def _reply(self, call: str, expected: Expected, **arrays: Any) -> dict[str, Array]:
        given = {name: carried(name, value) for name, value in arrays.items()}
        return self.owner.reply(call, {"model": self.number}, given, expected, on=self.child())

    def _about(self, stages: Sequence[str], tokens: Any, complete: bool = False) -> Expected:
        """The stages' shapes; of tokens that are not `[B, T]` they only bound what is read."""
        shape = np.shape(carried("tokens", tokens))
        batch, length = shape if len(shape) == 2 else (1, int(np.prod(shape)))
        shapes = {name: stage_shape(name, self.config, batch, length) for name in stages}
        return Expected(shapes, len(shape) == 2 and _has_sizes(self.config), complete)

    def _like_parameters(self) -> Expected:
        if self._given:
            return Expected({name: value.shape for name, value in self._given.items()})
        zeros = {name: np.broadcast_to(0.0, shape) for name, shape in parameter_shapes(self.config).items()}
        theirs = layout(getattr(self.owner, "layout", {})).apply(self.config, zeros)
        return Expected({name: value.shape for name, value in theirs.items()})


def _has_sizes(config: Config) -> bool:
    """Whether shapes follow from it: one that must be refused may hold anything."""
    return all(type(size) is int and size > 0 for size in (config.vocabulary_size, config.model_width, config.heads))


METHODS = ("logits", "stages", "loss", "gradients", "role_gradients", "parameters", "assign")
