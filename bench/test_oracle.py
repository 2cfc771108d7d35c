"""How fast the oracle is: beside plain mpmath matrices, beside Arb's products alone, and on models of real size.

    pytest bench/test_oracle.py --benchmark-columns=min,median,rounds

Targets are ratios where they can be: two things of one size measured in one process, the best of a few runs each.
"""

import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

import mpmath
import numpy as np
import pytest

from decoderspec.reference import certified, oracle, sampled
from decoderspec.reference.arithmetic import Precision, multiprecision
from decoderspec.spec.config import Config
from decoderspec.spec.parameters import TABLE, of_block, parameter_shapes

DIGITS = 50
NAIVE_TIMES = 2  # mpmath.matrix products cost at least so many times the mpmath route's
PRODUCTS_TIMES = 3  # the Arb route costs at most so many times its matrix products alone
SECONDS = 20  # for the model of 3.5 million parameters
RUNS = 3

SMALL = Config(11, 12, 2, 10, 2, 9)  # with two rows of seven tokens: what the properties draw by the hundred
MIDDLE = Config(256, 128, 4, 344, 1, 64)
LARGE = Config(1000, 256, 8, 704, 4, 64)  # 3.5 million parameters
WIDE = Config(32000, 2048, 32, 5632, 1, 131072, 500000.0, 1e-5)
FAR = 100_000  # a position

needs_flint = pytest.mark.skipif(find_spec("flint") is None, reason="python-flint is not installed (extra arb)")
each_arithmetic = pytest.mark.parametrize("arithmetic", ["mpmath", pytest.param("arb", marks=needs_flint)])

Array = np.ndarray[Any, np.dtype[Any]]
Benchmark = Any  # pytest-benchmark's fixture


def precision(name: str) -> Precision:
    """The arithmetic of that name."""
    return multiprecision if name == "mpmath" else oracle.fastest()


def drawn(config: Config, batch: int, tokens: int) -> tuple[dict[str, Array], Array]:
    """Parameters of a size that keeps activations near one, and token ids."""
    random = np.random.default_rng(1)
    shapes = parameter_shapes(config)
    parameters = {n: random.normal(size=s) * (1 if n == TABLE else s[0] ** -0.5) for n, s in shapes.items()}
    return parameters, random.integers(config.vocabulary_size, size=(batch, tokens))


def working_bits() -> int:
    """The precision that mpmath has at `DIGITS`, guard digits included; Arb's is the same but for rounding."""
    return int(multiprecision(DIGITS).exact(1).item().context.prec)


def measured(
    benchmark: Benchmark, function: Callable[..., Any], *arguments: Any, rounds: int = RUNS, **options: Any
) -> float:
    """The best time of a few runs; the benchmark keeps them all."""
    benchmark.pedantic(function, arguments, options, rounds=rounds, warmup_rounds=1 if rounds > 1 else 0)
    return float(benchmark.stats.stats.min)


def best(function: Callable[[], Any], runs: int = RUNS) -> float:
    """Seconds of the best of a few runs."""
    return min(_seconds(function) for _ in range(runs))


