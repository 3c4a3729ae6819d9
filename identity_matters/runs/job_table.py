"""A table of results that is computed job by job: saved after each, and continued by the same command.

    table = JobTable("runs/study/results.csv")
    for depth in (2, 4):
        table.run(Job({"experiment": "norms", "depth": depth}, compute))

A job is known by the columns of its key, whose values all its rows share; the only job of a table may have an empty
key. From these columns a later process knows what a killed one had saved, so at most the job under way is lost.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from identity_matters.fields import require
from identity_matters.runs.tables import as_written, read_rows, write_metrics

Progress = Callable[[float], Any]  # is called with the share of the job that was done since the last call


class Job(NamedTuple):
    """A piece of work that is computed, and kept, as a whole.

    Attributes:
      key: Columns and their values (numbers or text) that no other job of the table has all of.
      compute: Takes a Progress; returns the rows, at least one, which need not hold the key.
      label: The job in words.
      num_rows: How many rows it has, if that is known (0: not known).
    """

    key: dict[str, Any]
    compute: Callable[[Progress], list[dict]]
    label: str = ""
    num_rows: int = 0


class JobTable:
    """The rows of jobs, in the order in which these were first named, and in a CSV file that is saved after each job.

    The file need not exist, and without a path the rows are held only in memory. Raises UserError if it is damaged.
    """

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._rows_of: dict[tuple, list[dict]] = {}
        self._unclaimed = read_rows(path) if path else []

    @property
    def rows(self) -> list[dict]:
        """Returns all rows; those of jobs that have not been named yet come last."""
        return [row for rows in self._rows_of.values() for row in rows] + self._unclaimed

    def saved_rows(self) -> list[dict]:
        """Returns all rows as a later process finds them, with floats of 7 digits; without a file as they are."""
        return read_rows(self._path) if self._path else self.rows

    def find(self, job: Job) -> list[dict]:
        """Returns the rows of a job, [] if it is not computed; raises UserError for some, but not job.num_rows."""
        key = tuple(as_written(job.key).items())
        if key not in self._rows_of:
            rows: list[dict] = []
            others: list[dict] = []
            for row in self._unclaimed:
                (rows if all(row.get(column) == value for column, value in key) else others).append(row)
            part = f"{len(rows)} of the {job.num_rows} rows of {job.label or job.key}"
            is_whole = not rows or job.num_rows in (0, len(rows))
            require(is_whole, f"{self._path} holds {part}; remove it to begin again")
            self._rows_of[key] = rows
            self._unclaimed = others
        return self._rows_of[key]

    def run(self, job: Job, progress: Progress = lambda share: None) -> list[dict]:
        """Returns the rows of a job, which is computed and saved unless it was before; raises UserError as `find`.

        The progress, called with 0 before the rows are saved at the latest, can prepare their folder.
        """
        if rows := self.find(job):
            return rows
        # A row that holds its key keeps the order of its columns.
        rows.extend(row if job.key.keys() <= row.keys() else job.key | row for row in job.compute(progress))
        progress(0)
        if self._path:
            write_metrics(self._path, self.rows)
        return rows
