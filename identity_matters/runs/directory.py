"""The run directory: what a run writes, and the config.json that says what it is.

    config.json     kind, command, config, versions, status (running | done | diverged | failed)
    checkpoints/    step_00001000.npz …, the newest three
    …               each kind of run adds its own: metrics.csv or results.csv, PNGs, saved_model/

The same directory with the same config continues the run; with another it is an error.
"""

import contextlib
import dataclasses
import fcntl
import importlib.metadata
import json
import os
import platform
import shlex
import shutil
import sys
from collections.abc import Iterator
from typing import Any

from identity_matters.runs.errors import UserError, naming

STATUSES = ("running", "done", "diverged", "failed")
# The kinds of runs, each with a field of its config alone: the config.json of version 0.1.0 does not name the kind.
KINDS = {
    "train": "model",
    "ablations": "num_seeds",
    "check_theory": "claim",
    "shortcut_study": "figure",
    "hessian_spectrum": "saved_run",
}
# Where the data lie does not change what a run computes.
_NOT_COMPARED = ("data_dir", "download")
_TEMPORARY = ".tmp"
_LOCK = ".lock"
_LASTING_KEYS = ("kind", "command", "config", "versions")
_RESULTS = {"checkpoints", "metrics.csv", "results.csv", "saved_model"}
_PACKAGES = ("keras", "tensorflow", "jax", "numpy")


@contextlib.contextmanager
def replacing(path: str) -> Iterator[str]:
    """Yields a temporary path that becomes `path` when the block ends: the file is written whole or not at all."""
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f"{_TEMPORARY}{os.getpid()}_{name}")
    try:
        with naming(path):
            yield temporary
            os.replace(temporary, path)
    finally:
        _remove(temporary)


def _remove(path: str) -> None:
    """Removes a file or a directory, if there is one."""
    if os.path.isdir(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            os.remove(path)


def write_text(path: str, text: str) -> None:
    """Writes a text file whole or not at all."""
    with replacing(path) as temporary, open(temporary, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


class Busy(UserError):
    """Another process is writing to the run directory."""


class RunDirectory:
    """A directory that belongs to one config; `with run:` keeps other processes from writing to it.

    Args:
      path: str. Created if missing.
      config: a dataclass, compared with that of an earlier run in the same directory.
      kind: str. A key of KINDS, the launcher whose run this is: it draws the figures again.

    Raises:
      UserError: the directory holds a run of another kind or config (the message lists what
        differs) or results of an unknown one, or cannot be written.
    """

    def __init__(self, path: str, config: Any, kind: str = "train") -> None:
        assert kind in KINDS, kind
        self.path = path
        values = as_json(config)
        self._record = read_record(path)
        if self._record is None:
            self._create(kind, values)
        elif self._record["kind"] != kind:
            raise UserError(
                f"{path} holds a run of launch.{self._record['kind']}, not of launch.{kind}; choose another"
            )
        else:
            differing = differences(_with_new_fields(self._record["config"], config), values)
            if differing:
                raise UserError(f"{path} holds a run of another config (old, new): {'; '.join(differing)}")

    def __enter__(self) -> "RunDirectory":
        self._lock = open(self.file(_LOCK), "w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise Busy(f"another process is writing to run_dir {self.path}") from None
        self._record = read_record(self.path) or self._record  # the process before this one may have gone on until now
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

    def _tidy(self) -> None:
        """Removes what a killed process left half-written."""
        for folder in (self.path, self.file("checkpoints")):
            for name in os.listdir(folder) if os.path.isdir(folder) else ():
                if name.startswith(_TEMPORARY):
                    _remove(os.path.join(folder, name))

    def _create(self, kind: str, values: dict) -> None:
        """Makes the directory and writes its first config.json."""
        try:
            os.makedirs(self.path, exist_ok=True)
            results = sorted(_RESULTS.intersection(os.listdir(self.path)))
            if results:
                raise UserError(f"run_dir {self.path} holds {results[0]} but no config.json; choose another")
            self._record = {
                "kind": kind,
                "command": shlex.join([os.path.basename(sys.executable), *sys.orig_argv[1:]]),
                "config": values,
                "versions": versions(),
            }
            self.set_status("running")
        except OSError as error:
            raise UserError(f"cannot write to run_dir {self.path}: {error.strerror}") from error


def as_json(config: Any) -> dict:
    """Returns a config dataclass as JSON gives it back: tuples are lists."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def read_record(path: str) -> dict | None:
    """Returns what the config.json of a run directory holds, its kind included; None where there is none.

    Raises:
      UserError: the file is damaged.
    """
    file_name = os.path.join(path, "config.json")
    try:
        with open(file_name) as file:
            record = json.load(file)
        if mistake := _find_mistake(record):
            raise UserError(mistake)
        return {"kind": _infer_kind(record["config"])} | record
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise UserError(f"{file_name} is not a run's config.json: {error}") from error


def _infer_kind(config: dict) -> str:
    """Returns the kind of run that an earlier version's config belongs to."""
    return next((kind for kind, field in KINDS.items() if field in config), "train")


def _find_mistake(record: Any) -> str:
    """Returns what a reader of the record would stumble over; empty where there is nothing."""
    if not isinstance(record, dict) or not isinstance(record.get("config"), dict):
        return "it holds no config"
    if record.get("kind", "train") not in KINDS:
        return f"its kind is {record['kind']!r}, none of {', '.join(KINDS)}"
    if record.get("status") not in STATUSES:
        return f"its status is {record.get('status')!r}, none of {', '.join(STATUSES)}"
    if record["status"] == "diverged" and not isinstance(record.get("diverged_at_step"), int):
        return "it does not say at which step the run diverged"
    return ""


def versions() -> dict[str, str]:
    """Returns the versions of Python and of the packages that results depend on, as installed."""
    found = {"python": platform.python_version()}
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
        if dataclasses.is_dataclass(value) and isinstance(old.get(field.name), dict):
            completed[field.name] = _with_new_fields(old[field.name], value)
        elif field.name not in old and field.default is not dataclasses.MISSING:
            completed[field.name] = json.loads(json.dumps(field.default))
    return completed


def differences(old: dict, new: dict) -> list[str]:
    """Returns "name (old, new)" of every field, of two configs as JSON holds them, that changes what a run computes."""
    return list(_yield_differences(old, new))


def _yield_differences(old: dict, new: dict, prefix: str = "") -> Iterator[str]:
    for key in [key for key in {**old, **new} if key not in _NOT_COMPARED]:
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            yield from _yield_differences(a, b, f"{prefix}{key}.")
        elif a != b:
            yield f"{prefix}{key} ({a}, {b})"
