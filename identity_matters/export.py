"""What a finished run leaves for others: its figure, model.keras and a SavedModel.

The SavedModel takes raw images and needs TensorFlow alone:

    serving_default: images float32 [n, h, w, c] in 0–255 -> logits, probabilities float32 [n, r]
"""

import json
import os
from typing import Any

import keras

from identity_matters.config import TrainConfig
from identity_matters.data.user_arrays import npz_digest
from identity_matters.errors import UserError
from identity_matters.model import standardize, taking_raw_images
from identity_matters.runs.config_json import evaluated_split
from identity_matters.runs.directory import RunDirectory
from identity_matters.runs.figures import convergence_figure, save_figure
from identity_matters.runs.files import replacing

DATA_FILE = os.path.join("assets.extra", "data.json")
DATA_FIELDS = ("dataset", "data_dir", "npz", "image_size", "eval_examples")
DIGEST = "npz_digest"  # beside them, where there is an .npz file: as config.json has it


def export(network: keras.Model, config: TrainConfig, path: str, digest: str = "") -> None:
    """Writes a network from standardised images to logits, standardisation included, as a SavedModel.

    Which data of the config to evaluate on by default is stored beside it, with the digest of its .npz file (without
    one, of the file as it is now). A SavedModel at this path is replaced.

    Raises:
      UserError: the path holds other files.
    """
    if os.path.isdir(path) and os.listdir(path) and not os.path.exists(os.path.join(path, "saved_model.pb")):
        raise UserError(f"{path} holds files that are no SavedModel; export to another directory")
    import tensorflow as tf

    serving = tf.Module()
    # The tf.Variables themselves: under Keras's own, TensorFlow's session loader (saved_model_cli,
    # TensorFlow Serving) restores copies that the graph does not read.
    serving.variables_served = [variable.value for variable in network.variables]
    signature = tf.TensorSpec([None, *network.input_shape[1:]], tf.float32, name="images")

    @tf.function(input_signature=[signature])
    def serve(images: Any) -> dict[str, Any]:
        logits = network(standardize(images), training=False)
        return {"logits": logits, "probabilities": tf.nn.softmax(logits)}

    tf.get_logger().setLevel("WARNING")  # in a notebook it is INFO, and every SavedModel is announced twice
    with replacing(path) as temporary:
        try:
            tf.saved_model.save(serving, temporary, signatures={"serving_default": serve})
        except tf.errors.OpError as error:  # "FILE; No space left on device [Op:SaveV2]"
            raise OSError(error.message.rpartition("; ")[2].partition(" [")[0]) from error
        os.makedirs(os.path.join(temporary, "assets.extra"))
        fields = {name: getattr(config, name) for name in DATA_FIELDS}
        # The SavedModel may be evaluated from another working directory.
        fields |= {name: os.path.abspath(fields[name]) for name in ("data_dir", "npz") if fields[name]}
        fields |= {DIGEST: digest or npz_digest(config.npz)} if config.npz else {}
        with open(os.path.join(temporary, DATA_FILE), "w") as file:
            json.dump(fields, file)


def write_results(config: TrainConfig, network: keras.Model, rows: list[dict], directory: RunDirectory) -> None:
    """Writes the figure of the rows of metrics.csv, model.keras and, under TensorFlow, the SavedModel of a run."""
    save_figure(convergence_figure(rows, split=evaluated_split(vars(config))), directory.file("convergence.png"))
    with replacing(directory.file("model.keras")) as temporary:
        taking_raw_images(network).save(temporary)
    if keras.backend.backend() == "tensorflow":
        export(network, config, directory.file("saved_model"), directory.contents.get(DIGEST, ""))
