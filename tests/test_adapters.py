"""The adapters and examples agree with one another: written apart, in different layouts, they are one decoder."""

import importlib.util
import io
import tokenize
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from decoderspec.spec.arrays import to_numpy
from decoderspec.spec.config import Config
from decoderspec.spec.layout import layout
from decoderspec.spec.parameters import parameter_shapes
from decoderspec.spec.stages import stage_names, stage_shape, suffix

HOUSE = Path(__file__).parents[1]
FLOAT64 = 1e-10  # a thousand times what independent float64 decoders differ by, a thousandth of one in float32
FLOAT32_AT_LEAST = 1e-9  # what an interior in float32 must show, since one rounding is 6e-8
ADAPTER_LINES = 40
CONFIGS = [
    Config(11, 12, 3, 7, 2, 6),
    Config(17, 24, 2, 20, 3, 9, rope_base=50.0, rms_epsilon=1e-3),
    Config(7, 16, 2, 24, 0, 5),
]
EACH_CONFIG = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: f"{config.layers}_layers")


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, HOUSE / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def plain() -> Any:
    pytest.importorskip("torch", reason="PyTorch is an extra")
    return example("plain_torch").PlainTorch()


@pytest.fixture(scope="module")
def llama() -> Any:
    pytest.importorskip("torch", reason="PyTorch is an extra")
    pytest.importorskip("transformers", reason="transformers is an extra")
    return importlib.import_module("decoderspec.adapters.transformers_llama")


def case(config: Config) -> tuple[dict[str, Any], Any, Any]:
    """Parameters with gains far from 1, and tokens and targets `[2, max_positions]`."""
    random = np.random.default_rng(config.vocabulary_size)
    parameters = {
        name: random.normal(size=shape) / (1 if name.endswith("gain") else shape[0] ** 0.5)
        for name, shape in parameter_shapes(config).items()
    }
    tokens, targets = random.integers(0, config.vocabulary_size, (2, 2, config.max_positions))
    return parameters, tokens, targets


def built(implementation: Any, config: Config) -> Any:
    parameters, _, _ = case(config)
    return implementation.build(config, layout(implementation.layout).apply(config, parameters))


def arrays(tensors: Any) -> dict[str, Any]:
    return {name: to_numpy(tensor)[0] for name, tensor in tensors.items()}


def outputs(implementation: Any, config: Config) -> dict[str, Any]:
    """All that a model gives of the case of a configuration, in canonical names and layout."""
    _, tokens, targets = case(config)
    model, declared = built(implementation, config), layout(implementation.layout)
    lookup, head = model.role_gradients(tokens, targets)
    return {
        **declared.stages(config, arrays(model.stages(tokens))),
        **declared.adjoint(config, arrays(model.gradients(tokens, targets))),
        **arrays({"logits": model.logits(tokens), "lookup": lookup, "head": head}),
        "loss": np.asarray(model.loss(tokens, targets)),
    }


@EACH_CONFIG
def test_llama_in_its_own_dtype_is_the_plain_decoder(config: Config, llama: Any, plain: Any) -> None:
    ours, theirs = outputs(plain, config), outputs(llama.sdpa_same_dtype, config)
    assert set(parameter_shapes(config)) <= set(ours) & set(theirs)
    for name in set(ours) & set(theirs):
        np.testing.assert_allclose(theirs[name], ours[name], rtol=FLOAT64, atol=FLOAT64, err_msg=name)


@EACH_CONFIG
def test_llama_as_shipped_computes_in_float32_inside(config: Config, llama: Any, plain: Any) -> None:
    _, tokens, _ = case(config)
    shipped, dtype = to_numpy(built(llama.as_shipped, config).logits(tokens))
    exact, _ = to_numpy(built(plain, config).logits(tokens))
    assert dtype == "float64"
    assert np.abs(shipped - exact).max() > FLOAT32_AT_LEAST


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float64_declared"])
def test_llama_answers_in_its_dtype(name: str, llama: Any) -> None:
    implementation = getattr(llama, name)
    _, tokens, targets = case(CONFIGS[0])
    model = built(implementation, CONFIGS[0])
    assert to_numpy(model.logits(tokens))[1] == implementation.precision
    assert {to_numpy(g)[1] for g in model.gradients(tokens, targets).values()} == {implementation.precision}
    assert np.isfinite(model.loss(tokens, targets))


