"""report.html in a real browser: no error, no request, every picture, a filter that filters."""

import re

import pytest
from chromium import CHROMIUM, visit

from launch import report
from theory.claims import CLAIMS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (apt-get install chromium)"),
]
# Runs in the page: what the tests ask of it, as attributes of <html>.
PROBE = """<script>
const found = document.documentElement.dataset;
found.drawn = [...document.images].every((image) => image.complete && image.naturalWidth > 50);
found.broader = document.documentElement.scrollWidth > innerWidth;
const form = document.querySelector("#filter");
const shown = () => [...document.querySelectorAll("#claims tbody tr")].filter((row) => row.offsetParent).length;
found.all = shown();
form.verdict.value = "false"; form.dispatchEvent(new Event("input"));
found.false = shown();
form.verdict.value = ""; form.words.value = "THEOREM 2.1"; form.dispatchEvent(new Event("input"));
found.words = shown();
</script>"""


@pytest.fixture(scope="module")
def written(tiny_run, tmp_path_factory):
    """report.html of a training run."""
    run_dir = tmp_path_factory.mktemp("reports") / "report"
    report.main(report.ReportConfig(runs=str(tiny_run)), str(run_dir))
    return run_dir / "report.html"


@pytest.mark.parametrize("width", [500, 1280])
def test_nothing_is_asked_for_nothing_is_wrong_and_every_picture_is_drawn(written, tmp_path, width):
    found = visit(written, tmp_path, f"--window-size={width},900")
    assert not found.console and not found.requests
    assert f"{len(CLAIMS)} of {len(CLAIMS)}" in found.dom  # the script has run
    # The page allows its own script alone, so the probe needs a copy without that rule.
    copy = tmp_path / "probed.html"
    text = re.sub("<meta http-equiv[^>]*>", "", written.read_text())
    copy.write_text(text.replace("</body>", f"{PROBE}</body>"))
    (tmp_path / "again").mkdir()
    probed = visit(copy, tmp_path / "again", f"--window-size={width},900")
    probe = dict(re.findall(r'data-(\w+)="(\w+)"', re.search("<html[^>]*>", probed.dom)[0]))
    num_false = sum(claim.verdict.startswith("false") for claim in CLAIMS.values())
    assert (probe["drawn"], probe["broader"]) == ("true", "false")
    assert (int(probe["all"]), int(probe["false"])) == (len(CLAIMS), num_false) and 0 < int(probe["words"]) < num_false


def test_a_script_a_picture_from_elsewhere_and_an_error_would_be_noticed(written, tmp_path):
    text = written.read_text()
    addition = '<img src="http://127.0.0.1:9/x.png"><script>document.title = "injected"</script></body>'
    bad = tmp_path / "bad.html"
    open_to_all = re.sub("<meta http-equiv[^>]*>", "", text)
    bad.write_text(open_to_all.replace("</body>", addition + "<script>nothing()</script>"))
    (tmp_path / "bad").mkdir()
    found = visit(bad, tmp_path / "bad")
    assert found.requests == ["http://127.0.0.1:9/x.png"] and "nothing is not defined" in "".join(found.console)
    assert "<title>injected</title>" in found.dom
    guarded = tmp_path / "guarded.html"  # by the page's own rule
    guarded.write_text(text.replace("</body>", addition))
    (tmp_path / "guarded").mkdir()
    found = visit(guarded, tmp_path / "guarded")
    assert not found.requests and "<title>injected</title>" not in found.dom
