"""`decoderspec vectors`: write test vectors for people who want no Python, or check a folder of them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from decoderspec.golden.vectors import files as vectors
from decoderspec.golden.vectors.inputs import VectorError
from decoderspec.golden.vectors.verify import differences

EXAMPLES = """examples:
  decoderspec vectors vectors/             write the files there, half a minute
  decoderspec vectors --verify vectors/    compute every value in them again
  node read_vectors.mjs vectors/           a reader to start from (examples/read_vectors.mjs, docs/vectors.md)

exit status: 0 written, or nothing differs; 1 something differs; 2 the folder cannot be used"""
DONE, DIFFERS, UNUSABLE = 0, 1, 2
SHOWN = 20  # differences that are printed


def parser() -> argparse.ArgumentParser:
    """The arguments, with examples."""
    made = argparse.ArgumentParser(
        prog="decoderspec vectors", epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("folder", type=Path, metavar="DIRECTORY", help="where the vectors are, or are to be")
    made.add_argument("--verify", action="store_true", help="check the vectors that are there")
    return made


def run(arguments: Sequence[str]) -> int:
    """Write or verify."""
    options = parser().parse_args(list(arguments))
    try:
        return verify(options.folder) if options.verify else write(options.folder)
    except (VectorError, OSError) as reason:
        print(f"decoderspec: {reason}", file=sys.stderr)
        return UNUSABLE


def write(folder: Path) -> int:
    """Compute all of them, put them into the folder, and say what they show."""
    vectors.require_free(folder)
    files = vectors.documents()
    vectors.write(folder, files)
    index = json.loads(files[vectors.INDEX])
    cases = {entry["file"]: entry["cases"] for entry in index["files"]}
    for name, content in files.items():
        print(f"{name:22} {len(content):>9,} bytes{f'  {cases[name]:>4} cases' if name in cases else ''}")
    print(f"{'':22} {sum(map(len, files.values())):>9,} bytes  {sum(cases.values()):>4} cases in {folder}")
    print(f"\n{_coverage(index['requirements'])}")
    for name, reason in index["not_shown"].items():
        print(f"  {name} is not among them: {reason}")
    return DONE


def _coverage(shown: Mapping[str, Sequence[str]]) -> str:
    count = sum(bool(cases) for cases in shown.values())
    return f"{count} of {len(shown)} requirements are shown by a case"


def verify(folder: Path) -> int:
    """Compute everything again and print what differs."""
    found = list(differences(folder, lambda name: print(name, flush=True)))
    for difference in found[:SHOWN]:
        print(f"  {difference}")
    if len(found) > SHOWN:
        print(f"  and {len(found) - SHOWN} more")
    print(f"{folder}: {len(found) or 'no'} difference{'s' * (len(found) != 1)}")
    return DIFFERS if found else DONE
