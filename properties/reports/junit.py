"""JUnit XML for a CI server: one test case per requirement, in plain words, grouped by contract."""

from __future__ import annotations

from xml.etree import ElementTree as xml

from decoderspec.properties.printable import printable
from decoderspec.properties.reports.document import Document, Row, figure, name, rows, sentence

FAILED = ("fail", "error")


def render(document: Document) -> str:
    """The whole file. What fails in a contract that does not count is skipped, with its reason."""
    suites = xml.Element("testsuites", name=f"decoderspec: {name(document)}")
    for contract in document["contracts"]:
        mine = rows(document, contract)
        suite = xml.SubElement(suites, "testsuite", name=contract)
        for key, row in mine.items():
            suite.append(_case(document, contract, key, row))
        failed = [case for case in suite if case.find("failure") is not None or case.find("error") is not None]
        if document["contracts"][contract] == "fails" and not failed:
            suite.append(_unreached(contract))
        suite.set("tests", str(len(suite)))
        for kind, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            suite.set(kind, str(len(suite.findall(f"testcase/{tag}"))))
        suite.set("time", f"{sum(float(each.get('time', 0)) for each in suite):.3f}")
    for number, problem in enumerate(document["problems"], 1):
        suite = xml.SubElement(suites, "testsuite", name="the suite itself", tests="1", errors="1", failures="0")
        case = xml.SubElement(suite, "testcase", classname="decoderspec", name=f"problem {number}")
        xml.SubElement(case, "error", message=_line(problem)).text = printable(problem)
    xml.indent(suites)
    return xml.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _case(document: Document, contract: str, key: str, row: Row) -> xml.Element:
    seconds = figure(row.get("seconds", 0.0))
    case = xml.Element("testcase", classname=f"decoderspec.{contract}", name=f"{key} {sentence(key)}".strip())
    case.set("time", f"{seconds:.3f}")
    tag, words = _outcome(document, contract, key, row)
    if tag:
        found = xml.SubElement(case, tag, message=_line(words))
        found.text = printable(f"{words}\ncase: {row['case']}" if row.get("case") else words)
    return case


def _unreached(contract: str) -> xml.Element:
    """A contract that must hold and of which nothing could be tested fails as a whole."""
    case = xml.Element("testcase", classname=f"decoderspec.{contract}", name=f"{contract} can be tested", time="0")
    xml.SubElement(case, "failure", message="it is claimed or required, and nothing of it could be tested")
    return case


def _outcome(document: Document, contract: str, key: str, row: Row) -> tuple[str, str]:
    """The element that says what became of a requirement, and its words; nothing for one that holds."""
    if any(hole.startswith(f"{key}: ") for hole in document["holes"].get(contract, ())):
        return "failure", f"claimed, and it cannot be tested: {row['reason']}"
    if row["status"] == "fail" and document["contracts"][contract] == "observed":
        return "skipped", f"not claimed: {row['reason']}"
    if row["status"] in FAILED:
        return "failure" if row["status"] == "fail" else "error", row["reason"]
    if row["status"] == "pass":
        return "", ""
    return "skipped", f"known: {row['reason']}" if row["status"] == "xfail" else row["reason"]


def _line(text: str) -> str:
    """The first line."""
    return printable(text).partition("\n")[0]
