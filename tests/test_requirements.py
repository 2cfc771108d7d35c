"""Text, properties, stages and contracts agree: nothing is required untested, nothing is tested unrequired."""

import re
from collections import Counter

import numpy as np
import pytest

from decoderspec.properties import bad_input, causes, summary, test_operation
from decoderspec.properties.properties import all_properties
from decoderspec.properties.registry import PROPERTIES, Property
from decoderspec.properties.report import ESSENTIAL
from decoderspec.reference import decoder, oracle
from decoderspec.spec.config import Config
from decoderspec.spec.parameters import parameter_shapes
from decoderspec.spec.protocol import CONTRACTS
from decoderspec.spec.requirements import requirements, text
from decoderspec.spec.stages import stage_names, stage_shape

CONFIG = Config(5, 4, 2, 3, 2, 4)
FAMILIES = {  # family -> how its identifiers begin; precision is judged through the values, by the declared one's noise
    "configuration": "CFG", "parameters": "WGT", "initialization": "INI", "shapes": "SHP", "values": "VAL",
    "causality": "CAU", "batch": "BAT", "attention": "ATT", "residual order": "RES", "tying": "TIE", "loss": "LOS",
    "gradients": "GRA", "errors": "INP", "determinism": "DET", "operations": "OPN",
    "real size": "BIG",
}  # fmt: skip


def collected() -> list[Property]:
    """Properties of a decoder, then those of one operation."""
    found = [getattr(value, "property", None) for value in [*all_properties(), *vars(test_operation).values()]]
    return [value for value in found if isinstance(value, Property)]


def named_by_properties() -> set[str]:
    return {name for found in collected() for name in found.requirements}


def test_every_requirement_has_a_property():
    assert not set(requirements()) - named_by_properties()


def test_every_property_names_only_requirements_of_the_text():
    assert not named_by_properties() - set(requirements())


def test_every_property_that_is_registered_is_collected():
    assert Counter(found.name for found in collected()) == Counter({found.name: 1 for found in PROPERTIES})


def test_every_property_is_a_sentence_with_a_docstring():
    for found in PROPERTIES:
        assert found.check.__doc__, found.name
        assert len(found.name.split("_")) > 4, found.name


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_there(family):
    assert any(name.startswith(FAMILIES[family] + "-") for name in requirements())


def test_no_family_is_unknown():
    assert {name.partition("-")[0] for name in requirements()} == set(FAMILIES.values())


def test_identifiers_are_unique_and_read_completely():
    written = re.findall(r"^\*\*([^*]+)\*\* \(", text(), re.MULTILINE)
    assert len(set(written)) == len(written)
    assert [name for name in written if re.fullmatch(r"[A-Z]{3}-\d+", name)] == list(requirements())


def test_identifiers_that_the_text_mentions_exist():
    assert set(re.findall(r"\b[A-Z]{3}-\d+\b", text())) == set(requirements())


def test_every_requirement_has_a_contract_and_a_reason_and_says_must():
    for requirement in requirements().values():
        assert requirement.contract in CONTRACTS, requirement.id
        assert len(requirement.why) > len("because"), requirement.id
        assert "MUST" in requirement.sentence, requirement.id


def test_every_contract_has_requirements():
    assert {requirement.contract for requirement in requirements().values()} == set(CONTRACTS)


def test_tables_of_the_report_name_requirements_that_exist():
    grouped = [name for _, names in causes.FAMILIES for name in names]
    essential = [name for names in ESSENTIAL.values() for name in names]
    named = [*grouped, *essential, *summary.GRADES.values(), *bad_input.REQUIREMENTS]
    assert not set(named) - set(requirements())
    assert len(set(grouped)) == len(grouped)


def test_essential_requirements_belong_to_their_contract():
    for contract, names in ESSENTIAL.items():
        assert {requirements()[name].contract for name in names} <= {contract}


def test_everything_that_must_be_refused_is_asked_for():
    assert set(bad_input.REQUIREMENTS) == {name for name in requirements() if requirements()[name].contract == "inputs"}


def parameters(config):
    random = np.random.default_rng(0)
    return {name: random.normal(size=shape) for name, shape in parameter_shapes(config).items()}


def test_decoder_oracle_and_stage_names_agree_in_order_and_shape():
    tokens = np.array([[0, 1, 4], [2, 2, 3]])
    weights = parameters(CONFIG)
    ours = decoder.stages(CONFIG, weights, tokens)
    theirs = oracle.forward(CONFIG, weights, tokens)
    assert tuple(ours) == tuple(theirs) == stage_names(CONFIG.layers)
    for name, value in ours.items():
        assert value.shape == np.shape(theirs[name]) == stage_shape(name, CONFIG, *tokens.shape), name


def test_the_text_lists_the_stages_in_that_order():
    section = text().partition("## 3.")[2].partition("Sources:")[0]
    names = {name.removeprefix("blocks.0."): None for name in stage_names(1)}
    places = [re.search(rf"^ {{4}}(?:.*, )?{re.escape(name)}(?=[,\s])", section, re.MULTILINE) for name in names]
    assert all(places), [name for name, place in zip(names, places, strict=True) if place is None]
    starts = [place.end() for place in places if place]
    assert starts == sorted(starts)
