"""A JAX function as an implementation: loss and gradients from JAX, stages from what the function keeps."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp

from decoderspec.spec.config import Config
from decoderspec.spec.parameters import TABLE
from decoderspec.spec.stages import stage_names


class JaxFunction:
    """An implementation from `function(config, parameters, tokens) -> logits`, compiled once for each shape.

    `parameters` is a mapping of the layout's names to arrays, or what `arrange` makes of that: nested dictionaries, a
    list of blocks. It is called inside what is differentiated, so that gradients come back by name. `head` is a further
    name under which the function finds the table for its head, for the gradients by role; without one they cannot be
    told apart. With `keeps` the function takes a fourth argument `keep(stage, value)` and calls it for what it shows.
    """

    claims: Sequence[str] = ("forward", "training", "weights")

    def __init__(
        self,
        function: Callable[..., Any],
        dtype: str,
        *,
        name: str | None = None,
        precision: Any = None,
        layout: Mapping[str, Any] | None = None,
        limits: Mapping[str, Any] | None = None,
        arrange: Callable[[dict[str, Any]], Any] = dict,
        head: str | None = None,
        keeps: bool = False,
    ) -> None:
        self.function, self.dtype, self.arrange, self.head, self.keeps = function, dtype, arrange, head, keeps
        self.name = name or f"{function.__name__}, JAX {jax.__version__}, {dtype}"
        self.precision, self.layout, self.limits = precision or dtype, layout or {}, limits or {}
        self.table = self.layout.get("names", {}).get(TABLE, TABLE)

    def build(self, config: Config, parameters: Mapping[str, Any]) -> "JaxModel":
        """The function with its parameters as arrays of the dtype."""
        return JaxModel(self, config, {name: self.array(value) for name, value in parameters.items()})

    def array(self, value: Any) -> Any:
        """A JAX array of the dtype; of float64 too, without changing JAX for whoever else uses it."""
        with jax.enable_x64(self.dtype == "float64"):
            return jnp.asarray(value, self.dtype)

    def call(self, compiled: Callable[..., Any], *arguments: Any) -> Any:
        """A compiled function's answer, with 64 bits only where they are declared."""
        with jax.enable_x64(self.dtype == "float64"):
            return compiled(*arguments)

    @cached_property
    def logits(self) -> Callable[..., Any]:
        """Of configuration, parameters and tokens."""
        return partial(self.call, jax.jit(self._logits, static_argnums=0))

    @cached_property
    def stages(self) -> Callable[..., Any]:
        """Of configuration, parameters and tokens."""
        return partial(self.call, jax.jit(self._stages, static_argnums=0))

    @cached_property
    def loss_and_gradients(self) -> Callable[..., Any]:
        """Of configuration, parameters, tokens and targets: one compilation for both."""
        return partial(self.call, jax.jit(jax.value_and_grad(self._loss, argnums=1), static_argnums=0))

    def _logits(self, config: Config, parameters: dict[str, Any], tokens: Any, keep: Any = None) -> Any:
        further = (keep or (lambda stage, value: None),) if self.keeps else ()
        return self.function(config, self.arrange(parameters), tokens, *further)

    def _stages(self, config: Config, parameters: dict[str, Any], tokens: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        logits = self._logits(config, parameters, tokens, found.__setitem__)
        return {**found, "logits": logits}

    def _loss(self, config: Config, parameters: dict[str, Any], tokens: Any, targets: Any) -> Any:
        """Cross entropy over all positions, in no lower than float32."""
        logits = self._logits(config, parameters, tokens)
        logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1)
        return -chosen.mean()


class JaxModel:
    """The function of one configuration with its parameters."""

    def __init__(self, of: JaxFunction, config: Config, parameters: dict[str, Any]) -> None:
        self.of, self.config, self._parameters = of, config, parameters
        if of.head is not None:
            self.role_gradients = self._role_gradients  # a capability is found by its presence
        if of.keeps:
            self.stages = self._stages

    def logits(self, tokens: Any) -> Any:
        """The logits `[B, T, V]` of tokens `[B, T]`."""
        return self.of.logits(self.config, self._given, tokens)

    def loss(self, tokens: Any, targets: Any) -> Any:
        """The mean negative log-likelihood of the targets `[B, T]`, which are given and not shifted."""
        return self.of.loss_and_gradients(self.config, self._given, tokens, targets)[0]

    def gradients(self, tokens: Any, targets: Any) -> dict[str, Any]:
        """The loss's gradient for each parameter, by the layout's names."""
        _, found = self.of.loss_and_gradients(self.config, self._given, tokens, targets)
        if self.of.head is not None:
            found[self.of.table] += found.pop(self.of.head)
        return dict(found)

    def parameters(self) -> dict[str, Any]:
        """The parameters by the layout's names, the table once."""
        return dict(self._parameters)

    def assign(self, name: str, value: Any) -> None:
        """Put another array in the place of one parameter, of the same shape."""
        array = self.of.array(value)
        if array.shape != self._parameters[name].shape:
            raise ValueError(f"{name} must have shape {self._parameters[name].shape}, got {array.shape}")
        self._parameters[name] = array

    def _stages(self, tokens: Any) -> dict[str, Any]:
        """What the function keeps, in forward order, and the logits."""
        found: dict[str, Any] = self.of.stages(self.config, self._given, tokens)
        known = {stage: found[stage] for stage in stage_names(self.config.layers) if stage in found}
        return known | found  # an unknown name is for the suite to find

    def _role_gradients(self, tokens: Any, targets: Any) -> tuple[Any, Any]:
        """The table's gradient as a lookup and as the head, which is an argument of its own."""
        _, found = self.of.loss_and_gradients(self.config, self._given, tokens, targets)
        return found[self.of.table], found[self.of.head]

    @property
    def _given(self) -> dict[str, Any]:
        tied = {} if self.of.head is None else {self.of.head: self._parameters[self.of.table]}
        return {**self._parameters, **tied}
