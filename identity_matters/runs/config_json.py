"""The record of a run, config.json: what kind of run it is, its config, how far it came. Checked when it is read."""

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from identity_matters.errors import MAX_REPR, UserError, truncated_repr
from identity_matters.runs.files import read_json

STATUSES = ("running", "done", "diverged", "failed")
FINISHED = ("done", "diverged")
AT_THE_END = "at the end"
# The launchers whose runs a run directory can hold, and what a report calls these. The launcher of that name draws the
# figures of the run: it has a function figures(run_dir).
RUN_TYPES = {
    "train": "Training",
    "ablations": "Networks compared",
    "check_theory": "Checks of the theory",
    "relu_search": "Search for bad critical points of ReLU networks",
    "descent_map": "What descent on linear networks reaches",
    "shortcut_study": "Study of n-shortcut networks",
    "hessian_spectrum": "Spectrum of a trained network's Hessian",
    "report": "Report",
}
# Where the data lie, what TensorBoard or a report shows, which variants run now and how often, do not change what a run
# computes.
_NOT_COMPARED = ("data_dir", "download", "hparams", "num_seeds", "only", "runs")


def read_record(path: str) -> dict | None:
    """Returns what the config.json of a run directory holds; None where there is none.

    Raises:
      UserError: the file is damaged, or no file, or the path is none of this machine.
    """
    require_mounted(path)
    file_name = os.path.join(path, "config.json")
    try:
        record = read_json(file_name)
        if mistake := _find_mistake(record):
            raise UserError(mistake)
        return record
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


def _find_mistake(record: Any) -> str:
    """Returns what a reader of the record would stumble over; empty where there is nothing."""
    if not isinstance(record, dict) or not isinstance(record.get("config"), dict):
        return "it holds no config"
    if not isinstance(kind := record.get("kind"), str) or kind not in RUN_TYPES:
        return f"its kind is {truncated_repr(kind)}, none of {', '.join(RUN_TYPES)}"
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


def differences(old: dict, new: dict, same: tuple[str, ...] = ()) -> list[str]:
    """Returns "name (old, new)" of every field, of two configs as JSON holds them, that changes what a run computes.

    Args:
      old, new: dict.
      same: Names of fields that are known to mean the same.
    """
    return list(_yield_differences(old, new, (*_NOT_COMPARED, *same)))


def _yield_differences(old: dict, new: dict, not_compared: tuple[str, ...], prefix: str = "") -> Iterator[str]:
    for key in [key for key in {**old, **new} if key not in not_compared]:
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            yield from _yield_differences(a, b, not_compared, f"{prefix}{key}.")
        elif a != b:
            name, *values = (word if word.isprintable() else truncated_repr(word) for word in (key, str(a), str(b)))
            yield f"{prefix}{name[:MAX_REPR]} ({values[0][:MAX_REPR]}, {values[1][:MAX_REPR]})"
