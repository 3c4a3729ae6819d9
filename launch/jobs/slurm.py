"""The batch script of a training job for Slurm."""

import os
import re
import shlex

from identity_matters.errors import EXIT_DIVERGED, EXIT_ERROR, UserError
from launch.jobs.config import ClusterConfig

GRACE_PERIOD = 120  # seconds before the time limit at which the workers get SIGTERM, to save a checkpoint

_SCRIPT = """\
#!/bin/bash
# Written by launch.cluster. Requeues itself, {max_restarts} times at most, when a node fails, a worker
# dies, or the time is up, and goes on from the last checkpoint.
{options}

# Slurm's own restarts, after a preemption or a node's failure, count too.
if [ "${{SLURM_RESTART_COUNT:-0}}" -gt {max_restarts} ]; then
    echo "giving up after {max_restarts} restarts"
    exit 1
fi
cd {directory} || exit 1
setup={setup}
eval "$setup"

# One address a worker, in the order of SLURM_PROCID; a port each, so that workers may share a host.
port=$((10000 + SLURM_JOB_ID * {nodes} % 20000))
workers=""
for host in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do
    if ! getent hosts "$host" > /dev/null; then
        host=$(scontrol -o show node "$host" | grep -o ' NodeAddr=[^ ]*' | cut -d= -f2)
    fi
    workers="$workers${{workers:+, }}\\"$host:$port\\""
    port=$((port + 1))
done
# A worker that ends for good, by a mistake ({error}) or a loss of NaN ({diverged}), says so here: srun may report the
# code of another one, which it killed.
ended=$PWD/$SLURM_JOB_NAME-$SLURM_JOB_ID.ended
export workers ended setup
rm -f "$ended"

srun --kill-on-bad-exit=1 --cpus-per-task={cpus} bash -c '
    command=("$@")
    set --  # else a script that setup sources would get the arguments of the command
    eval "$setup"
    task="{{\\"type\\": \\"worker\\", \\"index\\": $SLURM_PROCID}}"
    export TF_CONFIG="{{\\"cluster\\": {{\\"worker\\": [$workers]}}, \\"task\\": $task}}"
    trap : TERM  # which the training answers
    "${{command[@]}}"
    code=$?
    case $code in {error} | {diverged}) echo $code > "$ended" ;; esac
    exit $code' worker {command}
code=$?

[ $code = 0 ] && exit
[ -e "$ended" ] && exit "$(cat "$ended")"
# All else is worth another try.
if [ "${{SLURM_RESTART_COUNT:-0}}" -lt {max_restarts} ]; then
    echo "exit code $code: requeued ($((${{SLURM_RESTART_COUNT:-0}} + 1)) of at most {max_restarts} times)"
    scontrol requeue "$SLURM_JOB_ID" && sleep 60  # Slurm ends this script meanwhile
fi
exit $code
"""


def quoted(text: str) -> str:
    r"""Returns the word of bash that means a text, on one line; all that varies in the script passes through here.

    >>> print(quoted("my runs"), quoted("a\nb"))
    'my runs' $'a\012b'
    """
    if text.isprintable():
        return shlex.quote(text)
    escaped = re.sub(rb"[^ -&(-\[\]-~]", lambda byte: rb"\%03o" % byte[0][0], os.fsencode(text))
    return f"$'{escaped.decode()}'"


def script(config: ClusterConfig, run_dir: str, flags: list[str]) -> str:
    """Returns the script of a job that runs launch.train with these flags and writes run_dir, made absolute.

    Raises:
      UserError: job_name or partition cannot stand in an option of the script, or job_name in the names of files.
    """
    if not re.fullmatch(r"[A-Za-z0-9._-]+", config.job_name):
        raise UserError(f"job_name must be letters, digits, dots, dashes and underscores, got {config.job_name!r}")
    if not re.fullmatch(r"[A-Za-z0-9._,-]*", config.partition):
        raise UserError(f"partition must be names of partitions with commas between them, got {config.partition!r}")
    run_dir = os.path.abspath(run_dir)
    options = {
        "job-name": config.job_name,
        "nodes": config.nodes,
        "ntasks-per-node": 1,
        "cpus-per-task": config.cpus_per_node,
        "mem": f"{config.memory_per_node}G",
        "gpus-per-node": config.gpus_per_node or None,
        "time": f"{config.hours}:00:00",
        "partition": config.partition or None,
        "output": f"{config.job_name}-%j.log",
        "open-mode": "append",
        "signal": f"TERM@{GRACE_PERIOD}",
        "requeue": "",
    }
    lines = [
        f"#SBATCH --{name}{f'={value}' if value != '' else ''}" for name, value in options.items() if value is not None
    ]
    return _SCRIPT.format(
        options="\n".join(lines),
        nodes=config.nodes,
        cpus=config.cpus_per_node,
        max_restarts=config.max_restarts,
        directory=quoted(os.getcwd()),
        setup=quoted(config.setup),
        command=" ".join(map(quoted, ["python", "-m", "launch.train", f"--run_dir={run_dir}", *flags])),
        error=EXIT_ERROR,
        diverged=EXIT_DIVERGED,
    )
