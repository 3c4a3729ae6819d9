"""Networks and SavedModels of others: what could reach files, the network or code is refused before it is loaded."""

import dataclasses
import io
import json
import os
import shutil
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf
from refusals import refused

from identity_matters.evaluation import evaluate, export
from identity_matters.safe_loading import check_saved_model, load_network

IMAGES, LABELS = np.zeros((4, 28, 28, 1), np.float32), np.arange(4)


def write_file(images):
    tf.io.write_file(WRITTEN, "x")
    return images


def python_function(images):
    return tf.numpy_function(lambda x: x, [images], tf.float32)


def nested(images):
    @tf.function
    def inner(x):
        return tf.cond(tf.reduce_sum(x) > 1e9, lambda: x, lambda: write_file(x))

    return inner(images)


def mapped(images):
    return tf.map_fn(lambda x: write_file(x), images)


def printed(images):
    tf.print("x", output_stream=f"file://{WRITTEN}")
    return images


def read_file(images):
    return images + tf.cast(tf.strings.length(tf.io.read_file("/etc/hostname")), tf.float32)


def data_set(images):
    for line in tf.data.TextLineDataset("/etc/hostname"):
        images += tf.cast(tf.strings.length(line), tf.float32)
    return images


def listed(images):
    return images + tf.cast(tf.size(tf.io.matching_files("/etc/*")), tf.float32)


def ended(images):
    """Ends the process, with the exit code of success."""
    tf.raw_ops.Abort(exit_without_error=True)
    return images


def described(images):
    """Opens a file whose path is an attribute."""
    path = {"descriptor_source": "/etc/hostname"}
    sizes, _ = tf.io.decode_proto([""], "a.Message", ["field"], [tf.int32], **path)
    return images + tf.cast(tf.reduce_sum(sizes), tf.float32)


HARMFUL = [write_file, python_function, nested, mapped, printed, read_file, data_set, listed, ended, described]
WRITTEN = "/tmp/identity_matters_test_trust_wrote_this"


def saved(path, function):
    """A SavedModel as ours, that calls a function first."""

    @tf.function(input_signature=[tf.TensorSpec([None, 28, 28, 1], tf.float32, name="images")])
    def serve(images):
        images = tf.ensure_shape(function(images), [None, 28, 28, 1])
        logits = tf.reshape(images, [-1, 784])[:, :10]
        return {"logits": logits, "probabilities": tf.nn.softmax(logits)}

    module = tf.Module()
    module.weight = tf.Variable(1.0)
    tf.saved_model.save(module, str(path), signatures={"serving_default": serve})
    return str(path)


@pytest.fixture(autouse=True)
def unwritten():
    yield
    wrote = os.path.exists(WRITTEN)
    if wrote:
        os.remove(WRITTEN)
    assert not wrote


@pytest.mark.parametrize("function", HARMFUL, ids=lambda function: function.__name__)
def test_a_saved_model_that_acts_on_more_than_its_memory_is_refused(tmp_path, function):
    path = saved(tmp_path / "model", function)
    assert "can reach files, the network or code" in refused(evaluate, path, (IMAGES, LABELS))


def test_what_fails_as_it_runs_is_one_line(tmp_path):
    def sliced(images):
        return images[:, :: tf.cast(tf.reduce_sum(images), tf.int32)]

    path = saved(tmp_path / "model", sliced)
    assert f"{path} cannot be evaluated: strides[1]" in refused(evaluate, path, (IMAGES, LABELS))


def test_it_runs_where_it_is_trusted(tmp_path):
    path = saved(tmp_path / "model", read_file)
    assert evaluate(path, (IMAGES, LABELS), trust_saved_model=True)["num_examples"] == 4


def test_a_function_that_loading_calls_is_looked_at(tmp_path):
    class Resource(tf.Module):
        @tf.function(input_signature=[])
        def initialize(self):
            tf.io.write_file(WRITTEN, "x")

    module = Resource()
    tf.saved_model.save(module, str(tmp_path))
    assert "WriteFile" in refused(check_saved_model, str(tmp_path))


