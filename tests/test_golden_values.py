"""The golden values: what is kept fits its schema, is true in every digit, and the reference lies within its noise."""

import json
import re
from dataclasses import replace
from functools import partial

import mpmath
import numpy as np
import pytest

from decoderspec.golden import values
from decoderspec.golden.values import CASES, DIGITS, PATH, kept
from decoderspec.reference import Reference, oracle
from decoderspec.reference.limits import compare, compare_gradient
from decoderspec.spec.config import Config
from decoderspec.spec.parameters import TABLE, parameter_shapes

TYPES = {"object": dict, "array": list, "string": str, "integer": int}


@pytest.fixture(scope="module")
def content():
    return kept()


@pytest.fixture(params=range(len(CASES)), ids=[case.id for case in CASES])
def case(request, content):
    return content["cases"][request.param]


def config_of(case):
    return Config(**{name: float(v) if isinstance(v, str) else v for name, v in case["config"].items()})


def array_of(entry, kind=float, key="values"):
    return np.array([kind(text) for text in entry[key]], object if kind is mpmath.mpf else float).reshape(
        entry["shape"]
    )


def parameters_of(case):
    return {name: array_of(entry) for name, entry in case["parameters"].items()}


def violations(value, schema, root, path="$"):
    """What in a value breaks the few words of JSON Schema that ours uses."""
    schema = root["$defs"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    if not isinstance(value, TYPES[schema["type"]]) or isinstance(value, bool):
        return [f"{path} is no {schema['type']}"]
    deeper = partial(violations, root=root)
    if isinstance(value, str):
        return [] if re.search(schema.get("pattern", ""), value) else [f"{path}: {value}"]
    if isinstance(value, int):
        return [] if value >= schema.get("minimum", value) else [f"{path}: {value}"]
    if isinstance(value, list):
        return [v for i, item in enumerate(value) for v in deeper(item, schema["items"], path=f"{path}[{i}]")]
    known, others = schema.get("properties", {}), schema.get("additionalProperties", {})
    found = [f"{path}.{name} is missing" for name in schema.get("required", ()) if name not in value]
    for name, item in value.items():
        if name in known or others:
            found += deeper(item, known.get(name, others), path=f"{path}.{name}")
        else:
            found.append(f"{path}.{name} is not known")
    return found


def test_kept_values_fit_the_published_schema(content):
    schema = json.loads(PATH.with_name(content["schema"]).read_text())
    assert violations(content, schema, schema) == []
    assert violations(content | {"digits": "30", "more": 1}, schema, schema) == [
        "$.digits is no integer",
        "$.more is not known",
    ]


def test_cases_are_those_that_a_rewrite_would_compute(content):
    assert [case["id"] for case in content["cases"]] == [case.id for case in CASES]
    for case, made in zip(content["cases"], CASES, strict=True):
        assert config_of(case) == made.config
        assert (case["tokens"], case["targets"]) == ([*map(list, made.tokens)], [*map(list, made.targets)])
        assert all(np.array_equal(value, parameters_of(case)[name]) for name, value in made.parameters().items())


def test_every_parameter_has_its_gradient_in_its_shape(case):
    shapes = {name: list(shape) for name, shape in parameter_shapes(config_of(case)).items()}
    for part in ("parameters", "gradients"):
        assert {name: entry["shape"] for name, entry in case[part].items()} == shapes
    entries = [case["logits"], case["loss"], *case["gradients"].values()]
    assert all(len(e["values"]) == len(e["noise"]) == int(np.prod(e["shape"], dtype=int)) for e in entries)


def test_logits_and_loss_are_true_in_every_digit(case):
    at = config_of(case), parameters_of(case), case["tokens"]
    written = [mpmath.nstr(value, DIGITS, strip_zeros=False) for value in oracle.logits(*at, digits=DIGITS + 15).flat]
    assert case["logits"]["values"] == written
    loss = oracle.loss(*at, case["targets"], digits=DIGITS + 15)
    assert case["loss"]["values"] == [mpmath.nstr(loss, DIGITS, strip_zeros=False)]


def test_gradients_are_true_along_a_direction_through_all_of_them(case):
    """One difference along a random direction checks every scalar at once."""
    random = np.random.default_rng(case["seed"])
    at = config_of(case), parameters_of(case), case["tokens"], case["targets"]
    direction = {name: random.integers(-8, 9, size=e["shape"]) for name, e in case["gradients"].items()}
    with mpmath.workdps(DIGITS + 15):
        exact = {name: array_of(entry, mpmath.mpf) for name, entry in case["gradients"].items()}
        got = sum(mpmath.fsum((exact[name] * along).flat) for name, along in direction.items())
        size = sum(mpmath.fsum(abs(exact[name] * along).flat) for name, along in direction.items())
        error = abs(got - oracle.derivative(*at, direction, digits=DIGITS + 5))
        assert error < size * mpmath.mpf(10) ** (1 - DIGITS)


def test_the_reference_lies_within_the_noise(case):
    model = Reference().build(config_of(case), parameters_of(case))
    at = case["tokens"], case["targets"]
    got = {"logits": model.logits(at[0]), "loss": np.array(model.loss(*at)), **model.gradients(*at)}
    entries = {"logits": case["logits"], "loss": case["loss"], **case["gradients"]}
    for name, entry in entries.items():
        truth = array_of(entry, mpmath.mpf)
        judge = compare if name in ("logits", "loss") else compare_gradient
        judged = judge(got[name], oracle.difference(got[name], truth), array_of(entry, key="noise"))
        assert judged.conforms, f"{name}: {judged}"
        assert entry["allowed"] == f"{judged.allowed:.3g}"


def test_noise_is_what_another_draw_finds(case):
    """Units from other random numbers agree within what sixteen runs can tell."""
    made = next(each for each in CASES if each.id == case["id"])
    again = values.noise_units(replace(made, seed=made.seed + 100), made.parameters())
    for name, entry in {"logits": case["logits"], f"gradient.{TABLE}": case["gradients"][TABLE]}.items():
        ratio = array_of(entry, key="noise") / again[name]
        assert 0.7 < np.median(ratio) < 1.4
