"""The surfaces of the fuzz but for the command line: what is valid for each, and whoever must take or refuse it.

`prepare` is called once in an empty folder and gives a function that makes an input: a valid document, changed in so
many places, and the call that hands it to our public entry.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np

from decoderspec.adapters import encodings, messages
from decoderspec.bench.fuzz_changes import changed_json, changed_toml, changed_word, damaged
from decoderspec.bench.fuzz_values import changed_array, changed_scalar
from decoderspec.golden import vectors
from decoderspec.golden.vectors_inputs import VectorError
from decoderspec.golden.vectors_verify import differences
from decoderspec.properties import replay
from decoderspec.properties.cases import Array, Case, arrays, draw_parameters
from decoderspec.properties.dump import DumpError, read_dump
from decoderspec.properties.loading import LoadError, load
from decoderspec.properties.operation import load_operation
from decoderspec.properties.printable import printable
from decoderspec.properties.settings import project_settings, read_precision
from decoderspec.properties.strategies import check_limits, smallest_case
from decoderspec.properties.subject import read_subject
from decoderspec.properties.truth import Truth
from decoderspec.properties.xfails import XfailError, misfit, read_xfails
from decoderspec.reference import Reference
from decoderspec.spec.config import Config
from decoderspec.spec.errors import SpecError
from decoderspec.spec.precision import DeclarationError, recipe
from decoderspec.spec.validation import validate_config, validate_seed

CASE = Case(Config(5, 4, 2, 3, 1, 4), batch=2, tokens=3, seed=1)
CONFIG = asdict(CASE.config)
MEBIBYTE = 2**20


@dataclass(frozen=True)
class Attempt:
    """One input: the call that hands it over, how it is shown, and what the call may do."""

    call: Callable[[], object]
    shown: str
    outputs: tuple[Path, ...] = ()
    sources: tuple[Path, ...] = ()
    programs: bool = False


Make = Callable[[Random, int], Attempt]


@dataclass(frozen=True)
class Surface:
    """What takes a kind of document: its refusals, how many bytes it may allocate, its part of all inputs."""

    name: str
    prepare: Callable[[Path], Make]
    refusals: tuple[type[Exception], ...]
    room: int = 256 * MEBIBYTE
    share: float = 1.0  # less where an input takes long


# --- Values that a caller hands over ---


def _configurations(_: Path) -> Make:
    known = [CASE.config, Config(1, 2, 1, 1, 0, 1, 3.0, 0.0), Config(np.int64(7), 8, 4, 1, 2, 9, 1e6, np.float64(0.1))]  # type: ignore[arg-type]

    def make(rng: Random, count: int) -> Attempt:
        values = vars(rng.choice(known)).copy()
        seed: Any = rng.randrange(2**64)
        for _ in range(count):
            if rng.random() < 0.05:
                seed = changed_scalar(rng, seed)
            else:
                name = rng.choice(list(values))
                values[name] = changed_scalar(rng, values[name])
        return Attempt(lambda: (validate_config(Config(**values)), validate_seed(seed)), _shown((values, seed)))

    return make


def _parameters(_: Path) -> Make:
    known = draw_parameters(CASE, recipe("float64"))

    def make(rng: Random, count: int) -> Attempt:
        given: dict[Any, Any] = dict(known)
        for _ in range(count):
            name = rng.choice(list(given))
            match rng.choice(("value",) * 8 + ("missing", "unknown", "renamed")):
                case "value":
                    given[name] = changed_array(rng, known.get(name, np.ones(4)))
                case "missing":
                    del given[name]
                case "unknown":
                    given[rng.choice((changed_word(rng, str(name)), None, 3, ("a",)))] = np.ones(4)
                case _:
                    given[changed_word(rng, str(name))] = given.pop(name)

        def call() -> None:
            model = Reference().build(CASE.config, given)
            with np.errstate(over="ignore", invalid="ignore"):  # NumPy warns of what overflows, as it should
                model.logits(arrays(CASE)[0])

        return Attempt(call, _shown(given))

    return make


def _assigned(_: Path) -> Make:
    model = Reference().initialize(CASE.config, 0)
    known = model.parameters()

    def make(rng: Random, count: int) -> Attempt:
        name = rng.choice(list(known))
        value: Any = np.full(known[name].shape, 0.5)
        if count:
            name, value = (changed_word(rng, name), value) if rng.random() < 0.2 else (name, changed_array(rng, value))
        return Attempt(lambda: model.assign(name, value), _shown((name, value)))

    return make


def _batches(name: str) -> Callable[[Path], Make]:
    """Tokens, or tokens and targets."""
    model = Reference().build(CASE.config, draw_parameters(CASE, recipe("float64")))

    def make(rng: Random, count: int) -> Attempt:
        given: list[Any] = [*arrays(CASE)][: 1 if name == "tokens" else 2]
        for _ in range(min(count, len(given))):
            place = rng.randrange(len(given))
            given[place] = changed_array(rng, arrays(CASE)[place])
        call = model.logits if name == "tokens" else rng.choice((model.loss, model.gradients, model.role_gradients))
        return Attempt(lambda: call(*given), _shown(given))

    return lambda _: make


def _declarations(_: Path) -> Make:
    known: dict[str, Any] = {
        "name": "mine", "precision": {"results": "float32", "tables": "float64"}, "claims": ["forward", "training"],
        "emulates": ["batch"], "layout": {"rotation": "half_split", "matrices": "out_in", "gain_offset": 1.0,
        "stacked": True, "fused": {"qkv": [f"blocks.{{n}}.attention.{part}.weight" for part in ("query", "key")]},
        "names": {"token_embedding.weight": "wte"}}, "limits": {"head_width": [4, 6], "configurations": 3,
        "model_width": {"multiple_of": 4, "max": 64}, "layers": {"min": 1}, "rope_base": [10.0]},
    }  # fmt: skip

    def make(rng: Random, count: int) -> Attempt:
        data = changed_json(rng, known, count)
        try:
            words = json.loads(data)
        except (ValueError, RecursionError):
            words = known | {rng.choice(list(known)): changed_scalar(rng, known["name"])}
        given = SimpleNamespace(build=None, **words) if _is_names(words) else SimpleNamespace(limits=words)

        def call() -> None:
            read = read_subject(given)
            check_limits(read.limits)
            case = smallest_case(read.limits)
            read.layout.invert(case.config, read.theirs(case.config, draw_parameters(case, read.recipe)))

        return Attempt(call, _shown(words))

    return make


def _is_names(words: Any) -> bool:
    return isinstance(words, dict) and all(isinstance(name, str) and name != "build" for name in words)


# --- Files ---


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


# --- Messages and names ---

STARTED = {
    "id": 1, "protocol": 1, "name": "mine", "encoding": "hex", "offers": ["logits", "loss", "classify"],
    "claims": ["forward"], "precision.results": "float32", "layout.rotation": "half_split",
    "layout.fused.qk{n}": ["blocks.{n}.attention.query.weight", "blocks.{n}.attention.key.weight"],
    "limits.heads": [1, 2], "limits.model_width.max": 64,
}  # fmt: skip
REPLY = {"id": 2, "arrays": ["logits float64 2 2", "a int64 2"], "data": "0x1p+0 nan -inf 0x0p+0 1 -2"}
BASE64 = {"id": 2, "arrays": ["a float64 1", "b bfloat16 1"], "data": "AAAAAAAA8D8= gD8="}
REFUSAL = {"id": 3, "error": "out of range", "category": "vocabulary"}
REQUEST = {"id": 4, "call": "logits", "model": 1, "arrays": ["tokens int64 1 2"], "data": "0 1"}


def _messages(_: Path) -> Make:
    kinds: dict[str, tuple[dict[str, Any], Callable[[Any], None]]] = {
        "start": (STARTED, messages.check_started), "hex": (REPLY, messages.check_reply),
        "base64": (BASE64, messages.check_reply), "refusal": (REFUSAL, messages.check_reply),
        "request": (REQUEST, messages.check_request),
    }  # fmt: skip

    def make(rng: Random, count: int) -> Attempt:
        kind = rng.choice(list(kinds))
        document, check = kinds[kind]
        line = changed_json(rng, document, count) + b"\n"

        def call() -> None:
            message = messages.parse(line)
            check(message)
            if kind == "start":
                declared = messages.declarations(message)
                read_subject(SimpleNamespace(name=message["name"], build=None, **declared))
            described = encodings.parse_descriptions(message.get("arrays", []), 1000)
            if kind in ("hex", "base64"):
                encodings.from_text(described, message.get("data", ""), kind)

        return Attempt(call, line.decode(errors="replace"))

    return make


NAMES = """
class Adapter:
    name = "mine"
    def build(self, config, parameters):
        return self

