"""Manifests of a training job for Kubernetes: an Indexed Job with its Service, or Kubeflow's TFJob."""

import json
import os
import re

from identity_matters.runs.errors import UserError
from launch.launcher import EXIT_CONTINUE, EXIT_DIVERGED, EXIT_ERROR

PORT = 2222

_JOB = """\
# Written by launch.cluster. kubectl apply -f THIS_FILE; kubectl logs -f -l job-name={name},batch.kubernetes.io/job-completion-index=0
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
  backoffLimit: {max_restarts}
  podFailurePolicy:
    rules:
    - action: Ignore  # preempted, or the node was drained
      onPodConditions:
      - type: DisruptionTarget
        status: "True"
    - action: Ignore  # of the workers that have lost one: only that one counts
      onExitCodes:
        containerName: worker
        operator: In
        values: [{again}]
    - action: FailJob  # a mistake, or the loss became NaN: another try would end the same way
      onExitCodes:
        containerName: worker
        operator: In
        values: [{error}, {diverged}]
  template:
    spec:
      subdomain: {name}
      restartPolicy: Never
      terminationGracePeriodSeconds: 120  # after SIGTERM, to save a checkpoint
      containers:
      - name: worker
        image: {image}
        command: {command}
        env:
        - name: WORKER
          valueFrom:
            fieldRef:
              fieldPath: metadata.annotations['batch.kubernetes.io/job-completion-index']
        - name: TF_CONFIG
          value: {tf_config}
        ports:
        - containerPort: {port}
        resources:
          limits: {limits}
        volumeMounts:
        - name: shared
          mountPath: {volume_path}
      volumes:
      - name: shared
        persistentVolumeClaim:
          claimName: {volume_claim}
"""

_TFJOB = """\
# Written by launch.cluster, for Kubeflow's training operator, which sets TF_CONFIG. kubectl apply -f THIS_FILE
apiVersion: kubeflow.org/v1
kind: TFJob
metadata:
  name: {name}
spec:
  runPolicy:
    backoffLimit: {backoff_limit}
    cleanPodPolicy: Running
  tfReplicaSpecs:
    Worker:
      replicas: {nodes}
      restartPolicy: OnFailure
      template:
        spec:
          terminationGracePeriodSeconds: 120  # after SIGTERM, to save a checkpoint
          containers:
          - name: tensorflow  # the operator goes by this name
            image: {image}
            command: {command}
            ports:
            - name: tfjob-port
              containerPort: {port}
            resources:
              limits: {limits}
            volumeMounts:
            - name: shared
              mountPath: {volume_path}
          volumes:
          - name: shared
            persistentVolumeClaim:
              claimName: {volume_claim}
"""


def manifest(config, flags: list[str]) -> str:
    """The manifest's YAML.

    Args:
      config: launch.cluster.ClusterConfig.
      flags: list of str. launch.train's.

    Raises:
      ValueError: job_name is none that Kubernetes takes, or run_dir would be lost with its pod.
    """
    run_dir = next(flag for flag in flags if flag.startswith("--run_dir=")).split("=", 1)[1]
    if not os.path.normpath(run_dir).startswith(os.path.join(os.path.normpath(config.volume_path), "")):
        raise UserError(
            f"run_dir must lie under volume_path, {config.volume_path}, where it outlives a pod, got {run_dir}"
        )
    name = config.job_name
    if not re.fullmatch(r"[a-z]([-a-z0-9]{0,50}[a-z0-9])?", name):
        raise UserError(f"job_name must be lower-case letters, digits and dashes, at most 52, got {name!r}")
    limits = {"cpu": str(config.cpus_per_node), "memory": f"{config.memory_per_node}Gi"}
    if config.gpus_per_node:
        limits["nvidia.com/gpu"] = str(config.gpus_per_node)
    return (_TFJOB if config.kubeflow else _JOB).format(
        name=name,
        nodes=config.nodes,
        max_restarts=config.max_restarts,
        backoff_limit=config.max_restarts * config.nodes,
        error=EXIT_ERROR,
        diverged=EXIT_DIVERGED,
        again=EXIT_CONTINUE,
        port=PORT,
        image=json.dumps(config.image),  # JSON is YAML
        command=json.dumps(["python", "-m", "launch.train", *flags]),
        tf_config=json.dumps(_tf_config(name, config.nodes)),
        limits=json.dumps(limits),
        volume_path=json.dumps(config.volume_path),
        volume_claim=json.dumps(config.volume_claim),
    )


def _tf_config(name: str, nodes: int) -> str:
    """The index is filled in by Kubernetes, from the variable WORKER."""
    addresses = [f"{name}-{rank}.{name}:{PORT}" for rank in range(nodes)]
    return f'{{"cluster": {{"worker": {json.dumps(addresses)}}}, "task": {{"type": "worker", "index": $(WORKER)}}}}'
