"""Files from strangers run no code: .keras, .npz, images, TFDS features; a SavedModel only on request."""

import io
import json
import shutil
import sys
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from gradient_sets import IdentityTinyJpeg
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loaded import load
from PIL import Image
from refusals import refused

from identity_matters.config import DataConfig
from identity_matters.data.folder import decode
from identity_matters.data.source import open_source
from identity_matters.errors import UserError
from identity_matters.evaluation import evaluate
from identity_matters.untrusted import load_network, open_image

IMAGES, LABELS = np.zeros((4, 28, 28, 1), np.float32), np.arange(4)
FUZZ = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@keras.saving.register_keras_serializable("strangers")
class Foreign(keras.layers.Layer):
    def call(self, inputs):
        return inputs


def saved(path, function):
    """A SavedModel with our signature, that calls a function first."""

    @tf.function(input_signature=[tf.TensorSpec([None, 28, 28, 1], tf.float32, name="images")])
    def serve(images):
        images = tf.ensure_shape(function(images), [None, 28, 28, 1])
        logits = tf.reshape(images, [-1, 784])[:, :10]
        return {"logits": logits, "probabilities": tf.nn.softmax(logits)}

    tf.saved_model.save(tf.Module(), str(path), signatures={"serving_default": serve})
    return str(path)


@pytest.fixture
def acting(tmp_path):
    """A function that writes a file wherever a SavedModel calls it, and that file."""
    written = tmp_path / "written"

    def write_file(images):
        tf.io.write_file(str(written), "x")
        return images

    return write_file, written


def test_a_saved_model_is_not_loaded_unless_it_is_trusted(tmp_path, acting, monkeypatch):
    function, written = acting
    path = saved(tmp_path / "model", function)
    with monkeypatch.context() as patched:
        patched.setattr(tf.saved_model, "load", lambda *_: pytest.fail("it was loaded"))
        assert f"{path} is not as you exported it" in refused(evaluate, path, (IMAGES, LABELS))
    assert not written.exists()
    assert evaluate(path, (IMAGES, LABELS), trust_saved_model=True)["num_examples"] == 4 and written.exists()


def test_a_foreign_saved_model_in_a_run_is_not_loaded_nor_replaced_by_model_keras(tiny_run, tmp_path, acting):
    function, written = acting
    run = shutil.copytree(tiny_run, tmp_path / "run")
    shutil.rmtree(run / "saved_model")
    saved(run / "saved_model", function)
    for path in (f"{run}/saved_model/", run):
        assert "--trust_saved_model" in refused(evaluate, path, "mnist_sample")
    assert not written.exists()


def test_a_layer_of_no_network_of_this_project_is_not_made(tmp_path):
    x = keras.Input((8, 8, 1))
    keras.Model(x, Foreign()(x)).save(tmp_path / "model.keras")
    message = refused(load_network, str(tmp_path / "model.keras"))
    assert message.startswith(f"cannot load {tmp_path}/model.keras: ") and "Foreign" in message
    nested = {"class_name": "Dense", "config": {"activation": {"class_name": "__lambda__", "config": "code"}}}
    with zipfile.ZipFile(tmp_path / "nested.keras", "w") as archive:
        archive.writestr("config.json", json.dumps(nested))
    assert "__lambda__" in refused(load_network, str(tmp_path / "nested.keras"))


def test_an_npz_file_with_pickles_is_rejected(tmp_path):
    arrays = dict.fromkeys(("x_train", "y_train", "x_test", "y_test"), np.array([print], object))
    np.savez(tmp_path / "own.npz", **arrays)
    message = refused(open_source, DataConfig(npz=str(tmp_path / "own.npz")))
    assert message.startswith(f"cannot read {tmp_path}/own.npz as an .npz file: ") and "allow_pickle" in message


def encoded(image: Image.Image, kind: str) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind)
    return stream.getvalue()


