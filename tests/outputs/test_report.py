"""launch.report: the numbers in the tables of its page are those of the runs and of the papers."""

import html
import re

import pytest
from outputs.references import read_columns
from outputs.words import REPORT

# Hardt & Ma, Table 2, row "Ours": top-1 errors in percent.
TABLE_2 = {"cifar10": "6.38%", "cifar100": "24.64%", "imagenet2012": "35.29%"}


@pytest.fixture
def page(launch, momentum_run, held_out_run, tmp_path):
    code, _, err = launch("report", f"--run_dir={tmp_path}/report", f"--runs={momentum_run},{held_out_run}")
    assert code == 0, err
    return (tmp_path / "report" / "report.html").read_text()


def tables_of(page: str) -> list[list[list[str]]]:
    """The cells of the rows of all tables, without their tags."""

    def cells(row):
        return [html.unescape(re.sub("<[^>]+>", "", cell)) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)]

    return [[cells(row) for row in table.split("</tr>")[:-1]] for table in re.findall(r"(?s)<table.*?</table>", page)]


def test_the_tables_of_a_page_have_the_numbers_of_its_runs(page, momentum_run, held_out_run):
    runs = {"test": (momentum_run, read_columns(momentum_run / "metrics.csv"))}
    runs["held-out"] = held_out_run, read_columns(held_out_run / "metrics.csv")
    tables = tables_of(page)
    compared = next(table for table in tables if table[0][:5] == REPORT["compared"])
    settings = dict(zip(compared[0][5:], zip(*(row[5:] for row in compared[1:]))))
    assert settings["optimizer"] == ("momentum", "muon") and settings["learning_rate"] == ("0.3", "0.05")
    for row, (split, (run_dir, table)) in zip(compared[1:], runs.items(), strict=True):
        last = {column: values[-1] for column, values in table.items()}
        errors = [f"{last[f'{part}_top1_error']:.2%}" for part in ("test", "train")]
        assert row[:5] == [str(run_dir), "done", "6", *errors]
        heads = [head.format(split=split.capitalize()) for head in REPORT["evaluations"]]
        evaluated = next(table for table in tables if table[0] == heads)
        columns = ("step", "loss", "train_top1_error", "test_top1_error", "test_top5_error", "learning_rate")
        for cells, values in zip(evaluated[1:], zip(*(table[column] for column in columns)), strict=True):
            step, loss, *shares, rate = values
            assert cells == [f"{step:.0f}", f"{loss:.4g}", *(f"{share:.2%}" for share in shares), f"{rate:.4g}"]
        here = REPORT["here"].format(error=last["test_top1_error"], split=split, steps=6)
        stated = next(row for table in tables for row in table if here in row)
        assert stated[2] == REPORT["training"].format(last["train_top1_error"])


def test_the_errors_of_table_2_are_those_that_the_paper_prints(page):
    rows = {row[0].rpartition(" ")[2]: row for table in tables_of(page) for row in table if row}
    for dataset, error in TABLE_2.items():
        assert rows[dataset][1] == REPORT["paper"].format(error) and f"--preset={dataset[:8]}" in rows[dataset][3]
