"""One table of damaged files: how each is made, and words that must be said of it.

identity_matters/test_damaged_files.py makes each once and reads it. A maker damages a whole file, or the folder of a
TFDS set, in its place.
"""

import io
import json
import os
import pathlib
import shutil
import socket
import struct
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterable

import h5py
import numpy as np
from tensorboardX.crc32c import crc32c

Maker = Callable[[pathlib.Path], None]
Table = dict[str, tuple]  # name -> (maker, word, …)
WEIGHTS = "model.weights.h5"


# What is no file, in the place of one.


def socket_file(path: pathlib.Path) -> None:
    place = tempfile.mkdtemp(dir="/tmp")  # the path of a socket is short
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(f"{place}/s")
    shutil.move(f"{place}/s", path)
    os.rmdir(place)


NO_FILES: dict[str, Maker] = {
    "pipe": os.mkfifo,
    "socket": socket_file,
    "folder": os.mkdir,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "link to nothing": lambda path: path.symlink_to("/none"),
    "link to itself": lambda path: path.symlink_to(path),
}


def replaced_by(kind: str) -> Maker:
    def make(path: pathlib.Path) -> None:
        path.unlink(missing_ok=True)
        NO_FILES[kind](path)

    return make


# Archives: .npz and .keras.


def npy(array) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def with_header(header: bytes | dict, values: bytes = b"", version=(1, 0)) -> bytes:
    """An array in NumPy's format whose header is any text, or describes any array."""
    header = header if isinstance(header, bytes) else f"{header}\n".encode()
    size = struct.pack("<H" if version == (1, 0) else "<I", len(header))
    return b"\x93NUMPY" + bytes(version) + size + header + values


def declared(shape: tuple, descr="|u1") -> bytes:
    """An array that declares a shape, without values."""
    return with_header({"descr": descr, "fortran_order": False, "shape": shape})


def members(path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write(path, members: Iterable[tuple[str, bytes]], compression=zipfile.ZIP_STORED) -> str:
    """Writes the members (name, content) of an archive; a name may come twice."""
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", compression) as archive:
        warnings.simplefilter("ignore")
        for name, content in members:
            archive.writestr(name, content)
    return str(path)


def with_member(name: str, content: bytes, compression=zipfile.ZIP_DEFLATED) -> Maker:
    return lambda path: write(path, (members(path) | {name: content}).items(), compression)


def with_another(name: str, content: bytes) -> Maker:
    return lambda path: write(path, [*members(path).items(), (name, content)])


def arrays(**changes) -> dict[str, np.ndarray]:
    """Four arrays such as --npz takes."""
    rng = np.random.default_rng(0)
    return {
        "train_images": rng.integers(0, 256, (6, 8, 4, 3), np.uint8),
        "train_labels": np.array([0, 1, 2, 0, 1, 2]),
        "test_images": rng.integers(0, 256, (5, 8, 4, 3), np.uint8),
        "test_labels": np.array([2, 1, 0, 1, 2]),
    } | changes


def with_arrays(**changes) -> Maker:
    """An .npz file with other arrays, or None for those that it lacks."""
    given = {name: array for name, array in arrays(**changes).items() if array is not None}
    return lambda path: np.savez(path, **given)


def encrypt(path: pathlib.Path) -> None:
    content = bytearray(path.read_bytes())
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):  # general purpose flags, in both headers
        content[content.index(signature) + offset] |= 1
    path.write_bytes(content)


def in_the_middle(change: Callable[[bytes], bytes]) -> Maker:
    """Changes 60 bytes, of the compressed values of the first array."""

    def make(path: pathlib.Path) -> None:
        write(path, members(path).items(), zipfile.ZIP_DEFLATED)
        whole = path.read_bytes()
        path.write_bytes(whole[:100] + change(whole[100:160]) + whole[160:])

    return make


