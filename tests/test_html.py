"""The page opens from disk in a browser that has no network, and says there what the report says."""

import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest
from made_up import DECODER, document

from decoderspec.properties.reports import page
from decoderspec.properties.reports.picture import picture
from decoderspec.properties.xfails import Xfail
from decoderspec.spec.requirements import requirements

HOSTILE = "</title><script>document.title='owned'</script><img src=http://x.example/y onerror=alert(1)>"
PAGE = page.render(
    document(
        {"VAL-1": "fail", "LOS-1": "skip", "INP-1": "fail", "INI-1": "not_judged"},
        name=HOSTILE,
        xfails=[Xfail("INP-1", HOSTILE, "https://example.org/1"), Xfail("INP-2", "x", "javascript:alert(1)")],
        VAL_1={"worst_noise": 99.0, "allowed": 12.0, "reason": HOSTILE, "case": "all sizes differ: V=11 d=12"},
    )
)
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-component-update",
    "--disable-background-networking", "--disable-sync", "--disable-dev-shm-usage", "--dump-dom",
)  # fmt: skip
EMPTY = {"meta", "link", "br", "wbr", "rect", "line"}  # elements that have no end


class Elements(HTMLParser):
    """The elements with their attributes, the text, and whether each that opens closes."""

    def __init__(self, text):
        super().__init__()
        self.found, self.text, self.open = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        if tag not in EMPTY:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] != "style":
            self.text.append(data)


def asks_nobody(elements):
    for tag, attributes in elements.found:
        assert tag not in ("script", "img", "iframe", "object", "embed", "form", "base", "video", "audio"), tag
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            if name in ("src", "href", "action", "srcset", "data", "xlink:href") and tag != "a":
                assert value == "data:,", (tag, value)
    links = [attributes["href"] for tag, attributes in elements.found if tag == "a"]
    assert links == ["https://example.org/1"]  # and no javascript:


def says_everything(text):
    for heading in (
        "Findings", "Stage by stage", "Requirements", "Known failures", "What repeats", "What would have been caught",
        "What one more method would add", "Environment",
    ):  # fmt: skip
        assert heading in text, heading
    for name in DECODER:
        assert name in text
        for word in re.sub("`", " ", requirements()[name].sentence).split():
            assert word in text, (name, word)
    assert "Does not conform: forward." in text
    assert "V=11 d=12" in text


def test_the_page_is_whole_and_asks_nobody_for_anything():
    elements = Elements(PAGE)
    assert elements.open == []
    asks_nobody(elements)
    says_everything(" ".join(elements.text))
    assert "url(" not in PAGE
    assert "@import" not in PAGE
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in elements.found


def test_the_page_knows_the_dark_the_phone_and_paper():
    for query in ("prefers-color-scheme: dark", "max-width", "print"):
        assert f"@media ({query}" in PAGE or f"@media {query}" in PAGE


def test_the_contracts_come_first():
    assert PAGE.index('class="contracts"') < PAGE.index("<h2>")


@pytest.mark.parametrize("width", [390, 1200])
def test_a_browser_without_a_network_shows_everything_and_runs_nothing(tmp_path, width):
    if BROWSER is None:
        pytest.skip("needs Chromium (Debian's package chromium)")
    file = tmp_path / "report.html"
    file.write_text(PAGE, encoding="utf-8")
    command = [BROWSER, *QUIET, f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},2000", file.as_uri()]
    done = subprocess.run(command, capture_output=True, timeout=120, check=False)
    dom = done.stdout.decode("utf-8")
    elements = Elements(dom)
    asks_nobody(elements)
    says_everything(" ".join(elements.text))
    assert "<title>&lt;/title&gt;&lt;script&gt;" in dom  # no script has changed it


# --- The picture ---


def stage(name="logits", excess=0.5, bits=53.0, possible=53):
    return {
        "name": name, "noise": 15 * excess, "allowed": 15.0, "mean_noise": 0.1, "mean_allowed": 1.5, "excess": excess,
        "bits": bits, "possible": possible,
    }  # fmt: skip


def bars(svg, tone):
    return [float(width) for width in re.findall(rf'<rect class="{tone}"[^>]* width="([\d.]+)"', svg)]


def test_bars_grow_with_the_error_and_turn_at_the_limit():
    sizes = [0.1, 0.5, 1.0, 1.001, 1e3, 1e15, "inf"]
    svg = picture([stage(excess=size, bits=None) for size in sizes])
    good, bad = bars(svg, "good"), bars(svg, "bad")
    assert [len(good), len(bad)] == [3, 4]
    assert good + bad == sorted(good + bad)
    assert bars(svg, "track")[0] == good[-1]  # the end of the track is the limit


def test_bits_are_drawn_against_what_the_format_can_give():
    svg = picture([stage(bits=24.0, possible=24), stage(bits=12.0, possible=24), stage(bits=53.0, possible=24)])
    _, first, _, half, _, finer = bars(svg, "good")
    assert first == pytest.approx(2 * half, abs=0.2)
    assert finer > 2 * first
    assert "12 of 24" in svg


def test_the_picture_is_also_in_words():
    svg = picture([stage("attention.weights", 2e14, 3.0), stage("logits", 0.25, None)])
    assert "attention.weights: 2e+14 times its limit, 3 of 53 bits right; logits: 25 % of its limit" in svg
    assert 'role="img"' in svg


def test_no_stage_is_no_picture():
    assert picture([]) == ""
    assert "Stage by stage" not in page.render(document(only="rms_norm") | {"stages": []})
