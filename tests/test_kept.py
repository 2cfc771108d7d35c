"""Decoders that keep what an earlier call made, by its shape alone: a reader wrote them, and the suite passed them."""

import numpy as np
import pytest

from decoderspec.properties.findings import Finding
from decoderspec.properties.registry import search
from decoderspec.properties.session import run_over
from decoderspec.properties.test_forward import test_logits_are_right_within_the_noise as logits
from decoderspec.properties.test_state import test_the_same_call_gives_the_same_bits as same_bits
from decoderspec.properties.test_training import test_gradients_are_right_along_a_direction as gradients
from decoderspec.properties.test_training import test_loss_is_the_mean_over_all_positions as loss
from decoderspec.reference import Reference


class Keeps:
    """The reference's model, with something left from call to call."""

    def __init__(self, model):
        self.model, self.kept = model, {}

    def __getattr__(self, name):
        return getattr(self.model, name)

    def as_kept(self, what, tokens, value):
        """What was made for the last batch, while the shape stays."""
        if self.kept.get(what, (None,))[0] != np.shape(tokens):
            self.kept[what] = np.shape(tokens), value
        return self.kept[what][1]

    def last(self, tokens):
        """The ids that were given to another method last, where they have this shape."""
        seen = self.kept.get("tokens", tokens)
        return seen if seen.shape == tokens.shape else tokens


class KeepsGradients(Keeps):
    def gradients(self, tokens, targets):
        return self.as_kept("gradients", tokens, self.model.gradients(tokens, targets))


class KeepsLoss(Keeps):
    def loss(self, tokens, targets):
        return self.as_kept("loss", tokens, self.model.loss(tokens, targets))


class OfLastLogits(Keeps):
    def logits(self, tokens):
        self.kept["tokens"] = np.array(tokens)
        return self.model.logits(tokens)


class GradientsOfLastLogits(OfLastLogits):
    def gradients(self, tokens, targets):
        return self.model.gradients(self.last(tokens), targets)


class LossOfLastLogits(OfLastLogits):
    def loss(self, tokens, targets):
        return self.model.loss(self.last(tokens), targets)


class LogitsOfLastLoss(Keeps):
    def loss(self, tokens, targets):
        self.kept["tokens"] = np.array(tokens)
        return self.model.loss(tokens, targets)

    def logits(self, tokens):
        return self.model.logits(self.last(tokens))


class OfALongerCall(Keeps):
    """Its cache of values is cleared by another batch size alone: a shorter call still sees the first of a longer."""

    def logits(self, tokens):
        kept = self.kept.get("tokens")
        if kept is not None and kept.shape[0] == tokens.shape[0] and kept.shape[1] > tokens.shape[1]:
            tokens = np.concatenate([kept[:, :1], tokens[:, 1:]], axis=1)
        else:
            self.kept["tokens"] = np.array(tokens)
        return self.model.logits(tokens)


class WrongOnce(Keeps):
    """One of all calls is wrong, and never again: what the search saw is not there when it asks once more."""

    calls = 0

    def logits(self, tokens):
        WrongOnce.calls += 1
        logits = self.model.logits(tokens)
        return logits + 1 if WrongOnce.calls == 20 else logits


def subject(kind):
    """The reference with its models wrapped."""
    build = staticmethod(lambda config, parameters: kind(Reference().build(config, parameters)))
    return type(kind.__name__, (Reference,), {"build": build})()


@pytest.mark.parametrize(
    ("kind", "found_by"),
    [
        (KeepsGradients, gradients),
        (KeepsLoss, loss),
        (GradientsOfLastLogits, gradients),
        (LossOfLastLogits, loss),
        (LogitsOfLastLoss, same_bits),
        (OfALongerCall, same_bits),
    ],
)
def test_what_is_kept_by_shape_is_found(kind, found_by):
    run = run_over(subject(kind))
    with pytest.raises(Finding):
        found_by.property.check(run, run.fixed[0])


@pytest.mark.parametrize("found_by", [gradients, loss, same_bits])
def test_keeping_nothing_is_right(found_by):
    run = run_over(subject(Keeps))
    found_by.property.check(run, run.fixed[0])


def test_what_fails_once_is_a_finding_that_says_so_and_none_about_the_suite():
    run = run_over(subject(WrongOnce))
    with pytest.raises(Finding, match="asked again, the same case passed"):
        search(run, logits.property)
