"""launch.cluster: the local supervisor on small programs, and the mistakes that it names."""

import contextlib
import dataclasses
import json
import re
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from launching import config_of
from processes import children, is_alive, until
from refusals import refused

from identity_matters.presets import TRAIN_PRESETS
from launch import cluster, config_flags, launcher, local_cluster
from launch.cluster import ClusterConfig

RANK = "import json, os, sys, time, signal; rank = json.loads(os.environ['TF_CONFIG'])['task']['index']; "


def job(tmp_path, program, num_workers=2, max_restarts=0):
    """(exit code, lines of the log) of a job of a Python program, which knows its rank."""
    log = tmp_path / "workers.log"
    command = [sys.executable, "-c", RANK + "\n" + program]
    code = local_cluster.run_job(command, {"worker": num_workers}, max_restarts, str(log))
    return code, log.read_text().splitlines()


def test_each_line_of_the_log_has_its_workers_number(tmp_path):
    program = "print(f'I am {rank}'); print('bar 1\\rbar 2\\r', end=''); print('ℓ', file=sys.stderr)"
    code, lines = job(tmp_path, program, 3)
    assert code == 0
    for rank in range(3):
        assert [line for line in lines if line.startswith(f"[{rank}]")] == [
            f"[{rank}] {text}" for text in (f"I am {rank}", "bar 1", "bar 2", "ℓ")
        ]


