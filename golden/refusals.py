"""Whether an attempt is refused for the reason that it should be."""

from __future__ import annotations

from collections.abc import Callable

from decoderspec.spec.errors import SpecError


def refuses(code: str, attempt: Callable[[], object]) -> bool:
    """Whether the attempt fails with that code at the end of its chain."""
    try:
        attempt()
    except SpecError as failure:
        return failure.chain()[-1] == code
    return False
