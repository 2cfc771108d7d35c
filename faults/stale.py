"""Faults of state: results, tables and sizes that outlive what they were made for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from decoderspec.faults.fault import Fault, FaultyModel, Weights, swap
from decoderspec.faults.state import between, key
from decoderspec.reference.operations import Array, rms_norm, rms_norm_vjp, rotary
from decoderspec.spec import validation
from decoderspec.spec.config import Config
from decoderspec.spec.parameters import FINAL_GAIN


class TablesOfTheModule(FaultyModel):
    """Rotary tables are kept in the module by the sizes of the model and the number of positions."""

    tables: ClassVar[dict[Any, Array]] = {}

    def __init__(self, fault: Fault, config: Config, weights: Weights) -> None:
        super().__init__(fault, config, weights)
        sizes = replace(config, rope_base=0.0, rms_epsilon=0.0)

        def kept(positions: Array, width: int, base: float) -> Array:
            return self.tables.setdefault((sizes, len(positions)), rotary(positions, width, base))

        self.operations = swap(rotary=kept)(self.operations)


class ConfigurationOfTheModule(FaultyModel):
    """Base and epsilon are globals, set by every build."""

    last: ClassVar[list[Config]] = []

    def __init__(self, fault: Fault, config: Config, weights: Weights) -> None:
        super().__init__(fault, config, weights)
        self.last[:] = [config]
        self.operations = swap(
            rotary=lambda positions, width, base: rotary(positions, width, self.last[0].rope_base),
            rms_norm=lambda x, gain, epsilon: rms_norm(x, gain, self.last[0].rms_epsilon),
            rms_norm_vjp=lambda dy, y, x, gain, epsilon: rms_norm_vjp(dy, y, x, gain, self.last[0].rms_epsilon),
        )(self.operations)


class TargetsOfTheShape(FaultyModel):
    """One-hot targets are filled at the first call of a shape."""

    def __init__(self, fault: Fault, config: Config, weights: Weights) -> None:
        super().__init__(fault, config, weights)
        self.kept: dict[tuple[int, ...], Array] = {}

    def checked(self, tokens: Any, targets: Any) -> tuple[Array, Array]:
        """The ids that came, and the targets that came first."""
        ids, wanted = super().checked(tokens, targets)
        return ids, self.kept.setdefault(ids.shape, wanted.copy())


class RolesByIds(FaultyModel):
    """The roles' gradients are kept by ids, also when parameters have changed since."""

    def __init__(self, fault: Fault, config: Config, weights: Weights) -> None:
        super().__init__(fault, config, weights)
        self.kept: dict[Any, tuple[Array, Array]] = {}

    def role_gradients(self, tokens: Any, targets: Any) -> tuple[Array, Array]:
        """The first answer to these ids."""
        known = key(tokens, targets)
        if known not in self.kept:
            self.kept[known] = super().role_gradients(tokens, targets)
        lookup, head = self.kept[known]
        return lookup.copy(), head.copy()


class StagesByIds(FaultyModel):
    """Stages are kept by ids, also when parameters have changed since."""

    def __init__(self, fault: Fault, config: Config, weights: Weights) -> None:
        super().__init__(fault, config, weights)
        self.kept: dict[Any, dict[str, Array]] = {}

    def stages(self, tokens: Any) -> dict[str, Array]:
        """The first answer to these ids."""
        known = key(tokens)
        if known not in self.kept:
            self.kept[known] = super().stages(tokens)
        return dict(self.kept[known])


class OneRoleBuffer(FaultyModel):
    """The roles' gradients are returned in the same memory each time."""

    buffers: tuple[Array, Array] | None = None

    def role_gradients(self, tokens: Any, targets: Any) -> tuple[Array, Array]:
        """The buffers."""
        found = super().role_gradients(tokens, targets)
        self.buffers = self.buffers or (found[0].copy(), found[1].copy())
        for buffer, value in zip(self.buffers, found, strict=True):
            buffer[...] = value
        return self.buffers


