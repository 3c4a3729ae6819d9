"""Safety checks on the files of a prepared TFDS set from others, before TFDS reads them.

TFDS would wait for a pipe, read a device without end, follow links and templates out of the set, and trust any number.
"""

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from unittest import mock

import tensorflow_datasets as tfds
from tensorflow_datasets.core import dataset_info, naming

from identity_matters.errors import truncated_repr
from identity_matters.fields import require

_MAX_SHARDS, _MAX_EXAMPLES = 2**14, 2**40
_MAX_TEXT = 2**24  # bytes of any file but a shard
_SHARD = re.compile(r".+\.tfrecord-\d+-of-\d+")


def check_files(folder: str) -> None:
    """Raises UserError where a file in a set's folder is irregular or too large, or describes no TFRecords."""
    for parent, folders, names in os.walk(folder):
        for name in (*folders, *names):
            status = os.lstat(path := os.path.join(parent, name))
            is_regular = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
            require(is_regular, f"{path} is a link, a pipe or a device, not a regular file")
            is_small = status.st_size <= _MAX_TEXT or _SHARD.fullmatch(name) is not None
            require(is_small, f"the {status.st_size:,} bytes of {path} are too many")
        info = dataset_info.read_proto_from_builder_dir(parent) if "dataset_info.json" in names else None
        for split in info.splits if info else ():
            # Its files lie in the set, by their names, and its numbers are those of a set.
            are_records = info.file_format in ("", "tfrecord")
            are_inside = split.filepath_template in ("", naming.DEFAULT_FILENAME_TEMPLATE)
            are_named = re.fullmatch(r"[\w.-]+ [\w.-]+", f"{info.name} {split.name}") is not None
            lengths = split.shard_lengths
            are_few = len(lengths) <= _MAX_SHARDS and sum(lengths) <= _MAX_EXAMPLES
            is_usual = are_records and are_inside and are_named and are_few and all(length >= 0 for length in lengths)
            require(is_usual, f"its split is not as TFDS makes them: {truncated_repr(split)}")


@contextlib.contextmanager
def features_of_tfds_alone() -> Iterator[None]:
    """Opens a context in which TFDS takes no class but its own: a features.json can name any module to be imported."""
    connector = tfds.features.FeatureConnector
    find = connector.cls_from_name

    def find_of_tfds(name: str) -> type:
        is_of_tfds = name.startswith("tensorflow_datasets.core.features.")
        require(is_of_tfds, f"its features.json names the class {truncated_repr(name)}, which is not TFDS's own")
        return find(name)

    with mock.patch.object(connector, "cls_from_name", find_of_tfds):
        yield
