"""What a run is made of: from a command line, or from `[tool.decoderspec]` in the pyproject.toml of a project.

The table describes one implementation: it is read where none is named, and what is then given beside it overrides it.
"""

from __future__ import annotations

import ast
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from decoderspec.properties.subject import read_claims
from decoderspec.properties.xfails import Xfail, read_xfails
from decoderspec.spec.precision import DeclarationError
from decoderspec.spec.shown import shown

FILE = "pyproject.toml"


@dataclass(frozen=True)
class Settings:
    """An implementation by name, and how it is to be tested."""

    implementation: str = ""
    operation: str = ""  # it is one, or a block; empty for a whole decoder
    profile: str = "default"
    seed: int = 0
    precision: str | Mapping[str, str] | None = None  # instead of what it declares
    claims: tuple[str, ...] | None = None  # instead of what it claims
    required: tuple[str, ...] = ()
    xfails: tuple[Xfail, ...] = ()

    def changed(self, **given: Any) -> Settings:
        """The same with whatever is given; None is not given."""
        return replace(self, **{name: value for name, value in given.items() if value is not None})

    def overridden(self, words: Mapping[str, Any]) -> Settings:
        """The same under a command line's options, named as in the table: words, or None where one is not given.

        Raises `DeclarationError` or `XfailError`.
        """
        return self.changed(**{KEYS[key][0]: WORDS[key](value) for key, value in words.items() if value is not None})


def project_settings(folder: Path | None = None) -> Settings | None:
    """The table of the nearest pyproject.toml that has one, from the folder upward (the current one, unsaid).

    None where there is none. Raises `DeclarationError` for what cannot be read, `XfailError` for its xfail file.
    """
    here = (folder or Path.cwd()).resolve()
    for place in (here, *here.parents):
        table = _table(place / FILE)
        if table is not None:
            return _read(place / FILE, table)
    return None


def read_precision(text: str | None) -> str | dict[str, str] | None:
    """A word as it is; a recipe from a mapping as Python writes it, which is how a report prints one."""
    if text is None or not text.lstrip().startswith("{"):
        return text
    try:
        found = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise DeclarationError(
            f"precision {shown(text)} is neither a word nor a mapping such as {{'results': ..}}"
        ) from None
    return _precision(found)


def _table(path: Path) -> Any:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, PermissionError, IsADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as reason:
        raise DeclarationError(f"{path} cannot be read: {reason}") from None
    tool = document.get("tool")
    return tool.get("decoderspec") if isinstance(tool, dict) else None


def _read(path: Path, table: Any) -> Settings:
    if not isinstance(table, dict):
        raise DeclarationError(f"{path}: tool.decoderspec must be a table, got {shown(table)}")
    found: dict[str, Any] = {}
    for key, value in table.items():
        if key not in KEYS:
            raise DeclarationError(f"{path}: [tool.decoderspec] has no key {shown(key)}; allowed: {', '.join(KEYS)}")
        name, read = KEYS[key]
        try:
            found[name] = read(value)
        except DeclarationError as reason:
            raise DeclarationError(f"{path}: [tool.decoderspec] {key}: {reason}") from None
    if not found.get("implementation"):
        raise DeclarationError(f"{path}: [tool.decoderspec] names no implementation (module:attribute or file.py:..)")
    found["implementation"] = _below(path.parent, found["implementation"])
    if "xfails" in found:
        found["xfails"] = tuple(read_xfails(path.parent / found["xfails"]))
    return Settings(**found)


def _below(folder: Path, name: str) -> str:
    """The name with its file's path taken from that folder; a module's name stays."""
    place, colon, attribute = name.rpartition(":")
    return f"{os.path.join(folder, place)}{colon}{attribute}" if place.endswith(".py") else name


def _word(value: Any) -> str:
    if not isinstance(value, str):
        raise DeclarationError(f"must be a string, got {shown(value)}")
    return value


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise DeclarationError(f"must be a whole number, got {shown(value)}")
    return value


def _precision(value: Any) -> str | dict[str, str]:
    if isinstance(value, dict) and all(isinstance(each, str) for pair in value.items() for each in pair):
        return value
    if not isinstance(value, str):
        raise DeclarationError(f"must be a string or a table of strings, got {shown(value)}")
    return value


KEYS: dict[str, tuple[str, Callable[[Any], Any]]] = {  # key -> field, and what reads it
    "implementation": ("implementation", _word),
    "as": ("operation", _word),
    "profile": ("profile", _word),
    "seed": ("seed", _whole),
    "precision": ("precision", _precision),
    "claims": ("claims", read_claims),
    "require": ("required", read_claims),
    "xfails": ("xfails", _word),
}
WORDS: dict[str, Callable[[Any], Any]] = {  # what reads the same on a command line
    "as": str,
    "profile": str,
    "seed": int,
    "precision": read_precision,
    "claims": read_claims,
    "require": read_claims,
    "xfails": lambda file: tuple(read_xfails(Path(file))),
}
