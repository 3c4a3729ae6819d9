"""The config of launch.cluster: where the workers run, and what they train."""

import dataclasses

from identity_matters.config import TrainConfig
from identity_matters.fields import check_fields, option, require


@dataclasses.dataclass(frozen=True)
class ClusterConfig:
    """Where the workers run, and what they train.

    Attributes:
      train: The training run.
      num_workers: Number of worker processes on this machine.
      num_servers: With --strategy=parameter_server: number of processes that hold the weights.
      max_restarts: How often the job may be started again after a worker died.
      slurm: Write a batch script for Slurm.
      kubernetes: Write a Kubernetes manifest.
      kubeflow: With --kubernetes: a TFJob, for the Kubeflow training operator.
      write: File to write the script or manifest to (empty: print it).
      submit: With --slurm: submit the script with sbatch.
      job_name: Name of the job, its Service and its log.
      nodes: Number of workers of a Slurm or Kubernetes job, one on each node.
      gpus_per_node: GPUs of each worker (0: train on CPUs).
      cpus_per_node: CPU cores of each worker.
      memory_per_node: Memory of each worker, in GiB.
      hours: Time limit of a Slurm job.
      partition: Slurm's partition (empty: the default one).
      setup: Shell command that the batch script and then every worker of a Slurm job runs first, e.g. to activate a
        virtual environment.
      image: Container image of a Kubernetes job, with this project installed.
      volume_claim: PersistentVolumeClaim of a Kubernetes job that holds run_dir and data_dir; it is mounted at
        volume_path.
      volume_path: Path at which volume_claim is mounted.
    """

    train: TrainConfig = TrainConfig()
    num_workers: int = option(2, at_least=1, at_most=1_000)
    num_servers: int = option(1, at_least=1, at_most=1_000)
    max_restarts: int = option(3, at_least=0, at_most=10_000)
    slurm: bool = False
    kubernetes: bool = False
    kubeflow: bool = False
    write: str = option("", path=True)
    submit: bool = False
    job_name: str = "identity-matters"
    nodes: int = option(2, at_least=1, at_most=100_000)
    gpus_per_node: int = option(0, at_least=0)
    cpus_per_node: int = option(8, at_least=1)
    memory_per_node: int = option(32, at_least=1)
    hours: int = option(24, at_least=1)
    partition: str = ""
    setup: str = ""
    image: str = ""
    volume_claim: str = ""
    volume_path: str = "/shared"

    def __post_init__(self) -> None:
        check_fields(self)
        require(not (self.slurm and self.kubernetes), "--slurm and --kubernetes exclude one another")
        node_flags = ("write", "job_name", "nodes", "gpus_per_node", "cpus_per_node", "memory_per_node")
        for kind, is_there, names in (  # nothing would read a flag of another kind of job
            ("--slurm or --kubernetes", self.is_remote, node_flags),
            ("--slurm", self.slurm, ("submit", "hours", "partition", "setup")),
            ("--kubernetes", self.kubernetes, ("kubeflow", "image", "volume_claim", "volume_path")),
            ("a job on this machine; another has --nodes", not self.is_remote, ("num_workers",)),
            ("--strategy=parameter_server", self.is_asynchronous, ("num_servers",)),
        ):
            for name in names:
                require(is_there or getattr(self, name) == getattr(type(self), name), f"--{name} needs {kind}")
        require(self.write or not self.submit, "--submit needs --slurm and --write=FILE")
        is_whole = self.image and self.volume_claim
        require(is_whole or not self.kubernetes, "--kubernetes needs --image=IMAGE and --volume_claim=CLAIM")
        if self.is_asynchronous:
            require(not self.is_remote, "strategy parameter_server runs on this machine, or by hand with TF_CONFIG")
            return
        replicas, batch_size = self.num_workers, self.train.batch_size
        if self.is_remote:
            replicas = self.nodes * max(self.gpus_per_node, 1)
        message = f"batch_size must be a multiple of the number of devices, {replicas}, got {batch_size}"
        require(batch_size % replicas == 0, message)

    @property
    def is_remote(self) -> bool:
        """Returns whether Slurm or Kubernetes runs the job."""
        return self.slurm or self.kubernetes

    @property
    def is_asynchronous(self) -> bool:
        """Returns whether parameter servers hold the weights."""
        return self.train.strategy == "parameter_server"

    @property
    def tasks(self) -> dict[str, int]:
        """The number of tasks of each of TF_CONFIG's types that a job on this machine has."""
        workers = {"worker": self.num_workers}
        return {"chief": 1, **workers, "ps": self.num_servers} if self.is_asynchronous else workers
