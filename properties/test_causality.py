"""What later tokens may do to earlier rows: nothing."""

import numpy as np

from decoderspec.properties.cases import Array, Case, other_ids
from decoderspec.properties.findings import NotJudged
from decoderspec.properties.registry import checks
from decoderspec.properties.run import Run
from decoderspec.reference.limits import compare


def several(case: Case) -> bool:
    """Whether there is a later token, and another id to put there."""
    return case.tokens > 1 and case.config.vocabulary_size > 1


def cuts(case: Case) -> list[int]:
    """Positions from which on tokens are changed: the second, the last, some between, some inside blocks of keys."""
    rng = np.random.default_rng((case.seed, 2))
    inside = [cut for cut in (5, 12, 40, 90, 200) if cut < case.tokens]
    return sorted({1, case.tokens - 1, *inside, *rng.integers(1, case.tokens, 2).tolist()})


def with_suffix_changed(case: Case, tokens: Array, cut: int) -> Array:
    """The same ids before the cut, different ones from it on."""
    return np.concatenate([tokens[:, :cut], other_ids(case, tokens)[:, cut:]], axis=1)


@checks("CAU-1", where=several, long=True)
def test_suffix_change_leaves_prefix_values(run: Run, case: Case) -> None:
    """Changing later tokens moves earlier rows by no more than rounding explains."""
    truth, model = run.truth(case), run.model(case)
    tokens, unit = truth.batch[0], truth.units["logits"]
    before = model.logits(tokens)
    for cut in cuts(case):
        after = model.logits(with_suffix_changed(case, tokens, cut))[:, :cut]
        what = f"logits of the first {cut} positions, after later tokens changed,"
        run.judge(what, compare(after, after - before[:, :cut], unit[:, :cut]), "attention.weights")


@checks("CAU-2", where=several, long=True)
def test_suffix_change_leaves_prefix_bits(run: Run, case: Case) -> None:
    """Changing later tokens at the same length changes no bit of an earlier row."""
    if "causal" in run.subject.emulates:
        raise NotJudged("declared as emulated: one call per prefix makes these bits meaningless")
    tokens, model = run.truth(case).batch[0], run.model(case)
    before = model.logits(tokens)
    for cut in cuts(case):
        after = model.logits(with_suffix_changed(case, tokens, cut))[:, :cut]
        why = f"tokens from position {cut} on were changed and an earlier row moved"
        run.same_bits("logits", after, before[:, :cut], why)


@checks("CAU-3", where=several, long=True)
def test_a_shorter_prefix_gives_the_same_rows(run: Run, case: Case) -> None:
    """Leaving later tokens out moves the rows that remain by no more than rounding explains."""
    truth, model = run.truth(case), run.model(case)
    tokens, unit = truth.batch[0], truth.units["logits"]
    whole = model.logits(tokens)
    near = cuts(case)[:3] if not run.has_dear_shapes else [case.tokens // 2]  # which other properties ask for too
    shorter = [cut for cut in near if run.admits(tokens[:, :cut])]
    if not shorter:
        run.pass_over()
    for cut in shorter:
        part = model.logits(tokens[:, :cut])
        run.judge(
            f"logits of the prefix of {cut} alone", compare(part, (part - whole[:, :cut]) / np.sqrt(2), unit[:, :cut])
        )
