"""`decoderspec golden`: print, compare, check and rewrite the four documents and the golden values."""

from __future__ import annotations

import sys
from typing import Any, TextIO

from decoderspec.golden import documents, values
from decoderspec.golden.compare import compare

USAGE = """\
usage: decoderspec golden report|trace block|model            print a document
       decoderspec golden compare report|trace block|model    compare standard input with it
       decoderspec golden check                               compare what is kept with a fresh run
       decoderspec golden rewrite                             keep what a fresh run gives
       decoderspec golden values                              compute and keep the golden values (a minute)

examples:
  decoderspec golden report model                            the report of the chapter on the model
  ./mine --trace | decoderspec golden compare trace model    what differs in yours, in words
  decoderspec golden check                                   after a change, before a commit

exit status: 0 done, or the same; 1 something differs; 2 the arguments make no command
"""
SAME, DIFFERS, UNUSABLE = 0, 1, 2


def run(arguments: list[str], stdin: Any, stdout: TextIO, stderr: TextIO | None = None) -> int:
    """Exit status: 0 done and the same, 1 something differs, 2 the arguments make no command."""
    match arguments:
        case ["check"]:
            return _check(stdout)
        case ["rewrite"]:
            return _rewrite(stdout)
        case ["values"]:
            stdout.write(f"{values.rewrite().name}\n")
            return SAME
        case ["compare", kind, subject] if (kind, subject) in documents.DOCUMENTS:
            return _compare(kind, subject, _read(stdin), stdout)
        case [kind, subject] if (kind, subject) in documents.DOCUMENTS:
            _write(stdout, documents.document(kind, subject))
            return SAME
        case _:
            (stderr or sys.stderr).write(
                f"decoderspec golden: cannot use {' '.join(arguments) or 'no arguments'}\n{USAGE}"
            )
            return UNUSABLE


def _compare(kind: str, subject: str, text: str, stdout: TextIO) -> int:
    differences = compare(kind, subject, text)
    for difference in differences:
        stdout.write(f"{difference}\n")
    stdout.write(f"{kind} {subject}: {len(differences) or 'no'} difference{'s' * (len(differences) != 1)}\n")
    return DIFFERS if differences else SAME


def _check(stdout: TextIO) -> int:
    status = SAME
    for kind, subject in documents.DOCUMENTS:
        stale = documents.kept(kind, subject) != documents.document(kind, subject)
        stdout.write(f"{kind} {subject}: {'differs from a fresh run' if stale else 'as kept'}\n")
        status = DIFFERS if stale else status
    return status


def _rewrite(stdout: TextIO) -> int:
    for path in documents.rewrite():
        stdout.write(f"{path.name}\n")
    return SAME


def _read(stdin: Any) -> str:
    """Standard input as it came: a text stream would have turned its line ends around."""
    given = getattr(stdin, "buffer", stdin).read()
    return given.decode("utf-8", errors="replace") if isinstance(given, bytes) else str(given)


def _write(stdout: Any, text: str) -> None:
    """Byte for byte, also where the stream would write other line ends."""
    if hasattr(stdout, "reconfigure"):
        stdout.reconfigure(encoding="utf-8", newline="\n")
    stdout.write(text)
