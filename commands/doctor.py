"""`decoderspec doctor`: what is installed, and what that enables."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from decoderspec import __version__

COMPILERS = ("cc", "gcc", "clang")
EXAMPLES = """examples:
  decoderspec doctor                    each part, its version, and how to get what is missing
  decoderspec doctor >> issue.md        for the report of a bug

exit status: 0, whatever is missing"""


@dataclass(frozen=True)
class Part:
    """Something that may be installed, what it enables, and how to get it."""

    name: str
    enables: str
    extra: str = ""  # of decoderspec; nothing where it is always installed with it


PARTS = (
    Part("numpy", "the reference and the rounding noise"),
    Part("mpmath", "the oracle"),
    Part("hypothesis", "the search for failing cases"),
    Part("pytest", "check, and conformance in your own tests"),
    Part("pytest-benchmark", "bench"),
    Part("pytest-xdist", "check -n 2: several processes", "parallel"),
    Part("torch", "adapters of PyTorch modules", "torch"),
    Part("transformers", "the adapter of transformers' Llama", "transformers"),
    Part("python-flint", "truth in ball arithmetic: rigorous, and faster", "arb"),
)


def installed(name: str) -> str:
    """The version that is installed; empty when none is. Nothing is imported, so that nothing can go wrong."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def lines() -> Iterator[str]:
    """What there is, line by line."""
    yield _line("decoderspec", __version__, "this")
    yield _line(
        "python", platform.python_version(), f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    )
    for part in PARTS:
        found = installed(part.name)
        missing = f"pip install 'decoderspec[{part.extra}]'" if part.extra else "pip install decoderspec"
        yield _line(part.name, found, part.enables if found else f"{part.enables}; {missing}")
    compiler = next(filter(None, map(shutil.which, COMPILERS)), "")
    yield _line("C compiler", compiler or "", "examples and adapters in C")


def _line(name: str, found: str, what: str) -> str:
    return f"  {name:18s} {found or 'not installed':16s} {what}"


def run(arguments: Sequence[str]) -> int:
    """Print what there is; never a failure."""
    parser = argparse.ArgumentParser(
        prog="decoderspec doctor",
        description="What is installed, and what that enables.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args(list(arguments))
    print("\n".join(lines()))
    return 0
