"""Probes of calls: token ids, their shape, dtype and number (INP-1 to INP-4), and targets (INP-5).

Of `logits` everything is asked. The methods beside it may check their input by themselves, so each is asked for what is
most often forgotten: a few probes of every requirement, made from the same rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from decoderspec.properties.cases import Array, arrays
from decoderspec.properties.findings import Absent, NotJudged
from decoderspec.properties.probe import HARMLESS, Perform, Probe, Setting
from decoderspec.properties.subject import fresh
from decoderspec.spec.protocol import METHODS, WITH_TARGETS

Batch = Callable[[Setting], tuple[Any, Any]]  # token ids, and the targets that go with them
Change = Callable[[Array], Any]
TARGET_SHAPE, TARGET_ID = "target_shape", "target_vocabulary"


@dataclass(frozen=True)
class _Row:
    """What is bad of tokens, whatever method they are given to."""

    word: str
    sentence: str
    batch: Batch
    expected: tuple[str, ...] = ()
    alike: tuple[tuple[str, Batch], ...] = ()
    everywhere: bool = False  # asked of every method that takes tokens, not of `logits` alone


def _probes(requirement: str, row: _Row) -> Iterator[Probe]:
    for method in METHODS if row.everywhere else METHODS[:1]:
        # Targets of another shape than `[B, T]` may be refused for their own sake: they cannot fit both.
        further = (TARGET_SHAPE,) if "token_shape" in row.expected and method in WITH_TARGETS else ()
        yield Probe(
            id=f"{requirement}/{row.word}" + ("" if method == "logits" else f"/{method}"),
            requirement=requirement,
            sentence=row.sentence + ("" if method == "logits" else f", given to {method}"),
            perform=_given_to(method, row.batch),
            expected=row.expected + further,
            needs=method,
            alike=tuple((word, _given_to(method, batch)) for word, batch in row.alike),
        )


def _given_to(method: str, batch: Batch) -> Perform:
    return lambda setting: setting.call(method, *batch(setting))


# --- INP-1: ids ---

IDS: dict[str, Callable[[int], int]] = {
    "-1": lambda v: -1,
    "V": lambda v: v,
    "V+1": lambda v: v + 1,
    "-V": lambda v: -v,
    "2^31": lambda v: 2**31,
    "2^40": lambda v: 2**40,
    "2^32+id": lambda v: 2**32 + v - 1,
}
PLACES: dict[str, tuple[str, Callable[[Array], Any]]] = {
    "first": ("in first place", lambda ids: (0, 0)),
    "last": ("in last place", lambda ids: (-1, -1)),
    "middle": ("in the middle of the middle row", lambda ids: (len(ids) // 2, ids.shape[1] // 2)),
    "one-row": ("in one row only", lambda ids: (-1, slice(None))),
    "everywhere": ("everywhere", lambda ids: ...),
}
READINGS: dict[str, Callable[[Array, int], Array]] = {  # what becomes of ids that nobody refuses
    "cut to 32 bits": lambda ids, v: ids.astype(np.int32).astype(np.int64),
    "wrapped around": lambda ids, v: ids % v,
    "clamped into the table": lambda ids, v: ids.clip(0, v - 1),
}
BAD_IDS = (
    *(("-1", place) for place in ("first", "last", "middle", "one-row")),
    *((word, "last") for word in IDS if word != "-1"),
    ("V", "first"),
    ("V", "middle"),
)
IDS_OF_EVERY_METHOD = (("-1", "last"), ("V", "first"), ("V", "middle"))
MOST_PLACES = 16


def ids() -> Iterator[Probe]:
    """INP-1: ids out of range, and the two ends of it as controls."""
    for word, value in (("0", lambda v: 0), ("V-1", lambda v: v - 1)):
        batch = _with_id(value, "everywhere")
        yield Probe(f"INP-1/{word}", "INP-1", f"token id {word} everywhere", _given_to("logits", batch))
    for word, place in BAD_IDS:
        yield from _probes("INP-1", _bad_id(word, place))
    sentence = "token id V in a single place, each in turn"
    yield Probe("INP-1/V/each-place", "INP-1", sentence, _in_each_place, ("vocabulary",))


def _bad_id(word: str, place: str) -> _Row:
    value = IDS[word]
    return _Row(
        word=f"{word}/{place}",
        sentence=f"token id {word} {PLACES[place][0]}",
        batch=_with_id(value, place),
        expected=("vocabulary",),
        alike=tuple((reading, _with_id(value, place, change)) for reading, change in READINGS.items()),
        everywhere=(word, place) in IDS_OF_EVERY_METHOD,
    )


def _with_id(value: Callable[[int], int], place: str, reading: Callable[[Array, int], Array] | None = None) -> Batch:
    def batch(setting: Setting) -> tuple[Array, Array]:
        v, tokens = setting.case.config.vocabulary_size, setting.tokens
        tokens[PLACES[place][1](tokens)] = value(v)
        if reading is not None:
            tokens = reading(tokens, v)
            if ((tokens < 0) | (tokens >= v)).any():
                raise NotJudged("no valid ids come of this reading")
        return tokens, setting.targets

    return batch


def _in_each_place(setting: Setting) -> Array:
    """The first answer to a bad id in some place; where all are refused, the first refusal is raised."""
    refusals: list[Exception] = []
    size = setting.tokens.size
    for place in np.linspace(0, size - 1, min(size, MOST_PLACES)).astype(int):
        tokens = setting.tokens
        tokens.flat[place] = setting.case.config.vocabulary_size
        try:
            return setting.call("logits", tokens, setting.targets)
        except (Absent, NotJudged):
            raise
        except Exception as refusal:
            refusals.append(refusal)
    raise refusals[0]


# --- INP-2 to INP-4: shapes, dtypes and lengths ---

SHAPES: dict[str, tuple[str, Change, Change | None]] = {  # word -> what is bad, how, and what would be the same
    "rank-0": ("a single token id", lambda ids: ids[0, 0], lambda ids: ids[:1, :1]),
    "rank-1": ("token ids of rank one", lambda ids: ids[0], lambda ids: ids[:1]),
    "rank-3": ("token ids of rank three", lambda ids: ids[None], lambda ids: ids),
    "empty-batch": ("an empty batch [0, T]", lambda ids: ids[:0], None),
    "empty-tokens": ("no tokens [B, 0]", lambda ids: ids[:, :0], None),
    "ragged": ("rows of different length, as lists", lambda ids: [ids[0].tolist(), ids[0].tolist()[:-1]], None),
}
SHAPES_OF_EVERY_METHOD = ("rank-1", "rank-3", "empty-batch", "empty-tokens")


def _one_none(ids: Array) -> Array:
    objects = ids.astype(object)
    objects[0, 0] = None
    return objects


def _one_nan(ids: Array) -> Array:
    floats = ids.astype(np.float64)
    floats[0, 0] = math.nan
    return floats


DTYPES: dict[str, tuple[str, Change, Change | None]] = {  # as above, of token ids and of targets
    "fractions": ("{} that are fractions", lambda ids: ids * 0.0 + 1.5, lambda ids: ids * 0 + 1),
    "integral-floats": ("integral {} as floats", lambda ids: ids.astype(np.float64), lambda ids: ids),
    "one-nan": ("{} as floats, one of them NaN", _one_nan, None),
    "booleans": ("booleans as {}", lambda ids: ids > 0, lambda ids: (ids > 0).astype(np.int64)),
    "strings": ("digits in strings as {}", lambda ids: ids.astype(str), lambda ids: ids),
    "nothing": ("None among the {}", _one_none, None),
    "objects": ("objects as {}", lambda ids: np.full(ids.shape, object()), None),
    "complex": ("complex {}", lambda ids: ids.astype(np.complex128), lambda ids: ids),
}
DTYPES_OF_EVERY_METHOD = ("integral-floats", "booleans")


def bad_tokens() -> Iterator[Probe]:
    """INP-2 to INP-4: shapes, dtypes and lengths."""
    for word, (sentence, bad, same) in SHAPES.items():
        row = _Row(word, sentence, _reshaped(bad), ("token_shape",), _same(same), word in SHAPES_OF_EVERY_METHOD)
        yield from _probes("INP-2", row)
    for word, (sentence, bad, same) in DTYPES.items():
        expected = ("token_shape", "vocabulary")  # what is no integer is no id either
        sentence, everywhere = sentence.format("token ids"), word in DTYPES_OF_EVERY_METHOD
        yield from _probes("INP-3", _Row(word, sentence, _retyped(bad), expected, _same(same), everywhere))
    yield from _probes("INP-4", _Row("T=max_positions", "as many tokens as max_positions", _long(0)))
    sentence = "one token more than max_positions"
    yield from _probes("INP-4", _Row("T=max_positions+1", sentence, _long(1), ("context",), everywhere=True))


def _same(change: Change | None) -> tuple[tuple[str, Batch], ...]:
    return () if change is None else ((HARMLESS, _reshaped(change)),)


def _reshaped(change: Change) -> Batch:
    """Targets go with the tokens: in the same shape where that is `[B, T]`, and flat where it is another."""

    def batch(setting: Setting) -> tuple[Any, Any]:
        tokens, targets = change(setting.tokens), setting.targets
        if isinstance(tokens, list) or np.shape(tokens) == targets.shape:
            return tokens, targets
        targets = change(targets)
        return tokens, targets if np.ndim(targets) == 2 else np.ravel(targets)

    return batch


def _retyped(change: Change) -> Batch:
    return lambda setting: (change(setting.tokens), setting.targets)


def _long(beyond: int) -> Batch:
    def batch(setting: Setting) -> tuple[Array, Array]:
        case = replace(setting.case, tokens=setting.case.config.max_positions + beyond)
        if not beyond and not setting.admits(case):
            raise NotJudged(f"the limits leave no batch of {case.tokens} tokens")
        tokens, targets = arrays(case)
        return fresh(tokens), fresh(targets)

    return batch


# --- INP-5: targets ---

Targets = Callable[[Array, int], Any]
SHAPE, ID, EITHER = (TARGET_SHAPE,), (TARGET_ID,), (TARGET_SHAPE, TARGET_ID)

TARGETS: dict[str, tuple[str, Targets, tuple[str, ...]]] = {
    "one-missing": ("one target missing from a flat list", lambda ids, v: ids.ravel()[:-1], SHAPE),
    "column-missing": ("one target missing in each row", lambda ids, v: ids[:, :-1], SHAPE),
    "column-more": ("one target too many in each row", lambda ids, v: np.concatenate([ids, ids[:, :1]], 1), SHAPE),
    "one-row": ("one row of targets for all rows of tokens", lambda ids, v: ids[:1], SHAPE),
    "turned": ("targets [T, B], as many as there are tokens", lambda ids, v: np.ascontiguousarray(ids.T), SHAPE),
    "rank-3": ("targets [B, T, 1], as many as there are tokens", lambda ids, v: ids[..., None], SHAPE),
    "-1": ("target id -1", lambda ids, v: _put(ids, -1), ID),
    "-100": ("target id -100, which some losses ignore", lambda ids, v: _put(ids, -100), ID),
    "V": ("target id V", lambda ids, v: _put(ids, v), ID),
    "V/first": ("target id V in first place", lambda ids, v: _put(ids, v, 0), ID),
    "V/middle": ("target id V in the middle of all", lambda ids, v: _put(ids, v, ids.size // 2), ID),
    "2^32+id": ("a target id plus 2^32", lambda ids, v: _put(ids, 2**32 + int(ids.flat[-1])), ID),
}


def _put(ids: Array, value: int, place: int = -1) -> Array:
    ids.flat[place] = value
    return ids


def bad_targets() -> Iterator[Probe]:
    """INP-5: targets that are not one id for each token, given to each method that takes them."""
    ignored = (("left out of the mean", _left_out), ("counted as nothing in the mean", _counted_as_nothing))
    for method in WITH_TARGETS:
        as_given = ((HARMLESS, _valid(method)),)
        for word, (sentence, bad, expected) in TARGETS.items():
            wrong = ignored if method == "loss" and word in ("-1", "-100", "V") else ()
            yield _bad_targets(word, sentence, method, bad, expected, as_given + wrong)
        for word, (sentence, retyped, same) in DTYPES.items():
            alike = () if same is None else ((HARMLESS, _targets(_whatever_size(same), method)),)
            yield _bad_targets(word, sentence.format("targets"), method, _whatever_size(retyped), EITHER, alike)


def _bad_targets(
    word: str,
    sentence: str,
    method: str,
    bad: Targets,
    expected: tuple[str, ...],
    alike: tuple[tuple[str, Perform], ...],
) -> Probe:
    return Probe(
        id=f"INP-5/{word}/{method}",
        requirement="INP-5",
        sentence=f"{sentence}, given to {method}",
        perform=_bad_alone(_targets(bad, method), bad),
        expected=expected,
        needs=method,
        alike=alike,
    )


def _whatever_size(change: Change) -> Targets:
    return lambda ids, _v: change(ids)


def _targets(change: Targets, method: str) -> Perform:
    return lambda setting: setting.call(
        method, setting.tokens, change(setting.targets, setting.case.config.vocabulary_size)
    )


def _bad_alone(perform: Perform, change: Targets) -> Perform:
    """Not judged where the change leaves valid targets, as where there is a single row."""

    def unless_valid(setting: Setting) -> Array:
        targets = change(setting.targets, v := setting.case.config.vocabulary_size)
        fits = targets.shape == setting.targets.shape and targets.dtype.kind in "iu"
        if fits and ((targets >= 0) & (targets < v)).all():
            raise NotJudged("the limits leave targets of a shape that this does not change")
        return perform(setting)

    return unless_valid


def _valid(method: str) -> Perform:
    return lambda setting: setting.valid(method)


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
