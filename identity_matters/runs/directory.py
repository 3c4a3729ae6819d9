"""The run directory: the files of a run, which belong to one config.

The same directory with the same config continues the run; with another it is an error. config.json is written under the
directory's lock, once the run begins: a mistake that is found before leaves none.
"""

import contextlib
import dataclasses
import fcntl
import importlib.metadata
import itertools
import json
import os
import platform
import re
import shlex
import sys
import time
from typing import Any

from identity_matters.errors import MAX_REPR, UserError, truncated_repr
from identity_matters.fields import absolute_paths, fields_with_metadata
from identity_matters.runs.files import remove
from identity_matters.runs.machine import machine
from identity_matters.runs.record import DATA_PATHS, Record, read_record

LOCK_TIMEOUT = 180  # seconds; an NFS server keeps the lock of a lost machine for about 90
_TEMPORARY = re.compile(r"\.tmp\d+_.+")  # of files.temporary_folder
_LOCK = ".lock"
_WRITTEN_BEFORE = ("workers.log",)  # by launch.cluster; hidden files, .DS_Store say, may be there too
_PACKAGES = ("keras", "tensorflow", "jax", "numpy")


class RunDirectory:
    """A directory that belongs to one config; `with directory:` makes it, and locks it against other processes.

    The config, and the digest of the data unless it is empty, are compared with those of an earlier run. kind is the
    launcher that draws the figures again. The first `set_status` writes config.json: then the run `is_begun`.

    Args:
      lock_timeout: Seconds to wait for another process that has the lock: the file system may take time to notice that
        it died with its machine.

    Raises UserError, also by `with directory:`, if the directory holds a run of another kind or config (the message
    lists what differs) or on other data, or other files than a run's, or cannot be written.
    """

    def __init__(
        self, path: str, config: Any, kind: str = "train", data_digest: str = "", lock_timeout: float = 0
    ) -> None:
        self.path = path
        self._config = config
        self._kind = kind
        self._data_digest = data_digest
        self._lock_timeout = lock_timeout
        self._read()

    def __enter__(self) -> "RunDirectory":
        self._is_new = not os.path.lexists(self.path)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            os.makedirs(self.path, exist_ok=True)
            self._lock = os.fdopen(os.open(self.file(_LOCK), flags, 0o666), "rb")
        except OSError as error:
            raise UserError(f"cannot write to run_dir {self.path}: {error.strerror}: {error.filename}") from error
        try:
            self._wait_for_lock()
            self._read()  # the process before this one may have gone on until now, or have begun another run
            self._tidy()
        except BaseException:
            self._lock.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_new and not self.is_begun:  # what is refused leaves no directory
            with contextlib.suppress(OSError):  # it holds a file: a log of workers, say
                os.remove(self.file(_LOCK))
                os.rmdir(self.path)
        self._lock.close()

    def file(self, *names: str) -> str:
        """Returns the path of a file or a folder in the directory.

        Raises UserError if a link to a folder is on the way: nothing of a run is written or deleted through one.
        """
        path = self.path
        for name in itertools.chain(*(name.split(os.sep) for name in names)):
            path = os.path.join(path, name)
            if os.path.islink(path) and os.path.isdir(path):
                raise UserError(f"{path} is a link, and runs do not write through links; put the folder itself there")
        return path

    @property
    def status(self) -> str:
        """The status of the run, one of STATUSES."""
        return self.record.status

    def set_status(self, status: str, **fields: Any) -> None:
        """Writes config.json with this status, and with these fields of the Record."""
        changes = {"diverged_at_step": None, "error": "", **fields}
        self.record = dataclasses.replace(self.record, status=status, **changes)
        self.record.write(self.path)
        self.is_begun = True

    def _wait_for_lock(self) -> None:
        deadline = time.monotonic() + self._lock_timeout
        is_waiting = False
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                message = f"another process is writing to run_dir {self.path}"
                if time.monotonic() >= deadline:
                    raise UserError(message) from None
                if not is_waiting:
                    advice = f"waiting up to {self._lock_timeout} seconds for it to end"
                    print(f"{message}; {advice}", file=sys.stderr, flush=True)
                is_waiting = True
                time.sleep(1)
            except OSError as error:  # as some network file systems
                raise UserError(
                    f"cannot lock run_dir {self.path}: {error.strerror}; mount its disk with locks of files (flock), "
                    "or name a directory of another disk"
                ) from error

    def _tidy(self) -> None:
        """Removes what a killed process left half-written."""
        for folder in (self.path, self.file("checkpoints")):
            for name in os.listdir(folder) if os.path.isdir(folder) else ():
                if _TEMPORARY.fullmatch(name):
                    remove(os.path.join(folder, name))

    def _read(self) -> None:
        """Reads config.json, which must be of this config; makes a new record if the directory is empty."""
        earlier = read_own(self.path)
        self.is_begun = earlier is not None
        command = shlex.join([os.path.basename(sys.executable), *sys.orig_argv[1:]])
        config = as_json(absolute_paths(self._config))
        current = {"config": config, "command": command}
        if self._data_digest:
            current["data_digest"] = self._data_digest
        if earlier is None:
            self.record = Record(self._kind, **current, versions=versions())
            return
        longer = self._config.resumable_changes(earlier.config) if hasattr(self._config, "resumable_changes") else ()
        self._require_same(earlier, config, longer)
        # The latest command's num_seeds or runs, say, which may differ: figures are redrawn with them.
        self.record = dataclasses.replace(earlier, **current)
        if earlier.status == "done" and longer:  # than the run that ended here
            self.record.status = "running"

    def _require_same(self, earlier: Record, config: dict, longer: tuple[str, ...]) -> None:
        """Raises UserError if a record is of another kind of run, of another config, or of other data."""
        if earlier.kind != self._kind:
            raise UserError(
                f"{self.path} holds a run of launch.{earlier.kind}, not of launch.{self._kind}; choose another"
            )
        known = earlier.data_digest
        # Data of the same digest may lie elsewhere now.
        moved = DATA_PATHS if self._data_digest and self._data_digest == known else ()
        differing = differences(
            earlier.config, config, (*fields_with_metadata(self._config, "compared", False), *moved, *longer)
        )
        if len(differing) == 1 and differing[0].startswith("train_steps "):
            differing.append(
                "train_steps can grow unless the schedule ends with it; then start another run, with --init_from this"
            )
        if differing:
            raise UserError(f"{self.path} holds a run of another config (old, new): {'; '.join(differing)}")
        if known and self._data_digest and self._data_digest != known:
            raise UserError(
                f"{self.path} holds a run on other data: {truncated_repr(known)}, now {self._data_digest!r}; give the "
                "data as they were, or choose another run_dir"
            )