def logits(config, parameters, tokens):
    return tokens

def rms_norm(x, gain, epsilon):
    return x

def factory():
    return Adapter()

class Answering:
    def __getattr__(self, name):
        raise RuntimeError(name)

instance, number, answering, words = Adapter(), 3, Answering(), ["logits"]
"""
NAMED = (
    "mine.py:Adapter", "mine.py:logits", "mine.py:factory", "mine.py:instance", "./mine.py:logits",
    "{folder}/mine.py:Adapter", "decoderspec.reference:Reference", "decoderspec.reference.model:Reference",
)  # fmt: skip
BROKEN = (
    "command:/no-such-folder/decoder --flag", "command:", "broken.py:Adapter", "leaving.py:Adapter", "mine.py:number",
    "mine.py:words", "mine.py:answering", "syntax.py:x", "binary.py:x", "no_such_module:x", "mine.py", ":x", "mine.py:",
)  # fmt: skip


def _names(folder: Path) -> Make:
    (folder / "mine.py").write_text(NAMES, encoding="utf-8")
    (folder / "broken.py").write_text("raise ValueError('x' * 10**6)\n", encoding="utf-8")
    (folder / "leaving.py").write_text("import sys; sys.exit(0)\n", encoding="utf-8")
    (folder / "syntax.py").write_text("def\n", encoding="utf-8")
    (folder / "binary.py").write_bytes(bytes(range(256)))

    def make(rng: Random, count: int) -> Attempt:
        operation = rng.random() < 0.2
        name = "mine.py:rms_norm" if operation else rng.choice(NAMED if not count or rng.random() < 0.7 else BROKEN)
        name, word = name.format(folder=folder), "rms_norm"
        for _ in range(count):
            if operation and rng.random() < 0.5:
                word = changed_word(rng, word)
            else:
                name = changed_word(rng, name)
        call = (lambda: load_operation(name, word, recipe("float64"))) if operation else (lambda: load(name))
        return Attempt(call, f"{name!r} {word!r}", sources=(Path("/"),), programs=True)

    return make


def _shown(value: Any) -> str:
    try:
        return repr(value)
    except ValueError:  # an integer of thousands of digits
        return str(type(value))


SURFACES = (
    Surface("configuration", _configurations, (SpecError,), share=2.0),
    Surface("parameters", _parameters, (SpecError,)),
    Surface("assignment", _assigned, (SpecError,), share=2.0),
    Surface("tokens", _batches("tokens"), (SpecError,), share=2.0),
    Surface("targets", _batches("targets"), (SpecError,), share=2.0),
    Surface("declarations", _declarations, (DeclarationError,)),
    Surface("replay", _replays, (replay.ReplayError,)),
    Surface("vectors", _vectors, (VectorError,), share=0.1),
    Surface("xfails", _xfails, (XfailError,)),
    Surface("settings", _settings, (DeclarationError, XfailError)),
    Surface("dumps", _dumps, (DumpError,), room=1024 * MEBIBYTE),
    Surface("messages", _messages, (messages.MessageError, encodings.EncodingError, DeclarationError), share=2.0),
    Surface("names", _names, (LoadError,), share=2.0),
)
