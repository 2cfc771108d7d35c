"""What a call over the line protocol costs: a child that answers zeros without computing them.

    pytest bench/test_protocol.py --benchmark-columns=min,median,rounds

The child computes nothing, so its time per call is the protocol's own, interpreter and pipes included.
"""

import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from decoderspec.adapters.command import CommandImplementation
from decoderspec.spec.config import Config
from decoderspec.spec.parameters import parameter_shapes

MEDIAN_SECONDS = 1e-3  # at most, per call of a small model
CONFIG = Config(11, 12, 2, 7, 2, 9)
TOKENS = np.zeros((2, 5), dtype=np.int64)
CHILD = """
import base64, json, sys
encoding = sys.argv[1]
zeros = {"hex": " ".join(["0x0p+0"] * 110), "base64": base64.b64encode(bytes(880)).decode(), "raw": ""}[encoding]
while line := sys.stdin.buffer.readline():
    message = json.loads(line)
    if encoding == "raw":
        for array in message.get("arrays", ()):
            count = 8
            for size in array.split(" ")[2:]:
                count *= int(size)
            sys.stdin.buffer.read(count)
    reply = {"id": message["id"]}
    if message["call"] == "start":
        reply |= {"protocol": 1, "name": "zeros", "encoding": encoding, "offers": ["logits"]}
    elif message["call"] == "logits":
        reply |= {"arrays": ["logits float64 2 5 11"]} | ({"data": zeros} if zeros else {})
    sys.stdout.buffer.write(json.dumps(reply).encode() + b"\\n")
    if message["call"] == "logits" and encoding == "raw":
        sys.stdout.buffer.write(bytes(880))
    sys.stdout.buffer.flush()
"""

Benchmark = Any  # pytest-benchmark's fixture


@pytest.mark.parametrize("encoding", ["raw", "base64", "hex"])
def test_a_call_costs_less_than_a_millisecond(encoding: str, benchmark: Benchmark, tmp_path: Path) -> None:
    """Logits `[2, 5, 11]` of zeros; in process they cost a microsecond, which is not subtracted."""
    program = tmp_path / "zeros.py"
    program.write_text(CHILD, encoding="utf-8")
    implementation = CommandImplementation(shlex.join([sys.executable, "-E", "-S", str(program), encoding]))
    model = implementation.build(CONFIG, {name: np.zeros(shape) for name, shape in parameter_shapes(CONFIG).items()})
    logits = benchmark.pedantic(model.logits, (TOKENS,), rounds=500, warmup_rounds=20)
    assert logits.shape == (2, 5, 11)
    assert not logits.any()
    assert benchmark.stats.stats.median < MEDIAN_SECONDS
