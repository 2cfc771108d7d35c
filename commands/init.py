"""`decoderspec init`: an adapter that runs as it stands, with the few lines to fill."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import packages_distributions
from importlib.resources import files
from pathlib import Path


@dataclass(frozen=True)
class Kind:
    """What somebody may have: `tested` follows the file's name in the command that checks it."""

    what: str
    tested: str = ""
    suffix: str = ".py"
    builds: str = ""  # with `{source}` and `{program}`; none where the file itself is named

    @property
    def default(self) -> Path:
        """The file that is written where none is named."""
        return Path("decoder" if self.builds else "adapter").with_suffix(self.suffix)


KINDS = {
    "torch": Kind("a PyTorch module, with loss, gradients and stages", ":Adapter"),
    "jax": Kind("a function of JAX, with loss and gradients", ":Adapter"),
    "function": Kind("a function of configuration, parameters and tokens", ":logits"),
    "operation": Kind("one operation and its derivative, RMSNorm to begin with", ":rms_norm --as rms_norm"),
    "block": Kind("one decoder block", ":block --as block"),
    "c": Kind("a program in C", suffix=".c", builds="cc -O2 -std=c11 -o {program} {source} -lm"),
    "rust": Kind("a program in Rust", suffix=".rs", builds="rustc --edition 2021 -O -o {program} {source}"),
}
EXAMPLES = """examples:
  decoderspec init torch
  decoderspec init function my_decoder.py
  decoderspec init c

exit status: 0 written, 2 not written"""


def parser() -> argparse.ArgumentParser:
    """The arguments, with what each kind is for."""
    kinds = "\n".join(f"  {name:10s} {kind.what} ({kind.default})" for name, kind in KINDS.items())
    made = argparse.ArgumentParser(
        prog="decoderspec init",
        epilog=f"kinds, and the file of each unless another is named:\n{kinds}\n\n{EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("kind", choices=KINDS, help="what you have")
    made.add_argument("file", nargs="?", type=Path, help="where to write it")
    return made


def template(kind: str) -> str:
    """The text of an adapter; `{file}`, `{build}` and `{check}` in it stand for its name and its commands."""
    name = f"templates/{kind}{KINDS[kind].suffix}.txt"
    return files("decoderspec.commands").joinpath(name).read_text(encoding="utf-8")


def written(kind: str, path: Path) -> str:
    """The text of an adapter that stands in that file."""
    text = template(kind).replace("{file}", path.name)
    return text.replace("{build}", building(kind, path)).replace("{check}", sentence(kind, path))


def building(kind: str, path: Path) -> str:
    """The command that makes a program of it; empty where there is none to make."""
    program = shlex.quote(_program(path))
    return KINDS[kind].builds.format(source=shlex.quote(str(path)), program=program)


def sentence(kind: str, path: Path) -> str:
    """The command that tests it."""
    if KINDS[kind].builds:
        return f"decoderspec check --command {shlex.quote(shlex.quote(_program(path)))}"
    return f"decoderspec check {shlex.quote(str(path))}{KINDS[kind].tested}"


def _program(path: Path) -> str:
    return os.path.join(".", path.with_suffix(""))


def run(arguments: Sequence[str]) -> int:
    """Write the file, never over another, and print the sentence that tests it."""
    options = parser().parse_args(list(arguments))
    kind: str = options.kind
    path: Path = options.file or KINDS[kind].default
    try:
        _require_usable(kind, path)
        with path.open("x", encoding="utf-8") as file:
            file.write(written(kind, path))
    except OSError as reason:
        print(f"decoderspec: {path} is not written: {reason.strerror or reason}", file=sys.stderr)
        return 2
    print(f"{path} is written and runs as it is; fill the lines marked FILL, and test it with\n")
    for command in filter(None, (building(kind, path), sentence(kind, path))):
        print(f"    {command}")
    return 0


def _require_usable(kind: str, path: Path) -> None:
    """Raise `OSError` for a name that `check` could not load: its folder comes first on the path of imports."""
    suffix = KINDS[kind].suffix
    if path.suffix != suffix:
        raise OSError(f"its name must end in {suffix}")
    if suffix == ".py" and (path.stem in sys.stdlib_module_names or path.stem in packages_distributions()):
        raise OSError(f"it would hide the module {path.stem!r} from what imports it; choose another name")
