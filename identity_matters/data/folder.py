"""A folder of your own images as a data set: its files are found and checked, its images decoded as they are needed.

    FOLDER/train/CLASS/…   FOLDER/test/CLASS/…      two splits
    FOLDER/CLASS/…                                  one folder; a share of its files, chosen by name, is for testing

A file's place in the order is a hash of its name inside its class folder, so that the classes are mixed, the first
files are a sample of all, and those whose hash is lowest are the ones to test on: a new file moves no other one.

Images are decoded by Pillow, in threads. Those of a folder that does not fit in memory are decoded whenever they are
needed, but for the first 2 GB, which are kept.
"""

import concurrent.futures
import contextlib
import hashlib
import io
import math
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError
from tqdm import tqdm

from identity_matters.config import DataConfig
from identity_matters.data.source import MAX_BYTES_IN_MEMORY, SPLITS, TWO_SPLITS, Source, Split
from identity_matters.errors import UserError, VaryingSizes, note, reason_of, truncated_repr
from identity_matters.fields import require
from identity_matters.runs.files import open_file

SUFFIXES = (".png", ".jpg", ".jpeg")
TRAIN, TEST = "train", "test"
_MAX_SHOWN = 5  # names in a message
_FORMATS = ("PNG", "JPEG")
_MAX_PIXELS = 2**26  # of an image: 8192², decoded by each core at once
_MAX_FILE_BYTES = 2**28
_FILES_AT_ONCE = 16  # by a thread: one at a time, small ones take longer to hand over than to decode
_GREY = ("1", "L", "LA")
_JPEG = ("JPEG", "MPO")  # as phones write them, with a second image
_TURNED = (5, 6, 7, 8)  # EXIF orientations that exchange height and width
_ORIENTATION = 0x0112
_BIT_DEPTH = 24  # the byte of a PNG that says it: of a channel, in the header that begins each file
_SPLIT_NAMES = [
    rf"({word})[ _-]?(set|data|images|split)?" for word in ("train(ing)?", "test(ing)?", "val(id(ation)?)?|eval|dev")
]


class ImageFile(NamedTuple):
    """A file inside the folder: its name is the path from there; place is the hash that orders it, below 2⁶⁴."""

    place: int
    class_name: str
    name: str


class _Contents(NamedTuple):
    """What a file holds, known without decoding it: the size of the image, whether it is grey, and its CRC-32."""

    height: int
    width: int
    is_grey: bool
    checksum: int


