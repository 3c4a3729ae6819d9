"""launch.train: every number that a run prints, draws and writes, against training by hand in NumPy and plain Keras."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from outputs.conftest import TRAINED_ON, fields_of, initial_weights
from outputs.references import cross_entropy, error, kernels_of, read_columns, standardized, train_by_hand
from outputs.words import TRAIN
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

# TensorBoard's tag of each column of metrics.csv but the step.
TAGS = {
    "epoch": "optimizer/epoch", "learning_rate": "optimizer/learning_rate", "loss": "loss/train",
    "train_cross_entropy": "loss/train_cross_entropy", "train_top1_error": "error/train_top1",
    "train_top5_error": "error/train_top5", "test_cross_entropy": "loss/test_cross_entropy",
    "test_top1_error": "error/test_top1", "test_top5_error": "error/test_top5",
    "images_per_second": "speed/images_per_second", "train_flops": "speed/train_flops",
    "kernel_norm": "norm/kernels", "kernel_norm_stem": "norm/kernels_stem",
    "kernel_norm_stage1": "norm/kernels_stage1", "kernel_norm_stage2": "norm/kernels_stage2",
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(start_run, momentum_run, held_out_run):
    """Directories of runs by the names of their optimisers; cosine starts with the weights of momentum."""
    nesterov = start_run("--optimizer=nesterov", "--schedule=exponential", "--decay_steps=2", "--warmup_steps=0")
    keras_momentum = start_run("--optimizer=keras_momentum")
    cosine = start_run("--schedule=cosine", "--clip_norm=0", f"--init_from={momentum_run}")
    runs = {"momentum": momentum_run, "keras_momentum": keras_momentum, "nesterov": nesterov}
    return runs | {"muon": held_out_run, "cosine": cosine}


def evaluated_images(run_dir, small_digits):
    """The test images, or the last training images that the run held out."""
    held_out = fields_of(run_dir)["data"]["validation_examples"]
    images, labels = small_digits[2:] if not held_out else (part[-held_out:] for part in small_digits[:2])
    return standardized(images), labels


def flops_of_update(batch_size: int) -> float:
    """2k²ab for each output pixel of a convolution, three times: forward, and the gradients of kernel and input.

    The first convolution needs no gradient of its input.
    """
    stem = 2 * 9 * 1 * 6 * 64
    others = [(6, 6, 64)] * 6 + [(6, 8, 16), (8, 8, 16)]
    return batch_size * (2 * stem + 3 * sum(2 * 9 * a * b * pixels for a, b, pixels in others))


@pytest.mark.parametrize("name", ["momentum", "keras_momentum", "nesterov", "muon", "cosine"])
def test_every_column_of_metrics_csv_is_that_of_training_by_hand(runs, small_digits, plain_network, name):
    run_dir, table, config = runs[name], read_columns(runs[name] / "metrics.csv"), fields_of(runs[name])
    assert list(table) == ["step", *TAGS] and table["step"] == [2, 4, 6]
    images, labels = standardized(small_digits[0][:TRAINED_ON]), small_digits[1][:TRAINED_ON]
    tested = evaluated_images(run_dir, small_digits)
    for row, step in enumerate(table["step"]):
        plain = plain_network(initial_weights(run_dir))
        history = train_by_hand(plain, images, labels, config, int(step))
        last_two = {key: np.mean([entry[key] for entry in history[-2:]]) for key in history[0]}
        logits, norms = plain(tested[0]), [np.linalg.norm(kernel) for kernel in kernels_of(plain)]
        expected = {
            "epoch": step, "learning_rate": history[-1]["learning_rate"], "loss": last_two["loss"],
            "train_cross_entropy": last_two["cross_entropy"], "train_top1_error": last_two["top1"],
            "train_top5_error": last_two["top5"], "test_cross_entropy": cross_entropy(logits, tested[1]),
            "test_top1_error": error(logits, tested[1]), "test_top5_error": error(logits, tested[1], 5),
            "train_flops": step * flops_of_update(TRAINED_ON),
            "kernel_norm": np.mean(norms), "kernel_norm_stem": norms[0],
            "kernel_norm_stage1": np.mean(norms[1:7]), "kernel_norm_stage2": np.mean(norms[7:]),
        }  # fmt: skip
        found = {column: values[row] for column, values in table.items() if column in expected}
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)
    network = keras.saving.load_model(run_dir / "model.keras")  # the weights after the last update
    for trained, by_hand in zip(network.get_weights(), plain.get_weights()):
        np.testing.assert_allclose(trained, by_hand, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name, split", [("momentum", "test"), ("muon", "held-out")])
def test_the_printed_lines_have_the_numbers_of_metrics_csv(runs, name, split):
    table, printed = read_columns(runs[name] / "metrics.csv"), (runs[name].parent / "run.out").read_text()
    lines = [tuple(map(float, found)) for found in re.findall(TRAIN["line"].format(split=TRAIN[split]), printed)]
    scales = {"step": 1, "loss": 1, "train_top1_error": 100, "test_top1_error": 100, "images_per_second": 1}
    # Half a unit in the last printed place, and what metrics.csv rounds off.
    tolerances = [0.5, 0.5e-4, 0.5e-2, 0.5e-2, 0.5]
    for line, *values in zip(lines, *(table[column] for column in scales), strict=True):
        for found, value, scale, tolerance in zip(line, values, scales.values(), tolerances):
            assert found == pytest.approx(value * scale, rel=1e-6, abs=1.01 * tolerance), printed
    (done,) = re.findall(TRAIN["done"].format(split=TRAIN[split]), printed)
    last = [100 * table[column][-1] for column in ("test_top1_error", "test_top5_error")]
    assert [*map(float, done)] == pytest.approx([6, *last], abs=0.00501)


def test_tensorboard_has_each_column_at_its_step_and_the_kernels(momentum_run):
    table, events = read_columns(momentum_run / "metrics.csv"), EventAccumulator(str(momentum_run)).Reload()
    scalars = {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    assert {tag for tag in scalars if not tag.startswith("batches/")} == set(TAGS.values())
    for column, tag in TAGS.items():
        assert [step for step, _ in scalars[tag]] == table["step"]
        np.testing.assert_allclose([value for _, value in scalars[tag]], table[column], rtol=1e-6)
    network = keras.saving.load_model(momentum_run / "model.keras")
    kernels = {layer.name: layer.kernel.numpy() for layer in network.layers if isinstance(layer, keras.layers.Conv2D)}
    assert set(events.Tags()["histograms"]) == {f"weights/{name}" for name in kernels}
    for name, kernel in kernels.items():
        drawn = events.Histograms(f"weights/{name}")[-1]
        found = [drawn.step, *(getattr(drawn.histogram_value, part) for part in ("num", "min", "max", "sum"))]
        assert found == pytest.approx([6, kernel.size, kernel.min(), kernel.max(), kernel.sum()], rel=1e-4, abs=1e-4)


def test_tensorboard_has_the_batches_between_evaluations(start_run, small_digits, plain_network):
    run_dir = start_run("--log_every=1", "--eval_every=6", "--checkpoint_every=6")
    images, labels = standardized(small_digits[0][:TRAINED_ON]), small_digits[1][:TRAINED_ON]
    history = train_by_hand(plain_network(initial_weights(run_dir)), images, labels, fields_of(run_dir), 6)
    columns = {"loss": "loss", "learning_rate": "learning_rate", "gradient_norm": "gradient_norm"}
    columns |= {"top1_error": "top1", "top5_error": "top5"}
    events = EventAccumulator(str(run_dir)).Reload()
    for name, key in columns.items():
        points = events.Scalars(f"batches/{name}")
        assert [point.step for point in points] == [1, 2, 3, 4, 5, 6]
        np.testing.assert_allclose(
            [point.value for point in points], [row[key] for row in history], rtol=1e-4, atol=1e-6
        )
    (picture,) = events.Images("pictures/input_images")
    assert (picture.step, picture.width) == (0, 8 * small_digits[0].shape[2])


def test_both_exports_take_raw_images_to_the_logits_of_the_trained_network(momentum_run, small_digits, plain_network):
    images, exported = small_digits[2][:20], keras.saving.load_model(momentum_run / "model.keras")
    expected = plain_network(exported.get_weights())(standardized(images)).numpy()
    np.testing.assert_allclose(exported(images.astype(np.float32)), expected, rtol=1e-3, atol=1e-5)
    saved_model = tf.saved_model.load(str(momentum_run / "saved_model"))
    outputs = saved_model.signatures["serving_default"](images=tf.constant(images, tf.float32))
    np.testing.assert_allclose(outputs["logits"], expected, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(outputs["probabilities"], tf.nn.softmax(expected), rtol=1e-4)
