"""The test vectors: true, the same again, complete, and sharp: readers in two languages pass, wrong decoders do not."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import mpmath
import numpy as np
import pytest
import vector_reader as reader

from decoderspec.commands.main import main
from decoderspec.faults.bank import by_name
from decoderspec.faults.fault import Fault, FaultyReference
from decoderspec.golden.vectors import files as vectors
from decoderspec.golden.vectors import schema as vectors_schema
from decoderspec.golden.vectors.notes import NOTES
from decoderspec.golden.vectors.verify import differences
from decoderspec.reference import Reference, oracle
from decoderspec.reference.operations import OPERATIONS
from decoderspec.reference.splitmix64 import SplitMix64
from decoderspec.spec.arrays import round_to
from decoderspec.spec.config import Config
from decoderspec.spec.precision import FORMATS
from decoderspec.spec.requirements import requirements

READER = Path(__file__).parent.parent / "examples" / "read_vectors.mjs"
SAME, DIFFERS, UNUSABLE = 0, 1, 2
LIMIT = 5 * 10**6  # bytes of all files
KNOWN_WORDS = {
    "$ref", "type", "required", "additionalProperties", "properties", "items", "minItems", "maxItems", "pattern",
    "maxLength", "minimum", "maximum", "description",
}  # fmt: skip


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """The whole set, as the command writes it."""
    made = tmp_path_factory.mktemp("vectors") / "all"
    assert main(["vectors", str(made)]) == SAME
    return made


@pytest.fixture(scope="session")
def documents(folder):
    return reader.documents(folder)


def few(tmp_path, documents, names=("silu.json",), change=None):
    """A folder with some of the files, verifiable by itself; `change` edits the documents before it is indexed."""
    contents = json.loads(json.dumps({name: documents[name] for name in names}))
    if change:
        change(contents)
    return indexed(tmp_path / "few", contents)


def indexed(folder, contents):
    files = {name: vectors.written(content) for name, content in contents.items()}
    index = vectors.index(contents, files)
    index["not_shown"] = {name: "left out here" for name, cases in index["requirements"].items() if not cases}
    vectors.write(folder, {"index.json": vectors.written(index), **files})
    return folder


# --- What is written ---


def test_all_files_together_are_small_enough_to_keep(folder):
    assert sum(path.stat().st_size for path in folder.iterdir()) < LIMIT


def test_every_file_fits_the_published_schema(documents, folder):
    index = json.loads((folder / "index.json").read_text())
    for document in [index, *documents.values()]:
        assert [*vectors_schema.violations(document, vectors_schema.definitions()[document["kind"]])] == []


def test_the_schema_uses_only_words_that_are_checked():
    schema = json.loads(vectors.SCHEMA.read_text())
    assert {each["$ref"].rpartition("/")[2] for each in schema["oneOf"]} == set(vectors_schema.KINDS)

    def words(part):
        for name, value in part.items():
            yield name
            if name == "properties":
                for each in value.values():
                    yield from words(each)
            elif isinstance(value, dict):
                yield from words(value)

    used = {word for part in schema["$defs"].values() for word in words(part)}
    assert used <= KNOWN_WORDS


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ({"shape": [2], "values": [1, 2], "more": 1}, "array"),
        ({"shape": [2]}, "array"),
        ({"shape": [-2], "values": [1, 2]}, "array"),
        ({"shape": [1, 1, 1, 1, 1], "values": [1]}, "array"),
        ({"shape": [2], "values": [True, "1"]}, "array"),
        ({"shape": [1], "values": [10**400]}, "array"),
        ("1.5\n", "true"),
        ("0x1", "true"),
        (2.0, "version"),
        ([], "array"),
    ],
)
def test_what_does_not_fit_the_schema_is_found(value, kind):
    assert [*vectors_schema.violations(value, vectors_schema.definitions()[kind])]


@pytest.mark.parametrize("seed", ["1", "2"])
def test_the_same_version_writes_the_same_bytes(folder, seed):
    names = ("rms_norm.json", "errors.json", "initialization.json")
    program = (
        "import sys; from decoderspec.golden.vectors import files as v; given = v.given()\n"
        f"for name in {names}: sys.stdout.buffer.write(v.written(v.completed(given[name])))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    fresh = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, env=environment).stdout
    assert fresh == b"".join((folder / name).read_bytes() for name in names)


def test_inputs_are_exact_in_every_precision_that_a_case_names(documents):
    for document in documents.values():
        for case in document["cases"]:
            for entry in found_in(case, "upstream", "inputs", "parameters", "value"):
                value = reader.array(entry)
                for precision in case.get("precisions", ()):
                    assert np.array_equal(round_to(value, FORMATS[precision]), value), (case["id"], precision)


def found_in(part, *names, inside=False):
    """Arrays below any of these names, results left out."""
    if isinstance(part, list):
        for each in part:
            yield from found_in(each, *names, inside=inside)
    elif isinstance(part, dict) and inside and set(part) == {"shape", "values"}:
        yield part
    elif isinstance(part, dict):
        for name, each in part.items():
            if name not in ("expected", "change"):
                yield from found_in(each, *names, inside=inside or name in names)


# --- What is true ---


def test_every_number_is_what_the_oracle_says_again(tmp_path, documents):
    """Computed from what stands in the files; gradients of whole models, which take seconds, in the next but one."""

    def cheap(contents):
        cases = contents["model.json"]["cases"]
        left = [case for case in cases if not any("gradients" in call["call"] for call in case["calls"])]
        contents["model.json"]["cases"] = [case for case in left if case["id"] not in ("two-models", "long")]

    target = few(tmp_path, documents, tuple(documents), cheap)
    assert [*differences(target)] == []


def test_values_are_true_in_every_digit_in_another_arithmetic(documents):
    """Ball arithmetic computed them where it is installed; here mpmath does, at more digits."""
    case = documents["model.json"]["cases"][0]
    config = Config(**case["config"])
    tokens = case["calls"][0]["tokens"]
    truth = oracle.logits(config, reader.arrays(case["parameters"]), tokens, digits=55)
    assert case["calls"][0]["expected"]["logits"]["values"] == [digits(value) for value in truth.flat]


def digits(value):
    return mpmath.nstr(value, vectors.DIGITS, strip_zeros=False)


def test_gradients_are_true_along_a_direction_through_all_of_them(documents):
    """One difference along a random direction checks every element at once."""
    case = next(case for case in documents["model.json"]["cases"] if case["id"] == "gradients")
    call = next(call for call in case["calls"] if call["call"] == "gradients")
    at = Config(**case["config"]), reader.arrays(case["parameters"]), call["tokens"], call["targets"]
    random = np.random.default_rng(0)
    direction = {name: random.integers(-8, 9, value.shape) for name, value in at[1].items()}
    with mpmath.workdps(45):
        parts = [
            (mpmath.mpf(text) * int(along))
            for name, entry in call["expected"]["gradients"].items()
            for text, along in zip(entry["values"], direction[name].flat, strict=True)
        ]
        error = abs(mpmath.fsum(parts) - oracle.derivative(*at, direction, digits=40))
        assert error < mpmath.fsum(map(abs, parts)) * mpmath.mpf(10) ** (1 - vectors.DIGITS)


def test_what_float64_leaves_over_is_the_rest(documents):
    for entry in found_results(documents):
        with mpmath.workdps(60):
            for text, rest in zip(entry["values"], entry["rest"], strict=True):
                left = mpmath.mpf(text) - mpmath.mpf(float(text))
                assert abs(left - rest) <= abs(left) * mpmath.mpf("0.006")


def found_results(documents):
    """Every fifth result: there are some hundreds."""

    def within(part):
        if isinstance(part, dict) and "rest" in part:
            yield part
        elif isinstance(part, (dict, list)):
            for each in part.values() if isinstance(part, dict) else part:
                yield from within(each)

    return [*within(list(documents.values()))][::5]


def test_words_of_the_generator_are_those_that_are_published(documents):
    """Seed 0: Vigna's splitmix64.c, as quoted by many."""
    words = {case["id"]: case["expected"]["words"] for case in documents["initialization.json"]["cases"]}
    assert words["zero"][:3] == ["0xe220a8397b1dcdaf", "0x6e789e6aa1b965f4", "0x06c45d188009454f"]
    for case in documents["initialization.json"]["cases"]:
        ours = [f"0x{int(word):016x}" for word in SplitMix64(int(case["seed"])).words(4)]
        assert ours == case["expected"]["words"]


