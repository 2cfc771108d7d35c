"""Derivatives of the loss as differences of the forward formulas at raised precision: no backward formula here.

A central difference is `(f(h) - f(-h)) / 2h = f'(0) + f'''(t) h^2 / 6` for some `|t| <= h`. The step is `h = 2^-k`,
about `10^-(digits/2 + 20)`, so that the truncation is `10^-(digits + 40) f''' / 6`; `f` is computed with
`digits/2 + 30` digits more than asked for, so that what it rounds comes to about `10^-(digits + 10) |f|` after the
division by `h`. Hence the digits hold relative to the larger of `f` and `f'`, unless `f'''` exceeds that by 40 decades:
then pass a direction scaled to the smallest length in play. In ball arithmetic the radius covers the rounding, not
the truncation.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, Literal

import numpy as np

from decoderspec.reference import formulas
from decoderspec.reference.arithmetic import Arithmetic, Exact, Precision, multiprecision, whole_digits
from decoderspec.reference.formulas import Parameters
from decoderspec.spec.config import Config
from decoderspec.spec.parameters import FINAL_GAIN, TABLE, parameter_shapes

Role = Literal["both", "lookup", "head"]

STEP_DIGITS = 20  # how much finer than half the digits a difference steps: third derivatives up to 10^40 are harmless


def _raised(digits: int) -> int:
    return whole_digits(digits) + (digits + 1) // 2 + STEP_DIGITS + 10


def _step(a: Arithmetic, digits: int) -> Any:
    """A power of two, which every arithmetic holds exactly."""
    return 1 / a.exact(2).item() ** math.ceil(((digits + 1) // 2 + STEP_DIGITS) * math.log2(10))


def _slope(value: Callable[[Any], Any], step: Any) -> Any:
    return (value(step) - value(-step)) / (2 * step)


def _rounded(arithmetic: Precision, digits: int, values: Iterable[Any]) -> list[Any]:
    with arithmetic(digits) as a:
        return [+a.exact(value).item() for value in values]


def derivatives(
    config: Config,
    parameters: Parameters,
    tokens: Any,
    targets: Any,
    directions: Iterable[Parameters],
    *,
    digits: int = 50,
    role: Role = "both",
    arithmetic: Precision = multiprecision,
) -> list[Any]:
    """Directional derivatives of the loss, one per direction (parameter names to arrays; what is missing stands still).

    `role` says in which of its two places a direction of the table moves it. Only what a direction can change is
    computed again: a direction within the last block starts there.
    """
    with arithmetic(_raised(digits)) as a:
        step = _step(a, digits)
        p = {name: a.exact(parameters[name]) for name in parameter_shapes(config)}
        standing = formulas.halves(a, config, p, tokens, p[TABLE], formulas.unnoted)
        inputs: list[Any] = [None]  # of each half where nothing moves, as far as a direction starts there

        def value(direction: Parameters, first: int, t: Any) -> Any:
            moved = p | {name: _moved(a, p[name], v, t) for name, v in direction.items()}
            head = p[TABLE] if role == "lookup" else moved[TABLE]
            lookup = p[TABLE] if role == "head" else moved[TABLE]
            while len(inputs) <= first:
                inputs.append(next(standing)(inputs[-1]))
            x, moved = inputs[first], moved | {TABLE: lookup}
            for half in islice(formulas.halves(a, config, moved, tokens, head, formulas.unnoted), first, None):
                x = half(x)
            return formulas.nll(a, x, targets).mean()

        def along(direction: Parameters) -> Any:
            first = min((_first_half(name, config.layers, role) for name in direction), default=2 * config.layers + 1)
            return _slope(partial(value, direction, first), step)

        slopes = [along(direction) for direction in directions]
    return _rounded(arithmetic, digits, slopes)


def _first_half(name: str, layers: int, role: Role) -> int:
    """The first of the formulas' halves that a parameter enters."""
    if name == TABLE and role != "head":
        return 0
    if name in (TABLE, FINAL_GAIN):
        return 2 * layers + 1
    _, layer, rest = name.split(".", 2)
    return 1 + 2 * int(layer) + rest.startswith("ffn")


def _moved(a: Arithmetic, x: Any, direction: Any, t: Any) -> Exact:
    x, direction = a.exact(x), a.exact(direction)
    if x.shape != direction.shape:
        raise ValueError(f"direction of shape {direction.shape} for an array of shape {x.shape}")
    return np.asarray(x + t * direction, object)


def derivative(
    config: Config,
    parameters: Parameters,
    tokens: Any,
    targets: Any,
    direction: Parameters,
    *,
    digits: int = 50,
    role: Role = "both",
    arithmetic: Precision = multiprecision,
) -> Any:
    """Directional derivative of the loss; see `derivatives`."""
    at = config, parameters, tokens, targets
    return derivatives(*at, [direction], digits=digits, role=role, arithmetic=arithmetic)[0]


def gradients(
    config: Config,
    parameters: Parameters,
    tokens: Any,
    targets: Any,
    *,
    digits: int = 30,
    arithmetic: Precision = multiprecision,
) -> dict[str, Exact]:
    """Gradient of the loss for every parameter, in canonical order: one difference per scalar, so for small models."""
    shapes = parameter_shapes(config)
    units = (unit for name, shape in shapes.items() for unit in _units(name, shape))
    values = derivatives(config, parameters, tokens, targets, units, digits=digits, arithmetic=arithmetic)
    remaining = iter(values)
    return {name: _take(remaining, shape) for name, shape in shapes.items()}


def role_gradients(
    config: Config,
    parameters: Parameters,
    tokens: Any,
    targets: Any,
    *,
    digits: int = 30,
    arithmetic: Precision = multiprecision,
) -> tuple[Exact, Exact]:
    """Gradients `[V, d]` of the table as lookup and as head; their sum is its gradient."""
    shape, at = parameter_shapes(config)[TABLE], (config, parameters, tokens, targets)

    def of(role: Role) -> Exact:
        values = derivatives(*at, _units(TABLE, shape), digits=digits, role=role, arithmetic=arithmetic)
        return _take(iter(values), shape)

    return of("lookup"), of("head")


def _units(name: str, shape: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    for index in np.ndindex(shape):
        unit = np.zeros(shape, int)
        unit[index] = 1
        yield {name: unit}


def _take(values: Iterator[Any], shape: tuple[int, ...]) -> Exact:
    return np.fromiter(values, object, count=int(np.prod(shape))).reshape(shape)


def operation_derivative(
    function: Callable[..., Any], inputs: Sequence[Any], upstream: Any, direction: Sequence[Any], *, digits: int = 50
) -> Any:
    """Directional derivative of `sum(upstream * function(*inputs, digits=...))`; a direction of None stands still.

    Constants and integer inputs go in with a lambda: `lambda x, *, digits: rotate(x, 10000.0, digits=digits)`.
    The function computes in mpmath, as the oracle does unless told otherwise.
    """
    with multiprecision(_raised(digits)) as a:
        weights, points = a.exact(upstream), [a.exact(x) for x in inputs]

        def value(t: Any) -> Any:
            pairs = zip(points, direction, strict=True)
            moved = [x if v is None else _moved(a, x, v, t) for x, v in pairs]
            return np.sum(weights * function(*moved, digits=a.digits))

        slope = _slope(value, _step(a, digits))
    return _rounded(multiprecision, digits, [slope])[0]
