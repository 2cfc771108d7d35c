"""Chapter 32 of the course the specification grew from: the model, its printed numbers, exercises and contrasts."""

import numpy as np
import pytest

from decoderspec.golden import fixtures
from decoderspec.golden.model_evidence import model_evidence
from decoderspec.golden.text import vector
from decoderspec.reference import Reference
from decoderspec.spec.config import Config
from decoderspec.spec.errors import SpecError
from decoderspec.spec.parameters import FINAL_GAIN, TABLE

EXERCISE = Config(40, 12, 3, 32, 3, 6)
PRINTED = {  # token 1, as the chapter prints it
    "embedding": "[0.104430,0.699156,0.051971,-0.160217]",
    "blocks.0.output": "[-0.772509,0.841246,1.816030,0.156071]",
    "blocks.1.output": "[-0.183854,0.605829,0.709748,-0.521934]",
    "final_norm": "[-0.338936,1.116846,1.308420,-0.962186]",
}
PRINTED_LOGITS = [
    "[0.386115,0.276091,0.301266,-0.460642,-0.735173]",
    "[-0.862249,0.967613,-0.991545,-0.446363,1.234533]",
    "[-0.220241,0.332921,-0.193218,-0.267554,-0.500487]",
]
PROBE = fixtures.PROBE_TOKENS, fixtures.PROBE_TARGETS


@pytest.fixture(scope="module")
def evidence():
    return model_evidence()


@pytest.fixture(scope="module")
def exercise():
    return Reference().initialize(EXERCISE, 1)


# --- What the chapter prints ---


def test_rows_of_token_1_are_the_printed_ones():
    stages = fixtures.model().stages(fixtures.TOKENS)
    assert {name: vector(stages[name][0, 1]) for name in PRINTED} == PRINTED


def test_logits_predictions_and_loss_are_the_printed_ones(evidence):
    assert [vector(row) for row in evidence.logits[0]] == PRINTED_LOGITS
    assert evidence.predictions == [0, 4, 1]
    assert f"{evidence.loss:.6f}" == "2.045535"


def test_tying_saves_one_table(evidence):
    assert (evidence.scalars, evidence.untied_scalars) == (264, 284)
    assert evidence.lookup_and_head


# --- Gradients ---


def test_all_24_coordinates_of_the_probe_agree_with_central_differences(evidence):
    assert (evidence.table_check.coordinates, evidence.gain_check.coordinates) == (20, 4)
    assert evidence.table_check.passed
    assert evidence.gain_check.passed


def test_gradients_are_finite_in_20_of_20_tensors(evidence):
    assert evidence.stack_gradients == len(evidence.parameter_names) == 20


def test_roles_add_up_to_the_whole_to_twelve_places(evidence):
    assert f"{evidence.decomposition_error:.12f}" == "0.000000000000"


def test_each_role_updates_the_rows_that_it_can_reach():
    """The lookup touches the rows of the ids that came in, the head every row."""
    model = fixtures.probe_model(fixtures.PROBE_TABLE, np.ones(4))
    lookup, head = model.role_gradients(*PROBE)
    touched = [int(row) for row in np.flatnonzero(lookup.any(axis=-1))]
    assert touched == [0, 1]
    assert head.any(axis=-1).all()
    assert np.array_equal(lookup + head, model.gradients(*PROBE)[TABLE])


# --- Exercises ---


def test_shapes_of_two_rows_of_six(exercise):
    stages = exercise.stages(np.zeros((2, 6), int))
    streams = ["embedding", *(f"blocks.{n}.output" for n in range(3)), "final_norm"]
    assert {stages[name].shape for name in streams} == {(2, 6, 12)}
    assert stages["logits"].shape == (2, 6, 40)


def test_tied_count_is_5748_and_an_untied_head_adds_480(exercise):
    assert exercise.parameter_count() == sum(p.size for p in exercise.parameters().values()) == 5748
    assert exercise.parameters()[TABLE].size == 480


def test_first_tenth_and_last_names():
    names = list(fixtures.model().parameters())
    assert (names[0], names[9], names[-1]) == (TABLE, "blocks.0.ffn.down.weight", FINAL_GAIN)
    assert not [name for name in names if "head" in name]


def test_only_the_last_logits_follow_a_change_of_the_last_token(evidence):
    assert evidence.causality == {"prefix_0_bitwise": True, "prefix_1_bitwise": True, "suffix_changed": True}


@pytest.mark.parametrize(
    ("attempt", "category"),
    [
        (lambda: Reference().initialize(Config(5, 4, 0, 4, 2, 4), 0), "configuration"),
        (lambda: fixtures.model().logits([[0] * 5]), "context"),
        (lambda: fixtures.model().logits([[0, 5]]), "vocabulary"),
        (lambda: fixtures.model().loss([[0, 1]], [[1]]), "target_shape"),
    ],
)
def test_the_four_failure_classes(attempt, category):
    with pytest.raises(SpecError) as caught:
        attempt()
    assert caught.value.category == category


def test_no_blocks_leave_lookup_norm_and_head():
    """With no blocks the formula reduces to `RMSNorm(E[z]) E^T`."""
    table, gain = fixtures.PROBE_TABLE, fixtures.PROBE_GAIN
    x = table[fixtures.PROBE_TOKENS]
    expected = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-6) * gain @ table.T
    assert np.allclose(fixtures.probe_model(table, gain).logits(fixtures.PROBE_TOKENS), expected, rtol=1e-14)


def test_replay_is_bitwise(evidence):
    assert evidence.replay_bitwise
    assert evidence.depths_valid
