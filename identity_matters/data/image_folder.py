"""A folder of your own images as a data set: in memory if it fits, otherwise read image by image from the cache.

Both give the same batches, a pure function of (seed, step), as plans.plan_batch plans them.
"""

import itertools
import os
import zlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from identity_matters.config import TWO_SPLITS, TrainConfig
from identity_matters.data.arrays import MAX_BYTES_IN_MEMORY, ArrayData, note
from identity_matters.data.decoded_images import DecodedImages, image_shape, read_headers
from identity_matters.data.image_files import TEST, TRAIN, ImageFile, files_to_evaluate_on, read_splits, shown
from identity_matters.data.plans import plan_batch
from identity_matters.errors import UserError
from identity_matters.fields import require


def load_folder(config: TrainConfig) -> "ArrayData | FolderSource":
    """Returns the images of the folder that a config names, decoded; raises UserError as `FolderSource`."""
    source = FolderSource(config)
    return source if source.is_streamed else source.load()


class FolderSource:
    """The images of the folder `config.images`, of which those to train and to test on are decoded and in the cache.

    Attributes:
      image_shape: (height, width, channels) of the images; the channels are 1 where all of them are grey.
      class_names: The names of the class folders; an image's label is the place of its class among them.

    Raises:
      UserError: the folder or a file of it cannot be used; the message names it.
    """

    def __init__(self, config: TrainConfig) -> None:
        folder = config.images
        self.name = os.path.basename(os.path.abspath(folder))
        splits = read_splits(folder, config.test_share, config.train_split, config.test_split)
        files = splits.train + splits.test
        both = set(splits.train) & set(splits.test)
        is_both = f"{len(both)} images of {folder} are in both the training and the test split"
        require(not both or config.validation_examples > 0, f"{is_both}; {TWO_SPLITS}")
        self.class_names = splits.class_names
        self.num_classes = config.num_classes or len(self.class_names)
        few = f"num_classes is {config.num_classes}, but {folder} has {len(self.class_names)} class folders"
        require(self.num_classes >= len(self.class_names), few)
        self.image_shape = image_shape(folder, read_headers(folder, files), config.image_size)
        self._train, self._test = splits.train, splits.test
        if config.validation_examples:
            count, available = config.validation_examples, len(splits.train)
            left = f"validation_examples must be below the {available} training images of {folder}, got {count}"
            require(count < available, left)
            self._train, self._test = splits.train[:-count], splits.train[-count:]
        self._train = self._train[: config.train_examples or None]
        self._test = self._test[: config.eval_examples or None]
        self.num_train, self.num_test = len(self._train), len(self._test)
        num_bytes = (self.num_train + self.num_test) * int(np.prod(self.image_shape))
        self.is_streamed = num_bytes > MAX_BYTES_IN_MEMORY
        by_split = {config.train_split or TRAIN: splits.train, config.test_split or TEST: splits.test}
        by_split = {"": sorted(files)} if config.test_share else by_split
        self._images = DecodedImages(folder, by_split, self.image_shape)
        self._images.prepare(self._train + self._test, must_be_kept=self.is_streamed)
        self.file_digest = self._images.digest(self._train + self._test)
        numbers = {name: label for label, name in enumerate(self.class_names)}
        self._train_labels, self._test_labels = (
            np.array([numbers[file.class_name] for file in part], np.int32) for part in (self._train, self._test)
        )

    @property
    def summary(self) -> str:
        """Returns a line that other data would not have, as ArrayData's."""
        labels = zlib.crc32(np.concatenate([self._train_labels, self._test_labels]).astype("<i4").tobytes())
        shape = "x".join(map(str, self.image_shape))
        return f"{self.num_train} training and {self.num_test} test images, {shape}, labels {labels:08x}"

    def load(self) -> ArrayData:
        """Returns all images in memory."""
        return ArrayData(
            self.name,
            self._images.read(self._train),
            self._train_labels,
            self._images.read(self._test),
            self._test_labels,
            self.num_classes,
            self.file_digest,
            self.class_names,
        )

    def train_batches(
        self,
        seed: int,
        first_step: int,
        batch_size: int,
        random_flip: bool = True,
        rows: range | None = None,
        crop_padding: int = 0,
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields (uint8 images [b, h, w, c], labels [b]) of first_step, first_step + 1, … without end.

        Only the given rows of every batch are read, b of them (None: all).
        """
        rows = rows or range(batch_size)
        for step in itertools.count(first_step):
            plan = plan_batch(seed, step, batch_size, self.num_train, crop_padding, random_flip)[rows.start : rows.stop]
            images = self._images.read([self._train[example] for example in plan[:, 0]])
            yield _augmented(images, plan, crop_padding), self._train_labels[plan[:, 0]]

    def raw_test_batches(self, batch_size: int, rows: range | None = None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields (uint8 images [b, h, w, c], labels [b]) once through the test images; the last b may be less.

        Only the given rows of every batch are read (None: all).
        """
        return self._raw_batches(self._test, self._test_labels, batch_size, rows)

    def raw_train_batches(self, batch_size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields (uint8 images [b, h, w, c], labels [b]) once through the training images, in order."""
        return self._raw_batches(self._train, self._train_labels, batch_size, None)

    def _raw_batches(
        self, files: Sequence[ImageFile], labels: np.ndarray, batch_size: int, rows: range | None
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        rows = rows or range(batch_size)
        for start in range(0, len(files), batch_size):
            part = slice(start + rows.start, start + rows.stop)
            if files[part]:
                yield self._images.read(files[part]), labels[part]


def _augmented(images: np.ndarray, plan: np.ndarray, padding: int) -> np.ndarray:
    """Returns images uint8 [n, h, w, c] shifted and mirrored as a plan says, as batches.planned_images does."""
    height, width = images.shape[1:3]
    frame = ((padding, padding), (padding, padding), (0, 0))
    result = np.empty_like(images)
    for image, (_, row, column, flipped), place in zip(images, plan, result):
        top, left = row + padding, column + padding
        shifted = np.pad(image, frame)[top : top + height, left : left + width]
        place[:] = shifted[:, ::-1] if flipped else shifted
    return result


def folder_test_batches(
    config: TrainConfig,
    batch_size: int,
    class_names: Sequence[str] = (),
    on_count: Callable[[int], object] = lambda count: None,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields (uint8 images [b, h, w, c], labels [b]) once through the images of a folder that are to be evaluated on.

    They are those in test/ (config.test_split), or test_share of a folder without it, or all, in the shape that
    config.model takes, whose classes are class_names, or as many as the folder has. Before the first batch on_count is
    called with their number.

    Raises:
      UserError: a class is none of these, or as `files_to_evaluate_on` and `DecodedImages`.
    """
    folder, shape = config.images, config.model.image_shape
    files, group, split = files_to_evaluate_on(folder, config.test_share, config.test_split)
    found = tuple(sorted({file.class_name for file in group}))
    if not class_names and len(found) != config.model.num_classes:
        raise UserError(
            f"{folder} has {len(found)} class folders, the network {config.model.num_classes} classes of unknown "
            "names; evaluate on as many class folders, in the order of the classes"
        )
    class_names = class_names or found
    if unknown := sorted(set(found) - set(class_names)):
        known = f"of which the network has none: it has {shown(class_names)}"
        raise UserError(f"{folder} has the classes {shown(unknown)}, {known}")
    files = files[: config.eval_examples or None]
    sizes = read_headers(folder, group).sizes
    if len(sizes) > 1 or sizes[0][1:] != shape[:2]:
        note(f"{folder}: images are resized to {shape[0]}x{shape[1]} pixels")
    images = DecodedImages(folder, {split: group}, shape)
    images.prepare(files, must_be_kept=False)
    labels = np.array([class_names.index(file.class_name) for file in files], np.int32)
    on_count(len(files))
    for start in range(0, len(files), batch_size):
        batch = slice(start, start + batch_size)
        yield images.read(files[batch]), labels[batch]
