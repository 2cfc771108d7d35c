"""What the flags of the test vectors mean: the kind of mistake that a case is there for, and why it matters.

`faults` are of the bank (`docs/faults.md`): each of them fails a case that has the flag.
"""

from __future__ import annotations

from dataclasses import dataclass

from decoderspec.golden.vectors.results import Json


@dataclass(frozen=True)
class Note:
    """One flag."""

    kind: str
    why: str
    faults: tuple[str, ...] = ()

    def to_json(self) -> Json:
        """As the files have it."""
        return {"kind": self.kind, "why": self.why, "faults": list(self.faults)}


NOTES = {
    "Ordinary": Note(
        "a formula, an axis or a constant is wrong",
        "with all sizes different nothing fits by accident; most mistakes show here first",
        ("scale-of-model-width", "embedding-scaled", "gelu-for-silu", "heads-interleaved", "post-norm"),
    ),
    "Stages": Note(
        "one stage is wrong, and everything after it",
        "the first stage beyond its limits is where to look",
        ("rotation-not-interleaved", "key-and-value-exchanged", "ffn-norm-of-the-block-input"),
    ),
    "Shapes": Note("an axis is missing, broadcast or of length one", "kernels have paths of their own for short axes"),
    "Silent": Note(
        "the residual stream is normalized or overwritten",
        "with branches that add nothing the stream must arrive unchanged",
        ("post-norm", "stream-doubled", "attention-residual-missing"),
    ),
    "NoLayers": Note(
        "a model without blocks is refused, or its last norm is left out",
        "what stands around the blocks is judged alone",
        ("no-layers-refused", "final-norm-missing", "logits-divided-by-root"),
    ),
    "FullContext": Note(
        "the last position is refused, clamped or beyond a table",
        "tables end where sequences may",
        ("full-context-refused", "odd-last-head-empty"),
    ),
    "Peaked": Note(
        "the softmax is taken over another axis, with another scale or base",
        "where attention is nearly uniform these hardly show",
        ("softmax-of-base-two", "softmax-over-queries", "scale-missing"),
    ),
    "Epsilon": Note(
        "epsilon is left out, a default, outside the root or not averaged",
        "with rows of order one and an epsilon of 1e-6 none of this shows before the last digits",
        ("norm-epsilon-outside-root", "norm-epsilon-always-1e-6", "norm-epsilon-as-floor", "zero-epsilon-refused"),
    ),
    "Gain": Note("the gain is left out, applied twice or taken as positive", "gains of one, as they start, hide it"),
    "Spiky": Note(
        "squares overflow, or the statistic is not the mean square",
        "trained models have features that are a hundred times the others",
        ("norm-absolute-mean", "norm-subtracts-mean"),
    ),
    "RepeatedId": Note(
        "gradients of an id that occurs twice overwrite each other, or ids are looked up by position",
        "scattered writes are not sums",
        ("lookup-gradient-overwrites", "embedding-next-row"),
    ),
    "Loud": Note(
        "the maximum is not taken out before the exponential, or the mask is a finite number",
        "scores grow in training, and then everything is infinite or NaN at once",
        ("softmax-without-maximum", "loss-without-maximum", "scores-capped", "silu-overflows"),
    ),
    "Overflow": Note("an exponential overflows on one side", "the naive form is right for all numbers of order one"),
    "Long": Note(
        "a mask leaks inside a block of keys, a window or a table is too short",
        "kernels work in blocks of 64, and tests in sequences of 5",
        ("mask-open-in-blocks-of-64", "positions-wrap-at-32", "mask-window-of-32", "positions-in-bfloat16"),
    ),
    "WideVocabulary": Note(
        "an id is kept in a byte",
        "byte vocabularies come first, others later",
        ("embedding-id-in-8-bits", "loss-target-in-8-bits"),
    ),
    "WideFeedForward": Note(
        "a kernel ends after a block of columns", "its tail is not written", ("product-of-64-columns",)
    ),
    "ManyRows": Note("a kernel ends after a block of rows", "its tail is not added", ("loss-of-first-sixteen-rows",)),
    "Digits": Note(
        "weights are kept in a coarser format than is declared",
        "inputs of few bits, as most vectors have, survive it",
        ("embedding-in-float32", "embedding-in-bfloat16"),
    ),
    "Deep": Note(
        "a block is left out, used twice or out of order",
        "two layers hide what eleven show",
        ("blocks-sorted-as-text", "last-block-left-out-from-three-up"),
    ),
    "ManyHeads": Note(
        "a kernel has room for eight heads, or a base below one is refused",
        "sizes that are powers of two hide tails",
        ("merged-of-eight-heads", "base-below-one-refused"),
    ),
    "Causality": Note(
        "a position sees a later one",
        "a model that sees what it predicts learns nothing; a small leak hides in any tolerance, never in the bits",
        ("mask-missing", "mask-shows-the-next-token", "softmax-maximum-over-the-future"),
    ),
    "Batch": Note(
        "rows of a batch reach each other",
        "one user's text must not reach another's answer",
        ("norm-over-the-batch", "keys-of-the-first-row", "embedding-first-row-for-all", "heads-and-batch-exchanged"),
    ),
    "Gradients": Note(
        "a term of a pullback is missing, doubled or of the wrong axis",
        "the loss still falls, more slowly",
        ("norm-pullback-without-variance", "key-gradient-not-transposed", "silu-slope-is-sigmoid", "gradients-add-up"),
    ),
    "Tying": Note(
        "the table is copied, or one of its two uses has no gradient",
        "lookup and head are one tensor: its gradient is the sum of two",
        ("table-gradient-of-lookup-alone", "table-gradient-of-head-alone", "roles-exchanged", "head-is-a-copy"),
    ),
    "Loss": Note(
        "the loss is a sum, shifted, ignores an id or averages averages",
        "all of these are finite and plausible",
        ("loss-summed", "loss-ignores-target-zero", "loss-without-last-position", "loss-over-time"),
    ),
    "Assigned": Note(
        "a parameter is copied when the model is built",
        "training then moves one tensor and runs another",
        ("weights-copied-at-construction", "assignment-without-effect", "lookup-is-a-copy"),
    ),
    "State": Note(
        "something is kept from one call to the next",
        "caches and output buffers are sized for whoever came first",
        ("one-output-buffer", "length-of-the-first-call", "weights-of-the-module", "tokens-written-to"),
    ),
    "Rotation": Note("pairs, frequencies, signs or positions are others", "there are two conventions of pairing"),
    "Offset": Note("positions start at zero whatever the offset, or are kept in few bits", "caches decode at offsets"),
    "Transposed": Note("a square matrix is applied the wrong way round", "its shape is right either way"),
    "Gate": Note("another activation, or gate and up exchanged", "near zero all activations look alike"),
    "Block": Note("the order of norm, branch and sum", "one block is what most people write first"),
    "Seed": Note(
        "the seed is cut, words are drawn in another order, or limits are others",
        "replay across languages",
        ("seed-in-32-bits", "each-matrix-from-the-seed", "gains-take-draws", "drawn-in-alphabetical-order"),
    ),
    "Refused": Note(
        "bad input is taken",
        "it runs to plausible nonsense somewhere",
        ("negative-ids-wrap-around", "odd-head-width-taken", "targets-unchecked", "parameters-broadcast"),
    ),
    "Taken": Note(
        "valid input at the edge is refused", "an off-by-one bound", ("last-id-refused", "no-layers-refused")
    ),
}