def _seconds(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


# --- Matrix products ---


@pytest.fixture(scope="module")
def operands() -> tuple[Array, Array]:
    """`[64, 128]` numbers of full length and `[128, 128]` floats: activations and a weight."""
    random = np.random.default_rng(2)
    return oracle.silu(random.normal(size=(64, 128))), random.normal(size=(128, 128))


def test_mpmath_product_beside_plain_mpmath_matrices(benchmark: Benchmark, operands: tuple[Array, Array]) -> None:
    """At least twice as fast as `mpmath.matrix` on the same numbers."""
    x, weight = operands
    ours = measured(benchmark, oracle.linear, x, weight, digits=DIGITS)
    with mpmath.workprec(working_bits()):
        plain = [mpmath.matrix(m.tolist()) for m in (x, weight)]
        theirs = best(lambda: plain[0] * plain[1], runs=1)
    benchmark.extra_info["times_faster"] = theirs / ours
    assert theirs >= NAIVE_TIMES * ours


@needs_flint
def test_arb_product(benchmark: Benchmark, operands: tuple[Array, Array]) -> None:
    """The same product in ball arithmetic."""
    measured(benchmark, oracle.linear, *operands, digits=DIGITS, arithmetic=oracle.fastest())


# --- Whole models ---


@each_arithmetic
def test_small_model(benchmark: Benchmark, arithmetic: str) -> None:
    """Every stage of one small case."""
    parameters, tokens = drawn(SMALL, 2, 7)
    how: Any = {"digits": 36, "arithmetic": precision(arithmetic)}
    measured(benchmark, oracle.forward, SMALL, parameters, tokens, rounds=10, **how)


@each_arithmetic
def test_certified_small_model(benchmark: Benchmark, arithmetic: str) -> None:
    """The same with radii below one part in 10^30."""
    parameters, tokens = drawn(SMALL, 2, 7)
    measured(benchmark, certified.forward, SMALL, parameters, tokens, arithmetic=precision(arithmetic))


@needs_flint
def test_middle_model_beside_its_arb_products_alone(benchmark: Benchmark) -> None:
    """At most three times what its matrix products cost as `arb_mat`."""
    parameters, tokens = drawn(MIDDLE, 1, MIDDLE.max_positions)
    how: Any = {"digits": DIGITS, "arithmetic": oracle.fastest()}
    stages = oracle.forward(MIDDLE, parameters, tokens, **how)
    ours = measured(benchmark, oracle.forward, MIDDLE, parameters, tokens, **how)
    alone = best(products(parameters, {name: value[0] for name, value in stages.items()}))
    benchmark.extra_info["times_its_products"] = ours / alone
    assert ours <= PRODUCTS_TIMES * alone


def products(parameters: Mapping[str, Array], stages: Mapping[str, Array]) -> Callable[[], None]:
    """The matrix products of a model of one block as raw `arb_mat`, ready to be carried out at the same precision."""
    from flint import arb_mat, ctx

    p, x = of_block(parameters, 0), {name.removeprefix("blocks.0."): value for name, value in stages.items()}
    names = ("attention.query", "attention.key", "attention.value", "ffn.gate", "ffn.up")
    pairs = [(x["attention_norm" if "attention" in n else "ffn_norm"], p[f"{n}.weight"]) for n in names]
    pairs += [(q, k.T) for q, k in zip(x["attention.rotated_query"], x["attention.rotated_key"], strict=True)]
    pairs += list(zip(x["attention.weights"], x["attention.value"], strict=True))
    pairs += [(x["attention.merged"], p["attention.output.weight"]), (x["ffn.product"], p["ffn.down.weight"])]
    pairs += [(x["final_norm"], parameters[TABLE].T)]
    matrices = [tuple(arb_mat(*m.shape, m.ravel().tolist()) for m in pair) for pair in pairs]

    def carry_out() -> None:
        with ctx.workprec(working_bits()):
            for left, right in matrices:
                left * right

    return carry_out


@needs_flint
def test_model_of_three_and_a_half_million_parameters(benchmark: Benchmark) -> None:
    """Logits at 50 digits within twenty seconds."""
    parameters, tokens = drawn(LARGE, 1, LARGE.max_positions)
    how: Any = {"digits": DIGITS, "keep": ("logits",), "arithmetic": oracle.fastest()}
    assert measured(benchmark, oracle.forward, LARGE, parameters, tokens, rounds=1, **how) <= SECONDS


@needs_flint
def test_certified_logits_of_three_and_a_half_million_parameters(benchmark: Benchmark) -> None:
    """The same with radii below one part in 10^50 of each row's largest."""
    parameters, tokens = drawn(LARGE, 1, LARGE.max_positions)
    how: Any = {"relative": 10.0**-DIGITS, "keep": ("logits",)}
    assert measured(benchmark, certified.forward, LARGE, parameters, tokens, rounds=1, **how) <= SECONDS


# --- Samples at real size ---


def float32(*shape: int, seed: int = 0) -> Array:
    """Standard normal numbers."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


@each_arithmetic
def test_attention_weights_of_a_row_over_100000_keys(benchmark: Benchmark, arithmetic: str) -> None:
    """One query, every key up to it."""
    q, k = float32(1, 1, FAR + 1, 64), float32(1, 1, FAR + 1, 64, seed=1)
    inputs = {"blocks.0.attention.rotated_query": q, "blocks.0.attention.rotated_key": k}
    at: Any = WIDE, {}, "blocks.0.attention.weights", inputs, [(0, 0, FAR)]
    measured(benchmark, sampled.stage, *at, rounds=1, arithmetic=precision(arithmetic))


@each_arithmetic
def test_head_of_a_row_over_100000_keys(benchmark: Benchmark, arithmetic: str) -> None:
    """The mean of all their values, in every column."""
    weights = np.broadcast_to(np.exp(float32(FAR + 1)) / FAR, (1, 1, FAR + 1, FAR + 1))
    inputs = {"blocks.0.attention.weights": weights, "blocks.0.attention.value": float32(1, 1, FAR + 1, 64, seed=1)}
    at: Any = WIDE, {}, "blocks.0.attention.heads", inputs, [(0, 0, FAR)]
    measured(benchmark, sampled.stage, *at, rounds=1, arithmetic=precision(arithmetic))


@each_arithmetic
def test_64_of_32000_logits_at_width_2048(benchmark: Benchmark, arithmetic: str) -> None:
    """Chosen words of a large vocabulary."""
    table, x = float32(WIDE.vocabulary_size, WIDE.model_width), {"final_norm": float32(1, 1, WIDE.model_width, seed=1)}
    at: Any = WIDE, {TABLE: table}, "logits", x, [(0, 0)], range(0, WIDE.vocabulary_size, 500)
    measured(benchmark, sampled.stage, *at, arithmetic=precision(arithmetic))
