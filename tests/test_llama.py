"""Hugging Face's Llama, which nobody here wrote: its declaration decides the verdict, and the suite says what it is."""

import json

import pytest

pytest.importorskip("torch", reason="Llama runs on PyTorch")
pytest.importorskip("transformers", reason="Llama comes with transformers")

from decoderspec.commands.main import main

ADAPTER = "decoderspec.adapters.transformers_llama"
NORMS = ("attention_norm", "ffn_norm", "final_norm")


def verdict(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status = main(["check", f"{ADAPTER}:{name}", "--profile", "quick", "--json", "report.json"])
    return status, json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))


def test_declared_as_float64_it_is_caught_and_the_recipe_is_printed(tmp_path, monkeypatch, capsys):
    status, report = verdict("float64_declared", tmp_path, monkeypatch)
    assert status == 1
    assert report["findings"][0]["stage"] == "blocks.0.attention_norm"
    observed = report["precision"]["observed"]
    assert {part: observed[part] for part in (*NORMS, "attention.weights", "tables")} == dict.fromkeys(
        (*NORMS, "attention.weights", "tables"), "float32"
    )
    assert f"precision = {observed!r}" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("name", ["as_shipped", "float32", "bfloat16", "sdpa_same_dtype"])
def test_declared_as_what_it_is_it_conforms(name, tmp_path, monkeypatch):
    status, report = verdict(name, tmp_path, monkeypatch)
    assert (status, report["contracts"]["forward"], report["contracts"]["training"]) == (0, "conforms", "conforms")
    assert report["contracts"]["inputs"] == "observed"


def test_the_recipe_that_is_printed_is_the_one_that_is_declared(tmp_path, monkeypatch):
    from decoderspec.adapters.transformers_llama import as_shipped

    _, report = verdict("float64_declared", tmp_path, monkeypatch)
    assert report["precision"]["observed"] == as_shipped.precision
