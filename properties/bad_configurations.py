"""Probes of what `build` and `initialize` must refuse: invalid configurations (CFG-1), sizes beyond memory (CFG-2)."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from decoderspec.properties.cases import Array
from decoderspec.properties.findings import NotJudged
from decoderspec.properties.probe import HARMLESS, ROOM, Alike, Perform, Probe, Setting
from decoderspec.spec.config import Config
from decoderspec.spec.parameters import parameter_shapes
from decoderspec.spec.validation import INTEGER_FIELDS

Change = Callable[[Config], dict[str, Any]]  # the fields that differ from a valid configuration


def _fields(**values: Any) -> Change:
    return lambda config: dict(values)


def _scaled(name: str, change: Callable[[Any], Any]) -> Change:
    return lambda config: {name: change(getattr(config, name) or 1)}


@dataclass(frozen=True)
class _BadConfig:
    """Bad fields, and those of the configuration whose parameters go with them."""

    word: str
    sentence: str
    bad: Change
    shaped: Change = field(default_factory=_fields)
    near: bool = True  # whether that one is valid, so that taking the bad one for it does no harm


def configurations() -> Iterator[Probe]:
    """CFG-1: one fault to a probe, with layers and without; then of a model that draws its own parameters."""
    for ending, fields in ENDINGS.items():
        sentence = "a valid configuration" + (" without layers" if ending else "")
        yield Probe(f"CFG-1/valid{ending}", "CFG-1", sentence, _configured(fields, fields), needs="build")
        for given in _bad_configs():
            if not ending or "layers" not in given.word:
                yield _bad_config(given, ending, fields)
    yield from _initializations()


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
        yield _BadConfig(f"boolean-{name}", f"{name} of True", _fields(**{name: True}), _fields(**{name: 1.0}))
        yield _BadConfig(f"string-{name}", f"{name} in a string", _scaled(name, str))
    for name in INTEGER_FIELDS:
        yield from _bad_integers(name)


REALS = {
    "rope_base": (0.0, -100.0, math.nan, math.inf, -math.inf),
    "rms_epsilon": (-1e-3, math.nan, math.inf, -math.inf),
}


def _bad_integers(name: str) -> Iterator[_BadConfig]:
    counted = _fields(layers=0) if name == "layers" else _fields()  # counting up to a negative number gives none
    yield _BadConfig(f"negative-{name}", f"negative {name}", _scaled(name, lambda size: -size), counted)
    yield _BadConfig(f"fraction-{name}", f"{name} that is no integer", _scaled(name, lambda size: size + 0.5))
    yield _BadConfig(f"float-{name}", f"integral {name} as a float", _scaled(name, float))
    yield _BadConfig(f"string-{name}", f"{name} in a string", _scaled(name, str))
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


# --- CFG-1 of `initialize`, which comes to the same configurations by another way ---

SEEDS: dict[str, tuple[str, Any, int]] = {  # word -> what is bad, the seed, and the nearest valid one
    "negative": ("a seed of -1", -1, 2**64 - 1),
    "2^64": ("a seed of 2^64", 2**64, 0),
    "fraction": ("a seed that is no integer", 1.5, 1),
    "float": ("an integral seed as a float", 1.0, 1),
    "boolean": ("a seed of True", True, 1),
    "string": ("a seed in a string", "1", 1),
}


def _initializations() -> Iterator[Probe]:
    yield _initialization("valid", "a valid configuration and seed", _initialized(_fields(), 1), valid=True)
    for given in _bad_configs():
        alike = ((HARMLESS, _initialized(given.shaped, 1)),) if given.near else ()
        yield _initialization(given.word, given.sentence, _initialized(given.bad, 1), alike)
    for word, (sentence, seed, near) in SEEDS.items():
        alike = ((HARMLESS, _initialized(_fields(), near)),)
        yield _initialization(f"seed-{word}", sentence, _initialized(_fields(), seed), alike)


def _initialization(word: str, sentence: str, perform: Perform, alike: Alike = (), *, valid: bool = False) -> Probe:
    expected = () if valid else ("configuration",)
    name, sentence = f"CFG-1/{word}/initialize", f"{sentence}, given to initialize"
    return Probe(name, "CFG-1", sentence, perform, expected, "initialize", alike)


def _initialized(changed: Change, seed: Any) -> Perform:
    def perform(setting: Setting) -> Array:
        config = setting.case.config
        return setting.initialized(replace(config, **changed(config)), seed, setting.tokens % _rows(config, changed))

    return perform


def _rows(config: Config, changed: Change) -> int:
    """Rows of the table, where the changed configuration has a number of them; else those of the valid one."""
    given = changed(config).get("vocabulary_size")
    return given if isinstance(given, int) and given > 0 else config.vocabulary_size


# --- CFG-2: more than any memory holds ---


def resources() -> Iterator[Probe]:
    """CFG-2: sizes that no machine holds."""
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
