"""The report of 11 lines and the trace of 33 lines about one block, as chapter 31's programs print them."""

from __future__ import annotations

from decoderspec.golden import fixtures
from decoderspec.golden.block_evidence import BlockEvidence
from decoderspec.golden.text import clean_number, clean_vector, fields, number, piped, shape
from decoderspec.reference.operations import Array

AXES = {
    "batch": fixtures.INPUT.shape[0],
    "tokens": fixtures.INPUT.shape[1],
    "model_width": fixtures.BLOCK_CONFIG.model_width,
    "heads": fixtures.BLOCK_CONFIG.heads,
    "head_width": fixtures.BLOCK_CONFIG.model_width // fixtures.BLOCK_CONFIG.heads,
    "feed_forward_width": fixtures.BLOCK_CONFIG.feed_forward_width,
    "epsilon": number(fixtures.BLOCK_CONFIG.rms_epsilon),
}
REPORT_ORDER = "attention_norm->attention->residual->feed_forward_norm->feed_forward->residual"
TRACE_ORDER = "[attention-norm,attention,residual-1,feed-forward-norm,feed-forward,residual-2]"


def report(evidence: BlockEvidence) -> list[str]:
    """The eleven lines of the report."""
    counts, gradients = _counts(evidence), _gradients(evidence)
    return [
        "chapter=31-decoder-block",
        "config=" + fields(**AXES),
        "shape=" + fields(**{name: shape(axes) for name, axes in _shapes(evidence).items()}),
        f"order={REPORT_ORDER} " + fields(**evidence.order),
        "causality=" + fields(**evidence.causality),
        "parameters=" + fields(**counts, **evidence.ownership),
        "gradcheck=" + fields(**gradients),
        "errors=" + fields(**evidence.errors),
        "history=" + fields(**evidence.history),
        "replay=" + ("bitwise" if evidence.replay_bitwise else "mismatch"),
        "next=stack these blocks between token embeddings and a tied vocabulary head",
    ]


def trace(evidence: BlockEvidence) -> list[str]:
    """The thirty-three lines of the trace."""
    return [
        piped("CONFIG", **AXES, stage_order=TRACE_ORDER),
        *(piped("SHAPE", stage=_dashed(name), value=shape(axes)) for name, axes in _shapes(evidence).items()),
        *(_stage(name, rows) for name, (rows,) in evidence.stages.items()),
        *(_weights(evidence, head, query) for head in range(AXES["heads"]) for query in range(AXES["tokens"])),
        *_merges(evidence),
        *(piped("PROBE", token=token, values=clean_vector(row)) for token, row in enumerate(evidence.probe_logits[0])),
        *_proofs(evidence),
        _parameters(evidence),
        piped("GRADIENTS", **_gradients(evidence)),
        _history(evidence),
    ]


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _shapes(evidence: BlockEvidence) -> dict[str, tuple[int, ...]]:
    shapes = {name: value.shape for name, value in evidence.stages.items()}
    first = ("input", "attention_norm")
    return {
        **{name: shapes[name] for name in first},
        "attention_weights": evidence.weights.shape,
        **{name: axes for name, axes in shapes.items() if name not in first},
        "probe_logits": evidence.probe_logits.shape,
    }


def _counts(evidence: BlockEvidence) -> dict[str, int]:
    values = evidence.parameters.values()
    return {"tensors": len(values), "scalars": sum(value.size for value in values)}


def _gradients(evidence: BlockEvidence) -> dict[str, object]:
    of_input, of_parameters = evidence.gradient_checks
    return {
        "input": of_input,
        "parameters": of_parameters,
        "total": of_input + of_parameters,
        "tolerance": number(fixtures.TOLERANCE),
        "passed": evidence.gradients_passed,
        "tape_finite": evidence.tape_finite,
    }


def _stage(name: str, rows: Array) -> str:
    return piped("STAGE", name=_dashed(name), **{f"token_{i}": clean_vector(row) for i, row in enumerate(rows)})


def _weights(evidence: BlockEvidence, head: int, query: int) -> str:
    row = evidence.weights[0, head, query]
    words = ("allowed" if reached else "blocked" for reached in evidence.allowed[0, head, query])
    return piped(
        "WEIGHT",
        head=head,
        query=query,
        visibility=f"[{','.join(words)}]",
        values=clean_vector(row),
        row_sum=clean_number(sum(row)),
    )


def _merges(evidence: BlockEvidence) -> list[str]:
    ways = (("attention", "input", "after-attention"), ("feed-forward", "after-attention", "output"))
    return [
        piped("MERGE", name=name, identity=stream, branch=f"{name}-branch", result=result, exact=exact)
        for (name, stream, result), exact in zip(ways, evidence.exact_merges, strict=True)
    ]


def _proofs(evidence: BlockEvidence) -> list[str]:
    causality = evidence.causality
    prefix = {True: "bitwise-unchanged", False: "changed"}
    return [
        piped(
            "ORDER_PROOF",
            **evidence.order,
            post_norm_token_1=clean_vector(evidence.post_norm[0, 1]),
            pre_norm_token_1=clean_vector(evidence.stages["after_attention"][0, 1]),
        ),
        piped(
            "CAUSAL_PROOF",
            position_0=prefix[causality["prefix_0_bitwise"]],
            position_1=prefix[causality["prefix_1_bitwise"]],
            position_2="changed" if causality["suffix_changed"] else "unchanged",
            future_probabilities="exact-zero" if causality["future_probabilities_zero"] else "nonzero",
        ),
    ]


def _parameters(evidence: BlockEvidence) -> str:
    owned = evidence.ownership
    return piped(
        "PARAMETERS",
        **_counts(evidence),
        bias=not owned["bias_free"],
        stable_order=owned["stable_order"],
        distinct=owned["distinct"],
        names=f"[{','.join(evidence.parameters)}]",
    )


def _history(evidence: BlockEvidence) -> str:
    history = dict(evidence.history)
    sequential = history.pop("sequential_recurrence")
    return piped("HISTORY", rnn_style_states=clean_vector(evidence.recurrence), sequential=sequential, **history)