HEADERS = [
    b"{'descr': ('<f4',), 'fortran_order': False, 'shape': (6, 8, 8)}\n",  # an IndexError in NumPy
    b"{'descr': '''<f4, 'fortran_order': False}\n",  # a tokenize.TokenError
    b"(" * 5000, b"[" * 9999, b"-" * 9000 + b"1", b"9" * 9000, b"\xff" * 64, b"", b"{**{}}\n", b"{'shape': (1,)}\n",
    b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b"9" * 4000 + b",)}",
]  # fmt: skip
EYE = np.broadcast_to(np.eye(8, 4, dtype=int)[..., None], (6, 8, 4, 3))
IMAGES = "train_images.npy"
ONCE, NO_NPZ = "only arrays, NAME.npy, each of them once", " as an .npz file: "
NPZ: Table = {
    "an array missing": (with_arrays(test_labels=None), "lacks test_labels", "test_images", "train_labels int64 [6]"),
    "pixels above 255": (
        with_arrays(train_images=510 * EYE), "train_images", "0–255", "510", "images = ((images - 0) / 510).clip(0, 1)"
    ),
    "pixels below 0": (with_arrays(test_images=np.full((5, 8, 4, 3), -1)), "test_images", "0–255", "-1"),
    "half a label": (with_arrays(train_labels=np.array([0, 1, 0.5, 0, 1, 2])), "train_labels", "whole numbers", "0.5"),
    "a huge label": (with_arrays(train_labels=np.array([0, 1, 10**7, 0, 1, 2])), "train_labels", "0–99999", "10000000"),
    "a label below 0": (with_arrays(train_labels=np.array([0, 1, -1, 0, 1, 2])), "train", "labels", "-1"),
    "a label of no class": (with_arrays(test_labels=np.array([0, 1, 2, 3, 0])), "test", "0–2", "3"),
    "fewer labels": (with_arrays(train_labels=np.arange(5)), "6 images", "(5,)"),
    "one class": (with_arrays(train_labels=np.zeros(6, int), test_labels=np.zeros(5, int)), "only one class"),
    "two shapes": (with_arrays(test_images=np.zeros((5, 4, 8, 3), int)), "differ in shape", "(8, 4, 3)", "(4, 8, 3)"),
    "no images": (with_arrays(train_images=EYE[:0], train_labels=np.zeros(0, int)), "not empty", "(0, 8, 4, 3)"),
    "objects": (with_arrays(train_labels=np.array([0, 1, "a", 0, 1, 2], object)), "train_labels", "numbers", "object"),
    "names as labels": (with_arrays(train_labels=np.array(list("abcabc"))), "train_labels", "<U1", "names = "),
    "missing": (os.unlink, ),
    "junk": (lambda path: path.write_bytes(b"junk" * 100), ),
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]), ),
    "bytes changed": (in_the_middle(lambda part: bytes(byte ^ 255 for byte in part)), NO_NPZ),
    "another archive": (lambda path: write(path, [("readme.txt", b"hello")]), ),
    "encrypted": (encrypt, "encrypted"),
    **{name: (replaced_by(name), "not a regular file") for name in ("pipe", "folder", "device")},
    **{name: (replaced_by(name), NO_NPZ) for name in ("socket", "link to nothing", "link to itself")},
    **{  # numpy.load takes the first of these for train_images, while checks and digest are of train_images.npy
        f"{name} beside {IMAGES}": (with_another(name, npy(255 - arrays()["train_images"])), ONCE)
        for name in ("train_images", IMAGES, "train_images.npy.npy/", "../train_images")
    },
    **{
        f"header {i} of version {version[0]}": (with_member(IMAGES, with_header(header, bytes(1000), version)), NO_NPZ)
        for version in [(1, 0), (2, 0), (3, 0), (9, 9)] for i, header in enumerate(HEADERS)
    },
    "a header of 2 GB": (
        with_member(IMAGES, b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**31 - 1) + bytes(5 * 10**7)), NO_NPZ
    ),
    "more than it declares": (with_member(IMAGES, npy(arrays()["train_images"]) + bytes(5 * 10**7)), NO_NPZ),
    "a shape of 96 TB": (with_member(IMAGES, declared((10**12, 8, 4, 3))), "fit in memory"),
    "a shape of 10^40": (with_member(IMAGES, declared((10**40,))), "fit in memory"),
}  # fmt: skip


