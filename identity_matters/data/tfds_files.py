"""The files of a prepared TFDS set, which may come from others, are looked at before TFDS reads them.

TFDS would wait for a pipe, read a device without end, follow links and templates out of the set, believe any number.
"""

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from unittest import mock

import tensorflow_datasets as tfds
from tensorflow_datasets.core import dataset_info, naming

from identity_matters.data.arrays import MAX_BYTES_IN_MEMORY
from identity_matters.errors import UserError, truncated_repr
from identity_matters.fields import require
from identity_matters.runs.files import open_file

_MAX_SHARDS, _MAX_EXAMPLES = 2**14, 2**40
_MAX_TEXT = 2**24  # bytes of any file but a shard
_SHARD = re.compile(r".+\.tfrecord-\d+-of-\d+")


def check_files(folder: str) -> None:
    """Raises UserError where a file in a set's folder is no regular one, is large, or describes no TFRecords."""
    for parent, folders, names in os.walk(folder):
        for name in (*folders, *names):
            status = os.lstat(path := os.path.join(parent, name))
            is_regular = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
            require(is_regular, f"{path} is a link, a pipe or a device, and no regular file")
            is_small = status.st_size <= _MAX_TEXT or _SHARD.fullmatch(name) is not None
            require(is_small, f"the {status.st_size:,} bytes of {path} are too many")
        if "dataset_info.json" in names:
            info = dataset_info.read_proto_from_builder_dir(parent)
            is_known = info.file_format in ("", "tfrecord")
            require(is_known, f"its fileFormat is {truncated_repr(info.file_format)}, not tfrecord")
            for split in info.splits:
                require(_is_usual(info.name, split), f"its split is not as TFDS makes them: {truncated_repr(split)}")


def _is_usual(name: str, split: dataset_info.dataset_info_pb2.SplitInfo) -> bool:
    """Returns whether a split's files lie in the set, by their names, and its numbers are those of a set."""
    are_inside = split.filepath_template in ("", naming.DEFAULT_FILENAME_TEMPLATE)
    are_inside = are_inside and re.fullmatch(r"[\w.-]+ [\w.-]+", f"{name} {split.name}") is not None
    lengths = split.shard_lengths
    return are_inside and len(lengths) <= _MAX_SHARDS and 0 <= min(lengths, default=0) and sum(lengths) <= _MAX_EXAMPLES


def check_records(name: str, folder: str) -> None:
    """Raises UserError where a record of a set is longer than its file, which TensorFlow would first make room for.

    In a larger set, which is streamed, that would read too much before the first step.
    """
    entries = os.scandir(folder) if os.path.isdir(folder) else ()  # TFDS's own data_dir may be an address
    shards = [entry for entry in entries if _SHARD.fullmatch(entry.name)]
    if sum(shard.stat().st_size for shard in shards) > MAX_BYTES_IN_MEMORY:
        return
    for shard in shards:
        with open_file(shard.path) as file:
            end, position = os.fstat(file.fileno()).st_size, 0
            while position < end:  # a record: its length, two checksums, what it holds
                position += int.from_bytes(os.pread(file.fileno(), 8, position), "little") + 16
            require(position == end, f"cannot read {name} in {folder}: {shard.name} ends inside a record")


@contextlib.contextmanager
def features_of_tfds_alone() -> Iterator[None]:
    """Opens a context in which TFDS takes no class but its own: a features.json can name any module to be imported."""
    connector = tfds.features.FeatureConnector
    find = connector.cls_from_name

    def find_of_tfds(name: str) -> type:
        if not name.startswith("tensorflow_datasets.core.features."):
            raise UserError(f"its features.json names the class {truncated_repr(name)}, which is not TFDS's own")
        return find(name)

    with mock.patch.object(connector, "cls_from_name", find_of_tfds):
        yield
