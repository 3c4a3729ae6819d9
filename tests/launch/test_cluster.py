"""launch.cluster: the local supervisor on small programs, and what it writes for Slurm and Kubernetes."""

import dataclasses
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time

import pytest
import yaml
from processes import children, until

from identity_matters.presets import TRAIN_PRESETS
from launch import launcher
from launch.cluster import PRESETS
from launch.jobs import kubernetes, local, slurm

RANK = "import json, os, sys, time, signal; rank = json.loads(os.environ['TF_CONFIG'])['task']['index']; "


def job(tmp_path, program, num_workers=2, max_restarts=0):
    """(exit code, lines of the log) of a job of a Python program, which knows its rank."""
    log = tmp_path / "workers.log"
    command = [sys.executable, "-c", RANK + "\n" + program]
    code = local.run_job(command, {"worker": num_workers}, max_restarts, str(log))
    return code, log.read_text().splitlines()


def test_each_line_of_the_log_has_its_workers_number(tmp_path):
    program = "print(f'I am {rank}'); print('bar 1\\rbar 2\\r', end=''); print('ℓ', file=sys.stderr)"
    code, lines = job(tmp_path, program, 3)
    assert code == 0
    for rank in range(3):
        assert [line for line in lines if line.startswith(f"[{rank}]")] == [
            f"[{rank}] {text}" for text in (f"I am {rank}", "bar 1", "bar 2", "ℓ")
        ]


def test_every_worker_is_told_the_same_cluster_and_its_own_rank(tmp_path):
    _, lines = job(tmp_path, "print(os.environ['TF_CONFIG'])", 3)
    configs = [json.loads(line[4:]) for line in sorted(lines)]
    assert [config["task"] for config in configs] == [{"type": "worker", "index": rank} for rank in range(3)]
    (addresses,) = {tuple(config["cluster"]["worker"]) for config in configs}
    assert len(set(addresses)) == 3 and all(re.fullmatch(r"127\.0\.0\.1:\d+", address) for address in addresses)


@pytest.mark.parametrize(
    "cores, shares",
    [([0, 1], [[0], [1]]), ([2, 3, 5, 7, 11], [[2, 3], [5, 7, 11]]), ([4], [[], []]), ([], [[], []])],
)
def test_workers_share_the_cores(cores, shares):
    assert [local.share(cores, index, 2) for index in range(2)] == shares


@pytest.mark.parametrize("visible, shares", [("", ["", ""]), ("3", ["", ""]), ("0,1,2,GPU-x", ["0,1", "2,GPU-x"])])
def test_workers_share_the_gpus(tmp_path, monkeypatch, visible, shares):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    _, lines = job(tmp_path, "print(os.environ['CUDA_VISIBLE_DEVICES'])")
    said = ["2 workers cannot share 1 GPU(s): they train on CPUs"] if visible == "3" else []
    assert sorted(lines) == said + [f"[{rank}] {names}" for rank, names in enumerate(shares) if names]


def test_a_worker_sees_its_cores_only(tmp_path):
    cores = os.sched_getaffinity(0)
    code, lines = job(tmp_path, "print(os.sched_getaffinity(0))", len(cores))
    assert code == 0 and sorted(lines) == [f"[{rank}] {{{core}}}" for rank, core in enumerate(sorted(cores))]


def test_workers_share_all_cores_where_the_system_cannot_say_which_there_are(tmp_path, monkeypatch):
    """As on macOS."""
    cores = os.sched_getaffinity(0)
    monkeypatch.delattr(os, "sched_getaffinity")
    code, lines = job(tmp_path, "print(os.sched_getaffinity(0))", 2)
    assert code == 0 and sorted(lines) == [f"[{rank}] {cores}" for rank in range(2)]