# --- What is covered ---


def test_every_requirement_is_shown_by_a_case_or_cannot_be(folder):
    index = json.loads((folder / "index.json").read_text())
    assert list(index["requirements"]) == list(requirements())
    hidden = [name for name, cases in index["requirements"].items() if not cases]
    assert sorted(hidden) == sorted(index["not_shown"]) == ["BIG-1", "VAL-2"]
    assert all(len(reason) > len("because it cannot") for reason in index["not_shown"].values())


def test_cases_that_the_index_names_exist_and_name_the_requirement(folder, documents):
    index = json.loads((folder / "index.json").read_text())
    cases = {f"{file}#{case['id']}": case for file, document in documents.items() for case in document["cases"]}
    for name, shown in index["requirements"].items():
        assert all(name in cases[each]["requirements"] for each in shown)


def test_every_flag_has_a_note_and_every_note_a_case(documents):
    flags = {flag for document in documents.values() for case in document["cases"] for flag in case["flags"]}
    assert flags == set(NOTES)
    for document in documents.values():
        assert set(document["notes"]) == {flag for case in document["cases"] for flag in case["flags"]}


# --- What passes, and what does not ---


def test_the_reference_passes(documents):
    assert [*reader.failures(documents, Reference())] == []
    assert [*reader.operation_failures(documents)] == []


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_the_reference_with_coarser_results_passes_in_their_precision(documents, precision):
    coarse = FaultyReference(Fault(name="right", stage="", family="", sentence="", breaks=(), precision=precision))
    assert [*reader.failures(documents, coarse, precision, ("model.json", "errors.json"))] == []
    assert [*reader.operation_failures(documents, precision)] == []


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_coarser_results_than_declared_fail(documents, precision):
    finer = {"float32": "float64", "bfloat16": "float32", "float16": "float32"}[precision]
    coarse = FaultyReference(Fault(name="coarse", stage="", family="", sentence="", breaks=(), precision=precision))
    failed = {failure.case for failure in reader.failures(documents, coarse, finer, ("model.json",))}
    assert {"sizes-differ", "gradients", "causality"} <= failed


