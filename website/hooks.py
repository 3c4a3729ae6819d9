"""What MkDocs calls while it builds the site: for pages that are made, links, marks and the order.

Nothing is committed twice: the API comes from docstrings, commands and presets from the launchers, the tour from
its notebook, and CHANGELOG.md and CONTRIBUTING.md are read in place.
"""

import os
import pathlib
import posixpath
import re
import sys

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from website import claims_table, commands, notebook, tested  # noqa: E402, MkDocs loads this file by its path

API_PAGES = sorted((ROOT / "docs" / "reference" / "api").glob("*.md"))
API_INDEX = (ROOT / "docs" / "reference" / "api" / "index.md").read_text("utf-8")
SECTIONS = ("start", "guides", "papers", "reference", "appendix")
# Files of the repository that are pages, and where.
ROOT_PAGES = {"README.md": "overview.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
FOR_CONTRIBUTORS = ("contributing.md", "guides/reliability.md", "changelog.md")
# The pages that are made from source files, where links to these lead.
SOURCE_PAGES = {
    "launch": "reference/commands/index.md",
    "identity_matters/presets.py": "reference/presets.md",
    **dict.fromkeys(("identity_matters", "shortcut_study", "theory"), "reference/api/index.md"),
    **{f"launch/{name}.py": f"reference/commands/{name}.md" for name in commands.launchers()},
    **{
        f"{module.replace('.', '/')}.py": f"reference/api/{page.name}"
        for page in API_PAGES
        for module in re.findall(r"^::: (\S+)", page.read_text("utf-8"), re.M)
    },
}
_LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|mailto:|#|/)([^)\s#]+)(#[^)\s]*)?\)(\{ download \})?")
_FENCE = re.compile(r"^(```.*?^```|(?: {4}[^\n]*\n)+)", re.M | re.S)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are made, and gives MkDocs the order of all of them."""
    made: dict[str, str | bytes] = {
        "reference/presets.md": commands.presets_page(),
        "reference/commands/index.md": commands.commands_index(),
    }
    made |= {f"reference/commands/{name}.md": commands.command_page(name) for name in commands.launchers()}
    made |= {page: (ROOT / source).read_text(encoding="utf-8") for source, page in ROOT_PAGES.items()}
    for file in [file for file in files if file.src_uri.endswith(".ipynb")]:
        folder, name = posixpath.split(file.src_uri.removesuffix(".ipynb"))
        text, pictures = notebook.as_markdown(file.content_string, name)
        made |= {f"{folder}/{name}.md": text} | {f"{folder}/{path}": picture for path, picture in pictures.items()}
    for uri, content in made.items():
        files.append(File.generated(config, uri, content=content, inclusion=InclusionLevel.INCLUDED))
    config.nav = navigation([file.src_uri for file in files.documentation_pages()])
    return files


def navigation(pages: list[str]) -> list:
    """Returns MkDocs's nav: the home, a section a folder, then the pages about the project.

    Within a section the pages stand as docs/index.md first links them, and behind them those that it does not name.
    FOR_CONTRIBUTORS are in the last group, wherever their files are.
    """
    links = [
        link.replace(".ipynb", ".md") for _, link, *_ in _LINK.findall((ROOT / "docs/index.md").read_text("utf-8"))
    ]
    order = {page: place for place, page in reversed(list(enumerate(links)))}
    ordered = sorted(pages, key=lambda page: (order.get(page, len(order)), page))
    nav: list = [{"Home": "index.md"}]
    for section in SECTIONS:
        own = [page for page in ordered if page.startswith(f"{section}/") and page.count("/") == 1]
        entries: list = [page for page in own if page not in FOR_CONTRIBUTORS]
        for part, title in (("api", "API"), ("commands", "Commands")):
            names = re.findall(r"\]\((\w+)\.md\)", API_INDEX) if part == "api" else commands.launchers()
            below = [f"{section}/{part}/{name}.md" for name in ("index", *names)]
            entries += [{title: below}] if below[0] in pages else []
        nav.append({section.capitalize(): entries})
    return [*nav, {"For contributors": [*FOR_CONTRIBUTORS, {"README": "overview.md"}]}]


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Makes links that leave docs/, or that lead to a notebook, lead to their target's page on the site."""
    root_pages = {target: source for source, target in ROOT_PAGES.items()}
    source = root_pages.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def mapped(link: re.Match) -> str:
        text, target, anchor, download = link[1], link[2], link[3] or "", link[4] or ""
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        place = (ROOT_PAGES | SOURCE_PAGES).get(path)
        if not place and not path.startswith("docs/"):  # a file of the repository that is no page
            base = os.environ.get("SOURCE_URL", "").rstrip("/")
            return f"[{text}]({base}/{path})" if base else text
        place = place or path.removeprefix("docs/")
        place = place if download else re.sub(r"\.ipynb$", ".md", place)
        return f"[{text}]({posixpath.relpath(place, posixpath.dirname(page.file.src_uri) or '.')}{anchor}){download}"

    parts = _FENCE.split(markdown)  # code stands at odd places
    if page.file.src_uri == claims_table.PAGE:
        page.meta["hide"] = ["navigation", "toc"]
    return "".join(part if place % 2 else _LINK.sub(mapped, part) for place, part in enumerate(parts))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Marks what no test runs, gives the table of claims its filter, and lets lines break where a reader would."""
    html = tested.with_marks(html, page.file.src_uri)
    html = re.sub(r"<td>([\d.,e± −–%-]{1,20})</td>", r'<td class="number">\1</td>', html)
    html = re.sub(r'(?<=<span class="doc doc-object-name doc-module-name">)[^<]*', _breaking_at_dots, html)
    html = re.sub(r"<td><code>([^<]{60,})</code>", r'<td class="long"><code>\1</code>', html)
    html = re.sub(r"(?<=<code>)[^<]*[-\[][^<]*(?=</code>)", _with_whole_words, html)
    return claims_table.with_filter(html) if page.file.src_uri == claims_table.PAGE else html


def _breaking_at_dots(name: re.Match) -> str:
    return name[0].replace(".", ".<wbr>")


def _with_whole_words(code: re.Match) -> str:
    return re.sub(r"\S*[-\[]\S{1,36}(?!\S)", r'<span class="word">\g<0></span>', code[0])
