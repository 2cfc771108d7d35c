"""An implementation as the properties see it: canonical float64 copies; every failure of a call is a finding."""

from types import MappingProxyType, SimpleNamespace

import numpy as np
import pytest

from decoderspec.properties.cases import Case, arrays, draw_parameters
from decoderspec.properties.findings import Absent, Finding
from decoderspec.properties.run import PROFILES, Run
from decoderspec.properties.subject import ALIVE, EMULATIONS, read_subject
from decoderspec.properties.test_state import (
    test_an_earlier_result_stays_as_it_was as earlier_result,
)
from decoderspec.properties.test_state import (
    test_calls_leave_the_parameters_alone as parameters_left_alone,
)
from decoderspec.properties.test_state import (
    test_the_tokens_are_left_alone as tokens_left_alone,
)
from decoderspec.reference import Reference
from decoderspec.spec.arrays import round_to
from decoderspec.spec.config import Config
from decoderspec.spec.parameters import TABLE, parameter_shapes
from decoderspec.spec.precision import FORMATS, DeclarationError
from decoderspec.spec.protocol import CAPABILITIES, CONTRACTS

CASE = Case(Config(7, 12, 3, 5, 2, 6, 10.0, 1e-3), 2, 5, 3)
BLOCK_WEIGHTS = ("query", "key", "value", "output")


