"""train(…) in Python: epochs, images a second, the rows that callbacks get, and the crops, counted by hand."""

import time

import keras
import numpy as np
import pytest
from outputs.conftest import BLOCKS, STEM, WIDTHS, shrunken_digits
from outputs.references import cross_entropy, error, read_columns

from identity_matters.training import PRESETS, train, with_fields


@pytest.fixture(scope="module")
def small_digits():
    return shrunken_digits()


class Clock(keras.callbacks.Callback):
    """Half a second goes by in each update and none elsewhere; keeps what training tells callbacks."""

    def __init__(self):
        super().__init__()
        self.now, self.means, self.rows = 100.0, [], []

    def on_train_batch_begin(self, batch, logs=None):
        self.now += 0.5

    def on_train_batch_end(self, batch, logs=None):
        self.means.append(logs["cross_entropy"])

    def on_epoch_end(self, epoch, logs=None):
        self.rows.append(logs)


def run_in_python(small_digits, folder, clock, count, **changes) -> dict:
    """The last row of a run whose weights do not move, on the first `count` training images."""
    model = {"stem_width": STEM, "widths": WIDTHS, "blocks_per_stage": BLOCKS, "residual_initializer": "standard"}
    fixed = {"learning_rate": 1e-30, "decay_steps": (), "weight_decay": 0.0, "clip_norm": 0.0}
    usual = {
        "crop_padding": 0,
        "random_flip": False,
        "checkpoint_every": changes["eval_every"],
        "train_examples": count,
    }
    config = with_fields(PRESETS["mnist"], **model, **fixed, **usual | changes)
    return train(config, folder / "run", data=small_digits, callbacks=[clock])


def test_epochs_have_each_image_once_and_updates_half_a_second(small_digits, tmp_path, monkeypatch):
    clock, steps = Clock(), {"train_steps": 10, "batch_size": 4, "eval_every": 2}  # four epochs of 2.5 updates
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now)
    row = run_in_python(small_digits, tmp_path, clock, count=10, **steps)
    table = read_columns(tmp_path / "run" / "metrics.csv")
    assert table["images_per_second"] == [8] * 5  # 4 images in half a second
    assert table["epoch"] == pytest.approx([0.8, 1.6, 2.4, 3.2, 4])
    assert row == {column: pytest.approx(values[-1], rel=1e-6) for column, values in table.items()}
    columns = {"loss": "loss", "cross_entropy": "train_cross_entropy", "val_cross_entropy": "test_cross_entropy"}
    for name, column in columns.items():
        assert [logs[name] for logs in clock.rows] == pytest.approx(table[column], rel=1e-6)
    for name, column in (("top1", "train_top1_error"), ("val_top5", "test_top5_error")):
        assert [1 - logs[name] for logs in clock.rows] == pytest.approx(table[column], rel=1e-6)
    network = keras.saving.load_model(tmp_path / "run" / "model.keras")
    logits, labels = network(small_digits[0][:10].astype(np.float32)), small_digits[1][:10]
    means = [np.mean(table[f"train_{name}"]) for name in ("cross_entropy", "top1_error", "top5_error")]
    expected = [cross_entropy(logits, labels), error(logits, labels), error(logits, labels, 5)]
    assert means == pytest.approx(expected, rel=1e-4)


def test_crops_are_padded_with_zeros_and_half_of_the_images_are_flipped(small_digits, tmp_path):
    clock, num_steps = Clock(), 90
    changes = {"train_steps": num_steps, "batch_size": 1, "eval_every": num_steps}
    run_in_python(small_digits, tmp_path, clock, count=1, **changes, crop_padding=1, random_flip=True)
    means = np.array(clock.means) * np.arange(1, num_steps + 1)
    losses = np.diff(means, prepend=0)
    image, label = small_digits[0][0], small_digits[1][:1]
    padded = np.pad(image, ((1, 1), (1, 1), (0, 0)))
    crops = np.stack([padded[row : row + 8, column : column + 8] for row in range(3) for column in range(3)])
    views = np.concatenate([crops, crops[:, :, ::-1]])
    logits = keras.saving.load_model(tmp_path / "run" / "model.keras")(views.astype(np.float32)).numpy()
    possible = np.array([cross_entropy(logits[i : i + 1], label) for i in range(len(views))])
    distances = np.abs(losses[:, None] - possible)
    chosen = distances.argmin(1)
    assert distances.min(1).max() < 3e-5 and np.diff(np.sort(possible)).min() > 6e-5
    assert len(set(chosen % 9)) == 9 and len(set(chosen)) > 14
    assert 30 <= np.sum(chosen >= 9) <= 60  # of 90; the probability of this is 0.999
