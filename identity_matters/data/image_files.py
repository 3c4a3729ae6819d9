"""The files of a folder of images: found, checked, and put in an order that does not change when files are added.

    FOLDER/train/CLASS/…   FOLDER/test/CLASS/…      two splits
    FOLDER/CLASS/…                                  one folder; a share of its files, chosen by name, is for testing

A file's place in the order is a hash of its name inside its class folder, so that the classes are mixed, the first
files are a sample of all, and those whose hash is lowest are the ones to test on: a new file moves no other one.
"""

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from identity_matters.data.arrays import note
from identity_matters.errors import UserError, truncated_repr
from identity_matters.fields import require

SUFFIXES = (".png", ".jpg", ".jpeg")
_MAX_SHOWN = 5  # names in a message
TRAIN, TEST = "train", "test"


class ImageFile(NamedTuple):
    """A file inside the folder: its name is the path from there; place is the hash that orders it, below 2⁶⁴."""

    place: int
    class_name: str
    name: str
    num_bytes: int
    mtime_ns: int


class Splits(NamedTuple):
    """The files to train and to test on, in order, and the classes, whose labels are 0, 1, … by their names."""

    train: list[ImageFile]
    test: list[ImageFile]
    class_names: tuple[str, ...]


def read_splits(folder: str, test_share: float = 0.0, train_split: str = "", test_split: str = "") -> Splits:
    """Returns the files to train and to test on of a folder as described above.

    Raises:
      UserError: a class has no file, there is one class alone, the splits differ in their classes, a file is a link out
        of the folder or not a regular file, or the folder is of another form; the message says what to do.
    """
    if not _has_splits(folder, train_split, test_split):
        return _read_unsplit(folder, test_share)
    has_its_own = f"{folder} has folders to train and to test on; leave out --test_share (test_share={test_share:g})"
    require(not test_share, has_its_own)
    train, test = (split_files(folder, name) for name in (train_split or TRAIN, test_split or TEST))
    classes, tested = (sorted({file.class_name for file in files}) for files in (train, test))
    if classes != tested:
        alone = [shown(sorted(set(ours) - set(others))) for ours, others in ((classes, tested), (tested, classes))]
        raise UserError(
            f"the class folders of {folder} differ: {train_split or TRAIN}/ alone has {alone[0]}, "
            f"{test_split or TEST}/ alone has {alone[1]}; give both the same"
        )
    _require_several(folder, classes)
    return Splits(train, test, tuple(classes))


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
    found = shown(sorted(entry.name for entry in _entries(folder) if entry.is_dir()))
    raise UserError(
        f"{folder} has no folder {missing[0]}/, only {found}; --train_split and --test_split (train_split=…, "
        "test_split=…) name others"
    )


def _read_unsplit(folder: str, test_share: float) -> Splits:
    files = split_files(folder)
    classes = tuple(sorted({file.class_name for file in files}))
    _require_several(folder, classes)
    if not test_share:
        raise UserError(
            f"{folder} holds the classes {shown(classes)}, and no train/ and test/; --test_share=0.2 (test_share=0.2) "
            "tests on a fifth of them, chosen by their names"
        )
    tested = [is_tested(file, test_share) for file in files]
    train = [file for file, is_test in zip(files, tested) if not is_test]
    test = [file for file, is_test in zip(files, tested) if is_test]
    empty = sorted(set(classes) - {file.class_name for file in train})
    share = f"of {folder}, test_share {test_share:g} leaves"
    require(not empty, f"{share} nothing to train on in the classes {shown(empty)}; make it smaller, or add images")
    require(bool(test), f"{share} nothing to test on; make it larger, or add images")
    if absent := sorted(set(classes) - {file.class_name for file in test}):
        note(f"{share} nothing to test on in the classes {shown(absent)}")
    return Splits(train, test, classes)


def is_tested(file: ImageFile, test_share: float) -> bool:
    """Returns whether a file of a folder without splits is one to test on."""
    return file.place < test_share * 2**64


def files_to_evaluate_on(
    folder: str, test_share: float = 0.0, test_split: str = ""
) -> tuple[list[ImageFile], list[ImageFile], str]:
    """Returns the files to evaluate on, and those that lie beside them, in order, and the split's name ("": none).

    They are those in test/ (test_split) or, of a folder that has none, the test_share that `read_splits` has for it (0:
    all). Raises UserError where there are none, or as `read_splits`; one class suffices.
    """
    has_split = os.path.isdir(os.path.join(folder, test_split or TEST))
    require(has_split or not test_split, f"{folder} has no folder {test_split}/")
    split = (test_split or TEST) if has_split else ""
    group = split_files(folder, split)
    if split or not test_share:
        return group, group, split
    files = [file for file in group if is_tested(file, test_share)]
    require(bool(files), f"test_share {test_share:g} leaves nothing of {folder} to test on")
    return files, group, split


def split_files(folder: str, split: str = "") -> list[ImageFile]:
    """Returns the images of a folder of class folders in order; raises UserError where it is none."""
    root = os.path.join(folder, split).rstrip(os.sep) or os.sep
    classes = [entry for entry in _entries(root) if _is_class(entry, folder)]
    if not classes:
        holds_images = any(entry.name.lower().endswith(SUFFIXES) for entry in _entries(root))
        found = "images, but no folders" if holds_images else "no folders"
        raise UserError(f"{root} holds {found}; put the images of each class into a folder of its name")
    files, left_out = [], []
    for entry in classes:
        found = [file for file in _walk(entry.path, folder) if not _is_left_out(file, left_out)]
        if not found:
            raise UserError(f"the class folder {entry.path} holds no PNG or JPEG file; remove it, or fill it")
        files += [_image_file(file, folder, root, entry.name) for file in found]
    if left_out:
        note(f"{root}: {len(left_out)} files are left out, as their names end in none of {', '.join(SUFFIXES)}: "
             f"{shown(sorted(left_out))}")  # fmt: skip
    return sorted(files)


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
    return ImageFile(place, class_name, os.path.relpath(entry.path, folder), status.st_size, status.st_mtime_ns)


def _walk(path: str, folder: str) -> Iterator[os.DirEntry]:
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


def listing_digest(files: Iterable[ImageFile]) -> str:
    """Returns a digest of the names, sizes and times of files, which changes where one of them is written again."""
    text = "\0".join(f"{file.name}\0{file.num_bytes}\0{file.mtime_ns}" for file in files)
    return hashlib.blake2b(os.fsencode(text), digest_size=16).hexdigest()