def test_the_function_that_saves_the_weights_is_harmless_until_it_is_called(tmp_path):
    from tensorflow.core.protobuf import saved_model_pb2

    path = saved(tmp_path / "model", lambda images: images)
    check_saved_model(path)
    proto = saved_model_pb2.SavedModel.FromString((tmp_path / "model" / "saved_model.pb").read_bytes())
    functions = proto.meta_graphs[0].graph_def.library.function
    (save,) = (f.signature.name for f in functions if "traced_save" in f.signature.name)
    serve = next(f for f in functions if "serve" in f.signature.name and "wrapper" not in f.signature.name)
    serve.node_def.add(name="evil", op="StatefulPartitionedCall").attr["f"].func.name = save
    (tmp_path / "model" / "saved_model.pb").write_bytes(proto.SerializeToString())
    assert "SaveV2" in refused(check_saved_model, path)


def test_a_saved_model_of_tensorflow_1_is_looked_at_whole(tmp_path):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        images = tf.compat.v1.placeholder(tf.float32, [None, 28, 28, 1])
        outputs = {"logits": write_file(images)}
        tf.compat.v1.saved_model.simple_save(session, str(tmp_path / "model"), {"images": images}, outputs)
    assert "WriteFile" in refused(evaluate, str(tmp_path / "model"), (IMAGES, LABELS))


def test_networks_of_others_without_such_operations_are_evaluated(tmp_path):
    inputs = keras.Input((28, 28, 1), name="images")
    x = keras.layers.Flatten()(keras.layers.BatchNormalization()(keras.layers.Conv2D(3, 3)(inputs)))
    network = keras.Model(inputs, {"logits": keras.layers.Dense(10)(keras.layers.Dropout(0.5)(x))})
    archive = keras.export.ExportArchive()
    archive.track(network)
    signature = [tf.TensorSpec([None, 28, 28, 1], tf.float32, name="images")]
    archive.add_endpoint("serving_default", lambda images: network(images, training=False), signature)
    archive.write_out(str(tmp_path / "model"), verbose=False)
    assert evaluate(str(tmp_path / "model"), (IMAGES, LABELS))["num_examples"] == 4


@pytest.mark.parametrize("place", ["saved_model.pb", "variables/variables.index", "assets.extra/data.json", "new"])
def test_a_pipe_in_a_saved_model_is_not_waited_for(tiny_run, tmp_path, place):
    path = tmp_path / "model"
    shutil.copytree(tiny_run / "saved_model", path)
    if place != "new":
        (path / place).unlink()
    os.mkfifo(path / place)
    assert "is no regular file" in refused(evaluate, str(path), "mnist_sample")


