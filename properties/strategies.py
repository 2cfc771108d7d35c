"""Drawing cases within what the implementation can run: constructive, few configurations where a build is dear."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from decoderspec.properties.cases import STYLES, TOKEN_STYLES, Case, fixed_cases, long_cases
from decoderspec.spec.config import Config
from decoderspec.spec.parameters import parameter_count
from decoderspec.spec.precision import DeclarationError
from decoderspec.spec.shown import shown

PREFERRED = {  # ordered: shrinking goes to the left
    "vocabulary_size": (2, 3, 5, 7, 11, 17, 4, 8, 1),
    "head_width": (4, 6, 8, 10, 2, 12),
    "heads": (2, 1, 3, 4),
    "feed_forward_width": (3, 5, 7, 4, 11, 8, 1),
    "layers": (1, 2, 3, 0),
    "max_positions": (4, 6, 9, 13, 2, 1),
    "batch": (1, 2, 3),
    "tokens": tuple(range(1, 14)),
    "rope_base": (10.0, 100.0, 3.3, 10000.0, 500000.0, 1.25),
    "rms_epsilon": (1e-3, 1e-5, 1e-2, 1e-6, 0.1, 1e-1),
}
LARGEST = 10**7  # parameters of a case that is drawn: truth is computed for every one
Shape = tuple[Config, int, int]  # with B and T
COUNTS = ("configurations", "shapes")  # how many there may be, where each is dear to build or to compile
LIMIT_KEYS = (*PREFERRED, "model_width", *COUNTS)


def allowed(limits: Mapping[str, Any], field: str) -> tuple[Any, ...]:
    """Values of a field that the implementation can run, preferred ones first. Raises `DeclarationError`."""
    preferred, limit = PREFERRED[field], limits.get(field)
    if limit is None:
        return preferred
    if isinstance(limit, Mapping):
        keep = _predicate(limit, field)
        within = tuple(value for value in preferred if keep(value))
        return within or tuple(filter(keep, _reaching(limit)))[:4] or _impossible(field, limit)
    listed = _listed(limit)
    return listed if listed and all(_is_valid(field, value) for value in listed) else _impossible(field, limit)


def _is_valid(field: str, value: Any) -> bool:
    """Whether a valid case may have that value at all."""
    if not _is_number(value):
        return False
    if field in ("rope_base", "rms_epsilon"):
        return value > 0 or (value == 0 and field == "rms_epsilon")
    if not isinstance(value, int):
        return False
    return value >= (0 if field == "layers" else 1) and not (field == "head_width" and value % 2)


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and bool(abs(value) <= sys.float_info.max)  # neither NaN nor an integer beyond every float


def _reaching(limit: Mapping[str, Any]) -> Iterable[Any]:
    """The ends of a range, then multiples from its lower end on."""
    step = limit.get("multiple_of", 1)
    first = max(step, math.ceil(limit.get("min", step) / step) * step)
    ends = [limit[key] for key in ("min", "max") if key in limit]
    return dict.fromkeys([*ends, *(first + count * step for count in range(8))])


def _predicate(limit: Mapping[str, Any], field: str) -> Callable[[Any], bool]:
    unknown = set(limit) - {"min", "max", "multiple_of"}
    if unknown:
        raise DeclarationError(f"limits of {field} have {sorted(unknown)}; allowed: min, max, multiple_of, or a list")
    for key, value in limit.items():
        if not _is_number(value) or (key == "multiple_of" and value <= 0):
            _impossible(field, limit)
    low, high, step = limit.get("min", -math.inf), limit.get("max", math.inf), limit.get("multiple_of")
    return lambda value: low <= value <= high and (step is None or value % step == 0) and _is_valid(field, value)


def _impossible(field: str, limit: Any) -> tuple[Any, ...]:
    raise DeclarationError(
        f"limits of {field} are {shown(limit)}, which no valid case meets; allowed: a number, a list of them,"
        " or a mapping of min, max and multiple_of"
    )


def shapes(limits: Mapping[str, Any]) -> tuple[tuple[int, int], ...]:
    """Pairs of heads and head width whose product is an allowed model width."""
    pairs = [(h, w) for w in allowed(limits, "head_width") for h in allowed(limits, "heads")]
    width = limits.get("model_width")
    if width is not None:
        keep = _fits(limits, "model_width")
        wide = [(h, w) for w in range(2, 257, 2) for h in range(1, 65)]
        h_fits, w_fits = _fits(limits, "heads"), _fits(limits, "head_width")
        reachable = pairs + [(h, w) for h, w in wide if h_fits(h) and w_fits(w)]
        pairs = [(h, w) for h, w in reachable if keep(h * w)][:12]
    if not pairs:
        raise DeclarationError(f"no heads and head width within the limits {dict(limits)}")
    return tuple(pairs)


def contexts(limits: Mapping[str, Any]) -> tuple[int, ...]:
    """Values of `max_positions` that leave room for an allowed number of tokens. Raises `DeclarationError`."""
    tokens, found = allowed(limits, "tokens"), allowed(limits, "max_positions")
    if "tokens" in limits and "max_positions" not in limits:
        found = tuple(dict.fromkeys([*found, max(tokens)]))
    found = tuple(value for value in found if value >= min(tokens))
    return found or _impossible("max_positions", limits["max_positions"])


def _listed(limit: Any) -> tuple[Any, ...]:
    return tuple(limit) if isinstance(limit, Collection) and not isinstance(limit, (str, bytes)) else (limit,)


def _fits(limits: Mapping[str, Any], field: str) -> Callable[[Any], bool]:
    limit = limits.get(field)
    if limit is None:
        return lambda value: True
    if isinstance(limit, Mapping):
        return _predicate(limit, field)
    listed = _listed(limit)
    if not listed or not all(_is_valid(field, value) for value in listed):
        _impossible(field, limit)
    return set(listed).__contains__


def check_limits(limits: Mapping[str, Any]) -> None:
    """Raise `DeclarationError` for limits that cannot be read or met."""
    if not isinstance(limits, Mapping):
        raise DeclarationError(f"limits must be a mapping of fields, got {type(limits).__name__}")
    for field in limits:
        if field not in LIMIT_KEYS:
            raise DeclarationError(f"limits have no field {shown(field)}; allowed: {', '.join(LIMIT_KEYS)}")
    for field in PREFERRED:
        allowed(limits, field)
    for field in COUNTS:
        if not _is_valid(field, limits.get(field, 1)):
            raise DeclarationError(
                f"limits of {field} are {shown(limits[field])}; allowed: a number of them, 1 or more"
            )
    shapes(limits)
    contexts(limits)
    scalars = parameter_count(smallest_case(limits).config)
    if scalars > LARGEST:
        raise DeclarationError(f"within the limits {dict(limits)} the smallest case has {scalars} parameters")


@st.composite
def cases(
    draw: st.DrawFn,
    limits: Mapping[str, Any],
    pool: Sequence[Config] = (),
    shapes: Sequence[Shape] = (),
    styles: Sequence[str] = STYLES,
) -> Case:
    """Any case within the limits; of the pool's configurations, or of the shapes, only where there are some."""
    config, batch, tokens = draw(st.sampled_from(list(shapes)) if shapes else _shapes(limits, pool))
    seed, style, ids = draw(st.integers(0, 2**16)), draw(st.sampled_from(styles)), draw(st.sampled_from(TOKEN_STYLES))
    return Case(config, batch, tokens, seed, style, ids)


