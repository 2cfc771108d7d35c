"""The model's cases of the forward pass: small, and each awkward in one way. The others are in `training`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from decoderspec.golden.vectors.inputs import gain, grid, packed, parameters
from decoderspec.golden.vectors.results import PRECISIONS, Json
from decoderspec.reference.operations import Array
from decoderspec.reference.splitmix64 import SplitMix64, initialize
from decoderspec.spec.config import Config
from decoderspec.spec.parameters import FINAL_GAIN, TABLE

FINE = ("float64", "float32")  # where rounding a score does not turn a softmax over
SMALL = 2.0**-10  # an epsilon that every precision holds

Rows = Sequence[Sequence[int]]


def call(kind: str, tokens: Rows, targets: Rows | None = None, **more: Any) -> Json:
    """One call; `more` says whose model, what it must repeat, and where it must have the bits of an earlier one."""
    asked: Json = {"call": kind, "tokens": [list(row) for row in tokens]}
    return asked | ({} if targets is None else {"targets": [list(row) for row in targets]}) | more


def same(as_call: int, shape: tuple[int, int, int], rows: Sequence[int], positions: int) -> Json:
    """Elements of logits `[B, T, V]` that must be those of an earlier call: some rows, up to a position."""
    _, length, width = shape
    return {"as": as_call, "elements": [[b * length * width, (b * length + positions) * width] for b in rows]}


@dataclass(frozen=True)
class ModelCase:
    """One case before its truth is known."""

    id: str
    comment: str
    flags: tuple[str, ...]
    requirements: tuple[str, ...]
    config: Config
    calls: tuple[Json, ...]
    changed: dict[str, Array] | None = None  # parameters that are not as they are drawn
    precisions: tuple[str, ...] = PRECISIONS

    def to_json(self) -> Json:
        """The case as the file has it, without what is expected."""
        return {
            "id": self.id,
            "comment": self.comment,
            "flags": list(self.flags),
            "requirements": list(self.requirements),
            "precisions": list(self.precisions),
            "config": packed(self.config),
            "parameters": packed(parameters(self.id, self.config) | (self.changed or {})),
            "calls": list(self.calls),
        }


def forward_cases() -> list[ModelCase]:
    """Values, and what must not matter to them."""
    families = (_sizes_differ, _stream, _epsilons, _rows, _loud, _digits, _sizes, _counts, _causality, _batch)
    return [case for family in families for case in family()]


# --- Values ---


def _sizes_differ() -> Iterator[ModelCase]:
    tokens, targets = [[0, 8, 3, 3, 1], [5, 0, 8, 2, 5]], [[8, 0, 3, 1, 4], [0, 8, 2, 5, 7]]
    yield ModelCase(
        "sizes-differ",
        "no two sizes are equal; every stage from the tokens on; the same call again after others",
        ("Ordinary", "Stages", "State"),
        ("SHP-1", "VAL-1", "VAL-3", "ATT-1", "LOS-1", "DET-1", "DET-2", "DET-3", "WGT-1", "WGT-2", "WGT-3", "WGT-5"),
        Config(9, 8, 2, 7, 2, 6, 100.0, SMALL),
        (
            call("logits", tokens),
            call("stages", tokens),
            call("loss", tokens, targets),
            call("logits", [[7, 7, 6, 0, 4], [1, 2, 3, 4, 5]]),
            call("logits", tokens, again=0, same=same(0, (2, 5, 9), (0, 1), 5)),
            {"call": "parameters"},
        ),
    )


def _stream() -> Iterator[ModelCase]:
    silent = Config(6, 4, 1, 3, 2, 4, 20.0, SMALL)
    zeros = {
        f"blocks.{n}.{name}": np.zeros(shape)
        for n in (0, 1)
        for name, shape in (("attention.output.weight", (4, 4)), ("ffn.down.weight", (3, 4)))
    }
    yield ModelCase(
        "silent-branches",
        "both output matrices are zero, so the table passes through every block unchanged",
        ("Silent",),
        ("RES-1", "VAL-1"),
        silent,
        (call("logits", [[0, 5, 2, 2]]),),
        zeros,
    )
    yield ModelCase(
        "no-layers",
        "lookup, final norm and head alone",
        ("NoLayers",),
        ("VAL-1",),
        Config(6, 4, 2, 3, 0, 4, 10.0, SMALL),
        (call("logits", [[5, 0, 3]]),),
    )
    yield ModelCase(
        "full-context",
        "as many tokens as positions, three heads, odd feed-forward width, peaked attention",
        ("FullContext", "Peaked"),
        ("VAL-1",),
        Config(7, 12, 3, 5, 1, 8, 10.0, 2.0**-7),
        (call("logits", [[0, 6, 6, 0, 1, 6, 0, 3], [6, 0, 0, 6, 5, 0, 6, 6]]),),
        {
            f"blocks.0.attention.{role}.weight": grid(f"peaked/{role}", (12, 12), 127, 1 / 64)
            for role in ("query", "key")
        },
    )


def _epsilons() -> Iterator[ModelCase]:
    config = Config(6, 4, 2, 9, 1, 5, 1e4, 0.125)
    yield ModelCase(
        "epsilon-rules",
        "rows of the table so small that epsilon outweighs their mean square",
        ("Epsilon",),
        ("VAL-1",),
        config,
        (call("logits", [[1, 0, 5, 2]]),),
        {TABLE: grid("epsilon-rules/table", (6, 4), 64, 1 / 256)},
    )
    yield ModelCase(
        "epsilon-zero",
        "epsilon is zero, which is legal",
        ("Epsilon",),
        ("VAL-1",),
        Config(8, 8, 2, 5, 1, 4, 50.0, 0.0),
        (call("logits", [[7, 0, 3]]),),
    )
    zero_rows = grid("zero-rows/table", (5, 4), 56, 1 / 32)
    zero_rows[::2] = 0.0
    yield ModelCase(
        "zero-rows",
        "rows of the table that are zero: epsilon alone keeps their norm finite",
        ("Epsilon",),
        ("VAL-1",),
        Config(5, 4, 1, 3, 1, 4, 30.0, SMALL),
        (call("logits", [[0, 1, 4, 3]]),),
        {TABLE: zero_rows},
    )


def _rows() -> Iterator[ModelCase]:
    spiky = grid("spiky/table", (7, 10), 56, 1 / 32)
    spiky[:, 3] *= 64
    yield ModelCase(
        "spiky",
        "one feature is 64 times the others; one head of width 10",
        ("Spiky",),
        ("VAL-1",),
        Config(7, 10, 1, 3, 1, 4, 1e6, 2.0**-17),
        (call("logits", [[0, 6, 2]]),),
        {TABLE: spiky},
    )
    yield ModelCase(
        "one-id",
        "one id at every position",
        ("RepeatedId",),
        ("VAL-1",),
        Config(5, 8, 4, 4, 2, 6, 3.0, SMALL),
        (call("logits", [[4, 4, 4, 4, 4, 4]]),),
    )


def _loud() -> Iterator[ModelCase]:
    loud = Config(5, 4, 1, 3, 1, 5, 50.0, SMALL)
    louder = {f"blocks.0.attention.{role}.weight": grid(f"loud/{role}", (4, 4), 127, 1.0) for role in ("query", "key")}
    louder |= {
        "blocks.0.ffn.gate.weight": grid("loud/gate", (4, 3), 127, 8.0),
        "blocks.0.ffn.down.weight": grid("loud/down", (3, 4), 127, 2.0**-17),
        FINAL_GAIN: gain("loud/final", 4) * 512,
    }
    yield ModelCase(
        "loud",
        "scores, gates and logits beyond what an exponential without its maximum can bear, in either precision",
        ("Loud",),
        ("VAL-1", "LOS-1"),
        loud,
        (call("logits", [[0, 4, 1, 3, 2]]), call("loss", [[0, 4, 1, 3, 2]], [[4, 0, 2, 2, 1]])),
        louder,
        FINE,
    )


def _digits() -> Iterator[ModelCase]:
    """The two cases whose inputs do not serve every precision: what rounds them to a coarser one shows here alone."""
    config = Config(5, 4, 2, 3, 1, 4, 1000.0, 1e-5)
    drawn = initialize(config, SplitMix64(53))
    yield ModelCase(
        "float64-digits",
        "inputs that float64 alone holds",
        ("Digits",),
        ("VAL-1",),
        config,
        (call("logits", [[4, 0, 2]]),),
        {name: value for name, value in drawn.items() if value.ndim == 2},
        ("float64",),
    )
    fine = {name: grid(f"digits/{name}", value.shape, 2**20, 2.0**-20) for name, value in drawn.items()}
    yield ModelCase(
        "float32-digits",
        "inputs that float64 and float32 alone hold",
        ("Digits",),
        ("VAL-1",),
        Config(5, 4, 2, 3, 1, 4, 1000.0, SMALL),
        (call("logits", [[4, 0, 2]]),),
        fine,
        FINE,
    )


def _sizes() -> Iterator[ModelCase]:
    long = [[(7 * t * t + t) % 3 for t in range(262)]]
    yield ModelCase(
        "long",
        "leaks inside blocks of 64 keys, short tables of angles, windows and positions in bfloat16 all need length",
        ("Long",),
        ("VAL-1",),
        Config(3, 4, 1, 1, 1, 262, 1.5, SMALL),
        (call("logits", long),),
    )
    yield ModelCase(
        "ids-beyond-a-byte",
        "a vocabulary of 260 words",
        ("WideVocabulary",),
        ("VAL-1", "LOS-1", "GRA-1", "GRA-2"),
        Config(260, 2, 1, 1, 0, 2, 10.0, SMALL),
        (
            call("logits", [[259, 256]]),
            call("loss", [[259, 256]], [[257, 258]]),
            call("gradients", [[259, 256]], [[257, 258]]),
        ),
    )
    yield ModelCase(
        "wide-feed-forward",
        "more hidden units than a block of 64 columns",
        ("WideFeedForward",),
        ("VAL-1",),
        Config(3, 4, 1, 67, 1, 3, 10.0, SMALL),
        (call("logits", [[2, 0, 1]]),),
    )


def _counts() -> Iterator[ModelCase]:
    yield ModelCase(
        "eleven-layers",
        "so many blocks that sorting their names as text puts the eleventh before the third",
        ("Deep",),
        ("VAL-1",),
        Config(4, 2, 1, 2, 11, 3, 5.0, SMALL),
        (call("logits", [[3, 0, 1]]),),
    )
    yield ModelCase(
        "many-heads",
        "nine heads of width 2, a base below one, seventeen hidden units",
        ("ManyHeads",),
        ("VAL-1",),
        Config(4, 18, 9, 17, 1, 3, 0.5, 2.0),
        (call("logits", [[3, 1, 0]]),),
    )


# --- What must not matter ---


def _causality() -> Iterator[ModelCase]:
    config = Config(6, 8, 2, 5, 2, 6, 20.0, SMALL)
    tokens = [[0, 5, 3, 1, 2, 5]]
    yield ModelCase(
        "causality",
        "later tokens are changed, then left out: the rows before them stay, to the bit where the length does",
        ("Causality",),
        ("CAU-1", "CAU-2", "CAU-3", "VAL-1"),
        config,
        (
            call("logits", tokens),
            call("logits", [[0, 5, 3, 4, 4, 0]], same=same(0, (1, 6, 6), (0,), 3)),
            call("logits", [[0, 5, 3, 1, 2, 4]], same=same(0, (1, 6, 6), (0,), 5)),
            call("logits", [[0, 5, 3]]),
            call("logits", [[0]]),
        ),
    )


def _batch() -> Iterator[ModelCase]:
    rows = [[0, 5, 2, 1], [3, 3, 0, 5], [4, 1, 1, 2]]
    yield ModelCase(
        "batch",
        "other rows are changed, left out and put in another order: a row stays as it is",
        ("Batch",),
        ("BAT-1", "BAT-2", "BAT-3", "VAL-1"),
        Config(6, 8, 2, 5, 1, 5, 20.0, SMALL),
        (
            call("logits", rows),
            call("logits", [[1, 0, 5, 5], rows[1], [0, 2, 4, 3]], same=same(0, (3, 4, 6), (1,), 4)),
            call("logits", [rows[1]]),
            call("logits", rows[::-1]),
        ),
    )
