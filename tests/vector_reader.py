"""A reader of test vectors in Python: holds an implementation, or the reference's operations, against a folder.

Written from the words under `judgement` in the files, with nothing of the code that writes them.
"""

import copy
import json
import sys
from collections import namedtuple
from pathlib import Path

import numpy as np

from decoderspec.faults.bank import BANK
from decoderspec.faults.fault import FaultyReference
from decoderspec.faults.numbers import storing
from decoderspec.properties.kernels import KERNELS
from decoderspec.reference import decoder
from decoderspec.reference.operations import OPERATIONS
from decoderspec.reference.tape import Tape, accumulate
from decoderspec.spec.config import Config
from decoderspec.spec.precision import recipe

Failure = namedtuple("Failure", "file case flags what")
WORDS = {"NaN": np.nan, "Infinity": np.inf, "-Infinity": -np.inf}


class Wrong(AssertionError):
    """A result that is not what it must be."""


def documents(folder):
    """Every file that the index lists, by name."""
    index = json.loads((folder / "index.json").read_text())
    return {entry["file"]: json.loads((folder / entry["file"]).read_text()) for entry in index["files"]}


def array(entry):
    return np.array([float(WORDS.get(v, v)) for v in entry["values"]]).reshape(entry["shape"])


def arrays(entries):
    return {name: array(entry) for name, entry in entries.items()}


def judge(what, got, expected, precision):
    got = np.asarray(got, np.float64)
    if list(got.shape) != expected["shape"]:
        raise Wrong(f"{what} has shape {got.shape}")
    value, rest = (np.array([float(text) for text in expected[key]]) for key in ("values", "rest"))
    error = np.abs((got.ravel() - value) - rest)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.where(error == 0, 0.0, error / np.array(expected["noise"][precision]))
    ratio = np.where(np.isnan(ratio), np.inf, ratio)
    if not ratio.max() <= expected["worst"]:
        raise Wrong(f"{what}: {ratio.max():.3g} x noise ({expected['worst']} allowed)")
    if not np.sqrt(np.mean(ratio**2)) <= expected["mean"][precision]:
        raise Wrong(f"{what}: {np.sqrt(np.mean(ratio**2)):.3g} x noise in the mean ({expected['mean'][precision]})")


def slopes(gradients):
    found = {name: np.sum(g.ravel() * np.where(np.arange(g.size) % 2, -1.0, 1.0)) for name, g in gradients.items()}
    return found | {"all": sum(found.values())}


def judge_all(what, got, expected, precision):
    for name, entry in expected.items():
        judge(f"{what} {name}", got[name], entry, precision)


def require_bits(what, got, before, elements):
    for start, stop in elements:
        if got.ravel()[start:stop].tobytes() != before.ravel()[start:stop].tobytes():
            raise Wrong(f"{what} has other bits than before")


def failures(found, implementation, precision="float64", files=None, flag=None):
    """What fails in the files of whole models, or in some of them, or in the cases with a flag."""
    askers = {"model": _model, "initialization": _seed, "errors": _error}
    for file, document in found.items():
        if document["kind"] in askers and (files is None or file in files):
            yield from _of(file, document, precision, askers[document["kind"]], implementation, flag)


def operation_failures(found, precision="float64", operations=OPERATIONS):
    """What fails in the files of single operations, when the reference computes them."""
    stored = storing(recipe(precision), operations)
    for file, document in found.items():
        if document["kind"] == "operation":
            yield from _of(file, document, precision, _operation, stored)


def _of(file, document, precision, ask, subject, flag=None):
    kept = {}
    for case in document["cases"]:
        if precision not in case.get("precisions", (precision,)) or flag not in (None, *case["flags"]):
            continue
        try:
            ask(document, case, precision, subject, kept)
        except Exception as reason:  # an implementation may raise anything
            yield Failure(file, case["id"], tuple(case["flags"]), f"{type(reason).__name__}: {reason}")


def _operation(document, case, precision, operations, kept):
    name, given = document["operation"], case["inputs"]
    inputs = {k: array(v) if isinstance(v, dict) and "shape" in v else v for k, v in given.items()}
    inputs |= {k: np.array(v) for k, v in inputs.items() if isinstance(v, list)}
    weights = arrays(given.get("parameters", {}))

    def compute(operations):
        if name == "block":
            config = Config(**given["config"])
            return decoder.block(operations, config, weights, inputs["x"], inputs["offset"])
        return KERNELS[name].compute(operations, *inputs.values())

    tape = Tape()
    output = kept[case["id"]] = compute(tape.recording(operations))
    judge("output", output, case["expected"]["output"], precision)
    if "same" in case:
        require_bits("output", output, kept[case["same"]["as"]], case["same"]["elements"])
    if "upstream" in case:
        leaves = {k: v for k, v in inputs.items() if isinstance(v, np.ndarray) and v.dtype.kind == "f"} | weights
        gradients = accumulate(tape, array(case["upstream"]), leaves).leaves
        judge_all("gradient", gradients, case["expected"]["gradients"], precision)
        judge_all("slope", slopes(gradients), case["expected"]["slopes"], precision)


