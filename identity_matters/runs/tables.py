"""The tables of a run directory: metrics.csv and results.csv, read and written, and a comparison in Markdown."""

import csv
import io
import math
import os
from typing import Any

import numpy as np

from identity_matters.errors import UserError, first_line
from identity_matters.fields import require
from identity_matters.runs.files import read_text, write_text

_TEXT_COLUMNS = {"variant", "status", "phase"}
_READ_COLUMNS = ("step", "loss", "learning_rate", "train_top1_error", "test_top1_error")
_COMPARED_COLUMNS = ("variant", "phase", "chosen_rate", "seed", "status", "epoch", "train_cross_entropy")
_MAX_STEP = 2**53


def read_metrics(path: str) -> list[dict[str, float]]:
    """Returns the rows of a metrics.csv or results.csv: numbers as float (NaN if empty), `step` as int.

    Raises UserError if the file is missing, neither of them, damaged or without rows.
    """
    try:
        rows: list[dict[str, Any]] = [
            {name: text if name in _TEXT_COLUMNS else float(text or "nan") for name, text in row.items()}
            for row in _read_table(path)
        ]
        require(len(rows) > 0, "it has no rows")
        needed = (*_COMPARED_COLUMNS, *_READ_COLUMNS) if "variant" in rows[0] else _READ_COLUMNS
        missing = [name for name in needed if name not in rows[0]]
        require(not missing, f"it has no column {', '.join(missing)}")
        for row in rows:
            _check_row(row)
        return [row | {"step": int(row["step"])} for row in rows]
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(f"cannot read {path} as a run's metrics: {first_line(error)[:300]}") from error


def _check_row(row: dict) -> None:
    """Raises UserError for an invalid step, an infinite number, or an error that is not a fraction."""
    is_step = 0 <= row["step"] <= _MAX_STEP and row["step"] == int(row["step"])
    require(is_step, f"a step is {row['step']}")
    for name, value in row.items():
        if name in _TEXT_COLUMNS or math.isnan(value):
            continue
        if math.isinf(value) or name.endswith("_error") and not -1e-6 <= value <= 1 + 1e-6:
            raise UserError(f"at step {row['step']:.0f} {name} is {value}")


def final_rows(rows: list[dict]) -> list[dict]:
    """Returns the last row of each run on the test images, of the rows of a launch.ablations' results.csv."""
    tested = [row for row in rows if row["phase"] == "test"]
    return list({(row["variant"], row["seed"]): row for row in tested}.values())  # of equal keys the last one stays


def ablation_table(rows: list[dict]) -> str:
    """Returns the rows of a launch.ablations' results.csv as a Markdown table.

    It has for each variant its learning rate, steps, the runs that diverged, and mean ± sd over the others.
    Training figures are means over the last part of a run, of augmented images. A learning rate is marked if it is the
    lowest or the highest of those tried, or if all diverged, because it may not be the best one.
    """
    lines = [
        "| variant | learning rate (of those tried) | steps | epochs | diverged | test error | training error "
        "| training cross-entropy |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for variant in dict.fromkeys(row["variant"] for row in final_rows(rows)):
        own_rows = [row for row in rows if row["variant"] == variant]
        final = final_rows(own_rows)
        ended = [row for row in final if row["status"] != "diverged"]
        last = max(ended or final, key=lambda row: row["step"])
        columns = (("test_top1_error", 100, " %"), ("train_top1_error", 100, " %"), ("train_cross_entropy", 1, ""))
        cells = [_rate(own_rows), f"{last['step']:,}", f"{last['epoch']:.1f}" if ended else "–"]
        cells.append(f"{len(final) - len(ended)} of {len(final)}")
        cells += [mean_and_spread([row[name] * scale for row in ended], unit) for name, scale, unit in columns]
        lines.append(f"| {variant} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _rate(rows: list[dict]) -> str:
    """The learning rate of a variant as text, with those that were tried."""
    chosen = next(row["chosen_rate"] for row in rows if row["phase"] == "test")
    errors = {row["chosen_rate"]: row["test_top1_error"] for row in rows if row["phase"] == "search"}
    if not errors:
        return f"{chosen:g}"
    mark = ", at the edge" if chosen in (min(errors), max(errors)) else ""
    mark = ", all diverged" if np.isnan(list(errors.values())).all() else mark
    return f"{chosen:g} ({', '.join(f'{rate:g}' for rate in sorted(errors))}{mark})"


def mean_and_spread(values: list[float], unit: str) -> str:
    """Returns mean ± standard deviation as text; a dash if there are no values."""
    if not values:
        return "–"
    spread = f" ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else ""
    return f"{np.mean(values):.2f}{spread}{unit}"


def percent(fraction: float, digits: int = 2) -> str:
    """Returns a fraction in percent, as the docs write it.

    >>> percent(0.1084)
    '10.84 %'
    """
    return f"{100 * fraction:.{digits}f} %"


def write_metrics(path: str, rows: list[dict]) -> None:
    """Writes rows as a CSV file, floats to 7 digits; a column is empty if a row has no such key."""
    # A float32 has 7 digits. Means over steps are sums of float64, whose last digits depend on where a run was
    # interrupted: rounded, a resumed run's table is that of an uninterrupted one.
    text = io.StringIO()
    table = csv.DictWriter(
        text, fieldnames=list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n"
    )
    table.writeheader()
    for row in rows:
        table.writerow({key: _text(value) for key, value in row.items()})
    write_text(path, text.getvalue())


def as_written(row: dict[str, float]) -> dict[str, float]:
    """Returns a row as `write_metrics` leaves it to a reader: floats of 7 digits."""
    return {name: float(_text(value)) if isinstance(value, float) else value for name, value in row.items()}


def _text(value: float | str) -> float | str:
    return f"{value:.7g}" if isinstance(value, float) else value


def read_rows(path: str) -> list[dict]:
    """Returns the rows of any CSV file that `write_metrics` wrote, numbers as int or float; [] if there is no file."""
    if not os.path.lexists(path):
        return []
    try:
        return [{name: _number_or_text(text) for name, text in row.items()} for row in _read_table(path)]
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(f"cannot read the table {path}: {error}") from error


def _read_table(path: str) -> list[dict[str, str]]:
    """Returns the rows of a CSV file, each with a cell for every column; raises ValueError or csv.Error for others."""
    text = read_text(path)
    require("\0" not in text, "it holds NUL bytes")
    require(text != "", "it is empty")
    header, *rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    require(len({*header, ""}) > len(header), "two columns have the same name, or one has no name")
    for number, row in enumerate([header, *rows], 1):
        require(not any(cell.startswith(("=", "@")) for cell in row), f"line {number} holds a spreadsheet's formula")
        require(len(row) == len(header), f"line {number} has {len(row)} cells, the header has {len(header)}")
    return [dict(zip(header, row)) for row in rows]


def _number_or_text(text: str) -> int | float | str:
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            pass
    return text
