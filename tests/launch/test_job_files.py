"""What launch.cluster writes: for Slurm, run with stand-ins for its programs; for Kubernetes, held against schemas."""

import contextlib
import dataclasses
import json
import os
import re
import shlex
import subprocess

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from identity_matters.config import DataConfig
from identity_matters.errors import UserError
from launch import cluster
from launch.cluster import PRESETS
from launch.jobs import kubernetes, slurm

RUN_DIR, FLAGS = "/shared/my runs/1", ["--preset=mnist", "--widths=1,2"]
COMMAND = ["python", "-m", "launch.train", f"--run_dir={RUN_DIR}", *FLAGS]


def slurm_script(**changes):
    return slurm.script(dataclasses.replace(PRESETS["mnist"], slurm=True, **changes), RUN_DIR, FLAGS)


def test_the_slurm_script_is_a_shell_script_with_the_command():
    text = slurm_script(
        gpus_per_node=8, nodes=4, partition="gpu", setup=". venv/bin/activate", max_restarts=7,
        cpus_per_node=16, memory_per_node=64, hours=30,
    )  # fmt: skip
    assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)(?:=(.*))?$", text, re.M))
    assert (options["nodes"], options["gpus-per-node"], options["partition"]) == ("4", "8", "gpu")
    assert (options["cpus-per-task"], options["mem"], options["time"]) == ("16", "64G", "30:00:00")
    assert options["signal"] == "TERM@120"  # to srun's workers, before the time is up: docs/guides/cluster.md
    assert options["requeue"] == "" and options["open-mode"] == "append" and options["ntasks-per-node"] == "1"
    assert shlex.join(COMMAND) in text
    assert "\nsetup='. venv/bin/activate'\neval \"$setup\"\n" in text and "-lt 7 ]" in text
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


def run_script(tmp_path, code, restarts, **changes):
    for name, body in FAKE.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    variables = {"SLURM_JOB_NAME": "name", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1,n2"}
    variables |= {"SLURM_RESTART_COUNT": restarts, "CODE": str(code)}
    environment = os.environ | variables | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    text = slurm_script(**changes).replace(f"cd {shlex.quote(os.getcwd())}", f"cd {tmp_path}")
    done = subprocess.run(["bash"], input=text, text=True, env=environment, capture_output=True)
    return done, tmp_path


def test_the_slurm_script_gives_every_rank_its_address_and_port(tmp_path):
    _, folder = run_script(tmp_path, 0, "0")
    for rank, line in enumerate((folder / "ranks").read_text().splitlines()):
        config, end = json.JSONDecoder().raw_decode(line)
        assert config["cluster"]["worker"] == ["localhost:10014", "10.0.0.2:10015"]
        assert config["task"] == {"type": "worker", "index": rank}
        assert line[end:].strip() == " ".join(COMMAND[1:])


def test_setup_runs_in_the_batch_shell_and_on_every_worker_without_the_arguments_of_the_command(tmp_path):
    done, folder = run_script(tmp_path, 0, "0", setup="""echo "rank '$SLURM_PROCID' of $# arguments" >> setups""")
    assert done.returncode == 0, done.stderr
    assert (folder / "setups").read_text().splitlines() == [f"rank '{rank}' of 0 arguments" for rank in ("", "0", "1")]
    assert len((folder / "ranks").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    "change",
    [{"job_name": name} for name in ("wide resnet", "a/b", "%j", "", "a\n#SBATCH --wrap=x")]
    + [{"partition": "gpu --wrap=x"}],
)
def test_a_name_that_slurm_would_split_or_take_for_a_folder_or_an_option_is_named(change):
    ((field, name),) = change.items()
    message = refused(slurm_script, **change)
    assert message.startswith(f"{field} must be ") and message.endswith(f", got {name!r}")


@pytest.mark.parametrize(
    "folder", ["a\ntouch PWNED\n", "$(touch PWNED)", "'; touch PWNED; '", b"a\xff\n#SBATCH --wrap=x"]
)
def test_no_name_of_the_current_directory_is_a_command_of_the_slurm_script(tmp_path, monkeypatch, folder):
    folder = os.path.join(os.fsencode(tmp_path), os.fsencode(folder))
    os.mkdir(folder)
    monkeypatch.chdir(folder)
    config = dataclasses.replace(PRESETS["mnist"], slurm=True, write=str(tmp_path / "job"), setup="pwd > pwd")
    assert cluster.main(config, "run") == 0
    lines = (tmp_path / "job").read_bytes().splitlines()
    assert [line.startswith(b"#SBATCH") for line in lines].count(True) == 10  # as many as in any script
    (tmp_path / "srun").write_text(f'#!/bin/bash\nprintf "%s\\0" "$@" > {tmp_path}/arguments')
    (tmp_path / "srun").chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "n"}
    monkeypatch.chdir("/")
    subprocess.run(["bash", tmp_path / "job"], env=environment, check=True, stderr=subprocess.DEVNULL)
    assert os.listdir(folder) == [b"pwd"]
    arguments = (tmp_path / "arguments").read_bytes().split(b"\0")
    assert b"--run_dir=" + os.path.join(folder, b"run") in arguments


