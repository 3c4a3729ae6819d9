"""The start of a run: the workers come together, and agree on the config and on what is done already."""

import json
import os
import sys
import time

import keras

from identity_matters.config import TrainConfig
from identity_matters.distributed import rendezvous, workers
from identity_matters.runs.directory import Busy, RunDirectory, as_json, differences
from identity_matters.runs.errors import UserError
from identity_matters.runs.tables import read_metrics

LEASE = 180  # seconds; an NFS server keeps the lock of a lost machine for about 90


def join(config: TrainConfig) -> workers.Workers | None:
    """The workers, once all of them are there; None on a server whose chief is gone. Raises as rendezvous.join."""
    if config.strategy == "parameter_server":
        from identity_matters.distributed import parameter_server

        return parameter_server.join()
    return rendezvous.join()


def can_export() -> bool:
    """Whether there is TensorFlow to write a SavedModel with."""
    return keras.backend.backend() == "tensorflow"


def _enter(run: RunDirectory, stack) -> None:
    """Holds the directory, once the file system has noticed that the chief before this one died with its machine."""
    deadline, has_said = time.monotonic() + LEASE, False
    while True:
        try:
            return stack.enter_context(run)
        except Busy as error:
            if time.monotonic() > deadline:
                raise
            if not has_said:
                print(f"{error}; waiting up to {LEASE} seconds for it to end", file=sys.stderr, flush=True)
            has_said = True
            time.sleep(1)


def _is_done(run: RunDirectory) -> bool:
    return run.status == "done" and (os.path.exists(run.file("saved_model")) or not can_export())


def agree(config: TrainConfig, run_dir: str, workers, stack) -> tuple[RunDirectory | None, dict]:
    """The chief's run directory, held until the stack closes (None for other workers), and what its config.json says.

    The record has a final_row where nothing is left to do.

    Raises:
      ValueError: the chief cannot use its run_dir, or a worker has another config: on all of them.
    """
    run, own = None, as_json(config)
    record = {"config": own}
    if workers.is_chief:
        try:
            run = RunDirectory(run_dir, config)
            if not _is_done(run) and run.status != "diverged":
                stack.enter_context(run) if workers.is_alone else _enter(run, stack)
            final_row = read_metrics(run.file("metrics.csv"))[-1] if _is_done(run) else None
            record = run.record | {"config": own, "final_row": final_row}
        except ValueError as error:
            record["mistake"] = str(error)
    record = json.loads(workers.text_from_chief(json.dumps(record)))
    differing = differences(record["config"], own)
    num_differing = int(workers.sum([bool(differing)])[0])
    if "mistake" in record or num_differing:
        workers.wait()  # until all know
    if "mistake" in record:
        raise UserError(record["mistake"])
    if differing:
        raise UserError(
            f"worker {workers.rank} has another config than worker 0 (worker 0's, its own): {'; '.join(differing)}"
        )
    if num_differing:
        raise UserError(f"{num_differing} of {workers.count} workers were started with another config than worker 0")
    return run, record
