"""The smallest case that still shows something: sizes taken down one by one, as long as it does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from decoderspec.properties.cases import Case
from decoderspec.properties.run import Run
from decoderspec.properties.strategies import within

TRIES = 40  # each is a few hundredths of a second of oracle


def smallest(run: Run, case: Case, shows: Callable[[Case], bool]) -> Case:
    """A case no larger than the one that is given, on which it still shows; the same one where builds are dear."""
    if case.stored or run.pool or run.is_dear:
        return case
    tried = {case}
    while True:
        left = (c for c in smaller(case) if c not in tried and within(run.subject.limits, c) == c)
        for candidate in left:
            tried.add(candidate)
            if len(tried) > TRIES:
                return case
            if shows(candidate):
                case = candidate
                break
        else:
            return case


def smaller(case: Case) -> Iterator[Case]:
    """The case with one size taken to its least, or halved; plain where it was awkward on purpose."""
    case = replace(case, note="")
    c = case.config
    yield from (replace(case, batch=size) for size in _sizes(case.batch, 1))
    yield from (replace(case, config=replace(c, layers=size)) for size in _sizes(c.layers, 1))
    yield from (replace(case, tokens=size) for size in _sizes(case.tokens, 1))
    width = c.head_width
    yield from (
        replace(case, config=replace(c, heads=heads, model_width=heads * width)) for heads in _sizes(c.heads, 1)
    )
    yield from (
        replace(case, config=replace(c, model_width=c.heads * size)) for size in _sizes(width, 2) if size % 2 == 0
    )
    yield from (replace(case, config=replace(c, feed_forward_width=size)) for size in _sizes(c.feed_forward_width, 1))
    yield from (replace(case, config=replace(c, vocabulary_size=size)) for size in _sizes(c.vocabulary_size, 2))
    yield from (replace(case, config=replace(c, max_positions=size)) for size in {case.tokens} - {c.max_positions})
    yield from (replace(case, style=style) for style in {"plain"} - {case.style})


def _sizes(size: int, least: int) -> Iterator[int]:
    """The least size, then half of what it is."""
    if size > least:
        yield least
    if size // 2 > least:
        yield size // 2
