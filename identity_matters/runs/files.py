"""The files of a run directory, read with care, and written whole or not at all.

Only regular files are read, small enough to be held: opening a pipe waits until somebody writes to it, reading a device
may never end.
"""

import contextlib
import itertools
import json
import os
import pathlib
import shutil
import stat
from collections.abc import Iterator
from typing import Any, BinaryIO

from identity_matters.errors import UserError, naming_file
from identity_matters.fields import require

MAX_TEXT_BYTES = 2**28


def open_file(path: str) -> BinaryIO:
    """Returns a regular file, opened for reading; raises UserError for a directory, a pipe or a device."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UserError(f"{path} is no regular file")
    return os.fdopen(descriptor, "rb")


def shortest_unique_suffixes(paths: list[str]) -> list[str]:
    """Returns a name for each of several paths, all different: its shortest end that no other shares.

    >>> shortest_unique_suffixes(["runs/a/first", "runs/b/first"])
    ['a/first', 'b/first']
    """
    if len(set(map(os.path.abspath, paths))) < len(paths):
        raise UserError(f"a directory is named twice: {', '.join(paths)}")
    parts = [os.path.abspath(path).split(os.sep) for path in paths]
    ends = (["/".join(steps[-length:]) for steps in parts] for length in itertools.count(1))
    return next(names for names in ends if len(set(names)) == len(names))


def read_text(path: str) -> str:
    """Returns the text of a file; raises ValueError where it is no regular one, no UTF-8, or too large."""
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        require(size <= MAX_TEXT_BYTES, f"its {size:,} bytes are more than {MAX_TEXT_BYTES:,}")
        return file.read(MAX_TEXT_BYTES).decode()


def read_json(path: str) -> Any:
    """Returns what a JSON file holds; raises ValueError as read_text, and for NaN, infinities and deep nesting."""

    def refuse(word: str) -> None:
        raise UserError(f"{word} is no JSON number")

    try:
        return json.loads(read_text(path), parse_constant=refuse)
    except RecursionError:
        raise UserError("it is nested too deeply") from None


@contextlib.contextmanager
def replacing(path: str) -> Iterator[str]:
    """Yields a temporary path that becomes `path` when the block ends: a file or folder, whole or not at all.

    What has the name is replaced at the very end, so that it stands where the block, the disk or the power fails: what
    is written is on the disk before it has its name, and both before this returns.
    """
    path = os.path.normpath(path)  # "saved_model/" has no name, and the temporary would lie inside it
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".tmp{os.getpid()}_{name}")
    try:
        with naming_file(path, temporary):
            yield temporary
            _flush(temporary, *pathlib.Path(temporary).rglob("*"))
            _rename(temporary, path)
            _flush(folder or ".")
    finally:
        remove(temporary)


def _rename(temporary: str, path: str) -> None:
    """Renames a file or folder. A folder replaces a folder in two steps, as no single call does that."""
    if not (os.path.isdir(temporary) and os.path.isdir(path)) or os.path.islink(path):
        os.replace(temporary, path)
        return
    old = f"{temporary}_old"
    os.replace(path, old)
    try:
        os.replace(temporary, path)
    except BaseException:
        os.replace(old, path)
        raise
    remove(old)


def _flush(*paths: str | os.PathLike) -> None:
    """Returns when the disk holds these files and lists of files; not every file system can flush a list."""
    for path in paths:
        number = os.open(path, os.O_RDONLY)
        try:
            with contextlib.suppress(OSError) if os.path.isdir(path) else contextlib.nullcontext():
                os.fsync(number)
        finally:
            os.close(number)


def remove(path: str) -> None:
    """Removes a file or a directory, if there is one."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            os.remove(path)


def write_text(path: str, text: str) -> None:
    """Writes a text file whole or not at all."""
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
