"""What a property says when something is wrong: a finding is an assertion with structure, in plain words."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from decoderspec.reference.limits import Comparison

HOUSE = Path(__file__).resolve().parent.parent


@dataclass
class Finding(AssertionError):
    """A requirement that does not hold: what was seen, at which stage, how far off, on which case."""

    message: str
    stage: str = ""
    comparison: Comparison | None = None
    details: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.message


class Absent(Exception):
    """A capability that the implementation does not offer; says what to add."""


class NotJudged(Exception):
    """A requirement that cannot be judged here; says why."""


def user_frames(error: BaseException, limit: int = 3) -> str:
    """The last frames of a traceback that lie in the user's own files, one a line."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        f for f in frames if not Path(f.filename).resolve().is_relative_to(HOUSE) and "site-packages" not in f.filename
    ]
    return "\n".join(f'  File "{f.filename}", line {f.lineno}, in {f.name}: {f.line}' for f in own[-limit:])