@pytest.mark.parametrize("code", [1, 3])
def test_a_mistake_or_divergence_ends_the_job_at_once(tmp_path, code):
    program = f"rank == 1 and sys.exit({code}); time.sleep(600)"
    with shortened():
        assert job(tmp_path, program, max_restarts=5)[0] == code
    assert not any("again" in line for line in (tmp_path / "workers.log").read_text().splitlines())


@pytest.mark.parametrize("code", [1, 3])
def test_a_mistake_is_not_hidden_by_the_worker_that_lost_another(tmp_path, code):
    """Both have ended before the supervisor looks, and the one that only lost the other comes first."""
    program = f"sys.exit(75 if rank == 0 else {code})"
    with shortened(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "_POLL_INTERVAL", 1)
        patch.setattr(local, "FAILURE_TIMEOUT", 30)
        assert job(tmp_path, program, max_restarts=5)[0] == code
    assert not any("again" in line for line in (tmp_path / "workers.log").read_text().splitlines())


def test_a_killed_worker_ends_all_which_are_started_again(tmp_path):
    """The first time worker 1 kills itself, the second time it lets worker 0 end."""
    mark, go = tmp_path / "mark", tmp_path / "go"
    program = (
        f"from pathlib import Path; mark, go = Path({str(mark)!r}), Path({str(go)!r})\n"
        "if rank == 1 and not mark.exists(): mark.touch(); os.kill(os.getpid(), signal.SIGKILL)\n"
        "if rank == 1: go.touch()\n"
        "while not go.exists(): time.sleep(0.01)\n"
        "print('done')"
    )
    with shortened():
        code, lines = job(tmp_path, program, max_restarts=1)
    assert code == 0
    assert "worker 1 was killed by SIGKILL" in lines and "starting all workers again, 1 of at most 1 times" in lines
    assert lines.count("[0] done") == lines.count("[1] done") == 1


def test_restarts_are_bounded(tmp_path):
    with shortened():
        code, lines = job(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)", 1, max_restarts=2)
    assert code == 128 + signal.SIGKILL
    assert sum("was killed by SIGKILL" in line for line in lines) == 3 and lines[-1] == "giving up after 2 restarts"


class shortened:
    """The others are not given long to notice."""

    def __enter__(self):
        self._patch = pytest.MonkeyPatch()
        for name in ("FAILURE_TIMEOUT", "KILL_TIMEOUT"):
            self._patch.setattr(local, name, 0.2)

    def __exit__(self, *_):
        self._patch.undo()


SUPERVISED = """
import sys
from launch.jobs import local
sys.exit(local.run_job([sys.executable, "-c", sys.argv[1]], {"worker": 2}, 3, sys.argv[2]))
"""
LEAVES, STAYS = (
    f"import signal, sys, time; signal.signal(signal.SIGTERM, {handler}); print('ready', flush=True); time.sleep(600)"
    for handler in ("lambda *_: sys.exit(75)", "signal.SIG_IGN")
)


def supervised(tmp_path, program):
    """A supervisor in a process of its own, whose two workers are ready."""
    log = tmp_path / "workers.log"
    process = subprocess.Popen([sys.executable, "-c", SUPERVISED, program, str(log)], stdout=subprocess.DEVNULL)
    until(lambda: log.exists() and log.read_text().count("ready") == 2, process)
    return process, log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_launcher_lets_all_workers_save_and_leave(tmp_path, number):
    process, log = supervised(tmp_path, LEAVES)
    process.send_signal(number)
    assert process.wait() == launcher.EXIT_CONTINUE
    assert f"{number.name}: the workers save and leave" in log.read_text() and "again" not in log.read_text()


def test_a_signal_while_the_workers_are_started_ends_the_job(tmp_path):
    program = f"os.kill({os.getpid()}, signal.SIGTERM) if rank == 0 else None; time.sleep(600)"
    start, started = local._Job._start, []

    def once_the_signal_has_come(self, *arguments):
        started.append(start(self, *arguments))
        while not self.is_stopped:
            time.sleep(0.01)
        return started[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local._Job, "_start", once_the_signal_has_come)
        code, lines = job(tmp_path, program, max_restarts=3)
    assert code == launcher.EXIT_CONTINUE and len(started) == 1
    assert any("SIGTERM: the workers save and leave" in line for line in lines)


