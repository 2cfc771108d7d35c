"""The site: `sphinx-build -W -c docs . build/docs` from the top of the repository, with the extra `docs`.

The sources are the Markdown files where they lie, so that one link serves a code host and the site. A link to a file
that is no page becomes a download.
"""

from typing import Any

from pygments.lexers.special import TextLexer

project = "decoderspec"
extensions = ["myst_parser"]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**.md", "spec/*.md"]
exclude_patterns = [".*", "build", "dist", "src", "**/__pycache__"]  # what need not be walked; `src` holds links

html_theme = "furo"  # of the system's own fonts: nothing comes from a network
html_title = "decoderspec"
html_extra_path = ["site"]  # the page that leads from the top to the root document
html_show_copyright = False

myst_heading_anchors = 4  # as a code host names them
suppress_warnings = ["misc.highlighting_failure"]  # JSON that is shortened by `..`


def setup(app: Any) -> None:
    """Words after a fence that are ours: a transcript of the line protocol."""
    app.add_lexer("transcript", TextLexer)
