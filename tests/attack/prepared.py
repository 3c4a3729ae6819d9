"""What kinds damage copies of: a finished run, images, TFDS sets; made once per process in a folder that it removes.

The modules that launchers import late are imported here, so that a fork begins at once. Nothing is computed in this
process: TensorFlow's threads do not survive a fork.
"""

import atexit
import functools
import importlib
import io
import json
import pathlib
import shutil
import tempfile
import zipfile

import damage
import numpy as np
import PIL.Image
import tensorflow as tf
from gradient_sets import SIZES, gradient
from tensorboardX.record_writer import RecordWriter

from attack import command
from identity_matters.data.digits import mnist_sample

for late in ("data.tfds", "evaluation", "pretrained", "training"):
    importlib.import_module(f"identity_matters.{late}")
for late in ("evaluate", "export_npz", "plot", "report", "train"):
    importlib.import_module(f"launch.{late}")

SECRET = "a stranger must not see this"
NETWORK = ["--stem_width=2", "--widths=2", "--blocks_per_stage=1", "--decay_steps=", "--batch_size=8"]
STEPS = ["--train_steps=2", "--eval_every=1", "--checkpoint_every=1"]
TINY = [*NETWORK, *STEPS, "--train_examples=40", "--eval_examples=20"]
MEMORY = 4 * 2**30  # bytes; a launcher that trains TINY adds 2 GB to its address space


@functools.cache
def folder() -> pathlib.Path:
    """A folder that lasts as long as this process; secret.txt in it is nobody's but the user's."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="prepared"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    (path / "secret.txt").write_text(SECRET)
    return path


@functools.cache
def run() -> pathlib.Path:
    """The directory of a finished run on the embedded digits."""
    ended = command.run(folder(), "train", f"--run_dir={folder() / 'run'}", *TINY)
    assert ended.code == 0, ended.err
    return folder() / "run"


@functools.cache
def arrays() -> dict[str, np.ndarray]:
    """The four arrays of an .npz file."""
    data = mnist_sample()
    train = {"train_images": data.train_images[:40, ..., 0], "train_labels": data.train_labels[:40]}
    return train | {"test_images": data.test_images[:20, ..., 0], "test_labels": data.test_labels[:20]}


def encoded(image: np.ndarray, form: str) -> bytes:
    stream = io.BytesIO()
    PIL.Image.fromarray(image).save(stream, form)
    return stream.getvalue()


def example(image: bytes, label: int) -> bytes:
    """A record of a TFDS set."""
    features = {
        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def write_records(path: pathlib.Path, records: list[bytes]) -> None:
    writer = RecordWriter(str(path))
    for record in records:
        writer.write(record)
    writer.close()


def records(form: str, count: int) -> list[bytes]:
    sides = [(12, 10)] if form == "png" else SIZES
    return [example(encoded(gradient(i, *sides[i % len(sides)]), form), i) for i in range(count)]


@functools.cache
def tfds_sets() -> pathlib.Path:
    """A data_dir with the sets tiny_png, of one size, and tiny_jpeg, of varying sizes: written as TFDS 4.9 does."""
    for form in ("png", "jpeg"):
        name = f"tiny_{form}"
        place = folder() / "data" / name / "1.0.0"
        place.mkdir(parents=True)
        counts = {"train": 16, "test": 8}
        template = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
        splits = [
            {"filepathTemplate": template, "name": split, "numBytes": "999", "shardLengths": [str(count)]}
            for split, count in counts.items()
        ]
        keys = {"tuple": {"items": [{"featureKey": "image"}, {"featureKey": "label"}]}}
        info = {"fileFormat": "tfrecord", "moduleName": "tiny", "name": name, "splits": splits}
        (place / "dataset_info.json").write_text(json.dumps(info | {"supervisedKeys": keys, "version": "1.0.0"}))
        module, sides = "tensorflow_datasets.core.features", ["12", "10", "3"] if form == "png" else ["-1", "-1", "3"]
        image = {"dtype": "uint8", "encodingFormat": form, "shape": {"dimensions": sides}}
        features = {
            "image": {"image": image, "pythonClassName": f"{module}.image_feature.Image"},
            "label": {
                "classLabel": {"numClasses": "16"},
                "pythonClassName": f"{module}.class_label_feature.ClassLabel",
            },
        }
        described = {"featuresDict": {"features": features}, "pythonClassName": f"{module}.features_dict.FeaturesDict"}
        (place / "features.json").write_text(json.dumps(described))
        (place / "label.labels.txt").write_text("".join(f"{i}\n" for i in range(16)))
        for split, count in counts.items():
            write_records(place / f"{name}-{split}.tfrecord-00000-of-00001", records(form, count))
    return folder() / "data"


def pick(random, values):
    """One of some values of any types."""
    return values[random.integers(len(values))]


def in_its_place(random, path: pathlib.Path) -> str:
    """Puts something else in the place of a file; returns what."""
    makers = damage.NO_FILES | {"secret": lambda path: path.symlink_to(folder() / "secret.txt")}
    kind = pick(random, list(makers))
    path.unlink(missing_ok=True)
    makers[kind](path)
    return kind


def damaged(random, path: pathlib.Path, table: damage.Table) -> None:
    """Damages a file as one or two entries of a table do, if they still can, and perhaps some of its bytes too."""
    for name in random.choice(list(table), random.integers(1, 3)):
        try:
            table[name][0](path)
        except (AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError, zipfile.BadZipFile):
            break  # it is damaged beyond that already
    if path.is_file() and 0 < path.stat().st_size < 10**6 and random.random() < 0.5:
        path.write_bytes(damage.flipped(random, path.read_bytes()))


HOSTILE = [
    None, True, -7, 0, 1, 2**31, 2**62, 2**63, 10**30, 1e308, float("nan"), "", "x", "x" * 100_000, "-7",
    "4611686018427387904", "../../secret", "/dev/zero", "{0.__class__}", "{SPLIT:>999999999}", "\0", "\x1b[2J\n",
    "=cmd()", [], {}, [[]], [-7] * 5, {"a": {}}, "{}", "os.system", "array_record", "Lambda",
]  # fmt: skip


def with_hostile_value(random, value, depth=0):
    """JSON with one value, key or element somewhere in it changed."""
    inner = list(value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ())
    if not inner or (depth and random.random() < 0.1):
        return pick(random, HOSTILE)
    key, changed = pick(random, inner), value.copy()
    action = random.random()
    if action < 0.05:
        del changed[key]
    elif action < 0.1 and isinstance(value, dict):
        changed[pick(random, ["x", "", "../x", "class_name", "name"])] = changed.pop(key)
    elif action < 0.12 and isinstance(value, list):
        changed = value * int(pick(random, [2, 50]))
    else:
        changed[key] = with_hostile_value(random, value[key], depth + 1)
    return changed


def must_be_safe(ended: command.Ended, place: pathlib.Path, codes=(0, 1, 75)) -> None:
    """Fails unless the command ended well, and nothing that is not the stranger's was read out or changed."""
    command.must_end_well(ended, codes=codes)
    assert (folder() / "secret.txt").read_text() == SECRET
    shown = ended.out + ended.err
    for path in place.rglob("*"):
        if "secret" not in path.name and path.is_file() and not path.is_symlink() and path.stat().st_size < 10**6:
            shown += path.read_bytes().decode(errors="replace")
    assert SECRET not in shown