def test_a_signal_that_is_sent_twice_at_once_means_what_it_means_once(tmp_path):
    process, log = supervised(tmp_path, LEAVES.replace("sys.exit", "time.sleep(1) or sys.exit"))
    _ = [process.send_signal(signal.SIGTERM) or time.sleep(0.05) for _ in range(2)]
    assert process.wait() == launcher.EXIT_CONTINUE and "SIGKILL" not in log.read_text()


def test_a_log_on_a_full_disk_stops_no_worker(tmp_path):
    os.symlink("/dev/full", tmp_path / "workers.log")
    command = [sys.executable, "-c", "print('x' * 100_000)"]
    assert local.run_job(command, {"worker": 2}, 0, f"{tmp_path}/workers.log") == 0


def test_a_second_signal_kills_workers_that_stay(tmp_path):
    process, log = supervised(tmp_path, STAYS)
    process.send_signal(signal.SIGINT)
    until(lambda: "save and leave" in log.read_text(), process)
    time.sleep(local.REPEAT_INTERVAL)
    process.send_signal(signal.SIGINT)
    assert process.wait() == launcher.EXIT_CONTINUE
    assert log.read_text().count("was killed by SIGKILL") >= 1


def test_the_workers_of_a_killed_launcher_die_too(tmp_path):
    process, _ = supervised(tmp_path, STAYS)
    workers = children(process)
    assert len(workers) == 2
    process.kill()
    process.wait()
    while any(os.path.exists(f"/proc/{pid}") and open(f"/proc/{pid}/stat").read().split()[2] != "Z" for pid in workers):
        time.sleep(0.01)


def test_flags_of_a_config_give_it_back():
    for name, preset in TRAIN_PRESETS.items():
        assert launcher.flags_of(preset, TRAIN_PRESETS) == [f"--preset={name}"]
    changed = dataclasses.replace(
        TRAIN_PRESETS["mnist"],
        random_flip=True,
        decay_steps=(5, 7),
        model=dataclasses.replace(TRAIN_PRESETS["mnist"].model, shortcut=False, widths=(3, 4, 5)),
    )
    flags = launcher.flags_of(changed, TRAIN_PRESETS)
    assert sorted(flags) == ["--decay_steps=5,7", "--noshortcut", "--preset=mnist", "--random_flip", "--widths=3,4,5"]
    values = launcher._define_flags(TRAIN_PRESETS, True)
    launcher._parse(values, ["train", *flags])
    assert launcher._config(values, TRAIN_PRESETS) == changed


MISTAKES = {
    "a line break in a job name": ({"slurm": True, "job_name": "a\n#SBATCH --wrap=x"}, "job_name holds characters"),
    "too many servers": ({"num_servers": 30_000}, "num_servers must be at most 1000"),
    "both": ({"slurm": True, "kubernetes": True}, "exclude"),
    "submit what": ({"slurm": True, "submit": True}, "--write"),
    "kubeflow alone": ({"kubeflow": True}, "--kubernetes"),
    "no image": ({"kubernetes": True, "volume_claim": "c"}, "--image"),
    "no volume": ({"kubernetes": True, "image": "i"}, "--volume_claim"),
    "write locally": ({"write": "x"}, "--slurm or --kubernetes"),
    "no workers": ({"num_workers": 0}, "num_workers must be at least 1, got 0"),
    "batch, here": ({"num_workers": 5}, "multiple of the number of devices, 5, got 32"),
    "batch, there": ({"slurm": True, "nodes": 6, "gpus_per_node": 8}, "multiple of the number of devices, 48, got 32"),
}


