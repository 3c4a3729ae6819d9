"""Train on several workers: processes of this machine, or a job of Slurm or Kubernetes.

    python -m launch.cluster --num_workers=2 --preset=mnist --run_dir=runs/pair

starts two workers here, which train as one would: same batches, same result to rounding (about 2
minutes on 2 cores). When one dies all are ended and started again from the last checkpoint,
--max_restarts times at most. Their output, each line after its worker's number, is also in workers.log.

    python -m launch.cluster --slurm --nodes=4 --gpus_per_node=8 --run_dir=runs/gpus --write=job.sbatch

writes a batch script for Slurm (--submit also submits it), --kubernetes an Indexed Job with its
Service, --kubernetes --kubeflow a TFJob. All flags of launch.train are flags here too; see docs/cluster.md.
Exit code: 0, or that of the worker that ended first, as launch.train's.
"""

import dataclasses
import os
import shlex
import subprocess
import sys

from identity_matters.config import TrainConfig, ignored_fields
from identity_matters.errors import UserError
from identity_matters.fields import check_fields
from identity_matters.presets import TRAIN_PRESETS
from identity_matters.runs.config_json import require_mounted
from identity_matters.runs.directory import require_no_foreign_files
from identity_matters.runs.files import write_text
from launch import config_flags, launcher
from launch.jobs import kubernetes, local, slurm


@dataclasses.dataclass(frozen=True)
class ClusterConfig:
    """Where the workers run, and what they train.

    Attributes:
      train: The training run.
      num_workers: Processes on this machine.
      num_servers: With --strategy=parameter_server: processes that hold the weights.
      max_restarts: How often the job is started again when a worker dies.
      slurm: Write a batch script for Slurm.
      kubernetes: Write a Kubernetes manifest.
      kubeflow: With --kubernetes: a TFJob, for the Kubeflow training operator.
      write: File to write the script or manifest to (empty: print it).
      submit: With --slurm: submit the script with sbatch.
      job_name: Name of the job, its Service and its log.
      nodes: Workers of a Slurm or Kubernetes job, one a node.
      gpus_per_node: GPUs of each worker (0: train on CPUs).
      cpus_per_node: CPU cores of each worker.
      memory_per_node: Memory of each worker, in GiB.
      hours: Time limit of a Slurm job.
      partition: Slurm's partition (empty: the default one).
      setup: Shell command that the batch script and then every worker of a Slurm job runs first, e.g. to activate a
        virtual environment.
      image: Container image of a Kubernetes job, with this project installed.
      volume_claim: PersistentVolumeClaim of a Kubernetes job, for run_dir and data_dir; mounted at volume_path.
      volume_path: Folder in which the volume claim is mounted.
    """

    train: TrainConfig = TrainConfig()
    num_workers: int = 2
    num_servers: int = 1
    max_restarts: int = 3
    slurm: bool = False
    kubernetes: bool = False
    kubeflow: bool = False
    write: str = ""
    submit: bool = False
    job_name: str = "identity-matters"
    nodes: int = 2
    gpus_per_node: int = 0
    cpus_per_node: int = 8
    memory_per_node: int = 32
    hours: int = 24
    partition: str = ""
    setup: str = ""
    image: str = ""
    volume_claim: str = ""
    volume_path: str = "/shared"

    def __post_init__(self) -> None:
        check_fields(
            self,
            at_least_1=("num_workers", "num_servers", "nodes", "cpus_per_node", "memory_per_node", "hours"),
            at_least_0=("max_restarts", "gpus_per_node"),
            at_most={"num_workers": 1_000, "num_servers": 1_000, "nodes": 100_000, "max_restarts": 10_000},
        )
        for name in ("job_name", "partition", "setup", "image", "volume_claim", "volume_path"):
            launcher.require_printable(name, getattr(self, name))
        if self.slurm and self.kubernetes:
            raise UserError("--slurm and --kubernetes exclude one another")
        self._check_kind()
        if self.submit and not self.write:
            raise UserError("--submit needs --slurm and --write=FILE")
        if self.kubernetes and not (self.image and self.volume_claim):
            raise UserError("--kubernetes needs --image=IMAGE and --volume_claim=CLAIM")
        if self.is_asynchronous:
            if self.is_remote:
                raise UserError("strategy parameter_server runs on this machine, or by hand with TF_CONFIG")
            return
        replicas = self.nodes * max(self.gpus_per_node, 1) if self.is_remote else self.num_workers
        if self.train.batch_size % replicas:
            raise UserError(
                f"batch_size must be a multiple of the number of devices, {replicas}, got {self.train.batch_size}"
            )

    def _check_kind(self) -> None:
        """Raises UserError for a flag of another kind of job, which nothing would read."""
        of_nodes = ("write", "job_name", "nodes", "gpus_per_node", "cpus_per_node", "memory_per_node")
        for kind, is_there, names in (
            ("--slurm or --kubernetes", self.is_remote, of_nodes),
            ("--slurm", self.slurm, ("submit", "hours", "partition", "setup")),
            ("--kubernetes", self.kubernetes, ("kubeflow", "image", "volume_claim", "volume_path")),
            ("a job on this machine; another has --nodes", not self.is_remote, ("num_workers",)),
            ("--strategy=parameter_server", self.is_asynchronous, ("num_servers",)),
        ):
            for name in names:
                if not is_there and getattr(self, name) != getattr(type(self), name):
                    raise UserError(f"--{name} needs {kind}")

    @property
    def is_remote(self) -> bool:
        """Whether Slurm or Kubernetes runs the job."""
        return self.slurm or self.kubernetes

    @property
    def is_asynchronous(self) -> bool:
        """Whether parameter servers hold the weights."""
        return self.train.strategy == "parameter_server"

    @property
    def tasks(self) -> dict[str, int]:
        """The number of tasks of each of TF_CONFIG's types that a job on this machine has."""
        workers = {"worker": self.num_workers}
        return {"chief": 1, **workers, "ps": self.num_servers} if self.is_asynchronous else workers


PRESETS = {name: ClusterConfig(train=train) for name, train in TRAIN_PRESETS.items()}


def main(config: ClusterConfig, run_dir: str) -> int:
    """Runs the job on this machine, or writes and submits what Slurm or Kubernetes runs; returns the exit code."""
    require_mounted(run_dir)
    flags = config_flags.flags_of(config.train, TRAIN_PRESETS)
    if not config.is_remote:
        require_no_foreign_files(run_dir)  # before the log is one
        command = [sys.executable, "-m", "launch.train", f"--run_dir={run_dir}", *flags]
        try:
            os.makedirs(run_dir, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot write to run_dir {run_dir}: {error.strerror}") from error
        return local.run_job(command, config.tasks, config.max_restarts, os.path.join(run_dir, "workers.log"))
    text = (slurm.script if config.slurm else kubernetes.manifest)(config, run_dir, flags)
    if not config.write:
        print(text, end="")
        return 0
    write_text(config.write, text)
    submit = ["sbatch", config.write] if config.slurm else ["kubectl", "apply", "-f", config.write]
    print(f"written: {config.write}")
    if not config.submit:
        print(f"next:\n  {shlex.join(submit)}")
        return 0
    try:
        return subprocess.run(submit).returncode
    except FileNotFoundError:
        raise UserError("there is no sbatch on this machine; submit from a login node of the cluster") from None


def cli() -> None:
    """Runs the launcher with the command line's flags."""
    launcher.run(main, PRESETS, manual=__doc__, without_effect=lambda config: ignored_fields(config.train))


if __name__ == "__main__":
    cli()
