"""The decoder at any number of digits: the truth that implementations are compared with.

A second writing of the text's formulas, in the text's order, sharing nothing with the NumPy decoder, so that
one mistake cannot hide in both. Values are object arrays of mpmath numbers. Derivatives are differences of the
forward formulas at raised precision; there is no backward formula here. It is not meant for large models.

    >>> from decoderspec.reference import oracle
    >>> print(oracle.silu([-1.0, 0.0, 1.0], digits=20))
    [-0.26894142136999512075 0.0 0.73105857863000487925]
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import islice
from typing import Any, Literal

import numpy as np

from decoderspec.reference.arithmetic import Arithmetic, Exact, Precision, multiprecision, raised, slope
from decoderspec.reference.arithmetic import difference as difference
from decoderspec.reference.arithmetic import text as text
from decoderspec.reference.arithmetic import to_float as to_float
from decoderspec.spec.config import Config
from decoderspec.spec.parameters import BLOCK_PARAMETERS, FINAL_GAIN, TABLE, of_block, parameter_shapes
from decoderspec.spec.stages import BLOCK_STAGES, stage_names

Role = Literal["both", "lookup", "head"]
Keep = Callable[[str, Exact], Exact]  # stage name and value -> the value to go on with
Parameters = Mapping[str, Any]


# --- The formulas, on exact arrays ---


def _rms_norm(a: Arithmetic, x: Exact, gain: Exact, epsilon: float) -> Exact:
    energy = (x * x).sum(axis=-1, keepdims=True) / x.shape[-1] + a.exact(epsilon)
    if np.any(energy == 0):
        row = tuple(np.argwhere(energy == 0)[0, :-1].tolist())
        raise ZeroDivisionError(f"RMSNorm of row {row}: its mean square is zero and so is epsilon")
    return np.asarray(x * (1 / a.root(energy)) * gain, object)


@lru_cache(maxsize=64)
def _rotary_table(a: Arithmetic, base: float, offset: int, tokens: int, width: int) -> tuple[Exact, Exact]:
    frequency = a.exact(base) ** (-a.exact(np.arange(0, width, 2)) / width)
    angle = a.exact(np.arange(offset, offset + tokens))[:, None] * frequency  # [T, w/2]
    return a.cos(angle), a.sin(angle)


def _rotate(a: Arithmetic, x: Exact, base: float, offset: int) -> Exact:
    cos, sin = _rotary_table(a, float(base), int(offset), *x.shape[-2:])
    even, odd = x[..., 0::2], x[..., 1::2]
    rotated = np.empty_like(x)
    rotated[..., 0::2] = even * cos - odd * sin
    rotated[..., 1::2] = even * sin + odd * cos
    return rotated


def _attention_weights(a: Arithmetic, q: Exact, k: Exact) -> Exact:
    scores = a.matmul(q, k.swapaxes(-1, -2)) / a.root(a.exact(q.shape[-1]))
    weights: Exact = np.full(scores.shape, a.exact(0).item(), object)
    for t in range(q.shape[-2]):
        visible = scores[..., t, : t + 1]  # the future is left out, not masked with a number
        powers = a.exp(visible - a.peak(visible))
        weights[..., t, : t + 1] = powers / powers.sum(axis=-1, keepdims=True)
    return weights


def _silu(a: Arithmetic, gate: Exact) -> Exact:
    return np.asarray(gate / (1 + a.exp(-gate)), object)


def _project(a: Arithmetic, x: Exact, table: Exact) -> Exact:
    return a.matmul(x, table.swapaxes(-1, -2))


def _nll(a: Arithmetic, logits: Exact, targets: Any) -> Exact:
    """`-log softmax(logits)[y] = log(1 + sum over j != y of exp(logits_j - logits_y))`.

    Exponents are unbounded here, so no maximum is needed, and a loss near zero keeps all its digits.
    """
    index = np.asarray(targets)[..., None]
    powers = a.exp(logits - np.take_along_axis(logits, index, axis=-1))
    np.put_along_axis(powers, index, a.exact(0), axis=-1)
    return a.log1p(powers.sum(axis=-1))


def _split(x: Exact, heads: int) -> Exact:
    """`[B, T, d]` to `[B, h, T, w]`: head `j` is the `j`-th contiguous slice of width `w`."""
    batch, tokens, width = x.shape
    return x.reshape(batch, tokens, heads, width // heads).swapaxes(1, 2)


def _merge(x: Exact) -> Exact:
    batch, heads, tokens, width = x.shape
    return x.swapaxes(1, 2).reshape(batch, tokens, heads * width)


def _attention_half(a: Arithmetic, config: Config, p: Parameters, offset: int, keep: Keep, x: Exact) -> Exact:
    """`x' = x + MHA(RMSNorm(x; g_a))`."""
    normed = keep("attention_norm", _rms_norm(a, x, p["attention_norm.gain"], config.rms_epsilon))
    q = keep("attention.query", _split(a.matmul(normed, p["attention.query.weight"]), config.heads))
    k = keep("attention.key", _split(a.matmul(normed, p["attention.key.weight"]), config.heads))
    v = keep("attention.value", _split(a.matmul(normed, p["attention.value.weight"]), config.heads))
    q = keep("attention.rotated_query", _rotate(a, q, config.rope_base, offset))
    k = keep("attention.rotated_key", _rotate(a, k, config.rope_base, offset))
    weights = keep("attention.weights", _attention_weights(a, q, k))
    heads = keep("attention.heads", a.matmul(weights, v))
    merged = keep("attention.merged", _merge(heads))
    output = keep("attention.output", a.matmul(merged, p["attention.output.weight"]))
    return keep("after_attention", x + output)


def _feed_forward_half(a: Arithmetic, config: Config, p: Parameters, keep: Keep, x: Exact) -> Exact:
    """`y = x' + FFN(RMSNorm(x'; g_f))`."""
    normed = keep("ffn_norm", _rms_norm(a, x, p["ffn_norm.gain"], config.rms_epsilon))
    gate = keep("ffn.gate", a.matmul(normed, p["ffn.gate.weight"]))
    activated = keep("ffn.silu", _silu(a, gate))
    up = keep("ffn.up", a.matmul(normed, p["ffn.up.weight"]))
    product = keep("ffn.product", activated * up)
    output = keep("ffn.output", a.matmul(product, p["ffn.down.weight"]))
    return keep("output", x + output)


def _head(a: Arithmetic, config: Config, gain: Exact, head: Exact, keep: Keep, x: Exact) -> Exact:
    normed = keep("final_norm", _rms_norm(a, x, gain, config.rms_epsilon))
    return keep("logits", _project(a, normed, head))


def _halves(a: Arithmetic, config: Config, p: Parameters, tokens: Any, head: Exact, keep: Keep) -> Iterator[Any]:
    """The forward pass as a chain of 2N + 2 functions: lookup, the halves of each block, head."""
    yield lambda _: keep("embedding", p[TABLE][np.asarray(tokens)])
    for layer in range(config.layers):
        mine, keep_mine = of_block(p, layer), partial(_keep_within, keep, f"blocks.{layer}.")
        yield partial(_attention_half, a, config, mine, 0, keep_mine)
        yield partial(_feed_forward_half, a, config, mine, keep_mine)
    yield partial(_head, a, config, p[FINAL_GAIN], head, keep)


def _keep_within(keep: Keep, prefix: str, name: str, value: Exact) -> Exact:
    return keep(prefix + name, value)


def _pass(name: str, value: Exact) -> Exact:
    return value


def _recorder(a: Arithmetic, stages: dict[str, Exact], given: Mapping[str, Any], names: Sequence[str]) -> Keep:
    """Store each stage; go on with the given value where there is one."""
    if unknown := sorted(set(given) - set(names)):
        raise KeyError(f"no such stage: {', '.join(unknown)}")

    def keep(name: str, value: Exact) -> Exact:
        stages[name] = value
        if name not in given:
            return value
        if np.shape(given[name]) != value.shape:
            raise ValueError(f"{name}: given shape {np.shape(given[name])}, expected {value.shape}")
        return a.exact(given[name])

    return keep


# --- The decoder ---


def forward(
    config: Config, parameters: Parameters, tokens: Any, *, digits: int = 50, given: Parameters | None = None,
    head: Any = None, arithmetic: Precision = multiprecision,
) -> dict[str, Exact]:
    """Every stage for tokens `[B, T]`, in forward order.

    A stage in `given` is still computed and returned, but everything after it uses the given value: so each stage
    of an implementation can be judged on the inputs that it had. `head` is a table for the projection alone.
    """
    a, stages = arithmetic(digits), dict[str, Exact]()
    p = {name: a.exact(parameters[name]) for name in parameter_shapes(config)}
    keep = _recorder(a, stages, given or {}, stage_names(config.layers))
    x: Any = None
    for half in _halves(a, config, p, tokens, p[TABLE] if head is None else a.exact(head), keep):
        x = half(x)
    return stages


def logits(
    config: Config, parameters: Parameters, tokens: Any, *, digits: int = 50, head: Any = None,
    arithmetic: Precision = multiprecision,
) -> Exact:
    """Logits `[B, T, V]` for tokens `[B, T]`."""
    return forward(config, parameters, tokens, digits=digits, head=head, arithmetic=arithmetic)["logits"]


def loss(
    config: Config, parameters: Parameters, tokens: Any, targets: Any, *, digits: int = 50, head: Any = None,
    arithmetic: Precision = multiprecision,
) -> Any:
    """Mean negative log likelihood of targets `[B, T]`, in nats."""
    values = logits(config, parameters, tokens, digits=digits, head=head, arithmetic=arithmetic)
    return loss_of_logits(values, targets, digits=digits, arithmetic=arithmetic)


def loss_of_logits(logits: Any, targets: Any, *, digits: int = 50, arithmetic: Precision = multiprecision) -> Any:
    """Mean negative log likelihood in nats, from logits `[..., V]` and targets `[...]`."""
    return nll(logits, targets, digits=digits, arithmetic=arithmetic).mean()


def block(
    config: Config, parameters_of_block: Parameters, x: Any, *, offset: int = 0, digits: int = 50,
    given: Parameters | None = None, arithmetic: Precision = multiprecision,
) -> dict[str, Exact]:
    """The stages of one block on `x [B, T, d]`, `attention_norm` to `output`; positions start at `offset`."""
    a, stages = arithmetic(digits), dict[str, Exact]()
    p = {name: a.exact(parameters_of_block[name]) for name in BLOCK_PARAMETERS}
    keep = _recorder(a, stages, given or {}, BLOCK_STAGES)
    _feed_forward_half(a, config, p, keep, _attention_half(a, config, p, offset, keep, a.exact(x)))
    return stages


# --- Single operations ---


def embed(table: Any, tokens: Any, *, digits: int = 50, arithmetic: Precision = multiprecision) -> Exact:
    """Rows of `table [V, d]` at integer `tokens [...]`: `[..., d]`."""
    a = arithmetic(digits)
    return np.asarray(a.exact(table)[np.asarray(tokens)], object)


def rms_norm(x: Any, gain: Any, epsilon: float, *, digits: int = 50, arithmetic: Precision = multiprecision) -> Exact:
    """`x (mean(x^2) + epsilon)^(-1/2) gain` over the last axis (Zhang and Sennrich 2019, equation 4)."""
    a = arithmetic(digits)
    return _rms_norm(a, a.exact(x), a.exact(gain), epsilon)


def linear(x: Any, weight: Any, *, digits: int = 50, arithmetic: Precision = multiprecision) -> Exact:
    """`x @ weight`: `[..., in]` by `[in, out]`."""
    a = arithmetic(digits)
    return a.matmul(a.exact(x), a.exact(weight))


def rotate(x: Any, base: float, offset: int = 0, *, digits: int = 50, arithmetic: Precision = multiprecision) -> Exact:
    """`x [..., T, w]`, pair `(2i, 2i+1)` turned by `p base^(-2i/w)` at position `p` (Su et al. 2021, equation 34)."""
    a = arithmetic(digits)
    return _rotate(a, a.exact(x), base, offset)


def attention_weights(q: Any, k: Any, *, digits: int = 50, arithmetic: Precision = multiprecision) -> Exact:
    """Causal `softmax(q k^T / sqrt(w))`: `[..., T, w]` to `[..., T, S]`; the future is exactly 0."""
    a = arithmetic(digits)
    return _attention_weights(a, a.exact(q), a.exact(k))


def attend(q: Any, k: Any, v: Any, *, digits: int = 50, arithmetic: Precision = multiprecision) -> Exact:
    """Causal attention on `[..., T, w]` (Vaswani et al. 2017, equation 1); same shape."""
    a = arithmetic(digits)
    return a.matmul(_attention_weights(a, a.exact(q), a.exact(k)), a.exact(v))


def silu(gate: Any, *, digits: int = 50, arithmetic: Precision = multiprecision) -> Exact:
    """`gate / (1 + exp(-gate))` (Hendrycks and Gimpel 2016)."""
    a = arithmetic(digits)
    return _silu(a, a.exact(gate))


def swiglu(gate: Any, up: Any, *, digits: int = 50, arithmetic: Precision = multiprecision) -> Exact:
    """`silu(gate) * up`, elementwise (Shazeer 2020, equation 6)."""
    a = arithmetic(digits)
    return np.asarray(_silu(a, a.exact(gate)) * a.exact(up), object)


def add(x: Any, y: Any, *, digits: int = 50, arithmetic: Precision = multiprecision) -> Exact:
    """The residual `x + y`."""
    a = arithmetic(digits)
    return np.asarray(a.exact(x) + a.exact(y), object)


def project(x: Any, table: Any, *, digits: int = 50, arithmetic: Precision = multiprecision) -> Exact:
    """Logits `x @ table.T`: `[..., d]` by `[V, d]`."""
    a = arithmetic(digits)
    return _project(a, a.exact(x), a.exact(table))


def nll(logits: Any, targets: Any, *, digits: int = 50, arithmetic: Precision = multiprecision) -> Exact:
    """`-log softmax(logits)[target]` in nats: `[..., V]` and integers `[...]` to `[...]`."""
    a = arithmetic(digits)
    return _nll(a, a.exact(logits), targets)


# --- Derivatives: differences of the forward formulas ---


def derivatives(
    config: Config, parameters: Parameters, tokens: Any, targets: Any, directions: Iterable[Parameters], *,
    digits: int = 50, role: Role = "both",
) -> list[Any]:
    """Directional derivatives of the loss, one per direction (parameter names to arrays; what is missing stands still).

    `role` says in which of its two places a direction of the table moves it. Only what a direction can change is
    computed again: a direction within the last block starts there.
    """
    a, step = raised(digits)
    p = {name: a.exact(parameters[name]) for name in parameter_shapes(config)}
    inputs: list[Any] = [None]
    for half in _halves(a, config, p, tokens, p[TABLE], _pass):
        inputs.append(half(inputs[-1]))

    def value(direction: Parameters, first: int, t: Any) -> Any:
        moved = p | {name: _moved(a, p[name], v, t) for name, v in direction.items()}
        head = p[TABLE] if role == "lookup" else moved[TABLE]
        lookup = p[TABLE] if role == "head" else moved[TABLE]
        x = inputs[first]
        for half in islice(_halves(a, config, moved | {TABLE: lookup}, tokens, head, _pass), first, None):
            x = half(x)
        return _nll(a, x, targets).mean()

    def along(direction: Parameters) -> Any:
        first = min((_first_half(name, config.layers, role) for name in direction), default=2 * config.layers + 1)
        return slope(partial(value, direction, first), step, digits)

    return [along(direction) for direction in directions]


def _first_half(name: str, layers: int, role: Role) -> int:
    """The first of `_halves` that a parameter enters."""
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
    config: Config, parameters: Parameters, tokens: Any, targets: Any, direction: Parameters, *,
    digits: int = 50, role: Role = "both",
) -> Any:
    """Directional derivative of the loss; see `derivatives`."""
    return derivatives(config, parameters, tokens, targets, [direction], digits=digits, role=role)[0]


def gradients(
    config: Config, parameters: Parameters, tokens: Any, targets: Any, *, digits: int = 30
) -> dict[str, Exact]:
    """Gradient of the loss for every parameter, in canonical order: one difference per scalar, so for small models."""
    shapes = parameter_shapes(config)
    units = (unit for name, shape in shapes.items() for unit in _units(name, shape))
    values = iter(derivatives(config, parameters, tokens, targets, units, digits=digits))
    return {name: _take(values, shape) for name, shape in shapes.items()}


def role_gradients(
    config: Config, parameters: Parameters, tokens: Any, targets: Any, *, digits: int = 30
) -> tuple[Exact, Exact]:
    """Gradients `[V, d]` of the table as lookup and as head; their sum is its gradient."""
    shape = parameter_shapes(config)[TABLE]

    def of(role: Role) -> Exact:
        units = _units(TABLE, shape)
        return _take(iter(derivatives(config, parameters, tokens, targets, units, digits=digits, role=role)), shape)

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
    """
    a, step = raised(digits)
    weights, points = a.exact(upstream), [a.exact(x) for x in inputs]

    def value(t: Any) -> Any:
        pairs = zip(points, direction, strict=True)
        moved = [x if v is None else _moved(a, x, v, t) for x, v in pairs]
        return np.sum(weights * function(*moved, digits=a.digits))

    return slope(value, step, digits)
