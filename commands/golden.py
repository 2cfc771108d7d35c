"""`decoderspec golden`: the documents of the two chapters."""

import sys
from collections.abc import Sequence

from decoderspec.golden import command


def run(arguments: Sequence[str]) -> int:
    """Hand over to the folder that keeps them."""
    if list(arguments) in (["--help"], ["-h"]):
        print(command.USAGE, end="")
        return 0
    return command.run(list(arguments), sys.stdin, sys.stdout)
