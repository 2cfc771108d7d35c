"""The requirements, read from the text itself: `decoder.md` is their only home."""

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_REQUIREMENT = re.compile(
    r"^\*\*([A-Z]{3}-\d+)\*\* \((\w+)\) (.*?)\n\*Why:\* (.*?)(?:\n\n|\Z)", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Requirement:
    """One normative sentence."""

    id: str
    contract: str
    sentence: str
    why: str


def text() -> str:
    """The whole of `decoder.md`."""
    return files("decoderspec.spec").joinpath("decoder.md").read_text(encoding="utf-8")


@cache
def requirements() -> dict[str, Requirement]:
    """Every requirement by its id, in the order of the text."""
    return {
        name: Requirement(name, contract, " ".join(sentence.split()), " ".join(why.split()))
        for name, contract, sentence, why in _REQUIREMENT.findall(text())
    }
