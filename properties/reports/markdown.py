"""The report for a pull request or a CI summary, in GitHub's Markdown: contracts, findings, what was not covered."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import Any

from decoderspec.properties.printable import one_line, printable
from decoderspec.properties.reports import document as words
from decoderspec.properties.reports.document import Document

SPECIAL = re.compile(r"[\\`*_{}\[\]#|~@!]")  # what Markdown reads as its own


def render(document: Document) -> str:
    """The whole summary."""
    parts = [f"## decoderspec: {quoted(words.name(document))}", f"**{words.verdict(document)}**"]
    parts += ["\n".join(_contracts(document)), _about(document), *_findings(document)]
    parts += ["\n".join(_problems(document)), "\n".join(_known(document)), "\n".join(_unclaimed(document))]
    parts += [_folded("Beside answering", [f"- {quoted(entry)}" for entry in document["conduct"]])]
    parts += [_folded("Not covered", _not_covered(document)), _folded("All requirements", _requirements(document))]
    return "\n\n".join(part for part in parts if part) + "\n"


def quoted(text: str) -> str:
    """Somebody else's text on one line: nothing in it is Markdown, HTML or a mention."""
    escaped = SPECIAL.sub(lambda found: f"&#{ord(found[0])};", html.escape(one_line(text), quote=False))
    return f"<code>{escaped}</code>"


def _fenced(text: str) -> str:
    """Somebody else's lines, between a fence that they do not hold."""
    safe = printable(text)
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", safe)), default=0))
    return f"{fence}text\n{safe}\n{fence}"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _contracts(document: Document) -> Iterator[str]:
    yield _row("contract", "verdict", "requirements", "worst error")
    yield _row("---", "---", "---", "---")
    for contract, verdict in document["contracts"].items():
        worst = words.nearest(words.rows(document, contract))
        noisy = f"{worst[0]}: {words.noise(worst[1])}" if worst else ""
        shown = "**fails**" if verdict == "fails" else verdict
        yield _row(contract, shown, words.counted(document, contract), noisy)
    for contract, holes in document["holes"].items():
        yield from (f"\n{contract} is claimed, but {quoted(hole)}" for hole in holes)


def _about(document: Document) -> str:
    observed = document["precision"]["observed"]
    parts = [f"declared {quoted(words.precision(document['precision']['declared']))}"]
    parts += [f"observed {quoted(words.precision(observed))}"] if observed else []
    parts += [f"profile {document['profile']}, seed {document['seed']}"]
    return "; ".join([*parts, f"decoderspec {document['decoderspec']}, {document['seconds']['total']:.0f} s"])


def _findings(document: Document) -> Iterator[str]:
    counted = [finding for finding in document["findings"] if finding["counts"]]
    for number, finding in enumerate(counted, 1):
        yield "\n\n".join(_finding(document, number, finding))


def _finding(document: Document, number: int, finding: dict[str, Any]) -> Iterator[str]:
    first, *others = dict.fromkeys(finding["requirements"])
    yield f"### Finding {number}: {quoted(finding['headline'])}"
    yield f"> **{first}** {words.sentence(first)}"
    case = f"\ncase: {finding['case']}" if finding["case"] else ""
    yield _fenced(f"{finding['message']}{case}")
    lines = [f"- likely cause: {quoted(cause)}" for cause in finding["causes"]]
    lines += [f"- fails with it: {', '.join(others)}"] if others else []
    lines += [f"- next: {quoted(finding['next'])}"] if finding["next"] else []
    yield "\n".join(lines)


def _problems(document: Document) -> Iterator[str]:
    errors = [row["reason"] for row in document["requirements"].values() if row["status"] == "error"]
    found = [*errors, *document["problems"]]
    if found:
        yield "The suite itself failed; please report this:\n"
    yield from map(_fenced, found)


def _known(document: Document) -> Iterator[str]:
    if document["xfails"]:
        yield "Known failures:\n"
    for entry in document["xfails"]:
        reason = f"{entry['reason']} ({entry['link']})" if entry["link"] else entry["reason"]
        misfit = f"; **does not fail as listed**: {entry['misfit']}" if entry["misfit"] else ""
        yield f"- {entry['requirement']}: {quoted(reason)}{misfit}"


def _unclaimed(document: Document) -> Iterator[str]:
    found = list(words.unclaimed(document))
    if found:
        yield "Seen, but in contracts that are not claimed:\n"
    yield from (f"- {key}: {quoted(row['reason'])}" for key, row in found)


def _not_covered(document: Document) -> list[str]:
    return [f"- {quoted(entry)}" for entry in document["not_covered"]]


def _requirements(document: Document) -> list[str]:
    lines = [_row("", "status", "the text says", "error"), _row("---", "---", "---", "---")]
    for key, row in document["requirements"].items():
        status = words.STATUS[row["status"]]
        status = f"**{status}**" if row["status"] in ("fail", "error") else status
        noisy = words.noise(row) if row["worst_noise"] is not None and row["allowed"] else ""
        lines.append(_row(key, status, _cell(words.sentence(key)), noisy))
    return lines


def _cell(text: str) -> str:
    """A sentence of our own text inside a table."""
    return text.replace("|", "&#124;")


def _folded(title: str, lines: list[str]) -> str:
    body = "\n".join(lines)
    return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>" if lines else ""
