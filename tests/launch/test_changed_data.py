"""A study, or a spectrum, that goes on is on the data on which it began: else its tables would mix two data sets."""

import dataclasses

import numpy as np
import pytest
from begun import edit

from identity_matters.data import loading
from identity_matters.data.arrays import examples_summary, mnist_sample
from launch import trained_run

FIGURE_5 = ("shortcut_study", "--figure=5", "--depths=2,3", "--num_runs=1", "--examples=300")
SPECTRUM = ("hessian_spectrum", "--examples=20", "--order=2", "--num_vectors=2", "--num_eigenvalues=1")


@pytest.fixture(scope="module")
def digits():
    kept = mnist_sample()
    train = {"train_images": kept.train_images[:300, ::2, ::2], "train_labels": kept.train_labels[:300]}
    return dataclasses.replace(kept, **train, test_images=kept.test_images[:, ::2, ::2])


def cut_short(run_dir, num_lines):
    """Leaves the table as a kill after its first lines would; returns it."""
    table = run_dir / "results.csv"
    table.write_text("".join(table.read_text().splitlines(keepends=True)[:num_lines]))
    edit(run_dir, status="running")
    return table.read_text()


def test_a_study_does_not_go_on_with_other_labels_or_other_images(launch, monkeypatch, tmp_path, digits):
    command = (*FIGURE_5, f"--run_dir={tmp_path}")
    monkeypatch.setattr(loading, "load", lambda config: digits)
    assert launch(*command)[0] == 0
    kept = cut_short(tmp_path, 5)
    others = {"train_labels": 9 - digits.train_labels, "train_images": 255 - digits.train_images}
    for name, array in others.items():
        monkeypatch.setattr(loading, "load", lambda config: dataclasses.replace(digits, **{name: array}))  # noqa: B023
        code, out, err = launch(*command)
        assert code == 1 and not out and err.count("\n") == 1
        assert f"{tmp_path} holds a run on other data: '300 training images, 14x14x1, images and labels " in err
        assert (tmp_path / "results.csv").read_text() == kept
    monkeypatch.setattr(loading, "load", lambda config: digits)
    assert launch(*command)[0] == 0 and len((tmp_path / "results.csv").read_text()) > len(kept)


def test_a_spectrum_does_not_go_on_with_other_labels(launch, monkeypatch, tiny_run, tmp_path):
    command = (*SPECTRUM, f"--saved_run={tiny_run}", f"--run_dir={tmp_path}")
    assert launch(*command)[0] == 0
    kept, real = cut_short(tmp_path, 3), trained_run.raw_batches
    monkeypatch.setattr(trained_run, "raw_batches", lambda *args: ((x, 9 - labels) for x, labels in real(*args)))
    code, out, err = launch(*command)
    assert code == 1 and not out and "holds a run on other data: '20 training images, 28x28x1" in err.splitlines()[-1]
    assert (tmp_path / "results.csv").read_text() == kept
    monkeypatch.setattr(trained_run, "raw_batches", real)
    assert launch(*command)[0] == 0 and len((tmp_path / "results.csv").read_text()) > len(kept)


def test_resized_images_count_by_their_labels_alone():
    images, labels = np.zeros((2, 3, 3, 1), np.uint8), np.array([0, 1])
    for are_resized in (False, True):
        first, second = (examples_summary(pixels, labels, are_resized) for pixels in (images, images + np.uint8(1)))
        assert (first == second) == are_resized
        assert first != examples_summary(images, labels[::-1], are_resized)
