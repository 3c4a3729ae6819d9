"""Under JAX, several devices share each batch and end with the weights that one ends with, to rounding."""

import os
import subprocess
import sys

import numpy as np
import processes
import pytest

pytestmark = pytest.mark.slow  # each run is a process of its own

# Two stages of one block on 200 digits; a learning rate at which the loss moves.
RUN = """
import dataclasses, json, sys
import jax, keras
from identity_matters.config import DataConfig, ModelConfig, TrainConfig
from identity_matters import run, training
run.write_results = lambda *_: None
model = ModelConfig(stem_width=4, widths=(4, 8), blocks_per_stage=(1, 1), residual_initializer="standard")
config = TrainConfig(
    model, DataConfig("mnist_sample", train_examples=200, eval_examples=50), crop_padding=2, train_steps=12,
    batch_size=int(sys.argv[2]), decay_steps=(8,), eval_every=12, checkpoint_every=6, learning_rate=0.1, clip_norm=0.5)
sharded = []
class Look(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        sharded.append(len(self.model.variables[0].value.sharding.device_set))
training.train(config, sys.argv[1], callbacks=[Look()])
print(len(jax.devices()), set(sharded), keras.distribution.distribution())
"""


def run(path, devices, batch_size=16) -> subprocess.CompletedProcess:
    flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
    environment = os.environ | {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"} | flags
    command = [sys.executable, "-c", RUN, str(path), str(batch_size)]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Directories of the same run on one device and on two."""
    paths = {devices: tmp_path_factory.mktemp("runs") / f"devices_{devices}" for devices in (1, 2)}
    for devices, path in paths.items():
        done = run(path, devices)
        assert done.returncode == 0, done.stderr[-3000:]
        assert done.stdout.splitlines()[-1] == f"{devices} {{{devices}}} None"  # each weight is on all of them
    return paths


def test_two_devices_end_with_the_weights_of_one(runs):
    one, two = (processes.final_variables(runs[devices], 12) for devices in (1, 2))
    moved = processes.newest_checkpoint(str(runs[1] / "checkpoints"))[0]
    assert one.keys() == two.keys() and moved == 12
    for name in one:
        # Sums over a batch in another order, float32, 12 updates.
        scale = np.abs(one[name]).max() + 1e-6
        np.testing.assert_allclose(two[name] / scale, one[name] / scale, rtol=0, atol=1e-4, err_msg=name)


def test_a_batch_that_the_devices_cannot_share_is_rejected(tmp_path):
    done = run(tmp_path / "run", 2, batch_size=15)
    assert "multiple of the number of devices, 2 on 1 worker(s), got 15" in done.stderr.splitlines()[-1]
    assert not (tmp_path / "run").exists()
