"""A model of real width, judged by samples of its stages."""

from decoderspec.properties import big
from decoderspec.properties.findings import NotJudged
from decoderspec.properties.registry import checks_once
from decoderspec.properties.run import Run


@checks_once("BIG-1", needs=["stages"])
def test_samples_of_a_model_of_real_width_are_right(run: Run) -> None:
    """At a width of 2048 and 32,000 words, chosen elements of every stage are the true ones of its own inputs.

    So are those of a checkpoint that is too large for the whole truth.
    """
    if run.sampled:
        big.judge_checkpoint(run)
        return
    if run.subject.checkpoint:
        raise NotJudged("BIG-1: the whole truth of these parameters is judged, not samples")
    if run.profile.name != "thorough":
        raise NotJudged("BIG-1: thorough profile only")
    big.judge(run)
