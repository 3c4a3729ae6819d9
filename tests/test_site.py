"""The site of docs/: what its pages are made from, that it builds strictly, and that a browser shows all of it."""

import ast
import functools
import html
import http.server
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import urllib.parse
import urllib.request

import numpy as np
import pytest
from chromium import CHROMIUM, visit

from identity_matters.presets import MODEL_PRESETS
from launch import config_flags
from theory.claims import CLAIMS
from website import claims_table, commands, notebook, tested

ROOT = pathlib.Path(__file__).parents[1]
# DESIGN.md's public names, by the page that must show them.
PUBLIC = {
    "model": "all_conv_resnet residual_stddev ModelConfig",
    "training": "train TrainConfig",
    "pretrained": "load",
    "evaluation": "evaluate",
    "theory_linear": "risk gradient gradient_lower_bound max_spectral_norm factorize norm_bound norm_lower_bound",
    "theory_memorization": "memorize MemorizingNetwork",
    "theory_shortcut": "hessian_at_zero condition_number_at_zero",
    "theory_claims": "check Check",
    "shortcut_study": "ShortcutNetwork hessian spectrum",
}


@functools.cache
def documented(module: str) -> frozenset[str]:
    """The functions and classes that a module defines with a docstring, and its constants."""
    nodes = ast.parse((ROOT / (module.replace(".", "/") + ".py")).read_text()).body
    defined = {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(n)}
    targets = [target for n in nodes if isinstance(n, ast.Assign) for target in n.targets]
    return frozenset(defined | {target.id for target in targets if isinstance(target, ast.Name)})


API = {path.stem: path.read_text() for path in sorted((ROOT / "docs" / "reference" / "api").glob("*.md"))}


def members(page: str) -> dict[str, list[str]]:
    """The modules of a page of the API, each with the names that it shows; none if it shows all."""
    parts = re.split(r"^::: (\S+)$", API[page], flags=re.M)[1:]
    return {module: re.findall(r"^ +- (\w+)$", text, re.M) for module, text in zip(parts[::2], parts[1::2])}


def shown(page: str) -> set[str]:
    return {name for module, names in members(page).items() for name in names or documented(module)}


@pytest.mark.parametrize("page", API)
def test_the_api_pages_name_what_there_is(page):
    assert f"]({page}.md)" in API["index"] or page == "index"
    for module, names in members(page).items():
        assert documented(module) >= set(names), module


def test_the_api_pages_show_the_public_names():
    from shortcut_study import curvature

    for page, names in PUBLIC.items():
        assert shown(page) >= set(names.split()), page
    assert shown("curvature") >= set(curvature.__all__)


@pytest.mark.parametrize("name", commands.launchers())
def test_a_commands_page_has_its_manual_and_its_flags(name):
    page = commands.command_page(name)
    entries = re.findall(r"^\| `--(?:\[no\])?(\w+)", page, re.M)
    default = next(iter(commands.launcher_options(name)["presets"].values()))
    fields = {field.name for field, *_ in config_flags.flag_fields(default)}
    assert f"python -m launch.{name}" in page
    assert set(entries) - {"run_dir", "config", "preset", "traceback"} <= fields and len(entries) > 2


def test_the_presets_page_counts_the_weights_that_the_networks_have():
    from identity_matters import networks

    for name, weights in (("cifar10", 13_538_736), ("imagenet", 35_675_772)):
        assert commands.count_weights(MODEL_PRESETS[name]) == weights
    variables = networks.build(MODEL_PRESETS["cifar10_fast"]).trainable_variables
    assert commands.count_weights(MODEL_PRESETS["cifar10_fast"]) == sum(int(np.prod(v.shape)) for v in variables)
    assert "| `train_steps` | 1200 | 50000 |" in commands.presets_page()


def test_a_notebook_becomes_its_text_code_output_and_pictures():
    text, pictures = notebook.as_markdown((ROOT / "docs" / "start" / "tour.ipynb").read_text(), "tour")
    assert text.startswith("# A tour\n") and "```python\nfrom theory import factorization" in text
    assert len(pictures) >= 5 and all(f"]({name})" in text for name in pictures)
    assert all(picture.startswith(b"\x89PNG") for picture in pictures.values())


def test_the_filter_of_the_claims_knows_every_row_and_refuses_a_lost_one():
    rows = "".join(f"<tr>\n<td>{html.escape(c.source)}</td>\n<td>x</td>\n</tr>\n" for c in CLAIMS.values())
    table = (
        f"<p>a</p><table>\n<thead><tr><th>claim</th><th>true</th></tr></thead>\n<tbody>{rows}</tbody>\n</table><p>b</p>"
    )
    found = claims_table.with_filter(table)
    assert found.count("<tr data-paper=") == len(CLAIMS) and found.endswith("<p>b</p>")
    assert found.count('data-paper="hm"') == sum(claim_id.startswith("hm.") for claim_id in CLAIMS)
    with pytest.raises(ValueError, match=f"{len(CLAIMS) - 1} rows for {len(CLAIMS)} claims"):
        claims_table.with_filter(table.replace("<td>x</td>\n</tr>", "", 1))


