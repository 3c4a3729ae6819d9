"""KERAS_BACKEND=jax, in a virtual environment of its own where TensorFlow is not installed."""

import configparser
import json
import os
import pathlib
import subprocess
import sys
import venv

import numpy as np
import pytest
from processes import assert_same_variables, final_variables

import identity_matters
from identity_matters.evaluation import evaluate
from identity_matters.runs.config_json import read_config_json
from identity_matters.runs.tables import read_metrics

pytestmark = pytest.mark.slow

PROJECT = pathlib.Path(identity_matters.__file__).parents[1]
STEPS = 120
FLAGS = (
    "--stem_width=8 --widths=8,16 --blocks_per_stage=1,1 --residual_initializer=standard "
    "--crop_padding=0 --norandom_flip --learning_rate=0.1 --clip_norm=0.5 --decay_steps=90 "
    f"--train_steps={STEPS} --eval_every=30 --steps_per_execution=10"
).split()


@pytest.fixture(scope="module")
def jax_python(tmp_path_factory) -> str:
    """The interpreter of a fresh environment with JAX and what setup.cfg requires, but for TensorFlow."""
    parser = configparser.ConfigParser()
    parser.read(PROJECT / "setup.cfg")
    required = [line.split("#")[0].strip() for line in parser["options"]["install_requires"].split("\n")]
    light = [name for name in required if name and not name.startswith("tensorflow")]
    folder = tmp_path_factory.mktemp("jax") / "venv"
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", "jax", *light], check=True)
    return python


def run(python: str, backend: str, *arguments) -> subprocess.CompletedProcess:
    environment = os.environ | {"KERAS_BACKEND": backend, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(PROJECT)}
    return subprocess.run([python, *map(str, arguments)], cwd=PROJECT, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def train(jax_python, digits_npz):
    """Trains on the digits into run_dir; a function of run_dir and further flags."""

    def train(run_dir, *flags, python=jax_python, backend="jax"):
        result = run(
            python, backend, "-m", "launch.train", f"--npz={digits_npz}", f"--run_dir={run_dir}", *FLAGS, *flags
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    return train


@pytest.fixture(scope="module")
def finished(train, tmp_path_factory):
    """(run directory, what the launcher printed)."""
    run_dir = tmp_path_factory.mktemp("runs") / "finished"
    return run_dir, train(run_dir)


def test_tensorflow_is_not_there(jax_python):
    result = run(jax_python, "jax", "-c", "import tensorflow")
    assert "No module named 'tensorflow'" in result.stderr


def test_the_launcher_trains_from_an_npz_file_on_jax(finished):
    run_dir, printed = finished
    files = {path.name for path in run_dir.iterdir()}
    assert {"config.json", "metrics.csv", "checkpoints", "convergence.png", "model.keras"} <= files
    assert "saved_model" not in files
    record = read_config_json(run_dir)
    assert (record["status"], record["versions"]["keras_backend"]) == ("done", "jax")
    assert "tensorflow" not in record["versions"]
    assert "done: step 120" in printed and "KERAS_BACKEND=tensorflow adds" in printed


def test_the_loss_falls_and_the_digits_are_learnt_on_jax(finished):
    rows = read_metrics(finished[0] / "metrics.csv")
    assert [row["step"] for row in rows] == [30, 60, 90, 120]
    assert rows[-1]["test_cross_entropy"] < 0.85 * rows[0]["test_cross_entropy"]
    assert rows[-1]["test_top1_error"] < 0.8  # chance is 0.9, with a standard deviation of 0.02
    assert [row["learning_rate"] for row in rows] == pytest.approx([0.1, 0.1, 0.1, 0.01])


def test_another_checkpoint_interval_gives_bit_identical_weights_on_jax(finished, train, tmp_path):
    train(tmp_path / "run", "--checkpoint_every=30")
    assert_same_variables(tmp_path / "run", finished[0], STEPS)
    train(tmp_path / "other_seed", "--seed=1")
    with pytest.raises(AssertionError):
        assert_same_variables(tmp_path / "other_seed", finished[0], STEPS)


def test_resumed_at_step_60_it_ends_bit_identical_on_jax(finished, train, tmp_path):
    run_dir = tmp_path / "run"
    train(run_dir, "--checkpoint_every=30")
    # As a kill -9 at step 80 leaves it, but that metrics.csv knows more than it would.
    for step in (90, 120):
        (run_dir / "checkpoints" / f"step_{step:08d}.npz").unlink()
    for path in ("model.keras", "convergence.png"):
        (run_dir / path).unlink()
    (run_dir / "config.json").write_text(json.dumps(read_config_json(run_dir) | {"status": "running"}))
    kept = (run_dir / "checkpoints" / "step_00000060.npz").stat().st_mtime_ns
    train(run_dir, "--checkpoint_every=30")
    assert_same_variables(run_dir, finished[0], STEPS)
    assert (run_dir / "checkpoints" / "step_00000060.npz").stat().st_mtime_ns == kept  # not trained from 0 again
    assert (run_dir / "model.keras").exists()
    rows, others = (read_metrics(path / "metrics.csv") for path in (run_dir, finished[0]))
    for row, other in zip(rows, others, strict=True):
        # The file has seven digits, of which a mean over steps may round the last one the other way.
        assert row | {"images_per_second": 0} == pytest.approx(other | {"images_per_second": 0}, rel=1e-6)


def test_the_same_command_under_tensorflow_adds_the_saved_model_to_a_run_of_jax(finished, train):
    run_dir, _ = finished
    before = final_variables(run_dir, STEPS)
    printed = train(run_dir, python=sys.executable, backend="tensorflow")
    assert "saved_model" in printed
    assert all(np.array_equal(array, before[name]) for name, array in final_variables(run_dir, STEPS).items())
    last = read_metrics(run_dir / "metrics.csv")[-1]
    result = evaluate(str(run_dir / "saved_model"))
    assert result["num_examples"] == 200
    # Two backends round differently; one image may lie on the border.
    assert abs(result["top1_error"] - last["test_top1_error"]) < 1.5 / 200
