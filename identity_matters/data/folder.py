"""A folder of your own images as a data set: its files are found, its images decoded as they are needed.

    FOLDER/train/CLASS/…   FOLDER/test/CLASS/…      two splits; Train/ and Test/ are the same
    FOLDER/CLASS/…                                  one folder; a share of its files, chosen by name, is for testing

A file's place in the order is a hash of its name inside its class folder, so that the classes are mixed, the first
files are a sample of all, and those whose hash is lowest are the ones to test on: a new file moves no other one.

Images are decoded by Pillow, in threads. Those of a folder that does not fit in memory are decoded whenever they are
needed.
"""

import concurrent.futures
import contextlib
import hashlib
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageOps
from tqdm import tqdm

from identity_matters.config import DataConfig
from identity_matters.data.base import SPLITS, Source, Split
from identity_matters.errors import UserError, VaryingSizes, note, reason_of
from identity_matters.runs.files import open_file
from identity_matters.untrusted import open_image

SUFFIXES = (".png", ".jpg", ".jpeg")
TRAIN = "train"
TEST = "test"
TWO_SPLITS = (
    "name two with --train_split and --test_split (train_split=…, test_split=…), or hold some of one out with "
    "--validation_examples=100 (validation_examples=100)"
)
_MAX_SHOWN = 5  # names in a message
_FILES_AT_ONCE = 16  # by a thread: one at a time, small ones take longer to hand over than to decode
_GREY = ("1", "L", "LA")
_TURNED = (5, 6, 7, 8)  # EXIF orientations that exchange height and width
_ORIENTATION = 0x0112


class ImageFile(NamedTuple):
    """A file inside the folder: its name is the path from there; place is the hash that orders it, below 2⁶⁴."""

    place: int
    class_name: str
    name: str


class _Header(NamedTuple):
    """The properties of a file that need no decoding: the size of the image, whether it is grey, and its CRC-32."""

    height: int
    width: int
    is_grey: bool
    checksum: int