def _model(document, case, precision, implementation, _kept):
    models, given, answers = {}, {}, []
    by_id = {each["id"]: each for each in document["cases"]}
    for call in case["calls"]:
        name = call.get("model", case["id"])
        if name not in models:
            given[name] = arrays(by_id[name]["parameters"])
            models[name] = implementation.build(Config(**by_id[name]["config"]), arrays(by_id[name]["parameters"]))
        answers.append(_answer(models[name], call, given[name]))
    for call, got in zip(case["calls"], answers, strict=True):
        expected = (case["calls"][call["again"]] if "again" in call else call).get("expected", {})
        for name in ("logits", "loss", "sum"):
            if name in expected:
                judge(name, got[name], expected[name], precision)
        for name in ("stages", "gradients"):
            judge_all(name, got.get(name), expected.get(name, {}), precision)
        if "slopes" in expected:
            judge_all("slope", slopes(got["gradients"]), expected["slopes"], precision)
        if "same" in call:
            require_bits("logits", got["logits"], answers[call["same"]["as"]]["logits"], call["same"]["elements"])


def _answer(model, call, given):
    kind = call["call"]
    if kind == "assign":
        given[call["name"]] = array(call["value"])
        return model.assign(call["name"], array(call["value"])) or {}
    if kind == "parameters":
        held = model.parameters()
        if list(held) != call["expected"]["names"] or sum(v.size for v in held.values()) != call["expected"]["scalars"]:
            raise Wrong("parameters have other names, order or number")
        for name, value in given.items():
            require_bits(name, held[name], value, [(0, value.size)])
        return {}
    ids = [np.array(call[name]) for name in ("tokens", "targets") if name in call]
    got = getattr(model, kind)(*ids)
    if [each.tolist() for each in ids] != [call[name] for name in ("tokens", "targets") if name in call]:
        raise Wrong("ids were written to")
    if kind == "role_gradients":
        gradients = dict(zip(("lookup", "head"), got, strict=True))
        return {"gradients": gradients, "sum": got[0] + got[1]}
    return {kind: got}


def _seed(document, case, precision, implementation, _kept):
    held = implementation.initialize(Config(**case["config"]), int(case["seed"])).parameters()
    judge_all("parameter", held, case["expected"]["parameters"], precision)


def _error(document, case, precision, implementation, kept):
    base, change = document["base"], case["change"]
    if "model" not in kept:
        kept["model"] = implementation.build(Config(**base["config"]), arrays(base["parameters"]))
    category = _refusal(implementation, kept["model"], case["call"], base, change)
    if category is None if case["result"] == "refused" else category is not None:
        raise Wrong(f"taken: {case['comment']}" if category is None else f"refused as {category}")
    if case["result"] == "refused" and category not in case["categories"]:
        raise Wrong(f"refused as {category}")
    judge("base logits", kept["model"].logits(np.array(base["tokens"])), base["expected"]["logits"], precision)


def _refusal(implementation, model, call, base, change):
    given = {**base, **change}
    try:
        if call == "build":
            _build(implementation, base, change)
        elif call == "logits":
            model.logits(_ids(given["tokens"]))
        else:
            model.loss(_ids(given["tokens"]), _ids(given["targets"]))
    except Exception as error:
        return implementation.classify(error) or "no category"
    return None


def _build(implementation, base, change):
    fields = base["config"] | {k: WORDS.get(v, v) for k, v in change.get("config", {}).items()}
    entries = base["parameters"] | copy.deepcopy(change.get("parameters", {}))
    parameters = {name: _raw(entry) for name, entry in entries.items() if entry is not None}
    model = implementation.build(Config(**fields), parameters)
    model.logits(np.array(base["tokens"]))


def _raw(entry):
    """An array of whatever type the values are of."""
    values = [WORDS.get(v, v) if isinstance(v, str) else v for v in entry["values"]]
    return np.array(values).reshape(entry["shape"])


def _ids(rows):
    try:
        return np.array(rows)
    except ValueError:  # ragged
        return rows


def survivors(folder):
    """The wrong decoders of the bank in which these files show nothing wrong."""
    found = documents(folder)
    return [fault.name for fault in BANK if not _shown(found, FaultyReference(fault))]


def _shown(found, implementation):
    return any(True for _ in failures(found, implementation, implementation.precision))


if __name__ == "__main__":
    left = survivors(Path(sys.argv[1]))
    print(f"{len(BANK) - len(left)} of {len(BANK)} wrong decoders fail; not {', '.join(left)}")