def test_docstrings_become_markdown():
    docstrings = pytest.importorskip("website.docstrings", reason="pip install -e '.[docs]'")
    text = "Of <z_i, q> and `a < b`:\n\n    1 < 2\n\n>>> 1 < 2  # doctest: +SKIP\nTrue\n\nArgs:\n  x_1: of < 3."
    assert docstrings.as_markdown(text) == (
        "Of &lt;z_i, q> and `a < b`:\n\n    1 < 2\n\n```pycon\n>>> 1 < 2\nTrue\n```\n\nArgs:\n  x_1: of &lt; 3."
    )


def build(folder: pathlib.Path, addition: str) -> subprocess.CompletedProcess:
    """Builds FOLDER/site strictly from a copy of docs/ whose home has an addition."""
    pytest.importorskip("mkdocs", reason="pip install -e '.[docs]'")
    docs = shutil.copytree(ROOT / "docs", folder / "docs")
    with open(docs / "index.md", "a") as file:
        file.write(f"\n\n{addition}\n")
    settings = re.sub("^docs_dir: .*", f"docs_dir: {docs}", (ROOT / "mkdocs.yml").read_text(), flags=re.M)
    changed = ROOT / f".{folder.name}.yml"  # beside mkdocs.yml, whose paths are relative
    changed.write_text(settings)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", f"--site-dir={folder / 'site'}"]
    try:
        return subprocess.run([*command, f"--config-file={changed}"], cwd=ROOT, capture_output=True, text=True)
    finally:
        changed.unlink()


@pytest.mark.slow
def test_links_to_nothing_end_a_strict_build(tmp_path):
    done = build(tmp_path, "[a](nowhere.md) [b](reference/claims.md#nowhere) [c](/absolute.md)")
    assert done.returncode == 1
    assert all(target in done.stderr for target in ("'nowhere.md'", "'reference/claims.md#nowhere'", "'/absolute.md'"))
    assert len(re.findall("^WARNING", done.stderr, re.M)) == 3


FORMULAS = r"""A formula $\lVert A_i\rVert \le \tfrac{4\pi + 3\gamma}{\ell}$, and

$$\max_i \lVert A_i\rVert \ge \Bigl\lvert\exp\tfrac1\ell\log\frac{\lvert Rx\rvert}{\lvert x\rvert} - 1\Bigr\rvert .$$"""
# What a browser makes of a page, as attributes of <html>.
PROBE = b"""<script>
addEventListener("load", () => {
  const found = top.document.documentElement.dataset;
  found.width = innerWidth;
  found.broader = document.documentElement.scrollWidth > innerWidth;
  found.cut = [...document.querySelectorAll("pre > code")].filter((code) => code.scrollWidth > code.clientWidth).length;
  found.formulas = document.querySelectorAll(".arithmatex").length;
  found.rendered = document.querySelectorAll(".arithmatex .katex").length;
  found.drawn = [...document.images].every((image) => image.complete && image.naturalWidth > 50);
  const form = document.querySelector("#filter");
  if (form) {
    const rows = () => [...document.querySelectorAll("#claims tbody tr")].filter((row) => row.offsetParent).length;
    const choose = (name, value) => {
      form[name].value = value;
      form.dispatchEvent(new Event("input"));
      return rows();
    };
    found.rows = [rows(), choose("paper", "li"), choose("words", "Theorem 1.1")].join();
  }
});
</script></body>"""


class Probed(http.server.SimpleHTTPRequestHandler):
    """Serves the site, the probe in every page; framed/WIDTH/PAGE in a frame, as windows have 500 pixels or more."""

    def do_GET(self):
        _, framed, width, *page = [*self.path.split("/", 3), ""]
        path = pathlib.Path(self.translate_path(self.path))
        html_file = path / "index.html" if path.is_dir() else path
        if framed == "framed":
            body = f'<iframe src="/{page[0]}" style="width: {width}px; height: 900px; border: 0"></iframe>'.encode()
        elif html_file.suffix == ".html":
            body = html_file.read_bytes().replace(b"</body>", PROBE)
        else:
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A strict build of the site."""
    folder = tmp_path_factory.mktemp("site")
    done = build(folder, FORMULAS)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "site"


@pytest.fixture(scope="module")
def address(site):
    """The address of the served site."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Probed, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()


def broken_links(site: pathlib.Path) -> set[str]:
    """The links of built pages, made from docstrings too, that lead to no file or to no place in a page."""
    pages = {page: page.read_text() for page in site.rglob("*.html") if page.name != "404.html"}
    places = {page: set(re.findall(r'(?:id|name)="([^"]+)"', text)) for page, text in pages.items()}
    found = set()
    for page, text in pages.items():
        for link in re.findall(r'(?:href|src)="([^"]+)"', text):
            path, _, place = html.unescape(link).partition("#")
            if re.match(r"\w+:|//", path) or link == "#":
                continue
            target = pathlib.Path(os.path.normpath(page.parent / path)) if path else page
            target = target / "index.html" if target.is_dir() else target
            known = place in places.get(target, ()) or urllib.parse.unquote(place) in places.get(target, ())
            if not target.is_file() or (place and not known):
                found.add(f"{page.relative_to(site)}: {link}")
    return found


