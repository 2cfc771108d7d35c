"""Vectors of what must be refused: what differs from a valid base case, the categories allowed, and the codes.

JSON has no NaN and no infinities: the words `NaN`, `Infinity` and `-Infinity` stand for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from decoderspec.golden.vectors.calls import Asked, Built
from decoderspec.golden.vectors.inputs import VectorError, config_of, ids, packed, parameters, parameters_of, seed_of
from decoderspec.golden.vectors.results import PRECISIONS, Json
from decoderspec.spec import validation
from decoderspec.spec.config import Config
from decoderspec.spec.errors import SpecError
from decoderspec.spec.parameters import FINAL_GAIN, TABLE

CONFIG = Config(4, 4, 2, 3, 1, 3, 100.0, 2.0**-10)
TOKENS, TARGETS = [[0, 3], [2, 1]], [[3, 2], [1, 0]]
REFUSED, TAKEN = "refused", "taken"
WORDS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
QUERY, GATE = "blocks.0.attention.query.weight", "blocks.0.ffn.gate.weight"
SIZES = ("vocabulary_size", "model_width", "heads", "feed_forward_width", "max_positions")


def base() -> Json:
    """The valid case that every other differs from in one thing."""
    return {
        "precisions": list(PRECISIONS),
        "config": packed(CONFIG),
        "parameters": packed(parameters("errors", CONFIG)),
        "tokens": TOKENS,
        "targets": TARGETS,
    }


def completed_base(given: Json) -> Json:
    """The base with its logits, which it must still give after every refusal."""
    model = Built.of(given)
    tokens = ids(given["tokens"], model.config.vocabulary_size)
    return {**given, "expected": Asked(model, tokens, None, seed_of("errors")).logits()}


def cases() -> list[Json]:
    """Every case, before its codes are known."""
    return [*_configurations(), *_amounts(), *_tokens(), *_targets(), *_parameters()]


def _case(requirement: str, word: str, call: str, change: Json, comment: str, *categories: str) -> Json:
    refused = bool(categories)
    return {
        "id": f"{call}-{word}",
        "comment": comment,
        "flags": ["Refused"] if refused else ["Taken"],
        "requirements": [requirement, "INP-7"] if refused and call != "build" else [requirement],
        "call": call,
        "change": change,
        "result": REFUSED if refused else TAKEN,
        "categories": list(categories),
    }


def _configurations() -> Iterator[Json]:
    bad: dict[str, tuple[Json, str]] = {}
    for name in SIZES:
        bad[f"zero-{name}"] = {name: 0}, f"{name} of 0"
    for name in (*SIZES, "layers"):
        bad[f"negative-{name}"] = {name: -2}, f"{name} of -2"
        bad[f"fraction-{name}"] = {name: 2.5}, f"{name} of 2.5"
    bad["indivisible"] = {"heads": 3}, "a width of 4 that 3 heads do not divide"
    bad["odd-head-width"] = {"heads": 4}, "heads of width 1, which make no pairs"
    for word in ("NaN", "Infinity"):
        bad[f"base-{word}"] = {"rope_base": word}, f"rope_base of {word}"
        bad[f"epsilon-{word}"] = {"rms_epsilon": word}, f"rms_epsilon of {word}"
    bad["base-zero"], bad["base-negative"] = (
        ({"rope_base": 0}, "rope_base of 0"),
        ({"rope_base": -10}, "rope_base of -10"),
    )
    bad["epsilon-negative"] = {"rms_epsilon": -0.001}, "rms_epsilon below 0"
    for word, (fields, comment) in bad.items():
        yield _case("CFG-1", word, "build", {"config": fields}, comment, "configuration")
        if "layers" not in fields:
            without = {"config": {**fields, "layers": 0}, "parameters": WITHOUT_BLOCKS}
            yield _case(
                "CFG-1", f"{word}-without-layers", "build", without, f"{comment}, without layers", "configuration"
            )
    yield _case("CFG-1", "no-layers", "build", {"config": {"layers": 0}, "parameters": WITHOUT_BLOCKS}, "no layers")
    yield _case("CFG-1", "epsilon-zero", "build", {"config": {"rms_epsilon": 0}}, "rms_epsilon of 0")
    yield _case("CFG-1", "base-below-one", "build", {"config": {"rope_base": 0.5}}, "rope_base of 1/2")


WITHOUT_BLOCKS = {name: None for name in parameters("errors", CONFIG) if name.startswith("blocks.")}


def _amounts() -> Iterator[Json]:
    for name, size in {"layers": 10**12, "vocabulary_size": 2**60, "feed_forward_width": 2**60}.items():
        nothing = dict.fromkeys(parameters("errors", CONFIG))
        change = {"config": {name: size}, "parameters": nothing}
        comment = f"{name} of {size}, with no parameters at all"
        yield _case(
            "CFG-2", f"beyond-memory-{name}", "build", change, comment, "resource", "configuration", "parameters"
        )


def _tokens() -> Iterator[Json]:
    v = CONFIG.vocabulary_size
    for word, row in {"0": [0, 0], "last": [v - 1, v - 1]}.items():
        yield _case("INP-1", f"id-{word}", "logits", {"tokens": [row, row]}, f"id {row[0]} everywhere")
    for id_ in (-1, v, v + 1, -v, 2**31, 2**40):
        change = {"tokens": [[0, 3], [2, id_]]}
        yield _case("INP-1", f"id-is-{id_}", "logits", change, f"id {id_} in last place", "vocabulary")
    yield _case("INP-1", "first-id", "logits", {"tokens": [[-1, 3], [2, 1]]}, "id -1 in first place", "vocabulary")
    yield _case("INP-1", "id-is-4", "loss", {"tokens": [[0, 3], [2, v]]}, f"id {v}, given to loss", "vocabulary")
    shapes = {
        "rank-0": (1, "a single id"),
        "rank-1": ([0, 3], "ids of rank one"),
        "rank-3": ([[[0, 3], [2, 1]]], "ids of rank three"),
        "empty-batch": ([], "an empty batch"),
        "empty-tokens": ([[], []], "no tokens"),
        "ragged": ([[0, 3], [2]], "rows of different length"),
    }
    for word, (tokens, comment) in shapes.items():
        yield _case("INP-2", word, "logits", {"tokens": tokens}, comment, "token_shape")
    kinds = {
        "fractions": ([[0.5, 3], [2, 1]], "an id that is a fraction"),
        "booleans": ([[True, False], [False, True]], "booleans"),
        "strings": ([["0", "3"], ["2", "1"]], "digits in strings"),
        "nothing": ([[None, 3], [2, 1]], "null among the ids"),
    }
    for word, (tokens, comment) in kinds.items():
        yield _case("INP-3", word, "logits", {"tokens": tokens}, comment, "token_shape", "vocabulary")
    yield _case("INP-4", "full", "logits", {"tokens": [[0, 3, 1]]}, "as many tokens as positions")
    for call in ("logits", "loss"):
        change = {"tokens": [[0, 3, 1, 2]], "targets": [[3, 1, 2, 0]]}
        yield _case("INP-4", "too-long", call, change, "one token more than positions", "context")


def _targets() -> Iterator[Json]:
    v = CONFIG.vocabulary_size
    for id_ in (-1, -100, v):
        change = {"targets": [[3, 2], [1, id_]]}
        yield _case("INP-5", f"target-is-{id_}", "loss", change, f"target {id_}", "target_vocabulary")
    shapes = {
        "one-missing": ([3, 2, 1], "one target missing from a flat list"),
        "column-missing": ([[3], [1]], "one target missing in each row"),
        "column-more": ([[3, 2, 0], [1, 0, 0]], "one target too many in each row"),
        "one-row": ([[3, 2]], "one row of targets for both rows of tokens"),
    }
    for word, (targets, comment) in shapes.items():
        yield _case("INP-5", f"targets-{word}", "loss", {"targets": targets}, comment, "target_shape")
    kinds: Json = {"fraction": 0.5, "boolean": True, "string": "1"}
    for word, target in kinds.items():
        change = {"targets": [[target, target], [target, target]]}
        comment = f"targets that are each a {word}"
        yield _case("INP-5", f"target-{word}", "loss", change, comment, "target_shape", "target_vocabulary")


def _parameters() -> Iterator[Json]:
    full = packed(parameters("errors", CONFIG))

    def bad(word: str, name: str, entry: Any, comment: str) -> Json:
        return _case("INP-6", word, "build", {"parameters": {name: entry}}, comment, "parameters")

    for name in (TABLE, QUERY, FINAL_GAIN):
        yield bad(f"missing-{name}", name, None, f"{name} is missing")
    yield bad("head", "lm_head.weight", full[TABLE], "a head parameter, though the table is tied")
    yield bad("one-layer-more", "blocks.1.ffn.down.weight", full["blocks.0.ffn.down.weight"], "a layer beyond the last")
    gate, gain, query = full[GATE], full[FINAL_GAIN], full[QUERY]
    yield bad("transposed", GATE, {**gate, "shape": gate["shape"][::-1]}, f"{GATE} transposed")
    yield bad("one-gain", FINAL_GAIN, {"shape": [1], "values": [1]}, "a gain that would broadcast")
    yield bad("row-gain", FINAL_GAIN, {**gain, "shape": [1, 4]}, "a gain of rank two")
    yield bad("flat", QUERY, {**query, "shape": [16]}, f"{QUERY} of rank one")
    yield bad("short-table", TABLE, {"shape": [3, 4], "values": full[TABLE]["values"][:12]}, "a table of V-1 rows")
    longer = {"shape": [5, 4], "values": full[TABLE]["values"] + [0] * 4}
    yield bad("long-table", TABLE, longer, "a table of V+1 rows")
    for word in WORDS:
        yield bad(f"{word}-in-gain", FINAL_GAIN, {**gain, "values": [*gain["values"][:-1], word]}, f"{word} in a gain")
    kinds: Json = {"booleans": True, "strings": "1", "nothing": None}
    for word, value in kinds.items():
        yield bad(word, QUERY, {**query, "values": [value] * 16}, f"{word} in {QUERY}")


# --- What the specification says ---


def completed(case: Json, given: Json) -> Json:
    """The case with its codes, outermost first. Raises `VectorError` where the result is not what is written."""
    codes, category = _refusal(case, given)
    if bool(codes) != (case["result"] == REFUSED) or (codes and category not in case["categories"]):
        raise VectorError(f"{case['id']} is {case['result']} with {case['categories']}; the text says {codes or TAKEN}")
    return {**case, "codes": codes}


def _refusal(case: Json, given: Json) -> tuple[list[str], str]:
    try:
        _ask(case["call"], case["change"], given)
    except SpecError as refusal:
        return list(refusal.chain()), refusal.category
    return [], ""


def _ask(call: str, change: Json, given: Json) -> None:
    config = replace(config_of(given["config"]), **{name: _number(v) for name, v in change.get("config", {}).items()})
    if call == "build":
        valid = validation.validate_config(config)
        parts = parameters_of(given["parameters"], config_of(given["config"]))
        validation.validate_parameters(valid, _changed(parts, change.get("parameters", {})))
    elif call == "logits":
        validation.validate_tokens(config, (given | change)["tokens"])
    else:
        changed = given | change
        validation.validate_loss(config, changed["tokens"], changed["targets"])


def _changed(parts: dict[str, Any], change: Json) -> dict[str, Any]:
    changed = parts | {name: entry and _array(entry) for name, entry in change.items()}
    return {name: value for name, value in changed.items() if value is not None}


def _array(entry: Json) -> Any:
    """As it comes: of any type, so that the refusal is the specification's."""
    return np.array([_number(value) for value in entry["values"]]).reshape(entry["shape"])


def _number(value: Any) -> Any:
    return WORDS.get(value, value) if isinstance(value, str) else value
