"""What an implementation must refuse, as data: one fault to a probe, everything else valid.

A probe says what is bad, which categories a refusal may have, and how to try it. Controls are probes too: valid
input next to the bad, which must be taken. What the answers are worth is for `grading`; that they are asked for in a
process of their own is for `child`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from decoderspec.properties.bad_configurations import configurations, resources
from decoderspec.properties.bad_parameters import bad_parameters
from decoderspec.properties.bad_tokens import bad_targets, bad_tokens, ids
from decoderspec.properties.cases import Array
from decoderspec.properties.findings import Finding, NotJudged
from decoderspec.properties.probe import Perform, Probe, Setting
from decoderspec.properties.subject import offers
from decoderspec.spec.protocol import METHODS

# --- INP-7: what a refusal leaves behind ---

REFUSED_FIRST = (
    "CFG-1/zero-heads", "INP-1/-1/last", "INP-1/V/last", "INP-2/rank-1", "INP-2/empty-tokens", "INP-3/fractions",
    "INP-4/T=max_positions+1", "INP-5/-100/loss", "INP-5/V/gradients", "INP-6/transposed-ffn.gate.weight",
    "INP-1/V/first/stages", "INP-1/V/middle/loss", "INP-1/V/middle/gradients", "INP-1/V/first/role_gradients",
    "INP-2/rank-1/gradients", "INP-3/integral-floats/gradients", "INP-4/T=max_positions+1/loss",
    "INP-4/T=max_positions+1/gradients",
    "INP-5/turned/gradients", "INP-5/V/middle/role_gradients", "INP-6/assign/nan-final_norm.gain",
    "INP-6/assign/first-alone-ffn.down.weight",
)  # fmt: skip
COMPARED = ("logits", "loss", "gradients")  # beside the method that refused


def _afterwards(asked: Mapping[str, Probe]) -> Iterator[Probe]:
    for name in REFUSED_FIRST:
        first = asked[name]
        sentence = f"valid input after a refusal of {first.sentence}"
        yield Probe(f"INP-7/after/{name}", "INP-7", sentence, _usable_after(first), (), first.needs, after=name)


def _usable_after(first: Probe) -> Perform:
    def perform(setting: Setting) -> Array:
        methods = (*COMPARED, *({first.needs}.intersection(METHODS).difference(COMPARED)))
        usual = {method: value for method in methods if (value := _usual(setting, method)) is not None}
        _refused(first, setting)
        answers = {method: setting.valid(method) for method in usual}
        for method, before in usual.items():
            _require_the_same(setting, method, before, answers[method])
        return np.concatenate(list(answers.values()))

    return perform


def _usual(setting: Setting, method: str) -> Array | None:
    """What a method answers to valid input, kept while no refusal changes it; None where there is nothing to compare.

    Raises what the implementation raises, of `logits`: whatever else does not work is for other requirements.
    """
    if method not in setting.usual:
        if method != "logits" and not offers(setting.model, method):
            return None
        try:
            setting.usual[method] = setting.valid(method)
        except Exception:
            if method == "logits":
                raise
            return None
    found = setting.usual[method]
    return found if np.isfinite(found).all() or method == "logits" else None


def _require_the_same(setting: Setting, method: str, before: Array, after: Array) -> None:
    """The same bits of the logits, and half of those that the precision has of the rest, which need not repeat."""
    if _same(setting, method, before, after):
        return
    setting.usual.clear()
    if not _same(setting, method, setting.valid(method), setting.valid(method)):
        if method == "logits":
            raise NotJudged("two equal calls differ already")
        return
    differ = int((after != before).sum()) if after.shape == before.shape else after.size
    raise Finding(f"the refusal changed {differ} of {after.size} values of {method}")


def _same(setting: Setting, method: str, first: Array, second: Array) -> bool:
    return first.tobytes() == second.tobytes() if method == "logits" else setting.agree(second, first)


def _refused(first: Probe, setting: Setting) -> None:
    try:
        first.perform(setting)
    except NotJudged:
        raise
    except Exception:
        return
    raise NotJudged(f"{first.id} was not refused")


def _all() -> dict[str, Probe]:
    families = (configurations, resources, ids, bad_tokens, bad_targets, bad_parameters)
    probes = {probe.id: probe for family in families for probe in family()}
    # Whether a refusal spoils the model is asked first, each right after the refusal itself: a model that is spoiled
    # costs a new child for every probe.
    afterwards = list(_afterwards(probes))
    first = {probe.id: probe for after in afterwards for probe in (probes[after.after], after)}
    return first | probes


PROBES = _all()  # by id, in the order in which they are asked
REQUIREMENTS = tuple(dict.fromkeys(probe.requirement for probe in PROBES.values()))