def test_every_worker_gets_the_same_cluster_and_its_rank(tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    _, lines = job(tmp_path, "print(os.environ['TF_CONFIG'], os.environ['PYTHONUNBUFFERED'])", 3)
    assert {line[-2:] for line in lines} == {" 1"}
    configs = [json.loads(line[4:-2]) for line in sorted(lines)]
    assert [config["task"] for config in configs] == [{"type": "worker", "index": rank} for rank in range(3)]
    (addresses,) = {tuple(config["cluster"]["worker"]) for config in configs}
    assert len(set(addresses)) == 3 and all(re.fullmatch(r"127\.0\.0\.1:\d+", address) for address in addresses)


@pytest.mark.parametrize(
    "cores, shares",
    [([0, 1], [[0], [1]]), ([2, 3, 5, 7, 11], [[2, 3], [5, 7, 11]]), ([4], [[], []]), ([], [[], []])],
)
def test_workers_share_the_cores(cores, shares):
    assert [local_cluster.share(cores, index, 2) for index in range(2)] == shares


# The visible GPUs, each worker's, and a word of the line that the job prints if it leaves some idle.
GPUS = {
    "": (["", ""], ""),
    "3": (["", ""], "1 GPU(s)"),
    "0,1,GPU-x": (["0", "1"], "GPU-x"),
    "0,1,2,GPU-x": (["0,1", "2,GPU-x"], ""),
    "-1": (["-1", "-1"], ""),
    "0, 1,-1,2": (["0", "1"], ""),
}


@pytest.mark.parametrize("visible", GPUS)
def test_every_worker_gets_as_many_gpus(tmp_path, monkeypatch, visible):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    _, lines = job(tmp_path, "print(os.environ['CUDA_VISIBLE_DEVICES'])")
    shares, word = GPUS[visible]
    printed = [f"[{rank}] {names}" for rank, names in enumerate(shares) if names]
    assert sorted(line for line in lines if line.startswith("[")) == printed
    notes = [line for line in lines if not line.startswith("[")]
    assert len(notes) == bool(word) and all(word in line for line in notes)


def test_divergence_ends_the_job_at_once(tmp_path):
    with shortened():
        code, lines = job(tmp_path, "rank == 1 and sys.exit(3); time.sleep(600)", max_restarts=5)
    assert code == 3 and not any("again" in line for line in lines)


def test_a_mistake_is_not_hidden_by_the_worker_that_lost_another(tmp_path, monkeypatch):
    """Both have ended before the supervisor looks, and the one that only lost the other comes first."""
    monkeypatch.setattr(local_cluster, "POLL_INTERVAL", 1)
    code, lines = job(tmp_path, "sys.exit(75 if rank == 0 else 1)", max_restarts=5)
    assert code == 1 and not any("again" in line for line in lines)


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
    assert "worker 1 was killed by SIGKILL" in lines and "starting all workers again, restart 1 of at most 1" in lines
    assert lines.count("[0] done") == lines.count("[1] done") == 1


def test_restarts_are_bounded(tmp_path):
    with shortened():
        code, lines = job(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)", 1, max_restarts=2)
    assert code == 128 + signal.SIGKILL
    assert sum("was killed by SIGKILL" in line for line in lines) == 3 and lines[-1] == "giving up after 2 restarts"


@contextlib.contextmanager
def shortened():
    """The others are not given long to notice."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("FAILURE_TIMEOUT", "KILL_TIMEOUT"):
            patch.setattr(local_cluster, name, 0.2)
        yield


SUPERVISED = """
import sys
from launch import local_cluster
sys.exit(local_cluster.run_job([sys.executable, "-c", sys.argv[1]], {"worker": 2}, 3, sys.argv[2]))
"""
LEAVES, STAYS = (
    f"import signal, sys, time; signal.signal(signal.SIGTERM, {handler}); print('ready', flush=True); time.sleep(600)"
    for handler in ("lambda *_: sys.exit(75)", "signal.SIG_IGN")
)


def supervised(tmp_path, program):
    """A supervisor in a separate process, whose two workers are ready."""
    log = tmp_path / "workers.log"
    process = subprocess.Popen([sys.executable, "-c", SUPERVISED, program, str(log)], stdout=subprocess.DEVNULL)
    until(lambda: log.exists() and log.read_text().count("ready") == 2, process)
    return process, log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_launcher_lets_all_workers_save_and_leave(tmp_path, number):
    process, log = supervised(tmp_path, LEAVES)
    process.send_signal(number)
    assert process.wait() == launcher.EXIT_CONTINUE
    text = log.read_text()
    assert f"{number.name}: the workers save a checkpoint and exit" in text and "again" not in text


def test_a_log_on_a_full_disk_stops_no_worker(tmp_path, monkeypatch):
    monkeypatch.setattr(local_cluster, "open_log", lambda path: open("/dev/full", "a"))
    command = [sys.executable, "-c", "print('x' * 100_000)"]
    assert local_cluster.run_job(command, {"worker": 2}, 0, f"{tmp_path}/workers.log") == 0


def test_a_foreign_folder_is_rejected_and_unchanged(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    assert "notes.txt" in refused(cluster.main, ClusterConfig(), str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_local_workers_train_with_the_config_s_flags_and_without_a_keras_optimizer(tmp_path, monkeypatch):
    monkeypatch.setattr(local_cluster, "run_job", lambda *given: given)
    config, run_dir = config_of("cluster", "--num_workers=4", "--seed=5", "--max_restarts=7"), str(tmp_path / "run")
    (command, *rest), again = (cluster.main(config, run_dir) for _ in range(2))  # where the directory is, too
    assert list(again) == [command, *rest]
    assert command[1:4] == ["-m", "launch.train", f"--run_dir={run_dir}"] and rest == [
        {"worker": 4}, 7, f"{run_dir}/workers.log"
    ]  # fmt: skip
    assert command[4:] == config_flags.flags_of(config.train, TRAIN_PRESETS)
    given = SimpleNamespace(train=SimpleNamespace(keras_optimizer="adam"))
    assert "'adam'" in refused(cluster.main, given, run_dir)


def test_a_second_signal_kills_workers_that_stay(tmp_path):
    process, log = supervised(tmp_path, STAYS)
    process.send_signal(signal.SIGINT)
    until(lambda: "save a checkpoint and exit" in log.read_text(), process)
    time.sleep(local_cluster.REPEAT_INTERVAL)
    process.send_signal(signal.SIGINT)
    assert process.wait() == launcher.EXIT_CONTINUE
    assert log.read_text().count("was killed by SIGKILL") >= 1


def test_the_workers_of_a_killed_launcher_die_too(tmp_path):
    process, _ = supervised(tmp_path, STAYS)
    workers = children(process)
    assert len(workers) == 2
    process.kill()
    process.wait()
    until(lambda: not any(map(is_alive, workers)))


def test_flags_of_a_config_give_it_back():
    for name, preset in TRAIN_PRESETS.items():
        assert config_flags.flags_of(preset, TRAIN_PRESETS) == [f"--preset={name}"]
        assert config_of("train", f"--preset={name}") == preset
    changed = dataclasses.replace(
        TRAIN_PRESETS["mnist"],
        random_flip=True,
        learning_rate=0.25,
        decay_steps=(5, 7),
        model=dataclasses.replace(TRAIN_PRESETS["mnist"].model, shortcut=False, widths=(3, 4, 5)),
    )
    flags = config_flags.flags_of(changed, TRAIN_PRESETS)
    assert sorted(flags) == [
        "--decay_steps=5,7", "--learning_rate=0.25", "--noshortcut", "--preset=mnist", "--random_flip",
        "--widths=3,4,5",
    ]  # fmt: skip
    assert config_of("train", *flags) == changed


def test_a_job_has_one_chief_where_parameter_servers_hold_the_weights():
    flags = ["--num_workers=3", "--batch_size=12", "--use_batch_norm=false"]
    assert config_of("cluster", *flags).tasks == {"worker": 3}
    with_servers = config_of("cluster", *flags, "--strategy=parameter_server", "--num_servers=2")
    assert with_servers.tasks == {"chief": 1, "worker": 3, "ps": 2}
