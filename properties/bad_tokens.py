"""Probes of calls: token ids, their shape, dtype and number (INP-1 to INP-4), and targets (INP-5)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from decoderspec.properties.cases import Array, arrays
from decoderspec.properties.findings import NotJudged
from decoderspec.properties.probe import HARMLESS, Alike, Perform, Probe, Setting
from decoderspec.properties.subject import fresh

# --- INP-1 to INP-4: tokens ---

IDS: dict[str, Callable[[int], int]] = {
    "-1": lambda v: -1,
    "V": lambda v: v,
    "V+1": lambda v: v + 1,
    "-V": lambda v: -v,
    "2^31": lambda v: 2**31,
    "2^40": lambda v: 2**40,
}
PLACES: dict[str, Any] = {
    "first": (0, 0),
    "last": (-1, -1),
    "one-row": (-1, slice(None)),
}
READINGS: dict[str, Callable[[Array, int], Array]] = {  # what becomes of ids that nobody refuses
    "cut to 32 bits": lambda ids, v: ids.astype(np.int32).astype(np.int64),
    "wrapped around": lambda ids, v: ids % v,
    "clamped into the table": lambda ids, v: ids.clip(0, v - 1),
}


def ids() -> Iterator[Probe]:
    """INP-1: ids out of range, and the two ends of it as controls."""
    for word, value in (("0", lambda v: 0), ("V-1", lambda v: v - 1)):
        yield Probe(f"INP-1/{word}", "INP-1", f"token id {word} everywhere", _with_id(value, ..., "logits"))
    for place in PLACES:
        yield _bad_id("-1", place)
    for word in IDS:
        if word != "-1":
            yield _bad_id(word, "last")
    for capability in ("loss", "gradients"):
        yield _bad_id("-1", "last", capability)
        yield _bad_id("V", "first", capability)


def _bad_id(word: str, place: str, capability: str = "logits") -> Probe:
    value, index = IDS[word], PLACES[place]
    name = f"INP-1/{word}/{place}" + ("" if capability == "logits" else f"/{capability}")
    sentence = f"token id {word} {_in_words(place)}" + ("" if capability == "logits" else f", given to {capability}")
    alike = tuple((reading, _with_id(value, index, capability, change)) for reading, change in READINGS.items())
    return Probe(name, "INP-1", sentence, _with_id(value, index, capability), ("vocabulary",), capability, alike)


def _in_words(place: str) -> str:
    return "in one row only" if place == "one-row" else f"in {place} place"


def _with_id(
    value: Callable[[int], int], index: Any, capability: str, reading: Callable[[Array, int], Array] | None = None
) -> Perform:
    def perform(setting: Setting) -> Array:
        v = setting.case.config.vocabulary_size
        tokens = setting.tokens
        tokens[index] = value(v)
        if reading is not None:
            tokens = reading(tokens, v)
            if ((tokens < 0) | (tokens >= v)).any():
                raise NotJudged("no valid ids come of this reading")
        return setting.call(capability, tokens, *([] if capability == "logits" else [setting.targets]))

    return perform


Tokens = Callable[[Array], Any]

SHAPES: dict[str, tuple[str, Tokens, Tokens | None]] = {  # word -> what is bad, how, and what would be the same
    "rank-0": ("a single token id", lambda ids: ids[0, 0], lambda ids: ids[:1, :1]),
    "rank-1": ("token ids of rank one", lambda ids: ids[0], lambda ids: ids[:1]),
    "rank-3": ("token ids of rank three", lambda ids: ids[None], lambda ids: ids),
    "empty-batch": ("an empty batch [0, T]", lambda ids: ids[:0], None),
    "empty-tokens": ("no tokens [B, 0]", lambda ids: ids[:, :0], None),
    "ragged": ("rows of different length, as lists", lambda ids: [ids[0].tolist(), ids[0].tolist()[:-1]], None),
}


def _one_none(ids: Array) -> Array:
    objects = ids.astype(object)
    objects[0, 0] = None
    return objects


def _one_nan(ids: Array) -> Array:
    floats = ids.astype(np.float64)
    floats[0, 0] = math.nan
    return floats


DTYPES: dict[str, tuple[str, Tokens, Tokens | None]] = {
    "fractions": ("token ids that are fractions", lambda ids: ids * 0.0 + 1.5, lambda ids: ids * 0 + 1),
    "integral-floats": ("integral token ids as floats", lambda ids: ids.astype(np.float64), lambda ids: ids),
    "one-nan": ("token ids as floats, one of them NaN", _one_nan, None),
    "booleans": ("booleans as token ids", lambda ids: ids > 0, lambda ids: (ids > 0).astype(np.int64)),
    "strings": ("digits in strings as token ids", lambda ids: ids.astype(str), lambda ids: ids),
    "nothing": ("None among the token ids", _one_none, None),
    "objects": ("objects as token ids", lambda ids: np.full(ids.shape, object()), None),
    "complex": ("complex token ids", lambda ids: ids.astype(np.complex128), lambda ids: ids),
}


def bad_tokens() -> Iterator[Probe]:
    """INP-2 to INP-4: shapes, dtypes and lengths."""
    for word, (sentence, bad, same) in SHAPES.items():
        yield Probe(f"INP-2/{word}", "INP-2", sentence, _logits(bad), ("token_shape",), alike=_same(same))
    for word, (sentence, bad, same) in DTYPES.items():
        expected = ("token_shape", "vocabulary")  # what is no integer is no id either
        yield Probe(f"INP-3/{word}", "INP-3", sentence, _logits(bad), expected, alike=_same(same))
    yield Probe("INP-4/T=max_positions", "INP-4", "as many tokens as max_positions", _long(0))
    yield Probe("INP-4/T=max_positions+1", "INP-4", "one token more than max_positions", _long(1), ("context",))
    sentence = "one token more than max_positions, given to loss"
    yield Probe("INP-4/T=max_positions+1/loss", "INP-4", sentence, _long(1, "loss"), ("context",), "loss")


def _logits(change: Tokens) -> Perform:
    return lambda setting: setting.call("logits", change(setting.tokens))


def _same(change: Tokens | None) -> Alike:
    return () if change is None else ((HARMLESS, _logits(change)),)


def _long(beyond: int, capability: str = "logits") -> Perform:
    def perform(setting: Setting) -> Array:
        case = replace(setting.case, tokens=setting.case.config.max_positions + beyond)
        if not beyond and not setting.admits(case):
            raise NotJudged(f"the limits leave no batch of {case.tokens} tokens")
        tokens, targets = arrays(case)
        return setting.call(capability, fresh(tokens), *([] if capability == "logits" else [fresh(targets)]))

    return perform


# --- INP-5: targets ---

Targets = Callable[[Array, int], Any]
SHAPE, ID, EITHER = ("target_shape",), ("target_vocabulary",), ("target_shape", "target_vocabulary")

TARGETS: dict[str, tuple[str, Targets, tuple[str, ...]]] = {
    "one-missing": ("one target missing from a flat list", lambda ids, v: ids.ravel()[:-1], SHAPE),
    "column-missing": ("one target missing in each row", lambda ids, v: ids[:, :-1], SHAPE),
    "column-more": ("one target too many in each row", lambda ids, v: np.concatenate([ids, ids[:, :1]], 1), SHAPE),
    "one-row": ("one row of targets for all rows of tokens", lambda ids, v: ids[:1], SHAPE),
    "-1": ("target id -1", lambda ids, v: _put(ids, -1), ID),
    "-100": ("target id -100, which some losses ignore", lambda ids, v: _put(ids, -100), ID),
    "V": ("target id V", lambda ids, v: _put(ids, v), ID),
    "fractions": ("targets that are fractions", lambda ids, v: ids * 0.0 + 1.5, EITHER),
    "booleans": ("booleans as targets", lambda ids, v: ids > 0, EITHER),
}


def _put(ids: Array, value: int) -> Array:
    ids[-1, -1] = value
    return ids


def bad_targets() -> Iterator[Probe]:
    """INP-5: targets that are not one id for each token."""
    ignored = (("left out of the mean", _left_out), ("counted as nothing in the mean", _counted_as_nothing))
    for capability in ("loss", "gradients"):
        for word, (sentence, bad, expected) in TARGETS.items():
            yield Probe(
                id=f"INP-5/{word}/{capability}",
                requirement="INP-5",
                sentence=f"{sentence}, given to {capability}",
                perform=_targets(bad, capability),
                expected=expected,
                needs=capability,
                alike=ignored if capability == "loss" and expected == ID else (),
            )


def _targets(change: Targets, capability: str) -> Perform:
    def perform(setting: Setting) -> Array:
        targets = change(setting.targets, setting.case.config.vocabulary_size)
        if np.array_equal(targets, setting.targets):
            raise NotJudged("the limits leave a single row, which is all of them")
        return setting.call(capability, setting.tokens, targets)

    return perform


def _losses(setting: Setting) -> Array:
    """Every position's loss, from the model's own logits."""
    rows = setting.valid().reshape(-1, setting.case.config.vocabulary_size)
    rows = rows - rows.max(axis=-1, keepdims=True)
    chosen = rows[np.arange(len(rows)), setting.targets.ravel()]
    return np.asarray(np.log(np.exp(rows).sum(axis=-1)) - chosen)


def _left_out(setting: Setting) -> Array:
    return np.atleast_1d(_losses(setting)[:-1].mean())


def _counted_as_nothing(setting: Setting) -> Array:
    losses = _losses(setting)
    return np.atleast_1d(losses[:-1].sum() / losses.size)