class FolderSource(Source):
    """The images of the folder config.images, of classes that are folders.

    Attributes:
      image_shape: (height, width, channels) of the images; the channels are 1 if all of them are grey.
      class_names: The names of the class folders; an image's label is the index of its class.

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
        self.folder = config.images
        self.name = os.path.basename(os.path.abspath(self.folder))
        self._headers: dict[ImageFile, _Header] = {}
        self._pool = concurrent.futures.ThreadPoolExecutor(os.cpu_count())
        if image_shape is None:
            self._files = dict(zip(SPLITS, read_splits(config)))
            self.class_names = _classes(self._files["train"])
            self.num_classes = config.num_classes or len(self.class_names)
            if self.num_classes < len(self.class_names):
                raise UserError(
                    f"num_classes is {config.num_classes}, but {self.folder} has {len(self.class_names)} class folders"
                )
            self.image_shape = self._own_shape(config.image_size)
        else:
            self._files = {"train": [], "test": files_to_evaluate_on(config)}
            self.image_shape = image_shape
            self.num_classes = config.num_classes
            self.class_names = self._classes_of_network(class_names)
        self._labels = {name: label for label, name in enumerate(self.class_names)}

    @property
    def digest(self) -> str:
        """A digest of the names and contents of all files."""
        result = hashlib.blake2b(digest_size=8)
        files = [file for split in SPLITS for file in self._files[split]]
        for file, header in zip(files, self._read_headers(files)):
            # No file name contains a zero byte, so a name cannot run into the checksum behind it.
            result.update(os.fsencode(file.name) + b"\0" + header.checksum.to_bytes(4, "little"))
        return result.hexdigest()

    def num(self, split: Split) -> int:
        """Returns the number of images of a split."""
        return len(self._files[split])

    def labels(self, split: Split) -> np.ndarray:
        """Returns the labels of a whole split."""
        return np.array([self._labels[file.class_name] for file in self._files[split]], np.int32)

    def read(
        self, split: Split, indices: np.ndarray, places: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns examples of a split; images are resized as a whole."""
        files = [self._files[split][i] for i in indices]
        paths = [os.path.join(self.folder, file.name) for file in files]
        images = self._in_threads(lambda path: decode(path, self.image_shape), paths)
        labels = np.array([self._labels[file.class_name] for file in files], np.int32)
        # NumPy gives an empty list the shape [0]; the reshape restores the other axes.
        return np.array(images, np.uint8).reshape(-1, *self.image_shape), labels

    def _in_threads(self, work: Callable, items: Sequence) -> list:
        """Returns what work gives for each item, in order."""
        parts = [items[i : i + _FILES_AT_ONCE] for i in range(0, len(items), _FILES_AT_ONCE)]
        futures = [self._pool.submit(lambda part: [work(item) for item in part], part) for part in parts]
        try:
            return [result for future in futures for result in future.result()]
        finally:
            for future in futures:  # a Ctrl-C need not wait for the images to come
                future.cancel()

    def _read_headers(self, files: Sequence[ImageFile]) -> list[_Header]:
        """Returns the headers of files; each is read once."""
        missing = [file for file in files if file not in self._headers]
        size = 64 * _FILES_AT_ONCE
        with tqdm(total=len(missing), unit=" files", desc=f"reading {self.name}", disable=None, delay=1) as bar:
            for start in range(0, len(missing), size):
                chunk = missing[start : start + size]
                headers = self._in_threads(lambda file: read_header(os.path.join(self.folder, file.name)), chunk)
                self._headers.update(zip(chunk, headers))
                bar.update(len(chunk))
        return [self._headers[file] for file in files]

    def _own_shape(self, image_size: int) -> tuple[int, int, int]:
        """Returns the shape of the images; raises VaryingSizes if they have several and none is given."""
        files = [file for split in SPLITS for file in self._files[split]]
        headers = self._read_headers(files)
        channels = 1 if all(header.is_grey for header in headers) else 3
        if image_size:
            return image_size, image_size, channels
        height, width = headers[0].height, headers[0].width
        for file, header in zip(files, headers):
            if (header.height, header.width) != (height, width):
                raise VaryingSizes(
                    f"the images of {self.folder} vary in size, {height}x{width} ({files[0].name}) and "
                    f"{header.height}x{header.width} ({file.name}); give --image_size=32 (image_size=32), say"
                )
        return height, width, channels

    def _classes_of_network(self, class_names: Sequence[str]) -> tuple[str, ...]:
        """Returns the classes of a network, by name; raises UserError if the folder has others."""
        present = _classes(self._files["test"])
        unknown = sorted(set(present) - set(class_names)) if class_names else ()
        if unknown:
            raise UserError(
                f"{self.folder} has the classes {listing(unknown)}, of which the network has none: it has "
                f"{listing(class_names)}"
            )
        if not class_names and len(present) != self.num_classes:
            raise UserError(
                f"{self.folder} has {len(present)} class folders, the network {self.num_classes} classes of unknown "
                "names; evaluate on as many class folders, in the order of the classes"
            )
        return tuple(class_names) or present


def _classes(files: Iterable[ImageFile]) -> tuple[str, ...]:
    return tuple(sorted({file.class_name for file in files}))


def read_splits(config: DataConfig) -> tuple[list[ImageFile], list[ImageFile]]:
    """Returns the files to train and to test on of a folder as described above, in order.

    Raises:
      UserError: a class has no file, there is only one class, the splits differ in their classes, or the folder is of
        another form; the message says what to do.
    """
    folder = config.images
    train_folder = split_folder(folder, config.train_split, TRAIN)
    test_folder = split_folder(folder, config.test_split, TEST)
    if train_folder and test_folder:
        if config.test_share:
            raise UserError(f"{folder} has folders to train and to test on; leave out --test_share (test_share)")
        train, test = list_files(folder, train_folder), list_files(folder, test_folder)
        _check_same_classes(folder, train, test)
        if set(train) & set(test) and not config.validation_examples:
            raise UserError(f"images of {folder} are in both the training and the test split; {TWO_SPLITS}")
    elif train_folder or test_folder or config.train_split or config.test_split:
        missing = (config.test_split or TEST) if train_folder else (config.train_split or TRAIN)
        folders = listing(sorted(entry.name for entry in _entries(folder) if entry.is_dir()))
        raise UserError(
            f"{folder} has no folder {missing}/, only {folders}; --train_split and --test_split (train_split=…, "
            "test_split=…) name others"
        )
    else:
        train, test = _split_by_name(folder, config.test_share)
    classes = _classes(train)
    if len(classes) < 2:
        raise UserError(f"{folder} has only one class, {listing(classes)}; give each class a folder inside it")
    return train, test


