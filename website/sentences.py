"""The page of sentences: the assertions of the four texts, and the claim or page that answers each.

    python -m website.sentences > docs/reference/sentences.md

The data are website/sentences.csv: the text, its section, the sentence in a few words of ours, and its answers with
"; " between them. An answer is the id of a claim, a page below docs/ with or without #anchor, or "not checked: why".
"""

import collections
import csv
import pathlib
import posixpath
from typing import NamedTuple

from theory.claims import CLAIMS

TABLE = pathlib.Path(__file__).with_name("sentences.csv")
PAGE = "reference/sentences.md"
TEXTS = {
    "hm": "Hardt & Ma, *Identity Matters in Deep Learning*",
    "li": "Li et al., *Demystifying ResNet*",
    "review": "Review for ELE538B",
    "blog": "Blog, PaperWhy",
}
NOT_CHECKED = "not checked: "


class Sentence(NamedTuple):
    """A sentence that asserts something.

    Attributes:
      text: One of TEXTS.
      section: The section that has it.
      paraphrase: The sentence, in at most 15 words.
      answers: Ids of claims, pages below docs/ and reasons why there is no check.
    """

    text: str
    section: str
    paraphrase: str
    answers: tuple[str, ...]


def sentences() -> list[Sentence]:
    """Returns the rows of the table, in the order of the texts.

    Raises:
      ValueError: a row without an answer or of no known text.
    """
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = [Sentence(*row[:3], tuple(row[3].split("; "))) for row in list(csv.reader(file))[1:]]
    for row in rows:
        if row.text not in TEXTS or not all((row.section, row.paraphrase, *row.answers)):
            raise ValueError(f"{TABLE.name}: {row} must have one of the texts {', '.join(TEXTS)} and an answer")
    return rows


def document() -> str:
    """Returns docs/reference/sentences.md: a table for each text, and how many sentences are answered by what."""
    rows = sentences()
    parts = [
        "# Sentences\n\n"
        "Each row is a statement of one of the four texts, in our words. The answer is the [claim](claims.md) that\n"
        "checks it (`launch.check_theory --claim=ID`), the page that discusses it, or the reason why it has no check.\n"
        "A claim may find the statement false. `python -m website.sentences > docs/reference/sentences.md` writes\n"
        "this page from website/sentences.csv.\n\n"
        f"{summary(rows)}.\n"
    ]
    for text, title in TEXTS.items():
        parts.append(f"\n## {title}\n\n| section | sentence | answer |\n|---|---|---|\n")
        parts += [
            f"| {row.section} | {row.paraphrase} | {', '.join(map(_shown, row.answers))} |\n"
            for row in rows
            if row.text == text
        ]
    return "".join(parts)


def summary(rows: list[Sentence]) -> str:
    """Returns how many sentences have a claim, only pages, or no check, in words."""
    counts = collections.Counter(_kind(row) for row in rows)
    return (
        f"{len(rows)} sentences: {counts['claim']} with a claim, {counts['page']} only with a page, "
        f"{counts['none']} without a check"
    )


def _kind(row: Sentence) -> str:
    if any(answer in CLAIMS for answer in row.answers):
        return "claim"
    return "none" if all(answer.startswith(NOT_CHECKED) for answer in row.answers) else "page"


def _shown(answer: str) -> str:
    """An answer in Markdown: a claim's id, a page's link, or the reason."""
    if answer in CLAIMS or answer.startswith(NOT_CHECKED):
        return f"`{answer}`" if answer in CLAIMS else answer
    page, _, anchor = answer.partition("#")
    name = page.rpartition("/")[2].removesuffix(".md").replace("_", " ")
    words = f"{name}: {anchor.replace('-', ' ')}" if anchor else name
    return f"[{words}]({posixpath.relpath(answer, posixpath.dirname(PAGE))})"


if __name__ == "__main__":
    print(document(), end="")
