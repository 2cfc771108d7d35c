"""The declared layout: one affine map from canonical parameters to theirs, with its inverse and its adjoint.

A declaration is data, so that an adapter holds no permutation code. What the map can do: reorder the query
and key features of each head (`rotation`), transpose matrices (`matrices`), shift gains (`gain_offset`), join
matrices (`fused`), stack the blocks (`stacked`) and rename (`names`). The table is `[V, d]` in every layout,
`out_in` included: as a lookup it holds one row per id, and as the head it is `[out, in]` already. Nothing
here judges values or shapes: what does not fit the configuration passes through as it is, so that bad input
reaches whoever must refuse it.
"""

import numbers
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoderspec.spec.config import Config
from decoderspec.spec.parameters import BLOCK_PARAMETERS, FINAL_GAIN, TABLE, block_shapes, parameter_shapes
from decoderspec.spec.precision import DeclarationError
from decoderspec.spec.shown import shown
from decoderspec.spec.stages import suffix

Array = NDArray[Any]

BLOCK = "blocks.{n}."
PATTERNS = (TABLE, *(BLOCK + name for name in BLOCK_PARAMETERS), FINAL_GAIN)
MATRICES = tuple(BLOCK + name for name in BLOCK_PARAMETERS if name.endswith(".weight"))
ROTATED = (BLOCK + "attention.query.weight", BLOCK + "attention.key.weight")
ROTATED_STAGES = ("attention.query", "attention.key", "attention.rotated_query", "attention.rotated_key")
WORDS = {"rotation": ("adjacent", "half_split"), "matrices": ("in_out", "out_in")}
KEYS = (*WORDS, "gain_offset", "fused", "stacked", "names")


class LayoutError(ValueError):
    """Tensors that the declared layout cannot put together or take apart."""


@dataclass(frozen=True)
class Slot:
    """One tensor of theirs, or one for each block: its name and the canonical patterns side by side in it."""

    theirs: str  # with `{n}` where there is one for each block
    parts: tuple[str, ...]

    @property
    def of_block(self) -> bool:
        """Whether it belongs to the blocks, rather than being the table or the final gain."""
        return self.parts[0].startswith(BLOCK)


