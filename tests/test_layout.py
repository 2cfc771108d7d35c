"""The layout is one affine map: tested are its inverse, its adjoint and what it refuses."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoderspec.spec.config import Config
from decoderspec.spec.layout import (
    BLOCK,
    MATRICES,
    PATTERNS,
    Layout,
    LayoutError,
    half_split_order,
    layout,
)
from decoderspec.spec.parameters import TABLE, parameter_shapes
from decoderspec.spec.precision import DeclarationError

QKV = [BLOCK + f"attention.{name}.weight" for name in ("query", "key", "value")]
GATE_UP = [BLOCK + "ffn.gate.weight", BLOCK + "ffn.up.weight"]
SMALL = Config(5, 12, 3, 7, 2, 4)  # width 4: two pairs in a head


def drawn(config: Config, seed: int) -> dict[str, Any]:
    """Multiples of 1/64, so that an offset and a float16 round nothing."""
    random = np.random.default_rng(seed)
    shapes = parameter_shapes(config)
    return {name: random.integers(-256, 256, shape) / 64 for name, shape in shapes.items()}


@st.composite
def configs(draw: st.DrawFn) -> Config:
    heads = draw(st.integers(1, 3))
    width = 2 * draw(st.integers(1, 3))
    sizes = [draw(st.integers(1, 7)) for _ in range(2)]
    return Config(sizes[0], heads * width, heads, sizes[1], draw(st.integers(0, 3)), 4)


@st.composite
def declarations(draw: st.DrawFn) -> dict[str, Any]:
    stacked = draw(st.booleans())
    block = "" if stacked else "{n}."
    fused = draw(st.sampled_from([{}, {"qkv": QKV}, {"gate_up": GATE_UP[::-1]}, {"qkv": QKV, "gate_up": GATE_UP}]))
    taken = [part for parts in fused.values() for part in parts]
    named = draw(st.lists(st.sampled_from([p for p in PATTERNS if p not in taken]), unique=True))
    return {
        "rotation": draw(st.sampled_from(["adjacent", "half_split"])),
        "matrices": draw(st.sampled_from(["in_out", "out_in"])),
        "gain_offset": draw(st.sampled_from([0, 1, -0.5])),
        "stacked": stacked,
        "fused": {f"layers.{block}{name}": parts for name, parts in fused.items()},
        "names": {p: f"theirs.{p.replace('{n}.', block)}" for p in named},
    }


@given(configs(), declarations(), st.integers(0, 2**32), st.sampled_from([np.float64, np.float32, np.float16]))
def test_inverse_restores_values_order_and_dtype(config: Config, declared: Any, seed: int, dtype: Any) -> None:
    parameters = {name: value.astype(dtype) for name, value in drawn(config, seed).items()}
    layout_ = layout(declared)
    theirs = layout_.apply(config, parameters)
    back = layout_.invert(config, theirs)
    assert list(back) == list(parameters)
    for name, value in parameters.items():
        np.testing.assert_array_equal(back[name], value, err_msg=name, strict=True)
    for name, value in {**theirs, **back}.items():
        assert value.dtype == dtype, name
        assert value.flags.c_contiguous, name
        assert not any(np.may_share_memory(value, given) for given in parameters.values()), name


@given(configs(), declarations(), st.integers(0, 2**32))
def test_adjoint_is_the_adjoint_of_the_linear_part(config: Config, declared: Any, seed: int) -> None:
    layout_ = layout(declared)
    x = drawn(config, seed)
    at_x = layout_.apply(config, x)
    at_0 = layout_.apply(config, {name: np.zeros_like(value) for name, value in x.items()})
    y = layout_.apply(config, drawn(config, seed + 1))
    pulled = layout_.adjoint(config, y)
    theirs = sum(float(((at_x[name] - at_0[name]) * y[name]).sum()) for name in y)
    ours = sum(float((x[name] * pulled[name]).sum()) for name in x)
    assert theirs == ours  # multiples of 2^-12 below 2^53: the sums are exact


@given(configs(), declarations())
def test_their_names_are_those_that_apply_gives(config: Config, declared: Any) -> None:
    layout_ = layout(declared)
    parameters = drawn(config, 0)
    theirs = layout_.apply(config, parameters)
    assert {layout_.holder(name) for name in parameters} <= set(theirs)
    for name, their_name in layout_.rename(config).items():
        assert theirs[their_name].size == parameters[name].size
    assert len(set(layout_.rename(config).values())) == len(layout_.rename(config))


@given(configs(), declarations())
def test_shapes_are_those_of_theirs_with_blocks_and_without(config: Config, declared: Any) -> None:
    layout_ = layout(declared)
    without = layout_.apply(Config(5, 12, 3, 7, 0, 4), drawn(Config(5, 12, 3, 7, 0, 4), 0))
    with_blocks = layout_.apply(SMALL, drawn(SMALL, 0))
    if declared["stacked"]:
        assert list(without) == list(with_blocks)
        assert all(without[n].shape[1:] == v.shape[1:] for n, v in with_blocks.items())
        assert sum(value.shape[0] == 0 for value in without.values()) == len(without) - 2
    else:
        assert len(without) == 2


def test_an_empty_declaration_changes_nothing() -> None:
    parameters = drawn(SMALL, 0)
    theirs = layout({}).apply(SMALL, parameters)
    assert list(theirs) == list(parameters)
    assert all((theirs[name] == value).all() for name, value in parameters.items())
    assert layout({}) == Layout()
    assert layout({}).rename(SMALL) == {name: name for name in parameters}


def test_half_split_puts_the_pair_2i_at_i_and_i_plus_half_the_width() -> None:
    assert half_split_order(2, 4).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    parameters = drawn(SMALL, 0)
    theirs = layout({"rotation": "half_split"}).apply(SMALL, parameters)
    for name in ("query", "key"):
        ours = parameters[f"blocks.1.attention.{name}.weight"].reshape(12, 3, 2, 2)
        split = theirs[f"blocks.1.attention.{name}.weight"].reshape(12, 3, 2, 2)
        np.testing.assert_array_equal(split, ours.swapaxes(2, 3))
    np.testing.assert_array_equal(
        theirs["blocks.1.attention.value.weight"], parameters["blocks.1.attention.value.weight"]
    )


def test_scores_do_not_depend_on_the_order_of_features() -> None:
    random = np.random.default_rng(0)
    query, key = random.normal(size=(2, 2, 3, 5, 4))
    split = layout({"rotation": "half_split"})
    order = half_split_order(1, 4)
    stages = {
        "blocks.0.attention.query": query[..., order],
        "blocks.0.attention.rotated_key": key[..., order],
    }
    back = split.stages(SMALL, stages)
    np.testing.assert_array_equal(back["blocks.0.attention.query"], query)
    np.testing.assert_array_equal(back["blocks.0.attention.rotated_key"], key)


def test_stages_other_than_queries_and_keys_are_copied() -> None:
    stages = {"blocks.0.attention.value": np.ones((1, 3, 2, 4)), "logits": np.ones((1, 2, 5))}
    back = layout({"rotation": "half_split", "matrices": "out_in", "gain_offset": 1}).stages(SMALL, stages)
    assert list(back) == list(stages)
    assert all((back[name] == 1).all() and back[name] is not stages[name] for name in stages)


def test_table_keeps_its_shape_where_matrices_are_transposed() -> None:
    theirs = layout({"matrices": "out_in"}).apply(SMALL, drawn(SMALL, 0))
    assert theirs[TABLE].shape == (5, 12)
    assert theirs["blocks.0.ffn.gate.weight"].shape == (7, 12)
    assert theirs["blocks.0.ffn.down.weight"].shape == (12, 7)


@pytest.mark.parametrize(("matrices", "shape"), [("in_out", (12, 36)), ("out_in", (36, 12))])
def test_fused_parts_lie_side_by_side_on_the_output_axis(matrices: str, shape: tuple[int, int]) -> None:
    declared = layout({"matrices": matrices, "fused": {"blocks.{n}.qkv": QKV}})
    theirs = declared.apply(SMALL, drawn(SMALL, 0))
    assert theirs["blocks.1.qkv"].shape == shape
    assert list(theirs)[:3] == [TABLE, "blocks.0.attention_norm.gain", "blocks.0.qkv"]
    value = theirs["blocks.1.qkv"] if matrices == "in_out" else theirs["blocks.1.qkv"].T
    np.testing.assert_array_equal(value[:, 24:], drawn(SMALL, 0)["blocks.1.attention.value.weight"])


def test_stacked_blocks_have_a_leading_axis_and_names_without_a_number() -> None:
    declared = layout({"stacked": True, "names": {BLOCK + "ffn.up.weight": "up"}})
    theirs = declared.apply(SMALL, drawn(SMALL, 0))
    assert theirs["blocks.attention.query.weight"].shape == (2, 12, 12)
    np.testing.assert_array_equal(theirs["up"][1], drawn(SMALL, 0)["blocks.1.ffn.up.weight"])
    assert list(declared.rename(SMALL)) == [TABLE, "final_norm.gain"]


def test_renamed_parameters_come_back_in_canonical_order() -> None:
    declared = layout({"names": {BLOCK + "ffn.up.weight": "layers.{n}.up"}})
    theirs = declared.apply(SMALL, drawn(SMALL, 0))
    back = declared.invert(SMALL, dict(reversed(theirs.items())))
    assert list(back) == list(parameter_shapes(SMALL))


def test_canonical_names_keep_the_order_in_which_they_came() -> None:
    theirs = dict(reversed(drawn(SMALL, 0).items()))
    assert list(layout({"rotation": "half_split"}).invert(SMALL, theirs)) == list(theirs)


@given(declarations())
def test_unknown_names_and_wrong_shapes_pass_through(declared: Any) -> None:
    layout_ = layout({**declared, "fused": {}, "stacked": False, "names": {}, "gain_offset": 0})
    bad = {
        "blocks.00.ffn.up.weight": np.ones(3),
        "blocks.0.attention.query.weight": np.ones(1),
        "x": np.array("?"),
    }
    assert list(layout_.apply(SMALL, bad)) == list(bad)
    assert list(layout_.invert(SMALL, bad)) == list(bad)
    assert all((layout_.apply(SMALL, bad)[name] == value).all() for name, value in bad.items())


@pytest.mark.parametrize("heads", [0, -1, 5, 4, True, 2.5])
@pytest.mark.parametrize("layers", [2, 10**15])
def test_a_bad_configuration_reaches_the_implementation(heads: Any, layers: int) -> None:
    declared = layout({"rotation": "half_split", "matrices": "out_in", "fused": {"blocks.{n}.qkv": QKV}})
    bad = Config(5, 12, heads, 7, layers, 4)
    assert len(declared.apply(bad, drawn(SMALL, 0))) == 16


def test_parts_that_do_not_fit_together_are_an_error_that_names_them() -> None:
    parameters = drawn(SMALL, 0)
    parameters["blocks.0.attention.key.weight"] = np.ones((3, 3))
    with pytest.raises(LayoutError, match=r"blocks\.0\.qkv cannot be put together from shapes"):
        layout({"fused": {"blocks.{n}.qkv": QKV}}).apply(SMALL, parameters)


@pytest.mark.parametrize(
    ("declared", "theirs", "message"),
    [
        (
            {"fused": {"b.{n}.qkv": QKV}},
            {"b.1.qkv": np.ones((36, 12))},
            r"must have shape \(12, 36\), got \(36, 12\)",
        ),
        ({"stacked": True}, {"blocks.ffn.up.weight": np.ones(())}, "leading axis of 2 blocks"),
    ],
)
def test_a_tensor_that_cannot_be_taken_apart_is_an_error(declared: Any, theirs: Any, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        layout(declared).invert(SMALL, theirs)


UP = BLOCK + "ffn.up.weight"


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ("half_split", "must be a mapping, got str"),
        ({"rope": "half_split"}, "no key 'rope'; allowed are rotation, matrices"),
        ({"rotation": "neox"}, "rotation must be adjacent or half_split, got 'neox'"),
        ({"matrices": None}, "matrices must be in_out or out_in, got None"),
        ({"gain_offset": True}, "gain_offset must be a finite number, got True"),
        ({"gain_offset": float("nan")}, "gain_offset must be a finite number, got nan"),
        ({"gain_offset": "1"}, "gain_offset must be a finite number, got '1'"),
        ({"stacked": 1}, "stacked must be True or False, got 1"),
        ({"fused": [QKV]}, "fused must map"),
        ({"fused": {"a.{n}": UP}}, "must list two or more canonical names"),
        ({"fused": {"a.{n}": [UP]}}, "must list two or more canonical names"),
        ({"fused": {"a.{n}": [UP, "ffn.gate.weight"]}}, "holds 'ffn.gate.weight'; allowed are blocks"),
        ({"fused": {"a.{n}": [UP, TABLE]}}, "holds 'token_embedding.weight'; allowed are"),
        ({"fused": {"a.{n}": [UP, UP]}}, "twice"),
        ({"fused": {"a.{n}": [UP, BLOCK + "ffn.down.weight"]}}, "shares its input axis with no other"),
        ({"fused": {"a": [UP, GATE_UP[0]]}}, r"name 'a' of .* needs \{n\}"),
        ({"fused": {7: [UP, GATE_UP[0]]}}, "needs a name for .*, got 7"),
        ({"fused": {"a.{n}": GATE_UP}, "names": {UP: "up.{n}"}}, "is fused into"),
        ({"names": ["up"]}, "names must map"),
        ({"names": {"ffn.up.weight": "up.{n}"}}, "no parameter 'ffn.up.weight'; allowed are token_embedding"),
        ({"names": {UP: "up"}}, r"name 'up' of .* needs \{n\}"),
        ({"names": {TABLE: "table.{n}"}}, r"cannot have \{n\}"),
        ({"names": {UP: "up.{n}"}, "stacked": True}, r"cannot have \{n\}"),
        ({"names": {UP: ""}}, "needs a name for .*, got ''"),
        ({"names": {UP: None}}, "needs a name for .*, got None"),
        ({"names": {UP: GATE_UP[0]}}, "to more than one tensor"),
    ],
)
def test_a_declaration_that_cannot_be_understood_is_an_error(declared: Any, message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        layout(declared)


def test_every_matrix_but_the_last_can_be_fused() -> None:
    for pair in itertools.combinations([m for m in MATRICES if not m.endswith("down.weight")], 2):
        declared = layout({"fused": {"pair.{n}": list(pair)}})
        assert list(declared.invert(SMALL, declared.apply(SMALL, drawn(SMALL, 0)))) == list(parameter_shapes(SMALL))