@st.composite
def _shapes(draw: st.DrawFn, limits: Mapping[str, Any], pool: Sequence[Config]) -> Shape:
    """Any configuration within the limits, or of the pool, with B and T."""
    config = draw(st.sampled_from(list(pool))) if pool else draw(configs(limits))
    tokens = [t for t in allowed(limits, "tokens") if t <= config.max_positions]
    return config, draw(st.sampled_from(allowed(limits, "batch"))), draw(st.sampled_from([*tokens, tokens[-1]]))


@st.composite
def configs(draw: st.DrawFn, limits: Mapping[str, Any]) -> Config:
    """Any configuration within the limits."""

    def one(field: str) -> Any:
        return draw(st.sampled_from(allowed(limits, field)))

    heads, width = draw(st.sampled_from(shapes(limits)))
    return Config(
        one("vocabulary_size"), heads * width, heads, one("feed_forward_width"), one("layers"),
        draw(st.sampled_from(contexts(limits))), one("rope_base"), one("rms_epsilon"),
    )  # fmt: skip


def within(limits: Mapping[str, Any], case: Case) -> Case | None:
    """A fixed case moved to the nearest sizes that the implementation can run; None when that loses its point."""
    c = case.config
    pairs = shapes(limits)
    heads, width = min(pairs, key=lambda p: (abs(p[0] * p[1] - c.model_width), abs(p[0] - c.heads)))
    tokens, context = _lengths(limits, case)
    moved = Config(
        _nearest(limits, "vocabulary_size", c.vocabulary_size),
        heads * width if limits.keys() & {"heads", "head_width", "model_width"} else c.model_width,
        heads if limits.keys() & {"heads", "head_width", "model_width"} else c.heads,
        _nearest(limits, "feed_forward_width", c.feed_forward_width),
        _nearest(limits, "layers", c.layers),
        context,
        _nearest(limits, "rope_base", c.rope_base),
        _nearest(limits, "rms_epsilon", c.rms_epsilon),
    )
    batch = _nearest(limits, "batch", case.batch)
    if tokens < case.tokens / 2 or (c.layers == 0) != (moved.layers == 0):
        return None
    if case.style == "zero_rows" and moved.rms_epsilon == 0:  # then no right decoder can bear such a row
        return None
    return Case(moved, batch, tokens, case.seed, case.style, case.token_style, case.note)


