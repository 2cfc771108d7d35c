"""A `torch.nn.Module` as a model under test: everything that PyTorch can tell of it without knowing what it is."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.func import functional_call

from decoderspec.spec.config import Config
from decoderspec.spec.parameters import FINAL_GAIN, TABLE
from decoderspec.spec.stages import stage_names, suffix

BLOCK = "blocks.{n}."
BY_HEAD = ("attention.query", "attention.key", "attention.value", "attention.heads")
SHOWN = {  # what the module of a weight puts out, and what goes into it
    TABLE: ("embedding",),
    "attention_norm.gain": ("attention_norm",),
    "attention.query.weight": ("attention.query",),
    "attention.key.weight": ("attention.key",),
    "attention.value.weight": ("attention.value",),
    "attention.output.weight": ("attention.output", "attention.merged:input"),
    "ffn_norm.gain": ("ffn_norm", "after_attention:input"),
    "ffn.gate.weight": ("ffn.gate",),
    "ffn.up.weight": ("ffn.up",),
    "ffn.down.weight": ("ffn.output", "ffn.product:input"),
    FINAL_GAIN: ("final_norm",),
}


class TorchModel:
    """A module whose `forward` takes token ids `[B, T]` and whose parameters are the decoder's, tied ones once.

    `names` is that of the layout: canonical pattern -> name in the module. The stages follow from it, since a
    module with one weight shows the stage that bears the weight's name. `taps` adds stages: pattern -> module
    path, with `:input` for what goes in, `:1` for one of several results and `:0/3` for one of three equal parts of the
    last axis. `head` names a head's weight that is tied to the table, for the gradients by role; without one they
    cannot be told apart. `loss` is yours: logits `[B, T, V]` and targets `[B, T]`, both tensors -> scalar tensor;
    without it the loss and its gradients are those of PyTorch's cross entropy, whatever the module has of its own.
    """

    def __init__(
        self,
        module: Any,
        config: Config,
        names: Mapping[str, str],
        taps: Mapping[str, str] | None = None,
        head: str | None = None,
        loss: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        self.module = module.eval()
        self.loss_of = loss or _cross_entropy
        self.config = config
        self.table = names.get(TABLE, TABLE)
        self.taps = {**_taps_of(module, config, names), **(taps or {})}
        if head is not None:
            self.head = head
            self.role_gradients = self._role_gradients  # a capability is found by its presence

    def check(self, tokens: Any, targets: Any = None) -> tuple[Any, Any]:
        """Tokens and targets as the module takes them; the place to refuse bad ones. Here all are taken."""
        return tokens, targets

    def logits(self, tokens: Any) -> Any:
        """The logits `[B, T, V]` of tokens `[B, T]`."""
        tokens, _ = self.check(tokens)
        with torch.no_grad():
            return self._logits(tokens)

    def loss(self, tokens: Any, targets: Any) -> float:
        """The mean negative log-likelihood of the targets `[B, T]`, which are given and not shifted."""
        tokens, targets = self.check(tokens, targets)
        with torch.no_grad():
            return float(self._loss(self._logits(tokens), targets))

    def gradients(self, tokens: Any, targets: Any) -> dict[str, Any]:
        """The loss's gradient for each parameter, by its name in the module."""
        tokens, targets = self.check(tokens, targets)
        names, weights = zip(*self.module.named_parameters(), strict=True)
        with torch.enable_grad():
            loss = self._loss(self._logits(tokens), targets)
        return dict(zip(names, torch.autograd.grad(loss, weights), strict=True))

    def parameters(self) -> dict[str, Any]:
        """The live parameters by their names in the module, a tied one once."""
        return {name: weight.detach() for name, weight in self.module.named_parameters()}

    def assign(self, name: str, value: Any) -> None:
        """Write one parameter in place, so that whatever is tied to it follows."""
        weight, value = self.module.get_parameter(name), torch.as_tensor(value)
        if weight.shape != value.shape:  # `copy_` would broadcast
            raise ValueError(f"{name} must have shape {tuple(weight.shape)}, got {tuple(value.shape)}")
        if not value.is_floating_point():  # `copy_` would convert
            raise ValueError(f"{name} must hold real numbers, got {value.dtype}")
        with torch.no_grad():
            weight.copy_(value)

    def load(self, parameters: Mapping[str, Any]) -> "TorchModel":
        """Write all parameters and return the model; raises for wrong names, wrong shapes and infinities."""
        names = dict(self.module.named_parameters())
        if set(names) != set(parameters):
            missing, unknown = set(names) - set(parameters), set(parameters) - set(names)
            raise ValueError(f"missing parameters {sorted(missing)}, unknown parameters {sorted(unknown)}")
        for name, value in parameters.items():
            if not torch.isfinite(torch.as_tensor(value)).all():
                raise ValueError(f"{name} holds values that are not finite")
            self.assign(name, value)
        return self

    def stages(self, tokens: Any) -> dict[str, Any]:
        """The stages that the taps reach, in forward order."""
        found: dict[str, Any] = {}
        names = stage_names(self.config.layers)
        hooks = [hook for stage in names for hook in self._hooks(stage, found)]
        try:
            found["logits"] = self.logits(tokens)
        finally:
            for hook in hooks:
                hook.remove()
        return {stage: found[stage] for stage in names if stage in found}

    def _logits(self, tokens: Any) -> Any:
        output = self.module(torch.as_tensor(tokens))
        return getattr(output, "logits", output)  # transformers answers with a record

    def _loss(self, logits: Any, targets: Any) -> Any:
        return self.loss_of(logits, torch.as_tensor(targets))

    def _hooks(self, stage: str, found: dict[str, Any]) -> Iterator[Any]:
        """Yield the hook that keeps a stage; none where no module shows it."""
        block = stage.split(".")[1] if stage.startswith("blocks.") else ""
        tap = self.taps.get(BLOCK + suffix(stage) if block else stage)
        if tap is None:
            return
        path, _, which = tap.replace("{n}", block).partition(":")

        def keep(_: Any, inputs: Any, output: Any) -> None:
            value = _chosen(which, inputs, output)
            if value is not None:  # fused attention has no weights to show
                found[stage] = self._in_heads(stage, value).clone()

        yield self.module.get_submodule(path).register_forward_hook(keep)

    def _in_heads(self, stage: str, value: Any) -> Any:
        """Queries, keys and values as `[B, h, T, w]`, where the module has the heads side by side."""
        if suffix(stage) not in BY_HEAD or value.ndim != 3:
            return value
        return value.unflatten(-1, (self.config.heads, -1)).transpose(1, 2)

    def _role_gradients(self, tokens: Any, targets: Any) -> tuple[Any, Any]:
        """The table's gradient as a lookup and as the head, by giving the head a copy of its own."""
        tokens, targets = self.check(tokens, targets)
        lookup = self.module.get_parameter(self.table)
        copy = lookup.detach().clone().requires_grad_()
        with torch.enable_grad():
            untied = functional_call(self.module, {self.head: copy}, (torch.as_tensor(tokens),), tie_weights=False)
            loss = self._loss(getattr(untied, "logits", untied), targets)
        as_lookup, as_head = torch.autograd.grad(loss, (lookup, copy))
        return as_lookup, as_head