@EACH_CONFIG
@pytest.mark.parametrize("which", ["sdpa_same_dtype", "as_shipped", "plain"])
def test_stages_have_the_names_and_shapes_of_the_text(config: Config, which: str, llama: Any, plain: Any) -> None:
    model = built(plain if which == "plain" else getattr(llama, which), config)
    stages = arrays(model.stages(case(config)[1]))
    unseen = {"attention.rotated_query", "attention.rotated_key", "attention.heads"}
    unseen |= {"plain": {"ffn.silu"}, "sdpa_same_dtype": {"attention.weights"}}.get(which, set())
    assert list(stages) == [stage for stage in stage_names(config.layers) if suffix(stage) not in unseen]
    for stage, value in stages.items():
        assert value.shape == stage_shape(stage, config, 2, config.max_positions), stage


@EACH_CONFIG
@pytest.mark.parametrize("which", ["sdpa_same_dtype", "plain"])
def test_roles_add_up_to_the_tied_gradient(config: Config, which: str, llama: Any, plain: Any) -> None:
    implementation = plain if which == "plain" else getattr(llama, which)
    given = outputs(implementation, config)
    np.testing.assert_allclose(
        given["lookup"] + given["head"], given["token_embedding.weight"], rtol=FLOAT64, atol=FLOAT64
    )
    unused = np.setdiff1d(np.arange(config.vocabulary_size), case(config)[1])
    assert not given["lookup"][unused].any()


@EACH_CONFIG
@pytest.mark.parametrize("which", ["sdpa_same_dtype", "plain"])
def test_parameters_come_back_and_assignment_reaches_both_roles(
    config: Config, which: str, llama: Any, plain: Any
) -> None:
    implementation = plain if which == "plain" else getattr(llama, which)
    parameters, tokens, _ = case(config)
    model, declared = built(implementation, config), layout(implementation.layout)
    back = declared.invert(config, arrays(model.parameters()))
    assert list(back) == list(parameters)
    for name, value in parameters.items():
        np.testing.assert_array_equal(back[name], value, err_msg=name)
    before = to_numpy(model.logits(tokens))[0]
    table = "token_embedding.weight"
    model.assign(declared.rename(config)[table], parameters[table] * 2)
    np.testing.assert_array_equal(to_numpy(model.parameters()[declared.holder(table)])[0], parameters[table] * 2)
    if config.layers == 0:  # then only the head sees the factor, but for epsilon
        np.testing.assert_allclose(to_numpy(model.logits(tokens))[0], before * 2, rtol=1e-3)


def test_assignment_of_another_shape_is_refused(plain: Any) -> None:
    with pytest.raises(ValueError, match=r"norm\.weight must have shape \(12,\), got \(1,\)"):
        built(plain, CONFIGS[0]).assign("norm.weight", np.ones(1))


@EACH_CONFIG
def test_function_is_the_plain_decoder(config: Config, plain: Any) -> None:
    parameters, tokens, _ = case(config)
    logits = example("plain_function").logits(config, parameters, tokens)
    np.testing.assert_allclose(logits, to_numpy(built(plain, config).logits(tokens))[0], rtol=FLOAT64, atol=FLOAT64)


def test_kernel_and_its_derivative_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is an extra")
    kernel = example("rms_norm_kernel")
    x, upstream, gain = (
        torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in [(2, 3, 5), (2, 3, 5), (5,)]
    )
    result = torch.nn.functional.rms_norm(x, (5,), gain, 1e-3)
    values = [tensor.detach().numpy() for tensor in (upstream, x, gain)]
    np.testing.assert_allclose(kernel.rms_norm(*values[1:], 1e-3), result.detach(), rtol=FLOAT64)
    expected = torch.autograd.grad(result, (x, gain), upstream)
    for ours, theirs in zip(kernel.rms_norm_backward(*values, 1e-3), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=FLOAT64, atol=FLOAT64)


@pytest.mark.parametrize(
    ("library", "adapter"),
    [
        ("litgpt", "litgpt_gpt:as_shipped"),
        ("litgpt", "litgpt_gpt:interleaved"),
        ("x_transformers", "x_transformers_decoder:float64"),
    ],
)
def test_other_adapters_are_the_plain_decoder_but_for_their_float32_parts(
    library: str, adapter: str, plain: Any
) -> None:
    pytest.importorskip(library, reason=f"{library} is not installed")
    module, _, name = adapter.partition(":")
    implementation = getattr(importlib.import_module(f"decoderspec.adapters.{module}"), name)
    config = Config(11, 12, 3, 7, 2, 6, rms_epsilon=0.0)
    _, tokens, targets = case(config)
    model, declared, ours = built(implementation, config), layout(implementation.layout), outputs(plain, config)
    theirs = {
        **declared.stages(config, arrays(model.stages(tokens))),
        **declared.adjoint(config, arrays(model.gradients(tokens, targets))),
        "loss": np.asarray(model.loss(tokens, targets)),
    }
    assert {*parameter_shapes(config), "logits", "blocks.1.attention.value", "blocks.1.ffn.gate"} <= set(theirs)
    for name in set(ours) & set(theirs):
        np.testing.assert_allclose(theirs[name], ours[name], rtol=1e-4, atol=1e-4, err_msg=name)