def shape_within(limits: Mapping[str, Any], config: Config, batch: int, tokens: int) -> tuple[int, int]:
    """B and T nearest to those given, within the limits and the context. Raises `DeclarationError` where none fits."""
    longest = config.max_positions
    lengths = allowed(limits, "tokens") if "tokens" in limits else (min(tokens, longest),)
    fits = [length for length in lengths if length <= longest]
    if not fits:
        raise DeclarationError(f"limits of tokens are {shown(limits['tokens'])}, all beyond max_positions = {longest}")
    return _nearest(limits, "batch", batch), min(fits, key=lambda length: abs(length - tokens))


def admits(limits: Mapping[str, Any], batch: int, tokens: int) -> bool:
    """Whether B and T lie within the limits."""
    return _fits(limits, "batch")(batch) and _fits(limits, "tokens")(tokens)


def _lengths(limits: Mapping[str, Any], case: Case) -> tuple[int, int]:
    """T and `max_positions`, nearest to those of the case."""
    tokens = _nearest(limits, "tokens", case.tokens)
    context = max(case.config.max_positions, tokens)
    if not _fits(limits, "max_positions")(context):
        context = min(contexts(limits), key=lambda other: abs(other - context))
    if tokens > context:
        fits = _fits(limits, "tokens")
        tokens = max(t for t in (*allowed(limits, "tokens"), context) if t <= context and fits(t))
    return tokens, context


def _nearest(limits: Mapping[str, Any], field: str, value: Any) -> Any:
    if field not in limits or _fits(limits, field)(value):
        return value
    return min(allowed(limits, field), key=lambda other: abs(other - value))


def fixed(limits: Mapping[str, Any], profile: str) -> tuple[list[Case], list[str]]:
    """The fixed cases within the limits, and the notes of those that are not covered."""
    found: list[Case] = []
    lost: list[str] = []
    for case in fixed_cases() + long_cases(profile):
        moved = within(limits, case)
        if moved is None:
            lost.append(case.note)
        else:
            found.append(moved)
    return found, lost


def smallest_case(limits: Mapping[str, Any]) -> Case:
    """The first fixed case that the limits let through. Raises `DeclarationError`."""
    for case in fixed_cases():
        moved = within(limits, case)
        if moved is not None:
            return moved
    raise DeclarationError(f"the limits {dict(limits)} leave no room for a case of a few tokens")
