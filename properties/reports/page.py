"""The report as one HTML page: it opens from disk, asks nobody for anything, and runs no script."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from importlib.resources import files
from typing import Any

from decoderspec.properties.printable import one_line, printable
from decoderspec.properties.reports import document as words
from decoderspec.properties.reports.document import Document, Row
from decoderspec.properties.reports.picture import picture, share

STATISTICS = (("noise", "allowed"), ("mean_noise", "mean_allowed"))  # of a stage, each with its limit
TONE = {  # the colour beside each word; the word always stands there too
    "conforms": "good", "pass": "good", "fails": "bad", "fail": "bad", "error": "bad", "partial": "warn",
    "xfail": "warn",
}  # fmt: skip


def render(document: Document) -> str:
    """The whole page."""
    style = files("decoderspec.properties.reports").joinpath("page.css").read_text(encoding="utf-8")
    sections = (
        _head(document), _findings(document), _picture(document), _requirements(document), _known(document),
        _repeats(document), _caught(document), _not_covered(document), _environment(document),
    )  # fmt: skip
    body = "\n".join(part for section in sections for part in section)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        '<link rel="icon" href="data:,">\n'
        f"<title>{text(words.name(document))}: {text(words.verdict(document))}</title>\n<style>\n{style}</style>\n"
        f"</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def text(value: str) -> str:
    """Anybody's text on one line, escaped."""
    return escape(one_line(value))


def lines(value: str) -> str:
    """Anybody's lines, escaped."""
    return escape(printable(value))


def prose(value: str) -> str:
    """A sentence of the specification: escaped, with what stands between backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(value))


def _listed(entries: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{entry}</li>' for entry in entries)}</ul>"


def _pairs(entries: Mapping[str, str]) -> str:
    return f"<dl>{''.join(f'<dt>{text(key)}</dt><dd>{value}</dd>' for key, value in entries.items())}</dl>"


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of a name and its figures."""
    head = "".join(f"<th>{each}</th>" for each in heads)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f'<table class="figures"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _head(document: Document) -> Iterator[str]:
    declared, observed = (document["precision"][key] for key in ("declared", "observed"))
    about = f"profile {document['profile']}, seed {document['seed']}, {document['seconds']['total']:.0f} s"
    yield f'<header><p class="brand">decoderspec {text(document["decoderspec"])}: {text(about)}</p>'
    yield f"<h1>{text(words.name(document))}</h1>"
    tone = TONE[document["verdict"]] if words.decided(document) else "none"
    yield f'<p class="verdict {tone}">{text(words.verdict(document))}</p></header>'
    yield f'<ul class="contracts">{"".join(_contract(document, *each) for each in document["contracts"].items())}</ul>'
    precision = {"declared": f"<code>{text(words.precision(declared))}</code>"}
    precision |= {"observed": f"<code>{text(words.precision(observed))}</code>"} if observed else {}
    yield _pairs({f"precision {key}": value for key, value in precision.items()})
    problems = [row["reason"] for row in document["requirements"].values() if row["status"] == "error"]
    for problem in [*problems, *document["problems"]]:
        yield f'<p class="bad">The suite itself failed; please report this:</p><pre>{lines(problem)}</pre>'


def _contract(document: Document, contract: str, verdict: str) -> str:
    worst = words.nearest(words.rows(document, contract))
    noisy = f"<small>worst: {worst[0]}, {words.noise(worst[1])}</small>" if worst else ""
    holes = "".join(f"<span>claimed, but {text(hole)}</span>" for hole in document["holes"].get(contract, ()))
    return (
        f'<li class="{TONE.get(verdict, "none")}"><b>{contract} <span>{verdict}</span></b>'
        f"<span>{words.counted(document, contract)}</span>{holes}{noisy}</li>"
    )


