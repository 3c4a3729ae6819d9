"""A study or a spectrum resumes only on its original data: otherwise its tables would mix two data sets."""

import shutil

import numpy as np
import pytest
from begun import edit
from tiny_studies import FLAGS, load_three_digits

from identity_matters.data.arrays import examples_summary
from launch import shortcut_study, trained_run


def cut_short(run_dir, copy, num_lines):
    """Copies a run as a kill after the first jobs, of that many lines, would leave it; returns its table."""
    shutil.copytree(run_dir, copy)
    table = copy / "results.csv"
    table.write_text("".join(table.read_text().splitlines(keepends=True)[:num_lines]))
    edit(copy, status="running")
    return table.read_text()


def test_a_study_does_not_resume_with_other_labels_or_other_images(launch, monkeypatch, tiny_study, tmp_path):
    run_dir = tmp_path / "study"
    kept, command = cut_short(tiny_study, run_dir, 5), ("shortcut_study", *FLAGS, "--figure=5", f"--run_dir={run_dir}")
    changes = {"labels": lambda labels: 2 - labels, "images": lambda images: 255 - images}
    for name, change in changes.items():

        def changed(config):
            digits = load_three_digits(config)
            return digits._replace(**{name: change(getattr(digits, name))})  # noqa: B023

        monkeypatch.setattr(shortcut_study, "load_images", changed)
        code, out, err = launch(*command)
        assert code == 1 and not out
        assert f"{run_dir} holds a run on other data" in err.splitlines()[-1]
        assert (run_dir / "results.csv").read_text() == kept


@pytest.mark.slow
def test_a_spectrum_does_not_resume_with_other_labels(launch, monkeypatch, tiny_run, tiny_spectrum, tmp_path):
    run_dir = tmp_path / "spectrum"
    kept, real = cut_short(tiny_spectrum, run_dir, 21), trained_run.first_examples
    command = ["hessian_spectrum", f"--saved_run={tiny_run}", f"--run_dir={run_dir}"]
    command += "--examples=60 --batch_size=30 --order=20 --num_vectors=2".split()

    def changed(*args):
        images, labels, _ = real(*args)
        return images, 9 - labels, examples_summary(images, 9 - labels)

    monkeypatch.setattr(trained_run, "first_examples", changed)
    code, out, err = launch(*command)
    assert code == 1 and not out and "holds a run on other data" in err.splitlines()[-1]
    assert (run_dir / "results.csv").read_text() == kept


def test_resized_images_count_only_by_their_labels():
    images, labels = np.zeros((2, 3, 3, 1), np.uint8), np.array([0, 1])
    for are_resized in (False, True):
        first, second = (examples_summary(pixels, labels, are_resized) for pixels in (images, images + np.uint8(1)))
        assert (first == second) == are_resized
        assert first != examples_summary(images, labels[::-1], are_resized)
