"""Evaluate a trained network on test images and print its errors.

    python -m launch.evaluate --saved_model=runs/first/saved_model

evaluates on the test data of the run that exported the model: seconds for the embedded digits.

    python -m launch.evaluate --saved_model=DIR/saved_model --dataset=cifar10 --data_dir=DATA

evaluates on another data set: about 3 minutes for CIFAR-10's 10,000 test images and the paper's
network on 2 cores. Prints top1_error, top5_error (if there are more than 5 classes) and num_examples.

    python -m launch.evaluate --pretrained=digits

evaluates a network that comes with the package. Where TensorFlow is not installed, give the
run's model.keras: KERAS_BACKEND=jax python -m launch.evaluate --saved_model=DIR/model.keras
"""

import dataclasses
import json

from identity_matters.errors import UserError
from identity_matters.fields import check_fields, require
from launch import launcher, terminal


@dataclasses.dataclass(frozen=True)
class EvaluateConfig:
    """Which network to evaluate, and on which data.

    Attributes:
      saved_model: Directory of a SavedModel or of the run that exported it, or path of a run's model.keras. Required,
        unless pretrained is given.
      pretrained: Name of a network that comes with the package, e.g. digits.
      dataset: mnist_sample or a TFDS data set, whose test split is used (empty: the data of the run that exported the
        network or, with pretrained, the data set of that network).
      data_dir: Where TFDS keeps prepared data sets (empty: as in the run that exported the network; if dataset is
        given, TFDS's default).
      npz: Your own data in place of a dataset: test_images and test_labels of an .npz file, as for training; the
        training arrays may be missing. Images of another size than the network's are resized, and a line says so.
      images: A folder of your own images in place of a dataset: class folders, in test/ or directly in the folder,
        named as those that the network was trained on.
      test_share: With images that have no test/: the share of them to evaluate on, chosen by file name (0: that of the
        run, 1: all).
      test_split: Name of the split to evaluate on, of a dataset or of images (empty: that of the run, or test).
      max_examples: Evaluate on the first N examples (0: all).
      batch_size: Examples per batch.
      json: Print one line of JSON, with errors as fractions.
      trust_saved_model: Run the SavedModel itself, which is a program and can do anything that you may do. Without this
        flag the model.keras beside a run's saved_model is evaluated instead, and a SavedModel without one is refused.
    """

    saved_model: str = ""
    pretrained: str = ""
    dataset: str = ""
    data_dir: str = ""
    npz: str = ""
    images: str = ""
    test_share: float = 0.0
    test_split: str = ""
    max_examples: int = 0
    batch_size: int = 100
    json: bool = False
    trust_saved_model: bool = False

    def __post_init__(self) -> None:
        # Before TensorFlow is imported.
        check_fields(self, at_least_1=("batch_size",), at_least_0=("max_examples", "test_share"))
        require(self.test_share <= 1, f"test_share must be at most 1, got {self.test_share:g}")
        if self.saved_model and self.pretrained:
            raise UserError("--saved_model and --pretrained are both given; give one of them")


def main(config: EvaluateConfig) -> None:
    """Evaluates the network and prints its errors."""
    if not (config.saved_model or config.pretrained):
        raise UserError("--saved_model is missing: the directory of a SavedModel, e.g. runs/first/saved_model")
    with terminal.silenced_stderr():
        from identity_matters import evaluation, pretrained

    dataset = config.dataset
    if config.pretrained and not (config.npz or config.images):
        dataset = dataset or pretrained.find(config.pretrained).dataset
    network = config.saved_model or pretrained.load(config.pretrained)
    model = evaluation.load_classifier(network, config.trust_saved_model)
    result = evaluation.evaluate(
        model,
        dataset or None,
        data_dir=config.data_dir,
        npz=config.npz,
        images=config.images,
        test_share=config.test_share,
        test_split=config.test_split,
        max_examples=config.max_examples,
        batch_size=config.batch_size,
        progress=True,
    )
    if model.num_classes <= 5:
        del result["top5_error"]
    if config.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name}: {value:.2%}" if name.endswith("error") else f"{name}: {value}")


cli = launcher.command(main, {"": EvaluateConfig()}, manual=__doc__, has_run_dir=False)

if __name__ == "__main__":
    cli()
