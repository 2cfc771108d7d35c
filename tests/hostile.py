"""Implementations that do to the suite what no implementation should; each is the reference but for one thing."""

import os
import random
import sys
import threading
from collections.abc import Mapping

import numpy as np
import pytest
from subjects import SMALL, LogitsAlone

from decoderspec.reference import Reference

NUMPY_EXP = np.exp


class Hostile(Reference):
    """The reference, with something done to each result of logits."""

    classify = None

    def build(self, config, parameters):
        model = super().build(config, parameters)
        return Model(model, self)

    def logits(self, model, tokens):
        return model.logits(tokens)


class Model:
    def __init__(self, model, owner):
        self.model, self.owner = model, owner
        self.loss, self.gradients, self.parameters = model.loss, model.gradients, model.parameters

    def logits(self, tokens):
        return self.owner.logits(self.model, tokens)


# --- What it raises ---


class Leaves(Hostile):
    def logits(self, model, tokens):
        sys.exit(0)


class Recurses(Hostile):
    def logits(self, model, tokens):
        return self.logits(model, tokens)


class Unprintable(BaseException):
    def __str__(self):
        raise RuntimeError("no words")


class RaisesItsOwn(Hostile):
    def logits(self, model, tokens):
        raise Unprintable


class Skips(Hostile):
    def logits(self, model, tokens):
        pytest.skip("not today")


class RunsOutOfMemory(Hostile):
    def logits(self, model, tokens):
        raise MemoryError


class FailsOnce(Hostile):
    failed = False

    def logits(self, model, tokens):
        if not self.failed:
            self.failed = True
            raise ConnectionError("the device was not ready")
        return model.logits(tokens)


# --- What it returns ---


class ReturnsObjects(Hostile):
    def logits(self, model, tokens):
        return model.logits(tokens).astype(object)


class ReturnsFloat16(Hostile):
    def logits(self, model, tokens):
        return model.logits(tokens).astype(np.float16)


class ReturnsNan(Hostile):
    def logits(self, model, tokens):
        return model.logits(tokens) * np.nan


class ReturnsItsBuffer(Hostile):
    buffer = np.empty(10_000)

    def logits(self, model, tokens):
        found = model.logits(tokens)
        view = self.buffer[: found.size].reshape(found.shape)
        view[...] = found
        return view


class ReturnsTheTokens(Hostile):
    def logits(self, model, tokens):
        return tokens[..., None]


class ReturnsTooMuch(Hostile):
    def logits(self, model, tokens):
        return np.broadcast_to(0.0, (2**40,))


class ReturnsAGenerator(Hostile):
    def logits(self, model, tokens):
        return (row for row in model.logits(tokens))


class ReturnsMasked(Hostile):
    def logits(self, model, tokens):
        return np.ma.masked_less(model.logits(tokens), 0.0)


class Lost:
    shape, dtype = (1, 2, 3), "float64"

    def __array__(self, *arguments, **options):
        sys.exit("the device is lost")


class ReturnsWhatCannotBeRead(Hostile):
    def logits(self, model, tokens):
        return Lost()


class Endless(Mapping):
    def __getitem__(self, name):
        raise KeyError(name)

    def __iter__(self):
        raise SystemError("no names")

    def __len__(self):
        return 2**70


class ReturnsAMappingThatFails(Hostile):
    def build(self, config, parameters):
        model = super().build(config, parameters)
        model.gradients = lambda tokens, targets: Endless()
        return model


# --- What it does to what it is given ---


class WritesToTokens(Hostile):
    def logits(self, model, tokens):
        found = model.logits(tokens)
        tokens[...] = 0
        return found


class WritesToParameters(Hostile):
    def build(self, config, parameters):
        model = super().build(config, parameters)
        for value in parameters.values():
            value[...] = np.nan
        parameters.clear()
        return model


class WritesToTheConfiguration(Hostile):
    def build(self, config, parameters):
        model = super().build(config, parameters)
        for name in ("heads", "layers", "vocabulary_size"):
            object.__setattr__(config, name, 10**6)
        return model


# --- What it does beside ---


class ChangesTheErrorState(Hostile):
    def logits(self, model, tokens):
        np.seterr(all="raise")
        return model.logits(tokens)


class ReplacesNumpy(Hostile):
    def logits(self, model, tokens):
        found = model.logits(tokens)
        np.exp = np.sqrt = lambda *given, **options: 1.0
        return found


class SetsTheRandomState(Hostile):
    def logits(self, model, tokens):
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002 - what it is there to do
        return model.logits(tokens)


class Prints(Hostile):
    def logits(self, model, tokens):
        print("\x1b[2Jconforms")
        return model.logits(tokens)


class ReplacesStandardOutput(Hostile):
    def logits(self, model, tokens):
        sys.stdout = None
        return model.logits(tokens)


class StartsThreads(Hostile):
    def logits(self, model, tokens):
        threading.Thread(target=threading.Event().wait, args=(30,), daemon=True).start()
        return model.logits(tokens)


class ChangesTheFolder(Hostile):
    limits = SMALL

    def build(self, config, parameters):
        model = super().build(config, parameters)
        return LogitsAlone(model)

    def logits(self, model, tokens):
        os.chdir(os.sep)
        return model.logits(tokens) * 1.001


class FailsToClose(Hostile):
    def build(self, config, parameters):
        model = super().build(config, parameters)
        model.close = lambda: sys.exit("closed twice")
        return model


class KeepsModels(Hostile):
    kept = []  # noqa: RUF012 - it is what it does

    def build(self, config, parameters):
        self.kept.append(super().build(config, parameters))
        return self.kept[-1]


# --- What it answers when it is asked for an attribute ---


class AnswersNone(Hostile):
    def __getattr__(self, name):
        return None


class AnswersWithErrors(Hostile):
    def __getattr__(self, name):
        raise RuntimeError(f"{name} is not what you want to know")


class AnswersEverything(Hostile):
    def __getattr__(self, name):
        return lambda *arguments: None
