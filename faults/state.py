"""Faults of state: what one call or one model does to another."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import numpy as np

from decoderspec.faults.fault import Fault, FaultyModel, Weights
from decoderspec.reference.operations import Array, softmax
from decoderspec.spec.config import Config
from decoderspec.spec.parameters import TABLE

between = partial(Fault, family="state", level="contract", stage="state")


held = partial(Fault, family="parameters", level="contract", stage="parameters")


def key(*arrays: Any) -> tuple[Any, ...]:
    """What a cache knows its arguments by."""
    return tuple((np.asarray(array).shape, np.asarray(array).tobytes()) for array in arrays)


class OneBuffer(FaultyModel):
    """Every call writes its logits into the same memory."""

    buffers: dict[tuple[int, ...], Array]

    def logits(self, tokens: Any) -> Array:
        """The buffer."""
        found = super().logits(tokens)
        self.buffers = getattr(self, "buffers", {})
        buffer = self.buffers.setdefault(found.shape, np.empty_like(found))
        buffer[...] = found
        return buffer


class GradientInLogits(FaultyModel):
    """The pullback of the loss uses the memory of the logits of the same ids."""

    def __init__(self, fault: Fault, config: Config, weights: Weights) -> None:
        super().__init__(fault, config, weights)
        self.kept: dict[bytes, Array] = {}

    def logits(self, tokens: Any) -> Array:
        """Right, and kept for the pullback."""
        found = self.kept[np.asarray(tokens).tobytes()] = super().logits(tokens)
        return found

    def gradients(self, tokens: Any, targets: Any) -> dict[str, Array]:
        """Right, but written over the logits."""
        kept = self.kept.get(np.asarray(tokens).tobytes())
        if kept is not None:
            kept[...] = softmax(kept)
        return super().gradients(tokens, targets)


class WritesTokens(FaultyModel):
    """Ids are clipped where they lie."""

    def logits(self, tokens: Any) -> Array:
        """Right, but the caller's ids are shifted by one place afterwards."""
        found = super().logits(tokens)
        tokens[...] = np.roll(tokens, 1, axis=-1)
        return found


class Remembers(FaultyModel):
    """Keys of earlier calls are not cleared: their values join the stream."""

    seen = 0.0

    def logits(self, tokens: Any) -> Array:
        """Moved a little by every call before."""
        found = super().logits(tokens)
        moved = found + 1e-6 * self.seen
        self.seen += float(found.mean())
        return moved


class Dropout(FaultyModel):
    """Training mode: a hundredth of the logits is dropped."""

    generator: ClassVar[np.random.Generator] = np.random.default_rng(0)

    def logits(self, tokens: Any) -> Array:
        """Another draw in each call."""
        found = super().logits(tokens)
        return np.asarray(found * (self.generator.random(found.shape) > 0.01))


class Unwritten(FaultyModel):
    """The last element of the output is never written and keeps what the memory held."""

    old = 0.0

    def logits(self, tokens: Any) -> Array:
        """Its last element is the first one of the call before."""
        found = super().logits(tokens)
        kept, self.old = self.old, float(found.flat[0])
        found.flat[-1] = kept
        return found


class SharedWeights(FaultyModel):
    """Weights live in the module: the model that was built last rules all of its shape."""

    shared: ClassVar[dict[Config, Weights]] = {}

    def __init__(self, fault: Fault, config: Config, weights: Weights) -> None:
        super().__init__(fault, config, weights)
        self.shared[config] = weights

    def logits(self, tokens: Any) -> Array:
        """Of the weights that were built last."""
        self.weights = self.shared[self.config]
        return super().logits(tokens)


class SharedResult(FaultyModel):
    """A cache of the module, keyed by the ids alone, serves all models of a configuration."""

    known: ClassVar[dict[Any, Array]] = {}

    def logits(self, tokens: Any) -> Array:
        """What any model answered to these ids."""
        asked = (self.config, *key(tokens))
        if asked not in self.known:
            self.known.clear()
            self.known[asked] = super().logits(tokens)
        return self.known[asked].copy()


class CachedByTokens(FaultyModel):
    """Results are kept by ids, also when parameters have changed since."""

    def __init__(self, fault: Fault, config: Config, weights: Weights) -> None:
        super().__init__(fault, config, weights)
        self.known: dict[Any, Array] = {}

    def logits(self, tokens: Any) -> Array:
        """The first answer to these ids."""
        asked = key(tokens)
        if asked not in self.known:
            self.known[asked] = super().logits(tokens)
        return self.known[asked].copy()


