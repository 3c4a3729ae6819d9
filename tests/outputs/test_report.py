"""launch.report: the figures and the numbers in the tables of its page are those of the runs."""

import base64
import html
import pathlib
import re
import shutil

import numpy as np
import pytest
from outputs.references import read_columns, read_table
from outputs.words import REPORT


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


def percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def test_the_tables_of_a_page_have_the_numbers_of_its_runs(page, momentum_run, held_out_run):
    runs = {"test": (momentum_run, read_columns(momentum_run / "metrics.csv"))}
    runs["held-out"] = held_out_run, read_columns(held_out_run / "metrics.csv")
    tables = tables_of(page)
    compared = next(table for table in tables if table[0][:5] == REPORT["compared"])
    settings = dict(zip(compared[0][5:], zip(*(row[5:] for row in compared[1:]))))
    assert settings["optimizer"] == ("momentum", "muon") and settings["learning_rate"] == ("0.3", "0.05")
    for row, (split, (run_dir, table)) in zip(compared[1:], runs.items(), strict=True):
        last = {column: values[-1] for column, values in table.items()}
        errors = [percent(last["test_top1_error"]), percent(last["train_top1_error"])]
        assert row[:5] == [str(run_dir), "done", "6", *errors]
        heads = [head.format(split=split.capitalize()) for head in REPORT["evaluations"]]
        evaluated = next(table for table in tables if table[0] == heads)
        columns = ("step", "loss", "train_top1_error", "test_top1_error", "test_top5_error", "learning_rate")
        for cells, values in zip(evaluated[1:], zip(*(table[column] for column in columns)), strict=True):
            step, loss, train, top1, top5, rate = values
            expected = [f"{step:.0f}", f"{loss:.4g}", percent(train), percent(top1), percent(top5), f"{rate:.4g}"]
            assert cells == expected


def test_the_page_has_the_figures_of_its_runs(page, launch, momentum_run, held_out_run, tmp_path):
    for number, run_dir in enumerate((momentum_run, held_out_run)):
        copy = shutil.copytree(run_dir, tmp_path / str(number))
        assert launch("plot", f"--run_dir={copy}")[0] == 0
        picture = base64.b64encode((copy / "convergence.png").read_bytes()).decode()
        assert page.count(f'<img src="data:image/png;base64,{picture}" alt="convergence">') == 1


def test_the_claims_of_a_page_are_those_that_the_run_has_checked(launch, tmp_path):
    claims = "review.eq_6", "hm.eq_2.3"
    for claim in claims:
        code, _, err = launch("check_theory", f"--claim={claim}", "--trials=3", f"--run_dir={tmp_path}/{claim}")
        assert code == 0, err
    runs = ",".join(str(tmp_path / claim) for claim in claims)
    code, _, err = launch("report", f"--run_dir={tmp_path}/report", f"--runs={runs}")
    assert code == 0, err
    tables = tables_of((tmp_path / "report" / "report.html").read_text())
    for claim, (header, row) in zip(claims, tables, strict=True):
        (checked,) = read_table(tmp_path / claim / "results.csv")
        cells = dict(zip(header, row, strict=True))
        assert (cells["printed statement"], cells["printed proof"]) == (checked["verdict"], checked["proof"])
        expected = f"{float(checked['measured']):.4g} {checked['relation']} {float(checked['bound']):.4g}"
        assert cells["measured"] == expected and cells["instances"] == f"{float(checked['instances']):.0f}"


def test_the_table_of_an_ablation_has_the_means_of_its_runs(launch, tmp_path):
    statements = pathlib.Path(__file__).parents[2] / "docs" / "runs" / "statements"
    code, _, err = launch("report", f"--run_dir={tmp_path}", f"--runs={statements}")
    assert code == 0, err
    [header, *rows] = tables_of((tmp_path / "report.html").read_text())[0]
    last = {}  # the last evaluation of each run, by variant and seed
    for row in read_table(statements / "results.csv"):
        if row["phase"] == "test":
            last.setdefault(row["variant"], {})[row["seed"]] = row
    assert [row[0] for row in rows] == list(last)
    for row in rows:
        runs = [run for run in last[row[0]].values() if run["status"] != "diverged"]
        for column in ("test", "training"):
            numbers = re.findall(r"[\d.]+", row[header.index(f"{column} error")])
            errors = 100 * np.array([run[f"{column.removesuffix('ing')}_top1_error"] for run in runs])
            expected = [errors.mean(), errors.std(ddof=1)] if len(errors) > 1 else [*errors]
            assert numbers == [f"{value:.2f}" for value in expected]
