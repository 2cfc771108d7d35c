"""What an implementation must refuse, as data: one fault to a probe, everything else valid.

A probe says what is bad, which categories a refusal may have, and how to try it. Controls are probes too: valid
input next to the bad, which must be taken. What the answers are worth is for `grading`; that they are asked for in a
process of their own is for `child`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from decoderspec.properties.bad_configurations import configurations, resources
from decoderspec.properties.bad_parameters import bad_parameters
from decoderspec.properties.bad_tokens import bad_targets, bad_tokens, ids
from decoderspec.properties.cases import Array
from decoderspec.properties.findings import Finding, NotJudged
from decoderspec.properties.probe import Perform, Probe, Setting

# --- INP-7: what a refusal leaves behind ---

REFUSED_FIRST = (
    "CFG-1/zero-heads", "INP-1/-1/last", "INP-1/V/last", "INP-2/rank-1", "INP-2/empty-tokens", "INP-3/fractions",
    "INP-4/T=max_positions+1", "INP-5/-100/loss", "INP-5/V/gradients", "INP-6/transposed",
)  # fmt: skip


def _afterwards(asked: Mapping[str, Probe]) -> Iterator[Probe]:
    for name in REFUSED_FIRST:
        first = asked[name]
        sentence = f"valid tokens after a refusal of {first.sentence}"
        yield Probe(f"INP-7/after/{name}", "INP-7", sentence, _usable_after(first), (), first.needs, after=name)


def _usable_after(first: Probe) -> Perform:
    def perform(setting: Setting) -> Array:
        before = setting.valid()
        if setting.valid().tobytes() != before.tobytes():
            raise NotJudged("two equal calls differ already")
        _refused(first, setting)
        after = setting.valid()
        if after.tobytes() != before.tobytes():
            raise Finding(f"the refusal changed {int((after != before).sum())} of {after.size} logits")
        return after

    return perform


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
