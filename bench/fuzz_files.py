"""The surfaces of the fuzz that are files: saved cases, vectors, known failures, settings and dumps."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from decoderspec.bench.fuzz_changes import changed_json, changed_toml, changed_word, damaged
from decoderspec.bench.fuzz_surfaces import CASE, CONFIG, MEBIBYTE, Attempt, Make, Surface
from decoderspec.bench.fuzz_values import changed_array
from decoderspec.golden.vectors import files as vectors
from decoderspec.golden.vectors.inputs import VectorError
from decoderspec.golden.vectors.verify import differences
from decoderspec.properties import replay
from decoderspec.properties.cases import Array, arrays, draw_parameters
from decoderspec.properties.dump import DumpError, read_dump
from decoderspec.properties.printable import printable
from decoderspec.properties.settings import project_settings, read_precision
from decoderspec.properties.truth import Truth
from decoderspec.properties.xfails import XfailError, misfit, read_xfails
from decoderspec.reference import Reference
from decoderspec.spec.precision import DeclarationError, recipe


def _replays(folder: Path) -> Make:
    path, rule = folder / "case.json", recipe("float64")
    replay.write(path, Truth(CASE, draw_parameters(CASE, rule), rule), ["VAL-1"], "float64")
    document = json.loads(path.read_text(encoding="utf-8"))

    def call() -> None:
        case = replay.read(path)
        case.describe()
        draw_parameters(case, rule)

    return lambda rng, count: _of_file(path, changed_json(rng, document, count), call)


def _vectors(folder: Path) -> Make:
    """Folders of one small file and its index, either of them changed."""
    cases = {"embed": 1, "silu": 1, "nll": 1, "attend": 1, "initialization": 1, "errors": 3, "model": 1}
    given, kept = vectors.given(), []
    for name, count in cases.items():
        whole = given[f"{name}.json"]
        small = sorted(whole["cases"], key=lambda case: len(json.dumps(case)))[:count]
        content = vectors.completed({**whole, "cases": small})
        files = {f"{name}.json": vectors.written(content)}
        index = vectors.index({f"{name}.json": content}, files)
        index["not_shown"] = {each: "left out here" for each, shown in index["requirements"].items() if not shown}
        kept.append({**files, vectors.INDEX: vectors.written(index)})

    def make(rng: Random, count: int) -> Attempt:
        files = rng.choice(kept)
        changed = rng.choice([*files, *files, next(iter(files))])
        data = changed_json(rng, json.loads(files[changed]), count) if count else files[changed]
        for path in folder.iterdir():
            path.unlink()
        for name, content in (files | {changed: data}).items():
            (folder / name).write_bytes(content)
        return Attempt(lambda: _listed(differences(folder), count), f"{changed}: {data.decode(errors='replace')}")

    return make


def _listed(found: Any, count: int) -> None:
    """What differs, which every changed document may, and the valid one may not."""
    if [*found] and not count:
        raise AssertionError("a valid folder differs from what is computed")


XFAILS = [
    {"requirement": "VAL-1", "reason": "norms in float32", "link": "https://example.org/1", "at_most": 40.5},
    {"requirement": "INP-1", "reason": "ids wrap around"},
]
XFAILS_TOML = """[[xfail]]
requirement = "VAL-1"
reason = "norms in float32"
link = "https://example.org/1"
at_most = 40

[[xfail]]
requirement = "INP-1"
reason = "ids wrap around"
"""
ROWS: tuple[Mapping[str, Any] | None, ...] = (
    None, {"status": "pass", "examples": 3}, {"status": "fail", "worst_noise": 3.0, "examples": 3},
    {"status": "fail", "worst_noise": None, "examples": 3}, {"status": "xfail", "worst_noise": 3.0, "examples": 3},
)  # fmt: skip


def _xfails(folder: Path) -> Make:
    def make(rng: Random, count: int) -> Attempt:
        toml = rng.random() < 0.5
        path = folder / ("known.toml" if toml else "known.json")
        data = changed_toml(rng, XFAILS_TOML, count) if toml else changed_json(rng, XFAILS, count)

        def call() -> None:
            for entry in read_xfails(path):
                printable(str(entry)).encode()
                for row in ROWS:
                    misfit(entry, row)
                    entry.covers(row["worst_noise"] if row and row["status"] == "fail" else None)

        return _of_file(path, data, call)

    return make


SETTINGS = """[project]
name = "theirs"

[tool.decoderspec]
implementation = "mine.py:Adapter"
as = "rms_norm"
profile = "quick"
seed = 3
claims = ["forward", "training"]
require = "forward"
xfails = "known.json"

