"""What the answer to a probe is worth: refused in its category, refused, taken and harmless, NaN, garbage.

Works in the process that runs the implementation; whoever only reads outcomes needs none of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from decoderspec.adapters.process import ChildHung, ChildLost
from decoderspec.properties.cases import Array
from decoderspec.properties.findings import Absent, Finding, NotJudged
from decoderspec.properties.probe import HARMLESS, Probe, Setting
from decoderspec.properties.subject import looked_up, words
from decoderspec.spec.arrays import ArrayError
from decoderspec.spec.errors import CATEGORIES, ERRORS, OF_ITS_CAUSE

REFUSED = "refused"  # by an implementation that does not classify
REFUSED_BY_TYPE = "refused by a type"  # an error that classify need not know
IN_CATEGORY = "refused in its category"
IN_ANOTHER = "refused in another category"
TAKEN = "taken and harmless"
NAN = "NaN"
GARBAGE = "finite garbage"
NOT_IMPLEMENTED = "not implemented"
OUT_OF_MEMORY = "out of memory"
DIED = "died"
HUNG = "hung"
ACCEPTED = "accepted"  # valid input, as it must be
VALID_REFUSED = "valid input refused"
CHANGED = "changed by a refusal"
NOT_JUDGED = "not judged"

TYPE_ERRORS = (TypeError, OverflowError)  # what bindings raise where -1 meets an unsigned integer


@dataclass(frozen=True)
class Grade:
    """A grade, why, and whether the requirement holds as far as this probe can tell."""

    grade: str
    detail: str = ""
    ok: bool = False
    judged: bool = True


def not_judged(reason: str) -> Grade:
    """The grade of a probe that could not be asked; nothing is held against the implementation."""
    return Grade(NOT_JUDGED, reason, ok=True, judged=False)


def grade(probe: Probe, setting: Setting) -> Grade:
    """Ask one probe. Raises nothing but `KeyboardInterrupt`."""
    try:
        _need(probe, setting)
        answer = probe.perform(setting)
    except (Absent, NotJudged) as reason:
        return not_judged(str(reason))
    except Finding as finding:
        return _valid_part_failed(probe, setting, finding)
    except ArrayError as failure:
        return Grade(VALID_REFUSED if _is_control(probe) else GARBAGE, str(failure))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit and the like are the implementation's
        return _raised(probe, setting, error)
    return _answered(probe, setting, answer)


def _is_control(probe: Probe) -> bool:
    return not probe.expected


def _need(probe: Probe, setting: Setting) -> None:
    if probe.needs == "initialize":
        setting.subject.need_on(setting.subject.implementation, probe.needs)
    elif probe.needs not in ("build", "logits"):
        setting.subject.need_on(setting.model, probe.needs)


def _valid_part_failed(probe: Probe, setting: Setting, finding: Finding) -> Grade:
    if probe.after and setting.doing != "build":
        return Grade(CHANGED, finding.message)
    return Grade(VALID_REFUSED, finding.message) if _is_control(probe) else not_judged(finding.message)


# --- Raised ---


def _raised(probe: Probe, setting: Setting, error: BaseException) -> Grade:
    text = f"{type(error).__name__} from {setting.doing}: {words(error)[:300]}"
    if not isinstance(error, Exception):
        return Grade(DIED, f"{text} (which ends the process that calls it)")
    if isinstance(error, ChildLost):  # of the line protocol: it refused nothing
        return Grade(HUNG if isinstance(error, ChildHung) else DIED, text)
    if _is_control(probe):
        return Grade(VALID_REFUSED, text)
    if isinstance(error, NotImplementedError):
        return Grade(NOT_IMPLEMENTED, f"{text} (which refuses nothing: it says that valid input would fail too)")
    if isinstance(error, MemoryError) and "resource" not in probe.expected:
        return Grade(OUT_OF_MEMORY, text)
    return _refused(probe, error, text, looked_up(setting.subject.implementation, "classify"))


def _refused(probe: Probe, error: Exception, text: str, classify: Callable[[Any], Any] | None) -> Grade:
    if not callable(classify):
        return Grade(REFUSED, text, ok=True)
    try:
        category = _category(classify, error)
    except KeyboardInterrupt:
        raise
    except BaseException as failure:
        return Grade(IN_ANOTHER, f"{text}; classify raised {type(failure).__name__}: {words(failure)}")
    if category in probe.expected:
        return Grade(IN_CATEGORY, f"{category}: {text}", ok=True)
    if category is None and isinstance(error, (*TYPE_ERRORS, MemoryError)):
        return Grade(REFUSED_BY_TYPE, text, ok=True)
    return Grade(f"{IN_ANOTHER}: {category or 'none'}", f"{text}; expected {' or '.join(probe.expected)}")


def _category(classify: Callable[[Any], Any], error: BaseException) -> str | None:
    """The category that classify gives, looked up where it gives a code; that of the cause where the code says so."""
    word = classify(error)
    if word is None or word in CATEGORIES:
        return None if word is None else str(word)
    if word not in ERRORS:
        raise ValueError(f"{word!r} is neither a category ({', '.join(CATEGORIES)}) nor a code of the specification")
    category = ERRORS[word].category
    if category == OF_ITS_CAUSE:
        return None if error.__cause__ is None else _category(classify, error.__cause__)
    return category


# --- Answered ---


def _answered(probe: Probe, setting: Setting, answer: Array) -> Grade:
    if not np.isfinite(answer).all():
        return Grade(NAN, f"{int((~np.isfinite(answer)).sum())} of {answer.size} values are not finite")
    if _is_control(probe):
        return Grade(ACCEPTED, ok=True)
    word = _alike(probe, setting, answer)
    if word == HARMLESS:
        return Grade(TAKEN, "the answer is that of the nearest valid input, but a refusal is required")
    return Grade(GARBAGE, f"as if {word}" if word else "the values are finite and equal nothing known")


def _alike(probe: Probe, setting: Setting, answer: Array) -> str | None:
    """The word for what an answer equals, None for nothing known."""
    for word, perform in probe.alike:
        try:
            other = perform(setting)
        except KeyboardInterrupt:
            raise
        except BaseException:  # this reading gives nothing valid
            continue
        if setting.agree(answer, other):
            return word
    return None


def spoiled(setting: Setting, usual: Array) -> str:
    """What became of the shared model since its logits were `usual`; empty when it is as before."""
    try:
        now = setting.valid()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return f"afterwards valid input raises {type(error).__name__}: {words(error)[:200]}"
    return "" if setting.agree(now, usual) else "afterwards valid input gives other logits"
