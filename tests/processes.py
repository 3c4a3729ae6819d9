"""Training runs in processes of their own: started, waited for, found, compared."""

import os
import pathlib
import subprocess
import sys
import time

import numpy as np
from begun import newest_checkpoint

from launch.local_cluster import tf_config

STEPS = 120
# A network so small that it is saved often and done soon.
FLAGS = [
    "--train_examples=400", "--eval_examples=50", "--stem_width=4", "--widths=4,8", "--blocks_per_stage=1,1",
    "--batch_size=16", f"--train_steps={STEPS}", "--decay_steps=80", "--eval_every=40", "--checkpoint_every=5",
]  # fmt: skip


def start(run_dir: pathlib.Path, launcher: str, *flags, **arguments) -> subprocess.Popen:
    """Starts a separate process, whose output goes to RUN_DIR.log."""
    command = [sys.executable, "-m", f"launch.{launcher}", f"--run_dir={run_dir}", *flags]
    with open(f"{run_dir}.log", "a") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, **arguments)


def start_worker(run_dir: pathlib.Path, addresses: list[str], rank: int, *flags) -> subprocess.Popen:
    """One of several workers, with TF_CONFIG in its environment."""
    environment = os.environ | {"TF_CONFIG": tf_config({"worker": addresses}, index=rank)}
    return start(run_dir, "train", *FLAGS, *flags, env=environment)


def log_of(run_dir: pathlib.Path) -> str:
    """What `start` has had written so far."""
    return pathlib.Path(f"{run_dir}.log").read_text()


def until(condition, process=None, seconds=None) -> None:
    """Waits for the condition as long as the process lives; the limit is only there to end a test that never would."""
    deadline = time.monotonic() + seconds if seconds else None
    while not condition():
        assert process is None or process.poll() is None, process.args
        assert deadline is None or time.monotonic() < deadline
        time.sleep(0.005 if process else 0.05)


def children(process: subprocess.Popen) -> list[int]:
    """Numbers of the processes that a process has started, the oldest first."""
    found = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout
    return [int(pid) for pid in found.split()]


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended may still be in the table of processes."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def last_step(run_dir: pathlib.Path) -> int:
    """The step of the newest checkpoint; 0 before the first."""
    names = [path.name for path in (run_dir / "checkpoints").glob("step_*.npz")]
    return max((int(name[5:13]) for name in names), default=0)


def final_variables(run_dir: pathlib.Path, num_steps: int = STEPS) -> dict[str, np.ndarray]:
    """The weights and the optimiser's variables in the newest checkpoint, which must be that of the last step."""
    step, arrays = newest_checkpoint(str(run_dir / "checkpoints"))
    assert step == num_steps
    return {name: array for name, array in arrays.items() if name.startswith("variable/")}


def assert_same_variables(run_dir: pathlib.Path, other: pathlib.Path, num_steps: int = STEPS) -> None:
    """Whether two runs ended with the same weights, to the bit."""
    found, expected = final_variables(run_dir, num_steps), final_variables(other, num_steps)
    assert found.keys() == expected.keys() and len(found) > 10
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name], name)