# Networks: model.keras.


def described(change, weights=None) -> Maker:
    """Changes the description of the network, or replaces it by what `change` returns, and perhaps its weights."""

    def make(path: pathlib.Path) -> None:
        found = members(path)
        config = json.loads(found["config.json"])
        found["config.json"] = json.dumps(change(config) or config).encode()
        if weights:
            stream = io.BytesIO(found[WEIGHTS])
            with h5py.File(stream, "r+") as file:
                weights(file)
            found[WEIGHTS] = stream.getvalue()
        write(path, found.items())

    return make


def layers(config) -> list:
    return config["config"]["layers"]


def set_units(number) -> Callable:
    return lambda config: layers(config)[-1]["config"].update(units=number)


def first_convolution(config) -> dict:
    return next(layer for layer in layers(config) if layer["class_name"] == "Conv2D")


def last_weights(change) -> Maker:
    """Replaces the last layer's weights: change(file, name) writes them anew."""

    def make(file) -> None:
        del file["layers/dense/vars/0"]
        change(file, "layers/dense/vars/0")

    return described(lambda config: None, make)


def fill(file) -> None:
    """The last layer's weights as a declaration alone: 12 GB that HDF5 would make up."""
    del file["layers/dense/vars/0"]
    file["layers/dense/vars"].create_dataset("0", (8, 400_000_000), "f4", chunks=(1, 1000), fillvalue=1)


def add_tfsm_layer(config) -> None:
    layer = {"module": "keras.layers", "class_name": "TFSMLayer", "config": {"name": "x", "filepath": "/x"}}
    layers(config).append(layer | {"name": "x", "inbound_nodes": []})


def set_activation(config) -> None:
    made = {"module": "keras.layers", "class_name": "function", "config": "TFSMLayer", "registered_name": "TFSMLayer"}
    layers(config)[1]["config"]["activation"] = made


FOREIGN = "which no network of this project has"
DAMAGED, ONE_EACH = "it is damaged, or not a network of this project", "each once, and no more"
EVIL = {"module": "evil", "class_name": "Evil", "registered_name": "Evil"}
ZEROS = {"class_name": "Zeros", "config": {"x": 1}}
KERAS: Table = {
    "a huge dense layer": (described(set_units(400_000_000)), "(8, 400000000)"),
    "a huge convolution": (described(lambda c: first_convolution(c)["config"].update(filters=10**9)), "needs weights"),
    "a huge layer with weights to fit": (described(set_units(400_000_000), fill), "a weight holds less"),
    "many layers": (described(lambda c: layers(c).extend([first_convolution(c)] * 3)), "needs weights"),
    "huge images": (described(lambda c: layers(c)[0]["config"].update(batch_shape=[None, 10**6, 10**6, 1])), "output"),
    "a long text": (with_member("config.json", b"[" * 10**7, zipfile.ZIP_STORED), "more than"),
    "a bomb": (with_member(WEIGHTS, bytes(10**8)), "more than"),
    "a layer left out": (described(lambda c: layers(c).pop(3) and None), DAMAGED),
    "three strides": (described(lambda c: layers(c)[2]["config"].update(strides=[7, 7, 7])), DAMAGED),
    "an unknown setting": (described(lambda c: layers(c)[-1]["config"].update(kernel_initializer=ZEROS)), DAMAGED),
    "no input": (described(lambda c: layers(c)[-1].update(inbound_nodes=[])), DAMAGED),
    "a member twice": (with_another("config.json", b"{}"), ONE_EACH),
    **{f"{name} in it": (with_another(name, b"{}"), ONE_EACH) for name in ("assets/x", "../../evil", "x.weights.npz")},
    "a soft link": (last_weights(lambda file, name: file.__setitem__(name, h5py.SoftLink("/layers"))), ),
    "an outer link": (last_weights(lambda file, name: file.__setitem__(name, h5py.ExternalLink("/dev/zero", "/x"))), ),
    "weights in another file": (
        last_weights(lambda file, name: file.create_dataset(name, (8, 10), "f4", external=[("/dev/zero", 0, 320)])),
    ),
    "a NaN": (last_weights(lambda file, name: file.__setitem__(name, np.full((8, 10), np.nan, "f4"))), "NaN"),
    "TFSMLayer": (described(add_tfsm_layer), FOREIGN),
    "TFSMLayer's constructor": (described(set_activation), FOREIGN),
    "Lambda": (described(lambda c: layers(c)[1].update(class_name="Lambda")), f"it holds ['Lambda'], {FOREIGN}"),
    "a foreign module": (described(lambda c: layers(c)[1].update(EVIL)), FOREIGN),
    "deep": (described(lambda c: json.loads("[" * 900 + "]" * 900)), ),
    "junk": (lambda path: path.write_bytes(b"junk"), ),
    **{name: (replaced_by(name), ) for name in NO_FILES},
}  # fmt: skip


