"""Evaluate a trained network on test images and print its errors.

    python -m launch.evaluate --saved_model=runs/first/saved_model

evaluates on the test data of the run that exported the model: seconds for the embedded digits.

    python -m launch.evaluate --saved_model=DIR/saved_model --dataset=cifar10 --data_dir=DATA

evaluates on another data set: about 3 minutes for CIFAR-10's 10,000 test images and the paper's
network on 2 cores. Prints top1_error, top5_error (if there are more than 5 classes) and num_examples.

    python -m launch.evaluate --pretrained=digits

evaluates a network that comes with the package. If TensorFlow is not installed, give the run's
model.keras: KERAS_BACKEND=jax python -m launch.evaluate --saved_model=DIR/model.keras
"""

import dataclasses
import json
from typing import ClassVar

from identity_matters.config import DataConfig
from identity_matters.fields import option
from identity_matters.runs.tables import percent
from launch import launcher, terminal, trained_run


@dataclasses.dataclass(frozen=True)
class EvaluateConfig(trained_run.NetworkFlags):
    """Which network to evaluate, and on which data.

    Attributes:
      data: The test images. Fields that are not given are as in the run that exported the network.
      max_examples: Evaluate on the first N examples (0: all).
      batch_size: Examples per batch.
      json: Print JSON, with errors as fractions.
    """

    # For training; the size is the network's, and max_examples says how many.
    WITHOUT_FLAGS: ClassVar = (
        "train_split", "train_examples", "validation_examples", "num_classes", "image_size", "eval_examples",
    )  # fmt: skip

    data: DataConfig = DataConfig(dataset="")
    max_examples: int = option(0, at_least=0)
    batch_size: int = option(100, at_least=1)


def main(config: EvaluateConfig) -> None:
    """Evaluates the network and prints its errors."""
    config.require_named()
    with terminal.silenced_stderr():
        from identity_matters import evaluation, pretrained

    data = config.data
    if config.pretrained and not (data.dataset or data.npz or data.images):
        data = dataclasses.replace(data, dataset=pretrained.find(config.pretrained).dataset)
    network = config.saved_model or pretrained.load(config.pretrained)
    model = evaluation.load_classifier(network, config.trust_saved_model)
    options = {"max_examples": config.max_examples, "batch_size": config.batch_size, "progress": True}
    result = evaluation.evaluate(model, **vars(data) | {"dataset": data.dataset or None}, **options)
    if model.num_classes <= 5:
        del result["top5_error"]
    if config.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name}: {percent(value)}" if name.endswith("error") else f"{name}: {value}")


cli = launcher.command(main, {"": EvaluateConfig()}, manual=__doc__, run_dir="none")

if __name__ == "__main__":
    cli()
