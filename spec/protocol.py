"""What is under test: the protocol an implementation speaks, and its optional capabilities."""

from collections.abc import Mapping
from typing import Any, Protocol

from numpy.typing import NDArray

from decoderspec.spec.config import Config

CONTRACTS = ("forward", "training", "weights", "inputs")
CAPABILITIES = {  # method -> what it would let the suite test, in the words of the report
    "loss": "loss(tokens, targets) -> float lets the loss be tested",
    "gradients": "gradients(tokens, targets) -> {name: array} lets every parameter's gradient be tested",
    "role_gradients": "role_gradients(tokens, targets) -> (lookup, head) lets the two roles of the table be told apart",
    "parameters": "parameters() -> {name: array} lets names, order, count and state be tested",
    "assign": "assign(name, value) lets the live table and stale copies be tested",
    "stages": "stages(tokens) -> {name: array} lets an error be placed at the stage that makes it",
    "initialize": "initialize(config, seed) on the implementation lets the initialization be tested",
}


METHODS = ("logits", "stages", "loss", "gradients", "role_gradients")  # those that take tokens
WITH_TARGETS = METHODS[2:]


def arguments(method: str, tokens: Any, targets: Any) -> tuple[Any, ...]:
    """What a method that takes tokens is called with: the targets go to those that take them."""
    return (tokens, targets) if method in WITH_TARGETS else (tokens,)


class Model(Protocol):
    """A built decoder. Only `logits` is required; each other method of `CAPABILITIES` is found by its presence."""

    def logits(self, tokens: NDArray[Any]) -> Any:
        """Token ids `[B, T]` int64 to logits `[B, T, V]`: anything with `detach`, `__dlpack__` or `__array__`."""


class Implementation(Protocol):
    """What an adapter offers: a name, `build`, and whatever it declares about itself.

    For `decoderspec bench` it may offer `yardstick(rows, inner, columns, products, numbers, sweeps)`, a function of no
    arguments that carries out so many matrix products and sweeps of memory on its device; `synchronize()`, which
    returns when the device is done; and `peak_memory()`, the bytes held at most since it was last asked.
    """

    name: str

    def build(self, config: Config, parameters: Mapping[str, NDArray[Any]]) -> Model:
        """A model with these parameters: float64 arrays under canonical names (or the declared layout's)."""


class Checkpoint(Protocol):
    """Weights that are theirs: an existing checkpoint, a quantised model, a class that initialises itself.

    Only tokens vary then, and truth is computed from the weights that are handed out (docs/checkpoints.md).
    """

    name: str

    def load(self) -> tuple[Config, Mapping[str, Any], Model]:
        """The configuration, the weights as the model computes with them in the declared layout, and the model."""