@settings(deadline=None)
@given(text=st.text().filter(lambda text: "\0" not in text))
def test_a_quoted_text_is_one_word_that_means_it(text):
    with contextlib.suppress(UnicodeEncodeError):  # of halves of emoji
        os.fsencode(text)
        assert "\n" not in slurm.quoted(text)
        command = f"printf %s {slurm.quoted(text)}".encode(errors="surrogateescape")
        assert subprocess.run(["bash"], input=command, capture_output=True).stdout == os.fsencode(text)
    with contextlib.suppress(UserError):
        assert yaml.safe_load(f"a: {kubernetes.quoted(text)}") == {"a": text}
        text.encode()  # else it is refused
        assert "\n" not in kubernetes.quoted(text) and "\\u" not in kubernetes.quoted(text.replace("\\", ""))


def expanded(text, variables):
    """What Kubernetes makes of a word of a command: $(NAME) is filled in where NAME is known, $$ is $."""
    known = lambda match: "$" if match[0] == "$$" else variables.get(match[1], match[0])  # noqa: E731
    return re.sub(r"\$\$|\$\(([^)]*)\)", known, text)


@pytest.mark.parametrize(
    "value", ["$(WORKER)", "$$(WORKER)", "$(TF_CONFIG)$", "$$$", "🤖 $(", "é\n: x", "\x7f\x85\u2028\ufeff"]
)
def test_no_flag_is_changed_by_kubernetes(value):
    for kubeflow in (False, True):
        config = dataclasses.replace(PRESETS["mnist"], kubernetes=True, kubeflow=kubeflow, image="i", volume_claim="c")
        text = kubernetes.manifest(config, RUN_DIR, [f"--dataset={value}"])
        job = list(yaml.safe_load_all(text))[-1]
        template = job["spec"]["tfReplicaSpecs"]["Worker"]["template"] if kubeflow else job["spec"]["template"]
        *_, last = template["spec"]["containers"][0]["command"]
        assert expanded(last, {"WORKER": "3", "TF_CONFIG": "{}"}) == f"--dataset={value}"
    assert "🤖" not in value or "🤖" in text  # not two escapes, which Go's YAML refuses


@pytest.mark.parametrize("name", ["null", "true", "no", "y"])
def test_a_job_name_is_a_text(name):
    service, job = manifest(job_name=name)
    assert job["metadata"]["name"] == service["spec"]["selector"]["job-name"] == name


def test_usual_names_are_taken():
    text = slurm_script(job_name="Wide_ResNet-1.0", partition="gpu_a,gpu-b.2")
    assert "--job-name=Wide_ResNet-1.0\n" in text and "--partition=gpu_a,gpu-b.2\n" in text


@pytest.mark.parametrize(
    "code, restarts, requeues",
    [(0, "0", False), (1, "0", False), (3, "0", False), (75, "0", True), (9, "2", True), (75, "3", False)],
)
def test_the_slurm_script_requeues_itself_for_what_another_try_may_fix(tmp_path, code, restarts, requeues):
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
    assert text.count("containers:") == 1  # YAML would take the last of two
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
    assert service["spec"]["publishNotReadyAddresses"] is True  # workers meet before they are ready
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes[mounts["/dev/shm"]]["emptyDir"] == {"medium": "Memory"}  # NCCL's way between the GPUs of a pod
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 4


@pytest.mark.parametrize("kubeflow", [False, True])
def test_a_pod_has_its_resources_and_the_time_to_save_a_checkpoint(kubeflow):
    place = {"image": "own:2", "volume_claim": "mine", "volume_path": "/volume"}
    job = manifest("/volume/run", kubeflow=kubeflow, cpus_per_node=16, memory_per_node=64, **place)[-1]
    template = job["spec"]["tfReplicaSpecs"]["Worker"]["template"] if kubeflow else job["spec"]["template"]
    (container,), (shared, _) = template["spec"]["containers"], template["spec"]["volumes"]
    assert container["resources"]["limits"] == {"cpu": "16", "memory": "64Gi", "nvidia.com/gpu": "2"}
    assert container["image"] == "own:2" and shared["persistentVolumeClaim"] == {"claimName": "mine"}
    assert container["volumeMounts"][0] == {"name": shared["name"], "mountPath": "/volume"}
    assert template["spec"]["terminationGracePeriodSeconds"] == 120