@pytest.mark.parametrize("changes, named", MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_named(changes, named):
    with pytest.raises(ValueError, match=re.escape(named)):
        dataclasses.replace(PRESETS["mnist"], **changes)


RUN_DIR, FLAGS = "/shared/my runs/1", ["--preset=mnist", "--widths=1,2"]
COMMAND = ["python", "-m", "launch.train", f"--run_dir={RUN_DIR}", *FLAGS]


def slurm_script(**changes):
    return slurm.script(dataclasses.replace(PRESETS["mnist"], slurm=True, **changes), RUN_DIR, FLAGS)


def test_the_slurm_script_is_a_shell_script_with_the_command():
    text = slurm_script(gpus_per_node=8, nodes=4, partition="gpu", setup=". venv/bin/activate", max_restarts=7)
    assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)(?:=(.*))?$", text, re.M))
    assert (options["nodes"], options["gpus-per-node"], options["partition"]) == ("4", "8", "gpu")
    assert options["requeue"] == "" and options["open-mode"] == "append" and options["ntasks-per-node"] == "1"
    assert shlex.join(COMMAND) in text
    assert "\n. venv/bin/activate\n" in text and "-lt 7 ]" in text
    assert "gpus" not in slurm_script() and "partition" not in slurm_script()


# Stand-ins for Slurm's programs, on the PATH of the script; n2 does not resolve.
FAKE = {
    "scontrol": """case "$*" in
"show hostnames n1,n2") printf 'localhost\\nno-such-host\\n' ;;
"-o show node no-such-host") echo 'NodeName=n2 NodeAddr=10.0.0.2 NodeHostName=n2' ;;
"requeue 7") echo requeue >> calls ;;
*) exit 9 ;; esac""",
    "sleep": "true",
    "getent": '[ "$2" = localhost ]',
    # Of rank 1 srun saw only that it killed it.
    "srun": """while [[ $1 == --* ]]; do echo "$1" >> options; shift; done
for SLURM_PROCID in 0 1; do export SLURM_PROCID; "$@" >> ranks; done; [ "$CODE" = 0 ] || exit 137""",
    "python": 'echo "$TF_CONFIG $*"; exit "$CODE"',
}


def run_script(tmp_path, code, restarts):
    for name, body in FAKE.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    variables = {
        "SLURM_JOB_NAME": "name",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "n1,n2",
        "SLURM_RESTART_COUNT": restarts,
        "CODE": str(code),
    }
    environment = os.environ | variables | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    text = slurm_script().replace(f"cd {shlex.quote(os.getcwd())}", f"cd {tmp_path}")
    done = subprocess.run(["bash"], input=text, text=True, env=environment, capture_output=True)
    return done, tmp_path


def test_the_slurm_script_gives_every_rank_its_address_and_port(tmp_path):
    _, folder = run_script(tmp_path, 0, "0")
    for rank, line in enumerate((folder / "ranks").read_text().splitlines()):
        config, end = json.JSONDecoder().raw_decode(line)
        assert config["cluster"]["worker"] == ["localhost:10014", "10.0.0.2:10015"]
        assert config["task"] == {"type": "worker", "index": rank}
        assert line[end:].strip() == " ".join(COMMAND[1:])


@pytest.mark.parametrize(
    "code, restarts, requeues",
    [(0, "0", False), (1, "0", False), (3, "0", False), (75, "0", True), (9, "2", True), (75, "3", False)],
)
def test_the_slurm_script_requeues_itself_for_what_another_try_may_mend(tmp_path, code, restarts, requeues):
    done, folder = run_script(tmp_path, code, restarts)
    assert done.returncode == (code if code in (0, 1, 3) else 137) and (folder / "calls").exists() == requeues
    assert ("requeued" in done.stdout) == requeues
    assert (folder / "options").read_text().split() == ["--kill-on-bad-exit=1", "--cpus-per-task=8"]


