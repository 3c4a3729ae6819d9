"""docs/guides/cluster/job.yaml: its main fields, and the TF_CONFIG of each pod. test_slurm.py: job.sbatch."""

import json
import os
import pathlib
import subprocess

import pytest
import yaml

from identity_matters.errors import EXIT_DIVERGED, EXIT_ERROR

FOLDER = pathlib.Path(__file__).parents[2] / "docs" / "guides" / "cluster"


@pytest.fixture(scope="module")
def documents() -> list[dict]:
    return list(yaml.safe_load_all((FOLDER / "job.yaml").read_text()))


def test_the_service_selects_the_pods_of_the_job(documents):
    service, job = documents
    assert (service["kind"], job["kind"], job["apiVersion"]) == ("Service", "Job", "batch/v1")
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"] is True
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]


def test_all_workers_restart_together_and_an_error_ends_the_job(documents):
    job = documents[1]["spec"]
    assert job["completionMode"] == "Indexed" and job["completions"] == job["parallelism"]
    assert job["backoffLimitPerIndex"] == 3 and job["maxFailedIndexes"] == 0
    pod = job["template"]["spec"]
    assert pod["restartPolicy"] == "Never" and pod["terminationGracePeriodSeconds"] == 120
    preempted, failed = job["podFailurePolicy"]["rules"]
    assert (preempted["action"], preempted["onPodConditions"][0]["type"]) == ("Ignore", "DisruptionTarget")
    assert (failed["action"], failed["onExitCodes"]["values"]) == ("FailJob", [EXIT_ERROR, EXIT_DIVERGED])
    assert failed["onExitCodes"]["containerName"] == pod["containers"][0]["name"]


def test_every_pod_gets_the_cluster_and_its_index(documents, tmp_path):
    """The container's command, run with a stand-in for Python that prints TF_CONFIG and its arguments."""
    service, job = documents
    (container,) = job["spec"]["template"]["spec"]["containers"]
    (variable,) = container["env"]
    (tmp_path / "python").write_text('#!/bin/bash\necho "$TF_CONFIG"\necho "$*"\n')
    (tmp_path / "python").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "JOB_COMPLETION_INDEX": "3"}
    environment[variable["name"]] = variable["value"]
    command = [*container["command"], *container["args"]]
    assert not any("$(" in word or "$$" in word for word in command)  # Kubernetes would expand these
    config, arguments = subprocess.run(command, env=environment, capture_output=True, text=True).stdout.splitlines()
    name, domain = job["metadata"]["name"], service["metadata"]["name"]
    port = service["spec"]["ports"][0]["port"]
    addresses = [f"{name}-{index}.{domain}:{port}" for index in range(job["spec"]["completions"])]
    assert json.loads(config) == {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": 3}}
    assert arguments.startswith("-m launch.train ") and container["ports"] == [{"containerPort": port}]


def test_both_files_train_the_same_run_on_as_many_devices_as_divide_its_batches(documents):
    job = documents[1]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    script = (FOLDER / "job.sbatch").read_text()
    devices = job["completions"] * int(container["resources"]["limits"]["nvidia.com/gpu"])
    for text in (container["args"][0], script):
        assert "--preset=imagenet --batch_size=384 --decay_steps=6672" in text
    assert 384 % devices == 0 and f"--nodes={job['completions']} " in script


def test_the_run_directory_lies_on_the_volume_and_gpus_share_memory(documents):
    pod = documents[1]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert "--run_dir=/shared/" in container["args"][0] and "persistentVolumeClaim" in volumes[mounts["/shared"]]
    assert volumes[mounts["/dev/shm"]]["emptyDir"] == {"medium": "Memory"}
