"""Hostile model.keras files, to evaluate."""

import io
import json
import shutil
import zipfile

import damage
import h5py
import numpy as np
from damage import WEIGHTS, layers, write

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


def set_number(random, config) -> None:
    """Changes a number of a layer: units, filters, a pool, a padding, the shape of images."""
    number = pick(random, [0, -1, 2, 5, 2**10, 2**16, 4 * 10**8, 2**31, 2**63, 1.5, None, [3, 3], [2**20, 2**20]])
    layer = pick(random, layers(config))["config"]
    numeric = [name for name, value in layer.items() if isinstance(value, int | list | float) and name != "trainable"]
    name = pick(random, [*numeric, "units", "filters", "groups", "lora_rank"])
    if name == "batch_shape":
        number = [
            None,
            *pick(random, [[28, 28, 3], [10**6, 10**6, 1], [8192, 8192, 1], [None, None, 1], [0, 0, 0], [28, 28]]),
        ]
    layer[name] = number


def set_class(random, config) -> None:
    """Changes a class of a layer, an initialiser, a regulariser, a policy."""
    part = pick(random, layers(config))
    inner = [value for value in part["config"].values() if isinstance(value, dict) and "class_name" in value]
    part = pick(random, [part, *inner])
    part["class_name"] = pick(
        random, ["Lambda", "TFSMLayer", "Dense", "Functional", "Pad", "Add", "__lambda__", "function", "Evil"]
    )
    part["module"] = pick(random, [part.get("module"), "os", "keras.layers", "builtins", "launch.plot", None])
    part["registered_name"] = pick(random, [None, "system", "Custom>Evil", "TFSMLayer"])


def add_layer(random, config) -> None:
    """Adds a layer of another kind to the end, or one again."""
    last, again = layers(config)[-1], json.loads(json.dumps(pick(random, layers(config))))
    kinds = {
        "Lambda": {
            "function": {"class_name": "__lambda__", "config": {"code": "x", "defaults": None, "closure": None}}
        },
        "TFSMLayer": {"filepath": str(prepared.run() / "saved_model")},
        "Functional": json.loads(json.dumps(config["config"])),
        "Dropout": {"rate": 0.5},
        "Pad": {"pad_width": [[0, 0], [10**5, 10**5], [10**5, 10**5], [0, 0]]},
        "ZeroPadding2D": {"padding": 10**6},
    }
    name = pick(random, list(kinds))
    added = {"class_name": name, "module": "keras.layers", "name": "new", "registered_name": None}
    added |= {"config": {"name": "new"} | kinds[name], "inbound_nodes": last["inbound_nodes"]}
    where = random.integers(len(layers(config)) + 1)
    layers(config).insert(int(where), pick(random, [added, again]))


def nest(random, config) -> None:
    depth = int(pick(random, [10, 300, 900, 5000]))
    name = pick(random, ["kernel_regularizer", "kernel_initializer", "dtype", "x"])
    pick(random, layers(config))["config"][name] = json.loads("[" * 900 + "]" * 900) if depth == 900 else "[" * depth


@kind("model.keras: its description changed")
def description(random, folder):
    copied(folder)
    found = members()
    config = json.loads(found["config.json"])
    for _ in range(random.integers(1, 3)):
        change = pick(random, [set_number, set_number, set_class, add_layer, nest, None])
        if change is None:
            config = prepared.with_hostile_value(random, config)
        elif isinstance(config, dict) and isinstance(config.get("config"), dict):
            try:
                change(random, config)
            except (AttributeError, KeyError, TypeError, IndexError, ValueError):
                break  # it is changed beyond that already
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