@pytest.mark.parametrize("flag", [flag for flag, note in NOTES.items() if note.faults])
def test_mistakes_that_a_note_names_fail_a_case_with_its_flag(documents, flag):
    for name in NOTES[flag].faults:
        fault = by_name(name)
        precision = fault.precision if fault.precision in FORMATS else "float64"
        with np.errstate(all="ignore"):
            assert [*reader.failures(documents, FaultyReference(fault), precision, flag=flag)], name


def test_a_wrong_pullback_fails_in_its_own_file_alone(documents):
    wrong = by_name("norm-pullback-without-variance").operations(OPERATIONS)
    failed = {failure.file for failure in reader.operation_failures(documents, operations=wrong)}
    assert failed == {"rms_norm.json", "block.json"}


# --- decoderspec vectors ---


def test_writing_again_replaces_the_vectors_and_leaves_nothing_behind(tmp_path):
    target = tmp_path / "vectors"
    vectors.write(target, {"index.json": b'{"schema": "vectors.schema.json"}', "silu.json": b"{}"})
    vectors.write(target, {"index.json": b'{"schema": "vectors.schema.json"}', "add.json": b"[]"})
    assert sorted(path.name for path in target.iterdir()) == ["add.json", "index.json"]
    assert [path.name for path in tmp_path.iterdir()] == ["vectors"]