@pytest.mark.slow
def test_every_link_of_a_built_page_leads_somewhere(site):
    assert not broken_links(site)
    with open(site / "index.html", "a") as file:
        file.write('<a href="papers/theorems/#nowhere"></a><a href="nowhere/"></a>')
    assert broken_links(site) == {"index.html: papers/theorems/#nowhere", "index.html: nowhere/"}


@pytest.mark.slow
def test_built_pages_have_a_mark_at_what_no_test_runs_and_at_nothing_else(site):
    pages = (site / "guides" / name / "index.html" for name in ("cluster", "train"))
    cluster, train = (re.sub("<[^>]*>", "", page.read_text()) for page in pages)
    assert re.search(r"kubectl apply -f job.yaml\nkubectl logs .*\s*not run by the tests", cluster)
    assert "python -m launch.train --preset=cifar10_fast" in train and "not run by the tests" not in train


RUNS, CONTINUED = "$ python -m launch.plot --run_dir=runs/first  # curves", ("python -m a \\", "  --b")


@pytest.mark.parametrize(
    "lines, mark",
    [
        ([RUNS], None), (["text", "0.5"], None), (["sbatch x", "printed"], ""), ([RUNS, "sbatch x"], ": line 2"),
        (["sbatch x", RUNS, *CONTINUED, *CONTINUED], ": lines 1, 3–4, 5–6"), (["f(x)"], ""), (["import os"], ""),
    ],
)  # fmt: skip
def test_a_mark_names_the_lines_that_no_test_runs(lines, mark):
    code = "\n".join(lines)
    block = f'<div class="highlight"><pre><span></span><code>{code}\n</code></pre></div>'
    found = re.findall(r'<p class="not-run">not run by the tests(.*?)</p>', tested.with_marks(block, "a.md"))
    assert found == ([] if mark is None else [mark])


@pytest.mark.parametrize(
    "command, mark",
    [("pip install x", True), ("python -m launch.train", False), ("python -m launch.train --preset=NAME", False)],
)
def test_code_in_a_line_has_a_mark_too_and_names_and_patterns_have_none(command, mark):
    code = f"<code>{command}</code>"
    assert ("<small" in tested.with_marks(code, "a.md")) is mark
    assert "<small" not in tested.with_marks(f'<a href="x">{code}</a>, not run: {code}', "a.md")


@pytest.mark.slow
@pytest.mark.parametrize("path", ["runs/paper/metrics.csv", "guides/cluster/job.sbatch", "start/tour.ipynb"])
def test_a_file_of_docs_can_be_downloaded(address, path):
    with urllib.request.urlopen(address + path) as answer:
        assert answer.read() == (ROOT / "docs" / path).read_bytes()


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (apt-get install chromium)")
@pytest.mark.parametrize(
    "page, width",
    [
        ("", 400), ("", 1400), ("overview/", 1300), ("guides/cluster/", 1300), ("start/tour/", 830),
        ("papers/theorems/", 400), ("reference/api/theory_linear/", 400), ("reference/commands/train/", 830),
        ("reference/claims/", 400), ("reference/claims/", 1400),
    ],
)  # fmt: skip
def test_a_page_asks_no_other_host_and_is_whole(address, tmp_path, page, width):
    window = f"--window-size={width + 200},900"
    found = visit(f"{address}framed/{width}/{page}", tmp_path, window, "--hide-scrollbars")
    probe = dict(re.findall(r'data-(\w+)="([\w,]+)"', re.search("<html[^>]*>", found.dom)[0]))
    assert [url for url in found.requests if not url.startswith(address)] == [] and found.requests
    assert not found.console
    assert (probe["width"], probe["broader"], probe["drawn"]) == (str(width), "false", "true")
    assert probe["cut"] == "0" or width < 1300
    assert probe["formulas"] == probe["rendered"] and (page or int(probe["formulas"]) >= 2)
    if page == "reference/claims/":
        rows = [int(count) for count in probe["rows"].split(",")]
        assert rows[0] == len(CLAIMS) and rows[0] > rows[1] > rows[2] >= 1


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (apt-get install chromium)")
def test_every_formula_is_rendered(address, site, tmp_path):
    pages = [page.parent for page in site.rglob("index.html") if 'class="arithmatex"' in page.read_text()]
    assert len(pages) >= 3
    for place, page in enumerate(pages):
        (scratch := tmp_path / str(place)).mkdir()
        assert not visit(f"{address}{page.relative_to(site)}/", scratch).console, page  # KaTeX throws, see formulas.js
