"""runs.job_table: the order of jobs, the saved rows, and that a killed command loses one job at most."""

import pytest

from identity_matters.errors import UserError
from identity_matters.runs import job_table
from identity_matters.runs.job_table import Job, JobTable
from identity_matters.runs.tables import read_rows, write_metrics
from shortcut_study.architectures import ARCHITECTURES, LABELS, TWO
from shortcut_study.jobs import COLUMNS, job_key, job_label, study_job

ALL = [("norms", 2), ("norms", 4), ("single_run", 4), ("spectrum", 2)]


class Study:
    """A few jobs and the log of those that were computed."""

    def __init__(self, path, names=ALL, fails_at=None):
        self.path, self.computed, self.fails_at = str(path), [], fails_at
        self.jobs = [study_job({"experiment": name, "depth": n}, self._compute(name, n)) for name, n in names]
        self.shares = []

    def _compute(self, name, depth):
        def compute(progress):
            progress(0.25)
            if (name, depth) == self.fails_at:
                raise KeyboardInterrupt
            progress(0.25)
            self.computed.append((name, depth))
            # A job has a seed in its key, or rows of several seeds.
            return [{"seed": seed, "epoch": 5, "loss": depth / 3, "status": "done"} for seed in range(depth)]

        return compute

    def run(self):
        table = JobTable(self.path)
        for job in self.jobs:  # all of them first: this sets the order
            table.find(job)
        for job in self.jobs:
            table.run(job, self.shares.append)
        return table.rows


def without_seconds(path):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in read_rows(path)]


def test_jobs_are_computed_in_order_and_saved_one_by_one(tmp_path, monkeypatch):
    saved = []
    monkeypatch.setattr(job_table, "write_metrics", lambda path, rows: saved.append([row_key(row) for row in rows]))
    study = Study(tmp_path / "rows.csv")
    rows = study.run()
    assert study.computed == ALL
    expected = [[(name, depth, seed) for name, depth in ALL[: i + 1] for seed in range(depth)] for i in range(len(ALL))]
    assert saved == expected and [row_key(row) for row in rows] == expected[-1]


def row_key(row):
    return row["experiment"], row["depth"], row["seed"]


def test_every_row_has_all_columns_and_the_seconds_of_its_job(tmp_path):
    rows = Study(tmp_path / "rows.csv").run()
    assert all(tuple(row) == COLUMNS for row in rows)
    assert rows[0]["norm"] == "" and rows[0]["loss"] == 2 / 3 and rows[0]["seed"] == 0
    assert all(row["seconds"] >= 0 for row in rows)
    assert all(len({row["seconds"] for row in rows if (row["experiment"], row["depth"]) == job}) == 1 for job in ALL)


@pytest.mark.parametrize("fails_at", ALL)
def test_a_killed_study_continues_to_the_same_rows_and_computes_nothing_twice(tmp_path, fails_at):
    whole = Study(tmp_path / "whole.csv")
    whole.run()
    killed = Study(tmp_path / "rows.csv", fails_at=fails_at)
    with pytest.raises(KeyboardInterrupt):
        killed.run()
    kept = read_rows(tmp_path / "rows.csv")
    resumed = Study(tmp_path / "rows.csv")
    resumed.run()
    assert killed.computed + resumed.computed == ALL
    assert without_seconds(resumed.path) == without_seconds(whole.path)
    assert read_rows(resumed.path)[: len(kept)] == kept  # seconds and all
    assert sum(resumed.shares) == len(resumed.computed) / 2


def test_a_job_missing_in_the_middle_is_computed_and_takes_its_place(tmp_path):
    whole = Study(tmp_path / "whole.csv")
    whole.run()
    Study(tmp_path / "rows.csv", names=[ALL[3], ALL[0]]).run()
    rest = Study(tmp_path / "rows.csv")
    rest.run()
    assert rest.computed == ALL[1:3]
    assert without_seconds(rest.path) == without_seconds(whole.path)


def test_rows_of_jobs_that_are_not_named_stay_behind_the_others(tmp_path):
    Study(tmp_path / "rows.csv", names=ALL[:2]).run()
    kept = read_rows(tmp_path / "rows.csv")
    other = Study(tmp_path / "rows.csv", names=ALL[2:3])
    other.run()
    assert other.computed == ALL[2:3] and read_rows(tmp_path / "rows.csv")[4:] == kept


def test_a_table_that_lacks_rows_of_a_job_is_rejected_and_unchanged(tmp_path):
    path = str(tmp_path / "rows.csv")
    write_metrics(path, [{"vector": 0, "value": 1.0}, {"vector": 1, "value": 2.0}])
    with pytest.raises(UserError, match="rows.csv holds 1 of the 2 rows of vector 0; remove it to begin again"):
        JobTable(path).run(Job({"vector": 0}, lambda _: pytest.fail("computed"), "vector 0", num_rows=2))
    assert len(read_rows(path)) == 2


def test_without_a_file_the_rows_are_held_in_memory():
    table = JobTable(None)
    rows = table.run(Job({"seed": 1}, lambda _: [{"loss": 0.5}]))
    assert table.run(Job({"seed": 1}, lambda _: pytest.fail("computed"))) == rows == [{"seed": 1, "loss": 0.5}]


def test_jobs_are_distinguished_by_every_column_of_their_keys(tmp_path):
    keys = [{"depth": 2, "seed": seed, "rate": rate} for seed in (0, 1) for rate in (1 / 3, 0.1)]
    done = []
    for count in range(1, 5):
        table = JobTable(str(tmp_path / "rows.csv"))
        for key in keys[:count]:
            table.run(Job(key, lambda _, key=key: done.append(key) or [{"loss": 1.0}]))
    assert done == keys


def test_the_name_of_a_job_says_all_that_its_key_says_in_words():
    key = job_key("learning_rates", TWO, "relu_mid", 8, 3)
    assert job_label(key) == "learning rates: 2-shortcut, zero, relu mid, depth 8, seed 3"
    convolutional = {"experiment": "convolutional", "shortcut_depth": 1, "batch_norm": 0, "depth": 6}
    assert job_label(convolutional) == "convolutional: 1-shortcut, no batch normalisation, depth 6"
    keys = [job_key("norms", kind, activations, depth, seed)
            for kind in LABELS for activations in ARCHITECTURES for depth in (2, 4) for seed in (None, 0)]  # fmt: skip
    assert len({job_label(key) for key in keys}) == len(keys)
