"""A run directory as a run leaves it that has just begun."""

from identity_matters.runs.directory import RunDirectory


def begin(path, config, kind="train", **details) -> None:
    """Makes the directory of a run of this config, with its config.json."""
    with RunDirectory(str(path), config, kind) as run:
        run.set_status("running", **details)
