"""A probe: one thing to ask of an implementation, and the setting that every probe starts from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from decoderspec.properties.cases import Array, Case, arrays
from decoderspec.properties.checkpoint import BUILD
from decoderspec.properties.findings import Absent
from decoderspec.properties.subject import Subject, fresh
from decoderspec.spec.arrays import ArrayError, to_numpy
from decoderspec.spec.config import Config
from decoderspec.spec.protocol import arguments

USUAL = Case(Config(7, 8, 2, 5, 2, 6, 100.0, 1e-3), batch=3, tokens=4, seed=1)  # with a middle row and middle columns
MOST = 2**22  # values of an answer: the right ones are a few thousand
ROOM = 2**30  # bytes that a build beyond all memory may take before the system refuses them
HARMLESS = "harmless"  # the word for an answer that is right for the nearest valid input


@dataclass
class Setting:
    """What every probe starts from: a valid case, and one model of it that all of them share."""

    subject: Subject
    doing: str = "build"  # the last call into the implementation, for the words of the report
    usual: dict[str, Array] = field(default_factory=dict)  # what the shared model answers to valid input, by method

    @cached_property
    def case(self) -> Case:
        """The usual case where there are no limits; else the nearest one within them, or a checkpoint's own."""
        if self.subject.checkpoint is not None:
            return self.subject.checkpoint.cases(self.subject.limits)[0]
        if not self.subject.limits:
            return USUAL
        from decoderspec.properties import strategies  # brings Hypothesis, which most children can do without

        limits = self.subject.limits
        return strategies.within(limits, USUAL) or strategies.smallest_case(limits)

    def admits(self, case: Case) -> bool:
        """Whether a case lies within the limits as it is."""
        if self.subject.checkpoint is not None and case.config != self.subject.checkpoint.config:
            return False
        if not self.subject.limits:
            return True
        from decoderspec.properties import strategies

        return strategies.within(self.subject.limits, case) == case

    @property
    def tokens(self) -> Array:
        """Fresh valid token ids `[B, T]`."""
        return fresh(arrays(self.case)[0])

    @property
    def targets(self) -> Array:
        """Fresh valid target ids `[B, T]`."""
        return fresh(arrays(self.case)[1])

    def theirs(self) -> dict[str, Array]:
        """Fresh valid tensors in the declared layout."""
        return self.subject.theirs(self.case.config, self.subject.parameters(self.case))

    @property
    def model(self) -> Any:
        """The shared model. Raises what the implementation raises."""
        self.doing = "build"
        return self.subject.model(self.case).model

    def call(self, method: str, tokens: Any, targets: Any) -> Array:
        """The numbers that a method of the shared model answers with; the targets go to those that take them.

        Raises what the implementation raises.
        """
        model = self.model
        self.doing = method
        answer = getattr(model, method)(*arguments(method, tokens, targets))
        return numbers(dict(enumerate(answer)) if isinstance(answer, tuple) else answer)  # the gradients by role

    def valid(self, method: str = "logits") -> Array:
        """What the shared model answers to valid tokens and targets."""
        return self.call(method, self.tokens, self.targets)

    def built(self, config: Config, theirs: Mapping[str, Any], tokens: Array) -> Array:
        """The logits of a model of its own. Raises what the implementation raises; `Absent` of a checkpoint."""
        if self.subject.checkpoint is not None:
            raise Absent(BUILD)
        self.doing = "build"
        return self._answered(self.subject.implementation.build(config, dict(theirs)), tokens)

    def initialized(self, config: Config, seed: Any, tokens: Array) -> Array:
        """The logits of a model that draws its own parameters. Raises what the implementation raises."""
        self.doing = "initialize"
        return self._answered(self.subject.implementation.initialize(config, seed), tokens)

    def agree(self, got: Array, expected: Array) -> bool:
        """Whether half of the bits that the declared precision has agree: another route to the same numbers."""
        allowed = math.sqrt(self.subject.recipe.results.unit)
        largest = np.abs(expected).max(initial=0)
        return got.shape == expected.shape and np.allclose(got, expected, allowed, allowed * largest)

    def _answered(self, model: Any, tokens: Array) -> Array:
        try:
            self.doing = "logits"
            return numbers(model.logits(fresh(tokens)))
        finally:
            if callable(getattr(model, "close", None)):
                model.close()


Perform = Callable[[Setting], Array]
Alike = tuple[tuple[str, Perform], ...]  # what an answer may equal, and the word for it


@dataclass(frozen=True)
class Probe:
    """One thing to ask."""

    id: str
    requirement: str
    sentence: str  # what is bad, or what is valid
    perform: Perform  # returns the answer; raises what the implementation raises, or `NotJudged`
    expected: tuple[str, ...] = ()  # categories that a refusal may have; none: it must be taken
    needs: str = "logits"  # the method that it calls
    alike: Alike = ()
    after: str = ""  # the probe that is refused first, where this one asks what a refusal leaves behind


def numbers(value: Any) -> Array:
    """An answer as a flat array, those of a mapping one after the other. Raises what reading it raises."""
    if isinstance(value, Mapping):
        return np.concatenate([np.empty(0), *(numbers(value[name]) for name in sorted(value))])
    try:
        return to_numpy(value, MOST)[0].ravel()
    except ArrayError as failure:
        # A lazy array raises here what its computation raised, a list only that it is ragged.
        if failure.__cause__ is None or isinstance(value, (list, tuple)):
            raise
        raise failure.__cause__ from None


AS_GIVEN: Alike = ((HARMLESS, Setting.valid),)
