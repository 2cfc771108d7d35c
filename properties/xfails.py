"""Known failures: a file of the implementer's own, one entry each with a reason."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decoderspec.spec.requirements import requirements


class XfailError(ValueError):
    """An xfail file that cannot be read: what came and what is allowed."""


@dataclass(frozen=True)
class Xfail:
    """One known failure; for a value, `at_most` is the noise up to which it is the known one."""

    requirement: str
    reason: str
    link: str = ""
    at_most: float | None = None

    def covers(self, worst_noise: float | None) -> bool:
        """Whether a failure is this known one, rather than a worse."""
        return self.at_most is None or (worst_noise is not None and worst_noise <= self.at_most)


def read_xfails(path: Path) -> list[Xfail]:
    """The entries of a JSON list or of TOML `[[xfail]]` tables. Raises `XfailError`."""
    try:
        text = path.read_text(encoding="utf-8")
        document = tomllib.loads(text).get("xfail") if path.suffix == ".toml" else json.loads(text)
    except (OSError, ValueError, RecursionError) as reason:
        raise XfailError(f"{path} cannot be read: {reason}") from None
    if not isinstance(document, list):
        raise XfailError(f"{path} must hold a list of entries (JSON), or [[xfail]] tables (TOML)")
    return [_entry(path, entry) for entry in document]


def _entry(path: Path, entry: Any) -> Xfail:
    allowed: dict[str, Any] = {"requirement": str, "reason": str, "link": str, "at_most": (int, float)}
    if not isinstance(entry, Mapping) or not {"requirement", "reason"} <= set(entry) <= set(allowed):
        raise XfailError(f"{path}: an entry has requirement and reason, and may have link and at_most; got {entry!r}")
    for key, value in entry.items():
        if not isinstance(value, allowed[key]) or isinstance(value, bool):
            raise XfailError(f"{path}: {key} of {entry['requirement']} is {value!r}")
    if entry["requirement"] not in requirements():
        raise XfailError(f"{path}: there is no requirement {entry['requirement']!r}")
    return Xfail(**entry)


def unused(xfails: list[Xfail], rows: Mapping[str, Mapping[str, Any]]) -> list[Xfail]:
    """Entries whose requirement holds, fails beyond the entry's ceiling, or was not asked."""
    return [entry for entry in xfails if rows.get(entry.requirement, {"status": "not run"})["status"] != "xfail"]
