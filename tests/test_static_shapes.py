"""An engine with static shapes is asked for no other, by any property over cases."""

import numpy as np
import pytest

from decoderspec.properties.check import check
from decoderspec.properties.strategies import admits
from decoderspec.reference import Reference


class Static:
    """The reference's model, for one shape of tokens alone."""

    def __init__(self, model):
        self.model = model

    def __getattr__(self, name):
        method = getattr(self.model, name)

        def of_one_shape(tokens, *targets):
            if np.shape(tokens) != (2, 4):
                raise ValueError(f"compiled for [2, 4], got {np.shape(tokens)}")
            return method(tokens, *targets)

        return of_one_shape if name in ("logits", "loss", "gradients", "role_gradients", "stages") else method


class Engine(Reference):
    name, claims = "static", ("forward", "training", "weights")
    limits = {"batch": [2], "tokens": [4], "layers": [1], "vocabulary_size": [5], "heads": [2], "head_width": [4]}  # noqa: RUF012

    def build(self, config, parameters):
        return Static(super().build(config, parameters))


def test_other_shapes_are_asked_for_as_bad_input_alone():
    report = check(f"{__file__}:Engine", profile="quick")
    rows = report.rows()
    assert report.verdict == "conforms", [row for row in rows.values() if row["status"] == "fail"]
    for name in ("BAT-2", "CAU-3"):  # which ask of other shapes
        assert rows[name]["status"] in ("pass", "not_judged") or "within the limits" in rows[name]["reason"]
    assert rows["BAT-2"]["status"] != "pass"


@pytest.mark.parametrize("shape", [(2, 4), (1, 4), (2, 3)])
def test_a_shape_is_admitted_when_both_its_sizes_are(shape):
    assert admits(Engine.limits, *shape) == (shape == (2, 4))
