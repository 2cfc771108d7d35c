"""Finding what is under test by its name.

`package.module:attribute`, `path/to/file.py:attribute`, or `command:./decoder --flag` for a child of the line protocol.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from decoderspec.adapters.command import PREFIX, CommandError, CommandImplementation
from decoderspec.properties.conduct import watched
from decoderspec.spec.config import Config
from decoderspec.spec.shown import cut, shown

FORMS = (
    "package.module:attribute or path/to/file.py:attribute (an instance, a class, a factory or a plain function),"
    " or a command that speaks the line protocol, as command:./decoder"
)


class LoadError(Exception):
    """What was named cannot be loaded: says what came, what is allowed, and what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(cut(message))


class FunctionModel:
    """A plain function with its configuration and parameters filled in."""

    def __init__(self, function: Callable[..., Any], config: Config, parameters: Mapping[str, Any]) -> None:
        self._function, self._config, self._parameters = function, config, parameters

    def logits(self, tokens: Any) -> Any:
        """What the function returns."""
        return self._function(self._config, self._parameters, tokens)


class FunctionImplementation:
    """A plain function `(config, parameters, tokens) -> logits`; its attributes are its declarations."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.name = getattr(function, "__name__", type(function).__name__)

    def build(self, config: Config, parameters: Mapping[str, Any]) -> FunctionModel:
        """Nothing is built: the function is called with everything each time."""
        return FunctionModel(self.function, config, parameters)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.function, name)


def load(name: str) -> Any:
    """The implementation of that name. Raises `LoadError`."""
    found = attribute(name)
    if isinstance(found, CommandImplementation) and "logits" not in found.offers:
        offered = ", ".join(found.offers) or "nothing"
        raise LoadError(f"{found.name} offers no logits; test one of what it offers with --as: {offered}")
    return implementation(found, name)


def attribute(name: str) -> Any:
    """The object of that name, as it stands in its module; a command is started."""
    if name.startswith(PREFIX):
        try:
            return CommandImplementation(name.removeprefix(PREFIX))
        except CommandError as reason:
            raise LoadError(str(reason)) from None
    place, colon, path = name.rpartition(":")
    if not colon or not place or not path:
        raise LoadError(f"{shown(name)} does not name an implementation; allowed: {FORMS}")
    with watched("its module"):
        module = _from_file(Path(place)) if place.endswith(".py") else _from_module(place)
    found: Any = module
    for part in path.split("."):
        if not _has(found, part):
            offers = ", ".join(n for n in vars(module) if not n.startswith("_") and callable(getattr(module, n)))
            raise LoadError(f"{place} has no {path!r}; it has: {offers or 'nothing callable'}")
        found = getattr(found, part)
    return found


def implementation(found: Any, name: str) -> Any:
    """An implementation from an instance, a class, a zero-argument factory or a plain function of three parameters."""
    if not inspect.isclass(found) and _is_implementation(found):
        return found
    if _is_logits_function(found):
        return FunctionImplementation(found)
    if inspect.isfunction(found) and (missing := _required(found)):
        raise LoadError(f"a plain function takes (config, parameters, tokens); {name} takes {missing}")
    if not callable(found):
        raise LoadError(
            f"{name} is {type(found).__name__}, which has no build(config, parameters) and no load(); allowed: {FORMS}"
        )
    try:
        with watched("its factory"):
            made = found()
    except KeyboardInterrupt:
        raise
    except BaseException as reason:  # a script may call sys.exit
        raise LoadError(f"{name}() raised {type(reason).__name__}: {reason}") from reason
    if _is_logits_function(made):
        return FunctionImplementation(made)
    if not _is_implementation(made):
        raise LoadError(f"{name}() gave {type(made).__name__}, which has no build(config, parameters), and no load()")
    return made


def _is_implementation(found: Any) -> bool:
    """Whether models come from it: built to order, or loaded with weights of its own."""
    return _has(found, "build") or _has(found, "load")


def _has(found: Any, name: str) -> bool:
    """Whether it has an attribute; one that cannot even be looked up is none."""
    try:
        return hasattr(found, name)
    except (Exception, SystemExit):
        return False


def _required(function: Any) -> int:
    """How many arguments a function cannot do without; a factory has none."""
    parameters = inspect.signature(function).parameters.values()
    return sum(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)


def _is_logits_function(found: Any) -> bool:
    """Whether it is called with a configuration, parameters and tokens: any callable but a class, compiled ones too."""
    if inspect.isclass(found) or not callable(found) or _has(found, "build"):
        return False
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):  # compiled without a signature
        return False
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.default is p.empty and p.kind in places for p in parameters) >= 3


def _from_module(place: str) -> ModuleType:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(place)
    except KeyboardInterrupt:
        raise
    except BaseException as reason:  # a script may call sys.exit
        raise LoadError(f"cannot import {place}: {type(reason).__name__}: {reason}") from reason


def _from_file(path: Path) -> ModuleType:
    if not os.path.isfile(path):  # also where the name is too long for a file, which pathlib raises
        raise LoadError(f"there is no file {path}; allowed: {FORMS}")
    name = f"decoderspec_subject_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise LoadError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as reason:  # a script may call sys.exit
        raise LoadError(f"{path} cannot be run: {type(reason).__name__}: {reason}") from reason
    return module
