"""Facts in several places agree: the version, and numbers that link to their source.

tests/test_tables.py compares measured numbers in README and docs with docs/runs, and tests/theory/test_claims.py the
counts of claims. For every other number the rule is: a link whose text begins with a digit stands, as it is written, in
the section that it leads to, so that a number has one home and a change there is noticed here.
"""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
MAX_RELEASE = 60  # lines: one screen
LINKED_NUMBER = re.compile(r"(?<!!)\[\**(\d[^\]]*?)\**\]\(([^)#\s]*)(?:#([^)\s]+))?\)")


def plain(text: str) -> str:
    """A text without emphasis and code marks, with single spaces."""
    return " ".join(re.sub(r"[*`]", "", text).split())


def section(page: str, anchor: str | None) -> str:
    """What stands below the heading of an anchor, down to the next heading of its level or above; else the page."""
    if not anchor:
        return page
    headings = [(m.start(), len(m[1]), m[2]) for m in re.finditer(r"^(#+) (.*)$", page, re.M)]
    for place, (start, level, title) in enumerate(headings):
        if re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") == anchor:
            ends = [later for later, other, _ in headings[place + 1 :] if other <= level]
            return page[start : min(ends, default=len(page))]
    return ""


def homeless(text: str, folder: pathlib.Path) -> list[str]:
    """The linked numbers of a page that their target does not have."""
    found = []
    for number, target, anchor in LINKED_NUMBER.findall(text):
        if not target.startswith("http"):
            home = (folder / target).read_text() if target else text
            if plain(number) not in plain(section(home, anchor)):
                found.append(number)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_number_that_links_stands_where_it_leads_to(page):
    assert homeless(page.read_text(), page.parent) == []


def test_a_number_that_has_changed_at_home_would_be_noticed(tmp_path):
    home = tmp_path / "results.md"
    home.write_text(
        "# Results\n\n## Small\n\n**14.17 ± 0.55 %** in 43\nminutes\n\n### More\n\n7\n\n## Wide\n\n11.66 %\n"
    )
    good = (
        "[14.17 ± 0.55 %](results.md#small), [43 minutes](results.md#small), [7](results.md#small), ![3 lines](x.png)"
    )
    assert homeless(good, tmp_path) == []
    assert homeless("[**14.16 %**](results.md#small) [11.66 %](results.md#small)", tmp_path) == ["14.16 %", "11.66 %"]
    assert homeless("[11.66 %](results.md)", tmp_path) == []


def test_one_version_stands_everywhere():
    release, date = re.findall(r"^## (\S+) – (\S+)$", CHANGELOG, re.M)[0]
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {release}\n" in citation and f'\ndate-released: "{date}"\n' in citation
    assert f"\nversion = {release}\n" in (ROOT / "setup.cfg").read_text()


def test_a_release_fits_a_screen_and_repeats_no_measured_number():
    releases = re.split(r"^## ", CHANGELOG, flags=re.M)[1:]
    assert len(releases) >= 2 and max(len(release.splitlines()) for release in releases) <= MAX_RELEASE
    assert not re.findall(r"\d ?%|±|\d minutes", CHANGELOG)
