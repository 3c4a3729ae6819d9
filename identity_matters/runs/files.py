"""Reading and writing files of a run directory: checks before reading, and files written whole or not at all.

Only regular files are read, small enough to be held: opening a pipe waits until somebody writes to it, reading a device
may never end.
"""

import contextlib
import itertools
import json
import os
import pathlib
import secrets
import shutil
import stat
from collections.abc import Iterator
from typing import IO, Any, BinaryIO

from identity_matters.errors import UserError, add_filename, translate_errors
from identity_matters.fields import require

MAX_TEXT_BYTES = 2**28


def open_file(path: str) -> BinaryIO:
    """Returns a regular file, opened for reading; raises UserError for a directory, a pipe or a device."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UserError(f"{path} is not a regular file")
    return os.fdopen(descriptor, "rb")


def name_one_twice(paths: list[str]) -> bool:
    """Returns whether two of the paths lead to one file or directory."""
    return len({os.path.realpath(path) for path in paths}) < len(paths)


def shortest_unique_suffixes(paths: list[str]) -> list[str]:
    """Returns a name for each of several paths, all different: its shortest end that no other shares.

    >>> shortest_unique_suffixes(["runs/a/first", "runs/b/first"])
    ['a/first', 'b/first']
    """
    if name_one_twice(paths):
        raise UserError(f"the paths name a directory twice: {', '.join(paths)}")
    parts = [os.path.abspath(path).split(os.sep) for path in paths]
    ends = (["/".join(steps[-length:]) for steps in parts] for length in itertools.count(1))
    return next(names for names in ends if len(set(names)) == len(names))


def read_text(path: str) -> str:
    """Returns the text of a file; raises ValueError if it is not a regular one, not UTF-8, or too large."""
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        require(size <= MAX_TEXT_BYTES, f"its {size:,} bytes are more than {MAX_TEXT_BYTES:,}")
        return file.read(size).decode()  # a larger number would be taken from the memory at once


def read_json(path: str) -> Any:
    """Returns the content of a JSON file; raises ValueError as read_text, and for NaN, infinities and deep nesting."""

    def refuse(word: str) -> None:
        raise UserError(f"{word} is not a JSON number")

    try:
        return json.loads(read_text(path), parse_constant=refuse)
    except RecursionError:
        raise UserError("it is nested too deeply") from None


@contextlib.contextmanager
def temporary_folder(folder: str) -> Iterator[str]:
    """Yields a new folder inside a folder, which nobody else can guess or write to; it is removed at the end."""
    path = os.path.join(folder, f".tmp{os.getpid()}_{secrets.token_hex(8)}")
    try:
        os.mkdir(path, 0o700)
        yield path
    finally:
        remove(path)


@contextlib.contextmanager
def replacing(path: str) -> Iterator[str]:
    """Yields a temporary path that becomes `path` when the block ends: a file or folder, whole or not at all.

    All files are written through this function. The file of that name is replaced at the very end (a link itself, not
    its target), so the old file survives if the block, the disk or the power fails. The new content is on the disk
    before it has its name, and both before this returns.
    """
    path = os.path.normpath(path)  # "saved_model/" has no name, and the temporary would lie inside it
    folder, name = os.path.split(path)
    with translate_errors(add_filename(path, os.path.join(folder, ".tmp"))), temporary_folder(folder) as within:
        temporary = os.path.join(within, name)  # whose end says what format it has
        yield temporary
        _flush(temporary, *pathlib.Path(temporary).rglob("*"))
        _rename(temporary, path, f"{within}_old")
        _flush(folder or ".")


def _rename(temporary: str, path: str, old: str) -> None:
    """Renames a file or folder. A folder replaces what there is in two steps, as no single call does that."""
    if not os.path.isdir(temporary) or not os.path.lexists(path):
        os.replace(temporary, path)
        return
    os.replace(path, old)
    try:
        os.replace(temporary, path)
    except BaseException:
        os.replace(old, path)
        raise
    remove(old)


def open_log(path: str, mode: str = "a") -> IO[str]:
    """Returns a log, to be written as it comes; raises UserError for a link, a folder or a pipe without a reader."""

    def open_no_link(path: str, flags: int) -> int:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)

    try:
        return open(path, mode, encoding="utf-8", opener=open_no_link)
    except OSError as error:
        raise UserError(f"cannot write to {path}: {error.strerror}") from error


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
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
