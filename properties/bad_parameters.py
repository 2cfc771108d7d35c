"""Probes of the parameters handed to `build`, and of those that are assigned (INP-6).

Each kind of fault is put into every parameter once: those of a block into the last one.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from itertools import cycle
from typing import Any

import numpy as np

from decoderspec.properties.cases import Array
from decoderspec.properties.findings import NotJudged
from decoderspec.properties.probe import AS_GIVEN, HARMLESS, Alike, Perform, Probe, Setting
from decoderspec.spec.parameters import BLOCK_PARAMETERS, FINAL_GAIN, TABLE

GATE, UP, DOWN, QUERY = "ffn.gate.weight", "ffn.up.weight", "ffn.down.weight", "attention.query.weight"
PLACES = (TABLE, *BLOCK_PARAMETERS, FINAL_GAIN)
NOT_FINITE = (math.nan, math.inf, -math.inf)
Tensors = Callable[[Setting, dict[str, Any]], None]  # puts the fault into their tensors
Change = Callable[[Array], Any]  # of one of their tensors


def bad_parameters() -> Iterator[Probe]:
    """INP-6: a fault in one of their tensors, through the declared layout."""
    yield from _bad_names()
    for word, place, sentence, change in _bad_shapes():
        yield _bad_tensors(word, sentence, _changed(place, change), AS_GIVEN)
    for place, value in zip(PLACES, cycle(NOT_FINITE), strict=False):
        yield _bad_tensors(f"{value}-in-{place}", f"{value} in {place}", _with_value(place, value))
    for word, place, sentence, change, alike in _bad_dtypes():
        yield _bad_tensors(word, sentence, _changed(place, change), alike)
    yield from _bad_assignments()


def _bad_tensors(word: str, sentence: str, fault: Tensors, alike: Alike = ()) -> Probe:
    return Probe(f"INP-6/{word}", "INP-6", sentence, _tensors(fault), ("parameters",), "build", alike)


def _tensors(fault: Tensors) -> Perform:
    def perform(setting: Setting) -> Array:
        theirs: dict[str, Any] = setting.theirs()
        fault(setting, theirs)
        return setting.built(setting.case.config, theirs, setting.tokens)

    return perform


# --- Where a parameter is in the declared layout ---


def _canonical(place: str, layer: int) -> str:
    return place if place in (TABLE, FINAL_GAIN) else f"blocks.{layer}.{place}"


def _holder(setting: Setting, place: str, layer: int) -> str:
    """Their tensor that holds a parameter: one of a block when it is none of the whole model."""
    return setting.subject.layout.holder(_canonical(place, layer))


def _held(setting: Setting, theirs: Mapping[str, Any], place: str) -> str:
    """Their tensor that holds the parameter of the last block. Raises `NotJudged` where there is none."""
    name = _holder(setting, place, setting.case.config.layers - 1)
    if name not in theirs:
        raise NotJudged("the limits leave no configuration with layers")
    return name


# --- Names ---

BESIDE = {  # what other decoders and their libraries keep beside the parameters: ending -> beside which
    "bias": (QUERY, DOWN, "attention_norm.gain", FINAL_GAIN),
    "weight_scale": (GATE,),
    "rotary_emb.inv_freq": (QUERY,),
    "masked_bias": (QUERY,),
}


def _bad_names() -> Iterator[Probe]:
    for place in PLACES:
        yield _bad_tensors(f"missing-{place}", f"{place} is missing", _without(place))
    yield _bad_tensors("unknown", "a parameter of an unknown name", _extra("unknown.weight", FINAL_GAIN), AS_GIVEN)
    yield _bad_tensors("head", "a head parameter, though the table is tied", _extra("lm_head.weight", TABLE), AS_GIVEN)
    yield _bad_tensors("inv_freq", "frequencies", _extra("rotary_emb.inv_freq", FINAL_GAIN), AS_GIVEN)
    yield _bad_tensors("one-layer-more", "parameters of one layer more", _layer_more, AS_GIVEN)
    for ending, places in BESIDE.items():
        for place in places:
            yield _bad_tensors(f"{ending}-beside-{place}", f"{ending} beside {place}", _beside(place, ending), AS_GIVEN)


def _without(place: str) -> Tensors:
    def fault(setting: Setting, theirs: dict[str, Any]) -> None:
        del theirs[_held(setting, theirs, place)]

    return fault


def _extra(name: str, like: str) -> Tensors:
    def fault(setting: Setting, theirs: dict[str, Any]) -> None:
        _add(theirs, name, _held(setting, theirs, like))

    return fault


def _beside(place: str, ending: str) -> Tensors:
    """One more tensor of the module that holds a parameter, or of the one around it where the ending has two parts."""

    def fault(setting: Setting, theirs: dict[str, Any]) -> None:
        held = _held(setting, theirs, place)
        _add(theirs, f"{held.rsplit('.', 1 + ending.count('.'))[0]}.{ending}", held)

    return fault


def _add(theirs: dict[str, Any], name: str, like: str) -> None:
    if name in theirs:
        raise NotJudged(f"{name} is a name of the declared layout")
    theirs[name] = theirs[like] * 0.5


def _layer_more(setting: Setting, theirs: dict[str, Any]) -> None:
    """One tensor of a layer beyond the last; where layers are stacked, the stack becomes higher by one."""
    layers = setting.case.config.layers
    name, last = _holder(setting, DOWN, layers), _held(setting, theirs, DOWN)
    theirs[name] = np.concatenate([theirs[last], theirs[last][:1]]) if name in theirs else theirs[last].copy()


# --- Shapes, values and dtypes ---


def _bad_shapes() -> Iterator[tuple[str, str, str, Change]]:
    for place in PLACES:
        first = _first_value if place.endswith(".gain") else _first_row
        yield f"first-alone-{place}", place, f"the first row alone of {place}, which would broadcast", first
        yield f"one-axis-more-{place}", place, f"{place} with an axis of one in front", lambda value: value[None]
        yield f"one-column-more-{place}", place, f"{place} with one column more", _column_more
    for place in (TABLE, GATE, UP, DOWN):  # the others are square
        yield f"transposed-{place}", place, f"{place} transposed", _transposed
    yield f"flat-{QUERY}", QUERY, f"{QUERY} of rank one", np.ravel
    yield "short-table", TABLE, "a table of V-1 rows", lambda value: value[:-1]
    yield "long-table", TABLE, "a table of V+1 rows", lambda value: np.concatenate([value, value[:1]])


def _first_value(gain: Array) -> Array:
    return gain[..., :1]


def _first_row(matrix: Array) -> Array:
    return matrix[..., :1, :]


def _column_more(value: Array) -> Array:
    return np.concatenate([value, value[..., :1]], axis=-1)


def _transposed(tensor: Array) -> Array:
    if tensor.shape[-2] == tensor.shape[-1]:
        raise NotJudged("the limits leave a square matrix alone, whose shape is right either way")
    return np.swapaxes(tensor, -1, -2)


def _with_value(place: str, value: float) -> Tensors:
    """One value of a parameter in place of another, put there before the layout joins it with others."""

    def fault(setting: Setting, theirs: dict[str, Any]) -> None:
        _held(setting, theirs, place)
        config, given = setting.case.config, dict(setting.subject.parameters(setting.case))
        name = _canonical(place, config.layers - 1)
        given[name] = _spoiled(value)(given[name])
        theirs.update(setting.subject.theirs(config, given))

    return fault


def _spoiled(value: float) -> Change:
    def change(tensor: Array) -> Array:
        tensor = tensor.copy()
        tensor.flat[-1] = value
        return tensor

    return change


def _bad_dtypes() -> Iterator[tuple[str, str, str, Change, Alike]]:
    for place in PLACES:
        ones_and_zeros = _tensors(_changed(place, lambda value: (value > 0).astype(value.dtype)))
        yield f"complex-{place}", place, f"complex numbers in {place}", _complex, AS_GIVEN
        yield f"strings-{place}", place, f"digits in strings in {place}", _strings, AS_GIVEN
        yield f"booleans-{place}", place, f"booleans in {place}", _booleans, ((HARMLESS, ones_and_zeros),)
    yield f"nothing-{QUERY}", QUERY, f"None in {QUERY}", lambda value: np.full(value.shape, None), ()


def _complex(value: Array) -> Any:
    return value.astype(np.complex128)


def _strings(value: Array) -> Any:
    return value.astype(str)


def _booleans(value: Array) -> Any:
    return value > 0


def _changed(place: str, change: Change) -> Tensors:
    def fault(setting: Setting, theirs: dict[str, Any]) -> None:
        name = _held(setting, theirs, place)
        theirs[name] = np.array(change(theirs[name]), order="C")

    return fault


# --- Assignments ---

ASSIGNED: dict[str, tuple[str, Change]] = {
    "first-alone": ("the first row alone of {}", lambda value: value[:1]),
    "one-axis-more": ("{} with an axis of one in front", lambda value: value[None]),
    "one-column-more": ("{} with one column more", _column_more),
    "a-number": ("a number as the whole of {}", lambda value: value.flat[-1]),
    "nan": ("NaN in {}", _spoiled(math.nan)),
    "inf": ("infinity in {}", _spoiled(math.inf)),
    "complex": ("complex numbers in {}", _complex),
    "strings": ("digits in strings in {}", _strings),
    "booleans": ("booleans in {}", _booleans),
}


def _bad_assignments() -> Iterator[Probe]:
    for place in (TABLE, DOWN, FINAL_GAIN):
        for word, (sentence, change) in ASSIGNED.items():
            yield _bad_assignment(f"{word}-{place}", sentence.format(place), _assigned(place, change))
    sentence = "a parameter of an unknown name"
    yield _bad_assignment("unknown", sentence, _assigned(FINAL_GAIN, np.copy, "unknown.weight"))


def _bad_assignment(word: str, sentence: str, perform: Perform) -> Probe:
    name, sentence = f"INP-6/assign/{word}", f"{sentence}, given to assign"
    return Probe(name, "INP-6", sentence, perform, ("parameters",), "assign", AS_GIVEN)


def _assigned(place: str, change: Change, name: str = "") -> Perform:
    """The logits of the shared model after the assignment; what it takes is written back, a refusal is left alone."""

    def perform(setting: Setting) -> Array:
        theirs = setting.theirs()
        held, model = _alone(setting, theirs, place), setting.model
        setting.doing = "assign"
        model.assign(name or held, np.array(change(theirs[held]), order="C"))
        try:
            return setting.valid()
        finally:
            with contextlib.suppress(Exception):  # a model that stays spoiled is replaced
                model.assign(held, theirs[held])

    return perform


def _alone(setting: Setting, theirs: Mapping[str, Any], place: str) -> str:
    """Their tensor that holds the parameter of the last block and nothing else."""
    held = _held(setting, theirs, place)
    if held not in setting.subject.layout.rename(setting.case.config).values():
        raise NotJudged(f"{place} shares a tensor with others in the declared layout, so it is not assigned alone")
    return held
