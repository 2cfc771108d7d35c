"""Faults of parameters: what is handed out, what is assigned, and copies that are left behind."""

from __future__ import annotations

from typing import Any

import numpy as np

from decoderspec.faults.compositions import before_head
from decoderspec.faults.fault import Fault, FaultyModel, Weights
from decoderspec.faults.numbers import rounded
from decoderspec.faults.state import held
from decoderspec.reference.operations import Array
from decoderspec.reference.tape import Gradient
from decoderspec.spec.config import Config
from decoderspec.spec.parameters import FINAL_GAIN, TABLE


class Copied(FaultyModel):
    """Forward passes run on a copy made at construction; the fault names whose."""

    copied: tuple[str, ...] = ("",)

    def __init__(self, fault: Fault, config: Config, weights: Weights) -> None:
        super().__init__(fault, config, weights)
        self.live = dict(weights)
        self.weights = {n: w.copy() if n.endswith(self.copied) else w for n, w in weights.items()}

    def parameters(self) -> dict[str, Array]:
        """The live ones, which these forward passes do not read."""
        return dict(self.live)

    def assign(self, name: str, value: Any) -> None:
        """Written to the live ones."""
        self.live[name][...] = value


class CopiedMatrices(Copied):
    """Matrices are fused or transposed once."""

    copied = ("query.weight", "key.weight", "value.weight", "gate.weight", "up.weight", "output.weight", "down.weight")


class CopiedGains(Copied):
    """Gains are folded once."""

    copied = (".gain",)


class CopiedKeys(Copied):
    """One matrix of each block is packed for a kernel of its own."""

    copied = ("key.weight",)


class CopiedFinalGain(Copied):
    """One gain is folded into the head."""

    copied = (FINAL_GAIN,)


class CopiedForTraining(FaultyModel):
    """Loss and gradients were compiled with the parameters as constants."""

    def __init__(self, fault: Fault, config: Config, weights: Weights) -> None:
        super().__init__(fault, config, weights)
        self.constants = FaultyModel(fault, config, {name: value.copy() for name, value in weights.items()})

    def loss(self, tokens: Any, targets: Any) -> float:
        """Of the parameters at construction."""
        return self.constants.loss(tokens, targets)

    def gradient(self, tokens: Any, targets: Any) -> Gradient:
        """At the parameters of construction."""
        return self.constants.gradient(tokens, targets)


class CopiedHead(FaultyModel):
    """The head is a copy of the table."""

    def __init__(self, fault: Fault, config: Config, weights: Weights) -> None:
        super().__init__(fault, config, weights)
        self.head = weights[TABLE].copy()

    def forward(self, operations: Any, ids: Array) -> Array:
        """With the copy for a head."""
        x = before_head(operations, self.config, self.weights, ids)
        return np.asarray(operations.project("logits", x, self.head))


class CopiedLookup(FaultyModel):
    """The table of the lookup is a copy; what is assigned reaches the head alone."""

    def __init__(self, fault: Fault, config: Config, weights: Weights) -> None:
        super().__init__(fault, config, weights)
        self.lookup = weights[TABLE].copy()

    def forward(self, operations: Any, ids: Array) -> Array:
        """With the copy for a lookup."""
        x = before_head(operations, self.config, {**self.weights, TABLE: self.lookup}, ids)
        return np.asarray(operations.project("logits", x, self.weights[TABLE]))


class AssignsTwice(FaultyModel):
    """A table that is listed twice is written twice, the second time by what is already there."""

    def assign(self, name: str, value: Any) -> None:
        """The table moves twice as far."""
        old = self.weights[name].copy()
        super().assign(name, value)
        if name == TABLE:
            self.weights[name][...] += self.weights[name] - old


class AssignsNothing(FaultyModel):
    """What is handed out and written is a copy."""

    def parameters(self) -> dict[str, Array]:
        """Copies, kept apart."""
        self.copies: dict[str, Array] = getattr(self, "copies", {n: w.copy() for n, w in self.weights.items()})
        return dict(self.copies)

    def assign(self, name: str, value: Any) -> None:
        """Written to a copy."""
        self.parameters()[name][...] = value


class AssignsSum(FaultyModel):
    """Assigning adds."""

    def assign(self, name: str, value: Any) -> None:
        """Added to what is there."""
        self.weights[name][...] += value


class AssignsTransposed(FaultyModel):
    """Square matrices are assigned as another library stores them."""

    def assign(self, name: str, value: Any) -> None:
        """Transposed where that fits."""
        square = np.ndim(value) == 2 and value.shape[0] == value.shape[1] and name != TABLE
        super().assign(name, value.T if square else value)


def handing_out(change: Any) -> type[FaultyModel]:
    """A model that hands out other parameters than it uses."""

    class Model(FaultyModel):
        """Right but for `parameters`."""

        def parameters(self) -> dict[str, Array]:
            """Changed."""
            return dict(change(self.config, dict(self.weights)))

    return Model


def _query_and_key(_config: Config, weights: dict[str, Array]) -> dict[str, Array]:
    def other(name: str) -> str:
        pairs = {"query.weight": "key.weight", "key.weight": "query.weight"}
        end = next((e for e in pairs if name.endswith(e)), "")
        return name.removesuffix(end) + pairs.get(end, "")

    return {name: weights[other(name)] for name in weights}


