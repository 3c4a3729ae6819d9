"""Train on several workers, each a process on this machine, with restarts.

    python -m launch.cluster --num_workers=2 --preset=mnist --run_dir=runs/pair

starts two workers, which train as one would: the same batches, the same result to rounding (about
2 minutes on 2 cores). If a worker dies, all are stopped and restarted from the last checkpoint, at most
--max_restarts times. Their output is also in workers.log, each line after the number of its worker.

With --strategy=parameter_server the workers train asynchronously, and --num_servers processes hold the
weights. This launcher also has all flags of launch.train. For jobs of Slurm and Kubernetes copy and edit the
files in docs/guides/cluster; see docs/guides/cluster.md.

Exit code: 0, or that of the first worker that failed, as launch.train's.
"""

import dataclasses
import os
import sys

from identity_matters.config import TrainConfig
from identity_matters.data.folder import check_run_dir_outside_images
from identity_matters.errors import UserError, truncated_repr
from identity_matters.fields import check_fields, option
from identity_matters.presets import TRAIN_PRESETS
from identity_matters.runs.directory import read_own
from identity_matters.runs.record import require_mounted
from launch import config_flags, launcher, local_cluster


@dataclasses.dataclass(frozen=True)
class ClusterConfig:
    """The number of workers, and the run that they train.

    Attributes:
      train: The training run.
      num_workers: Number of worker processes.
      num_servers: With --strategy=parameter_server: number of processes that hold the weights.
      max_restarts: How often the job may be restarted after a worker died.
    """

    train: TrainConfig = TrainConfig()
    num_workers: int = option(2, at_least=1, at_most=1_000)
    num_servers: int = option(1, at_least=1, at_most=1_000)
    max_restarts: int = option(3, at_least=0, at_most=10_000)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.is_asynchronous:
            return
        if self.num_servers != type(self).num_servers:
            raise UserError(f"--num_servers={self.num_servers} needs --strategy=parameter_server")
        batch_size = self.train.batch_size
        if batch_size % self.num_workers:
            raise UserError(f"batch_size must be a multiple of num_workers, {self.num_workers}, got {batch_size}")

    @property
    def is_asynchronous(self) -> bool:
        """Whether parameter servers hold the weights."""
        return self.train.strategy == "parameter_server"

    @property
    def tasks(self) -> dict[str, int]:
        """The number of tasks of each of TF_CONFIG's types."""
        if self.is_asynchronous:
            return {"chief": 1, "worker": self.num_workers, "ps": self.num_servers}
        return {"worker": self.num_workers}


PRESETS = {name: ClusterConfig(train=train) for name, train in TRAIN_PRESETS.items()}


def main(config: ClusterConfig, run_dir: str) -> int:
    """Runs the job; returns the exit code."""
    require_mounted(run_dir)
    optimizer = config.train.keras_optimizer
    if optimizer:
        raise UserError(f"workers cannot be given a Keras optimiser, got {truncated_repr(optimizer)}; leave it out")
    check_run_dir_outside_images(config.train.data, run_dir)
    read_own(run_dir)  # before the log is written: it rejects a folder with other files
    flags = config_flags.flags_of(config.train, TRAIN_PRESETS)
    command = [sys.executable, "-m", "launch.train", f"--run_dir={run_dir}", *flags]
    os.makedirs(run_dir, exist_ok=True)
    return local_cluster.run_job(command, config.tasks, config.max_restarts, os.path.join(run_dir, "workers.log"))


cli = launcher.command(main, PRESETS, manual=__doc__, unused_fields=lambda config: config.train.unused_fields())

if __name__ == "__main__":
    cli()
