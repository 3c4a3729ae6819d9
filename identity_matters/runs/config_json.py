"""The record of a run, config.json: what kind of run it is, its config, how far it came. Checked when it is read."""

import os
import re
from collections.abc import Mapping
from typing import Any

from identity_matters.errors import UserError, truncated_repr
from identity_matters.runs.files import read_json

STATUSES = ("running", "done", "diverged", "failed")
FINISHED = ("done", "diverged")
AT_THE_END = "at the end"
# The kinds of runs, each with a field of its config alone: the config.json of version 0.1.0 does not name the kind.
KINDS = {
    "train": "model",
    "ablations": "num_seeds",
    "check_theory": "claim",
    "shortcut_study": "figure",
    "hessian_spectrum": "saved_run",
    "report": "runs",
}


def read_record(path: str) -> dict | None:
    """Returns what the config.json of a run directory holds, its kind included; None where there is none.

    Raises:
      UserError: the file is damaged, or no file, or the path is none of this machine.
    """
    require_mounted(path)
    file_name = os.path.join(path, "config.json")
    try:
        record = read_json(file_name)
        if mistake := _find_mistake(record):
            raise UserError(mistake)
        return {"kind": _infer_kind(record["config"])} | record
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise UserError(f"{file_name} is not a run's config.json: {error}") from error


def data_places(record: dict) -> dict[str, str]:
    """Returns data_dir and npz of a run's config, each as `seen_from_start`.

    Args:
      record: dict. What the config.json of a training run holds.
    """
    config = record["config"]
    return {name: seen_from_start(record, config[name]) for name in ("data_dir", "npz") if name in config}


def seen_from_start(record: dict, path: str) -> str:
    """Returns a path of a run's config as seen from where the run was started, or as it is, if it is found so alone.

    That folder comes first: what has the same name in the current one may be another run's.
    """
    folder = record.get("folder")  # earlier versions did not record it
    started = os.path.join(folder, path) if isinstance(folder, str) and path else path
    return path if os.path.exists(path) and not os.path.exists(started) else started


def require_mounted(path: str) -> None:
    """Raises UserError for an address in place of a directory: Python would make a local folder of that name."""
    if re.match(r"[\w.+-]+:/", os.fspath(path)):
        raise UserError(f"{path} is an address, not a directory: mount what it names, and give the folder")


def _infer_kind(config: dict) -> str:
    """Returns the kind of run that an earlier version's config belongs to."""
    return next((kind for kind, field in KINDS.items() if field in config), "train")


def _find_mistake(record: Any) -> str:
    """Returns what a reader of the record would stumble over; empty where there is nothing."""
    if not isinstance(record, dict) or not isinstance(record.get("config"), dict):
        return "it holds no config"
    if record.get("kind", "train") not in list(KINDS):
        return f"its kind is {truncated_repr(record['kind'])}, none of {', '.join(KINDS)}"
    if record.get("status") not in STATUSES:
        return f"its status is {truncated_repr(record.get('status'))}, none of {', '.join(STATUSES)}"
    if record["status"] == "diverged" and type(record.get("diverged_at_step")) is not int:
        return "it does not say at which step the run diverged"
    if not isinstance(record.get("event_files", []), list):
        return f"its event_files are {truncated_repr(record['event_files'])}, no list"
    return ""


def flat(config: dict) -> dict[str, Any]:
    """Returns a config with the fields of configs in it taken for its own."""
    own = {name: value for name, value in config.items() if not isinstance(value, dict)}
    for value in config.values():
        own |= flat(value) if isinstance(value, dict) else {}
    return own


def evaluated_split(config: Mapping[str, Any]) -> str:
    """Returns what the images are that the tables of a training run call test images: "test" or "held-out".

    Args:
      config: The fields of its TrainConfig.
    """
    return "held-out" if config.get("validation_examples") else "test"


def final_row_label(record: Mapping[str, Any] | None, rows: list[dict]) -> str:
    """Returns in words when the last row of a run's metrics.csv was: at the end, where nothing says otherwise.

    Args:
      record: What config.json holds; None without one.
      rows: Those of metrics.csv.
    """
    if not record or record["status"] == "done" or not rows:
        return AT_THE_END
    place = f"at step {rows[-1]['step']:,}"
    return f"{place}, before it diverged" if record["status"] == "diverged" else place