def _taps_of(module: Any, config: Config, names: Mapping[str, str]) -> dict[str, str]:
    """Where the stages beside each weight are seen, if the weight has a module of its own: stage -> tap."""
    taps = {}
    for pattern, name in names.items():
        if "{n}" in pattern and config.layers == 0:
            continue
        path = name.rpartition(".")[0]
        if len(list(module.get_submodule(path.replace("{n}", "0")).parameters())) > 1:
            continue
        for shown in SHOWN[pattern.removeprefix(BLOCK)]:
            stage, colon, side = shown.partition(":")
            taps[BLOCK + stage if pattern.startswith(BLOCK) else stage] = path + colon + side
    return taps


def _chosen(which: str, inputs: Any, output: Any) -> Any:
    """What goes into a module, what comes out, one of several results, or one of equal parts of the last axis."""
    if which == "input":
        return inputs[0]
    number, _, parts = which.partition("/")
    if parts:
        return output.chunk(int(parts), dim=-1)[int(number)]
    return output[int(number)] if number else output


def _cross_entropy(logits: Any, targets: Any) -> Any:
    """Cross entropy in the logits' dtype, but no lower than float32, as half-precision training has it."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return torch.nn.functional.cross_entropy(logits.flatten(0, -2), targets.flatten())


def compute_in_own_dtype(module: Any, config: Config) -> None:
    """Replace the norms and rotation tables of a transformers decoder, float32 in any dtype, by same-dtype ones."""
    for path, part in list(module.named_modules()):
        if type(part).__name__.endswith("RMSNorm"):
            gain = part.weight
            norm = torch.nn.RMSNorm(gain.shape, eps=config.rms_epsilon, dtype=gain.dtype)
            module.set_submodule(path, norm)
        elif type(part).__name__.endswith("RotaryEmbedding"):
            module.set_submodule(path, HalfSplitTables(config))


class HalfSplitTables(torch.nn.Module):  # type: ignore[misc]  # mypy does not follow torch
    """Cosines and sines `[B, T, w]` of the rotation, in the dtype of the activations `x`."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.width, self.base = config.head_width, config.rope_base

    def forward(self, x: Any, position_ids: Any) -> tuple[Any, Any]:
        """The tables for positions `[B, T]`; both halves of a head use the same angles."""
        exponents = torch.arange(0, self.width, 2, dtype=x.dtype) / self.width
        angles = position_ids[..., None].to(x.dtype) * self.base**-exponents
        angles = torch.cat([angles, angles], -1)
        return angles.cos(), angles.sin()
