"""docs/guides/cluster/job.sbatch under a real Slurm on this machine: munge, slurmctld and two slurmd, all private."""

import getpass
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys

import pytest
from processes import FLAGS, assert_same_variables, last_step, until

from launch.local_cluster import free_ports

pytestmark = pytest.mark.slow
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
MISSING = [name for name in PROGRAMS if not shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin:/sbin")]
if MISSING:
    pytest.skip(
        f"Slurm is not installed here: there is no {', '.join(MISSING)} (Debian: slurm-wlm, munge)",
        allow_module_level=True,
    )

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = ROOT / "docs" / "guides" / "cluster" / "job.sbatch"
LIMIT = 120  # seconds for what a daemon does
CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
KillWait=5
SlurmdTimeout=30
JobRequeue=1
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1 RealMemory=2000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1 RealMemory=2000
PartitionName=main Nodes=ALL Default=YES State=UP
"""


class Slurm:
    """The daemons, and a user's commands."""

    def __init__(self, folder):
        self.folder, self._daemons = folder, []
        self.environment = os.environ | {
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PYTHONPATH": str(ROOT),
            "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin",
        }
        (folder / "state").mkdir()
        host = socket.gethostname().split(".")[0]
        text = CONFIG.format(host=host, ports=free_ports(3), user=getpass.getuser(), folder=folder)
        (folder / "slurm.conf").write_text(text)
        (folder / "key").write_bytes(os.urandom(128))
        (folder / "key").chmod(0o600)
        folder.chmod(0o755)  # munge refuses to talk in a folder that others may write to, or may not enter

    def start(self):
        files = [f"--{name}={self.folder}/munge.{name[:3]}" for name in ("pid-file", "log-file", "seed-file")]
        files += [f"--socket={self.folder}/munge.socket", f"--key-file={self.folder}/key"]
        self._daemon("munged", "--foreground", "--force", *files)
        until(lambda: (self.folder / "munge.socket").exists(), seconds=LIMIT)
        self._daemon("slurmctld", "-D")
        for node in ("n1", "n2"):
            self._daemon("slurmd", "-D", "-N", node)
        until(lambda: self("sinfo", "-h", "-o", "%T", check=False).split() == ["idle"], seconds=LIMIT)

    def __call__(self, *command, check=True) -> str:
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        assert done.returncode == 0 or not check, done.stderr
        return done.stdout

    def state(self, job: str) -> str:
        return re.search(r"JobState=(\w+)", self("scontrol", "-o", "show", "job", job))[1]

    def stop(self):
        for daemon in reversed(self._daemons):
            daemon.send_signal(signal.SIGTERM)
            daemon.wait()

    def _daemon(self, *command):
        log = open(self.folder / f"{command[0]}{len(self._daemons)}.out", "w")
        self._daemons.append(subprocess.Popen(command, env=self.environment, stdout=log, stderr=log))


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    slurm = Slurm(tmp_path_factory.mktemp("slurm"))
    try:
        slurm.start()
        yield slurm
    finally:
        slurm.stop()


def submit(slurm, folder, *flags) -> str:
    """Submits the script as it stands, with the size of this machine and the flags of a small run; returns its id."""
    (folder / "venv" / "bin").mkdir(parents=True)
    (folder / "venv" / "bin" / "activate").write_text(f"export PATH={os.path.dirname(sys.executable)}:$PATH\n")
    here = ["--nodes=2", "--cpus-per-task=1", "--mem=1G", "--time=1:00:00", f"--export=ALL,VENV={folder}/venv"]
    command = ["sbatch", f"--chdir={folder}", *here, str(SCRIPT)]
    run = ["--preset=mnist", "--dataset=mnist_sample", "--data_dir=", f"--run_dir={folder}/run", *FLAGS]
    return re.search(r"Submitted batch job (\d+)", slurm(*command, *run, *flags))[1]


def log_of(slurm, job) -> str:
    path = re.search(r"StdOut=(\S+)", slurm("scontrol", "-o", "show", "job", job))[1]
    with open(path) as file:
        return file.read()


def ended(slurm, job) -> str:
    """The state in which a job ends."""
    until(lambda: slurm.state(job) not in ("PENDING", "RUNNING", "COMPLETING", "REQUEUED", "CONFIGURING"), seconds=300)
    return slurm.state(job)


def processes_of_rank(job: str, rank: int) -> list[int]:
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ") as file:
                variables = file.read().split("\0")
            with open(f"/proc/{pid}/cmdline") as file:
                program, *arguments = file.read().split("\0")
        except OSError:
            continue
        is_of_rank = {f"SLURM_JOB_ID={job}", f"SLURM_PROCID={rank}"} <= set(variables)
        if is_of_rank and "launch.train" in arguments and "python" in program:
            found.append(int(pid))
    return found


@pytest.fixture(scope="module")
def undisturbed(slurm, tmp_path_factory):
    """A job of two nodes that nothing disturbs: its folder and number."""
    folder = tmp_path_factory.mktemp("undisturbed")
    return folder, submit(slurm, folder)


def test_a_job_of_two_nodes_trains(slurm, undisturbed):
    _, job = undisturbed
    assert ended(slurm, job) == "COMPLETED", log_of(slurm, job)
    log = log_of(slurm, job)
    assert "done: step 120" in log and "worker 1 is done: step" in log
    # The chief says it where it is evaluated, the other when it is done.
    chief, other = re.findall(r"step +120  (loss .*?error [^ ]+ %  test error [^ ]+ %)  \d+ images/s", log)
    assert chief == other


def test_a_disturbed_job_requeues_itself_and_ends_the_same(slurm, undisturbed, tmp_path):
    """A worker is killed; then the job gets SIGTERM, as at a preemption or the time limit."""
    reference, first_job = undisturbed
    assert ended(slurm, first_job) == "COMPLETED"
    job = submit(slurm, tmp_path)
    until(lambda: last_step(tmp_path / "run"), seconds=LIMIT)
    (pid,) = processes_of_rank(job, 1)
    os.kill(pid, signal.SIGKILL)
    until(lambda: "Restarts=1" in slurm("scontrol", "-o", "show", "job", job), seconds=LIMIT)
    before = last_step(tmp_path / "run")
    until(lambda: last_step(tmp_path / "run") > before, seconds=LIMIT)
    slurm("scancel", "--signal=TERM", job)
    until(lambda: "Restarts=2" in slurm("scontrol", "-o", "show", "job", job), seconds=LIMIT)
    assert ended(slurm, job) == "COMPLETED", log_of(slurm, job)
    assert len(set(re.findall(r"stopped: received SIGTERM, saved at step (\d+)", log_of(slurm, job)))) == 1
    assert_same_variables(tmp_path / "run", reference / "run")


def test_a_job_with_a_mistake_fails_at_once(slurm, undisturbed, tmp_path):
    (tmp_path / "run").symlink_to(undisturbed[0] / "run")
    assert ended(slurm, undisturbed[1]) == "COMPLETED"
    job = submit(slurm, tmp_path, "--seed=5")
    assert ended(slurm, job) == "FAILED"
    assert "holds a run of another config" in log_of(slurm, job)
    assert "Restarts=0" in slurm("scontrol", "-o", "show", "job", job)