# Sets in the files of TFDS: their folder.


def edited(name: str, change) -> Maker:
    """Changes a JSON file of the folder."""

    def make(folder: pathlib.Path) -> None:
        content = json.loads((folder / name).read_text())
        change(content)
        (folder / name).write_text(json.dumps(content))

    return make


def each_split(key, value) -> Maker:
    return edited("dataset_info.json", lambda info: [split.update({key: value}) for split in info["splits"]])


def keys(change) -> Maker:
    return edited("dataset_info.json", lambda info: change(info["supervisedKeys"]["tuple"]["items"]))


def num_classes(number) -> Maker:
    def make(folder: pathlib.Path) -> None:
        (folder / "label.labels.txt").unlink(missing_ok=True)
        edited("features.json", lambda f: f["featuresDict"]["features"]["label"]["classLabel"].update(number))(folder)

    number = {"numClasses": str(number)}
    return make


def linked(name: str, kind: str) -> Maker:
    """A pipe, a link to a device, or a link to a file or a folder outside, in the place of a file of the set."""

    def make(folder: pathlib.Path) -> None:
        outside = folder.parents[2] / "outside"
        outside.mkdir(exist_ok=True)
        (outside / "file").write_text("{}")
        path = folder / name if kind != "folder link" else folder.parent / name
        path.unlink(missing_ok=True)
        links = {"device": "/dev/zero", "link": outside / "file", "folder link": outside}
        os.mkfifo(path) if kind == "pipe" else path.symlink_to(links[kind])

    return make


def record_of_length(length: int) -> bytes:
    """The first bytes of a TFRecord whose length has the right checksum."""
    size = struct.pack("<Q", length)
    crc = crc32c(size)
    return size + struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF) + b"x" * 100


def with_record(length: int) -> Maker:
    def make(folder: pathlib.Path) -> None:
        [path] = folder.glob("*-train.tfrecord*")
        path.write_bytes(path.read_bytes() + record_of_length(length))

    return make


def cut_by_two_bytes(folder: pathlib.Path) -> None:
    [path] = folder.glob("*-train.tfrecord*")
    os.truncate(path, path.stat().st_size - 2)


def large_names(folder: pathlib.Path) -> None:
    with open(folder / "label.labels.txt", "w") as file:
        file.truncate(2**40)


