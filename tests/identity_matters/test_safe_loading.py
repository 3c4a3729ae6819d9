"""Networks and SavedModels of others: a SavedModel runs on request alone, a .keras file holds known classes alone."""

import json
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf
from refusals import refused

from identity_matters import safe_loading
from identity_matters.evaluation import evaluate
from identity_matters.model import ModelConfig, all_conv_resnet
from identity_matters.safe_loading import largest_output, load_network

IMAGES, LABELS = np.zeros((4, 28, 28, 1), np.float32), np.arange(4)


def saved(path, function):
    """A SavedModel as ours, that calls a function first."""

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
        message = refused(evaluate, path, (IMAGES, LABELS))
    assert message == (
        f"{path} is not as you exported it on this machine, and loading a SavedModel can run code: if you trust its "
        "author, give --trust_saved_model (trust_saved_model=True), or else the model.keras of its run"
    )
    assert not written.exists()
    assert evaluate(path, (IMAGES, LABELS), trust_saved_model=True)["num_examples"] == 4 and written.exists()


def test_what_fails_as_it_runs_is_one_line(tmp_path):
    def sliced(images):
        return images[:, :: tf.cast(tf.reduce_sum(images), tf.int32)]

    path = saved(tmp_path / "model", sliced)
    message = refused(evaluate, path, (IMAGES, LABELS), trust_saved_model=True)
    assert f"{path} cannot be evaluated: strides[1]" in message


@pytest.mark.parametrize("place", ["saved_model.pb", "variables/variables.index", "new"])
def test_a_pipe_in_a_saved_model_is_not_waited_for(tiny_run, tmp_path, place):
    path = tmp_path / "model"
    shutil.copytree(tiny_run / "saved_model", path)
    if place != "new":
        (path / place).unlink()
    os.mkfifo(path / place)
    assert "is not a regular file" in refused(evaluate, str(path), "mnist_sample", trust_saved_model=True)


def test_a_folder_that_is_no_saved_model_is_called_so_and_not_searched(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    message = f"{tmp_path} is not a SavedModel of this project: there is no saved_model.pb"
    assert refused(evaluate, str(tmp_path), "mnist_sample") == message


@pytest.fixture
def run(tiny_run, tmp_path):
    shutil.copytree(tiny_run, tmp_path / "run")
    return tmp_path / "run"


def test_a_foreign_saved_model_in_a_run_is_not_loaded_nor_replaced_by_model_keras(run, acting):
    function, written = acting
    shutil.rmtree(run / "saved_model")
    saved(run / "saved_model", function)
    for path in (f"{run}/saved_model/", run):
        assert "--trust_saved_model" in refused(evaluate, path, "mnist_sample")
    assert not written.exists()


def test_the_place_of_the_data_that_a_file_names_is_said(run, digits_npz, capfd):
    evaluate(str(run / "saved_model"))
    assert "note:" not in capfd.readouterr().err
    record = json.loads((run / "config.json").read_text())
    record["config"]["data"]["npz"] = str(digits_npz)
    del record["data_digest"]
    (run / "config.json").write_text(json.dumps(record))
    evaluate(str(run / "saved_model"))
    notes = [line for line in capfd.readouterr().err.splitlines() if line.startswith("note:")]
    assert notes == [f"note: the data are read from '{digits_npz}', which {run}/config.json names"]


FIELDS = {"dataset": "mnist_sample", "data_dir": "", "npz": "", "image_size": 0, "eval_examples": 0}


@pytest.mark.parametrize(
    "content",
    [
        "", "[]", "[" * 100_000, *(json.dumps({"config": FIELDS | {"dataset": value}}) for value in (None, {})),
        *(json.dumps({"config": FIELDS | {"image_size": value}}) for value in ("28", 1e400, -1, True)),
        json.dumps({"config": FIELDS | {"dataset": "x" * 200_000, "npz": 3}}), json.dumps({"config": 1}),
    ],
)  # fmt: skip
def test_a_config_json_that_names_no_data_is_refused_in_one_short_line(run, content):
    (run / "config.json").write_text(content)
    message = refused(evaluate, str(run / "saved_model"))
    assert message.startswith(f"{run}/config.json does not say what data the model was trained on: ")
    assert "name a dataset" in message and len(message) < 500


@pytest.mark.parametrize("width, is_loaded", [(1024, True), (1026, False)])
def test_the_output_of_a_layer_has_64_million_numbers_at_most(tmp_path, width, is_loaded):
    config = ModelConfig(image_shape=(1024, width, 1), stem_width=64, widths=(64,), blocks_per_stage=(1,))
    all_conv_resnet(config).save(tmp_path / "model.keras")
    if is_loaded:
        assert largest_output(load_network(str(tmp_path / "model.keras"))) == 2**26
    else:
        assert "the output of a layer does not fit in memory" in refused(load_network, str(tmp_path / "model.keras"))


def test_a_network_of_which_a_part_is_in_half_precision_is_tried_first(tmp_path, monkeypatch):
    model = ModelConfig((8, 8, 1), widths=(2,), blocks_per_stage=(1,), stem_width=2, mixed_precision=True)
    all_conv_resnet(model).save(tmp_path / "model.keras")
    tried = []
    monkeypatch.setattr(safe_loading, "require_sound_bfloat16", lambda: tried.append(True))
    load_network(str(tmp_path / "model.keras"))
    assert tried
