"""Damaged checkpoints and tables of an interrupted run, which is then resumed: with the same weights, or not at all."""

import functools
import io
import json
import os
import pathlib
import shutil
import zipfile

import damage
import h5py
import numpy as np
from damage import npy, with_header, write

from attack import command, kind, prepared
from attack.prepared import pick


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


def resumed(folder) -> command.Ended:
    """Goes on with the run in folder/run; fails where it ends with other weights than an uninterrupted run."""
    flags = [f"--run_dir={folder / 'run'}", *prepared.TINY]
    ended = command.run(folder, "train", *flags, memory=prepared.MEMORY)
    prepared.must_be_safe(ended, folder)
    if ended.code == 0:
        for found, expected in zip(weights(folder / "run"), weights(prepared.run()), strict=True):
            np.testing.assert_array_equal(found, expected)
    return ended


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


@kind("checkpoint: members changed, shadowed, renamed, then resumed")
def changed_checkpoint(random, folder):
    path = copied(folder)
    with zipfile.ZipFile(path) as archive:
        found = [(name, archive.read(name)) for name in archive.namelist()]
    index = int(random.integers(len(found)))
    name, content = found[index]
    array = np.load(io.BytesIO(content))
    other = [
        npy(array.astype("f8")),
        npy(array.astype("f2")) if array.dtype == "f4" else b"",
        npy(array[None]),
        npy(array.astype("S9")),
        with_header(pick(random, damage.HEADERS), bytes(8)),
        damage.declared((10**12,), "<f4"),
        b"",
        content[:-1],
        content + b"x",
    ]
    case = random.integers(5)
    if case == 0 and array.dtype == np.float32:
        found[index] = (name, pick(random, other))
    elif case == 1:
        found.insert(int(random.integers(len(found) + 1)), (name, npy(array + 1)))
    elif case == 2:
        found.append((name.removesuffix(".npy"), npy(array + 1)))
    elif case == 3:
        del found[index]
    else:
        found[index] = (pick(random, ["x.npy", "../" + name, name + ".npy", name.upper(), "variable/x.npy"]), content)
    write(path, found)
    ended = resumed(folder)
    assert ended.code == 1 or case == 0 and array.ndim == 0


@kind("checkpoint: others beside it, in its folder's place, its run's files, then resumed")
def beside_checkpoints(random, folder):
    path = copied(folder)
    case, folder_of_all = random.integers(6), path.parent
    if case == 0:
        shutil.copy(
            path,
            folder_of_all
            / pick(random, ["step_00000002.npz", "step_00000009.npz", "step_0000000001.npz", "step_9999999999.npz"]),
        )
    elif case == 1:
        for step in range(2, 5):
            prepared.in_its_place(random, folder_of_all / f"step_{step:08d}.npz")
    elif case == 2:  # all that it has kept is somebody else's
        shutil.move(folder_of_all, folder / "others")
        os.symlink(folder / "others", folder_of_all)
        (folder / "others" / "step_00000000.npz").write_text("theirs")
        (folder / "others" / ".tmp1_x").write_text("theirs")
    elif case == 3:
        for events in (folder / "run").glob("events*"):
            events.write_bytes(damage.flipped(random, events.read_bytes()))
    elif case == 4:
        events = pick(random, sorted((folder / "run").glob("events*")))
        prepared.in_its_place(random, events)
    else:
        prepared.in_its_place(
            random,
            folder / "run" / pick(random, ["metrics.csv", "config.json", ".lock", "convergence.png", "model.keras"]),
        )
    resumed(folder)
    if case == 2:
        assert [(folder / "others" / name).read_text() for name in ("step_00000000.npz", ".tmp1_x")] == ["theirs"] * 2
        assert sorted(os.listdir(folder / "others")) == [".tmp1_x", "step_00000000.npz", "step_00000001.npz"]
