"""Text that an implementation gave, made safe to print: no character of it moves a cursor or turns the line around."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text with control, formatting and surrogate characters written as escapes; lines stay lines."""
    return "".join(
        char if char == "\n" or char.isprintable() else " " if char == "\t" else _escaped(char) for char in text
    )


def one_line(text: str) -> str:
    """The same for what must stay within its line, such as a name."""
    return printable(text).replace("\n", "\\n")


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