FAULTS = (
    held(
        name="head-is-a-copy", breaks=("TIE-4",), model=CopiedHead,
        sentence="the head is a copy of the table: equal at the start, left behind by the first update",
        source="NVIDIA/Megatron-LM #656; facebookresearch/lingua PR 75; rasbt/LLMs-from-scratch #822",
    ),
    held(
        name="lookup-is-a-copy", breaks=("TIE-4",), model=CopiedLookup,
        sentence="the lookup's table is a copy: what is assigned reaches the head alone",
        source="google/torchax #68; dhansmair/flamingo-mini #4",
    ),
    held(
        name="weights-copied-at-construction", breaks=("WGT-4", "TIE-4"), model=Copied,
        sentence="forward passes run on copies made at construction",
    ),
    held(
        name="matrices-copied-at-construction", breaks=("WGT-4",), model=CopiedMatrices,
        sentence="matrices are fused or transposed once, at construction",
    ),
    held(
        name="gains-copied-at-construction", breaks=("WGT-4",), model=CopiedGains,
        sentence="gains are folded or cast once, at construction",
    ),
    held(
        name="keys-copied-at-construction", breaks=("WGT-4",), model=CopiedKeys,
        sentence="the key matrix alone is packed once, at construction",
    ),
    held(
        name="final-gain-copied-at-construction", breaks=("WGT-4",), model=CopiedFinalGain,
        sentence="the last gain alone is folded once, at construction",
    ),
    held(
        name="training-on-copies", breaks=("WGT-4",), model=CopiedForTraining,
        sentence="loss and gradients were compiled with the parameters as constants: logits learn, they do not",
    ),
    held(
        name="table-assigned-twice", breaks=("TIE-4",), model=AssignsTwice,
        sentence="the shared table is stepped once for each of its roles",
        source="paiml/entrenar #314; twitter-archive/torch-autograd #165; nntrainer/nntrainer PR 218",
    ),
    held(
        name="assignment-without-effect", breaks=("WGT-4", "TIE-4"), model=AssignsNothing,
        sentence="parameters are handed out as copies, and assigning writes to a copy",
    ),
    held(
        name="assignment-adds", breaks=("WGT-4", "TIE-4"), model=AssignsSum,
        sentence="assigning adds to what is there",
    ),
    held(
        name="assignment-transposes", breaks=("WGT-4",), model=AssignsTransposed,
        sentence="square matrices are assigned in the layout of another library",
    ),
    held(
        name="head-listed-as-parameter", breaks=("WGT-1", "WGT-2"),
        model=handing_out(lambda config, weights: {**weights, "lm_head.weight": weights[TABLE]}),
        sentence="the tied table is listed, and counted, a second time as the head",
        source="bigscience-workshop/Megatron-DeepSpeed #99; karpathy/llama2.c #378; TylerYep/torchinfo #377",
    ),
    held(
        name="table-not-listed", breaks=("WGT-1", "WGT-2"),
        model=handing_out(lambda config, weights: {n: w for n, w in weights.items() if n != TABLE}),
        sentence="the tied table is in no list of parameters",
        source="pytorch/torchtitan PR 3225 (subtracted twice)",
    ),
    held(
        name="final-gain-not-listed", breaks=("WGT-1", "WGT-2"),
        model=handing_out(lambda config, weights: {n: w for n, w in weights.items() if n != FINAL_GAIN}),
        sentence="the last gain is in no list of parameters",
    ),
    held(
        name="parameters-sorted-by-name", breaks=("WGT-1",),
        model=handing_out(lambda config, weights: dict(sorted(weights.items()))),
        sentence="parameters are listed in alphabetical order",
    ),
    held(
        name="parameters-transposed", breaks=("WGT-2",),
        model=handing_out(lambda config, weights: {n: w.T for n, w in weights.items()}),
        sentence="matrices are handed out in the layout of another library",
    ),
    held(
        name="parameters-rounded", breaks=("WGT-3",),
        model=handing_out(lambda config, weights: {n: rounded(w * 1.0, "float16") for n, w in weights.items()}),
        sentence="parameters are handed out in a checkpoint's format",
    ),
    held(
        name="parameters-of-query-and-key-exchanged", breaks=("WGT-3",), model=handing_out(_query_and_key),
        sentence="parameters are zipped with the names of another list: query and key are exchanged",
    ),
    held(
        name="parameters-of-one-block", breaks=("WGT-3",),
        model=handing_out(
            lambda config, weights: {
                n: weights["blocks.0." + n.split(".", 2)[2]] if n.startswith("blocks.") else w
                for n, w in weights.items()
            }
        ),
        sentence="every block hands out the parameters of the first: `[block] * n`",
        source="linkedin/Liger-Kernel PR 269; espnet/espnet #1278",
    ),
    held(
        name="parameters-with-a-bias", breaks=("WGT-1", "WGT-2"),
        model=handing_out(lambda config, weights: {**weights, "head.bias": np.zeros(config.vocabulary_size)}),
        sentence="a head built by a library has a bias, zero for now",
    ),
)  # fmt: skip
