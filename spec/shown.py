"""Values as error messages show them: short, and never a failure of their own."""

MOST = 200  # characters of a value
LONGEST = 2000  # characters of a message


def shown(value: object, most: int = MOST) -> str:
    """A value as Python writes it, cut where it is long; its type where it cannot be written."""
    try:
        return cut(repr(value), most)
    except Exception:  # an integer of more digits than Python writes, or an object of somebody's
        return f"a value of type {type(value).__name__} that cannot be written"


def cut(text: str, most: int = LONGEST) -> str:
    """The beginning of a text that is too long."""
    return text if len(text) <= most else f"{text[:most]}.. ({len(text):,} characters)"
