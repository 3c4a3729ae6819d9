"""Hostile model.keras files, to evaluate."""

import io
import json
import shutil
import zipfile

import damage
import h5py
import numpy as np
from damage import WEIGHTS, write

from attack import command, kind, prepared
from attack.prepared import pick


def members() -> dict[str, bytes]:
    return damage.members(prepared.run() / "model.keras")


def evaluated(random, folder) -> command.Ended:
    """Evaluates model.keras in a copy of a run."""
    flags = ["--max_examples=4", f"--saved_model={folder / 'run' / pick(random, ['', 'model.keras', 'saved_model'])}"]
    ended = command.run(folder, "evaluate", *flags, memory=prepared.MEMORY)
    prepared.must_be_safe(ended, folder)
    return ended


def copied(folder) -> None:
    shutil.copytree(prepared.run(), folder / "run")


@kind("model.keras: a value of its description changed")
def description(random, folder):
    copied(folder)
    found = members()
    config = json.loads(found["config.json"])
    for _ in range(random.integers(1, 4)):
        if isinstance(config, dict):
            config = prepared.with_hostile_value(random, config)
    found["config.json"] = json.dumps(config).encode()
    write(folder / "run" / "model.keras", found.items())
    evaluated(random, folder)


@kind("model.keras: the file of its weights changed")
def weights(random, folder):
    copied(folder)
    found, stream = members(), io.BytesIO(members()[WEIGHTS])
    with h5py.File(stream, "r+") as file:
        names = []
        file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
        for _ in range(random.integers(1, 3)):
            name = pick(random, names)
            if name not in file:
                continue
            try:
                array = np.asarray(file[name][() if file[name].size < 10**6 else slice(1)])
            except (AttributeError, KeyError, OSError, RuntimeError):
                continue  # a link that was put there leads nowhere
            array = array if array.dtype.kind in "fiu" else np.zeros(array.shape, np.float32)  # by an earlier case
            del file[name]
            case = random.integers(7)  # links to elsewhere are in the table
            outside = str(folder / "run" / "model.keras")
            if case == 0:
                file.create_dataset(name, (400_000, 1000), "f4", chunks=(1, 10), fillvalue=1)
            elif case == 1:
                shapes = [array[..., None], array.ravel(), array[:0], np.zeros((2, 2)), array * np.nan]
                file[name] = pick(random, shapes)
            elif case == 2:
                types = [array.astype("S5"), np.ones(array.shape, np.int8), 1j * np.ones(array.shape), "text"]
                file[name] = pick(random, types)
            elif case == 3:
                file.create_dataset(name, array.shape, "f4", chunks=True, compression="gzip", data=array)
            elif case == 4:
                layout = h5py.VirtualLayout(array.shape, "f4")
                layout[...] = h5py.VirtualSource(outside, "x", array.shape)
                file.create_virtual_dataset(name, layout)
            elif case == 5:
                secret = (str(prepared.folder() / "secret.txt"), 0, array.nbytes)
                file.create_dataset(name, array.shape, "f4", external=[secret])
    content = stream.getvalue()
    if random.random() < 0.5:
        content = damage.flipped(random, content)
    found[WEIGHTS] = content
    write(folder / "run" / "model.keras", found.items())
    evaluated(random, folder)


@kind("model.keras: damages of the table (tests/damage.py), bytes changed")
def of_the_table(random, folder):
    copied(folder)
    prepared.damaged(random, folder / "run" / "model.keras", damage.KERAS)
    evaluated(random, folder)
    assert not (folder.parent / "evil").exists() and not (folder / "evil").exists()


@kind("model.keras: members left out, empty, moved or packed otherwise")
def archive(random, folder):
    copied(folder)
    path, found = folder / "run" / "model.keras", members()
    name, case = pick(random, list(found)), random.integers(3)
    if case == 0:
        del found[name]
    elif case == 1:
        found[name] = pick(random, [b"", b"{}", b"[" * 10**6, b"\x89HDF\r\n\x1a\n" + bytes(500)])
    else:
        found[pick(random, ["/evil", "config.json/x", *found])] = found[name]
    write(path, found.items(), pick(random, [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]))
    evaluated(random, folder)
