"""A dump of somebody's stages is judged as far as it goes, and a hostile file is refused in words."""

import io
import json
import re
import zipfile
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from decoderspec.commands.main import main
from decoderspec.faults.bank import by_name
from decoderspec.faults.fault import FaultyReference
from decoderspec.properties import containers
from decoderspec.properties.cases import Case, arrays, draw_parameters
from decoderspec.properties.dump import DumpError, read_dump
from decoderspec.properties.replay import write
from decoderspec.properties.truth import Truth
from decoderspec.reference import Reference
from decoderspec.spec.config import Config
from decoderspec.spec.precision import recipe

CASE = Case(Config(5, 8, 2, 3, 2, 6, 30.0, 1e-2), batch=2, tokens=4, seed=3)
PARAMETERS = draw_parameters(CASE, recipe("float64"))
TOKENS, TARGETS = arrays(CASE)
CONFIG = json.dumps(asdict(CASE.config))
PAGE = Path(__file__).parent.parent / "docs" / "dump.md"
FORMATS = {"<f8": "F64", "<f4": "F32", "<f2": "F16", "<i8": "I64", "<i4": "I32"}


def model(fault=None):
    maker = Reference() if fault is None else FaultyReference(by_name(fault))
    return maker.build(CASE.config, PARAMETERS)


def contents(fault=None, *, parameters=True, training=False):
    """What an engine writes: stages, and what they are of."""
    made = model(fault)
    found = {"tokens": TOKENS, **made.stages(TOKENS), **(PARAMETERS if parameters else {})}
    if training:
        gradients = {f"gradient.{name}": value for name, value in made.gradients(TOKENS, TARGETS).items()}
        found |= {"targets": TARGETS, "loss": np.asarray(made.loss(TOKENS, TARGETS)), **gradients}
    return found


def npz(path, found, **texts):
    np.savez(path, **{"config": np.array(CONFIG), "precision": np.array("float64")} | texts, **found)
    return path


