"""Runs of commands that the output tests share: small images, a run on them, and its network in plain Keras."""

import json
import pathlib
from typing import NamedTuple

import keras
import numpy as np
import pytest
from launching import launched
from outputs.references import figures_saved, read_table, table_1

from identity_matters.data.digits import mnist_sample
from identity_matters.model import ModelConfig, all_conv_resnet

SHAPE, STEM, WIDTHS, BLOCKS = (8, 8, 1), 6, (6, 8), (3, 1)
NETWORK = ["--stem_width=6", "--widths=6,8", "--blocks_per_stage=3,1", "--residual_initializer=standard"]
# Whole batches of all 40 examples that are trained on, so that their order does not count.
TRAINED_ON = 40
RUN = [
    *NETWORK, f"--train_examples={TRAINED_ON}", f"--batch_size={TRAINED_ON}", "--crop_padding=0", "--norandom_flip",
    "--weight_decay=0.02", "--learning_rate=0.3", "--schedule=piecewise", "--decay_steps=2,5", "--decay_factor=0.5",
    "--warmup_steps=2", "--clip_norm=0.5", "--train_steps=6", "--eval_every=2", "--checkpoint_every=2", "--seed=3",
]  # fmt: skip


class Finished(NamedTuple):
    """The results of a command: its run directory, its output, and its saved figures, by name."""

    run_dir: pathlib.Path
    out: str
    figures: dict

    def rows(self, name):
        """The rows of its NAME.csv."""
        return read_table(self.run_dir / f"{name}.csv")


def finished(command, run_dir, *flags) -> Finished:
    """Runs a command to its end; its figures are kept, and their files left empty."""
    with figures_saved() as figures:
        code, out, err = launched(command, f"--run_dir={run_dir}", *flags)
    assert code == 0, err
    return Finished(run_dir, out, figures)


def shrunken_digits():
    """Digits of 8 × 8 pixels: 240 training and 130 test images uint8 [n, 8, 8, 1], and labels."""
    data = mnist_sample()
    shrink = lambda images: images[:, 2:26, 2:26].reshape(-1, 8, 3, 8, 3, 1).mean((2, 4)).astype(np.uint8)  # noqa: E731
    train, test = shrink(data.train_images[:240]), shrink(data.test_images[:130])
    return train, data.train_labels[:240], test, data.test_labels[:130]


small_digits = pytest.fixture(scope="session")(shrunken_digits)


@pytest.fixture(scope="session")
def small_npz(small_digits, tmp_path_factory):
    """The file of small_digits, as --npz takes it."""
    path = tmp_path_factory.mktemp("data") / "small.npz"
    names = ("train_images", "train_labels", "test_images", "test_labels")
    np.savez(path, **dict(zip(names, small_digits)))
    return path


@pytest.fixture(scope="session")
def start_run(small_npz, tmp_path_factory):
    """A function that runs launch.train with flags beside RUN's -> its directory, its output in run_dir.out."""

    def start(*flags):
        run_dir = tmp_path_factory.mktemp("runs") / "run"
        run = finished("train", run_dir, f"--npz={small_npz}", *RUN, *flags)
        (run_dir.parent / "run.out").write_text(run.out)
        return run_dir

    return start


@pytest.fixture(scope="session")
def momentum_run(start_run):
    """The directory of a finished run by momentum SGD. Read only."""
    return start_run()


@pytest.fixture(scope="session")
def held_out_run(start_run):
    """The directory of a finished run by Muon, evaluated on the last 70 training images. Read only."""
    muon = ["--optimizer=muon", "--schedule=linear", "--newton_schulz_steps=3", "--decoupled_weight_decay=0.2"]
    return start_run(*muon, "--learning_rate=0.05", "--validation_examples=70")


@pytest.fixture
def plain_network():
    """Table 1's network of these runs in plain Keras, with the weights of a list of arrays."""

    def build(weights):
        network = table_1(SHAPE, STEM, WIDTHS, BLOCKS, classes=10)
        network.set_weights(weights)
        return network

    return build


def fields_of(run_dir) -> dict:
    """The config in a run's config.json: fields of the run at the top, "model" and "data" beside them."""
    return json.loads((run_dir / "config.json").read_text())["config"]


def initial_weights(run_dir) -> list[np.ndarray]:
    """The weights that a run of these flags starts with: drawn by its seed, or those of another run."""
    config = fields_of(run_dir)
    if config["init_from"]:
        return keras.saving.load_model(f"{config['init_from']}/model.keras").get_weights()
    model = ModelConfig(
        SHAPE, 10, stem_width=STEM, widths=WIDTHS, blocks_per_stage=BLOCKS, residual_initializer="standard"
    )
    return all_conv_resnet(model, config["seed"]).get_weights()
