"""Fixtures of the tests of the network."""

import dataclasses
import functools

import numpy as np
import pytest
from network_in_numpy import SMALL

from identity_matters import training
from identity_matters.data import digits
from identity_matters.model import PRESETS, all_conv_resnet
from identity_matters.runs import metrics_log


@pytest.fixture(scope="session", autouse=True)
def digits_read_once():
    """Keeps the embedded digits, whose text takes a tenth of a tiny run's time to read."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(digits, "mnist_sample", functools.cache(digits.mnist_sample))
        yield


@pytest.fixture(scope="session")
def short(tiny_config):
    """Twelve steps with two evaluations and three checkpoints; the image's shape is to be taken from the data."""
    model = dataclasses.replace(tiny_config.model, image_shape=(32, 32, 3))
    steps = {"train_steps": 12, "decay_steps": (8,), "eval_every": 6, "checkpoint_every": 3}
    return dataclasses.replace(tiny_config, model=model, **steps)


@pytest.fixture(scope="session")
def short_run(short, tmp_path_factory):
    """The directory of a finished run of short. Read only."""
    run_dir = tmp_path_factory.mktemp("runs") / "short"
    training.train(short, run_dir)
    return run_dir


@pytest.fixture(autouse=True)
def without_pictures(monkeypatch):
    """Draws no figure for TensorBoard at each evaluation; runs of fixtures of a whole file or session have theirs."""
    monkeypatch.setattr(metrics_log, "figure_to_array", lambda figure: np.zeros((2, 2, 3), np.uint8))
    monkeypatch.setattr(metrics_log, "convergence_figure", lambda *_, **__: None)


@pytest.fixture
def without_results(monkeypatch):
    """Skips the export at the end of a run, which takes longer than a few steps."""
    monkeypatch.setattr("identity_matters.run.write_results", lambda *_: None)


@pytest.fixture(scope="session")
def cifar10():
    """Table 1's network. Read only."""
    return all_conv_resnet(PRESETS["cifar10"])


@pytest.fixture(scope="module")
def images():
    """Images for networks of SMALL."""
    return np.random.default_rng(0).standard_normal((3, *SMALL.image_shape), np.float32)