class FolderSource(Source):
    """The images of the folder config.images, of classes that are folders.

    Attributes:
      image_shape: (height, width, channels) of the images; the channels are 1 where all of them are grey.
      class_names: The names of the class folders; an image's label is the place of its class among them.

    Args:
      config: DataConfig.
      class_names: The classes of a network that is evaluated (none: those of the folder).
      image_shape: The shape that it takes (None: that of the folder). Then the folder need not have images to train on,
        and without test/ or a test_share all of it is tested on.

    Raises:
      UserError: the folder or a file of it cannot be used; the message names it.
    """

    def __init__(
        self, config: DataConfig, class_names: Sequence[str] = (), image_shape: tuple[int, int, int] | None = None
    ) -> None:
        self._config, self.folder = config, config.images
        self.name = os.path.basename(os.path.abspath(self.folder))
        self._contents: dict[ImageFile, _Contents] = {}
        self._kept: dict[ImageFile, np.ndarray] = {}
        self._pool = concurrent.futures.ThreadPoolExecutor(os.cpu_count())
        if image_shape is None:
            self._files = dict(zip(SPLITS, read_splits(config)))
            self.class_names = _classes(self._files["train"])
            self.num_classes = config.num_classes or len(self.class_names)
            few = f"num_classes is {config.num_classes}, but {self.folder} has {len(self.class_names)} class folders"
            require(self.num_classes >= len(self.class_names), few)
            self.image_shape = self._own_shape()
        else:
            self._files = {"train": [], "test": files_to_evaluate_on(config)}
            self.image_shape, self.num_classes = image_shape, config.num_classes
            self.class_names = self._classes_of(class_names)
            self._say_resizing()
        num_bytes = sum(map(len, self._files.values())) * math.prod(self.image_shape)
        self._room = MAX_BYTES_IN_MEMORY if num_bytes > MAX_BYTES_IN_MEMORY else 0  # else all are read once, and held
        self._numbers = {name: label for label, name in enumerate(self.class_names)}

    @property
    def digest(self) -> str:
        """Returns a digest of the names and contents of all files."""
        result = hashlib.blake2b(digest_size=8)
        files = [file for split in SPLITS for file in self._files[split]]
        for file, contents in zip(files, self._read_contents(files)):
            result.update(os.fsencode(file.name) + b"\0" + contents.checksum.to_bytes(4, "little"))
        return result.hexdigest()

    def num(self, split: Split) -> int:
        """Returns the number of images of a split."""
        return len(self._files[split])

    def labels(self, split: Split) -> np.ndarray:
        """Returns the labels of a whole split."""
        return np.array([self._numbers[file.class_name] for file in self._files[split]], np.int32)

    def read(
        self, split: Split, indices: np.ndarray, places: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns examples of a split; images are resized as a whole."""
        files = [self._files[split][i] for i in indices]
        images = np.empty((len(files), *self.image_shape), np.uint8)
        missing = [i for i, file in enumerate(files) if file not in self._kept]
        for i in set(range(len(files))).difference(missing):
            images[i] = self._kept[files[i]]

        def decode(part: Sequence[int]) -> None:
            for i in part:
                images[i] = decoded(os.path.join(self.folder, files[i].name), self.image_shape)

        self._in_threads(decode, missing)
        for i in missing:
            if self._room >= images[i].nbytes and files[i] not in self._kept:
                self._kept[files[i]] = images[i].copy()
                self._room -= images[i].nbytes
        return images, np.array([self._numbers[file.class_name] for file in files], np.int32)

    def _in_threads(self, work: Callable[[Sequence], Any], items: Sequence) -> list:
        """Returns what work gives for parts of the items, in turn; raises the error of the first part that fails."""
        parts = [items[i : i + _FILES_AT_ONCE] for i in range(0, len(items), _FILES_AT_ONCE)]
        futures = [self._pool.submit(work, part) for part in parts]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:  # a Ctrl-C need not wait for the images to come
                future.cancel()

    def _read_contents(self, files: Sequence[ImageFile]) -> list[_Contents]:
        """Returns what files hold; each is read once."""
        missing = [file for file in files if file not in self._contents]
        size = 64 * _FILES_AT_ONCE
        with tqdm(total=len(missing), unit=" files", desc=f"reading {self.name}", disable=None, delay=1) as bar:
            for start in range(0, len(missing), size):
                chunk = missing[start : start + size]
                parts = self._in_threads(lambda part: [contents_of(self.folder, file) for file in part], chunk)
                self._contents.update(zip(chunk, (contents for part in parts for contents in part)))
                bar.update(len(chunk))
        return [self._contents[file] for file in files]

    def _own_shape(self) -> tuple[int, int, int]:
        """Returns the shape of the images; raises VaryingSizes where they have several and none is given."""
        files = [file for split in SPLITS for file in self._files[split]]
        contents = self._read_contents(files)
        channels = 1 if all(image.is_grey for image in contents) else 3
        if self._config.image_size:
            return self._config.image_size, self._config.image_size, channels
        height, width = contents[0].height, contents[0].width
        for file, image in zip(files, contents):
            if (image.height, image.width) != (height, width):
                raise VaryingSizes(
                    f"the images of {self.folder} vary in size, {height}x{width} ({files[0].name}) and "
                    f"{image.height}x{image.width} ({file.name}); give --image_size=32 (image_size=32), say"
                )
        return height, width, channels

    def _classes_of(self, class_names: Sequence[str]) -> tuple[str, ...]:
        """Returns the classes of a network, by name; raises UserError where the folder has others."""
        present = _classes(self._files["test"])
        if not class_names and len(present) != self.num_classes:
            raise UserError(
                f"{self.folder} has {len(present)} class folders, the network {self.num_classes} classes of unknown "
                "names; evaluate on as many class folders, in the order of the classes"
            )
        if unknown := sorted(set(present) - set(class_names)) if class_names else ():
            known = f"of which the network has none: it has {shown(class_names)}"
            raise UserError(f"{self.folder} has the classes {shown(unknown)}, {known}")
        return tuple(class_names) or present

    def _say_resizing(self) -> None:
        height, width, _ = self.image_shape
        if any((image.height, image.width) != (height, width) for image in self._read_contents(self._files["test"])):
            note(f"{self.folder}: images are resized to {height}x{width} pixels")


def _classes(files: Iterable[ImageFile]) -> tuple[str, ...]:
    return tuple(sorted({file.class_name for file in files}))


def read_splits(config: DataConfig) -> tuple[list[ImageFile], list[ImageFile]]:
    """Returns the files to train and to test on of a folder as described above, in order.

    Raises:
      UserError: a class has no file, there is one class alone, the splits differ in their classes, a file is a link out
        of the folder or not a regular file, or the folder is of another form; the message says what to do.
    """
    folder, names = config.images, (config.train_split or TRAIN, config.test_split or TEST)
    if not _has_splits(folder, config.train_split, config.test_split):
        return _read_unsplit(folder, config.test_share)
    has_its_own = f"{folder} has folders to train and to test on; leave out --test_share"
    require(not config.test_share, f"{has_its_own} (test_share={config.test_share:g})")
    train, test = (split_files(folder, name) for name in names)
    classes, tested = _classes(train), _classes(test)
    if classes != tested:
        alone = [shown(sorted(set(ours) - set(others))) for ours, others in ((classes, tested), (tested, classes))]
        raise UserError(
            f"the class folders of {folder} differ: {names[0]}/ alone has {alone[0]}, {names[1]}/ alone has "
            f"{alone[1]}; give both the same"
        )
    _require_several(folder, classes)
    both = set(train) & set(test)
    is_both = f"{len(both)} images of {folder} are in both the training and the test split"
    require(not both or config.validation_examples > 0, f"{is_both}; {TWO_SPLITS}")
    return train, test


def _require_several(folder: str, classes: Sequence[str]) -> None:
    advice = "at least two are needed; a class is a folder of its own, right in this one, or in train/ and test/"
    require(len(classes) > 1, f"{folder} has only one class, {shown(classes)}; {advice}")


def _has_splits(folder: str, train_split: str, test_split: str) -> bool:
    """Returns whether a folder holds its splits, or raises UserError where it holds one of them alone."""
    names = (train_split or TRAIN, test_split or TEST)
    missing = [name for name in names if not os.path.isdir(os.path.join(folder, name))]
    if not missing:
        return True
    if len(missing) == 2 and not (train_split or test_split):
        return False
    folders = shown(sorted(entry.name for entry in _entries(folder) if entry.is_dir()))
    raise UserError(
        f"{folder} has no folder {missing[0]}/, only {folders}; --train_split and --test_split (train_split=…, "
        "test_split=…) name others"
    )


def _read_unsplit(folder: str, test_share: float) -> tuple[list[ImageFile], list[ImageFile]]:
    files = split_files(folder)
    classes = _classes(files)
    _require_several(folder, classes)
    if not test_share:
        raise UserError(
            f"{folder} holds the classes {shown(classes)}, and no train/ and test/; --test_share=0.2 (test_share=0.2) "
            "tests on a fifth of them, chosen by their names"
        )
    train = [file for file in files if not is_tested(file, test_share)]
    test = [file for file in files if is_tested(file, test_share)]
    empty = sorted(set(classes) - set(_classes(train)))
    share = f"of {folder}, test_share {test_share:g} leaves"
    require(not empty, f"{share} nothing to train on in the classes {shown(empty)}; make it smaller, or add images")
    require(bool(test), f"{share} nothing to test on; make it larger, or add images")
    if absent := sorted(set(classes) - set(_classes(test))):
        note(f"{share} nothing to test on in the classes {shown(absent)}")
    elif not 0.5 <= len(test) / (test_share * len(files)) <= 2:
        note(f"{share} {len(test):,} of {len(files):,} images to test on: equal names in several classes go together")
    return train, test


def is_tested(file: ImageFile, test_share: float) -> bool:
    """Returns whether a file of a folder without splits is one to test on."""
    return file.place < test_share * 2**64


def files_to_evaluate_on(config: DataConfig) -> list[ImageFile]:
    """Returns the files to evaluate on, in order: those in test/ (config.test_split) or, of a folder without it, its
    test_share (0: all).

    Raises UserError where there are none, or as `read_splits`; one class suffices.
    """
    folder, test_split = config.images, config.test_split
    has_split = os.path.isdir(os.path.join(folder, test_split or TEST))
    require(has_split or not test_split, f"{folder} has no folder {test_split}/")
    files = split_files(folder, (test_split or TEST) if has_split else "")
    if has_split or not config.test_share:
        return files
    files = [file for file in files if is_tested(file, config.test_share)]
    require(bool(files), f"test_share {config.test_share:g} leaves nothing of {folder} to test on")
    return files


def require_apart(config: DataConfig, path: str) -> None:
    """Raises UserError where what is written at a path would be read as images of the folder that a config names."""
    if not config.images:
        return
    splits = [os.path.join(config.images, name) for name in (config.train_split or TRAIN, config.test_split or TEST)]
    is_split = any(map(os.path.isdir, splits))
    for root in splits if is_split else [config.images]:
        is_inside = os.path.join(os.path.realpath(path), "").startswith(os.path.join(os.path.realpath(root), ""))
        require(not is_inside, f"{path} is in the folder of images {root}, where it would be a class; choose another")


def split_files(folder: str, split: str = "") -> list[ImageFile]:
    """Returns the images of a folder of class folders in order; raises UserError where it is none."""
    root = os.path.join(folder, split).rstrip(os.sep) or os.sep
    classes = [entry for entry in _entries(root) if _is_class(entry, folder)]
    if not split:
        _require_no_splits(folder, [entry.name for entry in classes])
    if not classes:
        holds_images = any(entry.name.lower().endswith(SUFFIXES) for entry in _entries(root))
        contents = "images, but no folders" if holds_images else "no folders"
        raise UserError(f"{root} holds {contents}; put the images of each class into a folder of its name")
    files, left_out = [], []
    for entry in classes:
        contents = [file for file in walk(entry.path, folder) if not _is_left_out(file, left_out)]
        if not contents:
            raise UserError(f"the class folder {entry.path} holds no PNG or JPEG file; remove it, or fill it")
        files += [_image_file(file, folder, root, entry.name) for file in contents]
    if left_out:
        note(f"{root}: {len(left_out)} files are left out, as their names end in none of {', '.join(SUFFIXES)}: "
             f"{shown(sorted(left_out))}")  # fmt: skip
    return sorted(files)


def _require_no_splits(folder: str, names: Sequence[str]) -> None:
    """Raises UserError where folders that would be classes are called as splits are, as Train and Test, or test-set."""
    looks = [[name for name in sorted(names) if re.fullmatch(pattern, name, re.I)] for pattern in _SPLIT_NAMES]
    train, test = looks[0], [name for found in looks[1:] for name in found]
    if train and test:
        raise UserError(
            f"{folder} has folders {train[0]}/ and {test[0]}/, which look like splits and not like classes; "
            f"rename them to {TRAIN}/ and {TEST}/, or read them with --train_split={train[0]} --test_split={test[0]} "
            f"(train_split={train[0]!r}, test_split={test[0]!r})"
        )


def _is_left_out(entry: os.DirEntry, names: list[str]) -> bool:
    """Returns whether a file's name is not an image's, and adds it to the names."""
    if entry.name.lower().endswith(SUFFIXES):
        return False
    names.append(entry.name)
    return True


def _is_class(entry: os.DirEntry, folder: str) -> bool:
    """Returns whether an entry is a class folder; raises UserError for a link to a folder, or a name of no text."""
    if not entry.is_dir():
        return False
    _check_link(entry, folder)
    require(
        entry.name.isprintable(), f"the class folder {truncated_repr(entry.path)} has a name that cannot be printed"
    )
    return True


def _image_file(entry: os.DirEntry, folder: str, root: str, class_name: str) -> ImageFile:
    try:
        status = entry.stat()
    except OSError as error:
        raise UserError(f"cannot read {entry.path}: {error.strerror}") from error
    require(stat.S_ISREG(status.st_mode), f"{entry.path} is not a regular file")
    inside = os.path.relpath(entry.path, os.path.join(root, class_name))
    place = int.from_bytes(hashlib.blake2b(os.fsencode(inside), digest_size=8).digest(), "big")
    return ImageFile(place, class_name, os.path.relpath(entry.path, folder))


def walk(path: str, folder: str) -> Iterator[os.DirEntry]:
    """Yields the files in a folder and in those in it, but for hidden ones; raises UserError for a link that leaves."""
    waiting = [path]
    while waiting:
        for entry in _entries(waiting.pop()):
            _check_link(entry, folder)
            if entry.is_dir():
                waiting.append(entry.path)
            else:
                yield entry


def _entries(path: str) -> list[os.DirEntry]:
    """Returns what a folder holds, but for hidden files."""
    try:
        with os.scandir(path) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise UserError(f"cannot read the folder of images {path}: {error.strerror}") from error


def _check_link(entry: os.DirEntry, folder: str) -> None:
    """Raises UserError for a link out of the folder, or to a folder, whose files would be found twice or for ever."""
    if not entry.is_symlink():
        return
    target, inside = os.path.realpath(entry.path), os.path.join(os.path.realpath(folder), "")
    require(not os.path.isdir(target), f"{entry.path} is a link to a folder; put the folder itself there")
    require(
        target.startswith(inside), f"{entry.path} is a link out of {folder}, to {target}; put the file itself there"
    )


def shown(names: Iterable[str]) -> str:
    """Returns the first names, and how many there are beyond them."""
    names = list(names)
    shown = ", ".join(truncated_repr(name) if not name.isprintable() else name for name in names[:_MAX_SHOWN])
    return f"{shown} and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else shown or "none"


def contents_of(folder: str, file: ImageFile) -> _Contents:
    """Returns what a file holds, by its header; raises UserError where it is none that can be read."""
    path = os.path.join(folder, file.name)
    with _reading(path), open_file(path) as opened:
        content = opened.read(_MAX_FILE_BYTES + 1)
        image = _open_image(content)
        # A JPEG is turned as its EXIF data say. Of a PNG, Pillow would decode all to find them.
        is_turned = image.format in _JPEG and image.getexif().get(_ORIENTATION) in _TURNED
        height, width = (image.width, image.height) if is_turned else (image.height, image.width)
        return _Contents(height, width, image.mode in _GREY, zlib.crc32(content))


def decoded(path: str, shape: tuple[int, int, int]) -> np.ndarray:
    """Returns the image of a PNG or JPEG file as uint8 [h, w, c] of a shape, whose c is 1 or 3.

    A JPEG is turned as its EXIF data say, transparency is dropped, and another size resized as a whole, bilinear with
    antialiasing.

    Raises:
      UserError: it is damaged, too large, or not a PNG or JPEG of 8 bits.
    """
    height, width, channels = shape
    with _reading(path), open_file(path) as file:
        image = _open_image(file.read(_MAX_FILE_BYTES + 1))
        mode = "L" if channels == 1 else "RGB"
        # Of a much larger JPEG no more is decoded than twice what is needed: 4, 16 or 64 times as fast.
        image.draft(mode, (2 * max(height, width),) * 2)
        turned = ImageOps.exif_transpose(image) if image.format in _JPEG else image
        turned = turned.convert(mode)
        if turned.size != (width, height):
            turned = turned.resize((width, height), Image.Resampling.BILINEAR)
        return np.asarray(turned).reshape(shape)


def _open_image(content: bytes) -> Image.Image:
    """Returns the image of a file, whose header alone is read; raises UserError where more should not be."""
    require(len(content) <= _MAX_FILE_BYTES, f"it has more than {_MAX_FILE_BYTES:,} bytes")
    try:
        image = Image.open(io.BytesIO(content), formats=_FORMATS)
        pixels = image.width * image.height
    except Image.DecompressionBombError as error:
        raise UserError(f"it declares far more than the {_MAX_PIXELS:,} pixels that are decoded") from error
    declared = f"it declares {image.height}x{image.width} pixels, at most {_MAX_PIXELS:,} in all are decoded"
    require(pixels <= _MAX_PIXELS, declared)
    # Pillow gives the upper half of each 16 bits of a colour PNG; of a camera of 12 bits that is nearly black.
    is_deep = image.mode.startswith("I") or image.format == "PNG" and content[_BIT_DEPTH] == 16
    require(not is_deep, "its pixels have 16 bits; only those of 8 are read")
    return image


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
    """Opens a context that raises a UserError, naming the file, for any error that Pillow raises on a damaged one."""
    try:
        yield
    except MemoryError:
        raise
    except UnidentifiedImageError as error:
        raise UserError(
            f"cannot read {path}: it is not a PNG or JPEG, or is damaged; remove it, or write it again"
        ) from error
    except Exception as error:
        raise UserError(f"cannot read {path}: {reason_of(error)}; remove it, or write it again") from error
