"""The eight numbers that define a decoder. Constructing a `Config` never raises: bad ones must be able
to reach an implementation's `build`, so validation is a function of its own (`spec.validation`)."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    """Sizes and constants of one decoder, in the order in which they are documented and validated.

    Axis letters used everywhere: `B` batch, `T` query position, `S` key position, `h` heads, `w` head width,
    `d` model width, `f` feed-forward width, `V` vocabulary, `N` layers.
    """

    vocabulary_size: int  # V, at least 1
    model_width: int  # d, a multiple of h
    heads: int  # h, at least 1
    feed_forward_width: int  # f, at least 1
    layers: int  # N, at least 0
    max_positions: int  # the largest T, at least 1
    rope_base: float = 10000.0  # finite and positive
    rms_epsilon: float = 1e-6  # finite and not negative

    @property
    def head_width(self) -> int:
        """`w = d / h`, even in a valid configuration; meaningless in an invalid one."""
        return self.model_width // self.heads