def safetensors(path, found, metadata=None, header=None, formats=FORMATS):
    """Written as the format says, or with another header."""
    data, made = b"", {"__metadata__": metadata or {"config": CONFIG, "precision": "float64"}}
    for name, value in found.items():
        value = np.asarray(value)
        place = [len(data), len(data) + value.nbytes]
        made[name] = {"dtype": formats[value.dtype.str], "shape": list(value.shape), "data_offsets": place}
        data += value.tobytes()
    text = json.dumps(made if header is None else header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


@pytest.mark.parametrize("writer", [npz, safetensors])
def test_a_right_dump_conforms_and_a_wrong_one_is_placed_and_named(tmp_path, writer):
    path = tmp_path / ("dump." + writer.__name__)
    writer(path, contents(training=True))
    right = read_dump(path).diagnosis()
    assert not right.wrong
    assert right.compared == "38 stages, the logits, the loss and 20 gradients"
    writer(path, contents("scale-squared"))
    wrong = read_dump(path).diagnosis()
    assert wrong.first_wrong_stage == "blocks.0.attention.weights"
    assert "scale-squared" in [cause.fault for cause in wrong.causes]


def test_logits_alone_are_enough_for_a_hypothesis(tmp_path):
    whole = contents("gelu-for-silu")
    kept = {name: whole[name] for name in ("tokens", "logits", *PARAMETERS)}
    found = read_dump(npz(tmp_path / "dump.npz", kept)).diagnosis()
    assert found.causes[0].fault == "gelu-for-silu"
    assert found.first_wrong_stage == "ffn.silu"


def test_without_parameters_the_stages_that_use_none_are_judged(tmp_path):
    dump = read_dump(npz(tmp_path / "dump.npz", contents("scale-squared", parameters=False)))
    found = dump.diagnosis()
    assert "blocks.0.ffn_norm" not in dump.judged
    assert found.first_wrong_stage == "blocks.0.attention.weights"
    assert found.causes[0].fault == "scale-squared"
    right = read_dump(npz(tmp_path / "dump.npz", contents(parameters=False))).diagnosis()
    assert not right.wrong


def test_what_a_dump_lacks_is_taken_from_a_case(tmp_path):
    saved = write(tmp_path / "case.json", Truth(CASE, PARAMETERS, recipe("float64")), ["VAL-1"], "float64")
    np.savez(tmp_path / "dump.npz", logits=model("gelu-for-silu").logits(TOKENS))
    given = [str(tmp_path / "dump.npz"), "--case", str(saved), "--precision", "float64"]
    assert main(["explain", "--dump", *given, "--json", str(tmp_path / "found.json")]) == 1
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert found["likely_causes"][0]["fault"] == "gelu-for-silu"


def test_a_wrong_gradient_of_a_dump_is_laid_to_its_derivative(tmp_path):
    found = read_dump(npz(tmp_path / "dump.npz", contents("gain-gradient-averaged", training=True))).diagnosis()
    assert found.derivatives == ("rms_norm by its gain",)


def test_bfloat16_is_the_upper_half_of_a_float32(tmp_path):
    values = np.array([1.0, -2.5, 0.15625, 3.0e38], "<f4")
    half = (values.view(np.uint32) >> 16).astype("<u2")
    path = safetensors(tmp_path / "x.safetensors", {"x": half}, formats={"<u2": "BF16"})
    upper = (values.view(np.uint32) & 0xFFFF0000).view(np.float32)
    assert np.array_equal(containers.read(path).arrays["x"], upper.astype(float))


def test_arrays_are_read_as_they_were_written_in_either_order(tmp_path):
    rows = np.arange(6.0).reshape(2, 3)
    np.savez_compressed(tmp_path / "x.npz", a=rows, b=np.asfortranarray(rows), c=rows.astype("f4"), d=np.int32(7))
    found = containers.read(tmp_path / "x.npz").arrays
    assert all(np.array_equal(found[name], rows) for name in "abc")
    assert found["d"] == 7


def test_a_number_that_is_not_finite_in_a_stage_is_a_wrong_value(tmp_path):
    found = contents()
    found["blocks.1.ffn.silu"] = np.full_like(found["blocks.1.ffn.silu"], np.nan)
    wrong = read_dump(npz(tmp_path / "dump.npz", found)).diagnosis()
    assert wrong.first_wrong_stage == "blocks.1.ffn.silu"


# --- What is refused ---


def changed(**values):
    found = contents()
    for name, value in values.items():
        found.pop(name) if value is None else found.update({name: value})
    return found


REFUSED = {
    "no tokens": (changed(tokens=None), "there are no tokens"),
    "tokens that are not whole": (changed(tokens=TOKENS * 1.0), "tokens.npz"),
    "a token beyond the vocabulary": (changed(tokens=TOKENS + 4), "5"),
    "a stage of another shape": (changed(logits=np.zeros((2, 4, 6))), "its configuration and tokens say (2, 4, 5)"),
    "an unknown name": (changed(logit=np.zeros(3)), "'logit' is no name of a dump"),
    "a parameter that is not there": (changed(**{"final_norm.gain": None}), "final_norm.gain is missing"),
    "a parameter that is not finite": (changed(**{"final_norm.gain": np.full(8, np.nan)}), "final_norm.gain"),
    "a loss without targets": (changed(loss=np.asarray(1.0)), "named targets"),
    "a loss of several": (changed(loss=np.ones(3)), "a single number"),
    "a gradient of another shape": (
        changed(**{"targets": TARGETS, "gradient.final_norm.gain": np.ones(3)}), "its configuration says (8,)"),
    "one role of two": (changed(**{"targets": TARGETS, "gradient.lookup": np.ones((5, 8))}), "give both"),
    "nothing to judge": ({"tokens": TOKENS}, "nothing in it can be judged"),
    "objects": (changed(logits=np.array([{}, 1], dtype=object)), "allowed: float64"),
    "complex numbers": (changed(logits=np.zeros((2, 4, 5), complex)), "allowed: float64"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_dump_that_does_not_fit_is_refused_with_what_is_allowed(tmp_path, name, capsys):
    found, words = REFUSED[name]
    path = npz(tmp_path / "tokens.npz", found)
    with pytest.raises(DumpError, match=re.escape(words)):
        read_dump(path)
    assert main(["explain", "--dump", str(path)]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ({"config": np.array("{}")}, "must be a JSON object of vocabulary_size"),
        ({"config": np.array("[" * 100_000)}, "must be a JSON object"),
        ({"config": np.array(CONFIG.replace('"heads": 2', '"heads": 3'))}, "8"),
        ({"config": np.array(CONFIG.replace('"layers": 2', '"layers": 1000000000'))}, "products, more than"),
        ({"precision": np.array("float12")}, "float12"),
    ],
)
def test_a_configuration_or_precision_that_cannot_be_is_refused(tmp_path, texts, words):
    with pytest.raises(DumpError, match=re.escape(words)):
        read_dump(npz(tmp_path / "dump.npz", contents(), **texts))


@pytest.mark.parametrize("data", [b"\xff\xfe{", b"[1]", b'{"heads": 1}', b""])
def test_a_configuration_file_that_is_none_is_refused(tmp_path, data):
    (tmp_path / "config.json").write_bytes(data)
    with pytest.raises(DumpError, match="must be a JSON object of vocabulary_size"):
        read_dump(npz(tmp_path / "dump.npz", contents()), tmp_path / "config.json")


def test_a_precision_must_be_declared(tmp_path):
    np.savez(tmp_path / "dump.npz", config=np.array(CONFIG), **contents())
    with pytest.raises(DumpError, match="no precision is declared"):
        read_dump(tmp_path / "dump.npz")
    assert not read_dump(tmp_path / "dump.npz", precision="float64").diagnosis().wrong


def entry(**changes):
    return {"x": {"dtype": "F64", "shape": [2], "data_offsets": [0, 16]} | changes}


HEADERS = {
    "offsets beyond the end": (entry(data_offsets=[16, 32]), "data_offsets are 16 to 32 of 16"),
    "offsets the wrong way round": (entry(data_offsets=[16, 0]), "needs 16 bytes"),
    "a shape of more than there is": (entry(shape=[2**40, 2**40]), "needs"),
    "a negative size": (entry(shape=[-2, -1]), "whole numbers"),
    "offsets that are no numbers": (entry(data_offsets=[0, 16.0]), "whole numbers"),
    "an unknown dtype": (entry(dtype="F8_E4M3"), "allowed: F64, F32"),
    "a dtype that is no word": (entry(dtype=["F64"]), "allowed: F64, F32"),
    "an entry that is none": ({"x": [1]}, "an entry has dtype"),
    "bytes that overlap": (entry() | {"y": {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]}}, "overlap"),
    "a header that is a list": ([1], "must be a JSON object"),
    "metadata that is no mapping": ({"__metadata__": {"a": 1}}, "names to strings"),
}  # fmt: skip


@pytest.mark.parametrize("name", HEADERS)
def test_a_hostile_header_is_refused(tmp_path, name):
    header, words = HEADERS[name]
    path = safetensors(tmp_path / "x.safetensors", {"x": np.zeros(2)}, header=header)
    with pytest.raises(containers.ContainerError, match=re.escape(words)):
        containers.read(path)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "the header is said to have 0 bytes"),
        (b"\xff" * 8, "bytes"),
        ((100).to_bytes(8, "little") + b"{}", "said to have 100 bytes; there are 2"),
        ((2).to_bytes(8, "little") + b"\xff\xff", "is not JSON"),
        ((9).to_bytes(8, "little") + b"[" * 9, "is not JSON"),
        ((13).to_bytes(8, "little") + b'{"a":1,"a":1}', "a name twice"),
    ],
)
def test_a_broken_safetensors_file_is_refused(tmp_path, data, words):
    (tmp_path / "x.safetensors").write_bytes(data)
    with pytest.raises(containers.ContainerError, match=words):
        containers.read(tmp_path / "x.safetensors")


