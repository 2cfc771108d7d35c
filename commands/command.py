"""The options by which `check` and `explain` name a command that speaks the line protocol."""

from __future__ import annotations

import argparse
import os
import sys

from decoderspec.adapters.command import LIMITS, PREFIX

MEANING = {"start": "its start message", "call": "each reply, and each piece of a long message"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """`--command` beside the name of an implementation, and the time limits of a child."""
    parser.add_argument("--command", metavar="CMD", help="a program that speaks the line protocol, as './decoder'")
    for kind, (variable, usual) in LIMITS.items():
        words = f"that it has for {MEANING[kind]}: {usual:g} unless {variable} says otherwise"
        parser.add_argument(f"--{kind}-timeout", metavar="SECONDS", type=float, help=words)


def name_of(options: argparse.Namespace) -> str | None:
    """What is named; time limits go into the environment, which reaches every process that loads it again."""
    for kind, (variable, _) in LIMITS.items():
        if (given := getattr(options, f"{kind}_timeout")) is not None:
            os.environ[variable] = str(given)
    name: str | None = options.implementation
    if options.command is None:
        return name
    if name is None:
        return f"{PREFIX}{options.command}"
    print(f"decoderspec: two are named, {name} and --command: give one", file=sys.stderr)
    raise SystemExit(2)