TEMPLATE, NO_SPLIT = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}", "its split is not as TFDS makes them"
FILES = ["dataset_info.json", "features.json", "label.labels.txt", "x"]
FILES += ["identity_tiny_jpeg-train.tfrecord-00000-of-00001"]
TFDS: Table = {
    "200,000 shards": (each_split("shardLengths", ["1"] * 200_000), NO_SPLIT),
    "a negative shard": (each_split("shardLengths", ["-7", "38"]), NO_SPLIT),
    "a huge shard": (each_split("shardLengths", [str(2**62)]), NO_SPLIT),
    "files outside": (each_split("filepathTemplate", f"../../{TEMPLATE}"), NO_SPLIT),
    "an attribute": (each_split("filepathTemplate", "{0.__class__}"), NO_SPLIT),
    "a wide number": (each_split("filepathTemplate", "{SHARD_INDEX:>9999999999}"), NO_SPLIT),
    "another name": (
        edited("dataset_info.json", lambda info: info.update(name="../../identity_tiny_jpeg")), NO_SPLIT
    ),
    "another split": (each_split("name", "../x"), NO_SPLIT),
    "another format": (edited("dataset_info.json", lambda info: info.update(fileFormat="array_record")), NO_SPLIT),
    **{
        f"no examples {lengths}": (each_split("shardLengths", lengths), "0 training and 0 test images")
        for lengths in ([], ["0"])
    },
    "one split empty": (
        edited("dataset_info.json", lambda info: info["splits"][0].update(shardLengths=["0"])), "cannot be trained or"
    ),
    "fewer than there are": (each_split("shardLengths", ["3"]), "holds other than 3 examples"),
    "half a checksum": (cut_by_two_bytes, "ends inside a record"),
    "names of 1 TB": (large_names, "the 1,099,511,627,776 bytes of"),
    **{  # TensorFlow would first make room for it, and die of that
        f"a record of {length} bytes": (with_record(length), "ends inside a record")
        for length in (2**33, 2**40, 2**64 - 1)
    },
    **{  # TFDS would wait for the pipe, take all memory for the device, and read what the links lead to
        f"{name}: a {kind}": (linked(name, kind), f"{name} is a link, a pipe or a device")
        for name in FILES for kind in ("pipe", "device", "link", "folder link")
    },
}  # fmt: skip
# The same, where no class describes the set: these would else be the class's.
TFDS_FROM_FILES: Table = {
    **{f"{n} classes": (num_classes(n), f"{n} classes, which no set has") for n in (2**62, 100_001, 0)},
    "three keys": (keys(lambda items: items.append(items[1])), "not an image-classification set"),
    "keys in a dict": (
        keys(lambda items: items.__setitem__(1, {"dict": {"dict": {"x": items[1]}}})),
        "not an image-classification set",
    ),
    "keys exchanged": (keys(lambda items: items.reverse()), "not an image-classification set"),
    "an unknown key": (keys(lambda items: items[0].update(featureKey="x")), "not an image-classification set"),
}


# Tables and config.json of a run, as texts.

TABLES = {
    "empty": "",
    "NUL bytes": "step,loss\n1,\0\n",
    "a long field": f"step,loss\n1,{'1' * 200_000}\n",
    "a short row": "step,loss\n1,2\n2\n",
    "a quote inside": 'step,loss\n1,"2"3\n',
    "no UTF-8": "step,loss\n1,\udcff\n",
    "a formula": 'step,variant\n1,"=HYPERLINK(""http://x"")"\n',
    "a formula in the head": "step,=1+1\n1,2\n",
}
RECORDS = {
    "empty": "",
    "a list": "[]",
    "no config": '{"kind": "train", "status": "done"}',
    "no kind": '{"config": {}, "status": "done"}',
    "an unknown status": '{"kind": "train", "config": {}, "status": "asleep"}',
    "no UTF-8": "\udcff",
    "deep lists": "[" * 100_000,
    "infinity": '{"config": {"learning_rate": Infinity}, "status": "done"}',
    "a kind that is a list": '{"config": {}, "status": "done", "kind": ["train"]}',
    "a number of 5,000 digits": f'{{"config": {{"seed": {"9" * 5000}}}, "status": "done"}}',
    "true in place of a step": '{"config": {}, "status": "diverged", "diverged_at_step": true}',
}