def test_a_folder_that_is_no_saved_model_is_called_so_and_not_searched(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    message = f"{tmp_path} is not a SavedModel of this project: there is no saved_model.pb"
    assert refused(evaluate, str(tmp_path), "mnist_sample") == message


@pytest.fixture
def run(tiny_run, tmp_path):
    shutil.copytree(tiny_run, tmp_path / "run")
    return tmp_path / "run"


def test_the_network_beside_a_saved_model_is_evaluated_in_its_place(run):
    expected = evaluate(str(run / "saved_model"), "mnist_sample", trust_saved_model=True)
    shutil.rmtree(run / "saved_model")
    saved(run / "saved_model", write_file)
    assert evaluate(f"{run}/saved_model/", "mnist_sample") == expected
    (run / "model.keras").rename(run / "hidden")
    assert "WriteFile" in refused(evaluate, str(run / "saved_model"), "mnist_sample")


def rewritten(path, change):
    """Changes the JSON text that describes a .keras file's network."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    config = json.loads(members["config.json"])
    members["config.json"] = json.dumps(change(config) or config)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def tfsm_layer(config):
    layer = {"module": "keras.layers", "class_name": "TFSMLayer", "config": {"name": "x", "filepath": "/x"}}
    config["config"]["layers"].append(layer | {"name": "x", "inbound_nodes": []})


def tfsm_constructor(config):
    layer = {"module": "keras.layers", "class_name": "function", "config": "TFSMLayer", "registered_name": "TFSMLayer"}
    config["config"]["layers"][1]["config"]["activation"] = layer


def lambda_layer(config):
    config["config"]["layers"][1]["class_name"] = "Lambda"


def foreign_module(config):
    config["config"]["layers"][1] |= {"module": "evil", "class_name": "Evil", "registered_name": "Evil"}


DAMAGED = {
    "TFSMLayer": lambda path: rewritten(path, tfsm_layer),
    "TFSMLayer's constructor": lambda path: rewritten(path, tfsm_constructor),
    "Lambda": lambda path: rewritten(path, lambda_layer),
    "foreign module": lambda path: rewritten(path, foreign_module),
    "another shape": lambda path: keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]).save(path),
    "deep": lambda path: rewritten(path, lambda config: json.loads("[" * 900 + "]" * 900)),
    "list": lambda path: rewritten(path, lambda config: [1]),
    "junk": lambda path: path.write_bytes(b"junk"),
    "empty": lambda path: path.write_bytes(b""),
    "pipe": lambda path: (path.unlink(), os.mkfifo(path)),
    "folder": lambda path: (path.unlink(), path.mkdir()),
    "link to nothing": lambda path: (path.unlink(), path.symlink_to("/none")),
    "empty zip": lambda path: path.write_bytes(io.BytesIO(b"PK\5\6" + bytes(18)).getvalue()),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_network_that_is_damaged_or_not_ours_is_refused(run, damage):
    path = run / "model.keras"
    DAMAGED[damage](path)
    message = refused(load_network, str(path))
    assert message.startswith(f"cannot load {path}: ")
    assert refused(evaluate, str(run / "saved_model"), "mnist_sample") == message


@pytest.mark.slow
def test_every_network_of_ours_is_loaded(tmp_path):
    from identity_matters.comparators import build_network
    from identity_matters.config import ModelConfig

    kinds = ("all_cnn_c", "resnet_20", "preact_resnet_8", "densenet_bc_100_12")
    configs = [ModelConfig(network=kind) for kind in kinds]
    small = {"widths": (4, 8), "blocks_per_stage": (1, 1), "stem_width": 4}
    changes = ({"mixed_precision": True, "use_batch_norm": True}, {"shortcut": False}, {"stem_pool": 2})
    configs += [ModelConfig(**small, **change) for change in changes]
    for config in configs:
        network = build_network(config, 0)
        network.save(tmp_path / "model.keras")
        loaded = load_network(str(tmp_path / "model.keras"))
        np.testing.assert_array_equal(loaded.get_weights()[0], network.get_weights()[0])


def test_the_place_of_the_data_that_a_file_names_is_said(run, digits_npz, tiny_config, capfd):
    export(load_network(str(run / "model.keras")), tiny_config, str(run / "saved_model"))
    evaluate(str(run / "saved_model"))
    assert "note:" not in capfd.readouterr().err
    own = dataclasses.replace(tiny_config, npz=str(digits_npz))
    export(load_network(str(run / "model.keras")), own, str(run / "saved_model"))
    evaluate(str(run / "saved_model"))
    notes = [line for line in capfd.readouterr().err.splitlines() if line.startswith("note:")]
    assert notes == [
        f"note: the data are read from '{digits_npz}', which {run}/saved_model/assets.extra/data.json names"
    ]


FIELDS = {"dataset": "mnist_sample", "data_dir": "", "npz": "", "image_size": 0, "eval_examples": 0}


@pytest.mark.parametrize(
    "content",
    [
        "", "[]", "{}", "\0", "[" * 100_000, *(json.dumps(FIELDS | {"dataset": value}) for value in (None, [], 5, {})),
        *(json.dumps(FIELDS | {"image_size": value}) for value in ("28", 1e400, -1, 2.5, True, 10**30)),
        json.dumps(FIELDS | {"more": 1}), json.dumps(FIELDS | {"dataset": "x" * 200_000, "npz": 3}),
    ],
)  # fmt: skip
def test_a_data_json_that_names_no_data_is_refused_in_one_short_line(run, content):
    (run / "saved_model" / "assets.extra" / "data.json").write_text(content)
    message = refused(evaluate, str(run / "saved_model"))
    assert "name a dataset" in message and len(message) < 500
