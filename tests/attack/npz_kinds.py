"""Hostile .npz files of images, to train and to evaluate on."""

import struct
import warnings
import zipfile

import damage
import numpy as np
from damage import npy, with_header, write

from attack import command, kind, prepared
from attack.prepared import pick


def members() -> dict[str, bytes]:
    return {f"{name}.npy": npy(array) for name, array in prepared.arrays().items()}


def consumed(random, folder, path) -> command.Ended:
    """Gives the file to a launcher that trains or evaluates on it."""
    if random.random() < 0.3:
        flags = [*prepared.NETWORK, *prepared.STEPS, f"--npz={path}", f"--run_dir={folder / 'run'}"]
        ended = command.run(folder, "train", *flags, memory=prepared.MEMORY)
    else:
        flags = ["--pretrained=digits", "--max_examples=4", f"--npz={path}"]
        ended = command.run(folder, "evaluate", *flags, memory=prepared.MEMORY)
    prepared.must_be_safe(ended, folder, codes=(0, 1, 3, 75))
    return ended


@kind("npz: bytes changed, cut or put in")
def damaged_npz(random, folder):
    write(folder / "x.npz", members().items(), pick(random, [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))
    content = (folder / "x.npz").read_bytes()
    (folder / "x.npz").write_bytes(damage.flipped(random, content))
    if consumed(random, folder, folder / "x.npz").code == 0:  # a byte that says nothing: a time, a comment
        for name, array in prepared.arrays().items():
            if name.startswith("test"):
                np.testing.assert_array_equal(np.load(folder / "x.npz")[name], array)


@kind("npz: a header of the table (tests/damage.py) with a sign put in")
def headers(random, folder):
    found = members()
    name, version = pick(random, list(found)), pick(random, [(1, 0), (2, 0), (3, 0), (9, 9)])
    text, sign = pick(random, damage.HEADERS), pick(random, "'\\#(\n\té;")
    where = random.integers(len(text) + 1)
    content = bytes(int(pick(random, [0, 40, 100, 40 * 784, 160 * 784])))
    found[name] = with_header(text[:where] + sign.encode() + text[where:], content, version)
    write(folder / "x.npz", found.items(), pick(random, [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))
    consumed(random, folder, folder / "x.npz")
    assert not (folder / "ran").exists()


@kind("npz: damages of the table (tests/damage.py), other compression, bytes changed")
def of_the_table(random, folder):
    compression = pick(random, [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
    write(folder / "x.npz", members().items(), compression)
    prepared.damaged(random, folder / "x.npz", damage.NPZ)
    consumed(random, folder, folder / "x.npz")


@kind("npz: other sizes, checksums, flags and methods than those of its members")
def entries(random, folder):
    write(folder / "x.npz", members().items())
    content = bytearray((folder / "x.npz").read_bytes())
    headers = {b"PK\x03\x04": 30, b"PK\x01\x02": 46, b"PK\x05\x06": 22}  # before a member, in the list, its end
    signature = pick(random, list(headers))
    places = [i for i in range(len(content)) if content[i : i + 4] == signature]
    for _ in range(random.integers(1, 4)):
        where = pick(random, places) + pick(random, range(4, headers[signature], 2))
        number = pick(random, [0, 1, 0xFFFF, 8, 12, 14, 99, int(random.integers(65536))])
        content[where : where + 2] = struct.pack("<H", number)
    (folder / "x.npz").write_bytes(content)
    consumed(random, folder, folder / "x.npz")


@kind("npz: arrays of other types, shapes, labels")
def wrong_arrays(random, folder):
    found = dict(prepared.arrays())
    for _ in range(random.integers(1, 3)):
        name = pick(random, list(found))
        array = found[name]
        types = ["<f8", "<f2", "?", "<i8", ">i4", "u8", "i1", "c8", "U3", "M8[s]", "f16"]
        changes = [
            lambda a: a.astype(pick(random, types)), lambda a: a[:0], lambda a: a[..., None, None], np.ravel,
            lambda a: a[0], lambda a: a.astype(float) * np.nan, lambda a: a.astype(float) - 1e308, lambda a: a[:1],
            lambda a: a.astype(int) * 2**40, lambda a: -a.astype(int), lambda a: a * 0, np.asfortranarray,
            lambda a: np.eye(10)[a.ravel() % 10], lambda a: np.moveaxis(a, -1, 0), lambda a: np.concatenate([a, a]),
            lambda a: a.astype(float) / 1e300,
        ]  # fmt: skip
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found[name] = pick(random, changes)(array) if array.ndim and array.size else array
            if found[name].dtype.kind not in "buif":
                break
    np.savez(folder / "x.npz", **found)
    consumed(random, folder, folder / "x.npz")
