"""The command `decoderspec`: one sub-command for each thing that people do, each in a module of its own."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from decoderspec import __version__
from decoderspec.commands import guard

COMMANDS = {
    "check": "is an implementation right: a verdict per contract, and what is wrong where",
    "report": "a stored JSON report as a page, Markdown, JUnit XML, a badge or CSV",
    "explain": "which stage is the first that is wrong, and what it behaves like",
    "faults": "the kill table: what the suite catches, by which requirement and how soon",
    "bench": "how fast an implementation is, and whether it became slower",
    "golden": "print, rewrite or compare the four documents of the two chapters",
    "vectors": "write test vectors for people who want no Python, or check a folder of them",
    "init": "write an adapter with the few lines to fill",
    "doctor": "what is installed, and what that enables",
}
EXAMPLES = """examples:
  decoderspec check --self              the reference that comes with it, a minute or two
  decoderspec init torch                an adapter to fill, and the sentence that tests it
  decoderspec check mine.py:Adapter     a verdict on yours
  decoderspec explain mine.py:Adapter   what is wrong, and where

`decoderspec COMMAND --help` shows more of each.

exit status of all of them: 0 all is well, 1 it is not, 2 nothing could be said"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a sub-command; the exit status is 0 when all is well, 1 when not, 2 when nothing could be said."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(
        prog="decoderspec",
        description="Conformance tests for LLaMA-style decoders.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join(f"  {name:8s} {what}" for name, what in COMMANDS.items()) + f"\n\n{EXAMPLES}",
    )
    parser.add_argument("--version", action="version", version=f"decoderspec {__version__}")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND")
    chosen = parser.parse_args(given[:1])
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # cases are tiny: threads cost more than they give
    if arguments is None and chosen.command in guard.GUARDED and guard.SENTINEL not in os.environ:
        return guard.run(given)
    try:
        module = importlib.import_module(f"decoderspec.commands.{chosen.command}")
        status: int = module.run(given[1:])
    except BrokenPipeError:
        status = 1
    except KeyboardInterrupt:
        print("interrupted: no verdict", file=sys.stderr)
        status = guard.UNSAID
    except SystemExit:  # the parser's word on the arguments; an implementation's own never comes this far
        guard.finish()
        raise
    guard.finish()
    return status


if __name__ == "__main__":
    sys.exit(main())