@dataclass(frozen=True)
class Layout:
    """How an implementation stores the parameters; made by `layout`, which validates."""

    rotation: str = "adjacent"
    matrices: str = "in_out"
    gain_offset: float = 0.0
    stacked: bool = False
    slots: tuple[Slot, ...] = tuple(Slot(pattern, (pattern,)) for pattern in PATTERNS)

    def apply(self, config: Config, parameters: Mapping[str, Array]) -> dict[str, Array]:
        """Their tensors from canonical ones, fresh and contiguous, of the same dtype and in canonical order.

        Unknown names pass through. Raises `LayoutError` when parts that share a tensor do not fit together.
        """
        pieces: dict[str, dict[tuple[int, int], Array]] = {}  # their name -> (block, part) -> tensor
        for name, value in parameters.items():
            theirs, block, part = self._place(name)
            pieces.setdefault(theirs, {})[block, part] = self._to_theirs(config, name, np.asarray(value))
        tensors = {theirs: self._join(theirs, parts) for theirs, parts in pieces.items()}
        return self._with_empty_stacks(config, tensors) if self.stacked and config.layers == 0 else tensors

    def invert(self, config: Config, theirs: Mapping[str, Array]) -> dict[str, Array]:
        """Canonical parameters from their tensors: `invert(apply(x)) == x` but for an offset's rounding.

        Unknown names pass through and missing ones stay missing, so that both can be reported. The order
        becomes canonical where the declaration renames, joins or stacks, and stays theirs otherwise. Raises
        `LayoutError` when a tensor cannot be taken apart.
        """
        return self._from_theirs(config, theirs, self.gain_offset)

    def adjoint(self, config: Config, theirs: Mapping[str, Array]) -> dict[str, Array]:
        """Canonical gradients from theirs: `<apply(x) - apply(0), y> = <x, adjoint(y)>`.

        The linear part only moves scalars, so its adjoint is the inverse without the offset.
        """
        return self._from_theirs(config, theirs, 0.0)

    def stages(self, config: Config, stages: Mapping[str, Array]) -> dict[str, Array]:
        """Canonical stages from theirs: queries and keys `[B, h, T, w]`, rotated or not, in pairs."""
        return {
            name: _fresh(self._reorder(config, value, heads=1, back=True) if suffix(name) in ROTATED_STAGES else value)
            for name, value in stages.items()
        }

    def rename(self, config: Config) -> dict[str, str]:
        """Their name of each canonical parameter that is a tensor of its own there, in canonical order."""
        return {name: self.holder(name) for name in parameter_shapes(config) if self._is_alone(name)}

    def holder(self, name: str) -> str:
        """The name of their tensor that holds a canonical parameter, alone or with others."""
        return self._place(name)[0]

    @cached_property
    def _slot_of(self) -> dict[str, tuple[Slot, int]]:
        """Slot and place within it of each canonical pattern."""
        return {pattern: (slot, part) for slot in self.slots for part, pattern in enumerate(slot.parts)}

    def _is_alone(self, name: str) -> bool:
        slot, _ = self._slot_of[_split_name(name)[0]]
        return len(slot.parts) == 1 and not (self.stacked and slot.of_block)

    def _place(self, name: str) -> tuple[str, int, int]:
        """Their name, block and part of a canonical parameter; an unknown name is its own place."""
        pattern, block = _split_name(name)
        if pattern not in self._slot_of:
            return name, 0, 0
        slot, part = self._slot_of[pattern]
        return slot.theirs.replace("{n}", str(block)), block, part

    def _to_theirs(self, config: Config, name: str, value: Array) -> Array:
        pattern, _ = _split_name(name)
        if pattern in ROTATED:
            value = self._reorder(config, value, config.heads)
        return _shifted(pattern, self._transpose(pattern, value), -self.gain_offset)

    def _to_canonical(self, config: Config, name: str, value: Array, offset: float) -> Array:
        pattern, _ = _split_name(name)
        value = _shifted(pattern, self._transpose(pattern, value), offset)
        if pattern in ROTATED:
            value = self._reorder(config, value, config.heads, back=True)
        return _fresh(value)

    def _transpose(self, pattern: str, value: Array) -> Array:
        return value.T if self.matrices == "out_in" and pattern in MATRICES and value.ndim == 2 else value

    def _reorder(self, config: Config, value: Array, heads: int, back: bool = False) -> Array:
        """The last axis, `heads` heads of width w side by side, from adjacent to declared pairs or back."""
        if self.rotation == "adjacent" or not _has_pairs(config):
            return value
        if value.shape[-1:] != (heads * config.head_width,):
            return value
        order = half_split_order(heads, config.head_width)
        return value[..., np.argsort(order) if back else order]

    def _join(self, theirs: str, parts: Mapping[tuple[int, int], Array]) -> Array:
        """One tensor of theirs: parts along the output axis, stacked blocks along a new leading axis."""
        axis = -1 if self.matrices == "in_out" else 0
        blocks: dict[int, list[Array]] = {}
        for (block, _), value in sorted(parts.items(), key=lambda item: item[0]):
            blocks.setdefault(block, []).append(value)
        try:
            tensors = [np.concatenate(row, axis) if len(row) > 1 else row[0] for row in blocks.values()]
            return _fresh(np.stack(tensors) if theirs in self._stacks else tensors[0])
        except ValueError as reason:
            shapes = [value.shape for value in parts.values()]
            raise LayoutError(f"{theirs} cannot be put together from shapes {shapes}: {reason}") from reason

    @cached_property
    def _stacks(self) -> frozenset[str]:
        return frozenset(slot.theirs for slot in self.slots if self.stacked and slot.of_block)

    def _with_empty_stacks(self, config: Config, tensors: Mapping[str, Array]) -> dict[str, Array]:
        """Stacks of no block are tensors too, `[0, ...]`, in the place that they would have with blocks."""
        dtype = next((value.dtype for value in tensors.values()), np.dtype(np.float64))
        stacks = {slot.theirs: np.empty((0, *self._shape(config, slot)), dtype) for slot in self.slots if slot.of_block}
        order = [slot.theirs for slot in self.slots] + list(tensors)
        return {name: value for name in order for value in [stacks.get(name, tensors.get(name))] if value is not None}

    def _shape(self, config: Config, slot: Slot) -> tuple[int, ...]:
        shapes = [block_shapes(config)[part.removeprefix(BLOCK)] for part in slot.parts]
        joined = (*shapes[0][:-1], sum(shape[-1] for shape in shapes))
        return joined[::-1] if self.matrices == "out_in" else joined

    def _from_theirs(self, config: Config, theirs: Mapping[str, Array], offset: float) -> dict[str, Array]:
        found: dict[str, Array] = {}
        for their_name, tensor in theirs.items():
            for name, value in self._take_apart(config, their_name, np.asarray(tensor)):
                found[name] = self._to_canonical(config, name, value, offset)
        if not self.stacked and self.slots == Layout.slots:
            return found  # the names are canonical, so the order can be judged too
        return {name: found[name] for name in dict.fromkeys([*parameter_shapes(config), *found]) if name in found}

    def _take_apart(self, config: Config, theirs: str, tensor: Array) -> Iterator[tuple[str, Array]]:
        """Yield what one tensor of theirs holds, by canonical names, still transposed and permuted."""
        slot, block = _slots_by_name(self.slots, config.layers).get(theirs, (None, 0))
        if slot is None:
            yield theirs, tensor
        elif theirs not in self._stacks:
            yield from self._split_parts(config, slot, block, tensor)
        elif tensor.ndim == 0:
            raise LayoutError(f"{theirs} must have a leading axis of {config.layers} blocks, got a scalar")
        else:
            for row, value in enumerate(tensor):
                yield from self._split_parts(config, slot, row, value)

    def _split_parts(self, config: Config, slot: Slot, block: int, value: Array) -> Iterator[tuple[str, Array]]:
        names = [pattern.replace("{n}", str(block)) for pattern in slot.parts]
        if len(names) == 1:
            yield names[0], value
            return
        if value.shape != self._shape(config, slot):
            wanted = self._shape(config, slot)
            raise LayoutError(f"{slot.theirs} of block {block} must have shape {wanted}, got {value.shape}")
        ends = np.cumsum([block_shapes(config)[part.removeprefix(BLOCK)][1] for part in slot.parts])
        yield from zip(names, np.split(value, ends[:-1], -1 if self.matrices == "in_out" else 0), strict=True)


