"""The model's cases of loss, gradients, the two roles of the table, and state."""

from __future__ import annotations

from collections.abc import Iterator

from decoderspec.golden.vectors.inputs import packed, parameters
from decoderspec.golden.vectors.model import SMALL, ModelCase, call, same
from decoderspec.spec.config import Config
from decoderspec.spec.parameters import FINAL_GAIN, TABLE


def training_cases() -> list[ModelCase]:
    """All of them."""
    families = (_training, _lookup_and_head, _blocked, _losses, _assigned, _two_models)
    return [case for family in families for case in family()]


# --- Loss, gradients, the two roles of the table ---


def _training() -> Iterator[ModelCase]:
    everything = ("LOS-1", "GRA-1", "GRA-2", "GRA-3", "GRA-4", "TIE-1", "TIE-2", "TIE-3", "WGT-5")
    tokens, targets = [[0, 3, 3], [4, 0, 1]], [[3, 0, 4], [5, 1, 1]]
    yield ModelCase(
        "gradients",
        "two layers, one head of width 6; an id twice, others absent; targets 0 and V-1 at both ends",
        ("Gradients", "Tying", "RepeatedId"),
        everything,
        Config(6, 6, 1, 4, 2, 4, 10.0, SMALL),
        (
            call("logits", tokens),
            call("loss", tokens, targets),
            call("gradients", tokens, targets),
            call("role_gradients", tokens, targets),
            call("gradients", tokens, targets, again=2),
            {"call": "parameters"},
        ),
    )
    yield ModelCase(
        "gradients-of-heads",
        "two heads of width 4 in one layer",
        ("Gradients",),
        ("LOS-1", "GRA-1", "GRA-2", "GRA-4"),
        Config(5, 8, 2, 3, 1, 4, 100.0, SMALL),
        (call("loss", [[4, 0, 2, 4]], [[0, 4, 4, 1]]), call("gradients", [[4, 0, 2, 4]], [[0, 4, 4, 1]])),
    )


def _lookup_and_head() -> Iterator[ModelCase]:
    yield ModelCase(
        "roles-without-layers",
        "lookup and head with nothing between: the two parts of the table's gradient on their own",
        ("Tying", "NoLayers"),
        ("GRA-1", "GRA-2", "GRA-4", "TIE-1", "TIE-2", "TIE-3"),
        Config(5, 4, 2, 4, 0, 4, 1e4, 2.0**-20),
        (call("gradients", [[0, 1]], [[1, 2]]), call("role_gradients", [[0, 1]], [[1, 2]])),
    )


def _blocked() -> Iterator[ModelCase]:
    rows, wanted = [[(5 * b + 1) % 3] for b in range(17)], [[(b * b) % 3] for b in range(17)]
    yield ModelCase(
        "seventeen-rows",
        "more rows than a block of sixteen",
        ("ManyRows",),
        ("LOS-1", "GRA-1", "GRA-2"),
        Config(3, 2, 1, 1, 0, 1, 10.0, SMALL),
        (call("loss", rows, wanted), call("gradients", rows, wanted)),
    )
    length = 35
    yield ModelCase(
        "gradients-of-a-long-row",
        "more keys than a block of 32",
        ("Long", "Gradients"),
        ("GRA-1", "GRA-2", "GRA-4"),
        Config(3, 2, 1, 1, 1, length, 5.0, SMALL),
        (call("gradients", [[(t * t + 1) % 3 for t in range(length)]], [[(t * t + 2) % 3 for t in range(length)]]),),
    )


def _losses() -> Iterator[ModelCase]:
    yield ModelCase(
        "unequal-losses",
        "the mean is over all positions of all rows, whatever their losses",
        ("Loss",),
        ("LOS-1",),
        Config(4, 4, 1, 3, 1, 5, 10.0, SMALL),
        (
            call(
                "loss", [[0, 1, 2, 3, 0], [3, 3, 0, 2, 1], [1, 0, 0, 2, 2]], [[0, 0, 3, 3, 1], [1, 2, 2, 0, 3], [3] * 5]
            ),
            call("loss", [[2]], [[0]]),
        ),
    )


# --- State ---


def _assigned() -> Iterator[ModelCase]:
    tokens, targets = [[3, 0, 2]], [[0, 2, 3]]
    assigned = ("blocks.0.attention.query.weight", "blocks.0.attention.key.weight", "blocks.0.ffn.down.weight",
                "blocks.0.attention_norm.gain", FINAL_GAIN, TABLE)  # fmt: skip
    config = Config(4, 4, 2, 3, 1, 4, 10.0, SMALL)
    new = parameters("assigned/new", config)
    yield ModelCase(
        "assigned",
        "parameters are assigned in place, the table last; each takes effect at once, the table in both its places",
        ("Assigned", "Tying"),
        ("WGT-3", "WGT-4", "WGT-5", "TIE-4"),
        config,
        (
            call("logits", tokens),
            *(
                each
                for name in assigned
                for each in ({"call": "assign", "name": name, "value": packed(new[name])}, call("logits", tokens))
            ),
            call("loss", tokens, targets),
            {"call": "parameters"},
        ),
    )


def _two_models() -> Iterator[ModelCase]:
    short, long = [[1, 3]], [[2, 0, 3, 1, 1]]
    twins = Config(4, 4, 1, 5, 1, 5, 7.0, SMALL)
    yield ModelCase(
        "two-models",
        "calls of another model of the same sizes, and of other lengths, lie between two equal calls",
        ("State",),
        ("DET-1", "DET-2", "DET-4"),
        twins,
        (
            call("logits", short),
            call("logits", long),
            call("logits", long, model="twin"),
            call("logits", short, again=0, same=same(0, (1, 2, 4), (0,), 2)),
            call("logits", long, again=1, same=same(1, (1, 5, 4), (0,), 5)),
            call("logits", long, model="twin", again=2, same=same(2, (1, 5, 4), (0,), 5)),
        ),
    )
    yield ModelCase(
        "twin",
        "the other model, on its own; every kind of call on one batch and then on another of its shape",
        ("State",),
        ("DET-1", "GRA-3", "LOS-1", "TIE-1", "VAL-3"),
        twins,
        tuple(
            call(kind, *batch[: 1 if kind in ("logits", "stages") else 2])
            for kind in ("logits", "stages", "loss", "gradients", "role_gradients")
            for batch in (([[2, 0, 3]], [[0, 3, 1]]), ([[1, 3, 0]], [[2, 2, 0]]))
        ),
    )
