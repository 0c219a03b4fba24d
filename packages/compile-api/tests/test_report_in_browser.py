"""The report's page as a browser draws it: wide and narrow, light and dark, of a model with 24 layers.

Where a Chromium is found: the page gets a script that measures it, and the browser prints what it wrote.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest
import torch

import compile_api

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome on the PATH")

#: What is drawn of an element counts; colours are measured as a browser has computed them.
MEASURE = """
<pre id='measured'></pre><script>
const shown = [...document.querySelectorAll('body *')].filter(e => e.checkVisibility() && e.id !== 'measured');
const back = getComputedStyle(document.body).backgroundColor;
const own = e => [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
const box = e => { const r = e.getBoundingClientRect(); return [r.left, r.width, r.height] };
const inWide = e => e.closest('.wide') || e.closest('pre');
document.getElementById('measured').textContent = JSON.stringify({
  width: innerWidth, scrolls: document.documentElement.scrollWidth, height: document.documentElement.scrollHeight,
  dark: matchMedia('(prefers-color-scheme: dark)').matches, back: back,
  colours: [...new Set(shown.filter(e => own(e) && !e.closest('svg')).map(e => getComputedStyle(e).color))],
  outside: shown.filter(e => !inWide(e) && e.getBoundingClientRect().right > innerWidth + 1).length,
  loaded: performance.getEntriesByType('resource').length,
  sections: Object.fromEntries([...document.querySelectorAll('section')].map(s => [s.id, box(s)[2]])),
  bars: [...document.querySelectorAll('#a-profiled-call rect')].map(box),
  picture: box(document.querySelector('#a-profiled-call svg')),
  fills: [...new Set([...document.querySelectorAll('#a-profiled-call rect')].map(e => getComputedStyle(e).fill))],
  thin: shown.filter(e => e.tagName === 'TD' && e.textContent.trim().length > 20 && box(e)[1] < 60).length,
});
</script>
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    layers = (torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.GELU(), torch.nn.LayerNorm(32)) for _ in range(24))
    made = compile_api.compile(torch.nn.Sequential(*layers), options={"cache": False})
    call = compile_api.profile(made, torch.randn(16, 32))
    path = tmp_path_factory.mktemp("page") / "report.html"
    made.report().to_html(path)
    text = path.read_text()
    path.write_text(text.replace("</body>", MEASURE + "</body>"))
    return path, call, made.report()


def drawn(path, width, *arguments):
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={width},900",
        f"--user-data-dir={path.parent / 'browser'}", *arguments, "--dump-dom", path.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return json.loads(re.search(r"<pre id=.measured.>(.*?)</pre>", done.stdout, flags=re.S)[1].replace("&gt;", ">"))


def contrast(one, other):
    """The contrast ratio of two colours, 1 to 21 (WCAG 2.2, relative luminance)."""

    def luminance(text):
        parts = [float(x) / 255 for x in re.findall(r"[\d.]+", text)[:3]]
        r, g, b = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("width", [1280, 500])
@pytest.mark.parametrize("dark", [False, True])
def test_what_is_drawn(page, width, dark):
    path, call, report = page
    found = drawn(path, width, *(["--force-dark-mode", "--blink-settings=preferredColorScheme=0"] if dark else []))
    assert found["dark"] is dark and found["width"] == width
    assert found["loaded"] == 0
    assert found["scrolls"] <= width and not found["outside"]  # nothing runs over the edge
    assert not found["thin"]  # no column is squeezed to nothing
    colours = [c for c in found["colours"] if contrast(c, found["back"]) < 4.5]
    assert not colours, (found["back"], colours)
    # Each launch is a bar, in the order of time, and as wide as its share of the picture.
    left, whole, _ = found["picture"]
    assert len(found["bars"]) == len(call.steps) and whole >= min(width - 100, 690) and len(found["fills"]) == 2
    for (x, bar, height), step in zip(found["bars"], call.steps, strict=True):
        assert x - left == pytest.approx(whole * step.start / call.seconds, abs=2)
        assert bar == pytest.approx(max(whole * call.share(step.seconds), whole / 2000), abs=2) and height > 5


def test_lists_of_a_deep_model_are_short(page):
    path, _, report = page
    found = drawn(path, 1280)
    assert len(report.kernels) >= 100 and len(report.externs) >= 70
    assert found["sections"]["kernels"] < 600 and found["sections"]["library-calls"] < 300
    assert found["sections"]["guards"] < 300 and found["height"] < 6000
