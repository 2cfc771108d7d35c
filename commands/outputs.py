"""The files that a report can be written to, each by a pure function of the JSON document."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from decoderspec.properties.reports import badge, junit, markdown, page, scoreboard

RENDERERS: dict[str, tuple[str, Callable[[Mapping[str, Any]], str]]] = {
    "json": ("the report as data", lambda document: json.dumps(document, indent=2) + "\n"),
    "html": ("the report as one page that needs no network", page.render),
    "markdown": ("the report for a pull request or a CI summary", markdown.render),
    "junit": ("a test case per requirement, for a CI server", junit.render),
    "badge": ("the contracts, in the endpoint format of shields", badge.render),
    "csv": ("one row per implementation", scoreboard.render),
}


def add_options(parser: argparse.ArgumentParser, *names: str) -> None:
    """An option for each of the files, or for those named."""
    for name in names or RENDERERS:
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help=f"write {RENDERERS[name][0]} there")


def given(options: argparse.Namespace) -> dict[str, Path]:
    """The files asked for, whole paths, for an implementation may change the folder. Raises `OSError`.

    What cannot be written, or would be written twice, is refused before the work.
    """
    found = {name: path.resolve() for name in RENDERERS if (path := getattr(options, name, None)) is not None}
    for path in found.values():
        require_writable(path)
        if list(found.values()).count(path) > 1:
            raise OSError(f"{path} is given for two reports: give each a file of its own")
    return found


def write(document: Mapping[str, Any], files: Mapping[str, Path]) -> None:
    """Write every file."""
    for name, path in files.items():
        path.write_text(RENDERERS[name][1](document), encoding="utf-8")


def require_writable(path: Path) -> None:
    """Raise `OSError` now for a file that could not be written after all the work."""
    folder = path.resolve().parent
    if path.is_dir() or not folder.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise OSError(f"{path} cannot be written")
