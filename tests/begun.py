"""A run directory with nothing in it yet but its config.json, and a table; and changes of that file."""

import json
import os

import numpy as np

from identity_matters.runs import checkpoint
from identity_matters.runs.directory import RunDirectory
from identity_matters.runs.tables import write_metrics


def begin(path, config, kind="train", status="running", rows=(), **details) -> None:
    """Makes the directory of a run of this config, with its config.json and, if there are rows, its table."""
    with RunDirectory(str(path), config, kind) as run:
        run.set_status(status, **details)
        if rows:
            write_metrics(run.file("metrics.csv" if kind == "train" else "results.csv"), rows)


def read_config_json(run_dir) -> dict | None:
    """The content of config.json; None if there is none."""
    path = os.path.join(run_dir, "config.json")
    if not os.path.exists(path):
        return None
    with open(path) as file:
        return json.load(file)


def newest_checkpoint(folder) -> tuple[int, dict[str, np.ndarray]] | None:
    """The step and the arrays of the newest intact checkpoint in a folder."""
    arrays = {}
    if not checkpoint.load_newest(str(folder), arrays.update):
        return None
    return int(arrays["step"]), arrays


def edit(run_dir, fields={}, /, **changes) -> None:
    """Changes a config.json, and fields of its config or of the data in it."""
    path = run_dir / "config.json"
    record = json.loads(path.read_text())
    for name, value in fields.items():
        config = record["config"]
        (config["data"] if name in config.get("data", ()) else config)[name] = value
    path.write_text(json.dumps(record | changes))
