"""Nothing is written, emptied or deleted through a link that somebody has put into a run directory or beside a file."""

import os
import shutil
import stat

import numpy as np
import pytest
from begun import edit
from refusals import refused
from tiny_studies import run_study

from identity_matters import training
from identity_matters.config import TrainConfig
from identity_matters.runs import files
from identity_matters.runs.directory import RunDirectory
from identity_matters.runs.files import replacing, temporary_folder


@pytest.fixture
def precious(tmp_path):
    """A folder of somebody else, with files of the names that a run deletes; it must stay as it is."""
    folder = tmp_path / "precious"
    folder.mkdir()
    names = ["mine", ".tmp7_mine", *(f"step_0000000{step}.npz" for step in range(5)), "events.out.tfevents.1"]
    for name in names:
        (folder / name).write_text("mine")
    yield folder
    assert sorted(os.listdir(folder)) == sorted(names)
    assert {path.read_text() for path in folder.iterdir()} == {"mine"}


@pytest.mark.parametrize("name", [".tmp{}_file", ".tmp{}_file_old", "file"])
def test_a_link_of_the_name_that_a_temporary_file_had_is_not_followed(tmp_path, precious, name):
    (tmp_path / name.format(os.getpid())).symlink_to(precious / "mine")
    files.write_text(str(tmp_path / "file"), "new")
    assert (tmp_path / "file").read_text() == "new" and not (tmp_path / "file").is_symlink()


def test_temporary_names_cannot_be_guessed_and_the_folder_is_only_for_this_user(tmp_path):
    seen = set()
    for _ in range(20):
        with temporary_folder(str(tmp_path)) as folder:
            assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
            seen.add(folder)
    assert len(seen) == 20 and os.listdir(tmp_path) == []


@pytest.mark.parametrize("is_folder", [False, True])
def test_the_link_is_replaced_and_not_its_target(tmp_path, precious, is_folder):
    (tmp_path / "result").symlink_to(precious)
    with replacing(str(tmp_path / "result")) as temporary:
        if is_folder:
            os.mkdir(temporary)
        else:
            open(temporary, "w").close()
    assert not (tmp_path / "result").is_symlink() and sorted(os.listdir(tmp_path)) == ["precious", "result"]


def test_the_mode_of_a_file_is_that_of_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        files.write_text(str(tmp_path / "file"), "")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


def test_a_run_whose_checkpoints_are_a_link_is_rejected_and_the_files_there_stay(
    tmp_path, precious, tiny_config, tiny_run
):
    run_dir = tmp_path / "run"
    shutil.copytree(tiny_run, run_dir, ignore=shutil.ignore_patterns("checkpoints", "model.keras"))
    (run_dir / "checkpoints").symlink_to(precious)
    message = f"{run_dir}/checkpoints is a link, and runs do not write through links; put the folder itself there"
    assert refused(training.train, tiny_config, run_dir) == message
    (run_dir / "checkpoints").unlink()
    shutil.copytree(tiny_run / "checkpoints", run_dir / "checkpoints")
    training.train(tiny_config, run_dir)  # the lock is free again


def test_a_link_that_comes_while_a_run_trains_is_not_followed_either(tmp_path, precious):
    with RunDirectory(str(tmp_path / "run"), TrainConfig()) as run:
        (tmp_path / "run" / "checkpoints").symlink_to(precious)
        assert "is a link" in refused(run.file, "checkpoints") and "is a link" in refused(run.file, "checkpoints/step")


def test_event_files_of_others_are_not_deleted_through_the_folder_of_learning_rates(tmp_path, precious, tiny_study):
    shutil.copytree(tiny_study, tmp_path / "study")
    (tmp_path / "study" / "learning_rates").mkdir()
    (tmp_path / "study" / "learning_rates" / "a").symlink_to(precious)
    edit(tmp_path / "study", event_files=["learning_rates/a/events.out.tfevents.1"])
    assert "is a link" in refused(run_study, tmp_path / "study", "5")


def test_arrays_and_figures_are_written_through_the_same_door(tmp_path, precious):
    from matplotlib.figure import Figure

    from identity_matters.runs import checkpoint
    from identity_matters.runs.figures import save_figures

    for name in ("drawn.png", "step_00000001.npz"):
        (tmp_path / name).symlink_to(precious / "mine")
    save_figures(lambda: {"drawn": Figure()}, str(tmp_path))
    checkpoint.save(str(tmp_path), {"step": np.int64(1)})
    assert not any((tmp_path / name).is_symlink() for name in ("drawn.png", "step_00000001.npz"))