def read_own(path: str) -> Record | None:
    """Returns the record of a run directory, None if it is new.

    Raises UserError if it is not a run's and holds files, which a run would mix with its own.
    """
    names = sorted(os.listdir(path)) if os.path.isdir(path) else []
    foreign = [name for name in names if not name.startswith(".") and name not in _WRITTEN_BEFORE]
    record = read_record(path)  # after the names: a run that another command begins now has this file first
    if foreign and record is None:
        raise UserError(f"run_dir {path} holds {foreign[0]!r} but no config.json of a run; choose another")
    return record


def as_json(config: Any) -> dict:
    """Returns a config dataclass as JSON gives it back: tuples are lists; a data set that is not read has no name."""
    return _without_unread_dataset(json.loads(json.dumps(dataclasses.asdict(config))))


def _without_unread_dataset(values: dict) -> dict:
    """Returns the values of a config, without the name of a data set if a folder or a file has the data."""
    result = {}
    for name, value in values.items():
        result[name] = _without_unread_dataset(value) if isinstance(value, dict) else value
    if any(values.get(name) for name in DATA_PATHS):
        result["dataset"] = ""
    return result


def versions() -> dict[str, str]:
    """Returns the machine, and the versions of Python and of the packages that results depend on, as installed."""
    known = {"machine": machine(), "python": platform.python_version()}
    if "keras" in sys.modules:
        known["keras_backend"] = sys.modules["keras"].backend.backend()
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            known[package] = importlib.metadata.version(package)
    return known


def differences(old: dict, new: dict, same: tuple[str, ...] = ()) -> list[str]:
    """Returns "name (old, new)" of every field in which two configs, as JSON holds them, differ, except `same`."""
    changes = []
    for key in [key for key in {**old, **new} if key not in same]:
        before = old.get(key)
        after = new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            changes += [f"{key}.{inner}" for inner in differences(before, after, same)]
        elif before != after:
            texts = str(before), str(after)
            start = max(0, len(os.path.commonprefix(texts)) - MAX_REPR // 2)  # long common parts are not shown
            words = (key, *("…" * (start > 0) + text[start:] for text in texts))
            words = (word if word.isprintable() else truncated_repr(word) for word in words)
            name, old_value, new_value = (word[:MAX_REPR] for word in words)
            changes.append(f"{name} ({old_value}, {new_value})")
    return changes
