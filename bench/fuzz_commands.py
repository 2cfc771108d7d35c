"""The surfaces of the fuzz that are reached through a command line, or through what a command renders.

Commands stand above this package, so the one that is under test is found by its name, as `commands.main` finds it.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

from decoderspec.bench.fuzz_changes import changed_json, changed_toml, changed_word, damaged
from decoderspec.bench.fuzz_files import XFAILS, XFAILS_TOML
from decoderspec.bench.fuzz_surfaces import CASE, MEBIBYTE, Attempt, Make, Surface
from decoderspec.properties import replay
from decoderspec.properties.cases import draw_parameters
from decoderspec.properties.report import Report
from decoderspec.properties.reports import badge, junit, markdown, page, scoreboard
from decoderspec.properties.reports.schema import StoredError, read
from decoderspec.properties.run import PROFILES, Run
from decoderspec.properties.subject import read_subject
from decoderspec.properties.summary import grades
from decoderspec.properties.truth import Truth
from decoderspec.properties.xfails import Xfail
from decoderspec.spec.precision import recipe
from decoderspec.spec.requirements import requirements


class Refusal(Exception):
    """A command that exits with 2 and a word on standard error."""


# --- Stored reports ---


def report() -> dict[str, Any]:
    """A report with one of everything, on records that are made up."""
    subject = read_subject(SimpleNamespace(name="mine", claims=("forward",), limits={"heads": [1]}, build=None))
    status = {
        "VAL-1": "fail",
        "VAL-2": "fail",
        "LOS-1": "skip",
        "INP-1": "fail",
        "DET-1": "error",
        "BAT-1": "not_judged",
    }
    records = [_record(name, status.get(name, "pass")) for name in requirements() if not name.startswith("OPN")]
    made = Report(
        Run(subject, "", PROFILES["quick"]), records, ("inputs",), [Xfail("VAL-2", "known", "https://x.org", 99.0)]
    )
    stage = {"name": "logits", "noise": 3.0, "allowed": 15.0, "mean_noise": 0.5, "mean_allowed": 1.5, "excess": 0.2}
    made.extras |= {
        "seconds": {"total": 1.0}, "problems": ["one"], "caught": {"embed": 1e-15, "add": float("inf")},
        "stages": [stage | {"bits": 50.1, "possible": 53}, stage | {"name": "embedding", "bits": None, "possible": 53}],
        "grades": grades(made.rows()),
        "findings": [],
    }  # fmt: skip
    found: dict[str, Any] = json.loads(json.dumps(made.to_json()))
    return found


def _record(name: str, status: str) -> dict[str, Any]:
    failed = status == "fail"
    return {
        "requirements": [name], "property": f"test_{name}", "status": status,
        "reason": "" if status == "pass" else "why", "examples": 3, "seconds": 0.1,
        "case": "V=5 d=4" if failed else "", "stage": "logits" if failed else "",
        "replay": None, "worst_noise": 50.0 if failed else 1.0, "allowed": 14.0, "where": "logits",
    }  # fmt: skip


def _reports(folder: Path) -> Make:
    path, known = folder / "report.json", report()

    def call() -> None:
        document = read(path)
        ElementTree.fromstring(junit.render(document))
        json.loads(badge.render(document))
        for render in (markdown.render, page.render, scoreboard.render):
            render(document).encode()  # a lone surrogate cannot be written

    def make(rng: Random, count: int) -> Attempt:
        data = changed_json(rng, known, count)
        path.write_bytes(data)
        return Attempt(call, data.decode(errors="replace"))

    return make


# --- Command lines ---


LINES: dict[str, tuple[str, ...]] = {  # the whole command is run
    "report": ("report.json", "--html=out.html", "--junit=out.xml", "--badge=badge.json", "--csv=out.csv"),
    "check": (
        "missing.py:Adapter", "--profile=quick", "--precision={'results': 'float32'}", "--claims=forward,training",
        "--require=forward", "--xfails=known.json", "--seed=3", "--case=case.json", "--json=out.json", "-n2",
    ),
    "explain": ("missing.py:Adapter", "--case=case.json", "--hint=1", "--precision=float32", "--json=out.json"),
    "init": ("torch", "out.py"),
    "doctor": (),
}  # fmt: skip
PARSED: dict[str, tuple[str, ...]] = {  # the arguments alone are read
    "faults": ("post-norm", "--family=rotary", "--profile=quick", "--seed=1", "--json=out.json"),
    "bench": ("mine.py:Adapter", "--against=a.json", "--fail-above=5", "--quick", "--growth", "--profile=quick"),
    "vectors": ("folder", "--verify"),
    "check": ("other.py:Adapter", *LINES["check"], "--self", "--as=rms_norm", "--start-timeout=3", "--command=./d -x"),
    "explain": (*LINES["explain"], "--dump=dump.npz", "--config=config.json", "--against=x.py:y"),
}  # fmt: skip
OPTIONS = (
    "--html", "--json=", "--seed", "--seed=1.5", "--hint=9", "--profile=slow", "-n", "-n-1", "-h", "--", "@file",
    "--as=x", "--junit=out.json", "--badge=no-folder/x", "--markdown=.", "--start-timeout=nan", "--call-timeout=-1",
)  # fmt: skip
UNSAFE = ("--self", "--se", "--sel", "--command")  # these would run something for minutes, or a program


def _lines(folder: Path) -> Make:
    stored, rule = report(), recipe("float64")
    case = json.loads(
        replay.write(
            folder / "case.json", Truth(CASE, draw_parameters(CASE, rule), rule), ["VAL-1"], "float64"
        ).read_text()
    )
    files: dict[str, Callable[[Random, int], bytes]] = {
        "report.json": lambda rng, count: changed_json(rng, stored, count),
        "case.json": lambda rng, count: changed_json(rng, case, count),
        "known.json": lambda rng, count: changed_json(rng, XFAILS, count),
        "known.toml": lambda rng, count: changed_toml(rng, XFAILS_TOML, count),
    }
    main = importlib.import_module("decoderspec.commands.main").main

    def make(rng: Random, count: int) -> Attempt:
        for path in folder.iterdir():
            path.unlink()
        if rng.random() < 0.5:
            command = rng.choice(list(PARSED))
            words = _changed(rng, PARSED[command], count, safe=False)
            parser = importlib.import_module(f"decoderspec.commands.{command}").parser
            return Attempt(lambda: _run(lambda: parser().parse_args(words) and 0), f"{command} {words}")
        command = rng.choice(list(LINES))
        of_file = min(count, rng.randrange(2))
        named = rng.choice(list(files))
        for name, write in files.items():
            (folder / name).write_bytes(write(rng, of_file if name == named else 0))
        words = _changed(rng, LINES[command], count - of_file, safe=True)
        outputs = tuple(folder / word.partition("=")[2] for word in words if "=" in word and "\0" not in word)
        outputs += (folder / "adapter.py", *(folder / word for word in words if "\0" not in word))
        expected = command in ("check", "explain")
        return Attempt(
            lambda: _run(lambda: main([command, *words]), expected), f"{command} {words}", _inside(folder, outputs)
        )

    return make


def _inside(folder: Path, outputs: Sequence[Path]) -> tuple[Path, ...]:
    """The named outputs that lie where the fuzz may write."""
    found = []
    for path in outputs:
        with contextlib.suppress(OSError, ValueError):
            real = Path(os.path.realpath(path))
            if real.is_relative_to(folder) and real != folder:
                found.append(real)
    return tuple(found)


def _changed(rng: Random, words: Sequence[str], count: int, *, safe: bool) -> list[str]:
    """Arguments, one of them changed, left out, doubled or put elsewhere, or one more."""
    made = list(words)
    for _ in range(count):
        at = rng.randrange(len(made) + 1)
        match rng.choice(("letter", "letter", "value", "value", "remove", "double", "move", "more")):
            case "letter" if at < len(made):
                made[at] = changed_word(rng, made[at])
            case "value" if at < len(made):
                option, equals, value = made[at].partition("=")
                made[at] = f"{option}{equals}{changed_word(rng, value)}" if equals else changed_word(rng, option)
            case "remove":
                del made[at : at + 1]
            case "double":
                made += made[at : at + 1]
            case "move":
                made = made[at:] + made[:at]
            case _:
                made.insert(at, rng.choice(OPTIONS))
    return [word for word in made if not (safe and word.startswith(UNSAFE))]


def _run(command: Callable[[], int], missing: bool = False) -> None:
    """Run a command; `missing` where its implementation is not there, so that a refusal is what is valid."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            status = command()
        except SystemExit as leaving:
            status = leaving.code if isinstance(leaving.code, int) else 0
    words = errors.getvalue()
    if "Traceback" in out.getvalue() + words:
        raise AssertionError(f"a traceback was printed: {words[-300:]}")
    if status == 0 and (not missing or out.getvalue().startswith("usage: ")):
        return
    if status != 2 or not words.strip():
        raise AssertionError(f"exit status {status} with {words[:200]!r} on standard error")
    if not missing or "there is no file" not in words:
        raise Refusal(words[-1000:])  # a word of any length that was typed may be repeated


def _golden(folder: Path) -> Make:
    """A document of the chapters, changed, on standard input of `golden compare`."""
    main = importlib.import_module("decoderspec.commands.main").main
    kinds = [(kind, subject) for kind in ("report", "trace") for subject in ("block", "model")]
    documents = importlib.import_module("decoderspec.golden.documents")
    known: Mapping[tuple[str, str], bytes] = {each: documents.kept(*each).encode() for each in kinds}

    def make(rng: Random, count: int) -> Attempt:
        each = rng.choice(kinds)
        data = known[each]
        for _ in range(count):
            data = damaged(rng, data)

        def call() -> None:
            given, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(data))
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    if main(["golden", "compare", *each]) not in ((0,) if not count else (0, 1)):
                        raise AssertionError("it was not compared")
            finally:
                sys.stdin = given

        return Attempt(call, data.decode(errors="replace"))

    return make


COMMANDS = (
    Surface("reports", _reports, (StoredError,), share=0.4),
    Surface("commands", _lines, (Refusal,), room=512 * MEBIBYTE, share=0.3),
    Surface("golden", _golden, (), share=0.02),
)