class TableOfFirstLength(FaultyModel):
    """The context is fixed by the first call: longer ones later are cut, and the last row repeated."""

    length: int | None = None

    def logits(self, tokens: Any) -> Array:
        """Rows beyond the first length repeat the last."""
        ids = self.fault.tokens(self.config, tokens)
        self.length = self.length or ids.shape[1]
        found = super().logits(ids)
        found[:, self.length :] = found[:, self.length - 1 : self.length]
        return found


class TableOfLastLength(FaultyModel):
    """A shorter call in between leaves its mask behind: the call after it is cut."""

    length = 0

    def logits(self, tokens: Any) -> Array:
        """Rows beyond the previous length are zero."""
        found = super().logits(tokens)
        if 0 < self.length < found.shape[1]:
            found[:, self.length :] = 0.0
        self.length = found.shape[1]
        return found


class StagesOfOtherTokens(FaultyModel):
    """Stages come from a recording pass of their own."""

    def stages(self, tokens: Any) -> dict[str, Array]:
        """Of ids that were shifted by one place."""
        return super().stages(np.roll(np.asarray(tokens), 1, axis=-1))


class AddsGradients(FaultyModel):
    """Gradients add up over calls."""

    total: dict[str, Array] | None = None

    def gradients(self, tokens: Any, targets: Any) -> dict[str, Array]:
        """The sum over all calls."""
        found = super().gradients(tokens, targets)
        if self.total is not None:
            found = {name: value + self.total[name] for name, value in found.items()}
        self.total = found
        return {name: value.copy() for name, value in found.items()}


class GradientsOfFirstBatch(FaultyModel):
    """Gradients are computed once and kept."""

    kept: dict[str, Array] | None = None

    def gradients(self, tokens: Any, targets: Any) -> dict[str, Array]:
        """Those of the first batch, whatever the batch."""
        self.kept = self.kept or super().gradients(tokens, targets)
        return {name: value.copy() for name, value in self.kept.items()}


class LossOfFirstBatch(FaultyModel):
    """The loss is computed once for each shape and kept."""

    def __init__(self, fault: Fault, config: Config, weights: Weights) -> None:
        super().__init__(fault, config, weights)
        self.kept: dict[tuple[int, ...], float] = {}

    def loss(self, tokens: Any, targets: Any) -> float:
        """That of the first batch of this shape."""
        shape = np.shape(tokens)
        if shape not in self.kept:
            self.kept[shape] = super().loss(tokens, targets)
        return self.kept[shape]


class StepsInGradients(FaultyModel):
    """Asking for gradients already takes a step."""

    def gradients(self, tokens: Any, targets: Any) -> dict[str, Array]:
        """Right, and then the table moves."""
        found = super().gradients(tokens, targets)
        self.weights[TABLE][...] -= 0.1 * found[TABLE]
        return found


class RenormalizesTable(FaultyModel):
    """The lookup shortens rows longer than a bound in place."""

    def logits(self, tokens: Any) -> Array:
        """Of the shortened rows."""
        length = np.sqrt(np.sum(np.square(self.weights[TABLE]), axis=-1, keepdims=True))
        self.weights[TABLE][...] /= np.maximum(1.0, length / 2.0)
        return super().logits(tokens)


class RolesOfFirstBatch(FaultyModel):
    """The roles of the table are computed once and kept."""

    kept: tuple[Array, Array] | None = None

    def role_gradients(self, tokens: Any, targets: Any) -> tuple[Array, Array]:
        """Those of the first batch."""
        self.kept = self.kept or super().role_gradients(tokens, targets)
        return self.kept[0].copy(), self.kept[1].copy()


class StagesOfFirstTokens(FaultyModel):
    """Stages are recorded once and kept."""

    kept: dict[str, Array] | None = None

    def stages(self, tokens: Any) -> dict[str, Array]:
        """Those of the first call of this shape."""
        found = super().stages(tokens)
        if self.kept is None or any(self.kept[name].shape != value.shape for name, value in found.items()):
            self.kept = found
        return self.kept


class WritesTargets(FaultyModel):
    """Targets are mended where they lie."""

    def loss(self, tokens: Any, targets: Any) -> float:
        """Right, but the caller's targets have moved."""
        found = super().loss(tokens, targets)
        targets[...] = np.roll(targets, 1, axis=-1)
        return found


