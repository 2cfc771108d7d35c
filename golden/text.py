"""How the documents write values: six digits, comma-joined without blanks, `true` and `false`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

ROUNDS_TO_ZERO = 0.5e-6


def number(value: float) -> str:
    """Six digits after the point."""
    return f"{value:.6f}"


def clean_number(value: float) -> str:
    """Six digits, but never `-0.000000`."""
    return number(0.0 if abs(value) < ROUNDS_TO_ZERO else value)


def vector(values: Iterable[float]) -> str:
    """Numbers between brackets."""
    return f"[{','.join(number(value) for value in values)}]"


def clean_vector(values: Iterable[float]) -> str:
    """Numbers between brackets, none of them `-0.000000`."""
    return f"[{','.join(clean_number(value) for value in values)}]"


def shape(axes: Sequence[int]) -> str:
    """Axes between brackets: `[1,3,4]`."""
    return f"[{','.join(str(axis) for axis in axes)}]"


def spaced_shape(axes: Sequence[int]) -> str:
    """Axes as Rust's `{:?}` shows them: `[1, 3, 4]`."""
    return f"[{', '.join(str(axis) for axis in axes)}]"


def boolean(value: bool) -> str:
    """`true` or `false`."""
    return "true" if value else "false"


def fields(**values: object) -> str:
    """`name:value` pairs joined by blanks, booleans in their words."""
    return " ".join(f"{name}:{word(value)}" for name, value in values.items())


def piped(label: str, **values: object) -> str:
    """`LABEL|name=value|name=value`: one line of the block's trace."""
    return "|".join([label, *_pairs(values)])


def spaced(label: str, **values: object) -> str:
    """`label name=value name=value`: one line of the model's trace."""
    return " ".join([label, *_pairs(values)])


def _pairs(values: Mapping[str, object]) -> list[str]:
    return [f"{name}={word(value)}" for name, value in values.items()]


def word(value: object) -> str:
    """A value as the documents write it where nothing more is known of it."""
    return boolean(value) if isinstance(value, bool) else str(value)
