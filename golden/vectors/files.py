"""Test vectors for people who want no Python: a folder of JSON files, one for each operation and four of the whole.

    index.json             the files with their digests, and which case shows which requirement
    rms_norm.json, ..      one operation each: inputs, output, vector-Jacobian product
    model.json             calls of small decoders: logits, stages, loss, gradients, state
    initialization.json    SplitMix64 and the parameters drawn from it
    errors.json            what must be refused, and what must be taken
    vectors.schema.json    the format

The same version writes the same bytes. `verify` reads a folder back and computes everything in it again.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from decoderspec import __version__
from decoderspec.golden.vectors import calls, errors, operations, seeds
from decoderspec.golden.vectors.kernels import CASES as KERNEL_CASES
from decoderspec.golden.vectors.model import forward_cases
from decoderspec.golden.vectors.notes import NOTES
from decoderspec.golden.vectors.operations import SIGNATURES
from decoderspec.golden.vectors.results import DIGITS, PRECISIONS, Json
from decoderspec.golden.vectors.training import training_cases
from decoderspec.spec.requirements import requirements

VERSION = 1
SCHEMA = Path(__file__).with_name("vectors.schema.json")
INDEX = "index.json"
MODEL, ERRORS, SEEDS = "model.json", "errors.json", "initialization.json"

NOT_SHOWN = {  # requirement -> why no fixed case can show it
    "VAL-2": "each stage is judged on the implementation's own stages before it, so its truth follows from them;"
    " the stages of the vectors are judged from the tokens on, and the operations on inputs of their own",
    "BIG-1": "a model of real width holds more numbers than can be kept, and needs the oracle on samples of its stages",
}
JUDGEMENT = {
    "inputs": "Inputs are exact in every precision that a case names: round nothing. rope_base and rms_epsilon are"
    " the float64 numbers that are written. Arrays are row-major.",
    "error": "The error of a number is (got - float64(value)) - rest: rest is what the nearest float64 of the value"
    " in decimal leaves over. Compute it in float64, whatever got was computed in.",
    "noise": "noise[P] is the root mean square error of a right implementation that declares precision P, for each"
    " number. Its ratio is |error| / noise[P], or 0 where the error is 0: where the noise is 0 only the exact value"
    " is right. What is not finite is wrong.",
    "worst": "No ratio of a result may exceed its worst.",
    "mean": "The root mean square of all ratios of a result may not exceed its mean[P].",
    "slopes": "A slope is the sum of a gradient's numbers times 1, -1, 1, -1, .. in row-major order, added in"
    " float64; `all` is the sum of the slopes of all parameters.",
    "again": "A call with again is expected to answer as the call of that place did.",
    "same": "The flat elements [from, to) must have the bits of the case or call that is named.",
    "state": "Make the calls of a case in order on one model, keep what they return, and judge at the end. Call an"
    " operation twice: the second answer has the bits of the first. Tokens, targets and input arrays stay unchanged."
    " `parameters` must return the names in order, and the values that were given or assigned, to the bit.",
    "refused": "A refusal has one of the categories. After each one, the base tokens of errors.json still give the"
    " base logits, to the bit as before.",
}


def header(kind: str, flags: Iterable[str]) -> Json:
    """What every file begins with, with notes of the flags that it uses."""
    return {
        "schema": SCHEMA.name,
        "version": VERSION,
        "generator": f"decoderspec {__version__}",
        "kind": kind,
        "digits": DIGITS,
        "precisions": list(PRECISIONS),
        "judgement": JUDGEMENT,
        "notes": {flag: note.to_json() for flag, note in NOTES.items() if flag in set(flags)},
    }


# --- The documents ---


def given() -> dict[str, Json]:
    """Every file but the index, before anything is computed: header and cases."""
    kernels = {f"{name}.json": _operation(name) for name in KERNEL_CASES}
    return kernels | {MODEL: _document("model", [case.to_json() for case in (*forward_cases(), *training_cases())]),
                      SEEDS: _document("initialization", seeds.cases()),
                      ERRORS: _errors()}  # fmt: skip


def _operation(name: str) -> Json:
    cases = [case.to_json(name) for case in KERNEL_CASES[name]()]
    return _document("operation", cases, operation=name, inputs=list(SIGNATURES[name]))


def _errors() -> Json:
    return _document("errors", errors.cases(), base=errors.base())


def _document(kind: str, cases: list[Json], **more: Any) -> Json:
    flags = [flag for case in cases for flag in case["flags"]]
    return {**header(kind, flags), **more, "cases": cases}


def completed(document: Json) -> Json:
    """The document with everything that is expected, computed from its inputs alone. Raises `VectorError`."""
    cases = document["cases"]
    match document["kind"]:
        case "operation":
            made = [operations.completed(document["operation"], case) for case in cases]
        case "model":
            by_id = {case["id"]: case for case in cases}
            made = [calls.completed(case, by_id) for case in cases]
        case "initialization":
            made = [seeds.completed(case) for case in cases]
        case _:
            base = errors.completed_base(document["base"])
            made = [errors.completed(case, base) for case in cases]
            document = {**document, "base": base}
    return {**document, "cases": made}


def documents() -> dict[str, bytes]:
    """Every file by its name, as it is written."""
    contents = {name: completed(document) for name, document in given().items()}
    files = {name: written(content) for name, content in contents.items()}
    return {INDEX: written(index(contents, files)), **files, SCHEMA.name: SCHEMA.read_bytes()}


def index(contents: Mapping[str, Json], files: Mapping[str, bytes]) -> Json:
    """Digests, and the cases by the requirements that they show."""
    head = {name: value for name, value in header("index", ()).items() if name != "notes"}
    listed = [
        {"file": name, "cases": len(content["cases"]), "sha256": digest(files[name])}
        for name, content in contents.items()
    ]
    return {**head, "files": listed, "requirements": coverage(contents), "not_shown": NOT_SHOWN}


def digest(content: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def coverage(contents: Mapping[str, Json]) -> dict[str, list[str]]:
    """`file#case` by requirement, in the order of the text; those that nothing shows have an empty list."""
    found: dict[str, list[str]] = {name: [] for name in requirements()}
    for file, content in contents.items():
        for case in content["cases"]:
            for name in case["requirements"]:
                found.setdefault(name, []).append(f"{file}#{case['id']}")
    return found


def written(content: Json) -> bytes:
    """JSON with every list of plain values on one line."""
    text = re.sub(r"\[[^\[\]{}]*\]", _on_one_line, json.dumps(content, indent=1, allow_nan=False))
    return (text + "\n").encode()


def _on_one_line(found: re.Match[str]) -> str:
    return re.sub(r"\n *", "", found[0])


# --- The folder ---


def write(folder: Path, files: Mapping[str, bytes]) -> None:
    """Put the files there all at once. Raises `FileExistsError` where the folder holds something else."""
    folder = folder.resolve()
    require_free(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as place:
        new = Path(place) / "new"
        new.mkdir()
        for name, content in files.items():
            (new / name).write_bytes(content)
        if folder.exists():
            folder.rename(Path(place) / "old")
        new.rename(folder)


def require_free(folder: Path) -> None:
    """Raise `FileExistsError` unless there is nothing there, or vectors and nothing beside them."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise FileExistsError(f"{folder} is a file; name a folder")
    names = {INDEX, SCHEMA.name, MODEL, SEEDS, ERRORS, *(f"{name}.json" for name in KERNEL_CASES)}
    others = sorted(path.name for path in folder.iterdir() if path.name not in names)
    if others or (any(folder.iterdir()) and not _are_vectors(folder)):
        held = others[0] if others else "an index of something else"
        raise FileExistsError(f"{folder} holds {held}, which are no vectors; name another folder or empty it")


def _are_vectors(folder: Path) -> bool:
    try:
        found = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and found.get("schema") == SCHEMA.name
