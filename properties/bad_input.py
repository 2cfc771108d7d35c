"""What an implementation must refuse, as data: one fault to a probe, everything else valid.

A probe says what is bad, which categories a refusal may have, and how to try it. Controls are probes too: valid
input next to the bad, which must be taken. What the answers are worth is for `grading`; that they are asked for in a
process of their own is for `child`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from decoderspec.properties.cases import Array, Case, arrays
from decoderspec.properties.findings import Finding, NotJudged
from decoderspec.properties.subject import Subject, fresh
from decoderspec.spec.arrays import ArrayError, to_numpy
from decoderspec.spec.config import Config
from decoderspec.spec.parameters import FINAL_GAIN, TABLE, parameter_shapes
from decoderspec.spec.validation import INTEGER_FIELDS

USUAL = Case(Config(7, 8, 2, 5, 2, 6, 100.0, 1e-3), batch=2, tokens=4, seed=1)  # all sizes differ
ROOM = 2**30  # bytes that a build beyond all memory may take before the system refuses them
HARMLESS = "harmless"  # the word for an answer that is right for the nearest valid input


@dataclass
class Setting:
    """What every probe starts from: a valid case, and one model of it that all of them share."""

    subject: Subject
    doing: str = "build"  # the last call into the implementation, for the words of the report

    @cached_property
    def case(self) -> Case:
        """The usual case where there are no limits; else the nearest one within them."""
        if not self.subject.limits:
            return USUAL
        from decoderspec.properties import strategies  # brings Hypothesis, which most children can do without

        limits = self.subject.limits
        return strategies.within(limits, USUAL) or strategies.smallest_case(limits)

    def admits(self, case: Case) -> bool:
        """Whether a case lies within the limits as it is."""
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

    def call(self, capability: str, *arguments: Any) -> Array:
        """The numbers that the shared model answers with. Raises what the implementation raises."""
        self.doing = "build"
        model = self.subject.model(self.case).model
        self.doing = capability
        return numbers(getattr(model, capability)(*arguments))

    def valid(self) -> Array:
        """The logits of the shared model on valid tokens."""
        return self.call("logits", self.tokens)

    def built(self, config: Config, theirs: Mapping[str, Any], tokens: Array) -> Array:
        """The logits of a model of its own. Raises what the implementation raises."""
        self.doing = "build"
        model = self.subject.implementation.build(config, dict(theirs))
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
    needs: str = "logits"  # the method of the model that it calls
    alike: Alike = ()
    after: str = ""  # the probe that is refused first, where this one asks what a refusal leaves behind


def numbers(value: Any) -> Array:
    """An answer as a flat array, those of a mapping one after the other. Raises what reading it raises."""
    if isinstance(value, Mapping):
        return np.concatenate([np.empty(0), *(numbers(value[name]) for name in sorted(value))])
    try:
        return to_numpy(value)[0].ravel()
    except ArrayError as failure:
        # A lazy array raises here what its computation raised, a list only that it is ragged.
        if failure.__cause__ is None or isinstance(value, (list, tuple)):
            raise
        raise failure.__cause__ from None


# --- CFG-1: invalid configurations ---

Change = Callable[[Config], dict[str, Any]]  # the fields that differ from a valid configuration


def _fields(**values: Any) -> Change:
    return lambda config: dict(values)


def _scaled(name: str, change: Callable[[int], Any]) -> Change:
    return lambda config: {name: change(getattr(config, name) or 1)}


@dataclass(frozen=True)
class _BadConfig:
    """Bad fields, and those of the configuration whose parameters go with them."""

    word: str
    sentence: str
    bad: Change
    shaped: Change = field(default_factory=_fields)
    near: bool = True  # whether that one is valid, so that taking the bad one for it does no harm


def _configurations() -> Iterator[Probe]:
    for ending, fields in ENDINGS.items():
        sentence = "a valid configuration" + (" without layers" if ending else "")
        yield Probe(f"CFG-1/valid{ending}", "CFG-1", sentence, _configured(fields, fields), needs="build")
        for given in _bad_configs():
            if not ending or "layers" not in given.word:
                yield _bad_config(given, ending, fields)


ENDINGS = {"": _fields(), "/no-layers": _fields(layers=0)}


def _bad_configs() -> Iterator[_BadConfig]:
    for name in ("vocabulary_size", "model_width", "feed_forward_width"):
        zero = _fields(**{name: 0})
        yield _BadConfig(f"zero-{name}", f"{name} of 0", zero, zero, near=False)
    for name in ("heads", "max_positions"):  # which shape no parameter
        yield _BadConfig(f"zero-{name}", f"{name} of 0", _fields(**{name: 0}))
    yield _BadConfig("indivisible", "model_width that heads do not divide", lambda c: {"heads": _no_divisor(c)})
    for d, h in ((6, 2), (3, 1), (2, 2)):
        odd = _fields(model_width=d, heads=h)
        sentence = f"odd head width {d // h} (model_width {d}, heads {h})"
        yield _BadConfig(f"odd-head-width-{d}-{h}", sentence, odd, odd, near=False)
    for name, values in REALS.items():
        for value in values:
            yield _BadConfig(f"{name}-{value:g}", f"{name} of {value:g}", _fields(**{name: value}))
    for name in INTEGER_FIELDS:
        yield from _bad_integers(name)


REALS = {"rope_base": (0.0, -100.0, math.nan, math.inf), "rms_epsilon": (-1e-3, math.nan, math.inf)}


def _bad_integers(name: str) -> Iterator[_BadConfig]:
    counted = _fields(layers=0) if name == "layers" else _fields()  # counting up to a negative number gives none
    yield _BadConfig(f"negative-{name}", f"negative {name}", _scaled(name, lambda size: -size), counted)
    yield _BadConfig(f"fraction-{name}", f"{name} that is no integer", _scaled(name, lambda size: size + 0.5))
    if name != "model_width":  # one feature makes no pair, so a width of True would have two faults
        yield _BadConfig(f"boolean-{name}", f"{name} of True", _fields(**{name: True}), _fields(**{name: 1}))


def _no_divisor(config: Config) -> int:
    return next(h for h in range(2, config.model_width + 2) if config.model_width % h)


def _bad_config(given: _BadConfig, ending: str, fields: Change) -> Probe:
    bad, shaped = _both(fields, given.bad), _both(fields, given.shaped)
    return Probe(
        id=f"CFG-1/{given.word}{ending}",
        requirement="CFG-1",
        sentence=given.sentence + (", without layers" if ending else ""),
        perform=_configured(bad, shaped),
        expected=("configuration",),
        needs="build",
        alike=((HARMLESS, _configured(shaped, shaped)),) if given.near else (),
    )


def _both(first: Change, second: Change) -> Change:
    return lambda config: {**first(config), **second(config)}


def _configured(bad: Change, shaped: Change) -> Perform:
    """The configuration with the fields of `bad`, with parameters of the shapes of the one with those of `shaped`."""

    def perform(setting: Setting) -> Array:
        config = setting.case.config
        changed = bad(config)
        if changed.get("layers") == 0 and not setting.admits(replace(setting.case, config=replace(config, layers=0))):
            raise NotJudged("the limits leave no configuration without layers")
        near = replace(config, **shaped(config))
        tokens = setting.tokens[:, : near.max_positions] % max(1, near.vocabulary_size)
        return setting.built(replace(config, **changed), _shaped(setting, near), tokens)

    return perform


def _shaped(setting: Setting, config: Config) -> dict[str, Array]:
    """Tensors of a configuration that may have sizes of 0: drawn for larger ones, and cut."""
    case = setting.case
    room = {name: max(getattr(config, name), getattr(case.config, name)) for name in INTEGER_FIELDS}
    drawn = setting.subject.parameters(replace(case, config=replace(case.config, **(room | {"heads": 1}))))
    cut = {name: drawn[name][tuple(map(slice, shape))] for name, shape in parameter_shapes(config).items()}
    return setting.subject.theirs(config, cut)


# --- CFG-2: more than any memory holds ---


def _resources() -> Iterator[Probe]:
    sizes = {"layers": 10**12, "vocabulary_size": 2**60, "feed_forward_width": 2**60}
    for name, size in sizes.items():
        yield Probe(
            f"CFG-2/{name}", "CFG-2", f"{name} of {size}, with no parameters at all", _beyond_memory(name, size),
            ("resource", "configuration", "parameters"), "build",
        )  # fmt: skip


def _beyond_memory(name: str, size: int) -> Perform:
    def perform(setting: Setting) -> Array:
        with _little_room():
            return setting.built(replace(setting.case.config, **{name: size}), {}, setting.tokens)

    return perform


@contextmanager
def _little_room() -> Iterator[None]:
    """Let the process grow by `ROOM` alone, so that who does allocate does not take the machine down."""
    if sys.platform != "linux":
        yield
        return
    import resource

    with open("/proc/self/statm") as sizes:
        used = int(sizes.read().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    lowest = min(limit for limit in (used + ROOM, soft, hard) if limit != resource.RLIM_INFINITY)
    resource.setrlimit(resource.RLIMIT_AS, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


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


def _ids() -> Iterator[Probe]:
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
AS_GIVEN: Alike = ((HARMLESS, Setting.valid),)

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


def _bad_tokens() -> Iterator[Probe]:
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


def _bad_targets() -> Iterator[Probe]:
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


# --- INP-6: parameters ---

GATE, DOWN, QUERY = "ffn.gate.weight", "ffn.down.weight", "attention.query.weight"
Tensors = Callable[[Setting, dict[str, Any]], None]  # puts the fault into their tensors


def _bad_parameters() -> Iterator[Probe]:
    for place in (TABLE, QUERY, FINAL_GAIN):
        yield _bad_tensors(f"missing-{place}", f"{place} is missing", _without(place))
    yield _bad_tensors("unknown", "a parameter of an unknown name", _extra("unknown.weight", FINAL_GAIN), AS_GIVEN)
    yield _bad_tensors("head", "a head parameter, though the table is tied", _extra("lm_head.weight", TABLE), AS_GIVEN)
    yield _bad_tensors("one-layer-more", "parameters of one layer more", _layer_more, AS_GIVEN)
    for word, place, sentence, change in _bad_shapes():
        yield _bad_tensors(word, sentence, _changed(place, change), AS_GIVEN)
    for place, value in ((TABLE, math.nan), (FINAL_GAIN, math.inf), (DOWN, -math.inf)):
        yield _bad_tensors(f"{value}-in-{place}", f"{value} in {place}", _changed(place, _spoiled(value)))
    for word, sentence, change, alike in _bad_dtypes():
        yield _bad_tensors(word, sentence, _changed(QUERY, change), alike)


def _bad_shapes() -> Iterator[tuple[str, str, str, Callable[[Array], Any]]]:
    yield "transposed", GATE, f"{GATE} transposed", _transposed
    yield "one-gain", FINAL_GAIN, "a gain of shape [1], which would broadcast", lambda value: value[:1]
    yield "row-gain", FINAL_GAIN, "a gain of shape [1, d], which would broadcast", lambda value: value[None]
    yield "flat", QUERY, f"{QUERY} of rank one", np.ravel
    yield "short-table", TABLE, "a table of V-1 rows", lambda value: value[:-1]
    yield "long-table", TABLE, "a table of V+1 rows", lambda value: np.concatenate([value, value[:1]])


def _bad_dtypes() -> Iterator[tuple[str, str, Callable[[Array], Any], Alike]]:
    ones_and_zeros = _tensors(_changed(QUERY, lambda value: (value > 0).astype(value.dtype)))
    yield "complex", f"complex numbers in {QUERY}", lambda value: value.astype(np.complex128), AS_GIVEN
    yield "strings", f"digits in strings in {QUERY}", lambda value: value.astype(str), AS_GIVEN
    yield "booleans", f"booleans in {QUERY}", lambda value: value > 0, ((HARMLESS, ones_and_zeros),)
    yield "nothing", f"None in {QUERY}", lambda value: np.full(value.shape, None), ()


def _bad_tensors(word: str, sentence: str, fault: Tensors, alike: Alike = ()) -> Probe:
    return Probe(f"INP-6/{word}", "INP-6", sentence, _tensors(fault), ("parameters",), "build", alike)


def _tensors(fault: Tensors) -> Perform:
    def perform(setting: Setting) -> Array:
        theirs: dict[str, Any] = setting.theirs()
        fault(setting, theirs)
        return setting.built(setting.case.config, theirs, setting.tokens)

    return perform


def _holder(setting: Setting, place: str, layer: int) -> str:
    """Their tensor that holds a parameter: one of a block when it is none of the whole model."""
    name = place if place in (TABLE, FINAL_GAIN) else f"blocks.{layer}.{place}"
    return setting.subject.layout.holder(name)


def _held(setting: Setting, theirs: Mapping[str, Any], place: str) -> str:
    """Their tensor that holds the parameter of the last block. Raises `NotJudged` where there is none."""
    name = _holder(setting, place, setting.case.config.layers - 1)
    if name not in theirs:
        raise NotJudged("the limits leave no configuration with layers")
    return name


def _without(place: str) -> Tensors:
    def fault(setting: Setting, theirs: dict[str, Any]) -> None:
        del theirs[_held(setting, theirs, place)]

    return fault


def _extra(name: str, like: str) -> Tensors:
    def fault(setting: Setting, theirs: dict[str, Any]) -> None:
        if name in theirs:
            raise NotJudged(f"{name} is a name of the declared layout")
        theirs[name] = theirs[_held(setting, theirs, like)] * 0.5

    return fault


def _layer_more(setting: Setting, theirs: dict[str, Any]) -> None:
    """One tensor of a layer beyond the last; where layers are stacked, the stack becomes higher by one."""
    layers = setting.case.config.layers
    name, last = _holder(setting, DOWN, layers), _held(setting, theirs, DOWN)
    theirs[name] = np.concatenate([theirs[last], theirs[last][:1]]) if name in theirs else theirs[last].copy()


def _changed(place: str, change: Callable[[Array], Any]) -> Tensors:
    def fault(setting: Setting, theirs: dict[str, Any]) -> None:
        name = _held(setting, theirs, place)
        theirs[name] = np.ascontiguousarray(change(theirs[name]))

    return fault


def _transposed(tensor: Array) -> Array:
    if tensor.shape[-2] == tensor.shape[-1]:
        raise NotJudged("the limits leave a square matrix alone, whose shape is right either way")
    return np.swapaxes(tensor, -1, -2)


def _spoiled(value: float) -> Callable[[Array], Any]:
    def change(tensor: Array) -> Array:
        tensor = tensor.copy()
        tensor.flat[-1] = value
        return tensor

    return change


# --- INP-7: what a refusal leaves behind ---

REFUSED_FIRST = (
    "CFG-1/zero-heads", "INP-1/-1/last", "INP-1/V/last", "INP-2/rank-1", "INP-2/empty-tokens", "INP-3/fractions",
    "INP-4/T=max_positions+1", "INP-5/-100/loss", "INP-5/V/gradients", "INP-6/transposed",
)  # fmt: skip


def _afterwards(asked: Mapping[str, Probe]) -> Iterator[Probe]:
    for name in REFUSED_FIRST:
        first = asked[name]
        sentence = f"valid tokens after a refusal of {first.sentence}"
        yield Probe(f"INP-7/after/{name}", "INP-7", sentence, _usable_after(first), (), first.needs, after=name)


def _usable_after(first: Probe) -> Perform:
    def perform(setting: Setting) -> Array:
        before = setting.valid()
        if setting.valid().tobytes() != before.tobytes():
            raise NotJudged("two equal calls differ already")
        _refused(first, setting)
        after = setting.valid()
        if after.tobytes() != before.tobytes():
            raise Finding(f"the refusal changed {int((after != before).sum())} of {after.size} logits")
        return after

    return perform


def _refused(first: Probe, setting: Setting) -> None:
    try:
        first.perform(setting)
    except NotJudged:
        raise
    except Exception:
        return
    raise NotJudged(f"{first.id} was not refused")


def _all() -> dict[str, Probe]:
    families = (_configurations, _resources, _ids, _bad_tokens, _bad_targets, _bad_parameters)
    probes = {probe.id: probe for family in families for probe in family()}
    # Whether a refusal spoils the model is asked first: a model that is spoiled costs a new child for each probe.
    return {probe.id: probe for probe in _afterwards(probes)} | probes


PROBES = _all()  # by id, in the order in which they are asked
REQUIREMENTS = tuple(dict.fromkeys(probe.requirement for probe in PROBES.values()))
