"""Where careless formulas break, the reference stays within the limit of the oracle: forward, loss and gradients."""

from dataclasses import replace

import numpy as np
import pytest

from decoderspec.properties.cases import Case, Stored, arrays, draw_parameters
from decoderspec.properties.truth import Truth
from decoderspec.reference import Reference
from decoderspec.spec.config import Config
from decoderspec.spec.parameters import FINAL_GAIN, TABLE, parameter_count
from decoderspec.spec.precision import recipe

FLOAT64 = recipe("float64")
SMALLEST = 140  # parameters: every element of a gradient has its own true derivative, a difference of two losses
VANISHING = 1e-40  # of a gradient's largest element: a difference of losses cannot tell smaller ones from zero
CONFIG = Config(7, 6, 1, 5, 1, 5, 10.0, 1e-3)
TINY = Config(5, 4, 2, 3, 1, 4, 10.0, 1e-3)  # every element of every gradient is judged


def scaled(case, note, *, tokens=None, targets=None, **factors):
    """A case with some parameters multiplied; `table=..` stands for the table, `query=..` for every such weight."""
    drawn = dict(draw_parameters(case, FLOAT64))
    for key, factor in factors.items():
        for name in drawn:
            if (key == "table" and name == TABLE) or (key == "gain" and name == FINAL_GAIN) or f".{key}." in name:
                drawn[name] = drawn[name] * factor
    z, y = arrays(case)
    return replace(
        case, note=note, stored=Stored(drawn, z if tokens is None else tokens, y if targets is None else targets)
    )


def rows_of_zeros(case, note):
    stored = scaled(case, note).stored
    table = stored.parameters[TABLE].copy()
    table[::2] = 0.0
    return replace(case, note=note, stored=replace(stored, parameters={**stored.parameters, TABLE: table}))


def most_likely(case, note, **factors):
    """Targets that the model is sure of: every probability that matters is 1, and every gradient nearly 0."""
    case = scaled(case, note, **factors)
    logits = Reference().build(case.config, case.stored.parameters).logits(case.stored.tokens)
    return replace(case, stored=replace(case.stored, targets=logits.argmax(axis=-1)))


def least_likely(case, note, **factors):
    case = scaled(case, note, **factors)
    logits = Reference().build(case.config, case.stored.parameters).logits(case.stored.tokens)
    return replace(case, stored=replace(case.stored, targets=logits.argmin(axis=-1)))


BASE = Case(CONFIG, 2, 5, 1)
SMALL = Case(TINY, 1, 4, 2)
CASES = [
    scaled(SMALL, "scores beyond exp", query=30.0, key=30.0),
    scaled(BASE, "scores beyond an additive mask", query=1e4, key=1e4),
    scaled(BASE, "logits beyond exp", gain=1e3),
    scaled(SMALL, "gates beyond exp", gate=1e3, down=1e-3),
    most_likely(BASE, "sure of every target", gain=60.0),
    least_likely(SMALL, "sure of another than every target", gain=200.0),
    scaled(SMALL, "rows of a thousandth of epsilon", table=1e-6),
    scaled(BASE, "rows whose squares vanish", table=1e-170),
    scaled(BASE, "subnormal rows", table=2.0**-1060),
    scaled(BASE, "subnormal products", up=1e-160, down=1e-160),
    replace(BASE, style="spiky", note="spiky rows"),
    replace(SMALL, style="small", note="rows as large as epsilon"),
    rows_of_zeros(SMALL, "zero rows with epsilon"),
    Case(replace(TINY, rms_epsilon=0.0), 1, 4, 3, note="epsilon of zero on well-scaled rows"),
    scaled(SMALL, "a final gain of exact zeros", gain=np.array([0.0, -1.0, 0.0, 1.5])),
    scaled(SMALL, "norm gains of exact zeros and both signs", attention_norm=np.array([0.0, -1, 1, -2])),
    Case(Config(5, 4, 2, 3, 1, 4, 1e6, 1e-5), 1, 4, 4, note="T = max_positions, slow rotation"),
    Case(TINY, 2, 1, 5, note="one token"),
    Case(Config(3, 2, 1, 1, 1, 300, 1.5, 1e-3), 1, 300, 6, note="three hundred tokens"),
    Case(Config(13, 22, 11, 17, 1, 7, 3.0, 1e-2), 3, 7, 7, note="odd and prime sizes"),
    Case(Config(1, 4, 2, 3, 1, 4, 10.0, 1e-3), 1, 3, 8, note="a vocabulary of one"),
    Case(Config(1, 2, 1, 1, 0, 1, 10.0, 1e-3), 1, 1, 9, note="as small as it gets"),
    Case(Config(5, 4, 1, 3, 12, 4, 5.0, 0.0), 1, 4, 10, note="twelve layers without epsilon"),
    replace(BASE, style="peaked", token_style="same", note="one id everywhere, peaked"),
]
EACH = pytest.mark.parametrize("case", CASES, ids=lambda case: case.note)


def known(case):
    truth = Truth(case, draw_parameters(case, FLOAT64), FLOAT64)
    return truth, Reference().build(case.config, truth.parameters)


@EACH
def test_logits_and_loss_of_the_reference_are_true(case):
    truth, model = known(case)
    tokens, targets = truth.batch
    logits, loss = model.logits(tokens), np.asarray(model.loss(tokens, targets))
    assert np.isfinite(logits).all()
    found = {"logits": truth.judge_logits(logits), "loss": truth.loss.judge(loss, truth.loss_unit())}
    assert {name: str(each) for name, each in found.items() if not each.conforms} == {}


@EACH
def test_every_stage_of_the_reference_is_true(case):
    truth, model = known(case)
    found = truth.judge_stages(model.stages(truth.batch[0]))
    assert {name: str(each) for name, each in found.items() if not each.conforms} == {}


@EACH
def test_gradients_of_the_reference_are_true(case):
    truth, model = known(case)
    gradients = model.gradients(*truth.batch)
    assert all(np.isfinite(value).all() for value in gradients.values())
    if case.config.vocabulary_size > 1 and case.tokens < 50:
        found = {name: truth.judge_slope((name,), gradients) for name in gradients}
    else:
        found = {}
    if parameter_count(case.config) <= SMALLEST and case.tokens < 50:
        loud = {name: np.where(np.abs(g) < VANISHING * np.abs(g).max(), 0.0, g) for name, g in gradients.items()}
        found |= {f"elements of {name}": each for name, each in truth.judge_elements(loud).items()}
    assert {name: str(each) for name, each in found.items() if not each.conforms} == {}
