"""What must be refused. Asked in a child process, once for the whole session, and last."""

from decoderspec.properties.findings import Finding, NotJudged
from decoderspec.properties.registry import checks_once
from decoderspec.properties.run import Run


@checks_once("CFG-1")
def test_invalid_configurations_are_refused(run: Run) -> None:
    """Zero, negative and fractional sizes, an odd head width, base or epsilon out of range; also without layers."""
    refused(run, "CFG-1")


@checks_once("CFG-2")
def test_sizes_beyond_memory_are_refused_at_once(run: Run) -> None:
    """More than 2^40 scalars, before any is allocated."""
    refused(run, "CFG-2")


@checks_once("INP-1")
def test_ids_out_of_range_are_refused(run: Run) -> None:
    """-1 and V exactly, and what lies beyond; 0 and V-1 are taken."""
    refused(run, "INP-1")


@checks_once("INP-2")
def test_token_shapes_other_than_batch_by_length_are_refused(run: Run) -> None:
    """Wrong rank, ragged, or empty in either axis."""
    refused(run, "INP-2")


@checks_once("INP-3")
def test_tokens_that_are_not_integers_are_refused(run: Run) -> None:
    """Floats, booleans, strings, objects."""
    refused(run, "INP-3")


@checks_once("INP-4")
def test_sequences_beyond_the_context_are_refused(run: Run) -> None:
    """`max_positions + 1` tokens; `max_positions` are taken."""
    refused(run, "INP-4")


@checks_once("INP-5")
def test_wrong_targets_are_refused(run: Run) -> None:
    """Ids out of range, a missing one, and what is not an integer."""
    refused(run, "INP-5")


@checks_once("INP-6")
def test_wrong_parameters_are_refused(run: Run) -> None:
    """Missing, unknown, misshapen, not real or not finite."""
    refused(run, "INP-6")


@checks_once("INP-7")
def test_a_refusal_leaves_the_model_usable(run: Run) -> None:
    """Valid input after a refused call gives the bits that it gave before."""
    refused(run, "INP-7")


def refused(run: Run, requirement: str) -> None:
    """Raise a finding that lists what was not refused and what became of it."""
    outcomes = [outcome for outcome in run.outcomes if outcome.requirement == requirement]
    judged = [outcome for outcome in outcomes if outcome.judged]
    run.entry.examples = len(judged)
    wrong = [outcome for outcome in judged if not outcome.ok]
    if wrong:
        shown = "; ".join(f"{outcome.sentence}: {outcome.grade}" for outcome in wrong[:3])
        more = f"; and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        grades = {outcome.probe: f"{outcome.grade} ({outcome.detail})" for outcome in wrong}
        raise Finding(f"{len(wrong)} of {len(judged)} bad inputs were not refused as they must be: {shown}{more}",
                      "inputs", details=grades)  # fmt: skip
    if not judged:
        reason = outcomes[0].detail if outcomes else run.unasked or "nothing could be asked"
        raise NotJudged(f"{requirement}: {reason}")
