"""A run directory with nothing in it yet but its config.json, and a table; and changes of that file."""

import json

from identity_matters.runs.directory import RunDirectory
from identity_matters.runs.tables import write_metrics


def begin(path, config, kind="train", status="running", rows=(), **details) -> None:
    """Makes the directory of a run of this config, with its config.json and, where there are rows, its table."""
    with RunDirectory(str(path), config, kind) as run:
        run.set_status(status, **details)
        if rows:
            write_metrics(run.file("metrics.csv" if kind == "train" else "results.csv"), rows)


def edit(run_dir, fields={}, /, **changes) -> None:
    """Changes a config.json, and fields of its config or of the data in it."""
    path = run_dir / "config.json"
    record = json.loads(path.read_text())
    for name, value in fields.items():
        config = record["config"]
        (config["data"] if name in config.get("data", ()) else config)[name] = value
    path.write_text(json.dumps(record | changes))
