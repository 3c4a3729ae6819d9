"""Hostile values of everything that enters a Slurm script or a manifest of Kubernetes, which are then parsed back."""

import os
import re
import subprocess

import kubernetes_validate
import yaml

from attack import command, kind
from attack.prepared import pick
from identity_matters.config import TrainConfig
from identity_matters.errors import UserError
from launch.jobs import kubernetes, slurm
from launch.jobs.config import ClusterConfig

PIECES = [
    "a", "B", "7", " ", "\t", "\n", "\r", "'", '"', "\\", "`touch PWNED`", "$(touch PWNED)", "${HOME}", "$$",
    "$(WORKER)", "$(", ";touch PWNED;", "&&", "|", ">", "<", "#", "#SBATCH --wrap=x", "\n#SBATCH --wrap=x\n",
    "\ntouch PWNED\n", "!", "*", "~", "-", "--", "=", ",", ":", ": ", " #", "{", "}", "{0}", "[", "]", "%", "%j",
    "&", "@", "?", "null", "é", "ℓ", "🤖", "\x1b[2J", "\x7f", "\x85", "\u2028", "\ufeff", "\ufffe", "\udcff",
    "EOF\n", "---\n", "\\n", "$'x'", "x" * 300,
]  # fmt: skip
NO_JOB = {"PATH": "", "SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "name", "SLURM_JOB_NODELIST": "n1"}


def text(random, pieces=PIECES) -> str:
    return "".join(pick(random, pieces) for _ in range(random.integers(1, 7)))


def folder_name(random) -> str:
    """A name that a folder can have."""
    name = text(random).replace("/", "∕")
    return os.fsdecode(os.fsencode(name)[:200])


def flags(random) -> list[str]:
    return [f"--{pick(random, ['dataset', 'data_dir', 'npz'])}={text(random)}" for _ in range(random.integers(4))]


def programs(folder) -> None:
    """Stands in for the programs of Slurm: srun keeps its arguments and runs nothing."""
    (folder / "bin").mkdir()
    bodies = {
        "srun": f"printf '%s\\0' \"$@\" > {folder}/arguments",
        "scontrol": "echo localhost",
        "getent": "true",
        "sleep": "true",
    }
    for name, body in bodies.items():
        (folder / "bin" / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / "bin" / name).chmod(0o755)


@kind("Slurm script: fields and the current directory")
def slurm_script(random, folder):
    programs(folder)
    there = folder / folder_name(random)
    there.mkdir()
    setup, given = text(random, [piece for piece in PIECES if "PWNED" not in piece]), flags(random)
    config = ClusterConfig(
        train=TrainConfig(batch_size=2), slurm=True, setup=setup, max_restarts=int(random.integers(9))
    )
    before = os.getcwd()
    try:
        os.chdir(there)
        script = slurm.script(config, "run", given)
    finally:
        os.chdir(before)
    # The user's own setup may do what it likes, so it is looked at, and then left out of what is run.
    assert f"\nsetup={slurm.quoted(setup)}\neval" in script
    script = script.replace(f"\nsetup={slurm.quoted(setup)}\n", "\nsetup=''\n")
    expected = slurm.script(ClusterConfig(train=TrainConfig(batch_size=2), slurm=True), "/run", [])
    options = [[line for line in lines.splitlines() if line.startswith("#SBATCH")] for lines in (script, expected)]
    assert options[0] == options[1] and script.count("\n") == expected.count("\n"), script
    path = folder / "script"
    path.write_bytes(script.encode(errors="surrogateescape"))
    assert subprocess.run(["bash", "-n", path], capture_output=True).returncode == 0, script
    environment = os.environ | NO_JOB | {"PATH": f"{folder}/bin:{os.environ['PATH']}"}
    done = subprocess.run(["bash", path], cwd="/", env=environment, capture_output=True)
    assert done.returncode == 0, (done, script)
    words = (folder / "arguments").read_bytes().split(b"\0")
    words = words[words.index(b"python") : -1]
    run_dir = os.path.join(os.fsencode(there), b"run")
    assert words == [b"python", b"-m", b"launch.train", b"--run_dir=" + run_dir, *map(os.fsencode, given)]
    assert sorted(path.name for path in folder.iterdir()) == sorted(["arguments", "bin", "script", there.name])
    assert not list(there.iterdir())


def expanded(word: str) -> str:
    """What Kubernetes makes of a word of a command or a variable: https://kubernetes.io/docs, "expansion"."""
    return re.sub(
        r"\$\$|\$\(([^)]*)\)", lambda found: "$" if found[0] == "$$" else {"WORKER": "1"}.get(found[1], found[0]), word
    )


@kind("Kubernetes manifest: fields and flags")
def manifest(random, folder):
    given, run_dir = flags(random), f"/shared/{text(random).replace('..', '')}"
    hostile = {
        "image": text(random),
        "volume_claim": text(random),
        "job_name": pick(random, ["job", "null", "no", "y", "e1"]),
    }
    hostile |= {"kubeflow": bool(random.integers(2)), "nodes": int(pick(random, [1, 2, 50]))}
    config = ClusterConfig(train=TrainConfig(batch_size=100), kubernetes=True, **hostile)
    everything = [*given, run_dir, hostile["image"], hostile["volume_claim"]]
    try:
        written = kubernetes.manifest(config, run_dir, given)
    except UserError:
        assert os.path.normpath(run_dir) == "/shared" or any("\udcff" in value for value in everything)
        return
    *_, job = documents = list(yaml.safe_load_all(written.encode()))
    if not config.kubeflow:
        assert len(documents) == 2
        for document in documents:
            kubernetes_validate.validate(document, "1.34", strict=True)
    plain = kubernetes.manifest(
        ClusterConfig(
            train=TrainConfig(batch_size=100), kubernetes=True, **hostile | {"image": "i", "volume_claim": "c"}
        ),
        "/shared/r",
        [],
    )
    assert written.count("\n") == plain.count("\n") and "\\u" not in re.sub(r"\\\\", "", written)
    template = job["spec"]["tfReplicaSpecs"]["Worker"]["template"] if config.kubeflow else job["spec"]["template"]
    (container,) = template["spec"]["containers"]
    assert list(map(expanded, container["command"])) == ["python", "-m", "launch.train", f"--run_dir={run_dir}", *given]
    assert container["image"] == config.image and job["metadata"]["name"] == config.job_name
    assert template["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"] == config.volume_claim


@kind("launch.cluster: a flag of a script or manifest with a hostile value")
def cluster(random, folder):
    there = folder / folder_name(random)
    there.mkdir()
    value = text(random).replace("\0", "")
    flag = pick(
        random, ["job_name", "partition", "setup", "data_dir", "npz", "dataset", "image", "volume_claim", "volume_path"]
    )
    of_pod = flag in ("image", "volume_claim", "volume_path")
    given = (
        ["--kubernetes", "--image=i", "--volume_claim=c", "--run_dir=/shared/r"]
        if of_pod
        else ["--slurm", "--run_dir=r"]
    )
    ended = command.run(
        folder, "cluster", *given, f"--{flag}={value}", f"--write={folder}/job", "--batch_size=2", cwd=there
    )
    command.must_end_well(ended, codes=(0, 1))
    if ended.code == 0 and not of_pod:
        assert subprocess.run(["bash", "-n", folder / "job"], capture_output=True).returncode == 0
    assert not list(there.iterdir())
