"""The surfaces of the fuzz but for files and commands: what is valid for each, and whoever must take or refuse it.

`prepare` is called once in an empty folder and gives a function that makes an input: a valid document, changed in so
many places, and the call that hands it to our public entry.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np

from decoderspec.adapters import encodings, messages
from decoderspec.bench.fuzz_changes import changed_json, changed_word
from decoderspec.bench.fuzz_values import changed_array, changed_scalar
from decoderspec.properties.cases import Case, arrays, draw_parameters
from decoderspec.properties.loading import LoadError, load
from decoderspec.properties.operation import load_operation
from decoderspec.properties.strategies import check_limits, smallest_case
from decoderspec.properties.subject import read_subject
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
    Surface("messages", _messages, (messages.MessageError, encodings.EncodingError, DeclarationError), share=2.0),
    Surface("names", _names, (LoadError,), share=2.0),
)