GOOD = {"vocabulary_size": 5, "model_width": 8, "heads": 2, "feed_forward_width": 6, "layers": 1, "max_positions": 4}


@pytest.mark.parametrize(
    ("category", "change"),
    [
        *(("configuration", {field: 0}) for field in GOOD if field != "layers"),
        *(("configuration", {field: -1}) for field in GOOD),
        *(("configuration", {field: True}) for field in GOOD),
        *(("configuration", {field: 2.0}) for field in GOOD),
        ("configuration", {"heads": 3}),
        ("configuration", {"heads": 8}),
        *(("configuration", {"rope_base": v}) for v in (0.0, -1.0, np.inf, np.nan, "10")),
        *(("configuration", {"rms_epsilon": v}) for v in (-1e-6, np.inf, np.nan, None)),
        ("resource", {"layers": 2**40}),
    ],
)
def test_plain_decoder_refuses_bad_configurations(category: str, change: Any, plain: Any) -> None:
    with pytest.raises(ValueError, match=r".") as refusal:
        plain.build(Config(**{**GOOD, **change}), {})
    assert plain.classify(refusal.value) == category


@pytest.mark.parametrize("layers", [0, 1])
@pytest.mark.parametrize("change", ["missing", "unknown", "shape", "infinite"])
def test_plain_decoder_refuses_bad_parameters(layers: int, change: str, plain: Any) -> None:
    config = Config(**{**GOOD, "layers": layers})
    parameters, _, _ = case(config)
    gain = parameters.pop("final_norm.gain")
    parameters |= {
        "missing": {},
        "unknown": {"final_norm.gain": gain, "head.weight": np.ones((5, 8))},
        "shape": {"final_norm.gain": gain[:1]},
        "infinite": {"final_norm.gain": gain * np.inf},
    }[change]
    with pytest.raises(ValueError, match=r"norm\.weight|head\.weight") as refusal:
        plain.build(config, layout(plain.layout).apply(config, parameters))
    assert plain.classify(refusal.value) == "parameters"


@pytest.mark.parametrize(
    ("category", "tokens", "targets"),
    [
        ("token_shape", [1, 2], [1, 2]),
        ("token_shape", [], []),
        ("token_shape", [[]], [[]]),
        ("token_shape", np.zeros((0, 3), int), np.zeros((0, 3), int)),
        ("token_shape", [[1], [1, 2]], [[1, 2, 3]]),
        ("token_shape", [[1.0, 2.0]], [[1, 2]]),
        ("token_shape", [[True, False]], [[1, 2]]),
        ("context", [[0, 1, 2, 3, 4]], [[0, 1, 2, 3, 4]]),
        ("target_shape", [[1, 2]], [[1]]),
        ("target_shape", [[1, 2]], [[1.0, 2.0]]),
        ("target_vocabulary", [[1, 2]], [[1, 5]]),
        ("target_vocabulary", [[1, 9]], [[1, -1]]),
        ("vocabulary", [[1, 5]], [[1, 2]]),
        ("vocabulary", [[1, -1]], [[1, 2]]),
        ("vocabulary", np.array([[2**64 - 1]], np.uint64), [[1]]),
    ],
)
def test_plain_decoder_refuses_bad_tokens_and_targets(category: str, tokens: Any, targets: Any, plain: Any) -> None:
    model = built(plain, Config(**GOOD))
    about_targets = category.startswith("target")
    calls = [] if about_targets else [model.logits, model.stages]
    for call in [*calls, *(lambda z, f=f: f(z, targets) for f in (model.loss, model.gradients, model.role_gradients))]:
        with pytest.raises(ValueError, match=r".") as refusal:
            call(tokens)
        assert plain.classify(refusal.value) == category


def test_plain_decoder_refuses_a_row_without_energy(plain: Any) -> None:
    config = Config(**GOOD, rms_epsilon=0.0)
    model = built(plain, config)
    assert np.isfinite(to_numpy(model.logits([[0, 1]]))[0]).all()
    model.assign("embed.weight", np.zeros((5, 8)))
    with pytest.raises(ValueError, match="zero mean square") as refusal:
        model.logits([[0, 1]])
    assert plain.classify(refusal.value) == "numeric"


def test_an_adapter_is_short() -> None:
    source = (HOUSE / "adapters" / "transformers_llama.py").read_text()
    blank = {tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT}
    tokens = [t for t in tokenize.generate_tokens(io.StringIO(source).readline) if t.string and t.type not in blank]
    code = {t.start[0] for t in tokens if not t.string.startswith('"""')}
    assert len(code) <= ADAPTER_LINES
