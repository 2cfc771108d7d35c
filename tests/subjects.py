"""Small implementations, right and wrong, that a run of seconds can judge."""

from decoderspec.reference import Reference

SMALL = {
    "layers": [1], "tokens": [2, 4], "batch": [1, 2], "heads": [2], "head_width": [4], "feed_forward_width": [3],
    "vocabulary_size": [5], "max_positions": [4],
}  # fmt: skip


class LogitsAlone:
    def __init__(self, model):
        self.logits = model.logits


class Right(Reference):
    name = "right"
    claims = ("forward",)
    limits = SMALL

    def build(self, config, parameters):
        return LogitsAlone(super().build(config, self.changed(parameters)))

    def changed(self, parameters):
        return parameters


class Wrong(Right):
    name = "wrong"

    def changed(self, parameters):
        return {n: p * 1.0001 if n.endswith("up.weight") else p for n, p in parameters.items()}


class WrongInWhatItDoesNotClaim(Right):
    name = "careless"

    def build(self, config, parameters):
        model = super().build(config, parameters)
        logits = model.logits
        model.logits = lambda tokens: logits(tokens % config.vocabulary_size)
        return model


class ClaimsNothing(Right):
    name = "modest"
    claims = ()


class ClaimsTooMuch(Right):
    name = "boastful"
    claims = ("forward", "training")


class Unbuildable(Right):
    name = "unbuildable"

    def build(self, config, parameters):
        raise OSError("weights.bin is missing")


class Misdeclared(Right):
    precision = "float12"


class Unlimited(Right):
    limits = {"head_width": [3]}  # noqa: RUF012 - a declaration