def test_every_truncation_is_refused_or_lacks_something(tmp_path):
    for writer in (npz, safetensors):
        whole = writer(tmp_path / f"whole.{writer.__name__}", contents()).read_bytes()
        for length in range(0, len(whole), len(whole) // 23):
            path = tmp_path / f"cut.{writer.__name__}"
            path.write_bytes(whole[:length])
            with pytest.raises(DumpError):
                read_dump(path)


def packed(name, data, method=zipfile.ZIP_DEFLATED):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        archive.writestr(name, data)
    return stream.getvalue()


def header(shape, kind="<f8"):
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def test_an_archive_that_unpacks_to_more_than_is_allowed_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(containers, "MOST_BYTES", 100_000)
    (tmp_path / "x.npz").write_bytes(packed("x.npy", b"\0" * 10_000_000))
    with pytest.raises(containers.ContainerError, match="unpack to 10,000,000 bytes; at most"):
        containers.read(tmp_path / "x.npz")
    (tmp_path / "large.npz").write_bytes(b"\0" * 100_001)
    with pytest.raises(containers.ContainerError, match="at most 100,000 are read"):
        containers.read(tmp_path / "large.npz")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (header((2**30, 2**30)) + b"\0" * 16, "needs 9,223,372,036,854,775,808 bytes, there are 16"),
        (header((-1, -2)) + b"\0" * 16, "there are 16"),
        (header((1,), "|O") + b"cos\nsystem\n(S'true'\ntR.", "allowed: float64"),
        (header((1,), "<u8") + b"\0" * 8, "allowed: float64"),
        (b"\x93NUMPY\x09\x00", "is no npy array"),
        (b"nonsense", "is no npy array"),
        (header("(" * 5000), "is no npy array"),
    ],
)
def test_a_hostile_array_is_refused_before_memory_is_touched(tmp_path, data, words):
    (tmp_path / "x.npz").write_bytes(packed("x.npy", data))
    with pytest.raises(containers.ContainerError, match=re.escape(words)):
        containers.read(tmp_path / "x.npz")


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "x.pt").write_bytes(b"")
    with pytest.raises(containers.ContainerError, match=r"allowed: \.safetensors, \.npz"):
        containers.read(tmp_path / "x.pt")
    assert main(["explain", "--dump", str(tmp_path / "missing.npz")]) == 2


# --- The page ---


def test_the_snippet_of_the_page_writes_a_dump_that_conforms(tmp_path, monkeypatch, capsys):
    """The page's own lines, run on the reference."""
    monkeypatch.chdir(tmp_path)
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    names = {"config": CASE.config, "parameters": PARAMETERS, "tokens": TOKENS, "stages": model().stages(TOKENS)}
    exec(compile(snippet, str(PAGE), "exec"), names)
    assert main(["explain", "--dump", "dump.npz"]) == 0
    assert "nothing is wrong" in capsys.readouterr().out


def test_the_page_names_every_stage():
    from decoderspec.spec.precision import STAGE_KEYS

    text = PAGE.read_text(encoding="utf-8")
    assert all(f"`{stage}`" in text for stage in STAGE_KEYS)