def _findings(document: Document) -> Iterator[str]:
    counted = [finding for finding in document["findings"] if finding["counts"]]
    if counted:
        yield "<h2>Findings</h2>"
    for number, finding in enumerate(counted, 1):
        yield from _finding(document, number, finding)
    beside = list(words.unclaimed(document))
    if beside:
        yield "<h2>Seen in contracts that are not claimed</h2>"
        yield _listed(f"<b>{text(key)}</b> {text(row['reason'])}" for key, row in beside)


def _finding(document: Document, number: int, finding: dict[str, Any]) -> Iterator[str]:
    first, *others = dict.fromkeys(finding["requirements"])
    yield f'<section class="finding"><h3>{number}. {text(finding["headline"])}</h3>'
    yield f"<blockquote><b>{first}</b> {prose(words.sentence(first))}</blockquote>"
    yield f"<pre>{lines(finding['message'])}</pre>"
    known: dict[str, str] = {}
    if finding["case"]:
        known["smallest case"] = _case(finding["case"])
    if finding["causes"]:
        known["likely cause"] = "<br>".join(map(text, finding["causes"]))
    known |= {"fails with it": text(", ".join(others))} if others else {}
    known |= {"next": f"<code>{text(finding['next'])}</code>"} if finding["next"] else {}
    yield f"{_pairs(known) if known else ''}{_stages(finding.get('diagnosis', {}))}</section>"


def _case(case: str) -> str:
    note, sizes = words.case(case)
    return f"{text(note)}<br><code>{text(sizes)}</code>" if note else f"<code>{text(sizes)}</code>"


def _stages(diagnosis: Mapping[str, Any]) -> str:
    """The stages of a diagnosed case, folded."""
    stages = diagnosis.get("stages", [])
    if len(stages) < 2:
        return ""
    rows = [
        (_stage(stage), *(words.number(stage[key]) for key in ("noise", "allowed", "bits")), _tick(stage))
        for stage in stages
    ]
    table = _table(("stage", "x noise", "allowed", "bits right", ""), rows)
    return f"<details><summary>every stage of this case</summary>{table}</details>"


def _stage(stage: Mapping[str, Any]) -> str:
    """A stage's name, which may break where its words end."""
    return re.sub(r"([._])", r"\1<wbr>", text(stage["name"]))


def _tick(stage: Mapping[str, Any]) -> str:
    return "" if stage["conforms"] else '<span class="bad">wrong</span>'


def _picture(document: Document) -> Iterator[str]:
    stages = document["stages"]
    if not stages:
        return
    yield "<h2>Stage by stage</h2>"
    yield (
        "<p>Each stage on the implementation's own inputs, so that one wrong stage does not colour the next: the worst"
        " of a few fixed cases. Up to the dashed line an error is rounding; beyond it the scale is in powers of ten."
        " Bits are those that are right, of those that the declared format can give.</p>"
    )
    yield picture(stages)
    rows = [
        (_stage(stage), f"{share(stage)} its limit", *(_of(stage, *pair) for pair in STATISTICS), _bits(stage))
        for stage in stages
    ]
    table = _table(("stage", "error", "worst, x noise", "mean, x noise", "bits right"), rows)
    yield f"<details><summary>the same in figures</summary>{table}</details>"


def _of(stage: Mapping[str, Any], statistic: str, limit: str) -> str:
    return f"{words.number(stage[statistic])} of {words.number(stage[limit])}"


def _bits(stage: Mapping[str, Any]) -> str:
    return "" if stage["bits"] is None else f"{words.figure(stage['bits']):.1f} of {stage['possible']}"


def _requirements(document: Document) -> Iterator[str]:
    yield "<h2>Requirements</h2>"
    for contract in document["contracts"]:
        mine = words.rows(document, contract)
        if mine:
            yield f"<h3>{contract}</h3>"
            head = "<tr><th>status</th><th>what the specification says</th><th>what was seen</th></tr>"
            body = "".join(_requirement(key, row) for key, row in mine.items())
            yield f'<table class="requirements"><thead>{head}</thead><tbody>{body}</tbody></table>'


