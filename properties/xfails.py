"""Known failures: a file of the implementer's own, one entry each with a reason."""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decoderspec.spec.requirements import requirements
from decoderspec.spec.shown import cut, shown


class XfailError(ValueError):
    """An xfail file that cannot be read: what came and what is allowed."""

    def __init__(self, message: str) -> None:
        super().__init__(cut(message))


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

    def __str__(self) -> str:
        return f"{self.reason} ({self.link})" if self.link else self.reason


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
        raise XfailError(
            f"{path}: an entry has requirement and reason, and may have link and at_most; got {shown(entry)}"
        )
    for key, value in entry.items():
        if not isinstance(value, allowed[key]) or isinstance(value, bool) or not _is_ceiling(key, value):
            raise XfailError(f"{path}: {key} of {shown(entry['requirement'])} is {shown(value)}")
    if entry["requirement"] not in requirements():
        raise XfailError(f"{path}: there is no requirement {shown(entry['requirement'])}")
    return Xfail(**entry)


def _is_ceiling(key: str, value: Any) -> bool:
    """Whether a figure bounds anything: NaN does not, nor a number that no noise comes to."""
    return key != "at_most" or bool(0 <= value <= sys.float_info.max)


def known(xfails: Iterable[Xfail], names: Collection[str], worst_noise: float | None) -> Xfail | None:
    """The entry that foresaw a failure of these requirements, if one did."""
    return next((entry for entry in xfails if entry.requirement in names and entry.covers(worst_noise)), None)


def misfit(entry: Xfail, row: Mapping[str, Any] | None) -> str:
    """Why an entry does not describe what was seen; empty where it does.

    That a requirement held is reported and fails nothing: random examples that pass are no proof that it always does.
    """
    status = row["status"] if row else "skip"
    if row is None or status in ("skip", "not_judged"):
        return "it matches nothing: that requirement was not judged here"
    if status == "pass":
        return f"it holds, in {row['examples']} examples of this run"
    if status == "fail" and row["worst_noise"] is not None and entry.at_most is not None:
        return f"it fails by {float(row['worst_noise']):.3g} x noise, and at most {entry.at_most:g} is known"
    if status == "fail":
        return "it fails in another way, without a figure that the entry's ceiling could bound"
    return "" if status == "xfail" else "it could not be judged"