@pytest.mark.parametrize("held", ["notes.txt", "index.json", "model.json"])
def test_a_folder_with_something_else_is_not_overwritten(tmp_path, capsys, held):
    (tmp_path / held).write_text('{"mine": true}')
    assert main(["vectors", str(tmp_path)]) == UNUSABLE
    assert "no vectors" in capsys.readouterr().err
    assert (tmp_path / held).read_text() == '{"mine": true}'


def test_a_file_in_the_place_of_the_folder_is_not_overwritten(tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    assert main(["vectors", str(tmp_path / "file")]) == UNUSABLE
    assert "is a file" in capsys.readouterr().err


def test_a_folder_of_some_files_verifies_by_itself(tmp_path, documents, capsys):
    assert main(["vectors", "--verify", str(few(tmp_path, documents))]) == SAME
    assert "no differences" in capsys.readouterr().out


def changed(path, value, file="silu.json"):
    """A change of one place in one file."""

    def change(contents):
        part = contents[file]
        for name in path[:-1]:
            part = part[name]
        part[path[-1]] = value(part[path[-1]])

    return change


def last_digit(text):
    return text[:-1] + str((int(text[-1]) + 1) % 10)


OUTPUT = ("cases", 0, "expected", "output")
CHANGES = {
    "one digit of a value": ((*OUTPUT, "values", 7), last_digit, r"silu.json: ordinary.expected.output.values\[7\]"),
    "the rest of a value": ((*OUTPUT, "rest", 7), lambda rest: rest + 1e-17, r"output.rest\[7\]"),
    "a noise unit": ((*OUTPUT, "noise", "float32", 3), lambda noise: noise * 1.05, r"output.noise.float32\[3\]"),
    "a limit": ((*OUTPUT, "worst"), lambda worst: worst + 1, r"output.worst is"),
    "an input": (("cases", 0, "inputs", "gate", "values", 3), lambda value: value + 1, r"output.values\[3\]"),
    "a slope": (("cases", 0, "expected", "slopes", "gate", "values", 0), last_digit, r"slopes.gate.values\[0\]"),
    "a shape": ((*OUTPUT, "shape"), lambda shape: [3, 5], r"output.shape"),
    "a gradient less": (("cases", 0, "expected", "gradients"), lambda gradients: {}, r"gradients.gate is missing"),
    "a gradient more": (("cases", 1, "expected"), lambda e: e | {"gradients": {}}, r"gradients is not expected"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_found_and_named(tmp_path, documents, capsys, what):
    path, value, named = CHANGES[what]
    assert main(["vectors", "--verify", str(few(tmp_path, documents, change=changed(path, value)))]) == DIFFERS
    assert re.search(named, capsys.readouterr().out)


def test_a_change_after_indexing_is_found_by_its_digest_too(tmp_path, documents, capsys):
    target = few(tmp_path, documents)
    text = (target / "silu.json").read_text()
    (target / "silu.json").write_text(text.replace("both signs", "both sign"))
    assert main(["vectors", "--verify", str(target)]) == DIFFERS
    assert "sha256 of silu.json" in capsys.readouterr().out


def test_a_category_and_a_code_are_verified(tmp_path, documents, capsys):
    def change(contents):
        contents["errors.json"]["cases"][0]["codes"] = ["DecoderModelError.ZeroModelWidth"]

    assert main(["vectors", "--verify", str(few(tmp_path, documents, ("errors.json",), change))]) == DIFFERS
    assert "build-zero-vocabulary_size.codes" in capsys.readouterr().out


def test_files_and_requirements_that_the_index_leaves_out_are_found(tmp_path, documents, capsys):
    target = few(tmp_path, documents)
    index = json.loads((target / "index.json").read_text())
    index["requirements"]["OPN-1"] = []
    (target / "index.json").write_text(json.dumps(index))
    (target / "add.json").write_text("{}")
    assert main(["vectors", "--verify", str(target)]) == DIFFERS
    said = capsys.readouterr().out
    assert "index.json: requirements.OPN-1" in said
    assert "add.json is not listed" in said


HOSTILE = {
    "not JSON": "{",
    "another version": '{"schema": "vectors.schema.json", "version": 2, "kind": "operation"}',
    "no version": '{"schema": "vectors.schema.json"}',
    "another schema": '{"schema": "mine", "version": 1}',
    "another kind": '{"schema": "vectors.schema.json", "version": 1, "kind": ["operation"]}',
    "a list": "[]",
    "deep nesting": "[" * 100_000,
    "not a number": '{"schema": NaN}',
    "a name twice": '{"schema": "vectors.schema.json", "schema": "vectors.schema.json"}',
    "a long integer": '{"schema": ' + "9" * 5000 + "}",
    "not text": b"\xff\xfe\x00",
    "huge": b" " * (5 * 2**20 + 1),
}


@pytest.mark.parametrize("what", HOSTILE)
@pytest.mark.parametrize("file", ["index.json", "silu.json"])
def test_a_file_that_is_no_vectors_is_refused(tmp_path, documents, capsys, what, file):
    target = few(tmp_path, documents)
    content = HOSTILE[what]
    (target / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    assert main(["vectors", "--verify", str(target)]) == UNUSABLE
    said = capsys.readouterr().err
    assert said.startswith("decoderspec: ")
    assert file in said
    assert len(said) < 600


UNUSABLE_CASES = {
    "an id twice": (("cases", 1, "id"), lambda _: "ordinary", "two cases 'ordinary'"),
    "an unknown flag": (("cases", 0, "flags"), lambda _: ["Mine"], "flag without a note: Mine"),
    "an unknown requirement": (("cases", 0, "requirements"), lambda _: ["XXX-1"], "requirement that there is not"),
    "a value too many": (("cases", 0, "inputs", "gate", "values"), lambda v: [*v, 1], "with 16 values"),
    "a value that float32 lacks": (("cases", 0, "inputs", "gate", "values", 0), lambda _: 1 / 3, "float32 does not"),
    "an unknown input": (("cases", 0, "inputs"), lambda gate: gate | {"up": gate["gate"]}, "must be gate"),
    "too many numbers": (
        ("cases", 0, "inputs", "gate"), lambda _: {"shape": [5000], "values": [1] * 5000}, "at most 5000",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", UNUSABLE_CASES)
def test_a_case_that_cannot_be_computed_is_refused(tmp_path, documents, capsys, what):
    path, value, said = UNUSABLE_CASES[what]
    assert main(["vectors", "--verify", str(few(tmp_path, documents, change=changed(path, value)))]) == UNUSABLE
    assert said in capsys.readouterr().err


MODEL_CHANGES = {
    "an id beyond the table": (("calls", 0, "tokens"), lambda _: [[99]], "each id below"),
    "ragged ids": (("calls", 0, "tokens"), lambda _: [[0, 1], [0]], "rows of one length"),
    "tokens missing": (("calls", 0), lambda call: {"call": call["call"]}, "KeyError"),
    "a case that there is not": (("calls", 0), lambda call: call | {"model": "nobody"}, "which is no case"),
    "a call that is yet to come": (("calls", 0), lambda call: call | {"again": 0}, "no such call before it"),
    "an odd head width": (("config", "heads"), lambda _: 4, "must be even"),
    "a parameter missing": (("parameters",), lambda p: dict([*p.items()][1:]), "parameters must be"),
}


@pytest.mark.parametrize("what", MODEL_CHANGES)
def test_a_model_that_cannot_be_computed_is_refused(tmp_path, documents, capsys, what):
    path, value, said = MODEL_CHANGES[what]

    def change(contents):
        cases = contents["model.json"]["cases"]
        contents["model.json"]["cases"] = [case for case in cases if case["id"] == "no-layers"]
        contents["model.json"]["notes"] = {"NoLayers": contents["model.json"]["notes"]["NoLayers"]}
        changed(("cases", 0, *path), value, "model.json")(contents)

    assert main(["vectors", "--verify", str(few(tmp_path, documents, ("model.json",), change))]) == UNUSABLE
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("name", ["missing", "missing/below"])
def test_a_folder_that_is_not_there_cannot_be_verified(tmp_path, capsys, name):
    assert main(["vectors", "--verify", str(tmp_path / name)]) == UNUSABLE
    assert "index.json is no file" in capsys.readouterr().err


def test_a_listed_file_that_is_missing_is_refused(tmp_path, documents, capsys):
    target = few(tmp_path, documents)
    (target / "silu.json").unlink()
    assert main(["vectors", "--verify", str(target)]) == UNUSABLE
    assert "silu.json is no file" in capsys.readouterr().err


# --- The reader in JavaScript ---


def node(folder, program=READER, precision="float64"):
    """Run the reader: exit status and what it printed."""
    found = shutil.which("node")
    if found is None:
        pytest.skip("node is not installed: the reader in JavaScript cannot be run")
    done = subprocess.run([found, str(program), str(folder), precision], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("precision", ["float64", "bfloat16"])
def test_the_reader_in_javascript_passes_every_case(folder, documents, precision):
    status, said = node(folder, precision=precision)
    assert status == 0, said
    count = sum(precision in case.get("precisions", (precision,)) for d in documents.values() for case in d["cases"])
    assert f"{count} cases in {precision}, 0 failures" in said


def test_the_reader_fails_when_one_value_is_changed(tmp_path, documents):
    def change(contents):
        entry = contents["silu.json"]["cases"][0]["expected"]["output"]
        entry["values"][4] = last_digit(entry["values"][4][:13]) + entry["values"][4][13:]

    target = few(tmp_path, documents, ("silu.json", "add.json"), change)
    status, said = node(target)
    assert status == 1
    assert "ordinary: output[4]" in said
    assert "add.json                2 cases, none failed" in said


WRONG = {  # what is written, what is written instead, and where that must show
    "the norm without epsilon": ("Math.sqrt(sum / d + epsilon)", "Math.sqrt(sum / d)", "rms_norm.json"),
    "the rotation backwards": ("sign * Math.sin(angle)", "-sign * Math.sin(angle)", "rotate.json"),
    "one score too many": ("seen = (row % T) + 1", "seen = Math.min(T, (row % T) + 2)", "attend.json"),
    "the softmax without its sum": ("- inner)) / Math.sqrt(w)", ")) / Math.sqrt(w)", "attend.json"),
    "the other activation": ("value * sigmoid(value)", "Math.max(value, 0)", "silu.json"),
    "the sum for the mean": ("total + loss, 0) / losses.length", "total + loss, 0)", "nll.json"),
    "a float32 result": ("(value, i) => value * b.values[i]", "(value, i) => Math.fround(value * b.values[i])",
                         "swiglu.json"),
    "other draws": ("[name, map(zeros(shape), () => 1)]", "[name, map(zeros(shape), () => words.next() && 1)]",
                    "initialization.json"),
    "an id of V": ("id >= 0 && id < size", "id >= 0 && id <= size", "errors.json"),
    "a copy of the table": ("this.p[name].values.set(value.values)", "this.p = { ...this.p }", "model.json"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_the_reader_fails_when_an_operation_is_made_wrong(tmp_path, folder, what):
    right, wrong, file = WRONG[what]
    text = READER.read_text()
    assert text.count(right) == 1
    program = tmp_path / "wrong.mjs"
    program.write_text(text.replace(right, wrong))
    status, said = node(folder, program)
    assert status == 1
    assert re.search(rf"^{re.escape(file)} +\d+ cases, \d+ failed", said, re.MULTILINE), said