class RolesStep(FaultyModel):
    """Asking for the roles' gradients moves a gain."""

    def role_gradients(self, tokens: Any, targets: Any) -> tuple[Array, Array]:
        """Right, and then the gain moves."""
        found = super().role_gradients(tokens, targets)
        self.weights[FINAL_GAIN][...] *= 1 + 1e-9
        return found


class StagesWriteTokens(FaultyModel):
    """The recording pass clears the ids that it was given."""

    def stages(self, tokens: Any) -> dict[str, Array]:
        """Right, but the caller's ids are gone."""
        found = super().stages(tokens)
        tokens[...] = 0
        return found


class MeanOfLargestBatch(FaultyModel):
    """The mean is taken over a buffer of the largest batch seen."""

    most = 0

    def loss(self, tokens: Any, targets: Any) -> float:
        """The sum of this batch over the positions of the largest."""
        found, count = super().loss(tokens, targets), np.size(targets)
        self.most = max(self.most, count)
        return found * count / self.most


class RowsOfLongerBatch(FaultyModel):
    """The workspace of gradients is as long as the longest batch, and not cleared beyond the present one."""

    longest: tuple[int, dict[str, Array]] = (0, {})

    def gradients(self, tokens: Any, targets: Any) -> dict[str, Array]:
        """With what the rest of the longest batch left behind."""
        found, count = super().gradients(tokens, targets), np.size(targets)
        if count >= self.longest[0]:
            self.longest = count, {name: value.copy() for name, value in found.items()}
            return found
        left = 1 - count / self.longest[0]
        return {name: value + left * self.longest[1][name] for name, value in found.items()}


class AssignsLexicographic(FaultyModel):
    """Blocks are found by the order of their names as words."""

    def assign(self, name: str, value: Any) -> None:
        """To the block that comes there in the order of words."""
        if name.startswith("blocks."):
            _, block, rest = name.split(".", 2)
            name = f"blocks.{sorted(range(self.config.layers), key=str)[int(block)]}.{rest}"
        super().assign(name, value)


class AssignsTwoBlocks(FaultyModel):
    """Blocks beyond the second are assigned to a copy."""

    def assign(self, name: str, value: Any) -> None:
        """Checked, and dropped beyond the second block."""
        validation.validate_parameter(self.config, name, value)
        if not name.startswith("blocks.") or int(name.split(".")[1]) < 2:
            super().assign(name, value)


class SameArray(FaultyModel):
    """The last answer is kept, and given again when the very same array comes back."""

    last: tuple[Any, Array] | None = None

    def logits(self, tokens: Any) -> Array:
        """The last answer to this array, whatever it holds by now."""
        if self.last is None or self.last[0] is not tokens:
            self.last = tokens, super().logits(tokens)
        return self.last[1].copy()


class HandsOutMemo(FaultyModel):
    """Answers are kept by ids and handed out themselves: whoever writes into one changes the next."""

    def __init__(self, fault: Fault, config: Config, weights: Weights) -> None:
        super().__init__(fault, config, weights)
        self.kept: dict[Any, Array] = {}

    def logits(self, tokens: Any) -> Array:
        """The array that is kept."""
        known = key(tokens)
        if known not in self.kept:
            self.kept[known] = super().logits(tokens)
        return self.kept[known]

    def assign(self, name: str, value: Any) -> None:
        """Answers are of the old parameters."""
        super().assign(name, value)
        self.kept.clear()


class LossInLogits(FaultyModel):
    """The loss works in the memory of the logits that were returned last."""

    work: Array | None = None

    def logits(self, tokens: Any) -> Array:
        """Right, and kept as work space."""
        self.work = super().logits(tokens)
        return self.work

    def loss(self, tokens: Any, targets: Any) -> float:
        """Right, but written over the logits."""
        if self.work is not None:
            self.work -= np.max(self.work, axis=-1, keepdims=True)
        return super().loss(tokens, targets)