def half_split(width):
    """Their feature of each canonical one, within a head: pairs `(2i, 2i + 1)` lie at `i` and `i + w/2`."""
    return [(j // 2) + (width // 2) * (j % 2) for j in range(width)]


class Foreign:
    """The reference behind a foreign layout: half-split, `[out, in]`, fused qkv and gate with up, gains minus one."""

    name = "foreign"
    layout = MappingProxyType(
        {
            "rotation": "half_split",
            "matrices": "out_in",
            "gain_offset": 1.0,
            "fused": {
                "h.{n}.qkv": [f"blocks.{{n}}.attention.{name}.weight" for name in ("query", "key", "value")],
                "h.{n}.gate_up": ["blocks.{n}.ffn.gate.weight", "blocks.{n}.ffn.up.weight"],
            },
            "names": {TABLE: "wte", "blocks.{n}.attention_norm.gain": "h.{n}.ln"},
        }
    )

    def build(self, config, theirs):
        return ForeignModel(config, theirs)


class ForeignModel:
    """Everything is undone and done by hand, index by index, apart from the suite's own layout."""

    def __init__(self, config, theirs):
        self.config, self.theirs = config, theirs
        self.model = Reference().build(config, self.canonical())

    def features(self):
        """Row of theirs for each canonical feature of queries and keys."""
        c = self.config
        return [head * c.head_width + j for head in range(c.heads) for j in half_split(c.head_width)]

    def canonical(self):
        d, f, found = self.config.model_width, self.config.feed_forward_width, {TABLE: self.theirs["wte"]}
        for n in range(self.config.layers):
            qkv, gate_up, at = self.theirs[f"h.{n}.qkv"], self.theirs[f"h.{n}.gate_up"], f"blocks.{n}."
            assert qkv.shape == (3 * d, d)
            assert gate_up.shape == (2 * f, d)
            found[at + "attention_norm.gain"] = self.theirs[f"h.{n}.ln"] + 1
            found[at + "attention.query.weight"] = qkv[:d][self.features()].T
            found[at + "attention.key.weight"] = qkv[d : 2 * d][self.features()].T
            found[at + "attention.value.weight"] = qkv[2 * d :].T
            found[at + "attention.output.weight"] = self.theirs[at + "attention.output.weight"].T
            found[at + "ffn_norm.gain"] = self.theirs[at + "ffn_norm.gain"] + 1
            found[at + "ffn.gate.weight"], found[at + "ffn.up.weight"] = gate_up[:f].T, gate_up[f:].T
            found[at + "ffn.down.weight"] = self.theirs[at + "ffn.down.weight"].T
        found["final_norm.gain"] = self.theirs["final_norm.gain"] + 1
        return found

    def foreign(self, canonical, offset):
        """Back again; with no offset for gradients."""
        found = {"wte": canonical[TABLE]}
        for n in range(self.config.layers):
            at = f"blocks.{n}."
            query, key = (np.empty_like(canonical[at + "attention.query.weight"].T) for _ in range(2))
            query[self.features()] = canonical[at + "attention.query.weight"].T
            key[self.features()] = canonical[at + "attention.key.weight"].T
            value = canonical[at + "attention.value.weight"].T
            found[f"h.{n}.ln"] = canonical[at + "attention_norm.gain"] - offset
            found[f"h.{n}.qkv"] = np.concatenate([query, key, value])
            found[at + "attention.output.weight"] = canonical[at + "attention.output.weight"].T
            found[at + "ffn_norm.gain"] = canonical[at + "ffn_norm.gain"] - offset
            gate_up = [canonical[at + "ffn.gate.weight"].T, canonical[at + "ffn.up.weight"].T]
            found[f"h.{n}.gate_up"] = np.concatenate(gate_up)
            found[at + "ffn.down.weight"] = canonical[at + "ffn.down.weight"].T
        found["final_norm.gain"] = canonical["final_norm.gain"] - offset
        return found

    def logits(self, tokens):
        return self.model.logits(tokens)

    def parameters(self):
        return self.foreign(self.model.parameters(), 1.0)

    def gradients(self, tokens, targets):
        return self.foreign(self.model.gradients(tokens, targets), 0.0)

    def stages(self, tokens):
        stages = self.model.stages(tokens)
        order = np.argsort(half_split(self.config.head_width))
        turned = ("query", "key")
        return {
            name: value[..., order] if name.rpartition(".")[2].rpartition("_")[2] in turned else value
            for name, value in stages.items()
        }

    def assign(self, name, value):
        names = {"wte": TABLE, "h.0.ln": "blocks.0.attention_norm.gain"}
        canonical = names.get(name, name)
        value = value + 1 if canonical.endswith("gain") else value if canonical == TABLE else value.T
        self.model.assign(canonical, value)


def test_the_layout_is_applied_both_ways():
    subject = read_subject(Foreign())
    model, drawn = subject.model(CASE), draw_parameters(CASE, subject.recipe)
    plain = Reference().build(CASE.config, drawn)
    tokens, targets = arrays(CASE)
    np.testing.assert_array_equal(model.logits(tokens), plain.logits(tokens))
    for what, got, expected in (
        ("parameters", model.parameters(), drawn),
        ("gradients", model.gradients(tokens, targets), plain.gradients(tokens, targets)),
        ("stages", model.stages(tokens), plain.stages(tokens)),
    ):
        assert list(got) == list(expected), what
        for name, value in expected.items():
            np.testing.assert_array_equal(got[name], value, err_msg=f"{what} {name}")


def test_the_layout_of_the_test_does_move_what_the_suite_must_move_back():
    weights = draw_parameters(CASE, read_subject(Foreign()).recipe)
    theirs = read_subject(Foreign()).theirs(CASE.config, weights)
    d = CASE.config.model_width
    assert not np.array_equal(theirs["h.0.qkv"][:d].T, weights["blocks.0.attention.query.weight"])
    model = read_subject(Foreign()).model(CASE)
    tokens = arrays(CASE)[0]
    raw, canonical = model.model.stages(tokens), model.stages(tokens)
    assert not np.array_equal(raw["blocks.0.attention.query"], canonical["blocks.0.attention.query"])


@pytest.mark.parametrize("name", [TABLE, "blocks.0.attention_norm.gain", "blocks.1.ffn.down.weight", "final_norm.gain"])
def test_a_parameter_that_is_a_tensor_of_its_own_is_assigned_through_the_layout(name):
    model = read_subject(Foreign()).model(CASE)
    value = np.asarray(
        round_to(np.random.default_rng(0).normal(size=parameter_shapes(CASE.config)[name]), FORMATS["float16"])
    )
    model.assign(name, value)
    np.testing.assert_array_equal(model.parameters()[name], value)


def test_a_parameter_that_shares_a_tensor_cannot_be_assigned_alone():
    with pytest.raises(Absent, match="shares a tensor"):
        read_subject(Foreign()).model(CASE).assign("blocks.0.attention.key.weight", np.zeros((12, 12)))


@pytest.mark.parametrize(
    "changes",
    [{"rotation": "adjacent"}, {"matrices": "in_out", "fused": {}}, {"gain_offset": 0.0}],
    ids=str,
)
def test_a_layout_that_is_declared_wrongly_is_seen(changes):
    class Misdeclared(Foreign):
        layout = MappingProxyType({**Foreign.layout, **changes})

    subject = read_subject(Misdeclared())
    tokens = arrays(CASE)[0]
    expected = Reference().build(CASE.config, draw_parameters(CASE, subject.recipe)).logits(tokens)
    try:
        got = subject.model(CASE).logits(tokens)
    except Finding:
        return  # tensors that do not fit
    assert not np.allclose(got, expected)


# --- What it is built from ---


class Recording(Reference):
    def build(self, config, parameters):
        self.given = dict(parameters)
        return super().build(config, parameters)


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_parameters_are_rounded_to_the_declared_precision_before_they_are_handed_over(precision):
    implementation = Recording()
    subject = read_subject(implementation, precision)
    subject.model(CASE)
    exact = draw_parameters(CASE, read_subject(Recording()).recipe)
    for name, value in implementation.given.items():
        assert value.dtype == np.float64
        np.testing.assert_array_equal(value, round_to(exact[name], FORMATS[precision]))
        np.testing.assert_array_equal(subject.parameters(CASE)[name], value)


def test_a_model_is_built_once_while_it_is_among_the_last():
    subject = read_subject(Reference())
    first = subject.model(CASE)
    assert subject.model(CASE) is first
    assert subject.builds == 1


def test_few_models_are_alive_and_the_others_are_closed():
    closed = []

    class Closing(Reference):
        def build(self, config, parameters):
            number = len(closed) + len(subject.models)
            return SimpleNamespace(logits=lambda tokens: tokens, close=lambda: closed.append(number))

    subject = read_subject(Closing())
    for seed in range(5):
        subject.model(Case(CASE.config, 1, 2, seed))
    assert len(subject.models) == ALIVE
    assert len(closed) == 5 - ALIVE
    subject.close()
    assert len(closed) == 5


# --- What comes back ---


def model_of(**methods):
    found = SimpleNamespace(**methods)
    implementation = SimpleNamespace(name="made up", build=lambda config, parameters: found)
    return read_subject(implementation).model(CASE)


TOKENS, TARGETS = arrays(CASE)
LOGITS = (*TOKENS.shape, CASE.config.vocabulary_size)
ZEROS = {name: np.zeros(shape) for name, shape in parameter_shapes(CASE.config).items()}


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int64"])
def test_results_are_float64_copies_and_their_dtype_is_noted(dtype):
    kept = np.ones(LOGITS, dtype)
    model = model_of(logits=lambda tokens: kept)
    got = model.logits(TOKENS)
    assert got.dtype == np.float64
    assert not np.may_share_memory(got, kept)
    assert model.subject.dtypes["logits"] == dtype


def test_views_are_read_as_they_are_and_kept_as_copies():
    whole = np.arange(2.0 * np.prod(LOGITS)).reshape(*LOGITS[:2], 2 * LOGITS[2])
    model = model_of(logits=lambda tokens: whole[..., ::2])
    got = model.logits(TOKENS)
    expected = whole[..., ::2].copy()
    whole[...] = -1
    np.testing.assert_array_equal(got, expected)


def test_lists_are_arrays():
    got = model_of(logits=lambda tokens: np.zeros(LOGITS).tolist(), loss=lambda *batch: [[2.5]])
    assert got.logits(TOKENS).shape == LOGITS
    assert got.loss(TOKENS, TARGETS) == 2.5


WRONG_LOGITS = {
    "a missing axis": np.zeros(LOGITS[1:]),
    "the last row only": np.zeros((LOGITS[0], 1, LOGITS[2])),
    "batch and tokens swapped": np.zeros((LOGITS[1], LOGITS[0], LOGITS[2])),
    "objects": np.full(LOGITS, None),
    "strings": np.full(LOGITS, "0"),
    "booleans": np.zeros(LOGITS, bool),
    "complex numbers": np.zeros(LOGITS, complex),
    "records": np.zeros(LOGITS, [("a", float)]),
    "nothing": None,
    "a ragged list": [[1.0], [1.0, 2.0]],
    "a module": np,
}


@pytest.mark.parametrize("what", WRONG_LOGITS)
def test_logits_that_are_no_array_of_the_shape_are_a_finding(what):
    with pytest.raises(Finding, match="logits"):
        model_of(logits=lambda tokens: WRONG_LOGITS[what]).logits(TOKENS)


@pytest.mark.parametrize("value", [np.zeros(2), np.zeros(TOKENS.shape), [], "2.5", None, True])
def test_a_loss_that_is_no_number_is_a_finding(value):
    with pytest.raises(Finding, match="loss"):
        model_of(loss=lambda tokens, targets: value).loss(TOKENS, TARGETS)


WRONG_GRADIENTS = {
    "a list": list(ZEROS.values()),
    "nothing": None,
    "one missing": {name: value for name, value in ZEROS.items() if name != TABLE},
    "one unknown": {**ZEROS, "lm_head.weight": np.zeros((7, 12))},
    "one transposed": {**ZEROS, "blocks.0.ffn.up.weight": np.zeros((5, 12))},
    "one None": {**ZEROS, "final_norm.gain": None},
}


@pytest.mark.parametrize("what", WRONG_GRADIENTS)
def test_gradients_that_are_not_those_of_the_parameters_are_a_finding(what):
    with pytest.raises(Finding, match="gradient"):
        model_of(gradients=lambda *batch: WRONG_GRADIENTS[what]).gradients(TOKENS, TARGETS)


@pytest.mark.parametrize(
    "value", [None, (np.zeros((7, 12)),), (np.zeros((7, 12)), np.zeros((12, 7))), np.zeros((2, 7, 12))]
)
def test_role_gradients_that_are_no_pair_of_tables_are_a_finding(value):
    with pytest.raises(Finding, match=r"role_gradients|head gradient"):
        model_of(role_gradients=lambda *batch: value).role_gradients(TOKENS, TARGETS)


@pytest.mark.parametrize(
    "value",
    [[], {"logit": np.zeros(LOGITS)}, {"blocks.2.output": np.zeros((2, 5, 12))}, {"embedding": np.zeros((5, 2, 12))}],
    ids=["a list", "an unknown name", "a block too many", "a wrong shape"],
)
def test_stages_that_the_text_does_not_have_are_a_finding(value):
    with pytest.raises(Finding, match="stage"):
        model_of(stages=lambda tokens: value).stages(TOKENS)


def raising(error):
    def call(*arguments):
        raise error

    return call


@pytest.mark.parametrize(
    "error", [ValueError("x" * 2000), SystemExit(0), GeneratorExit(), MemoryError(), RecursionError()]
)
@pytest.mark.parametrize("method", ["logits", "loss", "gradients", "role_gradients", "stages"])
def test_a_call_that_raises_on_valid_input_is_a_finding(method, error):
    arguments = (TOKENS,) if method in ("logits", "stages") else (TOKENS, TARGETS)
    with pytest.raises(Finding, match=f"{method} raised {type(error).__name__}") as found:
        getattr(model_of(**{method: raising(error)}), method)(*arguments)
    assert __file__ in found.value.message
    assert len(found.value.message) < 1500


def test_building_that_raises_on_valid_input_is_a_finding():
    implementation = SimpleNamespace(name="x", build=raising(SystemExit(3)))
    with pytest.raises(Finding, match="build raised SystemExit"):
        read_subject(implementation).model(CASE)


def test_a_capability_that_is_not_implemented_does_not_hold():
    with pytest.raises(Finding, match="offered but raises NotImplementedError"):
        model_of(loss=raising(NotImplementedError("soon"))).loss(TOKENS, TARGETS)


def test_an_interrupt_is_the_users():
    with pytest.raises(KeyboardInterrupt):
        model_of(logits=raising(KeyboardInterrupt())).logits(TOKENS)


@pytest.mark.parametrize("capability", [name for name in CAPABILITIES if name != "initialize"])
def test_a_capability_that_is_missing_is_absent_and_says_what_to_add(capability):
    model = model_of(logits=lambda tokens: tokens)
    arguments = {"assign": (TABLE, np.zeros((7, 12))), "parameters": (), "stages": (TOKENS,)}
    with pytest.raises(Absent, match=capability):
        getattr(model, capability)(*arguments.get(capability, (TOKENS, TARGETS)))


# --- What an implementation may not do ---


def run_over(implementation) -> Run:
    return Run(read_subject(implementation), "", PROFILES["quick"])


def tampering(change):
    """The reference, with something done in each call of logits."""

    class Tampering(Reference):
        def build(self, config, parameters):
            model = super().build(config, parameters)
            logits = lambda tokens: change(model, tokens)  # noqa: E731
            return SimpleNamespace(logits=logits, parameters=model.parameters)

    return run_over(Tampering())


def test_tokens_arrive_as_fresh_writable_int64():
    seen = []
    model = model_of(logits=lambda tokens: seen.append(tokens) or np.zeros(LOGITS))
    model.logits(TOKENS)
    assert seen[0].dtype == np.int64
    assert seen[0].flags.writeable
    assert not np.may_share_memory(seen[0], TOKENS)


def test_a_model_that_writes_to_its_tokens_is_found():
    def change(model, tokens):
        logits = model.logits(tokens)
        tokens += 1
        return logits

    with pytest.raises(Finding, match="written to"):
        tokens_left_alone.property.check(tampering(change), CASE)


def test_a_model_that_writes_to_its_parameters_is_found():
    def change(model, tokens):
        model.weights[TABLE][0, 0] += 1
        return model.logits(tokens)

    with pytest.raises(Finding, match="changed a parameter"):
        parameters_left_alone.property.check(tampering(change), CASE)


def test_a_model_that_returns_one_buffer_is_found():
    buffers = {}

    def change(model, tokens):
        logits = model.logits(tokens)
        kept = buffers.setdefault(logits.shape, np.empty_like(logits))
        kept[...] = logits
        return kept

    with pytest.raises(Finding, match="overwritten"):
        earlier_result.property.check(tampering(change), CASE)


@pytest.mark.parametrize("property_", [tokens_left_alone, parameters_left_alone, earlier_result])
def test_the_reference_tampers_with_nothing(property_):
    property_.property.check(tampering(lambda model, tokens: model.logits(tokens)), CASE)


# --- Declarations ---


def declared(**declarations):
    return SimpleNamespace(build=None, **declarations)


def test_saying_nothing_declares_float64_in_the_canonical_layout_and_claims_nothing_by_name():
    subject = read_subject(declared())
    assert subject.recipe.declared == "float64"
    assert subject.layout.rotation == "adjacent"
    assert (subject.claims, subject.limits, subject.emulates) == (None, {}, ())


def test_arguments_override_what_is_declared():
    subject = read_subject(declared(precision="float32", claims=["forward"]), "bfloat16", "weights,inputs")
    assert subject.recipe.declared == "bfloat16"
    assert subject.claims == ("weights", "inputs")


@pytest.mark.parametrize("claims", [CONTRACTS, list(CONTRACTS), ",".join(CONTRACTS), " , ".join(CONTRACTS) + ","])
def test_claims_are_a_list_or_one_word_with_commas(claims):
    assert read_subject(declared(claims=claims)).claims == CONTRACTS


@pytest.mark.parametrize(
    "declarations",
    [
        {"claims": ["foward"]},
        {"claims": 5},
        {"claims": [1]},
        {"precision": "float12"},
        {"precision": 32},
        {"layout": {"rotation": "interleaved"}},
        {"layout": {"rotary": "adjacent"}},
        {"limits": [("heads", 2)]},
        {"limits": 5},
        {"emulates": ["rows"]},
        {"emulates": 3},
    ],
    ids=str,
)
def test_declarations_that_cannot_be_read_are_refused(declarations):
    with pytest.raises(DeclarationError):
        read_subject(declared(**declarations))


@pytest.mark.parametrize("named", ["batch", ["batch"], EMULATIONS])
def test_what_is_emulated_is_a_word_or_a_list(named):
    assert set(read_subject(declared(emulates=named)).emulates) <= set(EMULATIONS)
    assert "batch" in read_subject(declared(emulates=named)).emulates


def test_a_pair_of_gradients_is_read_one_by_one():
    pair = (np.ones((5, 4)), [[0.0] * 4] * 5)  # of types that no one array holds
    model = model_of(role_gradients=lambda tokens, targets: pair)
    found = model.read("role_gradients", model.raw("role_gradients", TOKENS, TARGETS))
    assert {name: value.sum() for name, value in found.items()} == {"lookup": 20.0, "head": 0.0}
