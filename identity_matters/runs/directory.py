"""The run directory: what a run writes, and the config.json that says what it is.

    config.json     kind, command, config, versions, status (running | done | diverged | failed)
    checkpoints/    step_00001000.npz …, the newest three
    …               each kind of run adds its own: metrics.csv or results.csv, PNGs, saved_model/

The same directory with the same config continues the run; with another it is an error. config.json is written under the
directory's lock, once the run begins: a mistake that is found before leaves none. Its command, the folder where that
was given and its config are those of the latest call that had something to do, its versions those of the first. It
holds what tells the data of a training run, a study or a spectrum from others, and of an .npz file a digest: data may
be moved, but not be changed.
"""

import contextlib
import dataclasses
import fcntl
import importlib.metadata
import json
import os
import platform
import re
import shlex
import sys
from typing import Any

from identity_matters.data.npz import npz_digest
from identity_matters.errors import UserError, truncated_repr
from identity_matters.runs.config_json import RUN_TYPES, STATUSES, differences, read_record
from identity_matters.runs.files import remove, write_text
from identity_matters.runs.machine import machine

_TEMPORARY = re.compile(r"\.tmp\d+_.+")
_LOCK = ".lock"
_LASTING_KEYS = (
    "kind", "command", "folder", "config", "data", "npz_digest", "weights_digest", "versions", "event_files"
)  # fmt: skip
_WRITTEN_BEFORE = ("workers.log",)  # by launch.cluster; hidden files, .DS_Store say, may be there too
_PACKAGES = ("keras", "tensorflow", "jax", "numpy")


class Busy(UserError):
    """Another process is writing to the run directory."""


class RunDirectory:
    """A directory that belongs to one config; `with run:` makes it and keeps other processes from writing to it.

    Args:
      path: str.
      config: a dataclass, compared with that of an earlier run in the same directory.
      kind: str. A key of RUN_TYPES, the launcher whose run this is: it draws the figures again.
      data: str. The summary of the data (empty: not compared).

    Attributes:
      is_begun: bool. Whether there is a config.json, which the first `set_status` writes.

    Raises:
      UserError: the directory holds a run of another kind or config (the message lists what
        differs) or on other data, or files of no run, or cannot be written; also by `with run:`.
    """

    def __init__(self, path: str, config: Any, kind: str = "train", data: str = "") -> None:
        assert kind in RUN_TYPES, kind
        self.path, self._config, self._kind, self._data = path, config, kind, data
        npz = _npz(as_json(config))
        self._digest = npz_digest(npz) if npz else ""
        self._read()

    def __enter__(self) -> "RunDirectory":
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            os.makedirs(self.path, exist_ok=True)
            self._lock = os.fdopen(os.open(self.file(_LOCK), flags, 0o666), "rb")
        except OSError as error:
            raise UserError(f"cannot write to run_dir {self.path}: {error.strerror}: {error.filename}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._read()  # the process before this one may have gone on until now, or have begun another run
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
        self._tidy()
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()

    @property
    def status(self) -> str:
        """Returns the status that config.json holds, one of STATUSES."""
        return self._record["status"]

    @property
    def record(self) -> dict:
        """Returns what config.json holds."""
        return self._record

    def file(self, *names: str) -> str:
        """Returns the path of a file in the directory."""
        return os.path.join(self.path, *names)

    def set_status(self, status: str, **details: Any) -> None:
        """Writes config.json with the status and what else belongs to it, e.g. the step of divergence."""
        assert status in STATUSES, status
        lasting = {key: value for key, value in self._record.items() if key in _LASTING_KEYS}
        self._record = lasting | {"status": status, **details}
        write_text(self.file("config.json"), json.dumps(self._record, indent=2) + "\n")
        self.is_begun = True

    def _tidy(self) -> None:
        """Removes what a killed process left half-written."""
        for folder in (self.path, self.file("checkpoints")):
            for name in os.listdir(folder) if os.path.isdir(folder) else ():
                if _TEMPORARY.fullmatch(name):
                    remove(os.path.join(folder, name))

    def _read(self) -> None:
        """Takes the record from config.json, which must be of this config; a new one where the directory is empty."""
        record, values = read_record(self.path), as_json(self._config)
        if record is None:
            require_no_foreign_files(self.path)
            record = read_record(self.path)  # another command may have begun its run since
        self.is_begun = record is not None
        command = shlex.join([os.path.basename(sys.executable), *sys.orig_argv[1:]])
        of_now = {"kind": self._kind, "command": command, "folder": os.getcwd(), "config": values}
        of_now |= {"data": self._data} if self._data else {}
        of_now |= {"npz_digest": self._digest} if self._digest else {}
        if record is None:
            self._record = of_now | {"versions": versions(), "status": "running"}
            return
        if record["kind"] != self._kind:
            raise UserError(
                f"{self.path} holds a run of launch.{record['kind']}, not of launch.{self._kind}; choose another"
            )
        known = record.get("npz_digest")  # none in an earlier version's record
        same = ("npz",) if self._digest and self._digest == known else ()  # wherever the file lies now
        differing = differences(_with_new_fields(record["config"], self._config), values, same)
        if differing:
            raise UserError(f"{self.path} holds a run of another config (old, new): {'; '.join(differing)}")
        if known and self._digest and not same:
            raise UserError(
                f"{self.path} holds a run on other data: {_npz(values)} has changed, its digest was "
                f"{truncated_repr(known)} and is {self._digest!r}; give the file as it was, or choose another run_dir"
            )
        if self._data and self._data != (known := record.get("data", self._data)):
            raise UserError(
                f"{self.path} holds a run on other data: {truncated_repr(known)}, now {self._data!r}; "
                "give the data as they were, or choose another run_dir"
            )
        # The latest command's num_seeds or runs, say, which may differ: pictures are drawn again by them.
        self._record = record | of_now


def require_no_foreign_files(path: str) -> None:
    """Raises UserError where a directory is no run's and holds files, which a run would mix with its own."""
    try:
        names = sorted(os.listdir(path)) if os.path.lexists(path) else []
    except OSError as error:
        raise UserError(f"cannot write to run_dir {path}: {error.strerror}") from error
    foreign = [name for name in names if not name.startswith(".") and name not in _WRITTEN_BEFORE]
    # A run that another command has begun since has its config.json first.
    if foreign and read_record(path) is None:
        raise UserError(f"run_dir {path} holds {foreign[0]!r} but no config.json of a run; choose another")


def as_json(config: Any) -> dict:
    """Returns a config dataclass as JSON gives it back: tuples are lists."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def _npz(config: dict) -> str:
    """Returns the .npz file that a run's config names, or that of its training runs; empty where there is none."""
    return config.get("npz") or config.get("train", {}).get("npz", "")


def versions() -> dict[str, str]:
    """Returns the machine, and the versions of Python and of the packages that results depend on, as installed."""
    found = {"machine": machine(), "python": platform.python_version()}
    if "keras" in sys.modules:
        found["keras_backend"] = sys.modules["keras"].backend.backend()
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def _with_new_fields(old: dict, config: Any) -> dict:
    """Returns an earlier version's config with the fields that it did not know, at what are now their defaults."""
    completed = dict(old)
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value) and isinstance(old.get(field.name, {}), dict):
            completed[field.name] = _with_new_fields(old.get(field.name, {}), value)
        elif field.name not in old and field.default is not dataclasses.MISSING:
            completed[field.name] = json.loads(json.dumps(field.default))
    return completed
