"""`decoderspec report`: a stored JSON report as a page, as Markdown, as JUnit XML, as a badge, as CSV."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from decoderspec.commands import outputs
from decoderspec.properties.printable import printable
from decoderspec.properties.reports import markdown
from decoderspec.properties.reports.schema import StoredError, read

EXAMPLES = """examples:
  decoderspec report report.json                                as Markdown, printed
  decoderspec report report.json --html report.html --badge badge.json

exit status: 0 it is written, 2 it cannot be read or written; the verdict is not judged again"""


def run(arguments: Sequence[str]) -> int:
    """Read, check against the schema, write."""
    parser = argparse.ArgumentParser(
        prog="decoderspec report", epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="what `decoderspec check --json` wrote")
    outputs.add_options(parser, "html", "markdown", "junit", "badge", "csv")
    options = parser.parse_args(list(arguments))
    try:
        files = outputs.given(options)
        document = read(options.file)
        outputs.write(document, files)
    except (StoredError, OSError) as reason:
        print(f"decoderspec: {printable(str(reason))}", file=sys.stderr)
        return 2
    if not files:
        print(markdown.render(document), end="")
    return 0
