"""launch.shortcut_study: the flags that have no effect on a figure, and studies too small for conclusions."""

import pytest
from study_rows import of_figure, paper_rows

from identity_matters.data import digits
from identity_matters.data.digits import mnist_sample
from identity_matters.runs.job_table import Job
from shortcut_study import report

FIGURE_5 = ("shortcut_study", "--figure=5", "--depths=2,3", "--num_runs=1")


@pytest.fixture(autouse=True)
def whole(monkeypatch):
    """The embedded digits at 7×7 pixels, of which the principal components are quick; rows made by hand of Figure 5."""
    sample = mnist_sample()
    sample = sample._replace(train_images=sample.train_images[:, ::4, ::4], test_images=sample.test_images[:, ::4, ::4])
    rows = [row | {"job": row["depth"]} for row in of_figure(paper_rows(), "5")]
    monkeypatch.setattr(digits, "mnist_sample", lambda: sample)
    monkeypatch.setattr(report, "study_jobs", lambda config, data: [Job({}, lambda _: rows)])
    return sample


def notes(err):
    return [line for line in err.splitlines() if line.startswith("note: ")]


def test_flags_that_the_figure_does_not_read_are_named_and_ignored(launch, tmp_path):
    code, out, err = launch(*FIGURE_5, "--num_epochs=100", "--relu_examples=1000", f"--run_dir={tmp_path}")
    assert code == 0, err
    names = ("num_epochs", "relu_examples")
    assert len(notes(err)) == 2 and all(f"--{name} " in line for name, line in zip(names, notes(err)))
    assert "toy" not in out and "| holds |" in out


@pytest.mark.slow
def test_a_small_data_set_is_a_toy_as_the_first_examples_of_a_large_one_are(launch, whole, monkeypatch, tmp_path):
    few = whole._replace(train_images=whole.train_images[:300], train_labels=whole.train_labels[:300])
    tables = []
    for name, data, flags in (("few", few, ()), ("first", whole, ("--examples=300",))):
        monkeypatch.setattr(digits, "mnist_sample", lambda: data)  # noqa: B023
        code, out, err = launch(*FIGURE_5, *flags, f"--run_dir={tmp_path}/{name}")
        assert code == 0 and not notes(err), err
        tables.append(out[: out.index("| experiment |")])
    assert tables[0] == tables[1] and tables[0].startswith("This is a toy size") and "| not evaluated |" in tables[0]
