"""Write the tables of the pages again from docs/runs.

    python -m website.tables

On a page such a table stands between <!-- table … --> and <!-- end -->. The comment is the table with formulas in place
of numbers, {FUNCTION ARGUMENT, …}. Most take a column of a file and a format, {last paper/metrics.csv, test_top1_error,
.2%}, and conditions that choose rows, variant=BN-free. A * matches several files, or any text in a condition. A line
with RUN in it is repeated for every training run.
"""

import functools
import json
import pathlib
import re
import statistics
from fnmatch import fnmatch
from operator import itemgetter

import numpy as np

from identity_matters.runs.tables import ablation_table, final_rows, mean_and_spread, read_metrics, read_rows
from launch import near_identity
from shortcut_study.curvature.quadrature import extreme_eigenvalues, mean_eigenvalue
from shortcut_study.figures.all_figures import FIGURES
from shortcut_study.figures.finding import findings_table
from shortcut_study.figures.spectrum import quadrature_from_rows

ROOT = pathlib.Path(__file__).parents[1]
RUNS = ROOT / "docs" / "runs"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
COLUMN = {"first": itemgetter(0), "last": itemgetter(-1), "min": np.nanmin, "max": np.nanmax}
COLUMN |= {"median": statistics.median, "sum": sum, "each": list}
SUPERSCRIPTS = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def main() -> None:
    """Writes every page whose tables have changed."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        written = rewrite(text)
        if written != text:
            page.write_text(written, encoding="utf-8")


def rewrite(page: str) -> str:
    """Returns the text of a page with its tables as docs/runs has them."""
    tables = re.compile(r"(<!-- table\n(.*?)\n-->\n\n).*?(?=\n\n<!-- end -->)", re.S)
    return tables.sub(lambda table: table[1] + evaluate(table[2]), page)


def evaluate(text: str) -> str:
    """Returns a text with the values of its formulas."""
    runs = [path.parent.name for path in files("*/metrics.csv")]
    lines = [line.replace("RUN", run) for line in text.split("\n") for run in (runs if "RUN" in line else [""])]
    formulas = re.compile(r"\{(\w+) (.*?)\}")
    return formulas.sub(lambda formula: FUNCTIONS[formula[1]](*formula[2].split(", ")), "\n".join(lines))


def readable(text: str) -> str:
    """Returns numbers as the pages write them: 1.9e-06 as 1.9·10⁻⁶, 5% as 5 %, with a true minus."""
    text = re.sub(r"(?<=\d)e([+-]\d+)", lambda e: f"·10{str(int(e[1])).translate(SUPERSCRIPTS)}", text)
    text = re.sub(r"(?<=\d)%", " %", text).replace("nan%", "NaN")
    return re.sub(r"(?<![\w.^-])-(?=\d)", "−", text)


def files(patterns: str) -> list[pathlib.Path]:
    """Returns the files of docs/runs that match one of the patterns; raises FileNotFoundError if none does."""
    found = [path for pattern in patterns.split() for path in sorted(RUNS.glob(pattern))]
    if not found:
        raise FileNotFoundError(f"no file of docs/runs is {patterns}")
    return found


def config_of(file: pathlib.Path) -> dict:
    """Returns config.json of the run of a file."""
    return json.loads(file.with_name("config.json").read_text())


def column(how: str, patterns: str, name: str, form: str, *conditions: str) -> str:
    """Returns what COLUMN[how] makes of a column, a number for each file; `each` gives every number a cell."""
    wanted = dict(condition.split("=") for condition in conditions)
    found = []
    for path in files(patterns):
        rows = [row for row in read_rows(str(path)) if all(fnmatch(str(row[key]), wanted[key]) for key in wanted)]
        numbers = np.atleast_1d(COLUMN[how]([row[name] for row in rows]) if rows else [])
        found.append("|".join(format(number, form) for number in numbers))
    return readable(", ".join(found))


def mean(patterns: str, variant: str = "") -> str:
    """Returns mean ± standard deviation of the last test errors of runs, or of a variant's that did not diverge."""
    errors = []
    for path in files(patterns):
        rows = read_metrics(str(path))
        ends = [row for row in final_rows(rows) if row["variant"] == variant] if variant else rows[-1:]
        errors += [100 * row["test_top1_error"] for row in ends if row.get("status") != "diverged"]
    return f"{mean_and_spread(errors, ' %')}, n = {len(errors)}" if errors else "not run"


def difference(*names: str) -> str:
    """Returns the difference of two runs' test errors in points, and its standard error over the 10,000 images."""
    first, second = ({row["image"] for row in read_rows(str(RUNS / name / "errors.csv"))} for name in names)
    share = (len(first) - len(second)) / 10_000
    error = ((len(first ^ second) / 10_000 - share**2) / 10_000) ** 0.5
    return readable(f"{100 * share:.2f} ± {100 * error:.2f}")


def dead(patterns: str) -> str:
    """Returns two cells of files blocks_along.csv: dead channels, and blocks within 1 % of the identity, at the end."""
    shares, near = [], []
    for path in files(patterns):
        rows = read_rows(str(path))
        last = [row for row in rows if row["epoch"] == rows[-1]["epoch"]]
        widths = config_of(path)["config"]["model"]["widths"]
        channels = [widths[int(row["block"][len("stage")]) - 1] for row in last]
        shares.append(100 * np.average([row["dead"] for row in last], weights=channels))
        near.append(sum(row["ratio"] < 0.01 for row in last))
    spans = ["–".join(dict.fromkeys(f"{end(values):.2g}" for end in (min, max))) for values in (shares, near)]
    return f"{spans[0]} %|{spans[1]}"


def spectrum(file: str) -> str:
    """Returns three cells: the largest and the smallest eigenvalue with error bounds, the trace with its 95 % error."""
    dim, quadrature = config_of(RUNS / file)["num_weights"], quadrature_from_rows(read_rows(str(RUNS / file)))
    ends = [np.ravel(extreme_eigenvalues(quadrature, 1, is_largest)) for is_largest in (True, False)]
    trace, error = (dim * number for number in mean_eigenvalue(quadrature, dim))
    spread = f" ± {float(f'{error:.2g}'):,.0f}" if np.isfinite(error) else ""
    return readable("|".join([*(f"{value:.4g} ± {bound:.1g}" for value, bound in ends), f"{trace:,.0f}{spread}"]))


def removable(name: str) -> str:
    """Returns how many of the smallest branches can be removed."""
    return readable(near_identity.removable(read_rows(str(RUNS / name / near_identity.REMOVED))))


def study(figure: str) -> str:
    """Returns the study's findings on the paper's statements about a figure."""
    table = findings_table(FIGURES[figure].findings(read_rows(str(RUNS / "study_mnist" / "results.csv"))))
    return readable(re.sub(r"^\|[^|]*", "", table, flags=re.M))  # the first column is the figure


def ablation(name: str) -> str:
    """Returns the table of a launch.ablations."""
    return ablation_table(read_metrics(str(RUNS / name / "results.csv")))


def command(name: str) -> str:
    """Returns the command of a run."""
    return config_of(RUNS / name / "config.json")["command"]


FUNCTIONS = {how: functools.partial(column, how) for how in COLUMN}
FUNCTIONS |= {f.__name__: f for f in (mean, difference, dead, spectrum, removable, study, ablation, command)}

if __name__ == "__main__":
    main()
