"""launch.classify: the class and the probability of each photo, and the names of the classes shown."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from image_folders import write
from outputs.conftest import finished

from identity_matters import pretrained

# The classes of CIFAR-10 in the order of their numbers: batches.meta.txt of cs.toronto.edu/~kriz/cifar.html, and
# cifar10/3.0.2/label.labels.txt of TensorFlow Datasets.
CIFAR10 = "airplane automobile bird cat deer dog frog horse ship truck".split()


def picture(name: str, seed: int) -> np.ndarray:
    """A noisy picture uint8 [8, 8] of a class, in which one look tells it from the others."""
    ramp = np.arange(8) * 30
    shapes = {"ramp": ramp[None] + 0 * ramp[:, None], "hill": ramp[:, None] + 0 * ramp, "dots": 240 * np.eye(8)}
    return (shapes[name] * 0.9 + np.random.default_rng(seed).integers(0, 25, (8, 8))).astype(np.uint8)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder of 60 pictures to train on and 12 to test on, of three classes; `hill` comes before `ramp`."""
    folder = tmp_path_factory.mktemp("photos")
    for number, name in enumerate(("ramp", "dots", "hill")):
        for i in range(24):
            part = "train" if i < 20 else "test"
            write(folder / part / name / f"{i:02}.png", picture(name, 100 * number + i))
    return folder


@pytest.fixture(scope="module")
def photo_run(photos, tmp_path_factory):
    flags = ["--stem_width=4", "--widths=6,8", "--blocks_per_stage=1,1", "--train_steps=50", "--decay_steps=39"]
    flags += ["--eval_every=50", "--crop_padding=0", "--batch_size=20", "--learning_rate=0.02"]
    return finished("train", tmp_path_factory.mktemp("runs"), f"--images={photos}", *flags).run_dir


def softmax(logits) -> np.ndarray:
    exponentials = np.exp(np.asarray(logits, float) - np.max(logits, 1, keepdims=True))
    return exponentials / exponentials.sum(1, keepdims=True)


def test_each_photo_is_named_as_its_folder_with_its_probability(launch, photos, photo_run):
    files = sorted((photos / "test").rglob("*.png"))
    images = np.stack([tf.io.decode_png(file.read_bytes()).numpy() for file in files]).astype(np.float32)
    probabilities = softmax(keras.saving.load_model(photo_run / "model.keras")(images)).max(1)
    code, out, _ = launch("classify", f"--saved_model={photo_run}", photos / "test")
    lines = [line.split("  ") for line in out.splitlines()]
    assert code == 0 and [line[0] for line in lines] == [str(file) for file in files]
    assert [line[1] for line in lines] == [file.parent.name for file in files]
    assert [line[2] for line in lines] == [f"{100 * probability:.1f} %" for probability in probabilities]
    code, out, _ = launch("classify", f"--saved_model={photo_run}", "--json", photos / "test")
    answers = [json.loads(line) for line in out.splitlines()]
    assert [answer["class"] for answer in answers] == [line[1] for line in lines]
    assert [answer["probability"] for answer in answers] == pytest.approx(probabilities, rel=1e-4)
    assert np.std(probabilities) > 1e-4, probabilities


def images_of_all_classes(network) -> np.ndarray:
    """An image uint8 [32, 32, 3] for each class, changed until the network takes it for that class."""
    images = tf.Variable(np.random.default_rng(0).uniform(60, 190, (10, 32, 32, 3)).astype(np.float32))
    for _ in range(100):
        with tf.GradientTape() as tape:
            logits = network(images)
            loss = keras.losses.sparse_categorical_crossentropy(np.arange(10), logits, from_logits=True)
        if (tf.argmax(logits, 1).numpy() == np.arange(10)).all() and tf.reduce_max(loss) < 0.1:
            return np.round(images).astype(np.uint8)
        images.assign(tf.clip_by_value(images - 3 * tf.sign(tape.gradient(loss, images)), 0, 255))
    raise AssertionError("no images found")


@pytest.mark.parametrize("name", ["cifar10_fast", pytest.param("cifar10", marks=pytest.mark.slow)])
def test_the_class_names_are_cifar_10s_in_the_order_of_its_labels(launch, tmp_path, name):
    network = pretrained.load(name)
    for label, image in enumerate(images_of_all_classes(network)):
        write(tmp_path / f"{label}.png", image)
    code, out, _ = launch("classify", f"--pretrained={name}", tmp_path)
    assert code == 0 and [line.split("  ")[1] for line in out.splitlines()] == CIFAR10
