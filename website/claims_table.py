"""The page of claims: its table with a filter by paper, verdict and words."""

import re

from theory.claim import VERDICTS, kind
from theory.claims import CLAIMS

PAGE = "reference/claims.md"
PAPERS = {
    "hm": "Hardt & Ma",
    "li": "Li et al.",
    "review": "the review of Hardt & Ma",
    "blog": "the blog on Hardt & Ma",
    "later": "later papers",
    "ours": "this project",
}


def paper(claim_id: str) -> str:
    """Returns which of PAPERS a claim is from."""
    source = claim_id.partition(".")[0]
    return source if source in PAPERS else "later"


def with_filter(html: str) -> str:
    """Returns the page with a form above its table, whose rows carry the attributes that the form filters by
    (assets/filter.js).

    Raises:
      ValueError: the table does not have a row for each claim.
    """
    head, labels = html.partition("<tbody>")[0], re.findall(r"<th[^>]*>(.*?)</th>", html)
    rows = re.findall(r"<tr>\s*((?:<td[^>]*>.*?</td>\s*)+)</tr>", html, re.S)
    if len(rows) != len(CLAIMS):
        raise ValueError(f"{PAGE} has {len(rows)} rows for {len(CLAIMS)} claims")
    body = "".join(
        f'<tr data-paper="{paper(claim.id)}" data-verdict="{VERDICTS.index(kind(claim.verdict))}">'
        f"{_labelled(row, labels)}</tr>\n"
        for row, claim in zip(rows, CLAIMS.values())
    )
    table = (
        head.replace("<table>", f'{_form()}<div id="claims"><table class="cards">')
        + f"<tbody>{body}</tbody></table></div>"
    )
    return table + html.rpartition("</table>")[2]


def _labelled(row: str, labels: list[str]) -> str:
    """Returns the cells of a row, each with the heading of its column, which stands beside it on narrow screens."""
    cells = re.findall(r"<td[^>]*>(.*?)</td>", row, re.S)
    cells = [re.sub(r"(?<=\w)([._])(?=\w)", r"\1<wbr>", cell) if cell.startswith("<code>") else cell for cell in cells]
    return "".join(f'<td data-label="{label}">{cell}</td>' for label, cell in zip(labels, cells))


def _form() -> str:
    papers = "".join(f'<option value="{key}">{name}</option>' for key, name in PAPERS.items())
    verdicts = "".join(f'<option value="{place}">{name}</option>' for place, name in enumerate(VERDICTS))
    return f"""<form id="filter" hidden>
<label>Words <input name="words" type="search" placeholder="Theorem 2.1, saddle, …"></label>
<label>Paper <select name="paper"><option value="">all</option>{papers}</select></label>
<label>Printed statement <select name="verdict"><option value="">all</option>{verdicts}</select></label>
<output id="shown"></output>
</form>
"""
