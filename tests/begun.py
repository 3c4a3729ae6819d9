"""A run directory with nothing in it yet but its config.json, and changes of that file."""

import json

from identity_matters.runs.directory import RunDirectory


def begin(path, config, kind="train", status="running", **details) -> None:
    """Makes the directory of a run of this config, with its config.json."""
    with RunDirectory(str(path), config, kind) as run:
        run.set_status(status, **details)


def edit(run_dir, fields={}, /, **changes) -> None:
    """Changes a config.json, and fields of its config."""
    path = run_dir / "config.json"
    record = json.loads(path.read_text())
    record["config"] |= fields
    path.write_text(json.dumps(record | changes))
