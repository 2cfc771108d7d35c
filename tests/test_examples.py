"""Examples and scaffolds in other languages: built with the compiler that is there, and checked over the protocol."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from decoderspec.adapters import messages
from decoderspec.adapters.command import CommandImplementation
from decoderspec.adapters.encodings import parse_descriptions
from decoderspec.commands import init
from decoderspec.commands.main import main
from decoderspec.spec.config import Config
from decoderspec.spec.parameters import parameter_shapes

HOUSE = Path(__file__).parent.parent
EXAMPLES, PAGE = HOUSE / "examples", HOUSE / "docs" / "protocol.md"
COMPILERS = {".c": "cc", ".rs": "rustc"}
STRICT = {".c": "-Wall -Wextra -Werror -pedantic", ".rs": "--deny warnings"}
CHOSEN = ("--", "-q", "-k", "right_within or own_inputs or gradients_are or hold_what or initial or ids_out or suffix")
TRANSCRIPT = re.search(r"```transcript\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)[1].splitlines()


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """Builds a source file by the command that its own head names; each only once."""
    made = {}

    def build(source):
        compiler = COMPILERS[source.suffix]
        if shutil.which(compiler) is None:
            pytest.skip(f"there is no {compiler} to build {source.name} with")
        if source not in made:
            program = tmp_path_factory.mktemp("built") / "decoder"
            line = re.search(rf"[`/! ]({compiler} .*?)(?:`|$)", source.read_text(encoding="utf-8"), re.M)[1]
            words = [str(source) if word == source.name else word for word in shlex.split(line)]
            words[words.index("-o") + 1] = str(program)
            subprocess.run([*words, *shlex.split(STRICT[source.suffix])], check=True)
            made[source] = str(program)
        return made[source]

    return build


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def checked(program, *options):
    """The exit status and the report of a quick check."""
    status = main(["check", "--command", program, "--profile", "quick", "--json", "report.json", *options])
    return status, json.loads(Path("report.json").read_text(encoding="utf-8"))


# --- Examples ---


@pytest.mark.parametrize(("name", "reached"), [
    ("decoder.c", ["forward", "inputs", "training", "weights"]), ("decoder.rs", ["forward", "inputs", "weights"]),
])  # fmt: skip
def test_an_example_conforms_to_what_it_can_reach(name, reached, built):
    status, report = checked(built(EXAMPLES / name), *CHOSEN)
    assert status == 0
    passed = {row["contract"] for row in report["requirements"].values() if row["status"] == "pass"}
    assert sorted(passed) == reached


def test_the_example_in_c_answers_the_same_bits_in_every_encoding(built):
    config, rng = Config(7, 8, 2, 5, 2, 6), np.random.default_rng(0)
    parameters = {name: rng.normal(size=shape) for name, shape in parameter_shapes(config).items()}
    ids = rng.integers(0, 7, (2, 3))
    answers = []
    for encoding in ("raw", "base64", "hex"):
        model = CommandImplementation(f"{built(EXAMPLES / 'decoder.c')} {encoding}").build(config, parameters)
        found = {**model.stages(ids), **model.gradients(ids, ids), "loss": model.loss(ids, ids)}
        answers.append({name: value.tobytes() for name, value in found.items()})
        assert np.array_equal(model.parameters()["final_norm.gain"], parameters["final_norm.gain"])
    assert answers[0] == answers[1] == answers[2]


def test_the_example_in_c_offers_an_operation_with_its_derivative(built):
    status, report = checked(built(EXAMPLES / "decoder.c"), "--as", "rms_norm")
    assert status == 0
    assert {report["requirements"][name]["status"] for name in ("OPN-1", "OPN-2", "OPN-3")} == {"pass"}


def test_a_block_of_another_language_is_judged_alone(built):
    chosen = ("--", "-q", "-k", "same_bits or earlier_rows")
    status, report = checked(built(EXAMPLES / "decoder.c"), "--as", "block", *chosen)
    assert status == 0
    assert report["requirements"]["OPN-4"]["status"] == "pass"


def test_an_operation_that_is_not_offered_exits_2(built, capsys):
    assert main(["check", "--command", built(EXAMPLES / "decoder.c"), "--as", "attend"]) == 2
    assert "decoder.c does not offer attend; it offers: logits" in capsys.readouterr().err


# --- The page ---


def test_the_transcript_of_the_page_is_what_the_example_in_c_answers(built):
    asked = [line[2:] for line in TRANSCRIPT if line.startswith("> ")]
    program = [built(EXAMPLES / "decoder.c"), "hex"]
    answered = subprocess.run(program, input="\n".join(asked) + "\n", capture_output=True, text=True, check=True)
    assert answered.stdout.splitlines() == [line[2:] for line in TRANSCRIPT if line.startswith("< ")]


def test_the_transcript_of_the_page_speaks_the_protocol():
    assert len(TRANSCRIPT) > 10
    for number, line in enumerate(TRANSCRIPT):
        message = messages.parse(line[2:].encode())
        assert message["id"] == number // 2 + 1
        check = messages.check_started if number == 1 else messages.check_reply
        (messages.check_request if line.startswith("> ") else check)(message)
        parse_descriptions(message.get("arrays", []), 100)


@pytest.mark.parametrize("encoding", ["raw", "base64", "hex"])
@pytest.mark.parametrize("part", ["reader", "writer"])
def test_the_pages_c_is_that_of_the_example(part, encoding):
    source = (EXAMPLES / "decoder.c").read_text(encoding="utf-8")
    text = re.search(rf"// \[{encoding} {part}\]\n(.*?)// \[end\]", source, re.S)[1]
    assert len(text.splitlines()) <= 17
    assert text in PAGE.read_text(encoding="utf-8")


# --- Scaffolds ---


@pytest.mark.parametrize("kind", [name for name, kind in init.KINDS.items() if kind.builds])
def test_a_scaffold_builds_and_conforms_by_the_commands_that_it_names(kind, built, capsys):
    assert main(["init", kind]) == 0
    path, printed = init.KINDS[kind].default, capsys.readouterr().out
    text = path.read_text(encoding="utf-8")
    assert text.count("FILL") > 2
    assert not re.search(r"\{(file|build|check)\}", text)
    for command in (init.building(kind, path), init.sentence(kind, path)):
        assert f"`{command}`" in text
        assert command in printed
    status, report = checked(built(path.resolve()), "--", "-q", "-k", "right_within or same_bits")
    assert status == 0
    assert report["requirements"]["VAL-1"]["status"] == "pass"


def test_the_sentence_of_a_program_survives_a_name_with_a_blank():
    path = Path("my decoder.c")
    assert shlex.split(shlex.split(init.sentence("c", path))[-1]) == ["./my decoder"]
    assert shlex.split(init.building("c", path))[-3:] == ["./my decoder", "my decoder.c", "-lm"]


@pytest.mark.parametrize("path", ["decoder.py", "decoder", "missing/decoder.c"])
def test_a_scaffold_in_c_is_refused_where_it_could_not_be_built(path, capsys):
    assert main(["init", "c", path]) == 2
    assert "is not written" in capsys.readouterr().err
