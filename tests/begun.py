"""A run directory with nothing in it yet but its config.json."""

from identity_matters.runs.directory import RunDirectory


def begin(path, config, kind="train", status="running", **details) -> None:
    """Makes the directory of a run of this config, with its config.json."""
    with RunDirectory(str(path), config, kind) as run:
        run.set_status(status, **details)
