"""The config.json of a run directory, checked when it is read: the type of run, its config and its status."""

import dataclasses
import os
import re
from collections.abc import Mapping
from typing import Any

from identity_matters.errors import UserError, truncated_repr
from identity_matters.fields import from_json, require
from identity_matters.runs.files import read_json

STATUSES = ("running", "done", "diverged", "failed")
AT_THE_END = "at the end"
DATA_PATHS = ("npz", "images")  # fields that name a file or a folder with the data, in place of `dataset`
# The launchers whose runs a run directory can hold, which config.json calls its kind.
# The launcher of that name draws the figures of the run: it has a function figures(run_dir).
RUN_TYPES = (
    "train",
    "ablations",
    "check_theory",
    "relu_search",
    "descent_map",
    "shortcut_study",
    "hessian_spectrum",
    "near_identity",
    "report",
)


def read_config_json(run_dir: str) -> dict | None:
    """Returns the contents of a run directory's config.json; None where there is none.

    Raises:
      UserError: the file is damaged, or no file, or the path is none of this machine.
    """
    require_mounted(run_dir)
    path = os.path.join(run_dir, "config.json")
    try:
        contents = read_json(path)
        _check(contents)
        return contents
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise UserError(f"{path} is not a run's config.json: {error}") from error


def config_of(contents: dict, default: Any) -> Any:
    """Returns the config in a run's config.json, on top of a default, with paths as seen from where the run started.

    Raises:
      UserError: the file is damaged, or another version's.
    """
    return _from_start(from_json(default, contents["config"]), contents)


def _from_start(config: Any, contents: dict) -> Any:
    """Returns a config with each path as `seen_from_start`; what is found nowhere may be no path, but a name."""
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            changes[field.name] = _from_start(value, contents)
        elif field.metadata.get("path"):
            path = seen_from_start(contents, value)
            changes[field.name] = path if os.path.exists(path) or field.name in DATA_PATHS else value
    return dataclasses.replace(config, **changes)


def seen_from_start(contents: dict, path: str) -> str:
    """Returns a path of a run's config as seen from where the run was started, or as it is, if it is found so alone.

    That folder comes first: what has the same name in the current one may be another run's.
    """
    folder = contents.get("folder")
    started = os.path.join(folder, path) if isinstance(folder, str) and path else path
    return path if os.path.exists(path) and not os.path.exists(started) else started


def require_mounted(path: str) -> None:
    """Raises UserError for a URL in place of a directory: Python would make a local folder of that name."""
    if re.match(r"[\w.+-]+:/", os.fspath(path)):
        raise UserError(f"{path} is a URL, not a directory: mount it, and give the folder")


def _check(contents: Any) -> None:
    """Raises UserError for contents that would cause an error where they are used."""
    require(isinstance(contents, dict) and isinstance(contents.get("config"), dict), "it holds no config")
    for name, known in (("kind", RUN_TYPES), ("status", STATUSES)):  # a list cannot be looked up in a dict
        value = contents.get(name)
        require(value in known, f"its {name} is {truncated_repr(value)}, none of {', '.join(known)}")
    has_step = contents["status"] != "diverged" or type(contents.get("diverged_at_step")) is int
    require(has_step, "it does not say at which step the run diverged")
    require(isinstance(contents.get("event_files", []), list), "its event_files are not a list")


def class_names_in(contents: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the names of the classes in a run's config.json, or in the metadata of its network; () without any."""
    names = contents.get("class_names")
    return tuple(map(str, names)) if isinstance(names, list) else ()


def flat(config: dict) -> dict[str, Any]:
    """Returns the fields of a config and of the configs in it, by name."""
    fields = {name: value for name, value in config.items() if not isinstance(value, dict)}
    for value in config.values():
        fields |= flat(value) if isinstance(value, dict) else {}
    return fields


def differing(configs: list[dict[str, Any]]) -> list[str]:
    """Returns the names of the fields in which several configs, each `flat`, differ."""
    names = dict.fromkeys(name for config in configs for name in config)
    return [name for name in names if len({str(config.get(name)) for config in configs}) > 1]


def evaluated_split(config: Mapping[str, Any]) -> str:
    """Returns what a training run's tables call test images, by the fields of its config: "test" or "held-out"."""
    return "held-out" if flat(dict(config)).get("validation_examples") else "test"


def final_row_label(contents: Mapping[str, Any] | None, rows: list[dict]) -> str:
    """Returns in words when the last row of a run's metrics.csv was: at the end, unless config.json says otherwise."""
    if not contents or contents["status"] == "done" or not rows:
        return AT_THE_END
    place = f"at step {rows[-1]['step']:,}"
    return f"{place}, before it diverged" if contents["status"] == "diverged" else place
