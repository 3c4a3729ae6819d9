"""The .keras files of strangers: no layer takes more than the file holds, and Keras reads what was looked at."""

import io
import json
import shutil
import tracemalloc
import zipfile

import h5py
import keras
import numpy as np
import pytest
from refusals import refused

from identity_matters.classifier import load_classifier
from identity_matters.config import ModelConfig
from identity_matters.evaluation import evaluate
from identity_matters.model import all_conv_resnet
from identity_matters.safe_loading import load_network

WEIGHTS = "model.weights.h5"


@pytest.fixture
def path(tiny_run, tmp_path):
    """A copy of a model.keras of a few kilobytes."""
    shutil.copy(tiny_run / "model.keras", tmp_path / "model.keras")
    return tmp_path / "model.keras"


def contents(path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def rewrite(path, members, compression=zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members:
            archive.writestr(name, content)


def described(path, change, weights=None) -> None:
    """Changes the description of the network, a dict, and perhaps its weights, an open HDF5 file."""
    found = contents(path)
    config = json.loads(found["config.json"])
    change(config["config"]["layers"])
    found["config.json"] = json.dumps(config).encode()
    if weights:
        stream = io.BytesIO(found[WEIGHTS])
        with h5py.File(stream, "r+") as file:
            weights(file)
        found[WEIGHTS] = stream.getvalue()
    rewrite(path, found.items())


def set_units(number):
    return lambda layers: layers[-1]["config"].update(units=number)


def fill(file):
    """The last layer's weights as a declaration alone: 12 GB that HDF5 would make up."""
    del file["layers/dense/vars/0"]
    file["layers/dense/vars"].create_dataset("0", (8, 400_000_000), "f4", chunks=(1, 1000), fillvalue=1)


def set_images(*shape):
    return lambda layers: layers[0]["config"].update(batch_shape=[None, *shape])


def first_convolution(layers):
    return next(layer for layer in layers if layer["class_name"] == "Conv2D")


HUGE = {
    "a dense layer": lambda path: described(path, set_units(400_000_000)),
    "a convolution": lambda path: described(
        path, lambda layers: first_convolution(layers)["config"].update(filters=400_000_000)
    ),
    "with weights to fit": lambda path: described(path, set_units(400_000_000), fill),
    "many layers": lambda path: described(path, lambda layers: layers.extend([first_convolution(layers)] * 3)),
    "images": lambda path: described(path, set_images(10**6, 10**6, 1)),
    "text": lambda path: rewrite(path, (contents(path) | {"config.json": b"[" * 10**7}).items()),
    "a bomb": lambda path: rewrite(path, (contents(path) | {WEIGHTS: bytes(10**8)}).items(), zipfile.ZIP_DEFLATED),
}


@pytest.mark.parametrize("damage", HUGE)
def test_a_small_file_does_not_take_the_memory(path, damage):
    HUGE[damage](path)
    tracemalloc.start()
    try:
        message = refused(load_network, str(path))
        assert tracemalloc.get_traced_memory()[1] < 10**8
    finally:
        tracemalloc.stop()
    assert message.startswith(f"cannot load {path}: ") and len(message) - len(str(path)) < 200
    assert "it is damaged" not in message  # which allocating it comes to as well
    assert refused(evaluate, path, "mnist_sample") == message


@pytest.mark.parametrize(
    "change",
    [
        lambda layers: layers.pop(3),
        lambda layers: layers[2]["config"].update(strides=[7, 7, 7]),
        lambda layers: layers[-1]["config"].update(kernel_initializer={"class_name": "Zeros", "config": {"x": 1}}),
        lambda layers: layers[-1].update(inbound_nodes=[]),
    ],
)
def test_no_sentence_of_keras_is_shown(path, change):
    described(path, change)
    assert refused(load_network, str(path)) == f"cannot load {path}: it is damaged, or not a network of this project"


@pytest.mark.parametrize("extra", ["config.json", "assets/x", "../../evil", "model.weights.npz"])
def test_members_that_come_twice_or_are_of_no_network_are_refused(path, extra):
    with pytest.warns(UserWarning) if extra == "config.json" else pytest.MonkeyPatch.context():
        rewrite(path, [*contents(path).items(), (extra, b"{}")])
    assert "each once, and no more" in refused(load_network, str(path))


LINKS = {
    "soft": lambda file, name: file.__setitem__(name, h5py.SoftLink("/layers")),
    "external": lambda file, name: file.__setitem__(name, h5py.ExternalLink("/dev/zero", "/x")),
    "a file": lambda file, name: file.create_dataset(name, (8, 10), "f4", external=[("/dev/zero", 0, 320)]),
}


@pytest.mark.parametrize("link", LINKS)
def test_weights_elsewhere_are_not_read(path, link):
    def change(file):
        del file["layers/dense/vars/0"]
        LINKS[link](file, "layers/dense/vars/0")

    described(path, lambda layers: None, change)
    assert f"cannot load {path}: " in refused(load_network, str(path))


def test_keras_reads_what_was_looked_at_though_the_file_is_exchanged(path, monkeypatch):
    load, expected = keras.models.load_model, load_network(str(path)).get_weights()

    def exchange_and_load(*arguments, **options):
        described(path, set_units(400_000_000))
        return load(*arguments, **options)

    monkeypatch.setattr(keras.models, "load_model", exchange_and_load)
    for found, array in zip(load_network(str(path)).get_weights(), expected, strict=True):
        np.testing.assert_array_equal(found, array)
    assert "needs weights (8, 400000000), and it holds none" in refused(load_network, str(path))


def test_large_layers_are_evaluated_on_fewer_images_at_once(tmp_path):
    config = ModelConfig(image_shape=(1024, 1024, 1), stem_width=16, widths=(16,), blocks_per_stage=(1,))
    all_conv_resnet(config).save(tmp_path / "model.keras")
    assert load_classifier(tmp_path / "model.keras").max_batch == 2**28 // 2**24