[tool.decoderspec.precision]
results = "float32"
tables = "float64"
"""


def _settings(folder: Path) -> Make:
    (folder / "known.json").write_text(json.dumps(XFAILS), encoding="utf-8")

    def make(rng: Random, count: int) -> Attempt:
        data = changed_toml(rng, SETTINGS, count)
        if rng.random() < 0.2:
            word = "{'results': 'float32', 'tables': 'float64'}"
            for _ in range(count):
                word = changed_word(rng, word)
            return Attempt(lambda: recipe(read_precision(word) or "float64"), word)
        return _of_file(folder / "pyproject.toml", data, lambda: project_settings(folder))

    return make


def _of_file(path: Path, data: bytes, call: Callable[[], object]) -> Attempt:
    path.write_bytes(data)
    return Attempt(call, data.decode(errors="replace"))


def _dumps(folder: Path) -> Make:
    model = Reference().build(CASE.config, draw_parameters(CASE, recipe("float64")))
    tokens, targets = arrays(CASE)
    gradients = {f"gradient.{name}": value for name, value in model.gradients(tokens, targets).items()}
    known = {
        "tokens": tokens, "targets": targets, "loss": np.asarray(model.loss(tokens, targets)), **model.stages(tokens),
        **model.parameters(), **gradients,
    }  # fmt: skip
    texts = {"config": json.dumps(CONFIG), "precision": "float64"}

    def make(rng: Random, count: int) -> Attempt:
        found: dict[str, Any] = dict(known)
        written = rng.choice((_npz, _safetensors))
        words = dict(texts)
        for _ in range(count if rng.random() < 0.6 else 0):
            _change_dump(rng, found, words)
            count -= 1
        data = written(rng, found, words, count)
        path = folder / ("dump.npz" if written is _npz else "dump.safetensors")
        return _of_file(path, data, lambda: read_dump(path).describe())

    return make


def _change_dump(rng: Random, found: dict[str, Any], words: dict[str, str]) -> None:
    name = rng.choice(list(found))
    match rng.choice(("value", "value", "value", "remove", "rename", "text")):
        case "value":
            found[name] = _saved(changed_array(rng, found[name]))
        case "remove":
            del found[name]
        case "rename":
            found[changed_word(rng, name)] = found.pop(name)
        case _:
            name = rng.choice(list(words))
            known = words[name]
            changed = changed_json(rng, CONFIG, 1).decode(errors="replace") if name == "config" else ""
            words[name] = changed or changed_word(rng, known)


def _saved(value: Any) -> Array:
    """What can be saved of it: objects too, which whoever reads them must not unpickle."""
    try:
        made = np.asarray(value)
    except Exception:
        made = np.array(None)
    if made.dtype.hasobject:
        return np.array(["an object"], object)
    return made if made.nbytes < MEBIBYTE else np.zeros((3, 0))


def _npz(rng: Random, found: Mapping[str, Any], words: Mapping[str, str], count: int) -> bytes:
    stream = io.BytesIO()
    safe = {name.replace("\x00", "").encode(errors="replace").decode()[:200]: value for name, value in found.items()}
    np.savez(stream, **safe | {name: np.array(word) for name, word in words.items()})
    data = stream.getvalue()
    for _ in range(count):
        data = damaged(rng, data)
    return data


def _safetensors(rng: Random, found: Mapping[str, Any], words: Mapping[str, str], count: int) -> bytes:
    codes = {"<f8": "F64", "<f4": "F32", "<f2": "F16", "<i8": "I64", "<i4": "I32"}
    header: dict[str, Any] = {"__metadata__": dict(words)}
    body = b""
    for name, value in found.items():
        data = b"" if value.dtype.hasobject else value.tobytes()
        place = [len(body), len(body) + len(data)]
        header[name] = {"dtype": codes.get(value.dtype.str, "F8"), "shape": list(value.shape), "data_offsets": place}
        body += data
    text = changed_json(rng, header, count)
    length = len(text) + (rng.choice((0, 0, 0, 1, -1, 2**40, 2**63)) if count else 0)
    return max(0, length).to_bytes(8, "little") + text + body


FILES = (
    Surface("replay", _replays, (replay.ReplayError,)),
    Surface("vectors", _vectors, (VectorError,), share=0.1),
    Surface("xfails", _xfails, (XfailError,)),
    Surface("settings", _settings, (DeclarationError, XfailError)),
    Surface("dumps", _dumps, (DumpError,), room=1024 * MEBIBYTE),
)
