"""The table of sentences: each has an answer that exists, each printed claim answers one, and the page is generated."""

import re
import unicodedata

import pytest
from test_readme import ROOT

from theory.claims import CLAIMS
from website import sentences

ROWS = sentences.sentences()
TEXTS = {  # sections that each text has
    "hm": {"abstract", "1", "1.1", "1.2", "2", "3", "4.1", "4.2", "5", "A.1", "A.2", "B", "C"},
    "li": {"abstract", *"1 2 3.1 3.2 3.3 4.1 4.2 4.3 5 5.1 5.2 5.3 6 A B".split()},
    "review": {"1", "2", "3", "4"},
    "blog": {"tl;dr", "introduction", "optimization", "representation", "experiments", "notes"},
}


def anchors(page):
    """The anchors that MkDocs makes of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", (ROOT / "docs" / page).read_text("utf-8"), re.M)
    words = [unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode() for heading in headings]
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in words}


def is_answer(answer):
    page, _, anchor = answer.partition("#")
    if answer in CLAIMS or re.fullmatch(r"not checked: .+", answer):
        return True
    return (ROOT / "docs" / page).is_file() and (not anchor or anchor in anchors(page))


@pytest.mark.parametrize("row", ROWS, ids=[f"{row.text} {row.section}: {row.paraphrase[:60]}" for row in ROWS])
def test_every_sentence_has_answers_that_exist_and_is_short(row):
    assert [answer for answer in row.answers if not is_answer(answer)] == []
    assert len(row.paraphrase.split()) <= 15


@pytest.mark.parametrize(
    "answer", ["hm.theorem_9", "papers/none.md", "papers/hardt_ma.md#nowhere", "not checked: ", ""]
)
def test_an_answer_that_does_not_exist_would_be_found(answer):
    assert not is_answer(answer)


def test_no_sentence_stands_twice_and_every_section_has_some():
    assert len({row[:3] for row in ROWS}) == len(ROWS)
    assert {text: {row.section for row in ROWS if row.text == text} for text in TEXTS} == TEXTS


def test_every_printed_claim_answers_a_sentence_of_its_text():
    for text in TEXTS:
        answered = {answer for row in ROWS if row.text == text for answer in row.answers}
        assert {claim for claim in CLAIMS if claim.startswith(f"{text}.")} <= answered


def test_the_page_is_what_the_table_gives():
    page = ROOT / "docs" / sentences.PAGE
    assert sentences.document() == page.read_text("utf-8"), "python -m website.sentences > docs/reference/sentences.md"
