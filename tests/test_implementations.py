"""The page of real implementations is that of the stored reports."""

from pathlib import Path

from decoderspec.bench.implementations import page, stored

DOCS = Path(__file__).parents[1] / "docs"


def test_the_page_is_written_from_the_stored_reports():
    reports = stored(DOCS / "implementations")
    assert len(reports) >= 3
    assert (DOCS / "implementations.md").read_text(encoding="utf-8") == "\n".join(page(reports))


def test_bad_input_that_is_taken_is_told_by_kind():
    document = next(iter(stored(DOCS / "implementations").values()))
    document["requirements"]["INP-1"]["details"] = {"a": "finite garbage (as if ..)", "b": "NaN (..)", "c": "NaN (..)"}
    line = next(line for line in page({"x.py:y": document}) if line.startswith("- bad input taken"))
    assert "INP-1 (1 finite garbage, 2 NaN)" in line
