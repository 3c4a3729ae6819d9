"""Manifests of a training job for Kubernetes: an Indexed Job with its Service, or Kubeflow's TFJob."""

import json
import os
import re
import textwrap

from identity_matters.errors import EXIT_DIVERGED, EXIT_ERROR, note
from identity_matters.fields import names_with, require
from launch.jobs.config import ClusterConfig

PORT = 2222
GRACE_PERIOD = 120  # seconds between SIGTERM and SIGKILL

# The pod of either kind: its container goes by the name that Kubeflow's operator looks for. NCCL passes what the GPUs
# of a pod exchange through /dev/shm, which is 64 MiB unless it is mounted; what lies there counts as the pod's memory.
_POD = """\
terminationGracePeriodSeconds: {grace_period}  # after SIGTERM, to save a checkpoint
containers:
- name: tensorflow
  image: {image}
  command: [{command}]
{environment}  ports:
  - name: tfjob-port
    containerPort: {port}
  resources:
    limits: {limits}
  volumeMounts:
  - name: shared
    mountPath: {volume_path}
  - name: shared-memory
    mountPath: /dev/shm
volumes:
- name: shared
  persistentVolumeClaim:
    claimName: {volume_claim}
- name: shared-memory
  emptyDir:
    medium: Memory
"""

_ENVIRONMENT = """\
  env:
  - name: WORKER
    valueFrom:
      fieldRef:
        fieldPath: metadata.annotations['batch.kubernetes.io/job-completion-index']
  - name: TF_CONFIG
    value: {tf_config}
"""

_JOB = """\
# Written by launch.cluster. kubectl apply -f THIS_FILE
# Log of the chief: kubectl logs -f -l job-name={label},batch.kubernetes.io/job-completion-index=0
apiVersion: v1
kind: Service
metadata:
  name: {name}
spec:
  clusterIP: None  # headless: it only gives the workers names
  publishNotReadyAddresses: true
  selector:
    job-name: {name}
  ports:
  - name: tensorflow
    port: {port}
---
apiVersion: batch/v1
kind: Job
metadata:
  name: {name}
spec:
  completions: {nodes}
  parallelism: {nodes}
  completionMode: Indexed
  backoffLimitPerIndex: {max_restarts}  # of each worker: all are started again together
  maxFailedIndexes: 0
  podFailurePolicy:
    rules:
    - action: Ignore  # preempted, or the node was drained
      onPodConditions:
      - type: DisruptionTarget
        status: "True"
    - action: FailJob  # a mistake, or the loss became NaN: another try would end the same way
      onExitCodes:
        containerName: tensorflow
        operator: In
        values: [{error}, {diverged}]
  template:
    spec:
      subdomain: {name}
      restartPolicy: Never
{pod}"""

_TFJOB = """\
# Written by launch.cluster, for Kubeflow's training operator, which sets TF_CONFIG. kubectl apply -f THIS_FILE
apiVersion: kubeflow.org/v1
kind: TFJob
metadata:
  name: {name}
spec:
  runPolicy:
    backoffLimit: {all_restarts}
    cleanPodPolicy: Running
  tfReplicaSpecs:
    Worker:
      replicas: {nodes}
      restartPolicy: OnFailure
      template:
        spec:
{pod}"""


def manifest(config: ClusterConfig, run_dir: str, flags: list[str]) -> str:
    """Returns the YAML of a job that runs launch.train with these flags and writes run_dir, under config.volume_path.

    Raises:
      UserError: job_name is not valid in Kubernetes, volume_path is relative, or run_dir would be lost with its pod.
    """
    volume, name = config.volume_path, config.job_name
    require(os.path.isabs(volume), f"volume_path must be an absolute path, got {volume}")
    lost = f"run_dir must lie under volume_path, {volume}, where it outlives a pod, got {run_dir}"
    require(_is_under(volume, run_dir), lost)
    for field in names_with(config.train.data, "path", True):
        path = getattr(config.train.data, field)
        if path and not _is_under(volume, path):
            note(f"{field} {path} is not under volume_path, {volume}: the image must hold it")
    is_taken = re.fullmatch(r"[a-z]([-a-z0-9]{0,50}[a-z0-9])?", name)
    require(is_taken, f"job_name must be lower-case letters, digits and dashes, at most 52, got {name!r}")
    pod = _pod(config, [f"--run_dir={run_dir}", *flags])
    return (_TFJOB if config.kubeflow else _JOB).format(
        name=quoted(name),
        label=name,
        nodes=config.nodes,
        max_restarts=config.max_restarts,
        all_restarts=config.max_restarts * config.nodes,
        error=EXIT_ERROR,
        diverged=EXIT_DIVERGED,
        port=PORT,
        pod=textwrap.indent(pod, " " * (10 if config.kubeflow else 6)),
    )


def quoted(text: str) -> str:
    r"""Returns the scalar of YAML, on one line, that means a text; all that varies in the manifest passes through here.

    >>> print(quoted("null"), quoted('a\n"b"'))
    "null" "a\U0000000a\"b\""
    """
    require(not re.search("[\ud800-\udfff]", text), f"{text!r} cannot be written into a manifest")
    escaped = re.sub(r'["\\]', r"\\\g<0>", text)
    # JSON would write an emoji as two halves, which Go's YAML refuses.
    printable = (c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped)
    return f'"{"".join(printable)}"'


def _is_under(folder: str, path: str) -> bool:
    return os.path.normpath(path).startswith(os.path.join(os.path.normpath(folder), ""))


def _pod(config: ClusterConfig, flags: list[str]) -> str:
    """Returns the YAML of the pod's containers and volumes; JSON is YAML."""
    limits = {"cpu": str(config.cpus_per_node), "memory": f"{config.memory_per_node}Gi"}
    if config.gpus_per_node:
        limits["nvidia.com/gpu"] = str(config.gpus_per_node)
    addresses = [f"{config.job_name}-{rank}.{config.job_name}:{PORT}" for rank in range(config.nodes)]
    task = '{"type": "worker", "index": $(WORKER)}'  # Kubernetes fills in the index
    tf_config = f'{{"cluster": {{"worker": {json.dumps(addresses)}}}, "task": {task}}}'
    return _POD.format(
        grace_period=GRACE_PERIOD,
        image=quoted(config.image),
        # In a command Kubernetes fills in $(NAME), and makes $ of $$.
        command=", ".join(quoted(word.replace("$", "$$")) for word in ("python", "-m", "launch.train", *flags)),
        environment="" if config.kubeflow else _ENVIRONMENT.format(tf_config=quoted(tf_config)),
        port=PORT,
        limits=json.dumps(limits),
        volume_path=quoted(config.volume_path),
        volume_claim=quoted(config.volume_claim),
    )