def test_a_tfjob_fits_kubeflows_model():
    from kubeflow import training

    (job,) = manifest(kubeflow=True, nodes=4, max_restarts=5)
    client = training.ApiClient()

    class Response:
        data = json.dumps(job)

    parsed = client.deserialize(Response, "KubeflowOrgV1TFJob")
    assert client.sanitize_for_serialization(parsed) == job  # no field is unknown
    workers = job["spec"]["tfReplicaSpecs"]["Worker"]
    assert (workers["replicas"], workers["restartPolicy"]) == (4, "OnFailure")
    assert job["spec"]["runPolicy"]["backoffLimit"] == 20  # five restarts of each
    pod = workers["template"]["spec"]
    _, indexed = manifest()
    assert pod["volumes"] == indexed["spec"]["template"]["spec"]["volumes"]
    assert "env" not in pod["containers"][0] and pod["containers"][0]["command"] == COMMAND
    (container,) = parsed.spec.tf_replica_specs["Worker"].template.spec.containers
    assert container.name == "tensorflow" and container.ports[0].name == "tfjob-port"
    assert container.ports[0].container_port == 2222  # as the operator takes it by default


@pytest.mark.parametrize("run_dir", ["runs/1", "/shared", "/shared/../tmp", "/shared2/runs"])
def test_a_run_directory_that_would_be_lost_with_its_pod_is_named(run_dir):
    assert refused(manifest, run_dir) == (
        f"run_dir must lie under volume_path, /shared, where it outlives a pod, got {run_dir}"
    )


def test_a_relative_place_of_the_volume_and_a_job_name_that_kubernetes_does_not_take_are_refused():
    assert "volume_path must be an absolute path, got shared" in refused(manifest, "shared/r", volume_path="shared")
    assert refused(manifest, job_name="My_Job").endswith("got 'My_Job'")


def test_data_that_no_volume_holds_are_named(capsys):
    data = DataConfig(npz="/home/me/own.npz", data_dir="/shared/tfds")
    train = dataclasses.replace(PRESETS["mnist"].train, data=data)
    manifest(train=train)
    assert capsys.readouterr().err == (
        "note: npz /home/me/own.npz is not under volume_path, /shared: the image must hold it\n"
    )


def test_each_worker_is_started_again_at_most_so_often_and_a_mistake_ends_the_job():
    _, job = manifest(max_restarts=4)  # so does one whose peers never come, which leaves with 75
    assert job["spec"]["backoffLimitPerIndex"] == 4 and job["spec"]["maxFailedIndexes"] == 0
    preempted, mistaken = job["spec"]["podFailurePolicy"]["rules"]
    assert preempted["action"] == "Ignore" and preempted["onPodConditions"][0]["type"] == "DisruptionTarget"
    assert mistaken["action"] == "FailJob" and mistaken["onExitCodes"]["values"] == [1, 3]


def test_launch_cluster_prints_a_manifest_or_writes_it_and_says_what_comes_next(tmp_path, capsys):
    config = dataclasses.replace(PRESETS["mnist"], kubernetes=True, image="i", volume_claim="c")
    assert cluster.main(config, "/shared/run") == 0
    assert [document["kind"] for document in yaml.safe_load_all(capsys.readouterr().out)] == ["Service", "Job"]
    path = str(tmp_path / "job.yaml")
    assert cluster.main(dataclasses.replace(config, write=path), "/shared/run") == 0
    assert capsys.readouterr().out == f"written: {path}\nnext:\n  kubectl apply -f {path}\n"
    script = str(tmp_path / "job.sbatch")
    assert cluster.main(dataclasses.replace(PRESETS["mnist"], slurm=True, write=script), "run") == 0
    assert capsys.readouterr().out == f"written: {script}\nnext:\n  sbatch {script}\n"
    assert [document["kind"] for document in yaml.safe_load_all((tmp_path / "job.yaml").read_text())][1] == "Job"


def test_where_there_is_no_sbatch_the_script_is_written_and_that_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    path = tmp_path / "job.sbatch"
    config = dataclasses.replace(PRESETS["mnist"], slurm=True, submit=True, write=str(path))
    assert refused(cluster.main, config, str(tmp_path / "run")).startswith("there is no sbatch on this machine")
    assert "--preset=mnist" in path.read_text()
