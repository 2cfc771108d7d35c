"""What the fuzz found is refused in words of our own: numbers beyond every float, values without end, masked arrays."""

import io
import json
import zipfile

import numpy as np
import pytest

from decoderspec.faults.bank import by_name
from decoderspec.properties.containers import ContainerError, read_npz
from decoderspec.properties.loading import LoadError, load
from decoderspec.properties.reports.schema import schema, violations
from decoderspec.properties.subject import read_claims
from decoderspec.properties.xfails import XfailError, read_xfails
from decoderspec.reference import Reference, certified, oracle
from decoderspec.reference.arithmetic import multiprecision
from decoderspec.spec.config import Config
from decoderspec.spec.errors import SpecError
from decoderspec.spec.layout import layout
from decoderspec.spec.precision import DeclarationError
from decoderspec.spec.shown import cut, shown
from decoderspec.spec.validation import validate_config

CONFIG = Config(5, 4, 2, 3, 1, 4)
HUGE = 10**5000  # of more digits than Python writes


class Unwritable:
    def __repr__(self):
        raise RuntimeError


@pytest.mark.parametrize("value", [HUGE, -HUGE, "x" * 10**6, [0] * 10**6, Unwritable()], ids=lambda v: type(v).__name__)
def test_any_value_is_shown_in_a_few_words(value):
    assert 0 < len(shown(value)) < 300
    with pytest.raises(SpecError) as found:
        validate_config(Config(value, 4, 2, 3, 1, 4, rms_epsilon=None))
    assert found.value.code
    assert len(str(found.value)) < 500


def test_what_is_short_is_shown_whole():
    assert (shown([1, "a"]), cut("short")) == ("[1, 'a']", "short")


@pytest.mark.parametrize("digits", [0, -1, 1.5, True, None, "50"])
@pytest.mark.parametrize("arithmetic", [multiprecision, oracle.fastest()], ids=["mpmath", "fastest"])
def test_no_number_of_digits_but_one_or_more(digits, arithmetic):
    for compute in (
        lambda: oracle.silu([1.0], digits=digits, arithmetic=arithmetic),
        lambda: certified.values(lambda d, a: {"x": oracle.silu([1.0], digits=d, arithmetic=a)}, digits=digits),
        lambda: oracle.text(oracle.silu([1.0]), digits),
    ):
        with pytest.raises(ValueError, match="digits must be a whole number, 1 or more, got"):
            compute()
    assert oracle.silu([1.0], digits=1, arithmetic=arithmetic).shape == (1,)


@pytest.mark.parametrize(("name", "near"), [("posnorm", "post-norm"), ("nosuch", ""), ("rotary-angle", "rotary-")])
def test_a_fault_that_there_is_not_is_answered_with_those_near_it(name, near):
    with pytest.raises(KeyError, match=f"there is no fault '{name}'; near it: .*{near}"):
        by_name(name)


def test_masked_arrays_are_no_arrays():
    model = Reference().initialize(CONFIG, 0)
    masked = np.ma.masked_array([[0, 1]], mask=[[False, True]])
    for call in (
        lambda: model.logits(masked),
        lambda: model.loss([[0, 1]], masked),
        lambda: model.assign("final_norm.gain", np.ma.ones(4)),
    ):
        with pytest.raises(SpecError, match="a masked array"):
            call()


def test_an_archive_with_places_outside_it_is_refused():
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("a.npy", b"x" * 100)
    data = stream.getvalue()
    for place in range(len(data)):
        with pytest.raises(ContainerError):
            read_npz(data[place:])


@pytest.mark.parametrize("ceiling", ["NaN", "Infinity", "-1", "1" + "0" * 400])
def test_a_ceiling_that_bounds_nothing_is_refused(ceiling, tmp_path):
    path = tmp_path / "known.json"
    path.write_text(f'[{{"requirement": "VAL-1", "reason": "x", "at_most": {ceiling}}}]')
    with pytest.raises(XfailError, match="at_most of 'VAL-1' is"):
        read_xfails(path)


@pytest.mark.parametrize("name", ["<script>", "VAL-1\n", "\ud800", ""])
def test_a_stored_report_names_requirements_as_the_text_does(name):
    rule = schema()["properties"]["requirements"]
    assert violations({name: None}, rule)[0].startswith("a name in report is")


def test_a_figure_of_a_stored_report_is_one_that_a_float_holds():
    rule = schema()["$defs"]["figure"]
    assert violations(json.loads("1" + "0" * 400), rule)
    assert not violations(1e308, rule)


@pytest.mark.parametrize(
    "declared",
    [{"gain_offset": 10**400}, {"gain_offset": float("nan")}, {"names": {"final_norm.gain": ["x"]}}],
    ids=str,
)
def test_a_layout_that_is_no_layout_is_refused(declared):
    with pytest.raises(DeclarationError):
        layout(declared)


def test_a_name_too_long_for_a_file_is_no_implementation():
    with pytest.raises(LoadError, match="there is no file") as found:
        load("x" * 10**5 + ".py:Adapter")
    assert len(str(found.value)) < 2100


def test_an_array_without_an_axis_is_no_list_of_words():
    with pytest.raises(DeclarationError, match="claims must be words"):
        read_claims(np.array(4))