class RacesWhenLong(FaultyModel):
    """Sums over many keys are split, and their parts are added in the order in which they arrive."""

    generator: ClassVar[np.random.Generator] = np.random.default_rng(0)

    def logits(self, tokens: Any) -> Array:
        """The last bits of long sequences change from call to call."""
        found = super().logits(tokens)
        moved = self.generator.random(found.shape) < 0.5
        return np.where(moved, np.nextafter(found, np.inf), found) if found.shape[1] > 32 else found


FAULTS = (
    between(
        name="roles-of-the-first-batch", breaks=("TIE-1",), model=RolesOfFirstBatch,
        sentence="the gradients of the two roles are computed once and kept",
    ),
    between(
        name="stages-of-the-first-tokens", breaks=("VAL-3",), model=StagesOfFirstTokens,
        sentence="stages are recorded once for each shape and kept, as by a graph that was traced with its input",
    ),
    between(
        name="targets-written-to", breaks=("DET-3",), model=WritesTargets,
        sentence="the caller's targets are moved in place, as where they are shifted",
    ),
    between(
        name="long-sums-in-any-order", breaks=("DET-1",), model=RacesWhenLong,
        sentence="long sums are split, and their parts added in the order in which they arrive",
        source="vllm-project/vllm #940 (the kind); pytorch/executorch PR 6478",
    ),
    between(
        name="one-output-buffer", breaks=("DET-2",), model=OneBuffer,
        sentence="one output buffer is returned each time: the second call overwrites the first result",
        source="flashinfer-ai/flashinfer PR 3118 (review)",
    ),
    between(
        name="gradient-in-the-logits", breaks=("DET-2",), model=GradientInLogits,
        sentence="the loss writes its gradient into the logits that were returned",
        source="linkedin/Liger-Kernel #272, PR 1251, PR 273",
    ),
    between(
        name="tokens-written-to", breaks=("DET-3",), model=WritesTokens,
        sentence="the caller's ids are moved in place, as a decoding loop does to its own",
    ),
    between(
        name="cache-not-cleared", breaks=("DET-1",), model=Remembers,
        sentence="something of an earlier call remains and moves later results",
    ),
    between(
        name="dropout-left-on", breaks=("DET-1",), model=Dropout,
        sentence="the model is in training mode",
    ),
    between(
        name="output-not-filled", breaks=("DET-1", "VAL-1"), model=Unwritten,
        sentence="an output is allocated without being filled; what no one writes keeps old memory",
        source="vllm-project/vllm #940, PR 19784; mirage-project/mirage #776; NVIDIA/apex PR 1322",
    ),
    between(
        name="weights-of-the-module", breaks=("DET-4",), model=SharedWeights,
        sentence="weights live in the module, so that the model built last rules all",
    ),
    between(
        name="results-of-the-module", breaks=("WGT-4",), model=SharedResult,
        sentence="a cache of the module, keyed by ids, serves every model",
    ),
    between(
        name="results-cached-by-ids", breaks=("WGT-4", "TIE-4"), model=CachedByTokens,
        sentence="results are cached by ids and outlive the parameters that they came from",
    ),
    between(
        name="length-of-the-first-call", breaks=("DET-4",), model=TableOfFirstLength,
        sentence="tables and masks are sized by the first call",
    ),
    between(
        name="mask-of-the-call-before", breaks=("CAU-3",), model=TableOfLastLength,
        sentence="a mask made for a shorter call serves the longer one after it",
    ),
    between(
        name="gradients-add-up", breaks=("GRA-3",), model=AddsGradients, level="contract",
        sentence="gradient buffers are not cleared between calls",
        source="karpathy/llm.c PR 548; karpathy/micrograd PR 102",
    ),
    between(
        name="gradients-of-the-first-batch", breaks=("GRA-1",), model=GradientsOfFirstBatch,
        sentence="gradients are computed once and kept, as by a graph that was recorded with its input",
    ),
    between(
        name="loss-of-the-first-batch", breaks=("LOS-1",), model=LossOfFirstBatch,
        sentence="the loss of the first batch of a shape is kept for all later ones",
    ),
    between(
        name="gradients-take-a-step", breaks=("WGT-5",), model=StepsInGradients,
        sentence="asking for gradients also takes a step of the optimizer",
    ),
    between(
        name="table-renormalized-in-place", breaks=("WGT-5", "VAL-1"), model=RenormalizesTable,
        sentence="the lookup shortens long rows of the table in place, an option of the library",
    ),
    between(
        name="stages-of-other-tokens", breaks=("VAL-3",), model=StagesOfOtherTokens,
        sentence="stages are recorded in another pass than the logits, on padded ids",
    ),
)  # fmt: skip