def test_the_slurm_script_gives_up_when_slurm_itself_has_restarted_it_too_often(tmp_path):
    done, folder = run_script(tmp_path, 0, "4")
    assert done.returncode == 1 and "giving up after 3 restarts" in done.stdout and not (folder / "ranks").exists()


def manifest(run_dir=RUN_DIR, **changes) -> list[dict]:
    values = {"kubernetes": True, "image": "registry/image:1", "volume_claim": "claim", "gpus_per_node": 2, **changes}
    text = kubernetes.manifest(dataclasses.replace(PRESETS["mnist"], **values), run_dir, FLAGS)
    return list(yaml.safe_load_all(text))


@pytest.mark.parametrize("version", ["1.29", "1.34"])  # workers counted each for itself came with 1.29
def test_the_manifest_fits_the_schemas_of_kubernetes(version):
    import kubernetes_validate as validate

    service, job = manifest()
    for document in (service, job):
        validate.validate(document, version, strict=True)
    job["spec"]["completionModes"] = "Indexed"
    with pytest.raises(validate.ValidationError):
        validate.validate(job, version, strict=True)


def test_the_manifest_gives_every_pod_the_cluster_and_its_index():
    service, job = manifest(nodes=4)
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    index, config = container["env"]
    assert container["command"] == COMMAND
    assert "job-completion-index" in index["valueFrom"]["fieldRef"]["fieldPath"]
    config = json.loads(config["value"].replace(f"$({index['name']})", "3"))
    assert config["task"]["index"] == 3 and len(config["cluster"]["worker"]) == 4
    # The host name of a pod of an Indexed Job is JOB-INDEX; its subdomain is the Service that selects it.
    name, namespace = job["metadata"]["name"], service["metadata"]["name"]
    assert config["cluster"]["worker"][3] == f"{name}-3.{namespace}:{service['spec']['ports'][0]['port']}"
    assert pod["subdomain"] == namespace and service["spec"]["selector"] == {"job-name": name}
    assert service["spec"]["clusterIP"] == "None"
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "2"
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 4


def test_a_tfjob_fits_kubeflows_model():
    from kubeflow import training

    (job,) = manifest(kubeflow=True)
    client = training.ApiClient()

    class Response:
        data = json.dumps(job)

    parsed = client.deserialize(Response, "KubeflowOrgV1TFJob")
    assert client.sanitize_for_serialization(parsed) == job  # no field is unknown
    pod = job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]
    _, indexed = manifest()
    assert pod["volumes"] == indexed["spec"]["template"]["spec"]["volumes"]
    assert "env" not in pod["containers"][0] and pod["containers"][0]["command"] == COMMAND
    (container,) = parsed.spec.tf_replica_specs["Worker"].template.spec.containers
    assert container.name == "tensorflow" and container.ports[0].name == "tfjob-port"


def test_a_run_directory_that_would_be_lost_with_its_pod_is_named():
    for run_dir in ("runs/1", "/shared", "/shared/../tmp", "/shared2/runs"):
        with pytest.raises(ValueError, match="run_dir must lie under volume_path, /shared, .* got " + run_dir):
            manifest(run_dir)


def test_each_worker_is_started_again_at_most_so_often_and_a_mistake_ends_the_job():
    _, job = manifest(max_restarts=4)  # so does one whose peers never come, which leaves with 75
    assert job["spec"]["backoffLimitPerIndex"] == 4 and job["spec"]["maxFailedIndexes"] == 0
    rules = {
        tuple(rule["onExitCodes"]["values"]): rule["action"]
        for rule in job["spec"]["podFailurePolicy"]["rules"]
        if "onExitCodes" in rule
    }
    assert rules == {(1, 3): "FailJob"}


def test_a_job_name_that_kubernetes_does_not_take_is_named():
    with pytest.raises(ValueError, match="job_name .* 'My_Job'"):
        manifest(job_name="My_Job")