def _check_same_classes(folder: str, train: list[ImageFile], test: list[ImageFile]) -> None:
    classes = set(_classes(train))
    tested = set(_classes(test))
    if classes != tested:
        raise UserError(
            f"the class folders of {folder} differ: only the training split has {listing(sorted(classes - tested))}, "
            f"only the test split {listing(sorted(tested - classes))}; give both the same"
        )


def split_folder(folder: str, name: str, usual: str) -> str:
    """Returns the name of the folder of a split: the given one, or else the usual one in any case; "" if missing."""
    names = [entry.name for entry in _entries(folder) if entry.is_dir()]
    if name:
        return name if name in names else ""
    # Upper case sorts before lower case, so in reverse order train/ is preferred to Train/.
    return next((found for found in sorted(names, reverse=True) if found.lower() == usual), "")


def _split_by_name(folder: str, test_share: float) -> tuple[list[ImageFile], list[ImageFile]]:
    files = list_files(folder)
    if not test_share:
        raise UserError(
            f"{folder} holds the classes {listing(_classes(files))}, and no train/ and test/; --test_share=0.2 "
            "(test_share=0.2) tests on a fifth of them, chosen by their names"
        )
    train = [file for file in files if not is_tested(file, test_share)]
    test = [file for file in files if is_tested(file, test_share)]
    missing = set(_classes(files)) - set(_classes(train))
    if missing or not test:
        lacking = f"nothing to train on in the classes {listing(sorted(missing))}" if missing else "nothing to test on"
        raise UserError(f"test_share {test_share:g} leaves {lacking} of {folder}; change it, or add images")
    return train, test


def is_tested(file: ImageFile, test_share: float) -> bool:
    """Returns whether a file of a folder without splits is one to test on."""
    return file.place < test_share * 2**64


def files_to_evaluate_on(config: DataConfig) -> list[ImageFile]:
    """Returns the files to evaluate on, in order: those in test/ (config.test_split), or else its test_share (0: all).

    Raises UserError if there are none, or as `read_splits`; one class suffices.
    """
    folder = config.images
    split = split_folder(folder, config.test_split, TEST)
    if config.test_split and not split:
        raise UserError(f"{folder} has no folder {config.test_split}/")
    files = list_files(folder, split)
    if split or not config.test_share:
        return files
    files = [file for file in files if is_tested(file, config.test_share)]
    if not files:
        raise UserError(f"test_share {config.test_share:g} leaves nothing of {folder} to test on")
    return files


def check_run_dir_outside_images(config: DataConfig, path: str) -> None:
    """Raises UserError if files written at a path would be read as images of the folder that a config names."""
    # Joining with "" appends a separator: without it, photos2/ would count as inside photos/.
    if config.images and os.path.join(os.path.realpath(path), "").startswith(
        os.path.join(os.path.realpath(config.images), "")
    ):
        raise UserError(f"{path} is in the folder of images {config.images}; choose another")


