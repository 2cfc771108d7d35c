"""The report of 13 lines and the trace of 28 lines about the model, as chapter 32's programs print them."""

from __future__ import annotations

from decoderspec.golden import fixtures
from decoderspec.golden.model_evidence import ModelEvidence
from decoderspec.golden.text import fields, number, shape, spaced, spaced_shape, vector

CONFIG = fixtures.MODEL_CONFIG
AXES = {
    "batch": fixtures.TOKENS.shape[0],
    "tokens": fixtures.TOKENS.shape[1],
    "vocabulary": CONFIG.vocabulary_size,
    "model_width": CONFIG.model_width,
    "layers": CONFIG.layers,
    "heads": CONFIG.heads,
    "head_width": CONFIG.head_width,
    "feed_forward_width": CONFIG.feed_forward_width,
    "context": CONFIG.max_positions,
}


def report(evidence: ModelEvidence) -> list[str]:
    """The thirteen lines of the report."""
    shapes = {name.replace("-", "_"): spaced_shape(value.shape) for name, value in evidence.stages.items()}
    predictions = {f"token_{token}": best for token, best in enumerate(evidence.predictions)}
    targets = shape([int(target) for target in fixtures.TARGETS[0]])
    return [
        "chapter=32-decoder-model",
        "config=" + fields(**AXES),
        "shape=" + fields(**shapes, logits=spaced_shape(evidence.logits.shape)),
        "token_1_logits=" + vector(evidence.logits[0, 1]),
        f"targets={targets} " + fields(mean_loss=number(evidence.loss)),
        "prediction=" + fields(**predictions),
        "tying=" + fields(**_tying(evidence)),
        "parameters=" + fields(**_parameters(evidence)),
        "depths=" + fields(**_depths(evidence)),
        "causality=" + fields(**evidence.causality),
        "gradcheck=" + fields(**_gradients(evidence)),
        "replay=" + fields(bitwise=evidence.replay_bitwise),
        "next=train this decoder and select a state with validation loss only",
    ]


def trace(evidence: ModelEvidence) -> list[str]:
    """The twenty-eight lines of the trace."""
    axes = {name: value for name, value in AXES.items() if name != "head_width"}
    return [
        "DECODER_MODEL_TRACE_V1",
        spaced("config", **axes),
        spaced("tokens", shape=shape(fixtures.TOKENS.shape), values=shape(fixtures.TOKENS[0].tolist())),
        spaced("targets", values=shape(fixtures.TARGETS[0].tolist())),
        *(
            spaced("stage", name=name, shape=shape(value.shape), token=token, values=vector(row))
            for name, value in evidence.stages.items()
            for token, row in enumerate(value[0])
        ),
        *(spaced("logits", token=token, values=vector(row)) for token, row in enumerate(evidence.logits[0])),
        spaced("predictions", values=shape(evidence.predictions)),
        spaced("loss", mean=number(evidence.loss)),
        spaced("tying", **_tying(evidence)),
        spaced("parameters", **_parameters(evidence)),
        spaced("depths", **_depths(evidence)),
        spaced("causality", **evidence.causality),
        spaced("gradcheck", **_gradients(evidence)),
        spaced("replay", bitwise=evidence.replay_bitwise),
        "END_DECODER_MODEL_TRACE",
    ]


def _tying(evidence: ModelEvidence) -> dict[str, object]:
    return {
        "name": evidence.parameter_names[0],
        "lookup_and_head": evidence.lookup_and_head,
        "gradient_roles": "lookup+output",
        "decomposition_error": f"{evidence.decomposition_error:.12f}",
    }


def _parameters(evidence: ModelEvidence) -> dict[str, object]:
    return {
        "tensors": len(evidence.parameter_names),
        "scalars": evidence.scalars,
        "untied_scalars": evidence.untied_scalars,
        "saved": evidence.untied_scalars - evidence.scalars,
        **evidence.ownership,
    }


def _depths(evidence: ModelEvidence) -> dict[str, object]:
    errors = evidence.errors
    return {
        "zero_one_two": evidence.depths_valid,
        "configuration_errors": errors["configuration"],
        "context_limit": errors["context"],
        "vocabulary_errors": errors["vocabulary"],
        "target_errors": errors["target"],
    }


def _gradients(evidence: ModelEvidence) -> dict[str, object]:
    table, gain = evidence.table_check.coordinates, evidence.gain_check.coordinates
    return {
        "tied_table": table,
        "final_norm": gain,
        "total": table + gain,
        "tolerance": number(fixtures.TOLERANCE),
        "passed": evidence.gradients_passed,
        "stack_gradients": f"{evidence.stack_gradients}/{len(evidence.parameter_names)}",
    }
