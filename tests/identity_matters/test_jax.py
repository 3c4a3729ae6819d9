"""KERAS_BACKEND=jax, in processes that cannot import TensorFlow."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
from begun import read_config_json
from image_folders import DIGITS, write_digits
from processes import assert_same_variables, final_variables

import identity_matters
from identity_matters.evaluation import evaluate
from identity_matters.runs.tables import read_metrics

PROJECT = pathlib.Path(identity_matters.__file__).parents[1]
STEPS = 120
FLAGS = (
    "--stem_width=8 --widths=8,16 --blocks_per_stage=1,1 --residual_initializer=standard "
    "--crop_padding=0 --norandom_flip --learning_rate=0.1 --clip_norm=0.5 --decay_steps=90 "
    f"--train_steps={STEPS} --eval_every=30 --checkpoint_every=30 --steps_per_execution=10"
).split()
# Python imports a module of this name before anything else.
HIDES_TENSORFLOW = """
import importlib.abc, sys

class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, path=None, target=None):
        if fullname.partition(".")[0] in ("tensorflow", "tensorflow_datasets"):
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)

sys.meta_path.insert(0, Hidden())
"""


@pytest.fixture(scope="module")
def hidden(tmp_path_factory) -> str:
    """A folder that hides TensorFlow from a Python that has it on its path."""
    pytest.importorskip("jax")
    folder = tmp_path_factory.mktemp("hidden")
    (folder / "sitecustomize.py").write_text(HIDES_TENSORFLOW)
    assert "No module named 'tensorflow'" in run(str(folder), "jax", "-c", "import tensorflow").stderr
    return str(folder)


def run(folder: str, backend: str, *arguments) -> subprocess.CompletedProcess:
    path = os.pathsep.join([folder, str(PROJECT)])
    environment = os.environ | {"KERAS_BACKEND": backend, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def train(hidden, digits_npz):
    """Trains on the digits into run_dir; a function of run_dir and further flags."""

    def train(run_dir, *flags, folder=hidden, backend="jax"):
        command = ["-m", "launch.train", f"--npz={digits_npz}", f"--run_dir={run_dir}", *FLAGS, *flags]
        result = run(folder, backend, *command)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    return train


@pytest.fixture(scope="module")
def finished(train, tmp_path_factory):
    """(run directory, output of the launcher)."""
    run_dir = tmp_path_factory.mktemp("runs") / "finished"
    return run_dir, train(run_dir)


@pytest.mark.slow
def test_the_launcher_trains_from_an_npz_file_on_jax_without_tensorflow(finished):
    run_dir, printed = finished
    files = {path.name for path in run_dir.iterdir()}
    assert {"config.json", "metrics.csv", "checkpoints", "convergence.png", "model.keras"} <= files
    assert "saved_model" not in files
    contents = read_config_json(run_dir)
    assert (contents["status"], contents["versions"]["keras_backend"]) == ("done", "jax")
    assert "done: step 120" in printed and "KERAS_BACKEND=tensorflow adds" in printed
    rows = read_metrics(run_dir / "metrics.csv")
    assert [row["step"] for row in rows] == [30, 60, 90, 120]
    assert rows[-1]["test_cross_entropy"] < 0.85 * rows[0]["test_cross_entropy"]
    assert rows[-1]["test_top1_error"] < 0.8  # chance is 0.9, with a standard deviation of 0.02
    assert [row["learning_rate"] for row in rows] == pytest.approx([0.1, 0.1, 0.1, 0.01])


@pytest.mark.slow
def test_the_launcher_trains_on_a_folder_of_images_on_jax_without_tensorflow(hidden, tmp_path):
    digits, run_dir = write_digits(tmp_path / "digits", 150, 50), tmp_path / "run"
    short = "--train_steps=10 --eval_every=10 --checkpoint_every=10 --decay_steps=5".split()
    short.append("--residual_initializer=fixup")
    done = run(hidden, "jax", "-m", "launch.train", f"--images={digits}", f"--run_dir={run_dir}", *FLAGS, *short)
    assert done.returncode == 0, done.stdout + done.stderr
    assert read_config_json(run_dir)["class_names"] == sorted(DIGITS)
    found, (row,) = evaluate(run_dir), read_metrics(run_dir / "metrics.csv")
    assert found["num_examples"] == 50 and found["top1_error"] == pytest.approx(row["test_top1_error"], abs=0.021)


@pytest.mark.slow
def test_resumed_at_step_60_it_ends_bit_identical_on_jax(finished, train, tmp_path):
    """The state after kill -9 at step 80, except that metrics.csv has more rows."""
    run_dir = shutil.copytree(finished[0], tmp_path / "run")
    for step in (90, 120):
        (run_dir / "checkpoints" / f"step_{step:08d}.npz").unlink()
    for path in ("model.keras", "convergence.png"):
        (run_dir / path).unlink()
    (run_dir / "config.json").write_text(json.dumps(read_config_json(run_dir) | {"status": "running"}))
    kept = (run_dir / "checkpoints" / "step_00000060.npz").stat().st_mtime_ns
    train(run_dir)
    assert_same_variables(run_dir, finished[0], STEPS)
    assert (run_dir / "checkpoints" / "step_00000060.npz").stat().st_mtime_ns == kept  # not trained from 0 again
    assert (run_dir / "model.keras").exists()
    rows, others = (read_metrics(path / "metrics.csv") for path in (run_dir, finished[0]))
    for row, other in zip(rows, others, strict=True):
        # The file has seven digits, of which a mean over steps may round the last one the other way.
        assert row | {"images_per_second": 0} == pytest.approx(other | {"images_per_second": 0}, rel=1e-6)


@pytest.mark.slow
def test_the_same_command_under_tensorflow_adds_the_saved_model_to_a_run_of_jax(finished, train):
    run_dir, _ = finished
    before = final_variables(run_dir, STEPS)
    printed = train(run_dir, folder=str(PROJECT), backend="tensorflow")
    assert "saved_model" in printed
    assert all(np.array_equal(array, before[name]) for name, array in final_variables(run_dir, STEPS).items())
    last = read_metrics(run_dir / "metrics.csv")[-1]
    result = evaluate(str(run_dir / "saved_model"))
    assert result["num_examples"] == 200
    # Two backends round differently; one image may lie on the border.
    assert abs(result["top1_error"] - last["test_top1_error"]) < 1.5 / 200
