"""Probes of the parameters handed to `build` (INP-6)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from decoderspec.properties.cases import Array
from decoderspec.properties.findings import NotJudged
from decoderspec.properties.probe import AS_GIVEN, HARMLESS, Alike, Perform, Probe, Setting
from decoderspec.spec.parameters import FINAL_GAIN, TABLE

GATE, DOWN, QUERY = "ffn.gate.weight", "ffn.down.weight", "attention.query.weight"
Tensors = Callable[[Setting, dict[str, Any]], None]  # puts the fault into their tensors


def bad_parameters() -> Iterator[Probe]:
    """INP-6: a fault in one of their tensors, through the declared layout."""
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
