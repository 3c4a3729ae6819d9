"""`Run`: what the workers of a training run agree on, restore, save, log and write at the end.

The run directory is the chief's: it locks it, reads it and writes it, and tells the other workers what it found.
"""

import contextlib
import json
import os
from collections.abc import Iterator, Sequence

import keras

from identity_matters import networks
from identity_matters.cluster import Cluster
from identity_matters.config import TrainConfig
from identity_matters.errors import Diverged, EvaluationFailed, UserError, WorkerLost, note
from identity_matters.export import write_results
from identity_matters.fields import fields_with_metadata
from identity_matters.runs import checkpoint
from identity_matters.runs.checkpoint import TrainingState
from identity_matters.runs.directory import LOCK_TIMEOUT, RunDirectory, as_json, differences
from identity_matters.runs.metrics_log import MetricsLog, describe
from identity_matters.runs.record import DATA_PATHS
from identity_matters.runs.tables import read_metrics
from identity_matters.starting_weights import load_matching_weights


class Run:
    """A training run, seen from one of its workers.

    Attributes:
      directory: The run directory; None on workers other than the chief, which write nothing.
      checkpoints: Its folder of checkpoints; "" on workers other than the chief.
      final_row: The last row of metrics.csv of a run that is done; None if something is left to do.
      log: metrics.csv and TensorBoard, once the run is restored.
    """

    def __init__(self, config: TrainConfig, cluster: Cluster) -> None:
        self.config = config
        self.cluster = cluster
        self.directory: RunDirectory | None = None
        self.checkpoints = ""
        self.final_row: dict[str, float] | None = None
        self.log = MetricsLog(None, 0)

    @classmethod
    @contextlib.contextmanager
    def open(
        cls, run_dir: str, config: TrainConfig, cluster: Cluster, data_digest: str, data: str = ""
    ) -> Iterator["Run"]:
        """Context manager: opens and locks the run directory on the chief, and compares config and data on all workers.

        How the run failed is recorded in config.json, unless the same command continues it.

        Args:
          data_digest: A digest of the data; `data` is a summary of them for config.json.

        Raises:
          UserError: the chief cannot use its run_dir, or a worker has another config or other data; on all of them.
          Diverged: the run did so earlier.
        """
        run = cls(config, cluster)
        mistake = ""
        with contextlib.ExitStack() as stack:
            if cluster.is_chief:
                try:
                    run._open_directory(run_dir, data_digest, data, stack)
                except ValueError as error:
                    mistake = str(error)
            run._agree(mistake, f"{data}, {data_digest}")
            try:
                yield run
            except Exception as error:
                run._record_failure(error)
                raise

    def _open_directory(self, run_dir: str, data_digest: str, data: str, stack: contextlib.ExitStack) -> None:
        # A job of one worker too: on another node it may come before the lock of its last try is gone.
        has_restarts = self.cluster.has_peers or "TF_CONFIG" in os.environ
        timeout = LOCK_TIMEOUT if has_restarts else 0
        directory = RunDirectory(run_dir, self.config, data_digest=data_digest, lock_timeout=timeout)
        self.directory = directory
        self.checkpoints = directory.file("checkpoints")
        metrics = directory.file("metrics.csv")
        if directory.status == "diverged":
            return
        # Only TensorFlow writes a saved_model; a done run that lost what it exported exports it again.
        exported = ("model.keras", "saved_model")[: 1 + (keras.backend.backend() == "tensorflow")]
        if directory.status == "done" and all(os.path.exists(directory.file(name)) for name in exported):
            self.final_row = read_metrics(metrics)[-1]
            return
        stack.enter_context(directory)
        directory.record.data = data
        if not os.path.exists(metrics) or checkpoint.list_checkpoints(self.checkpoints):
            return
        step = max(row["step"] for row in read_metrics(metrics))
        if directory.status == "done" or step >= self.config.checkpoint_every:
            raise UserError(
                f"{run_dir} holds a run of {step} steps without its checkpoints, so that nothing can be added; bring "
                "them back, or choose another run_dir"
            )

    def _agree(self, mistake: str, examples: str) -> None:
        """Raises on all workers, once all of them know of it, what keeps one of them from training."""
        own = as_json(self.config) | {"examples": examples}
        found = {"mistake": mistake, "config": own, "final_row": self.final_row, "diverged_at_step": None}
        if self.directory and self.directory.status == "diverged":
            found["diverged_at_step"] = self.directory.record.diverged_at_step
        found = json.loads(self.cluster.broadcast_text(json.dumps(found)))
        # They may lie elsewhere on each machine: a digest says whether they are the same.
        differing = differences(
            found["config"], own, (*DATA_PATHS, *fields_with_metadata(self.config, "compared", False))
        )
        num_differing = int(self.cluster.all_reduce([bool(differing)])[0])
        self.final_row = found["final_row"]
        if found["mistake"] or num_differing or self.final_row or found["diverged_at_step"] is not None:
            with contextlib.suppress(WorkerLost):
                self.cluster.barrier()  # nothing is left to train, and a worker that leaves is not lost
        if found["mistake"]:
            raise UserError(found["mistake"])
        if differing:
            raise UserError(
                f"worker {self.cluster.rank} has another config or other data than worker 0 (worker 0's, its own): "
                f"{'; '.join(differing)}"
            )
        if num_differing:
            raise UserError(
                f"{num_differing} of {self.cluster.num_processes} workers were started with another config or other "
                "data than worker 0"
            )
        if found["diverged_at_step"] is not None:
            raise Diverged(found["diverged_at_step"], self.config.steps_per_execution)

    def _record_failure(self, error: Exception) -> None:
        directory = self.directory
        is_open = directory and directory.is_begun and directory.status != "done"  # done: results were written again
        if is_open and not getattr(error, "same_command_continues", False):
            with contextlib.suppress(OSError):  # which must not hide the error itself
                if isinstance(error, Diverged):
                    directory.set_status("diverged", diverged_at_step=error.step)
                else:
                    directory.set_status("failed", error=str(error))
        if isinstance(error, Diverged | EvaluationFailed):  # on all workers at once
            with contextlib.suppress(WorkerLost):
                self.cluster.barrier()  # until the chief has recorded it: a job may end with its first worker

    def restore(self, state: TrainingState, class_names: Sequence[str] = ()) -> None:
        """Gives all workers the state of the newest checkpoint, or the weights that the run starts with."""
        if self.directory:
            record = self.directory.record
            record.class_names = list(class_names) or record.class_names
            state.restore(self.checkpoints)
            metrics = self.directory.file("metrics.csv")
            if self.directory.status == "done" and os.path.exists(metrics):
                # It lost what it exported: only that is written again.
                state.is_end = read_metrics(metrics)[-1]["step"] == state.step
            if self.config.init_from and not state.step:
                line, record.init_digest = load_matching_weights(
                    state.network, self.config.init_from, record.init_digest, self.config.fresh
                )
                note(line)
            if self.directory.status != "done" or not state.is_end:
                self.directory.set_status("running")  # now: a mistake that was found before must leave no config.json
            self.log = MetricsLog(self.directory, state.step)
        if self.cluster.num_processes > 1:
            state.assign(self.cluster.broadcast_arrays(state.arrays()))
        if self.cluster.broadcast([self.log.has_row(state.step)])[0]:
            state.pop_means()  # they are in the row

    def save(self, state: TrainingState) -> None:
        """Writes a checkpoint."""
        if self.directory:
            checkpoint.save(self.checkpoints, state.arrays())

    def finish(self, network: keras.Model) -> dict[str, float]:
        """Writes the results on the chief, while the other workers wait; returns the last row, {} on these."""
        self.log.close()
        rows = self.log.rows
        if self.directory:
            exported = networks.build(self.config.model, self.config.seed)  # its variables lie in this process only
            exported.set_weights(network.get_weights())
            write_results(self.config, exported, rows, self.directory)
            self.directory.set_status("done")
        elif rows:
            print(f"worker {self.cluster.rank} is done: {describe(rows[-1], self.config)}", flush=True)
        self.cluster.barrier()  # if the chief could not write everything, the job is not done
        return rows[-1] if self.directory else {}
