"""Mixed precision under JAX on a CPU: what XLA must leave out, and what is refused where that came too late."""

import contextlib
import importlib.metadata
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest

import identity_matters
from identity_matters import jax_on_cpu
from identity_matters.config import ModelConfig
from identity_matters.errors import UserError
from identity_matters.model import dtype_policy

OFF = "--xla_cpu_experimental_ynn_fusion_type="
# The network that was NaN, compiled, under jaxlib 0.11.2 and 0.12.0.1, where the fusions were on.
NETWORK = """
import jax, numpy as np
from identity_matters import networks
from identity_matters.config import ModelConfig
sizes = {"widths": (16, 32, 64), "blocks_per_stage": (2, 2, 2), "residual_initializer": "standard"}
network = networks.build(ModelConfig(**sizes, mixed_precision=True), 0)
images = np.random.default_rng(0).standard_normal((128, 32, 32, 3), np.float32)
weights = [[v.value for v in group] for group in (network.trainable_variables, network.non_trainable_variables)]
compiled = jax.jit(lambda t, n, x: network.stateless_call(t, n, x)[0]).lower(*weights, images).compile()
right, found = network(images), compiled(*weights, images)
print(np.linalg.norm(found - right) / np.linalg.norm(right), "__ynn_fusion" in compiled.as_text())
"""


@pytest.fixture
def under_jax(monkeypatch):
    """under_jax(version of jaxlib): as if Keras had the backend JAX, on a CPU, and no XLA_FLAGS were set."""
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    monkeypatch.setattr(jax_on_cpu, "_computes_on_cpu", lambda: True)
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    jax_on_cpu.require_sound_bfloat16.cache_clear()
    yield lambda version: monkeypatch.setattr(importlib.metadata, "version", lambda _: version)
    jax_on_cpu.require_sound_bfloat16.cache_clear()


@pytest.mark.parametrize(
    "version, is_off",
    [("0.4.30", False), ("0.10.1", False), ("0.10.2", True), ("0.11.2", True), ("0.12.0.1", True), ("0.13.0", False)],
)
def test_the_fusions_are_off_under_the_versions_that_have_them(under_jax, version, is_off):
    under_jax(version)
    jax_on_cpu.turn_fusions_off()
    assert os.environ.get("XLA_FLAGS") == (OFF if is_off else None)


def test_nothing_is_tried_on_a_gpu(under_jax, monkeypatch):
    monkeypatch.setattr(jax_on_cpu, "_computes_on_cpu", lambda: False)
    monkeypatch.setattr(jax_on_cpu, "_two_layers", lambda *_: pytest.fail("it was tried"))
    jax_on_cpu.require_sound_bfloat16()


def test_other_flags_stay_and_a_choice_of_the_users_is_left_alone(under_jax, monkeypatch):
    under_jax("0.12.0")
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
    jax_on_cpu.turn_fusions_off()
    assert os.environ["XLA_FLAGS"] == f"--xla_force_host_platform_device_count=2 {OFF}"
    monkeypatch.setenv("XLA_FLAGS", f"{OFF}individual_dot")
    jax_on_cpu.turn_fusions_off()
    assert os.environ["XLA_FLAGS"] == f"{OFF}individual_dot"


def test_other_backends_keep_their_environment(under_jax, monkeypatch):
    under_jax("0.12.0")
    monkeypatch.setattr(keras.backend, "backend", lambda: "tensorflow")
    jax_on_cpu.turn_fusions_off()
    assert "XLA_FLAGS" not in os.environ


@pytest.mark.parametrize("factor", [np.nan, 1e36, 0.5, 1.11, 1.09])
def test_mixed_precision_is_refused_where_the_compiler_gets_it_wrong(under_jax, monkeypatch, factor):
    """By more than a tenth."""
    under_jax("0.13.1")

    def wrong(x, kernel):
        return factor * np.maximum(np.maximum(x @ kernel, 0) @ kernel, 0).sum(1)

    monkeypatch.setattr(jax_on_cpu, "_two_layers", wrong)
    assert dtype_policy(ModelConfig()) == "float32"
    words = rf"jaxlib 0.13.1 computes bfloat16 wrong on this CPU; put XLA_FLAGS={OFF} "
    with contextlib.nullcontext() if factor == 1.09 else pytest.raises(UserError, match=words):
        dtype_policy(ModelConfig(mixed_precision=True))


@pytest.mark.slow
def test_a_compiled_network_in_mixed_precision_answers_as_the_uncompiled_one():
    pytest.importorskip("jax")
    project = str(pathlib.Path(identity_matters.__file__).parents[1])
    environment = os.environ | {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "PYTHONPATH": project}
    environment.pop("XLA_FLAGS", None)
    done = subprocess.run([sys.executable, "-c", NETWORK], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    error, has_fusions = done.stdout.split()
    assert float(error) < 0.02 and has_fusions == "False"  # bfloat16 has 8 bits; NaN is not below
