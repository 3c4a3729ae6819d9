"""The start of a run: its workers come together and agree on the config and on what is done already."""

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import keras
from numpy.typing import ArrayLike

from identity_matters.config import TrainConfig
from identity_matters.data.arrays import ArrayData
from identity_matters.data.loading import load
from identity_matters.data.npz import npz_digest
from identity_matters.distributed import rendezvous
from identity_matters.distributed.workers import Workers
from identity_matters.errors import Diverged, UserError, truncated_repr
from identity_matters.keras_settings import require_usual_keras
from identity_matters.runs.checkpoint import has_checkpoints
from identity_matters.runs.config_json import differences
from identity_matters.runs.directory import Busy, RunDirectory, as_json
from identity_matters.runs.tables import read_metrics

if TYPE_CHECKING:
    from identity_matters.data.tfds import TfdsSource

LOCK_TIMEOUT = 180  # seconds; an NFS server keeps the lock of a lost machine for about 90


def join(config: TrainConfig) -> Workers | None:
    """Returns the workers, once all of them are there; None on a server whose chief is gone.

    Raises:
      UserError: config is no TrainConfig, TF_CONFIG cannot be used, or Keras has other settings than its usual ones.
      WorkerLost: another worker does not come.
    """
    if not isinstance(config, TrainConfig):
        raise UserError(f"config must be a TrainConfig, e.g. training.PRESETS['mnist'], got {truncated_repr(config)}")
    require_usual_keras()
    if config.strategy == "parameter_server":
        from identity_matters.distributed import parameter_server

        return parameter_server.join()
    return rendezvous.join()


def load_in_turn(
    config: TrainConfig, workers: Workers, given: Sequence[ArrayLike] | None = None
) -> "ArrayData | TfdsSource":
    """Loads the data; a chief that may download them comes first, and the others may find them on the same disk.

    Args:
      config: TrainConfig.
      workers: Workers.
      given: Arrays in place of a named set, see `load`.

    Raises:
      UserError: see `load`.
    """
    in_turn = workers.broadcast([config.download])[0]
    if in_turn and not workers.is_chief:
        workers.all_reduce([0.0])  # not a barrier: where the chief could not download them, nobody can
    data = load(config, given)
    if in_turn and workers.is_chief:
        workers.barrier()
    if config.strategy == "parameter_server" and not isinstance(data, ArrayData):
        raise UserError(f"strategy parameter_server needs data that fit in memory, which those of {data.name} do not")
    return data


@contextlib.contextmanager
def open_run(
    config: TrainConfig, run_dir: str, workers: Workers, data: str = ""
) -> Iterator[tuple[RunDirectory | None, dict]]:
    """Opens the run directory on the chief, and agrees on the config and the data with the other workers.

    Args:
      config: TrainConfig.
      run_dir: str. The chief's.
      workers: Workers.
      data: str. The summary of this worker's data.

    Yields:
      (directory, record): RunDirectory, which no other process can write to meanwhile, None on workers other than the
      chief; and what its config.json says, with a final_row where nothing is left to do.

    Raises:
      UserError: the chief cannot use its run_dir, or a worker has another config or other data; on all of them.
    """
    with contextlib.ExitStack() as stack:
        directory, record = None, {}
        own = as_json(config) | {"data": data, "digest of npz": npz_digest(config.npz) if config.npz else ""}
        if workers.is_chief:
            try:
                directory = RunDirectory(run_dir, config, data=data)
                # Only TensorFlow writes a saved_model.
                results = ("model.keras", "saved_model")[: 1 + (keras.backend.backend() == "tensorflow")]
                is_complete = all(os.path.exists(directory.file(name)) for name in results)
                is_done = directory.status == "done" and is_complete
                if not is_done and directory.status != "diverged":
                    # A job of one worker too: on another node it may come before the lock of its last try is gone.
                    _lock(directory, stack, LOCK_TIMEOUT if workers.has_peers or "TF_CONFIG" in os.environ else 0)
                    _require_checkpoints(directory, config)
                final_row = read_metrics(directory.file("metrics.csv"))[-1] if is_done else None
                record = directory.record | {"final_row": final_row}
            except ValueError as error:
                record["mistake"] = str(error)
        record = json.loads(workers.broadcast_text(json.dumps(record | {"config": own})))
        # An .npz file may lie elsewhere on each machine: its digest says whether it is the same.
        _require_agreement(record, differences(record["config"], own, same=("npz",)), workers)
        if record["final_row"] or record["status"] == "diverged":
            workers.barrier()  # until the others have heard it: a sum fails where one has left
        yield directory, record


@contextlib.contextmanager
def recording_failure(directory: RunDirectory | None, workers: Workers) -> Iterator[None]:
    """Opens a context that writes into config.json how it ended, unless the same command can continue."""
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
        if isinstance(error, Diverged):  # on all workers at once
            workers.barrier()  # until the chief has recorded it: a job may end with its first worker
        raise


def _require_agreement(record: dict, differing: list[str], workers: Workers) -> None:
    """Raises UserError on all workers, once all of them know of it, where one of them cannot take part."""
    num_differing = int(workers.all_reduce([bool(differing)])[0])
    if "mistake" in record or num_differing:
        workers.barrier()
    if "mistake" in record:
        raise UserError(record["mistake"])
    if differing:
        raise UserError(
            f"worker {workers.rank} has another config or other data than worker 0 (worker 0's, its own): "
            f"{'; '.join(differing)}"
        )
    if num_differing:
        raise UserError(
            f"{num_differing} of {workers.num_processes} workers were started with another config than worker 0, or "
            "on other data"
        )


def _require_checkpoints(directory: RunDirectory, config: TrainConfig) -> None:
    """Raises UserError where a run has lost its checkpoints: to begin again would overwrite what is left of it."""
    if os.path.exists(metrics := directory.file("metrics.csv")) and not has_checkpoints(directory.file("checkpoints")):
        step = max((row["step"] for row in read_metrics(metrics)), default=0)
        if directory.status == "done" or step >= config.checkpoint_every:
            raise UserError(
                f"{directory.path} holds a run of {step} steps without its checkpoints, so that nothing can be added; "
                "bring them back, or choose another run_dir"
            )


def _lock(directory: RunDirectory, stack: contextlib.ExitStack, timeout: float) -> None:
    """Locks the directory.

    The file system may take time to notice that a chief before this one died with its machine.
    """
    deadline, has_said = time.monotonic() + timeout, False
    while True:
        try:
            stack.enter_context(directory)
            return
        except Busy as error:
            if time.monotonic() >= deadline:
                raise
            if not has_said:
                print(f"{error}; waiting up to {timeout} seconds for it to end", file=sys.stderr, flush=True)
            has_said = True
            time.sleep(1)
