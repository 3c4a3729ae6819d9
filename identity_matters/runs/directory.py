"""The run directory: the files of a run, and the config.json that describes it.

The same directory with the same config continues the run; with another it is an error. config.json is written under the
directory's lock, once the run begins: a mistake that is found before leaves none. Its command, the folder where that
was given and its config are those of the latest call that computed something, its versions those of the first. It
holds a digest of the data of a training run, a study or a spectrum: data may be moved, but not changed. Another digest
is that of the weights of `init_from`.
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
from identity_matters.fields import names_with
from identity_matters.runs.config_json import DATA_PATHS, flat, read_config_json, seen_from_start
from identity_matters.runs.files import remove, write_text
from identity_matters.runs.machine import machine

_TEMPORARY = re.compile(r"\.tmp\d+_.+")  # of files.temporary_folder
_LOCK = ".lock"
LOCK_TIMEOUT = 180  # seconds; an NFS server keeps the lock of a lost machine for about 90
_LASTING_KEYS = (
    "kind", "command", "folder", "config", "data", "data_digest", "weights_digest", "versions", "event_files",
    "class_names", "init_digest",
)  # fmt: skip
_WRITTEN_BEFORE = ("workers.log",)  # by launch.cluster; hidden files, .DS_Store say, may be there too
_PACKAGES = ("keras", "tensorflow", "jax", "numpy")


class Busy(UserError):
    """Another process is writing to the run directory."""


class RunDirectory:
    """A directory that belongs to one config; `with run:` makes it and keeps other processes from writing to it.

    The config, and the digest of the data unless it is empty, are compared with those of an earlier run. run_type is
    the launcher that draws the figures again. The first `set_status` writes config.json: then the run `is_begun`.

    Raises UserError, also by `with run:`, where the directory holds a run of another type or config (the message lists
    what differs) or on other data, or other files than a run's, or cannot be written.
    """

    def __init__(self, path: str, config: Any, run_type: str = "train", data_digest: str = "") -> None:
        self.path = path
        self._config = config
        self._run_type = run_type
        self._data_digest = data_digest
        self._read()

    def __enter__(self) -> "RunDirectory":
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        self._is_new = not os.path.lexists(self.path)
        try:
            os.makedirs(self.path, exist_ok=True)
            self._lock = os.fdopen(os.open(self.file(_LOCK), flags, 0o666), "rb")
        except OSError as error:
            raise UserError(f"cannot write to run_dir {self.path}: {error.strerror}: {error.filename}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._read()  # the process before this one may have gone on until now, or have begun another run
            self._tidy()
        except BaseException as error:
            self._lock.close()
            if isinstance(error, BlockingIOError):
                raise Busy(f"another process is writing to run_dir {self.path}") from None
            if isinstance(error, OSError):  # as some network file systems
                raise UserError(
                    f"cannot lock run_dir {self.path}: {error.strerror}; mount its disk with locks of files (flock), "
                    "or name a directory of another disk"
                ) from error
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_new and not self.is_begun:  # what is refused leaves no directory
            with contextlib.suppress(OSError):  # it holds a file: a log of workers, say
                os.remove(self.file(_LOCK))
                os.rmdir(self.path)
        self._lock.close()

    @property
    def status(self) -> str:
        """Returns the status that config.json, whose contents are `contents`, holds, one of STATUSES."""
        return self.contents["status"]

    def file(self, *names: str) -> str:
        """Returns the path of a file or a folder in the directory.

        Raises UserError where a link to a folder is on the way: nothing of a run is written or deleted through one.
        """
        path = self.path
        for name in itertools.chain(*(name.split(os.sep) for name in names)):
            path = os.path.join(path, name)
            if os.path.islink(path) and os.path.isdir(path):
                raise UserError(f"{path} is a link, and runs do not write through links; put the folder itself there")
        return path

    def set_status(self, status: str, **details: Any) -> None:
        """Writes config.json with the status and what else belongs to it, e.g. the step of divergence."""
        lasting = {key: value for key, value in self.contents.items() if key in _LASTING_KEYS}
        self.contents = lasting | {"status": status, **details}
        write_text(self.file("config.json"), json.dumps(self.contents, indent=2) + "\n")
        self.is_begun = True

    def _tidy(self) -> None:
        """Removes what a killed process left half-written."""
        for folder in (self.path, self.file("checkpoints")):
            for name in os.listdir(folder) if os.path.isdir(folder) else ():
                if _TEMPORARY.fullmatch(name):
                    remove(os.path.join(folder, name))

    def _read(self) -> None:
        """Reads config.json, which must be of this config; makes new contents where the directory is empty."""
        earlier = read_own(self.path)
        config = as_json(self._config)
        self.is_begun = earlier is not None
        command = shlex.join([os.path.basename(sys.executable), *sys.orig_argv[1:]])
        current = {"kind": self._run_type, "command": command, "folder": os.getcwd(), "config": config}
        current |= {"data_digest": self._data_digest} if self._data_digest else {}
        if earlier is None:
            self.contents = current | {"versions": versions(), "status": "running"}
            return
        longer = self._config.continued(earlier["config"]) if hasattr(self._config, "continued") else ()
        self._require_same(earlier, config, longer)
        # The latest command's num_seeds or runs, say, which may differ: figures are redrawn with them.
        self.contents = earlier | current
        if earlier["status"] == "done" and longer:  # than the run that ended here
            self.contents["status"] = "running"

    def _require_same(self, earlier: dict, config: dict, longer: tuple[str, ...]) -> None:
        """Raises UserError where a config.json is of another type of run, of another config, or of other data."""
        if earlier["kind"] != self._run_type:
            raise UserError(
                f"{self.path} holds a run of launch.{earlier['kind']}, not of launch.{self._run_type}; choose another"
            )
        known = earlier.get("data_digest", "")
        # Data of the same digest may lie elsewhere now.
        moved = DATA_PATHS if self._data_digest and self._data_digest == known else ()
        same = *names_with(self._config, "compared", False), *moved, *self._same_places(earlier, config), *longer
        differing = differences(earlier["config"], config, same)
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

    def _same_places(self, earlier: dict, config: dict) -> tuple[str, ...]:
        """Returns the fields that name a path otherwise than an earlier command did, from another folder, say."""
        before = flat(earlier["config"])
        now = flat(config)
        named = [name for name in names_with(self._config, "path") if before.get(name) and now.get(name)]
        places = {name: [seen_from_start(earlier, str(before[name])), now[name]] for name in named}
        return tuple(name for name, paths in places.items() if len(set(map(os.path.realpath, paths))) == 1)


def lock(run: RunDirectory, stack: contextlib.ExitStack, timeout: float) -> None:
    """Enters a run directory, which locks it, as a part of the stack; waits `timeout` seconds for another process.

    The file system may take time to notice that a chief before this one died with its machine. Raises Busy if another
    process still has it then.
    """
    deadline = time.monotonic() + timeout
    has_said = False
    while True:
        try:
            stack.enter_context(run)
            return
        except Busy as error:
            if time.monotonic() >= deadline:
                raise
            if not has_said:
                print(f"{error}; waiting up to {timeout} seconds for it to end", file=sys.stderr, flush=True)
            has_said = True
            time.sleep(1)


def read_own(path: str) -> dict | None:
    """Returns a run's config.json, None where the directory is new.

    Raises UserError where it is not a run's and holds files, which a run would mix with its own.
    """
    names = sorted(os.listdir(path)) if os.path.isdir(path) else []
    foreign = [name for name in names if not name.startswith(".") and name not in _WRITTEN_BEFORE]
    contents = read_config_json(path)  # after the names: a run that another command begins now has this file first
    if foreign and contents is None:
        raise UserError(f"run_dir {path} holds {foreign[0]!r} but no config.json of a run; choose another")
    return contents


def as_json(config: Any) -> dict:
    """Returns a config dataclass as JSON gives it back: tuples are lists; a data set that is not read has no name."""
    return _drop_unused_dataset(json.loads(json.dumps(dataclasses.asdict(config))))


def _drop_unused_dataset(values: dict) -> dict:
    """Returns the values of a config with no data set named where a folder or a file has the data in its place."""
    result = {key: _drop_unused_dataset(value) if isinstance(value, dict) else value for key, value in values.items()}
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
    """Returns "name (old, new)" of every field in which two configs, as JSON holds them, differ, but for the `same`."""
    changes = []
    for key in [key for key in {**old, **new} if key not in same]:
        a = old.get(key)
        b = new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            changes += [f"{key}.{inner}" for inner in differences(a, b, same)]
        elif a != b:
            texts = str(a), str(b)
            start = max(0, len(os.path.commonprefix(texts)) - MAX_REPR // 2)  # long common parts are not shown
            words = (key, *("…" * (start > 0) + text[start:] for text in texts))
            words = (word if word.isprintable() else truncated_repr(word) for word in words)
            name, old_value, new_value = (word[:MAX_REPR] for word in words)
            changes.append(f"{name} ({old_value}, {new_value})")
    return changes
