"""The results of a finished run: its figure, model.keras and a SavedModel.

The SavedModel takes raw images and needs only TensorFlow:

    serving_default: images float32 [n, h, w, c] in 0–255 -> logits, probabilities float32 [n, r]
"""

import json
import os
import zipfile
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from identity_matters.config import TrainConfig
from identity_matters.dtypes import HALF
from identity_matters.errors import UserError
from identity_matters.model import has_standardization, standardize, with_standardization
from identity_matters.runs.directory import RunDirectory
from identity_matters.runs.figures import convergence_figure, save_figures
from identity_matters.runs.files import replacing, write_text
from identity_matters.saved_model_signature import CLASS_NAMES_FILE, sign


def export(network: keras.Model, path: str, class_names: Sequence[str] = ()) -> None:
    """Writes a network as a SavedModel, standardisation included, in place of a SavedModel at this path.

    The names of its classes become a file of it, assets.extra/class_names.json, and so does the signature by which
    `evaluate` knows it: see identity_matters.saved_model_signature.

    Raises:
      UserError: the path holds other files.
      RuntimeError: the SavedModel gives other logits than the network; it is removed.
    """
    if os.path.isdir(path) and os.listdir(path) and not os.path.exists(os.path.join(path, "saved_model.pb")):
        raise UserError(f"{path} holds other files than a SavedModel; export to another directory")
    import tensorflow as tf

    serving = tf.Module()
    # The tf.Variables themselves: under Keras's own, TensorFlow's session loader (saved_model_cli,
    # TensorFlow Serving) restores copies that the graph does not read.
    serving.variables_served = [variable.value for variable in network.variables]
    signature = tf.TensorSpec([None, *network.input_shape[1:]], tf.float32, name="images")

    @tf.function(input_signature=[signature])
    def serve(images: Any) -> dict[str, Any]:
        logits = network(images if has_standardization(network) else standardize(images), training=False)
        return {"logits": logits, "probabilities": tf.nn.softmax(logits)}

    tf.get_logger().setLevel("WARNING")  # in a notebook it is INFO, and every SavedModel is announced twice
    with replacing(path) as temporary:
        try:
            tf.saved_model.save(serving, temporary, signatures={"serving_default": serve})
        except tf.errors.OpError as error:  # "FILE; No space left on device [Op:SaveV2]"
            raise OSError(error.message.rpartition("; ")[2].partition(" [")[0]) from error
        if class_names:
            os.makedirs(os.path.dirname(os.path.join(temporary, CLASS_NAMES_FILE)), exist_ok=True)
            write_text(os.path.join(temporary, CLASS_NAMES_FILE), json.dumps(list(class_names)))
        _check_logits(network, temporary)
        sign(temporary)


def _check_logits(network: keras.Model, path: str) -> None:
    """Raises RuntimeError unless a SavedModel, loaded again, gives the logits of its network for a few images."""
    import tensorflow as tf

    images = np.random.default_rng(0).integers(0, 256, (3, *network.input_shape[1:])).astype(np.float32)
    scaled = images if has_standardization(network) else standardize(images)
    expected = keras.ops.convert_to_numpy(network(scaled, training=False))
    loaded = tf.saved_model.load(path)  # its variables live as long as this object
    found = loaded.signatures["serving_default"](images=tf.constant(images))["logits"].numpy()
    # On CPUs they agree to the last bit; GPUs may choose other convolution algorithms, in half precision with 8 bits.
    is_half = any(layer.compute_dtype in HALF for layer in network.layers)
    tolerance = (3e-2 if is_half else 1e-3) * np.abs(expected[np.isfinite(expected)]).max(initial=0)
    if not np.allclose(found, expected, rtol=0, atol=tolerance, equal_nan=True):
        difference = np.abs(found - expected).max()
        raise RuntimeError(f"the exported SavedModel gives other logits than the network, by up to {difference:.3g}")


def write_results(config: TrainConfig, network: keras.Model, rows: list[dict], directory: RunDirectory) -> None:
    """Writes the figure of the rows of metrics.csv, model.keras and, under TensorFlow, the SavedModel of a run."""
    class_names = directory.record.class_names
    split = directory.record.split
    save_figures(lambda: {"convergence": convergence_figure(rows, split=split)}, directory.path)
    with replacing(directory.file("model.keras")) as temporary:
        with_standardization(network).save(temporary)
        if class_names:
            _add_metadata(temporary, class_names=class_names)
    if keras.backend.backend() == "tensorflow":
        export(network, directory.file("saved_model"), class_names)


def _add_metadata(path: str, **entries: Any) -> None:
    """Adds entries to the metadata.json of a .keras file, which Keras does not read."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["metadata.json"] = json.dumps(json.loads(members["metadata.json"]) | entries).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
