"""The results of a finished run: its figure, model.keras and a SavedModel.

The SavedModel takes raw images and needs TensorFlow alone:

    serving_default: images float32 [n, h, w, c] in 0–255 -> logits, probabilities float32 [n, r]
"""

import os
from typing import Any

import keras

from identity_matters.config import TrainConfig
from identity_matters.errors import UserError
from identity_matters.model import standardize, takes_raw_images, taking_raw_images
from identity_matters.runs.config_json import evaluated_split
from identity_matters.runs.directory import RunDirectory
from identity_matters.runs.figures import convergence_figure, save_figures
from identity_matters.runs.files import replacing


def export(network: keras.Model, path: str) -> None:
    """Writes a network as a SavedModel, standardisation included, in place of a SavedModel at this path.

    Raises:
      UserError: the path holds other files.
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
        logits = network(images if takes_raw_images(network) else standardize(images), training=False)
        return {"logits": logits, "probabilities": tf.nn.softmax(logits)}

    tf.get_logger().setLevel("WARNING")  # in a notebook it is INFO, and every SavedModel is announced twice
    with replacing(path) as temporary:
        try:
            tf.saved_model.save(serving, temporary, signatures={"serving_default": serve})
        except tf.errors.OpError as error:  # "FILE; No space left on device [Op:SaveV2]"
            raise OSError(error.message.rpartition("; ")[2].partition(" [")[0]) from error


def write_results(config: TrainConfig, network: keras.Model, rows: list[dict], directory: RunDirectory) -> None:
    """Writes the figure of the rows of metrics.csv, model.keras and, under TensorFlow, the SavedModel of a run."""
    save_figures(
        lambda: {"convergence": convergence_figure(rows, split=evaluated_split(vars(config.data)))}, directory.path
    )
    with replacing(directory.file("model.keras")) as temporary:
        taking_raw_images(network).save(temporary)
    if keras.backend.backend() == "tensorflow":
        export(network, directory.file("saved_model"))
