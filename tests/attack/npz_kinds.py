"""Hostile .npz files of images, to train and to evaluate on."""

import io
import pickle
import struct
import warnings
import zipfile

import numpy as np
from loaded import load_npz, npz_digest

from attack import command, kind, prepared
from attack.prepared import pick


def npy(array) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=True)
    return stream.getvalue()


def with_header(text: str, values: bytes, version=(1, 0)) -> bytes:
    """An array whose header is any text."""
    header = text.encode() + b"\n"
    size = struct.pack("<H" if version == (1, 0) else "<I", len(header))
    return b"\x93NUMPY" + bytes(version) + size + header + values


def write(path, members, compression=zipfile.ZIP_STORED) -> None:
    """Writes members (name, content), names twice where they come twice."""
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", compression) as archive:
        warnings.simplefilter("ignore")
        for name, content in members:
            archive.writestr(name, content)


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
    (folder / "x.npz").write_bytes(prepared.flipped(random, content))
    if consumed(random, folder, folder / "x.npz").code == 0:  # a byte that says nothing: a time, a comment
        for name, array in prepared.arrays().items():
            if name.startswith("test"):
                np.testing.assert_array_equal(np.load(folder / "x.npz")[name], array)


DESCRS = [
    "('<f4',)", "('<f4', (2,))", "'<f4'", "'|O'", "'<M8[s]'", "'|V8'", "'<U100000000'", "[('a', '<f4')]", "'x'", "''",
    "None", "'>u2'", "'|b1'", "'<c16'", "'<f2'", "'|u1'", "'<f4,'", "[]", "'|S0'", "{'a': 1}",
]  # fmt: skip
SHAPES = [
    "()", "(1,)", "(-1,)", "(40, 28, 28)", "(0, 28, 28)", "(10**12, 28)", "(1000000000000, 28, 28)", "(2**62, 4)",
    "40", "(4611686018427387904, 4, 4)", "(True, 28, 28)", "(40, 28, 28,)" * 2, "(1,) * 3", "(" + "1," * 70 + ")",
    "(" + "9" * 4000 + ",)", "(1e3,)", "None",
]  # fmt: skip
TEXTS = [
    "{'descr': '''<f4", "{'descr': (", "(" * 5000, "[" * 9000, "{", "", "\0" * 100, "1" * 9000, "{'descr': 10L}",
    "-" * 5000 + "1", "{**{}}", "lambda: 0", "__import__('os').system('touch ran')", "{'shape': (1,)}",
    "'" + "\\N{DIGIT ONE}" * 500 + "'",
]  # fmt: skip


