"""The CSV tables of a run directory: metrics.csv and results.csv, read and written."""

import csv
import io
import os

from identity_matters.runs.directory import write_text
from identity_matters.runs.errors import UserError

_TEXT_COLUMNS = {"variant", "status"}
_READ_COLUMNS = ("step", "loss", "learning_rate", "train_top1_error", "test_top1_error")


def read_metrics(path: str) -> list[dict[str, float]]:
    """Returns the rows of a metrics.csv or results.csv: numbers as float (NaN where empty), `step` as int.

    Raises:
      UserError: the file is missing or is neither.
    """
    try:
        with open(path, newline="") as file:
            rows = [{name: _number(name, value) for name, value in row.items()} for row in csv.DictReader(file)]
        missing = [name for name in _READ_COLUMNS if rows and name not in rows[0] and "variant" not in rows[0]]
        if missing:
            raise UserError(f"it has no column {', '.join(missing)}")
        return [row | {"step": int(row["step"])} for row in rows]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"cannot read {path} as a run's metrics: {error}") from error


def write_metrics(path: str, rows: list[dict]) -> None:
    """Writes rows as a CSV file, floats to 7 digits; a column is empty where a row has no such key."""
    text = io.StringIO()
    table = csv.DictWriter(
        text, fieldnames=list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n"
    )
    table.writeheader()
    for row in rows:
        table.writerow({key: f"{value:.7g}" if isinstance(value, float) else value for key, value in row.items()})
    write_text(path, text.getvalue())


def read_rows(path: str) -> list[dict]:
    """Returns the rows of any CSV file that `write_metrics` wrote, numbers as int or float; [] if there is no file."""
    if not os.path.exists(path):
        return []
    with open(path, newline="") as file:
        return [{name: _number_or_text(text) for name, text in row.items()} for row in csv.DictReader(file)]


def _number_or_text(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def _number(name: str, value: str) -> float | str:
    return value if name in _TEXT_COLUMNS else float(value or "nan")
