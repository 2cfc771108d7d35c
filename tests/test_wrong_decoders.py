"""Wrong decoders, each the PyTorch example with one line changed: all fail, and the message points at the stage."""

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the wrong decoders are variants of the PyTorch example")

from decoderspec.commands.main import main

EXAMPLE = (Path(__file__).parent.parent / "examples" / "plain_torch.py").read_text(encoding="utf-8")
SUMMED = "lambda logits, targets: torch.nn.functional.cross_entropy(logits.mT, targets, reduction='sum')"
WRONG = {  # what is changed, what it becomes, what the report must say
    "half-split rotation, undeclared": (
        "a, b = x[..., ::2], x[..., 1::2]\n"
        "    rotated = a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()\n"
        "    return torch.stack(rotated, -1).flatten(-2)",
        "a, b = x.chunk(2, -1)\n"
        "    rotated = a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()\n"
        "    return torch.cat(rotated, -1)",
        "half-split-rotation",
    ),
    "epsilon outside the root": (
        "x * torch.rsqrt(mean_square + self.epsilon)",
        "x / (mean_square.sqrt() + self.epsilon)",
        "blocks.0.attention_norm is the first stage that is wrong",
    ),
    "post-norm": (
        "x = x + self.attention(self.norm1(x))",
        "x = self.norm1(x + self.attention(x))",
        "blocks.0.attention",
    ),
    "scale 1/w": (
        "/ math.sqrt(q.shape[-1])",
        "/ q.shape[-1]",
        "blocks.0.attention.weights is the first stage that is wrong",
    ),
    "mask off by one": (".triu(1)", ".triu(2)", "blocks.0.attention.weights is the first stage that is wrong"),
    "gate and up swapped": (
        "silu(self.w1(x)) * self.w3(x)",
        "silu(self.w3(x)) * self.w1(x)",
        "blocks.0.ffn.product is the first stage that is wrong",
    ),
    "head not tied": (
        "return self.head(self.norm(x))",
        "return self.norm(x) @ self.head.weight.detach().T",
        "head-gradient-missing",
    ),
    "loss summed": (
        'Model(module, config, NAMES, TAPS, head="head.weight")',
        f'Model(module, config, NAMES, TAPS, head="head.weight", loss={SUMMED})',
        "LOS-1",
    ),
    "float32 inside": (
        "weights = self.softmax(scores.masked_fill(future, -math.inf))",
        "weights = self.softmax(scores.masked_fill(future, -math.inf).float()).double()",
        "'attention.weights': 'float32'",
    ),
    "negative ids wrapped around": (
        "if ((ids < 0) | (ids >= vocabulary_size)).any():",
        "ids = ids % vocabulary_size if (ids >= -vocabulary_size).all() else ids\n"
        "    if ((ids < 0) | (ids >= vocabulary_size)).any():",
        "INP-1",
    ),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_one_line_fault_is_failed_and_placed(fault, tmp_path, monkeypatch, capsys):
    line, wrong, said = WRONG[fault]
    assert EXAMPLE.count(line) == 1
    path = tmp_path / "decoder.py"
    path.write_text(EXAMPLE.replace(line, wrong), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert main(["check", f"{path}:PlainTorch", "--profile", "quick"]) == 1
    report = capsys.readouterr().out
    assert said in report, report


def test_the_example_itself_conforms(monkeypatch, tmp_path):
    path = Path(__file__).parent.parent / "examples" / "plain_torch.py"
    monkeypatch.chdir(tmp_path)
    assert main(["check", f"{path}:PlainTorch", "--profile", "quick"]) == 0