@lru_cache(maxsize=64)
def _slots_by_name(slots: tuple[Slot, ...], layers: int) -> dict[str, tuple[Slot, int]]:
    """Slot and block of each of their names."""
    return {
        slot.theirs.replace("{n}", str(block)): (slot, block)
        for slot in slots
        for block in (range(layers) if "{n}" in slot.theirs else (0,))
    }


def half_split_order(heads: int, width: int) -> NDArray[np.intp]:
    """Where each half-split feature lies among adjacent ones: pairs `(2i, 2i+1)` become `(i, i + w/2)`."""
    features: NDArray[np.intp] = np.arange(heads * width).reshape(heads, width // 2, 2)
    return features.swapaxes(1, 2).ravel()


def _has_pairs(config: Config) -> bool:
    """Whether heads are so that pairs exist: a bad configuration is for the implementation to refuse."""
    sizes = (config.model_width, config.heads)
    if not all(isinstance(size, numbers.Integral) and not isinstance(size, bool) and size > 0 for size in sizes):
        return False
    return config.model_width % (2 * config.heads) == 0


def _split_name(name: str) -> tuple[str, int]:
    """Pattern and block of a name: `blocks.3.ffn.up.weight` gives `blocks.{n}.ffn.up.weight` and 3."""
    prefix, _, rest = name.partition(".")
    block, _, inner = rest.partition(".")
    # A number in any other spelling ("03") is an unknown name.
    if prefix == "blocks" and block.isdecimal() and str(int(block)) == block and inner in BLOCK_PARAMETERS:
        return BLOCK + inner, int(block)
    return name, 0


def _shifted(pattern: str, value: Array, offset: float) -> Array:
    is_gain = pattern in PATTERNS and pattern.endswith(".gain") and value.dtype.kind in "fiuV"
    return np.asarray(value + offset) if is_gain and offset else value


def _fresh(value: Array) -> Array:
    return np.array(value, order="C")


def layout(declaration: Mapping[str, object]) -> Layout:
    """The layout that an implementation declares; an empty declaration is the canonical one.

    Keys, all optional: `rotation` (`adjacent`, `half_split`), `matrices` (`in_out`, `out_in`), `gain_offset`
    (the number subtracted from each stored gain), `fused` (their pattern -> canonical patterns, joined along
    the output axis), `stacked` (true: the N tensors of one kind along a new leading axis, under the canonical
    pattern without its `{n}.`), `names` (canonical pattern -> their pattern). Raises `DeclarationError`.
    """
    if not isinstance(declaration, Mapping):
        raise DeclarationError(f"layout must be a mapping, got {type(declaration).__name__}")
    for key in declaration:
        if key not in KEYS:
            raise DeclarationError(f"layout has no key {shown(key)}; allowed are {', '.join(KEYS)}")
    stacked = declaration.get("stacked", False)
    if not isinstance(stacked, bool):
        raise DeclarationError(f"layout stacked must be True or False, got {shown(stacked)}")
    return Layout(
        rotation=_word(declaration, "rotation"),
        matrices=_word(declaration, "matrices"),
        gain_offset=_offset(declaration.get("gain_offset", 0.0)),
        stacked=stacked,
        slots=_slots(_fused(declaration.get("fused", {})), _names(declaration.get("names", {})), stacked),
    )


def _word(declaration: Mapping[str, object], key: str) -> str:
    allowed = WORDS[key]
    word = declaration.get(key, allowed[0])
    if not isinstance(word, str) or word not in allowed:
        raise DeclarationError(f"layout {key} must be {' or '.join(allowed)}, got {shown(word)}")
    return word


def _offset(value: object) -> float:
    # Neither NaN nor an integer beyond every float is within the largest one.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= sys.float_info.max:
        raise DeclarationError(f"layout gain_offset must be a finite number, got {shown(value)}")
    return float(value)


def _fused(declared: object) -> dict[str, tuple[str, ...]]:
    """Their pattern -> canonical patterns; each matrix in one tensor at most, all with one input axis."""
    if not isinstance(declared, Mapping):
        raise DeclarationError(f"layout fused must map their names to lists of ours, got {shown(declared)}")
    taken: set[str] = set()
    for theirs, parts in declared.items():
        if not isinstance(parts, Sequence) or isinstance(parts, str) or len(parts) < 2:
            raise DeclarationError(
                f"layout fused {shown(theirs)} must list two or more canonical names, got {shown(parts)}"
            )
        for part in parts:
            if part not in MATRICES:
                raise DeclarationError(
                    f"layout fused {shown(theirs)} holds {shown(part)}; allowed are {', '.join(MATRICES)}"
                )
            if part in taken:
                raise DeclarationError(f"layout fused holds {shown(part)} twice")
            if part.endswith("ffn.down.weight"):
                raise DeclarationError(
                    f"layout fused {shown(theirs)}: {shown(part)} shares its input axis with no other matrix"
                )
            taken.add(part)
        _require_word(theirs, parts)
    return {theirs: tuple(parts) for theirs, parts in declared.items()}


def _names(declared: object) -> dict[str, str]:
    if not isinstance(declared, Mapping):
        raise DeclarationError(f"layout names must map our names to theirs, got {shown(declared)}")
    for pattern in declared:
        if pattern not in PATTERNS:
            raise DeclarationError(f"layout names has no parameter {shown(pattern)}; allowed are {', '.join(PATTERNS)}")
        _require_word(declared[pattern], (pattern,))
    return dict(declared)


def _require_word(theirs: object, parts: Sequence[str]) -> None:
    if not isinstance(theirs, str) or not theirs:
        raise DeclarationError(f"layout needs a name for {', '.join(parts)}, got {shown(theirs)}")


def _slots(fused: Mapping[str, tuple[str, ...]], names: Mapping[str, str], stacked: bool) -> tuple[Slot, ...]:
    """Their tensors in canonical order, a fused one in the place of its earliest part."""
    home = {part: Slot(theirs, parts) for theirs, parts in fused.items() for part in parts}
    for pattern in names:
        if pattern in home:
            raise DeclarationError(f"layout names {shown(pattern)}, which is fused into {shown(home[pattern].theirs)}")
    for pattern in PATTERNS:
        default = pattern.replace("{n}.", "") if stacked else pattern
        home.setdefault(pattern, Slot(names.get(pattern, default), (pattern,)))
    slots = tuple(dict.fromkeys(home[pattern] for pattern in PATTERNS))
    for slot in slots:
        _check_name(slot, stacked)
    repeated = {slot.theirs for slot in slots if [other.theirs for other in slots].count(slot.theirs) > 1}
    if repeated:
        raise DeclarationError(
            f"layout gives {shown(min(repeated))} to more than one tensor; use fused to join tensors"
        )
    return slots


def _check_name(slot: Slot, stacked: bool) -> None:
    if ("{n}" in slot.theirs) == (slot.of_block and not stacked):
        return
    rule = "needs {n}, the number of the block" if slot.of_block and not stacked else "cannot have {n}: there is one"
    raise DeclarationError(f"layout name {shown(slot.theirs)} of {', '.join(slot.parts)} {rule}")