def list_files(folder: str, split: str = "") -> list[ImageFile]:
    """Returns the images of a folder of class folders in order; raises UserError if it is none."""
    # Without a split, join leaves a slash at the end, which messages would double; "/" itself must stay.
    root = os.path.join(folder, split).rstrip(os.sep) or os.sep
    classes = sorted(entry.name for entry in _entries(root) if entry.is_dir())
    if not classes:
        raise UserError(f"{root} holds no folders; put the images of each class into a folder of its name")
    files = []
    ignored = []
    for class_name in classes:
        names = sorted(walk(os.path.join(root, class_name)))
        images = [name for name in names if name.lower().endswith(SUFFIXES)]
        ignored += [name for name in names if not name.lower().endswith(SUFFIXES)]
        if not images:
            raise UserError(f"the class folder {root}/{class_name} holds no PNG or JPEG file; remove it, or fill it")
        for name in images:
            inside = os.path.relpath(name, os.path.join(root, class_name))
            place = int.from_bytes(hashlib.blake2b(os.fsencode(inside), digest_size=8).digest(), "big")
            files.append(ImageFile(place, class_name, os.path.relpath(name, folder)))
    if ignored:
        note(f"{root}: {len(ignored)} files are not read, as their names end in none of {', '.join(SUFFIXES)}: "
             f"{listing(os.path.basename(name) for name in ignored)}")  # fmt: skip
    return sorted(files)  # by place, the first field of ImageFile


def walk(path: str) -> Iterator[str]:
    """Yields the paths of the files in a folder and its subfolders, without hidden ones."""
    for entry in _entries(path):
        # Links are not followed, because one to a parent folder would make the walk endless.
        if entry.is_dir(follow_symlinks=False):
            yield from walk(entry.path)
        else:
            yield entry.path


def _entries(path: str) -> list[os.DirEntry]:
    """Returns the entries of a folder, without hidden files."""
    try:
        with os.scandir(path) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise UserError(f"cannot read the folder of images {path}: {error.strerror}") from error


def listing(names: Iterable[str]) -> str:
    """Returns the first names, and how many there are beyond them."""
    names = list(names)
    text = ", ".join(names[:_MAX_SHOWN])
    return f"{text} and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else text or "none"


def read_header(path: str) -> _Header:
    """Returns the header of an image file; raises UserError if it cannot be read."""
    with _naming(path), open_file(path) as opened:
        # The whole file is read, not only its header, because the digest needs its checksum.
        content = opened.read()
        image = open_image(content)
        # A JPEG is turned as its EXIF data say. Pillow would decode a whole PNG to find them.
        is_turned = image.format != "PNG" and image.getexif().get(_ORIENTATION) in _TURNED
        height, width = (image.width, image.height) if is_turned else (image.height, image.width)
        return _Header(height, width, image.mode in _GREY, zlib.crc32(content))


def decode(path: str, shape: tuple[int, int, int]) -> np.ndarray:
    """Returns the image of a PNG or JPEG file as uint8 [h, w, c] of a shape, whose c is 1 or 3.

    A JPEG is turned as its EXIF data say, transparency is dropped, and another size resized as a whole, bilinear with
    antialiasing. Raises UserError, with the path, if it cannot be read.
    """
    height, width, channels = shape
    with _naming(path), open_file(path) as file:
        image = open_image(file.read())
        mode = "L" if channels == 1 else "RGB"
        # libjpeg decodes a much larger JPEG at 1/2, 1/4 or 1/8 of its size, here at least twice the needed one: up to
        # 64 times as fast.
        image.draft(mode, (2 * max(height, width),) * 2)
        # The test is for PNG because Pillow calls a phone's JPEG with a second image in it MPO, not JPEG.
        turned: Any = image if image.format == "PNG" else ImageOps.exif_transpose(image)
        turned = turned.convert(mode)
        if turned.size != (width, height):
            turned = turned.resize((width, height), Image.Resampling.BILINEAR)
        return np.asarray(turned).reshape(shape)


@contextlib.contextmanager
def _naming(path: str) -> Iterator[None]:
    """Context manager: an error of Pillow on a damaged file becomes a UserError that names it."""
    try:
        yield
    # The file is not at fault.
    except MemoryError:
        raise
    except Exception as error:  # Pillow raises almost any
        raise UserError(f"cannot read {path}: {reason_of(error)}; remove it, or write it again") from error
