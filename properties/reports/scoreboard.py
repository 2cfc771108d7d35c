"""Several implementations side by side: one row each, for a terminal and as CSV for a class or a spreadsheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from decoderspec.properties.printable import one_line
from decoderspec.properties.reports.document import Document, figure, nearest
from decoderspec.spec.protocol import CONTRACTS

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet would compute
COLUMNS = (
    "name", "implementation", "verdict", *CONTRACTS, "passed", "failed", "known", "not_tested", "fails", "missing",
    "worst_noise", "allowed", "worst", "seconds", "seed", "error",
)  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """One implementation as it was named, with its report, or why there is none."""

    name: str
    document: Document | None = None
    error: str = ""

    def cells(self) -> dict[str, Any]:
        """The values of a row by column."""
        if self.document is None:
            return dict.fromkeys(COLUMNS, "") | {"name": self.name, "verdict": "none", "error": self.error}
        found = self.document["requirements"]
        worst = nearest(found)
        count = {status: [key for key, row in found.items() if row["status"] == status] for status in STATUSES}
        return {
            "name": self.name,
            "implementation": self.document["implementation"],
            "verdict": self.document["verdict"],
            **self.document["contracts"],
            "passed": len(count["pass"]),
            "failed": len(count["fail"]) + len(count["error"]),
            "known": len(count["xfail"]),
            "not_tested": len(count["skip"]) + len(count["not_judged"]),
            "fails": " ".join(count["fail"] + count["error"]),
            "missing": " ".join(hole.partition(":")[0] for holes in self.document["holes"].values() for hole in holes),
            "worst_noise": f"{figure(worst[1]['worst_noise']):.6g}" if worst else "",
            "allowed": f"{figure(worst[1]['allowed']):.6g}" if worst else "",
            "worst": worst[0] if worst else "",
            "seconds": self.document["seconds"]["total"],
            "seed": self.document["seed"],
            "error": self.error,
        }


STATUSES = ("pass", "fail", "error", "xfail", "skip", "not_judged")


def to_csv(entries: Sequence[Entry]) -> str:
    """A row for each, in the order given."""
    sheet = io.StringIO()
    writer = csv.DictWriter(sheet, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _cell(value) for key, value in entry.cells().items()} for entry in entries)
    return sheet.getvalue()


def render(document: Document) -> str:
    """The CSV of a single report."""
    return to_csv([Entry(document["implementation"], document)])


def heading(width: int) -> str:
    """The first line of the table in a terminal."""
    return _line(width, {"name": "", **{name: name for name in CONTRACTS}, "passed": "hold", "failed": "fail"})


def line(entry: Entry, width: int) -> str:
    """One implementation's line; `width` is that of the longest name."""
    cells = entry.cells()
    if entry.document is None:
        return f"  {one_line(entry.name):{width}s}  {one_line(entry.error)}"
    return f"{_line(width, cells)}{f'  {one_line(entry.error)}' if entry.error else ''}"


def _line(width: int, cells: Mapping[str, Any]) -> str:
    contracts = "  ".join(f"{_loud(str(cells[name])):9s}" for name in CONTRACTS)
    return f"  {one_line(str(cells['name'])):{width}s}  {contracts}  {cells['passed']!s:>4s}  {cells['failed']!s:>4s}"


def _loud(verdict: str) -> str:
    return "FAILS" if verdict == "fails" else verdict


def _cell(value: Any) -> Any:
    """What a spreadsheet shows and does not compute."""
    if not isinstance(value, str):
        return value
    text = one_line(value)
    return f"'{text}" if text.startswith(FORMULA) else text
