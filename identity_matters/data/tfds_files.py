"""The files of a prepared TFDS set, which may come from others, are looked at before TFDS reads them.

TFDS would wait for a pipe, read a device without end, follow links and templates of names out of the set, and believe
any number.
"""

import glob
import os
import re
import stat

from tensorflow_datasets.core import dataset_info, naming

from identity_matters.data.arrays import MAX_BYTES_IN_MEMORY
from identity_matters.errors import truncated_repr
from identity_matters.fields import require
from identity_matters.runs.files import open_file

MAX_SHARDS = 2**14
_MAX_EXAMPLES = 2**40
_MAX_TEXT = 2**24  # bytes of any file but a shard
_SHARD = re.compile(r".+\.tfrecord-\d+-of-\d+")


def check_files(folder: str) -> None:
    """Raises UserError where a file in a set's folder is no regular one, is large, or describes no TFRecords.

    A folder that is not there holds no such file.
    """
    for parent, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = os.path.join(parent, name)
            status = os.lstat(path)
            is_file = stat.S_ISREG(status.st_mode)
            require(is_file or stat.S_ISDIR(status.st_mode), f"{path} is no regular file of the set but a link, say")
            is_small = status.st_size <= _MAX_TEXT or _SHARD.fullmatch(name) is not None
            require(is_small or not is_file, f"the {status.st_size:,} bytes of {path} are too many")
        if "dataset_info.json" in names:
            _check_info(dataset_info.read_proto_from_builder_dir(parent))


def check_records(name: str, folder: str) -> None:
    """Raises UserError where a record of a set is longer than its file, which TensorFlow would first make room for.

    Of a larger set, which is streamed, that would read too much before the first step.
    """
    shards = [path for path in glob.glob(os.path.join(glob.escape(folder), "*")) if _SHARD.fullmatch(path)]
    if sum(map(os.path.getsize, shards)) > MAX_BYTES_IN_MEMORY:
        return
    for path in shards:
        with open_file(path) as file:
            end, position = os.fstat(file.fileno()).st_size, 0
            while position < end:
                length = int.from_bytes(os.pread(file.fileno(), 8, position), "little")
                position += length + 16  # with its length and two checksums
                cut = f"cannot read {name} in {folder}: a record of {os.path.basename(path)} is longer than its file"
                require(position <= end, cut)


def _check_info(info: dataset_info.dataset_info_pb2.DatasetInfo) -> None:
    """Raises UserError where a dataset_info.json names files outside the set, or numbers that no set has."""
    require(info.file_format in ("", "tfrecord"), f"its fileFormat is {truncated_repr(info.file_format)}, not tfrecord")
    for split in info.splits:
        for name in (info.name, split.name):
            require(re.fullmatch(r"[\w-]+", name) is not None, f"{truncated_repr(name)} is no name of a set or a split")
        template, lengths = split.filepath_template, split.shard_lengths
        is_usual = template in ("", naming.DEFAULT_FILENAME_TEMPLATE)
        require(is_usual, f"its filepathTemplate is {truncated_repr(template)}, not {naming.DEFAULT_FILENAME_TEMPLATE}")
        require(len(lengths) <= MAX_SHARDS, f"its {len(lengths)} shards are more than {MAX_SHARDS}")
        is_possible = min(lengths, default=0) >= 0 and sum(lengths) <= _MAX_EXAMPLES
        require(is_possible, f"its shardLengths are {truncated_repr(list(lengths))}")
