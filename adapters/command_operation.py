"""One operation, or the block, of a command that speaks the line protocol, as a function and its derivative."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from decoderspec.adapters import messages
from decoderspec.adapters.command import CommandError, CommandImplementation
from decoderspec.adapters.encodings import Array, carried
from decoderspec.adapters.messages import CONFIG
from decoderspec.adapters.process import Expected


def operation(
    implementation: CommandImplementation, name: str, inputs: Sequence[str]
) -> tuple[Callable[..., Any], Callable[..., Any] | None]:
    """The functions of section 10 of the text, the second only where it is offered. Raises `CommandError`."""
    if name not in implementation.offers:
        offered = ", ".join(implementation.offers) or "nothing"
        raise CommandError(f"{implementation.name} does not offer {name}; it offers: {offered}")

    def forward(*values: Any) -> Array:
        constants, arrays = _arguments(name, inputs, values)
        expected = Expected({"output": _output_shape(name, arrays)}, complete=True)
        return implementation.reply(name, constants, arrays, expected)["output"]

    def backward(upstream: Any, *values: Any) -> Any:
        constants, arrays = _arguments(name, inputs, values)
        real = {key: value.shape for key, value in arrays.items() if value.dtype.kind == "f"}
        given = {"upstream": carried("upstream", upstream), **arrays}
        found = implementation.reply(f"{name}_backward", constants, given, Expected(real, complete=True))
        if name == "block":
            return found.pop("x"), found
        return tuple(found[key] for key in real)

    return forward, backward if f"{name}_backward" in implementation.offers else None


def _arguments(name: str, inputs: Sequence[str], values: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Array]]:
    """Constants and arrays by name; the configuration and the parameters of a block are spread out."""
    if name == "block":
        config, parameters, x, offset = values
        given = {field: getattr(config, field) for field in CONFIG} | {"offset": offset, "x": x, **parameters}
    else:
        given = dict(zip(inputs, values, strict=True))
    constants = {key: messages.constant(key, given.pop(key)) for key in messages.OPERATIONS[name]}
    return constants, {key: carried(key, value) for key, value in given.items()}


def _output_shape(name: str, arrays: Mapping[str, Array]) -> tuple[int, ...]:
    """What the specification says."""
    shapes = {key: value.shape for key, value in arrays.items()}
    match name:
        case "embed":
            return (*shapes["tokens"], shapes["table"][1])
        case "linear":
            return (*shapes["x"][:-1], shapes["weight"][1])
        case "project":
            return (*shapes["x"][:-1], shapes["table"][0])
        case "nll":
            return ()
        case _:
            return next(iter(shapes.values()))
