"""Damaged checkpoints and tables of an interrupted run, which is then resumed: with the same weights, or not at all."""

import functools
import io
import json
import pathlib
import shutil
import zipfile

import damage
import h5py
import numpy as np

from attack import command, kind, prepared


@functools.cache
def interrupted() -> pathlib.Path:
    """The run as a kill before its last step would leave it: with the checkpoint and the row of the first of two."""
    path = prepared.folder() / "interrupted"
    shutil.copytree(prepared.run(), path)
    for name in ("saved_model", "model.keras", "convergence.png", "checkpoints/step_00000002.npz"):
        shutil.rmtree(path / name) if (path / name).is_dir() else (path / name).unlink()
    record = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(record | {"status": "running"}))
    rows = (path / "metrics.csv").read_text().splitlines(keepends=True)
    (path / "metrics.csv").write_text("".join(rows[:2]))
    return path


def weights(run_dir) -> list[np.ndarray]:
    """The weights in a run's model.keras."""
    found = []
    with (
        zipfile.ZipFile(run_dir / "model.keras") as archive,
        h5py.File(io.BytesIO(archive.read("model.weights.h5"))) as file,
    ):
        file.visititems(lambda _, item: found.append(item[()]) if isinstance(item, h5py.Dataset) else None)
    return found


def resumed(folder) -> None:
    """Goes on with the run in folder/run; fails where it ends with other weights than an uninterrupted run."""
    flags = [f"--run_dir={folder / 'run'}", *prepared.TINY]
    ended = command.run(folder, "train", *flags, memory=prepared.MEMORY)
    prepared.must_be_safe(ended, folder)
    if ended.code == 0:
        for found, expected in zip(weights(folder / "run"), weights(prepared.run()), strict=True):
            np.testing.assert_array_equal(found, expected)


def copied(folder) -> pathlib.Path:
    shutil.copytree(interrupted(), folder / "run")
    return folder / "run" / "checkpoints" / "step_00000001.npz"


@kind("checkpoint: bytes changed, or no file, then resumed")
def damaged_checkpoint(random, folder):
    path = copied(folder)
    if random.random() < 0.5:
        path.write_bytes(damage.flipped(random, path.read_bytes()))
    else:
        prepared.in_its_place(random, path)
    resumed(folder)
