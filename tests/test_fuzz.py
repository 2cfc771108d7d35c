"""The fuzz itself, small: every surface takes what is valid and refuses the rest, and what it looks for it finds."""

import json
import os
import pickle
import re
import subprocess
import warnings
from pathlib import Path
from random import Random

import pytest

pytest.importorskip("resource", reason="the guard of the fuzz limits memory as POSIX does")
if not Path("/proc/self/statm").exists():
    pytest.skip("the guard of the fuzz reads its size from /proc", allow_module_level=True)

from decoderspec.bench import fuzz_guard
from decoderspec.bench.fuzz import ALL, changes, fuzz, made, main
from decoderspec.bench.fuzz_changes import changed_json, changed_toml, places
from decoderspec.bench.fuzz_guard import judge

pytestmark = pytest.mark.filterwarnings("ignore:the matrix subclass")  # NumPy's word on what is handed in
INPUTS = {"vectors": 20, "commands": 40, "reports": 60, "golden": 4}  # where one takes long; else
USUAL = 120
ROOM = 64 * 2**20


@pytest.mark.parametrize("surface", ALL, ids=lambda surface: surface.name)
def test_every_input_is_taken_or_refused_in_our_own_words(surface):
    found = fuzz(surface, INPUTS.get(surface.name, USUAL), seed=11)
    assert found.bugs == {}
    assert found.valid + found.refused == found.inputs
    assert found.valid
    assert found.refused or surface.name == "golden"  # which compares whatever it is given


def test_at_least_half_of_the_inputs_are_changed_in_one_place():
    counts = [changes(Random(number)) for number in range(2000)]
    assert counts.count(1) > 1000
    assert 0 in counts


@pytest.mark.parametrize("surface", ALL[:3], ids=lambda surface: surface.name)
def test_an_input_is_made_again_from_its_number(surface, tmp_path):
    make = surface.prepare(tmp_path)

    def inputs():
        texts = [made(surface, make, 3, number)[1].shown for number in range(20)]
        return [re.sub("0x[0-9a-f]+", "", text) for text in texts]  # where an object lies in memory is no part of it

    shown = inputs()
    assert shown == inputs()
    assert len(set(shown)) > 10


def test_a_document_that_is_not_changed_is_the_document():
    document = {"a": [1, {"b": None}], "c": "x"}
    assert json.loads(changed_json(Random(0), document, 0)) == document
    assert list(places(document)) == [("a",), ("a", 0), ("a", 1), ("a", 1, "b"), ("c",)]
    assert changed_toml(Random(0), "a = 1\n", 0) == b"a = 1\n"
    assert sum(changed_json(Random(n), document, 1) != json.dumps(document).encode() for n in range(50)) > 40


# --- What the guard sees ---


class Own(Exception):
    """A refusal."""


def raising(error):
    def call():
        raise error

    return call


def spinning():
    while True:
        pass


def warning():
    warnings.warn("overflow encountered", RuntimeWarning, stacklevel=1)


BUGS = {
    "an error that is not ours": (raising(KeyError("x")), "KeyError came out of test_fuzz"),
    "leaving": (raising(SystemExit(0)), "SystemExit"),
    "a message of nothing": (raising(Own("")), "a message of 0 characters"),
    "a message without end": (raising(Own("x" * 10**6)), "a message of 1000000 characters"),
    "a traceback": (raising(Own("Traceback (most recent call last)")), "shows the inside"),
    "a warning": (warning, "a warning was printed: RuntimeWarning"),
    "memory": (lambda: bytearray(4 * ROOM), "MemoryError"),
    "a program": (lambda: subprocess.run(["true"], check=False), "PermissionError|Popen"),
    "a pickle": (lambda: pickle.loads(pickle.dumps(Path("x"))), "PermissionError|pickle"),
    "code": (lambda: exec(compile("x = 1", "data.json", "exec")), "code of 'data.json' was executed"),
    "a folder": (lambda: os.chdir("/"), "current folder"),
}


@pytest.mark.parametrize("what", BUGS)
def test_what_may_not_happen_is_seen(what, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call, words = BUGS[what]
    found = judge(call, (Own,), room=ROOM)
    assert found.status == "bug"
    assert re.search(words, found.words), found.words


def test_what_hangs_is_seen(monkeypatch):
    monkeypatch.setattr(fuzz_guard, "SECONDS", 0.05)
    assert "processor time" in judge(spinning, (Own,), room=ROOM).words


def test_a_file_beside_the_named_output_is_neither_written_nor_removed(tmp_path):
    kept, named = tmp_path / "kept", tmp_path / "named"
    kept.write_text("as it was")
    for call in (lambda: kept.write_text("changed"), kept.unlink, lambda: kept.rename(named)):
        assert judge(call, (OSError,), room=ROOM, outputs=[named]).status == "bug"
    assert kept.read_text() == "as it was"
    assert judge(lambda: named.write_text("x"), (), room=ROOM, outputs=[named]).status == "valid"


def test_a_refusal_of_ours_is_none_of_it():
    assert judge(raising(Own("it must be 1")), (Own,), room=ROOM) == fuzz_guard.Judgement("refused", "Own")
    assert judge(lambda: None, (Own,), room=ROOM) == fuzz_guard.Judgement("valid")


def test_a_run_prints_its_figures_and_keeps_them(tmp_path, capfd):
    chosen = ["--surface", "configuration", "--surface", "messages"]
    assert main(["--inputs", "40", "--seed", "5", *chosen, "--json", str(tmp_path / "fuzz.json")]) == 0
    kept = json.loads((tmp_path / "fuzz.json").read_text())
    assert [(each["surface"], each["inputs"], each["bugs"]) for each in kept["surfaces"]] == [
        ("configuration", 20, {}),
        ("messages", 20, {}),
    ]
    assert "all" in capfd.readouterr().out
