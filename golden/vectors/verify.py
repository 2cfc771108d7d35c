"""Reading a folder of test vectors back: is it one, and does the oracle say the same of every number in it.

A folder that is none, whoever wrote it, is refused with `VectorError`; what differs is listed. Everything is computed
from the inputs that stand in the files, not from the cases of this version.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from decoderspec.golden.vectors import files as vectors
from decoderspec.golden.vectors.inputs import VectorError
from decoderspec.golden.vectors.results import Json
from decoderspec.golden.vectors.schema import KINDS, definitions, violations
from decoderspec.spec.requirements import requirements

MAX_BYTES = 5 * 2**20  # of one file
MAX_NUMBERS = 5000  # that one case hands in: the oracle takes one forward pass for each
LAST_DIGIT = 0.011  # noise and limits have three digits, and rounding may put the third one off by one


def read(folder: Path) -> tuple[dict[str, Json], dict[str, bytes]]:
    """The documents of a folder by file, the index first, and their bytes. Raises `VectorError`."""
    index, content = _document(folder / vectors.INDEX)
    if index["kind"] != "index":
        raise VectorError(f"{folder / vectors.INDEX} is a file of the kind {index['kind']}, not an index")
    documents, contents = {vectors.INDEX: index}, {vectors.INDEX: content}
    for entry in index["files"]:
        name = entry["file"]
        if name in documents:
            raise VectorError(f"{vectors.INDEX} lists {name} twice")
        documents[name], contents[name] = _document(folder / name)
        _require_usable(name, documents[name])
    return documents, contents


def _document(path: Path) -> tuple[Json, bytes]:
    """One file that fits the schema of its kind."""
    content = _bytes(path)
    try:
        found = json.loads(content, parse_constant=_refuse_constant, object_pairs_hook=_distinct)
    except (ValueError, RecursionError) as reason:
        raise VectorError(f"{path} is no JSON that can be read: {str(reason)[:200]}") from None
    if not isinstance(found, dict) or found.get("schema") != vectors.SCHEMA.name:
        raise VectorError(f"{path} is no file of vectors: its schema must be {vectors.SCHEMA.name!r}")
    if found.get("version") != vectors.VERSION:
        raise VectorError(f"{path} has version {str(found.get('version'))[:60]}; this reads {vectors.VERSION}")
    kind = found.get("kind")
    if kind not in KINDS:
        raise VectorError(f"{path} has the kind {str(kind)[:60]!r}; allowed: {', '.join(KINDS)}")
    for violation in islice(violations(found, definitions()[kind]), 1):
        raise VectorError(f"{path} does not fit {vectors.SCHEMA.name}: {violation}")
    return found, content


def _bytes(path: Path) -> bytes:
    try:
        if not path.is_file():
            raise VectorError(f"{path} is no file; name a folder that `decoderspec vectors FOLDER` has written")
        if path.stat().st_size > MAX_BYTES:
            raise VectorError(f"{path} has {path.stat().st_size} bytes; at most {MAX_BYTES} are read")
        return path.read_bytes()
    except (OSError, ValueError) as reason:
        if isinstance(reason, VectorError):
            raise
        raise VectorError(f"{path} cannot be read: {reason}") from None


def _refuse_constant(word: str) -> Any:
    raise ValueError(f"{word} is no number of JSON")


def _distinct(pairs: list[tuple[str, Any]]) -> Json:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice in one object")
    return found


def _require_usable(file: str, document: Json) -> None:
    """What a schema cannot say: unique ids, flags with a note, requirements that exist, a bearable size."""
    if document["kind"] == "index":
        raise VectorError(f"{file} is another index")
    seen: set[str] = set()
    for case in document["cases"]:
        if case["id"] in seen:
            raise VectorError(f"{file} has two cases {case['id']!r}")
        seen.add(case["id"])
        for words, known, what in (
            (case["flags"], document["notes"], "flag without a note"),
            (case["requirements"], requirements(), "requirement that there is not"),
        ):
            for word in set(words) - set(known):
                raise VectorError(f"{file}: {case['id']} has the {what}: {word}")
        if (numbers := _numbers(case)) > MAX_NUMBERS:
            raise VectorError(
                f"{file}: {case['id']} hands in {numbers} numbers; at most {MAX_NUMBERS} are computed with"
            )


def _numbers(value: Any) -> int:
    """How many numbers and words there are in the inputs."""
    if isinstance(value, dict):
        return sum(_numbers(item) for name, item in value.items() if name != "expected")
    return sum(map(_numbers, value)) if isinstance(value, list) else 1


# --- What differs ---


def differences(folder: Path, tell: Callable[[str], None] = lambda name: None) -> Iterator[str]:
    """Every number, word and digest that is not what the oracle, the specification or the files say.

    `tell` is called with the name of each file before it is computed. Raises `VectorError` for what is no vectors.
    """
    documents, contents = read(folder)
    index = documents.pop(vectors.INDEX)
    yield from _unlisted(folder, index)
    for entry in index["files"]:
        name, document = entry["file"], documents[entry["file"]]
        tell(name)
        yield from _different(entry["cases"], len(document["cases"]), f"{vectors.INDEX}: cases of {name}")
        if entry["sha256"] != (digest := vectors.digest(contents[name])):
            yield f"{vectors.INDEX}: sha256 of {name} is {entry['sha256']}, the file has {digest}"
        yield from _recomputed(name, document)
    shown = vectors.coverage(documents)
    yield from _different(index["requirements"], shown, f"{vectors.INDEX}: requirements")
    hidden = {name for name, cases in shown.items() if not cases}
    yield from _different(sorted(index["not_shown"]), sorted(hidden), f"{vectors.INDEX}: not_shown")


def _unlisted(folder: Path, index: Json) -> Iterator[str]:
    listed = {vectors.INDEX, vectors.SCHEMA.name, *(entry["file"] for entry in index["files"])}
    for path in sorted(folder.glob("*.json")):
        if path.name not in listed:
            yield f"{path.name} is not listed in {vectors.INDEX}"


def _recomputed(name: str, document: Json) -> Iterator[str]:
    try:
        fresh = vectors.completed(_without_expected(document))
    except VectorError as reason:
        raise VectorError(f"{name}: {reason}") from None
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError, RecursionError, MemoryError) as reason:
        raise VectorError(f"{name} cannot be computed: {type(reason).__name__}: {str(reason)[:200]}") from None
    for kept, made in zip(document["cases"], fresh["cases"], strict=True):
        yield from _different(kept, made, f"{name}: {kept['id']}")
    yield from _different(document.get("base"), fresh.get("base"), f"{name}: base")


def _without_expected(value: Any) -> Any:
    """The document with its inputs alone; the codes of an error are expected too."""
    if isinstance(value, dict):
        return {name: _without_expected(item) for name, item in value.items() if name not in ("expected", "codes")}
    return [_without_expected(item) for item in value] if isinstance(value, list) else value


def _different(kept: Any, fresh: Any, path: str) -> Iterator[str]:
    """Places where two values differ; numbers with a rounding may differ in their last digit."""
    if isinstance(kept, dict) and isinstance(fresh, dict):
        for name in [*kept, *(name for name in fresh if name not in kept)]:
            if name not in kept or name not in fresh:
                yield f"{path}.{name} is {'missing' if name not in kept else 'not expected'}"
            else:
                yield from _different(kept[name], fresh[name], f"{path}.{name}")
    elif isinstance(kept, list) and isinstance(fresh, list) and len(kept) == len(fresh):
        for place, pair in enumerate(zip(kept, fresh, strict=True)):
            yield from _different(*pair, f"{path}[{place}]")
    elif not _alike(kept, fresh):
        yield f"{path} is {_shown(kept)}, computed is {_shown(fresh)}"


def _alike(kept: Any, fresh: Any) -> bool:
    if isinstance(kept, float) or isinstance(fresh, float):
        return isinstance(kept, int | float) and math.isclose(kept, fresh, rel_tol=LAST_DIGIT)
    return bool(kept == fresh)


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
