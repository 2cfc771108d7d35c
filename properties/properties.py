"""All properties in the order in which they run."""

import importlib
from typing import Any

from decoderspec.properties.plugin import ORDER
from decoderspec.properties.registry import Property


def all_properties() -> list[Any]:
    """The test functions, each with its `property`."""
    tests: list[Any] = []
    for name in ORDER:
        module = importlib.import_module(f"decoderspec.properties.{name}")
        tests += [value for value in vars(module).values() if isinstance(getattr(value, "property", None), Property)]
    return tests
