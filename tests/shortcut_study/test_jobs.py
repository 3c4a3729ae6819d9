"""shortcut_study.jobs: what is computed when, what is saved, and that a killed study loses one job at most."""

import io

import pytest
from tqdm import tqdm

from identity_matters.runs.tables import read_rows, write_metrics
from shortcut_study.architectures import KINDS, LABELS, TWO
from shortcut_study.jobs import COLUMNS, Job, job_key, run_jobs

ALL = [("norms", 2), ("norms", 4), ("single_run", 4), ("spectrum", 2)]


class Study:
    """A few jobs, their log, and what was saved, to a file as launch.shortcut_study does."""

    def __init__(self, path, names=ALL, fails_at=None):
        self.path, self.computed, self.saved, self.fails_at = str(path), [], [], fails_at
        self.jobs = [Job({"experiment": name, "depth": depth}, self._compute(name, depth)) for name, depth in names]
        self.bar = tqdm(total=len(self.jobs), file=io.StringIO())

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

    def _save(self, rows):
        self.saved.append([(row["experiment"], row["depth"], row["seed"]) for row in rows])
        write_metrics(self.path, rows)

    def run(self):
        return run_jobs(self.jobs, read_rows(self.path), self._save, self.bar)


def without_seconds(path):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in read_rows(path)]


def test_jobs_are_computed_in_order_and_saved_one_by_one(tmp_path):
    study = Study(tmp_path / "rows.csv")
    rows = study.run()
    assert study.computed == ALL
    expected = [[(name, depth, seed) for name, depth in ALL[: i + 1] for seed in range(depth)] for i in range(len(ALL))]
    assert study.saved == expected
    assert [(row["experiment"], row["depth"], row["seed"]) for row in rows] == expected[-1]


def test_every_row_has_all_columns_and_the_seconds_of_its_job(tmp_path):
    rows = Study(tmp_path / "rows.csv").run()
    assert all(tuple(row) == COLUMNS for row in rows)
    assert rows[0]["norm"] == "" and rows[0]["loss"] == 2 / 3 and rows[0]["seed"] == 0
    assert all(row["seconds"] >= 0 for row in rows)
    assert all(len({row["seconds"] for row in rows if (row["experiment"], row["depth"]) == job}) == 1 for job in ALL)


def test_the_bar_counts_jobs_and_ends_at_its_total(tmp_path):
    study = Study(tmp_path / "rows.csv")
    study.run()
    assert study.bar.n == pytest.approx(study.bar.total) == pytest.approx(4)


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
    assert resumed.bar.n == pytest.approx(resumed.bar.total)


def test_a_finished_study_computes_and_saves_nothing(tmp_path):
    Study(tmp_path / "rows.csv").run()
    again = Study(tmp_path / "rows.csv")
    rows = again.run()
    assert again.computed == again.saved == [] and rows == read_rows(again.path)
    assert again.bar.n == pytest.approx(again.bar.total)


def test_a_job_missing_in_the_middle_is_computed_and_takes_its_place(tmp_path):
    whole = Study(tmp_path / "whole.csv")
    whole.run()
    Study(tmp_path / "rows.csv", names=[ALL[3], ALL[0]]).run()
    rest = Study(tmp_path / "rows.csv")
    rest.run()
    assert rest.computed == ALL[1:3]
    assert without_seconds(rest.path) == without_seconds(whole.path)


def test_rows_of_jobs_that_are_not_asked_for_are_dropped(tmp_path):
    Study(tmp_path / "rows.csv").run()
    fewer = Study(tmp_path / "rows.csv", names=ALL[1:2])
    rows = fewer.run()
    assert {(row["experiment"], row["depth"]) for row in rows} == {ALL[1]} and fewer.computed == []


def test_jobs_are_told_apart_by_every_column_of_their_keys(tmp_path):
    keys = [
        {"experiment": "norms", "depth": 2, "seed": seed, "activations": a}
        for seed in (0, 1)
        for a in ("linear", "relu_mid")
    ]
    done = []

    def job(key):
        return Job(key, lambda _: done.append(key) or [{"loss": 1.0}])

    path = str(tmp_path / "rows.csv")
    for count in range(1, 5):
        with tqdm(total=count, file=io.StringIO()) as bar:
            run_jobs([job(key) for key in keys[:count]], read_rows(path), lambda rows: write_metrics(path, rows), bar)
    assert done == keys


def test_the_bar_names_the_job_in_hand_in_words(tmp_path):
    study, names = Study(tmp_path / "rows.csv"), []
    study.bar.set_description = names.append
    study.run()
    assert names == [f"{name}: no shortcuts, depth {depth}" for name, depth in
                     [("norms", 2), ("norms", 4), ("single run", 4), ("spectrum", 2)]]  # fmt: skip


def test_the_name_of_a_job_says_all_that_its_key_says_in_words():
    key = job_key("learning_rates", TWO, "relu_mid", 8, 3)
    assert Job(key, None).name == "learning rates: 2-shortcut, zero, relu mid, depth 8, seed 3"
    convolutional = {"experiment": "convolutional", "shortcut_depth": 1, "batch_norm": 0, "depth": 6}
    assert Job(convolutional, None).name == "convolutional: 1-shortcut, no batch normalisation, depth 6"
    keys = [job_key("norms", kind, activations, depth, seed)
            for kind in LABELS for activations in KINDS for depth in (2, 4) for seed in (None, 0)]  # fmt: skip
    assert len({Job(key, None).name for key in keys}) == len(keys)


def test_rows_of_a_version_without_a_column_of_jobs_are_kept_and_given_one(tmp_path):
    study = Study(tmp_path / "rows.csv")
    study.run()
    old = [{name: value for name, value in row.items() if name not in ("job", "perturbed_loss")}
           for row in read_rows(study.path)]  # fmt: skip
    write_metrics(study.path, old)
    again = Study(tmp_path / "rows.csv")
    again.run()
    assert not again.computed and [row["job"] for row in read_rows(study.path)] == [
        f"{row['experiment'].replace('_', ' ')}: no shortcuts, depth {row['depth']}" for row in old
    ]
    assert [{name: row[name] for name in old[0]} for row in read_rows(study.path)] == old