@kind("npz: a header rewritten")
def headers(random, folder):
    found = members()
    name, version = pick(random, list(found)), pick(random, [(1, 0), (2, 0), (3, 0), (9, 9)])
    text = pick(random, TEXTS)
    if random.random() < 0.7:
        order = pick(random, ["False", "True", "1"])
        text = f"{{'descr': {pick(random, DESCRS)}, 'fortran_order': {order}, 'shape': {pick(random, SHAPES)}}}"
    if random.random() < 0.2:
        where = random.integers(len(text) + 1)
        text = text[:where] + pick(random, ["'''", "\\", "#", "(", "\n", "\t", "é", ";"]) + text[where:]
    found[name] = with_header(text, bytes(int(pick(random, [0, 40, 100, 40 * 784, 160 * 784]))), version)
    if random.random() < 0.1:  # a header of 2 GB in a file of 2 MB
        found[name] = b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**31 - 1) + bytes(10**7)
    write(folder / "x.npz", found.items(), pick(random, [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))
    consumed(random, folder, folder / "x.npz")
    assert not (folder / "ran").exists()


@kind("npz: members shadowed, twice, or of other files")
def shadowed(random, folder):
    found = list(members().items())
    name = pick(random, list(prepared.arrays()))
    other = npy(255 - prepared.arrays()[name])
    alias = {"train_images": "x_train", "train_labels": "y_train", "test_images": "x_test", "test_labels": "y_test"}[
        name
    ]
    names = [
        name,
        f"{name}.npy",
        f"./{name}.npy",
        f"{name}.npy.npy",
        alias,
        f"{alias}.npy",
        f"/{name}.npy",
        "../../x.npy",
    ]
    extra = (pick(random, names), other)
    found.insert(int(random.integers(5)), extra)
    write(folder / "x.npz", found)
    if consumed(random, folder, folder / "x.npz").code == 0:
        data = load_npz(str(folder / "x.npz"))
        for name, array in prepared.arrays().items():
            np.testing.assert_array_equal(getattr(data, name).reshape(array.shape), array)
        write(folder / "y.npz", members().items())
        assert npz_digest(str(folder / "x.npz")) == npz_digest(str(folder / "y.npz"))


class Opens:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


@kind("npz: objects, bombs, and other sizes than declared")
def bombs(random, folder):
    found = members()
    name = pick(random, list(found))
    compression = zipfile.ZIP_DEFLATED
    case = random.integers(5)
    if case == 0:
        found[name] = with_header(
            "{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", pickle.dumps([Opens(str(folder / "ran"))])
        )
    elif case == 1:
        found[name] = npy(np.zeros(1, "u1"))[:-1] + bytes(10**8)
    elif case == 2:
        found[name] = npy(np.broadcast_to(np.zeros((), "u1"), (10**5, 28, 28)))
    elif case == 3:
        compression = pick(random, [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
    write(folder / "x.npz", found.items(), compression)
    if case == 4:  # the sizes, checksums, flags or methods of an archive changed, in its list or before a member
        content = bytearray((folder / "x.npz").read_bytes())
        signature, fields = pick(
            random,
            [(b"PK\x03\x04", range(4, 30, 2)), (b"PK\x01\x02", range(4, 46, 2)), (b"PK\x05\x06", range(4, 22, 2))],
        )
        places = [i for i in range(len(content)) if content[i : i + 4] == signature]
        for _ in range(random.integers(1, 4)):
            where = pick(random, places) + pick(random, fields)
            content[where : where + 2] = struct.pack(
                "<H", pick(random, [0, 1, 0xFFFF, 8, 12, 14, 99, int(random.integers(65536))])
            )
        (folder / "x.npz").write_bytes(content)
    consumed(random, folder, folder / "x.npz")
    assert not (folder / "ran").exists()


@kind("npz: arrays of other types, shapes, labels")
def wrong_arrays(random, folder):
    found = dict(prepared.arrays())
    for _ in range(random.integers(1, 3)):
        name = pick(random, list(found))
        array = found[name]
        types = ["<f8", "<f2", "?", "<i8", ">i4", "u8", "i1", "c8", "U3", "M8[s]", "f16"]
        changes = [
            lambda a: a.astype(pick(random, types)),
            lambda a: a[:0],
            lambda a: a[..., None, None],
            lambda a: a.ravel(),
            lambda a: a[0],
            lambda a: a.astype(float) * np.nan,
            lambda a: a.astype(float) - 1e308,
            lambda a: a.astype(int) * 2**40,
            lambda a: -a.astype(int),
            lambda a: a * 0,
            lambda a: np.asfortranarray(a),
            lambda a: np.eye(10)[a.ravel() % 10],
            lambda a: a[:1],
            lambda a: np.moveaxis(a, -1, 0),
            lambda a: np.concatenate([a, a]),
            lambda a: a.astype(float) / 1e300,
        ]
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found[name] = pick(random, changes)(array) if array.ndim and array.size else array
            if found[name].dtype.kind not in "buif":
                break
    np.savez(folder / "x.npz", **found)
    consumed(random, folder, folder / "x.npz")


@kind("npz: a pipe, a device, a link in its place")
def no_npz(random, folder):
    prepared.in_its_place(random, folder / "x.npz")
    assert consumed(random, folder, folder / "x.npz").code == 1
