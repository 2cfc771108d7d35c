"""The decoder at any number of digits: the truth that implementations are compared with.

A second writing of the text's formulas, in the text's order, sharing nothing with the NumPy decoder, so that
one mistake cannot hide in both. They stand in `formulas`, derivatives by differences in `slopes`. Values are object
arrays of mpmath numbers, or of what `arithmetic` computes with: `arithmetic=fastest()` is Arb's ball arithmetic where
python-flint is installed, with a proven radius in every number. Models of real size are for `sampled`.

    >>> from decoderspec.reference import oracle
    >>> print(oracle.silu([-1.0, 0.0, 1.0], digits=20))
    [-0.26894142136999512075 0.0 0.73105857863000487925]
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from decoderspec.reference import formulas
from decoderspec.reference.arithmetic import Arithmetic, Exact, Precision, multiprecision
from decoderspec.reference.arithmetic import difference as difference
from decoderspec.reference.arithmetic import text as text
from decoderspec.reference.arithmetic import to_float as to_float
from decoderspec.reference.formulas import Note, Parameters
from decoderspec.reference.slopes import Role as Role
from decoderspec.reference.slopes import derivative as derivative
from decoderspec.reference.slopes import derivatives as derivatives
from decoderspec.reference.slopes import gradients as gradients
from decoderspec.reference.slopes import operation_derivative as operation_derivative
from decoderspec.reference.slopes import role_gradients as role_gradients
from decoderspec.spec.config import Config
from decoderspec.spec.parameters import BLOCK_PARAMETERS, TABLE
from decoderspec.spec.stages import BLOCK_STAGES, stage_names


def fastest() -> Precision:
    """Ball arithmetic where python-flint is installed, else mpmath; both to the digits that are asked for."""
    if find_spec("flint") is None:
        return multiprecision
    from decoderspec.reference.ball import balls

    return balls


def _recorder(a: Arithmetic, stages: dict[str, Exact], given: Mapping[str, Any], names: Sequence[str]) -> Note:
    """Store each stage; go on with the given value where there is one."""
    _refuse_unknown(given, names)

    def note(name: str, value: Exact) -> Exact:
        stages[name] = value
        if name not in given:
            return value
        if np.shape(given[name]) != value.shape:
            raise ValueError(f"{name}: given shape {np.shape(given[name])}, expected {value.shape}")
        return a.exact(given[name])

    return note


def _refuse_unknown(asked: Collection[str], names: Sequence[str]) -> None:
    if unknown := sorted(set(asked) - set(names)):
        raise KeyError(f"no such stage: {', '.join(unknown)}")


# --- The decoder ---


def stream(
    config: Config,
    parameters: Parameters,
    tokens: Any,
    *,
    digits: int = 50,
    given: Parameters | None = None,
    head: Any = None,
    arithmetic: Precision = multiprecision,
) -> Iterator[tuple[str, Exact]]:
    """Names and values of the stages as `forward` has them, with no more than half a block in memory at a time."""
    a, noted = arithmetic(digits), dict[str, Exact]()
    note = _recorder(a, noted, given or {}, stage_names(config.layers))
    x: Any = None
    table = parameters[TABLE] if head is None else head
    for half in formulas.halves(a, config, parameters, tokens, table, note):
        with a:
            x = half(x)
        yield from noted.items()
        noted.clear()


def forward(
    config: Config,
    parameters: Parameters,
    tokens: Any,
    *,
    digits: int = 50,
    given: Parameters | None = None,
    head: Any = None,
    keep: Collection[str] | None = None,
    arithmetic: Precision = multiprecision,
) -> dict[str, Exact]:
    """Every stage for tokens `[B, T]`, in forward order, or those that `keep` names.

    A stage in `given` is still computed and returned, but everything after it uses the given value: so each stage
    of an implementation can be judged on the inputs that it had. `head` is a table for the projection alone.
    """
    _refuse_unknown(keep or (), stage_names(config.layers))
    stages = stream(config, parameters, tokens, digits=digits, given=given, head=head, arithmetic=arithmetic)
    return {name: value for name, value in stages if keep is None or name in keep}


def logits(
    config: Config,
    parameters: Parameters,
    tokens: Any,
    *,
    digits: int = 50,
    head: Any = None,
    arithmetic: Precision = multiprecision,
) -> Exact:
    """Logits `[B, T, V]` for tokens `[B, T]`."""
    how: Any = {"digits": digits, "head": head, "arithmetic": arithmetic}
    return forward(config, parameters, tokens, keep=("logits",), **how)["logits"]


def loss(
    config: Config,
    parameters: Parameters,
    tokens: Any,
    targets: Any,
    *,
    digits: int = 50,
    head: Any = None,
    arithmetic: Precision = multiprecision,
) -> Any:
    """Mean negative log likelihood of targets `[B, T]`, in nats."""
    values = logits(config, parameters, tokens, digits=digits, head=head, arithmetic=arithmetic)
    return loss_of_logits(values, targets, digits=digits, arithmetic=arithmetic)


def loss_of_logits(logits: Any, targets: Any, *, digits: int = 50, arithmetic: Precision = multiprecision) -> Any:
    """Mean negative log likelihood in nats, from logits `[..., V]` and targets `[...]`."""
    with arithmetic(digits) as a:
        return formulas.nll(a, a.exact(logits), targets).mean()


def block(
    config: Config,
    parameters_of_block: Parameters,
    x: Any,
    *,
    offset: int = 0,
    digits: int = 50,
    given: Parameters | None = None,
    arithmetic: Precision = multiprecision,
) -> dict[str, Exact]:
    """The stages of one block on `x [B, T, d]`, `attention_norm` to `output`; positions start at `offset`."""
    stages = dict[str, Exact]()
    with arithmetic(digits) as a:
        p = {name: parameters_of_block[name] for name in BLOCK_PARAMETERS}
        note = _recorder(a, stages, given or {}, BLOCK_STAGES)
        after = formulas.attention_half(a, config, p, offset, note, a.exact(x))
        formulas.feed_forward_half(a, config, p, note, after)
    return stages


# --- Single operations ---


def embed(table: Any, tokens: Any, *, digits: int = 50, arithmetic: Precision = multiprecision) -> Exact:
    """Rows of `table [V, d]` at integer `tokens [...]`: `[..., d]`."""
    with arithmetic(digits) as a:
        return formulas.embed(a, table, tokens)


def rms_norm(x: Any, gain: Any, epsilon: float, *, digits: int = 50, arithmetic: Precision = multiprecision) -> Exact:
    """`x (mean(x^2) + epsilon)^(-1/2) gain` over the last axis (Zhang and Sennrich 2019, equation 4)."""
    with arithmetic(digits) as a:
        return formulas.rms_norm(a, a.exact(x), gain, epsilon)


def linear(x: Any, weight: Any, *, digits: int = 50, arithmetic: Precision = multiprecision) -> Exact:
    """`x @ weight`: `[..., in]` by `[in, out]`."""
    with arithmetic(digits) as a:
        return a.matmul(a.exact(x), weight)


def rotate(x: Any, base: float, offset: int = 0, *, digits: int = 50, arithmetic: Precision = multiprecision) -> Exact:
    """`x [..., T, w]`, pair `(2i, 2i+1)` turned by `p base^(-2i/w)` at position `p` (Su et al. 2021, equation 34)."""
    with arithmetic(digits) as a:
        return formulas.rotate(a, a.exact(x), base, offset)


def attention_weights(q: Any, k: Any, *, digits: int = 50, arithmetic: Precision = multiprecision) -> Exact:
    """Causal `softmax(q k^T / sqrt(w))`: `[..., T, w]` by `[..., S, w]` to `[..., T, S]`; the future is exactly 0.

    With fewer queries than keys, the queries are the last ones.
    """
    with arithmetic(digits) as a:
        return formulas.attention_weights(a, a.exact(q), k)


def attend(q: Any, k: Any, v: Any, *, digits: int = 50, arithmetic: Precision = multiprecision) -> Exact:
    """Causal attention on `[..., T, w]` (Vaswani et al. 2017, equation 1); same shape."""
    with arithmetic(digits) as a:
        return a.matmul(formulas.attention_weights(a, a.exact(q), k), v)


def silu(gate: Any, *, digits: int = 50, arithmetic: Precision = multiprecision) -> Exact:
    """`gate / (1 + exp(-gate))` (Hendrycks and Gimpel 2016)."""
    with arithmetic(digits) as a:
        return formulas.silu(a, a.exact(gate))


def swiglu(gate: Any, up: Any, *, digits: int = 50, arithmetic: Precision = multiprecision) -> Exact:
    """`silu(gate) * up`, elementwise (Shazeer 2020, equation 6)."""
    with arithmetic(digits) as a:
        return np.asarray(formulas.silu(a, a.exact(gate)) * a.exact(up), object)


def add(x: Any, y: Any, *, digits: int = 50, arithmetic: Precision = multiprecision) -> Exact:
    """The residual `x + y`."""
    with arithmetic(digits) as a:
        return np.asarray(a.exact(x) + a.exact(y), object)


def project(x: Any, table: Any, *, digits: int = 50, arithmetic: Precision = multiprecision) -> Exact:
    """Logits `x @ table.T`: `[..., d]` by `[V, d]`."""
    with arithmetic(digits) as a:
        return formulas.project(a, a.exact(x), table)


def nll(logits: Any, targets: Any, *, digits: int = 50, arithmetic: Precision = multiprecision) -> Exact:
    """`-log softmax(logits)[target]` in nats: `[..., V]` and integers `[...]` to `[...]`."""
    with arithmetic(digits) as a:
        return formulas.nll(a, a.exact(logits), targets)