def _requirement(key: str, row: Row) -> str:
    status = f'<small class="{TONE.get(row["status"], "none")}">{words.STATUS[row["status"]]}</small>'
    reason = words.why(key)
    why = f"<details><summary class='soft'>why</summary>{prose(reason)}</details>" if reason else ""
    return (
        f'<tr><th scope="row">{key} {status}</th><td>{prose(words.sentence(key))}{why}</td><td>{_seen(row)}</td></tr>'
    )


def _seen(row: Row) -> str:
    """What became of a requirement: the reason, the shrunken example, the error nearest to its limit."""
    noisy = words.noise(row) if row["worst_noise"] is not None and row["allowed"] else ""
    where = f" in {row['where'].rstrip(',')}" if noisy and row.get("where") else ""
    examples = f"{row['examples']} example{'s' if row['examples'] != 1 else ''}" if row["examples"] else ""
    parts = [f'<div class="seen">{lines(row["reason"])}</div>'] if row["reason"] else []
    parts += [f"<div>smallest case: {_case(row['case'])}</div>"] if row.get("case") else []
    if row["status"] == "fail" and row.get("details") and row.get("stage") == "inputs":
        parts.append(_listed(f"{text(str(probe))}: {text(str(grade))}" for probe, grade in row["details"].items()))
    if row["status"] != "fail":
        about = "; ".join(part for part in (examples, noisy + where) if part)
        parts += [f'<div class="soft">{text(about)}</div>'] if about else []
    return "".join(parts)


def _known(document: Document) -> Iterator[str]:
    if document["xfails"]:
        yield "<h2>Known failures</h2>"
        yield _listed(map(_xfail, document["xfails"]))


def _xfail(entry: Mapping[str, Any]) -> str:
    link = entry["link"]
    shown = (
        f' <a href="{text(link)}" rel="noreferrer">{text(link)}</a>'
        if re.match("https?://", link)
        else f" {text(link)}"
    )
    ceiling = "" if entry["at_most"] is None else f", up to {words.number(entry['at_most'])} x noise"
    misfit = f' <span class="warn">Does not fail as listed: {text(entry["misfit"])}.</span>' if entry["misfit"] else ""
    return f"<b>{entry['requirement']}</b> {text(entry['reason'])}{f' ({shown})' if link else ''}{ceiling}.{misfit}"


def _repeats(document: Document) -> Iterator[str]:
    if document["grades"]:
        yield "<h2>What repeats</h2><p>Calls that should agree, and how far they do.</p>"
        yield _pairs({key: text(grade) for key, grade in document["grades"].items()})
    if document["conduct"]:
        yield f"<p>What it does beside answering, which fails nothing:</p>{_listed(map(text, document['conduct']))}"
    if document["emulates"]:
        yield f"<p>The adapter emulates {text(', '.join(document['emulates']))}: its bits there are not judged.</p>"


def _caught(document: Document) -> Iterator[str]:
    if document["caught"]:
        yield "<h2>What would have been caught</h2>"
        yield "<p>The smallest relative error in one operation that the logits alone would have betrayed.</p>"
        yield _pairs({key: f"{words.figure(size):.0e}" for key, size in document["caught"].items()})


def _not_covered(document: Document) -> Iterator[str]:
    add, rest = words.to_add(document), words.elsewhere(document)
    whole = not any(key.startswith("OPN") for key in document["requirements"])
    if add and whole:
        yield f"<h2>What one more method would add</h2>{_listed(map(text, add))}"
    if rest or document["not_run"]:
        lost = [f"not run: {', '.join(document['not_run'])}"] if document["not_run"] else []
        yield f"<h2>What was not covered</h2>{_listed(map(text, [*lost, *rest]))}"


def _environment(document: Document) -> Iterator[str]:
    about = {
        key: ", ".join(f"{what} {kind}" for what, kind in value.items()) if isinstance(value, dict) else str(value)
        for key, value in document["environment"].items()
    }
    about |= {f"limit of {key}": str(value) for key, value in document["limits"].items()}
    yield f"<h2>Environment</h2>{_pairs({key: text(value) for key, value in about.items()})}"
