"""What a property says when something is wrong: a finding is an assertion with structure, in plain words."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import decoderspec
from decoderspec.reference.limits import Comparison

HOUSE = tuple(folder.resolve() for folder in Path(decoderspec.__file__).parent.iterdir() if folder.is_dir())


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
    own = [frame for frame in frames if not _is_ours(Path(frame.filename).resolve())]
    return "\n".join(f'  File "{f.filename}", line {f.lineno}, in {f.name}: {f.line}' for f in own[-limit:])


def _is_ours(path: Path) -> bool:
    """Whether a file is the suite's, or of a library: not what the user would change."""
    return any(path.is_relative_to(folder) for folder in HOUSE) or "site-packages" in path.parts
