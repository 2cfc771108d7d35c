"""The picture of a report: for each stage the error against its limit and the right bits against the possible ones."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from decoderspec.properties.printable import one_line
from decoderspec.properties.reports.document import figure, number

WIDTH, ROW, TOP = 360, 21, 40  # a phone's width, so that its letters need not shrink
NAMES, NOISE, BARS, GAP = 118, 96, 72, 10  # widths of the columns, and what lies between them
INSIDE = 0.7  # the part of the noise column that lies within the limit; beyond it the scale is logarithmic
DECADES = 16.0  # what is beyond the limit is at most so many powers of ten


def picture(stages: Sequence[dict[str, Any]]) -> str:
    """An SVG that needs nothing from outside; empty where no stage was judged."""
    if not stages:
        return ""
    height = TOP + ROW * len(stages) + 6
    body = [*_heads(height, stages), *(part for i, stage in enumerate(stages) for part in _stage(i, stage, stages))]
    limit = NAMES + GAP + INSIDE * NOISE
    body.append(f'<line class="limit" x1="{limit:.1f}" x2="{limit:.1f}" y1="{TOP - 4}" y2="{height - 4}"/>')
    about = "; ".join(_sentence(stage) for stage in stages)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="picture-title picture-text">'
        '<title id="picture-title">Error and effective bits of each stage</title>'
        f'<desc id="picture-text">{_text(about)}</desc>{"".join(body)}</svg>'
    )


def _text(words: str) -> str:
    return escape(one_line(words))


def _sentence(stage: dict[str, Any]) -> str:
    """A stage in words, for whoever does not see the picture."""
    bits = "" if stage["bits"] is None else f", {_bits(stage):.0f} of {stage['possible']} bits right"
    return f"{stage['name']}: {share(stage)} its limit{bits}"


def share(stage: dict[str, Any]) -> str:
    """The error as a part of what is allowed, to go before "its limit"."""
    excess = figure(stage["excess"])
    return f"{100 * excess:.0f} % of" if excess <= 1 else f"{number(excess)} times"


def _heads(height: int, stages: Sequence[dict[str, Any]]) -> Iterator[str]:
    noise, bits = NAMES + GAP, NAMES + NOISE + 2 * GAP
    limit = noise + INSIDE * NOISE
    yield f'<text class="head" x="{noise}" y="12">error, of its limit</text>'
    yield f'<text class="head" x="{bits}" y="12">bits right</text>'
    yield f'<text class="tick" x="{noise}" y="30">0</text>'
    yield f'<text class="tick" x="{limit:.1f}" y="30" text-anchor="middle">limit</text>'
    beyond = f'x="{limit:.1f}" y="{TOP - 4}" width="{(1 - INSIDE) * NOISE:.1f}" height="{height - TOP}"'
    yield f'<rect class="beyond" {beyond}/>'
    yield f'<text class="tick" x="{bits}" y="30">0</text>'
    yield f'<text class="tick" x="{bits + BARS}" y="30" text-anchor="end">{_most(stages)}</text>'


def _stage(index: int, stage: dict[str, Any], stages: Sequence[dict[str, Any]]) -> Iterator[str]:
    y, noise, bits = TOP + ROW * index, NAMES + GAP, NAMES + NOISE + 2 * GAP
    excess = figure(stage["excess"])
    tone = "good" if excess <= 1 else "bad"
    yield f"<g><title>{_text(_sentence(stage))}</title>"
    yield f'<text x="{NAMES}" y="{y + 10}" text-anchor="end">{_text(_short(stage["name"]))}</text>'
    yield _bar("track", noise, y, INSIDE * NOISE)
    yield _bar(tone, noise, y, max(1.5, NOISE * _length(excess)))
    if stage["bits"] is not None:
        unit, right, possible = BARS / _most(stages), _bits(stage), stage["possible"]
        end = bits + unit * possible
        yield _bar("track", bits, y, unit * possible) + _bar(tone, bits, y, unit * right)
        yield f'<line class="possible" x1="{end:.1f}" x2="{end:.1f}" y1="{y - 1}" y2="{y + 14}"/>'
        yield f'<text class="value" x="{WIDTH}" y="{y + 10}" text-anchor="end">{right:.0f} of {possible}</text>'
    yield "</g>"


def _bar(tone: str, x: float, y: float, width: float) -> str:
    return f'<rect class="{tone}" x="{x}" y="{y + 1}" width="{width:.1f}" height="11"/>'


def _most(stages: Sequence[dict[str, Any]]) -> int:
    """The largest number of bits that the picture has room for."""
    return max(max(int(stage["possible"]), math.ceil(_bits(stage))) for stage in stages)


def _bits(stage: dict[str, Any]) -> float:
    """The bits that are right, 0 where that is no number."""
    bits = figure(stage["bits"])  # NaN where there are none
    return bits if math.isfinite(bits) else 0.0


def _length(excess: float) -> float:
    """The part of the column that a bar fills: linear up to the limit, powers of ten beyond it."""
    if excess <= 1:
        return INSIDE * excess
    if not math.isfinite(excess):
        return 1.0
    return INSIDE + (1 - INSIDE) * min(1.0, (0.5 + math.log10(excess)) / (0.5 + DECADES))


def _short(name: str) -> str:
    return name if len(name) <= 23 else f"{name[:22]}…"
