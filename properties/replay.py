"""Replay files: a failing case with its arrays and the expected logits as JSON, readable without Python.

Numbers are hexadecimal floats, exact in every language that reads them. `replay.schema.json` describes the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from decoderspec import __version__
from decoderspec.properties.cases import Array, Case, Stored
from decoderspec.properties.truth import Truth
from decoderspec.spec.config import Config
from decoderspec.spec.errors import SpecError
from decoderspec.spec.parameters import iterate_parameters
from decoderspec.spec.shown import cut, shown
from decoderspec.spec.validation import validate_config

FORMAT, VERSION = "decoderspec-case", 1


class ReplayError(ValueError):
    """A replay file that cannot be read: what came and what is allowed."""


def write(path: Path, truth: Truth, requirements: Sequence[str], declared: Any) -> Path:
    """Save the case; the folder is made where it is missing."""
    tokens, targets = truth.batch
    document = {
        "format": FORMAT,
        "version": VERSION,
        "decoderspec": __version__,
        "requirements": list(requirements),
        "note": truth.case.note,
        "precision": declared,
        "config": asdict(truth.case.config),
        "tokens": tokens.tolist(),
        "targets": targets.tolist(),
        "parameters": {name: _packed(value) for name, value in truth.parameters.items()},
        "expected": {"logits": _packed(truth.logits.high), "noise": _packed(truth.units["logits"])},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return path


def read(path: Path) -> Case:
    """The case of a replay file. Raises `ReplayError`."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as reason:
        raise ReplayError(f"{path} cannot be read: {reason}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ReplayError(f"{path} is not a case: its format must be {FORMAT!r}")
    if document.get("version") != VERSION:
        raise ReplayError(f"{path} has version {shown(document.get('version'))}; this reads version {VERSION}")
    try:
        return _case(document)
    except (SpecError, LookupError, TypeError, ValueError, AttributeError, OverflowError) as reason:
        raise ReplayError(cut(f"{path}: {type(reason).__name__}: {reason}")) from None


def _case(document: Mapping[str, Any]) -> Case:
    config = validate_config(Config(**document["config"]))
    tokens, targets = (_ids(document, name, config) for name in ("tokens", "targets"))
    if tokens.shape != targets.shape or tokens.shape[1] > config.max_positions:
        raise ValueError(f"tokens are {tokens.shape}, targets {targets.shape}, positions {config.max_positions}")
    given = document["parameters"]
    parameters = {name: _unpacked(given[name], shape) for name, shape in iterate_parameters(config)}
    if len(parameters) != len(given):
        raise ValueError(f"{min(set(given) - set(parameters))!r} is not a parameter of the configuration")
    stored = Stored(parameters, tokens, targets)
    batch, length = tokens.shape
    return Case(config, batch, length, note=str(document.get("note", "")), stored=stored)


def _ids(document: Mapping[str, Any], name: str, config: Config) -> Array:
    ids = np.array(document[name])
    whole = ids.ndim == 2 and ids.dtype.kind == "i" and all(type(n) is int for row in document[name] for n in row)
    if not whole or not ids.size or ids.min() < 0 or ids.max() >= config.vocabulary_size:
        raise ValueError(f"{name} must be rows of ids in 0..{config.vocabulary_size - 1}")
    return ids.astype(np.int64)


def _packed(value: Array) -> dict[str, Any]:
    return {"shape": list(value.shape), "values": [float(number).hex() for number in value.ravel()]}


def _unpacked(entry: Mapping[str, Any], shape: tuple[int, ...]) -> Array:
    numbers = entry["values"]
    if not isinstance(numbers, list):
        raise ValueError(f"values must be a list of hexadecimal floats, got {type(numbers).__name__}")
    values = np.array([float.fromhex(number) for number in numbers])
    if tuple(entry["shape"]) != shape or values.size != int(np.prod(shape)) or not np.isfinite(values).all():
        raise ValueError(f"expected {shape} finite values, got shape {entry['shape']} and {values.size} values")
    return values.reshape(shape)