class RefreshedByValue(FaultyModel):
    """Query, key and value are one matrix, put together again when value is assigned."""

    def __init__(self, fault: Fault, config: Config, weights: Weights) -> None:
        super().__init__(fault, config, weights)
        self.handed = {name: value.copy() for name, value in weights.items()}

    def parameters(self) -> dict[str, Array]:
        """What was assigned."""
        return dict(self.handed)

    def assign(self, name: str, value: Any) -> None:
        """In force at once, but for query and key, which wait for value."""
        self.handed[name][...] = validation.validate_parameter(self.config, name, value)
        if name.endswith(("query.weight", "key.weight")):
            return
        waiting = [name.replace("value", role) for role in ("query", "key")] if name.endswith("value.weight") else []
        for each in (name, *waiting):
            self.weights[each][...] = self.handed[each]


FAULTS = (
    between(
        name="answer-to-the-same-array", breaks=("DET-1",), model=SameArray,
        sentence="the last answer is given again when the same array comes back, though it holds other ids by now",
    ),
    between(
        name="kept-answer-handed-out", breaks=("DET-2",), model=HandsOutMemo,
        sentence="answers are kept and handed out themselves: what a caller writes into one comes back",
    ),
    between(
        name="loss-in-the-logits", breaks=("DET-2",), model=LossInLogits,
        sentence="the loss works in the memory of the logits that were returned last",
    ),
    between(
        name="fused-copy-refreshed-by-value", breaks=("WGT-4",), model=RefreshedByValue,
        sentence="query, key and value are fused, and the copy is renewed only when value is assigned",
    ),
    between(
        name="rotary-tables-of-the-module", breaks=("DET-4",), model=TablesOfTheModule,
        sentence="rotary tables are kept in the module by their sizes, without the base that they were made for",
    ),
    between(
        name="configuration-of-the-module", breaks=("DET-4",), model=ConfigurationOfTheModule,
        sentence="base and epsilon are globals: the model that was built last rules all",
    ),
    between(
        name="targets-of-the-first-batch", breaks=("LOS-1", "GRA-1"), model=TargetsOfTheShape,
        sentence="one-hot targets are filled at the first call of a shape and kept",
    ),
    between(
        name="roles-cached-by-ids", breaks=("WGT-4",), model=RolesByIds,
        sentence="the gradients of the two roles are cached by ids and outlive the parameters that they came from",
    ),
    between(
        name="stages-cached-by-ids", breaks=("WGT-4",), model=StagesByIds,
        sentence="stages are cached by ids and outlive the parameters that they came from",
    ),
    between(
        name="one-buffer-for-the-roles", breaks=("DET-2",), model=OneRoleBuffer,
        sentence="the gradients of the two roles are returned in one buffer: the second call overwrites the first",
    ),
    between(
        name="roles-take-a-step", breaks=("WGT-5",), model=RolesStep,
        sentence="asking for the gradients of the two roles moves a gain",
    ),
    between(
        name="tokens-written-to-by-stages", breaks=("DET-3",), model=StagesWriteTokens,
        sentence="the recording pass clears the ids that it was given",
    ),
    between(
        name="loss-over-the-largest-batch", breaks=("LOS-1",), model=MeanOfLargestBatch,
        sentence="the mean is taken over a buffer that has the size of the largest batch so far",
    ),
    between(
        name="gradients-of-a-longer-batch", breaks=("GRA-1",), model=RowsOfLongerBatch,
        sentence="the workspace of the gradients keeps what a longer batch left beyond the present one",
    ),
    between(
        name="blocks-assigned-by-words", breaks=("WGT-4",), model=AssignsLexicographic,
        sentence="blocks are sorted as words when they are assigned, so that 10 comes before 2",
    ),
    between(
        name="third-block-not-assigned", breaks=("WGT-4",), model=AssignsTwoBlocks,
        sentence="blocks beyond the second are assigned to a copy",
    ),
)  # fmt: skip
