"""The four documents of the two chapters, computed afresh or as kept beside this file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from decoderspec.golden import block_documents, model_documents
from decoderspec.golden.block_evidence import block_evidence
from decoderspec.golden.model_evidence import model_evidence
from decoderspec.reference.operations import OPERATIONS, Operations

KINDS = ("report", "trace")
SUBJECTS = ("block", "model")
DOCUMENTS = tuple((kind, subject) for subject in SUBJECTS for kind in KINDS)
FOLDER = Path(__file__).parent


def document(kind: str, subject: str, operations: Operations = OPERATIONS) -> str:
    """The document as the reference computes it now, or as it would with other operations."""
    compose: dict[tuple[str, str], Callable[[Operations], list[str]]] = {
        ("report", "block"): lambda ops: block_documents.report(block_evidence(ops)),
        ("trace", "block"): lambda ops: block_documents.trace(block_evidence(ops)),
        ("report", "model"): lambda ops: model_documents.report(model_evidence(ops)),
        ("trace", "model"): lambda ops: model_documents.trace(model_evidence(ops)),
    }
    return "\n".join(compose[kind, subject](operations)) + "\n"


def path(kind: str, subject: str) -> Path:
    """Where the document is kept."""
    return FOLDER / f"{subject}_{kind}.txt"


def kept(kind: str, subject: str) -> str:
    """The document as it is kept, byte for byte."""
    return path(kind, subject).read_bytes().decode()


def rewrite() -> list[Path]:
    """Compute and keep all four documents; returns the files that changed."""
    changed = []
    for kind, subject in DOCUMENTS:
        fresh, target = document(kind, subject).encode(), path(kind, subject)
        if not target.exists() or target.read_bytes() != fresh:
            target.write_bytes(fresh)
            changed.append(target)
    return changed
