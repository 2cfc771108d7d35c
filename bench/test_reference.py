"""How fast the reference is beside PyTorch eager, and how much memory it takes beside the sum of its stages.

    pytest bench/test_reference.py --benchmark-columns=min,median,rounds

Forward, and forward with gradients, in float64 on the same weights with the same number of threads. PyTorch computes
with `rms_norm`, `scaled_dot_product_attention` and autograd. Each round times PyTorch and then the reference, and the
median of these paired ratios decides; it is in `extra_info`, printed with `-rP`, and stored with `--benchmark-json`.
"""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import numpy as np
import pytest

from decoderspec.bench.clock import own_time, timed
from decoderspec.reference import decoder
from decoderspec.reference.operations import OPERATIONS, Array
from decoderspec.spec.config import Config
from decoderspec.spec.parameters import FINAL_GAIN, TABLE, of_block, parameter_shapes
from decoderspec.spec.stages import stage_names, stage_shape

NO_SLOWER = 1.0  # times PyTorch's time, in the median of the paired runs
SECONDS = 3.0  # of rounds, for each figure
FEWEST, MOST = 21, 2000  # rounds
SIZES = {  # V, d, h, f, N and the largest T; B and T
    "chapter": (Config(5, 4, 2, 4, 2, 3), 1, 3),
    "small": (Config(50, 32, 4, 64, 2, 16), 2, 16),
    "middle": (Config(256, 128, 4, 352, 4, 64), 4, 64),
    "large": (Config(1000, 256, 8, 704, 6, 128), 4, 128),
}

Benchmark = Any  # pytest-benchmark's fixture
each_size = pytest.mark.parametrize("size", SIZES)
pytestmark = pytest.mark.benchmark(timer=own_time)  # others may use the machine


def drawn(size: str) -> tuple[Config, dict[str, Array], Array, Array]:
    """Parameters of a size that keeps activations near one, tokens and targets."""
    config, batch, tokens = SIZES[size]
    random = np.random.default_rng(1)
    shapes = parameter_shapes(config)
    weights = {n: random.normal(size=s) * (1 if n == TABLE else s[0] ** -0.5) for n, s in shapes.items()}
    return config, weights, *random.integers(config.vocabulary_size, size=(2, batch, tokens))


# --- PyTorch ---


@pytest.fixture(scope="module")
def torch() -> Any:
    """PyTorch with as many threads as NumPy's BLAS was told to take."""
    found = pytest.importorskip("torch", reason="PyTorch is not installed (extra torch)")
    if threads := os.environ.get("OMP_NUM_THREADS"):
        found.set_num_threads(int(threads))
    return found


def torch_logits(torch: Any, config: Config, weights: Mapping[str, Any], tokens: Any) -> Any:
    """The decoder as somebody who knows PyTorch would write it: fused norms and attention, tables once per call."""
    functional, epsilon, width = torch.nn.functional, config.rms_epsilon, config.model_width
    frequency = config.rope_base ** (-torch.arange(0, config.head_width, 2, dtype=torch.float64) / config.head_width)
    angle = torch.outer(torch.arange(tokens.shape[-1], dtype=torch.float64), frequency)
    cos, sin = angle.cos(), angle.sin()

    def heads(x: Any) -> Any:
        return x.unflatten(-1, (config.heads, -1)).transpose(1, 2)

    def rotate(x: Any) -> Any:
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)

    x = functional.embedding(tokens, weights[TABLE])
    for layer in range(config.layers):
        p = of_block(weights, layer)
        n = functional.rms_norm(x, (width,), p["attention_norm.gain"], epsilon)
        q, k, v = (heads(n @ p[f"attention.{role}.weight"]) for role in ("query", "key", "value"))
        mixed = functional.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
        x = x + mixed.transpose(1, 2).flatten(-2) @ p["attention.output.weight"]
        n = functional.rms_norm(x, (width,), p["ffn_norm.gain"], epsilon)
        x = x + (functional.silu(n @ p["ffn.gate.weight"]) * (n @ p["ffn.up.weight"])) @ p["ffn.down.weight"]
    return functional.rms_norm(x, (width,), weights[FINAL_GAIN], epsilon) @ weights[TABLE].T


