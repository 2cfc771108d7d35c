"""Several implementations, each in a process of its own, and one table of them all.

One that cannot be loaded, or that ends its process, has a row that says so, and the others are tested all the same.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from decoderspec.commands import guard
from decoderspec.properties.reports.document import verdict
from decoderspec.properties.reports.scoreboard import Entry, heading, line, to_csv

WORST_FIRST = (2, 1, 0)  # exit statuses: what could not be tested, what does not conform, what does


def run(names: Sequence[str], options: Sequence[str], further: Sequence[str], sheet: Path | None) -> int:
    """Test each with the same options, print a line as each is done, write the CSV; the worst exit status."""
    width = max(map(len, names))
    print(heading(width))
    entries, statuses = [], []
    for name in names:
        entry, status = tested(name, options, further)
        entries.append(entry)
        statuses.append(status)
        print(line(entry, width), flush=True)
    if sheet is not None:
        sheet.write_text(to_csv(entries), encoding="utf-8")
    conform = statuses.count(0)
    print(f"\n{conform} of {len(names)} conform in all that they claim, or that is required")
    return next(status for status in WORST_FIRST if status in statuses)


def tested(name: str, options: Sequence[str], further: Sequence[str]) -> tuple[Entry, int]:
    """One implementation in a process of its own: its report, or why there is none; and the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        command = [sys.executable, "-m", "decoderspec.commands.main", "check", name, f"--json={file}", *options]
        command += ["--", *further] if further else []
        environment = {key: value for key, value in os.environ.items() if key != guard.SENTINEL}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace", check=False)
        error = done.stderr.strip().rpartition("\n")[2].removeprefix("decoderspec: ")
        if not file.exists():
            return Entry(name, error=error or f"ended with status {done.returncode} and no report"), 2
        document = json.loads(file.read_text(encoding="utf-8"))
    return Entry(name, document, verdict(document) if done.returncode == 2 else ""), done.returncode
