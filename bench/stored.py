"""Figures as pytest-benchmark stores them, with what a comparison needs in `extra_info`; and the comparison."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decoderspec import __version__
from decoderspec.bench.engine import Figure, yardstick_name
from decoderspec.bench.verdict import Change, Interval, change, of_run
from decoderspec.properties.subject import Subject

KEY, SCHEMA = "decoderspec", 1


class StoredError(ValueError):
    """A file of figures that cannot be used: what it is, and what would do."""


@dataclass(frozen=True)
class Stored:
    """One figure of a file."""

    measure: str
    size: str
    sizes: Mapping[str, Any]  # every number that the work follows from
    logs: tuple[float, ...]  # of each process, call over yardstick
    tokens_per_second: float
    implementation: str
    precision: Any
    yardstick: str

    @property
    def key(self) -> tuple[str, str]:
        """What makes two figures the same question."""
        return self.measure, self.size

    @property
    def ratio(self) -> Interval:
        """To the yardstick."""
        return of_run(self.logs)


def extra_info(subject: Subject, figure: Figure) -> dict[str, Any]:
    """What goes beside the statistics of pytest-benchmark."""
    ratio, declared = of_run(figure.logs), subject.recipe.declared
    return {
        "schema": SCHEMA, "version": __version__, "implementation": subject.name,
        "precision": declared if isinstance(declared, str) else dict(declared),
        "measure": figure.measure, "size": figure.size.name, "sizes": figure.size.describe(),
        "yardstick": yardstick_name(subject), "processes": figure.logs,
        "ratio": ratio.middle, "interval": [ratio.low, ratio.high] if len(figure.processes) > 2 else None,
        "tokens_per_second": figure.tokens_per_second,
    }  # fmt: skip


def stored(info: Mapping[str, Any]) -> Stored:
    """The figure of an `extra_info`. Raises `KeyError` or `TypeError` for what is none."""
    return Stored(
        info["measure"], info["size"], dict(info["sizes"]), tuple(map(float, info["processes"])),
        float(info["tokens_per_second"]), info["implementation"], info["precision"], info["yardstick"],
    )  # fmt: skip


def read(path: Path) -> list[Stored]:
    """The figures of a file that `bench --save` or `pytest --benchmark-json` wrote. Raises `StoredError`."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as reason:
        raise StoredError(f"{path} cannot be read: {reason.strerror or reason}") from None
    except ValueError as reason:
        raise StoredError(f"{path} is not JSON: {reason}") from None
    benchmarks = document.get("benchmarks") if isinstance(document, dict) else None
    if not isinstance(benchmarks, list):
        raise StoredError(
            f"{path} is no file of pytest-benchmark; allowed: what `decoderspec bench X --save FILE` wrote"
        )
    infos = [each.get("extra_info", {}).get(KEY) for each in benchmarks if isinstance(each, dict)]
    found = [info for info in infos if isinstance(info, dict)]
    if not found:
        raise StoredError(f"{path} has no figures of decoderspec; write one with `decoderspec bench X --save FILE`")
    if others := {info.get("schema") for info in found} - {SCHEMA}:
        raise StoredError(
            f"{path} has schema {', '.join(map(repr, others))}, this is schema {SCHEMA}; measure it again"
        )
    try:
        return [stored(info) for info in found]
    except (KeyError, TypeError, ValueError) as reason:
        raise StoredError(f"{path} has a figure that cannot be read: {type(reason).__name__} {reason}") from None


@dataclass(frozen=True)
class Comparison:
    """What became of each figure of now, what could not be compared, and what else to know."""

    changes: Mapping[tuple[str, str], Change]
    not_compared: tuple[str, ...]
    remarks: tuple[str, ...]

    @property
    def verdicts(self) -> dict[str, int]:
        """How many figures there are of each verdict."""
        found = [each.verdict for each in self.changes.values()]
        return {verdict: found.count(verdict) for verdict in dict.fromkeys(found)}

    def exceeding(self, percent: float) -> list[tuple[str, str]]:
        """The figures that are certainly slower by more."""
        return [key for key, each in self.changes.items() if each.exceeds(percent)]


def compare(before: Sequence[Stored], now: Sequence[Stored]) -> Comparison:
    """Figure by figure; the risk of a false verdict is shared among all that are compared."""
    known = {figure.key: figure for figure in before}
    lost = [f"{' '.join(f.key)}: {why}" for f in now if (why := _incomparable(known.get(f.key), f))]
    lost += [f"{' '.join(key)}: not measured now" for key in known if key not in {f.key for f in now}]
    both = [figure for figure in now if not _incomparable(known.get(figure.key), figure)]
    changes = {f.key: change(known[f.key].logs, f.logs, len(both)) for f in both}
    return Comparison(changes, tuple(lost), tuple(_remarks(before, now)))


def _incomparable(before: Stored | None, now: Stored) -> str:
    """Why two figures cannot be compared; empty when they can."""
    if before is None:
        return "not in the file"
    if dict(before.sizes) != dict(now.sizes):
        return "another size under the same name in the file"
    if before.yardstick != now.yardstick:
        return f"measured by another yardstick in the file ({before.yardstick}, now {now.yardstick})"
    return ""


def _remarks(before: Sequence[Stored], now: Sequence[Stored]) -> list[str]:
    """Differences that a reader must know of, and that do not forbid comparing."""
    found = []
    for what in ("implementation", "precision"):
        then, today = ({json.dumps(getattr(f, what)) for f in figures} for figures in (before, now))
        if then != today:
            found.append(f"the file is of another {what}: {', '.join(sorted(then))}, now {', '.join(sorted(today))}")
    return found