def torch_gradients(
    torch: Any, config: Config, weights: Mapping[str, Any], tokens: Any, targets: Any
) -> Mapping[str, Any]:
    """The gradient of the mean loss by each parameter, by autograd."""
    logits = torch_logits(torch, config, weights, tokens)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, -2), targets.flatten())
    return dict(zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True))


# --- Paired rounds ---


def paired(benchmark: Benchmark, ours: Callable[[], Any], theirs: Callable[[], Any]) -> float:
    """The median of ours over theirs, each round timing both; kept in `extra_info` and printed."""
    seconds: list[float] = []

    def before() -> None:
        seconds.append(timed(theirs))

    rounds = int(min(MOST, max(FEWEST, SECONDS / (timed(theirs) + timed(ours)))))
    benchmark.pedantic(ours, setup=before, rounds=rounds, warmup_rounds=3)
    if benchmark.disabled:
        return 0.0
    mine = benchmark.stats.stats.data
    ratio: float = median(a / b for a, b in zip(mine, seconds[-len(mine) :], strict=True))
    benchmark.extra_info["times_pytorch"] = ratio
    print(f"\n{benchmark.name}: {ratio:.2f} of PyTorch's time, {rounds} pairs", end="")
    return ratio


@each_size
def test_forward(benchmark: Benchmark, torch: Any, size: str) -> None:
    """Logits: no slower than PyTorch."""
    config, weights, tokens, _ = drawn(size)
    tensors, ids = {name: torch.from_numpy(value) for name, value in weights.items()}, torch.from_numpy(tokens)

    def theirs() -> Any:
        with torch.no_grad():
            return torch_logits(torch, config, tensors, ids)

    def ours() -> Array:
        return decoder.decoder(OPERATIONS, config, weights, tokens)

    np.testing.assert_allclose(ours(), theirs().numpy(), rtol=1e-9, atol=1e-9)
    assert paired(benchmark, ours, theirs) <= NO_SLOWER


@each_size
def test_forward_with_gradients(benchmark: Benchmark, torch: Any, size: str) -> None:
    """The loss's gradient by every parameter: no slower than PyTorch."""
    config, weights, tokens, targets = drawn(size)
    tensors = {name: torch.from_numpy(value).requires_grad_() for name, value in weights.items()}
    ids, wanted = torch.from_numpy(tokens), torch.from_numpy(targets)

    def theirs() -> Mapping[str, Any]:
        return torch_gradients(torch, config, tensors, ids, wanted)

    def ours() -> dict[str, Array]:
        return decoder.gradients(config, weights, tokens, targets)

    expected = theirs()
    for name, value in ours().items():
        np.testing.assert_allclose(value, expected[name].numpy(), rtol=1e-9, atol=1e-9)
    assert paired(benchmark, ours, theirs) <= NO_SLOWER


# --- Memory ---


@each_size
def test_peak_memory_beside_the_sum_of_the_stages(benchmark: Benchmark, size: str) -> None:
    """What forward and gradients hold at most, over what all stages hold together; stated, not bounded."""
    config, weights, tokens, targets = drawn(size)
    stages = sum(8 * int(np.prod(stage_shape(s, config, *tokens.shape))) for s in stage_names(config.layers))
    for name, call in {
        "forward": lambda: decoder.decoder(OPERATIONS, config, weights, tokens),
        "gradients": lambda: decoder.gradients(config, weights, tokens, targets),
    }.items():
        benchmark.extra_info[f"{name}_times_stages"] = peak(call) / stages
    benchmark.extra_info["stages_bytes"] = stages
    benchmark.pedantic(decoder.gradients, (config, weights, tokens, targets), rounds=1)
    print(f"\n{benchmark.name}: {benchmark.extra_info}", end="")


def peak(call: Callable[[], Any]) -> int:
    """Bytes that a call holds at most beyond what was held before it."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
