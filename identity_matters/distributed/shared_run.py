"""The run directory of a job of several workers: the chief opens it, and all agree on what they are to do."""

import contextlib
import json
import os
from collections.abc import Iterator

import keras

from identity_matters.config import TrainConfig
from identity_matters.distributed.workers import Workers
from identity_matters.errors import Diverged, EvaluationFailed, UserError
from identity_matters.fields import names_with, require
from identity_matters.runs.checkpoint import list_checkpoints
from identity_matters.runs.config_json import DATA_PATHS
from identity_matters.runs.directory import LOCK_TIMEOUT, RunDirectory, as_json, differences, lock
from identity_matters.runs.tables import read_metrics


@contextlib.contextmanager
def open_run(
    config: TrainConfig, run_dir: str, workers: Workers, data_digest: str, data: str = ""
) -> Iterator[tuple[RunDirectory | None, dict]]:
    """Opens the run directory on the chief, and agrees on the config and the data with the other workers.

    data_digest is that of the source, data a summary for config.json.

    Yields:
      (directory, contents): RunDirectory, which no other process can write to meanwhile, None on workers other than the
      chief; and the contents of its config.json, with a final_row where nothing is left to do.

    Raises:
      UserError: the chief cannot use its run_dir, or a worker has another config or other data; on all of them.
    """
    with contextlib.ExitStack() as stack:
        directory = None
        contents = {}
        compared = as_json(config) | {"examples": f"{data}, {data_digest}"}
        if workers.is_chief:
            try:
                directory = RunDirectory(run_dir, config, data_digest=data_digest)
                directory.contents["data"] = data
                # Only TensorFlow writes a saved_model; a done run that lost what it exported exports it again.
                exported = ("model.keras", "saved_model")[: 1 + (keras.backend.backend() == "tensorflow")]
                has_results = all(os.path.exists(directory.file(name)) for name in exported)
                is_complete = directory.status == "done" and has_results
                if not is_complete and directory.status != "diverged":
                    # A job of one worker too: on another node it may come before the lock of its last try is gone.
                    lock(directory, stack, LOCK_TIMEOUT if workers.has_peers or "TF_CONFIG" in os.environ else 0)
                    _require_checkpoints(directory, config.checkpoint_every)
                final_row = read_metrics(directory.file("metrics.csv"))[-1] if is_complete else None
                contents = directory.contents | {"final_row": final_row}
            except ValueError as error:
                contents["mistake"] = str(error)
        contents = json.loads(workers.broadcast_text(json.dumps(contents | {"config": compared})))
        # They may lie elsewhere on each machine: a digest says whether they are the same.
        same = *DATA_PATHS, *names_with(config, "compared", False)
        _require_agreement(contents, differences(contents["config"], compared, same), workers)
        if contents["final_row"] or contents["status"] == "diverged":
            workers.barrier()  # until the others have heard it: a sum fails where one has left
        yield directory, contents


@contextlib.contextmanager
def recording_failure(directory: RunDirectory | None, workers: Workers) -> Iterator[None]:
    """Opens a context that notes in config.json how it failed, unless the same command continues."""
    try:
        yield
    except Exception as error:
        is_open = directory and directory.is_begun and directory.status != "done"  # done: results were written again
        if is_open and not getattr(error, "same_command_continues", False):
            with contextlib.suppress(OSError):  # which must not hide the error itself
                if isinstance(error, Diverged):
                    directory.set_status("diverged", diverged_at_step=error.step)
                else:
                    directory.set_status("failed", error=str(error))
        if isinstance(error, Diverged | EvaluationFailed):  # on all workers at once
            workers.barrier()  # until the chief has recorded it: a job may end with its first worker
        raise


def _require_agreement(contents: dict, differing: list[str], workers: Workers) -> None:
    """Raises UserError on all workers, once all of them know of it, where one of them cannot take part."""
    num_differing = int(workers.all_reduce([bool(differing)])[0])
    if "mistake" in contents or num_differing:
        workers.barrier()
    require("mistake" not in contents, contents.get("mistake", ""))
    who = (
        f"worker {workers.rank} has"
        if differing
        else f"{num_differing} of {workers.num_processes} workers were started with"
    )
    fields = f" (worker 0's, its own): {'; '.join(differing)}" if differing else ""
    require(not num_differing, f"{who} another config or other data than worker 0{fields}")


def _require_checkpoints(directory: RunDirectory, checkpoint_every: int) -> None:
    """Raises UserError where a run has lost its checkpoints: to begin again would overwrite what is left of it."""
    metrics = directory.file("metrics.csv")
    if not os.path.exists(metrics) or list_checkpoints(directory.file("checkpoints")):
        return
    step = max(row["step"] for row in read_metrics(metrics))
    if directory.status == "done" or step >= checkpoint_every:
        raise UserError(
            f"{directory.path} holds a run of {step} steps without its checkpoints, so that nothing can be added; "
            "bring them back, or choose another run_dir"
        )
