"""Hostile folders of TFDS sets, to train and evaluate on and to export."""

import json
import pathlib
import shutil
import struct
import zlib

import damage
import numpy as np
from gradient_sets import gradient

from attack import command, kind, prepared
from attack.prepared import pick


def copied(random, folder) -> pathlib.Path:
    """A copy of one of the sets, in folder/data; returns where its files are."""
    name = pick(random, ["tiny_png", "tiny_jpeg"])
    shutil.copytree(prepared.tfds_sets() / name, folder / "data" / name)
    return folder / "data" / name / "1.0.0"


def consumed(random, folder, place) -> command.Ended:
    """Gives the set to a launcher."""
    name, which = place.parent.name, random.random()
    named = [f"--dataset={pick(random, [name, name + ':1.0.0'])}", f"--data_dir={folder / 'data'}"]
    if which < 0.3:
        ended = command.run(folder, "export_npz", *named, f"--npz={folder / 'x.npz'}", memory=prepared.MEMORY)
    elif which < 0.7:
        flags = ["--pretrained=digits", "--max_examples=4", *named]
        ended = command.run(folder, "evaluate", *flags, memory=prepared.MEMORY)
    else:
        flags = [*named, *prepared.NETWORK, *prepared.STEPS, "--image_size=8", f"--run_dir={folder / 'run'}"]
        ended = command.run(folder, "train", *flags, memory=prepared.MEMORY)
    prepared.must_be_safe(ended, folder, codes=(0, 1, 3, 75))
    return ended


@kind("TFDS: dataset_info.json or features.json with hostile values")
def descriptions(random, folder):
    place = copied(random, folder)
    for _ in range(random.integers(1, 3)):
        path = place / pick(random, ["dataset_info.json", "features.json"])
        try:
            value = json.loads(path.read_text())
        except ValueError:
            break
        path.write_text(json.dumps(prepared.with_hostile_value(random, value)))
    consumed(random, folder, place)


@kind("TFDS: damages of the table (tests/damage.py)")
def of_the_table(random, folder):
    place = copied(random, folder)
    prepared.damaged(random, place, damage.TFDS | damage.TFDS_FROM_FILES)
    consumed(random, folder, place)


def png_header(width, height) -> bytes:
    """A PNG file that declares a size and holds a line of it."""

    def chunk(name, content):
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = zlib.compress(bytes(min(height * (3 * width + 1), 10**7)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@kind("TFDS: hostile records")
def hostile_records(random, folder):
    place = copied(random, folder)
    path = pick(random, sorted(place.glob("*.tfrecord*")))
    form = place.parent.name.removeprefix("tiny_")
    found = prepared.records(form, 16 if "train" in path.name else 8)
    case = random.integers(5)
    if case == 0:
        path.write_bytes(damage.flipped(random, path.read_bytes()))
    elif case == 1:  # a length alone; behind other records it stands in the table
        path.write_bytes(damage.record_of_length(int(pick(random, [0, 2**20, 2**33, 2**40, 2**62, 2**64 - 5]))))
    elif case == 2:
        prepared.write_records(path, [damage.flipped(random, found[0]), *found[1:]])
    elif case == 3:
        fewer_or_more = [found[:-1], found + found, [], [b""] * len(found), found[:1] * len(found)]
        prepared.write_records(path, pick(random, fewer_or_more))
    else:
        whole, encoded = gradient(1, 12, 10), prepared.encoded
        images = [
            b"", b"junk", encoded(whole, "gif"), encoded(whole, "bmp"), encoded(whole[..., 0], "png"),
            encoded(gradient(1, 300, 10), form), encoded(gradient(1, 1, 1), form), png_header(20_000, 20_000),
            png_header(2**31 - 1, 2**31 - 1), png_header(1, 10**6),
            encoded(np.dstack([whole, whole[..., :1]]), "png"),
        ]  # fmt: skip
        label = int(pick(random, [0, 1, 15, 16, -1, 2**31, 2**62]))
        found[pick(random, [0, -1])] = prepared.example(pick(random, images), label)
        prepared.write_records(path, found)
    consumed(random, folder, place)
