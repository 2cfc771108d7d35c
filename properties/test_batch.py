"""What other rows of a batch may do to a row: nothing."""

import numpy as np

from decoderspec.properties.cases import Case, other_ids
from decoderspec.properties.findings import NotJudged
from decoderspec.properties.registry import checks
from decoderspec.properties.run import Run
from decoderspec.reference.limits import compare


def rows(case: Case) -> bool:
    """Whether there is another row, and another id to put there."""
    return case.batch > 1 and case.config.vocabulary_size > 1


@checks("BAT-1", where=rows)
def test_other_rows_change_leaves_the_row_bits(run: Run, case: Case) -> None:
    """Changing the other rows of a batch of the same shape changes no bit of a row."""
    if "batch" in run.subject.emulates:
        raise NotJudged("declared as emulated: a loop over rows makes these bits meaningless")
    tokens, model = run.truth(case).batch[0], run.model(case)
    before = model.logits(tokens)
    for row in range(case.batch):
        changed = other_ids(case, tokens)
        changed[row] = tokens[row]
        run.same_bits(
            "logits", model.logits(changed)[row], before[row], f"other rows than {row} were changed and it moved"
        )


@checks("BAT-2", where=lambda case: case.batch > 1)
def test_a_row_alone_gives_the_same_values(run: Run, case: Case) -> None:
    """A row alone, and in a batch, differ by no more than rounding explains."""
    truth, model = run.truth(case), run.model(case)
    tokens, unit = truth.batch[0], truth.units["logits"]
    if not run.admits(tokens[:1]):
        run.pass_over()
        return
    together = model.logits(tokens)
    for row in range(case.batch):
        alone = model.logits(tokens[row : row + 1])[0]
        run.judge(f"logits of row {row} alone", compare(alone, (alone - together[row]) / np.sqrt(2), unit[row]))


@checks("BAT-3", where=rows)
def test_permuted_rows_give_permuted_logits(run: Run, case: Case) -> None:
    """Rows in another order give the same rows in that order, within rounding."""
    truth, model = run.truth(case), run.model(case)
    tokens, unit = truth.batch[0], truth.units["logits"]
    before, after = model.logits(tokens), model.logits(tokens[::-1])[::-1]
    run.judge("logits of permuted rows", compare(after, (after - before) / np.sqrt(2), unit))
