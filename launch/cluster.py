"""Train on several workers: processes on this machine, or a job of Slurm or Kubernetes.

    python -m launch.cluster --num_workers=2 --preset=mnist --run_dir=runs/pair

starts two workers on this machine, which train as one would: the same batches, the same result to
rounding (about 2 minutes on 2 cores). If a worker dies, all are stopped and started again from the last
checkpoint, at most --max_restarts times. Their output is also in workers.log, each line after the number
of its worker.

    python -m launch.cluster --slurm --nodes=4 --gpus_per_node=8 --run_dir=runs/gpus --write=job.sbatch

writes a batch script for Slurm (--submit also submits it); --kubernetes writes an Indexed Job with its
Service, --kubernetes --kubeflow a TFJob. All flags of launch.train are flags here too; see
docs/guides/cluster.md. Exit code: 0, or that of the first worker that failed, as launch.train's.
"""

import os
import shlex
import subprocess
import sys

from identity_matters.config import ignored_fields
from identity_matters.data.folder import check_run_dir_outside_images
from identity_matters.errors import UserError, truncated_repr
from identity_matters.fields import require
from identity_matters.presets import TRAIN_PRESETS
from identity_matters.runs.config_json import require_mounted
from identity_matters.runs.directory import read_own
from identity_matters.runs.files import write_text
from launch import config_flags, launcher
from launch.jobs import kubernetes, local, slurm
from launch.jobs.config import ClusterConfig

PRESETS = {name: ClusterConfig(train=train) for name, train in TRAIN_PRESETS.items()}


def main(config: ClusterConfig, run_dir: str) -> int:
    """Runs the job on this machine, or writes and submits what Slurm or Kubernetes runs; returns the exit code."""
    require_mounted(run_dir)
    optimizer = config.train.keras_optimizer
    require(not optimizer, f"workers cannot be given a Keras optimiser, got {truncated_repr(optimizer)}; leave it out")
    flags = config_flags.flags_of(config.train, TRAIN_PRESETS)
    if not config.is_remote:
        check_run_dir_outside_images(config.train.data, run_dir)
        read_own(run_dir)  # before the log exists: it rejects a folder with other files
        command = [sys.executable, "-m", "launch.train", f"--run_dir={run_dir}", *flags]
        os.makedirs(run_dir, exist_ok=True)
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


cli = launcher.command(main, PRESETS, manual=__doc__, without_effect=lambda config: ignored_fields(config.train))

if __name__ == "__main__":
    cli()
