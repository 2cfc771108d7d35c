"""The README's promises: its snippets print what it shows."""

import doctest
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_the_prompt_session_prints_what_is_shown():
    text = "\n".join(line for line in README.read_text(encoding="utf-8").splitlines() if not line.startswith("```"))
    found = doctest.DocTestParser().get_doctest(text.split("Every stage, the loss")[0], {}, "README", None, 0)
    results = doctest.DocTestRunner(verbose=False).run(found)
    assert results.attempted >= 3
    assert results.failed == 0