@pytest.mark.parametrize(
    "content, words",
    [
        (encoded(Image.new("RGB", (4, 4)), "GIF"), "not a PNG or JPEG"),
        (encoded(Image.new("1", (16_384, 4_097)), "PNG"), "4097x16384 pixels, more than"),
        (encoded(Image.new("1", (60_000, 60_000)), "PNG"), "declares far more than the 67,108,864 pixels"),
        (encoded(Image.fromarray(np.zeros((4, 4), np.uint16)), "PNG"), "16 bits"),
    ],
)
def test_images_of_other_formats_sizes_and_depths_are_rejected(content, words):
    assert words in refused(open_image, content)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    path = tmp_path_factory.mktemp("tfds") / "data"
    IdentityTinyJpeg(data_dir=str(path)).download_and_prepare()
    return path


@pytest.mark.parametrize(
    "features",
    [
        '{"pythonClassName": "evil.Feature", "featuresDict": {}}',
        '{"python_class_name": "evil.Feature", "featuresDict": {}}',
        '{"type": "tensorflow_datasets_evil.Feature", "content": {}}',
    ],
)
def test_the_module_that_a_features_json_names_is_not_imported(prepared, tmp_path, monkeypatch, features):
    """Without the check TFDS imports it from the current folder."""
    shutil.copytree(prepared, tmp_path / "data")
    (tmp_path / "data" / "identity_tiny_jpeg" / "1.0.0" / "features.json").write_text(features)
    for name in ("evil", "tensorflow_datasets_evil"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    with pytest.raises(ValueError):
        tfds.builder("identity_tiny_jpeg:1.0.0", data_dir=str(tmp_path / "data"))
    assert (tmp_path / "ran").exists()
    (tmp_path / "ran").unlink()
    for name in ("evil", "tensorflow_datasets_evil"):
        sys.modules.pop(name, None)
    for dataset in ("identity_tiny_jpeg:1.0.0", "identity_tiny_jpeg"):
        config = DataConfig(dataset, str(tmp_path / "data"), image_size=8)
        assert "not TFDS's own" in refused(load, config)
    assert not (tmp_path / "ran").exists()


# The five fuzz tests: whatever the bytes, a reader returns or raises the one error of its contract.


def damaged(whole: bytes) -> st.SearchStrategy[bytes]:
    """A file with up to 20 bytes changed, inserted or cut at some place."""
    at = st.integers(0, len(whole))
    return st.builds(lambda i, j, new: whole[: min(i, j)] + new + whole[max(i, j) :], at, at, st.binary(max_size=20))


def _npz() -> bytes:
    stream = io.BytesIO()
    x = np.zeros((4, 2, 2), np.uint8)
    np.savez_compressed(stream, x_train=x, y_train=np.arange(4), x_test=x, y_test=np.arange(4))
    return stream.getvalue()


@FUZZ
@given(content=damaged(_npz()))
def test_any_npz_file_is_read_or_rejected(tmp_path, content):
    path = tmp_path / "own.npz"
    path.write_bytes(content)
    try:
        open_source(DataConfig(npz=str(path)))
    except UserError as error:
        assert "own.npz" in str(error)


@FUZZ
@given(content=st.one_of(damaged(encoded(Image.new("L", (9, 7)), kind)) for kind in ("PNG", "JPEG")))
def test_any_image_is_read_or_rejected(tmp_path, content):
    path = tmp_path / "x.png"
    path.write_bytes(content)
    try:
        assert decode(str(path), (7, 9, 1)).shape == (7, 9, 1)
    except UserError as error:
        assert str(path) in str(error)


@settings(FUZZ, max_examples=15)
@given(data=st.data())
def test_any_keras_file_is_loaded_or_rejected(tiny_run, tmp_path, data):
    path = tmp_path / "model.keras"
    path.write_bytes(data.draw(damaged((tiny_run / "model.keras").read_bytes())))
    try:
        load_network(str(path))
    except UserError as error:
        assert str(path) in str(error)
