"""Labelled images: the embedded MNIST sample, your own .npz file or folder of images, or any TFDS set by name.

A set that fits in memory becomes `ArrayData`; one that does not, or a TFDS set whose images vary in size, stays an
`image_folder.FolderSource` or a `tfds.TfdsSource`. batches.py turns any of them into batches.
"""

import contextlib
import dataclasses
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from identity_matters.config import TWO_SPLITS, TrainConfig
from identity_matters.data.arrays import (
    MNIST_SAMPLE,
    ArrayData,
    first_examples,
    held_out,
    mnist_sample,
    note,
    resized,
    resized_images,
    shortened,
)
from identity_matters.data.given_batches import examples_of
from identity_matters.data.user_arrays import given_arrays, load_npz, load_test_examples, require_stored
from identity_matters.errors import UserError, truncated_repr
from identity_matters.fields import require

if TYPE_CHECKING:
    from identity_matters.data.image_folder import FolderSource
    from identity_matters.data.tfds import TfdsSource


def load(config: TrainConfig, given: Sequence[Any] | None = None) -> "ArrayData | FolderSource | TfdsSource":
    """Returns the data that the config names, or those that are given: four arrays, or (train, test) in batches.

    A set too large for memory stays a FolderSource or a TfdsSource, and so does a TFDS set of varying image size.

    Raises UserError for no such data set, one that is not prepared (the message says what to run), and data that cannot
    be trained on.
    """
    if given is not None:
        if isinstance(given, tuple | list) and len(given) == 2:
            given = (*examples_of("train", given[0]), *examples_of("test", given[1]))
        data = given_arrays(given, config.num_classes)
    elif config.images:
        from identity_matters.data.image_folder import load_folder  # which imports Keras

        return load_folder(config)
    elif config.npz:
        data = load_npz(config.npz, config.num_classes)
    elif config.num_classes:
        raise UserError(f"num_classes is for your own data; the data set {config.dataset} defines its classes")
    elif config.dataset == MNIST_SAMPLE:
        data = _embedded_digits(config)
    else:
        # A set that is shortened is read so far only, but what is held out comes from the end of the whole set.
        whole = dataclasses.replace(config, train_examples=0, eval_examples=0)
        source = _tfds_source(whole if config.validation_examples else config)
        train_split, test_split = source.split_names
        is_both = f"{source.name}: {train_split!r} is both the training and the test split"
        require(train_split != test_split or config.validation_examples > 0, f"{is_both}; {TWO_SPLITS}")
        if source.is_streamed:
            name, num_train = source.name, source.num_train
            in_memory = f"validation_examples needs data that fit in memory; {name} does not"
            require(not config.validation_examples, in_memory)
            too_large = f"batch_size {config.batch_size} exceeds the {num_train} training images of {name}"
            require(config.batch_size <= num_train, too_large)
            return source
        data = source.load()
    data = shortened(held_out(data, config.validation_examples), config.train_examples, config.eval_examples)
    return resized(data, config.image_size)


def _embedded_digits(config: TrainConfig) -> ArrayData:
    """Returns the embedded sample; prints a line if a data_dir is given, which is not read."""
    if config.data_dir:
        note(f"data_dir {config.data_dir} is not used: the dataset {MNIST_SAMPLE} comes with the package")
    return mnist_sample()


def _tfds_source(config: TrainConfig) -> "TfdsSource":
    """Returns the set that the config names, or raises UserError where there is no TensorFlow to read it with."""
    require_stored(config.dataset)
    try:
        from identity_matters.data.tfds import tfds_source
    except ModuleNotFoundError as error:
        file = f"{config.dataset}.npz"
        raise UserError(
            f"{config.dataset} is read by {error.name}, which is not installed here; where it is, "
            f"python -m launch.export_npz --dataset={config.dataset} --npz={file} makes {file}, "
            f"to be given as --npz={file} (npz={file!r})"
        ) from error
    return tfds_source(config)


def say_named_by(path: str, fields: Mapping[str, Any], data_dir: str | os.PathLike) -> None:
    """Prints a line if a file, by its `fields`, and not a flag (data_dir), names the place of the data."""
    reads_data_dir = not data_dir and fields["dataset"] != MNIST_SAMPLE
    if place := fields["npz"] or fields["images"] or (reads_data_dir and fields["data_dir"]):
        note(f"the data are read from {truncated_repr(place)}, which {path} names")


@contextlib.contextmanager
def reporting_unreadable_data() -> Iterator[None]:
    """Opens a context that raises the UserError of a stream of data where TensorFlow has made another error of it."""
    try:
        yield
    except Exception as error:
        found = re.search(r"\bUserError: (cannot read .*)\n", str(error))
        if isinstance(error, UserError) or not found:
            raise
        raise UserError(found[1]) from error


def raw_test_batches(
    config: TrainConfig,
    batch_size: int,
    class_names: Sequence[str] = (),
    on_count: Callable[[int], object] = lambda count: None,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields (uint8 images [b, h, w, c], labels [b]) once through the test examples, in order.

    The npz may lack the training arrays. A folder of images has classes of these names (none: those of its folders),
    and gives images of the shape that config.model takes. Where all images are resized, a line says so first.
    on_count is called with the number of examples before the first batch.

    Raises:
      UserError: as `load`.
    """
    if config.images:
        from identity_matters.data.image_folder import folder_test_batches  # which imports Keras

        yield from folder_test_batches(config, batch_size, class_names, on_count)
        return
    if not config.npz and config.dataset != MNIST_SAMPLE:
        source = _tfds_source(config)
        _say_resizing(source.name, source.stored_shape, config.image_size)
        on_count(source.num_test)
        yield from source.raw_test_batches(batch_size)
        return
    if config.npz:
        name = os.path.basename(config.npz)
        images, labels = load_test_examples(config.npz)
    else:
        name, data = MNIST_SAMPLE, _embedded_digits(config)
        images, labels = data.test_images, data.test_labels
    images, labels = first_examples(name, "test", images, labels, config.eval_examples)
    _say_resizing(name, images.shape[1:], config.image_size)
    on_count(len(labels))
    for start in range(0, len(labels), batch_size):
        batch = slice(start, start + batch_size)
        yield resized_images(images[batch], config.image_size), labels[batch]


def _say_resizing(name: str, shape: Sequence[int | None], image_size: int) -> None:
    """Prints a line if images of this shape are resized; not for sets whose images vary in size."""
    height, width = shape[:2]
    if image_size and None not in (height, width) and (height, width) != (image_size, image_size):
        note(f"{name}: images of {height}x{width} pixels are resized to {image_size}x{image_size}")
