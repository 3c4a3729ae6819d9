"""Fixtures that several files share: a small configuration, the run that it leaves, a data file, a launcher."""

import contextlib
import os
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before anything imports TensorFlow
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:  # each program under JAX would compile the same again, for seconds
    COMPILED = tempfile.TemporaryDirectory()
    os.environ |= {"JAX_COMPILATION_CACHE_DIR": COMPILED.name, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}

import numpy as np
import pytest
from launching import launched

from identity_matters.config import DataConfig, ModelConfig, TrainConfig


@pytest.fixture(scope="session", autouse=True)
def state_folder(tmp_path_factory):
    """The folder of the key that signs SavedModels: not the developer's own."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture
def screen_style():
    """Tests draw in the style in which figures are saved."""
    from identity_matters.runs.figure_style import styled

    with styled():
        yield


@pytest.fixture(scope="session")
def tiny_config() -> TrainConfig:
    """Two stages of one block, for the embedded digits: well under a second of training."""
    return TrainConfig(
        model=ModelConfig(image_shape=(28, 28, 1), stem_width=4, widths=(4, 8), blocks_per_stage=(1, 1)),
        data=DataConfig("mnist_sample", train_examples=200, eval_examples=50),
        crop_padding=2,
        train_steps=4,
        batch_size=16,
        decay_steps=(3,),
        eval_every=4,
        checkpoint_every=4,
    )


@pytest.fixture(scope="session")
def tiny_run(tiny_config, tmp_path_factory):
    """The directory of a finished run of tiny_config. Read only."""
    from identity_matters import training

    run_dir = tmp_path_factory.mktemp("runs") / "trained"
    training.train(tiny_config, str(run_dir))
    return run_dir


@pytest.fixture(scope="session")
def tiny_study(tmp_path_factory):
    """The directory of a finished study of Figure 5 at smoke size; its output is in run_dir.out, .err. Read only."""
    from tiny_studies import run_study

    run_dir = tmp_path_factory.mktemp("studies") / "study"
    run_study(run_dir, "5")
    return run_dir


@pytest.fixture(scope="session")
def tiny_spectrum(tiny_run, tmp_path_factory):
    """The directory of a finished spectrum of tiny_run; its output is in run_dir.out, .err. Read only."""
    from launch import hessian_spectrum

    run_dir = tmp_path_factory.mktemp("spectra") / "spectrum"
    config = hessian_spectrum.SpectrumConfig(str(tiny_run), examples=60, batch_size=30, order=20, num_vectors=2)
    with (
        open(f"{run_dir}.out", "w") as out,
        open(f"{run_dir}.err", "w") as err,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        hessian_spectrum.main(config, str(run_dir))
    return run_dir


@pytest.fixture(scope="session")
def digits_npz(tmp_path_factory):
    """1,000 real training digits and 200 test digits in a file such as --npz takes."""
    from identity_matters.data.digits import mnist_sample

    data, path = mnist_sample(), tmp_path_factory.mktemp("data") / "digits.npz"
    train = {"train_images": data.train_images[:1000, ..., 0], "train_labels": data.train_labels[:1000]}
    np.savez(path, **train, test_images=data.test_images[:200, ..., 0], test_labels=data.test_labels[:200])
    return path


@pytest.fixture
def launch():
    """launch("train", "--flag=value", …) -> (exit code, stdout, stderr), in this process."""
    return launched
