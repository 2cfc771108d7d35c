"""`decoderspec init`: an adapter that runs as it stands, with the few lines to fill."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from importlib.metadata import packages_distributions
from importlib.resources import files
from pathlib import Path

DEFAULT = Path("adapter.py")
KINDS = {  # kind -> what is under test in its file, and how it is called for
    "torch": (":Adapter", "a PyTorch module, with loss, gradients and stages"),
    "function": (":logits", "a function of configuration, parameters and tokens"),
    "operation": (":rms_norm --as rms_norm", "one operation and its derivative, RMSNorm to begin with"),
    "block": (":block --as block", "one decoder block"),
}
EXAMPLES = """examples:
  decoderspec init torch
  decoderspec init function my_decoder.py

exit status: 0 written, 2 not written"""


def parser() -> argparse.ArgumentParser:
    """The arguments, with what each kind is for."""
    kinds = "\n".join(f"  {name:10s} {what}" for name, (_, what) in KINDS.items())
    made = argparse.ArgumentParser(
        prog="decoderspec init",
        epilog=f"kinds:\n{kinds}\n\n{EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("kind", choices=KINDS, help="what you have")
    made.add_argument("file", nargs="?", type=Path, default=DEFAULT, help=f"where to write it ({DEFAULT})")
    return made


def template(kind: str) -> str:
    """The text of an adapter; `{file}` in it stands for the name of its file."""
    return files("decoderspec.commands").joinpath(f"templates/{kind}.py.txt").read_text(encoding="utf-8")


def sentence(kind: str, path: Path) -> str:
    """The command that tests it."""
    return f"decoderspec check {shlex.quote(str(path))}{KINDS[kind][0]}"


def run(arguments: Sequence[str]) -> int:
    """Write the file, never over another, and print the sentence that tests it."""
    options = parser().parse_args(list(arguments))
    path: Path = options.file
    try:
        _require_usable(path)
        with path.open("x", encoding="utf-8") as file:
            file.write(template(options.kind).replace("{file}", path.name))
    except OSError as reason:
        print(f"decoderspec: {path} is not written: {reason.strerror or reason}", file=sys.stderr)
        return 2
    print(f"{path} is written and runs as it is; fill the lines marked FILL, and test it with\n")
    print(f"    {sentence(options.kind, path)}")
    return 0


def _require_usable(path: Path) -> None:
    """Raise `OSError` for a name that `check` could not load: its folder comes first on the path of imports."""
    if path.suffix != ".py":
        raise OSError("its name must end in .py")
    if path.stem in sys.stdlib_module_names or path.stem in packages_distributions():
        raise OSError(f"it would hide the module {path.stem!r} from what imports it; choose another name")
