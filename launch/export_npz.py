"""Write a data set to one .npz file, to train on where TensorFlow is not installed.

    python -m launch.export_npz --dataset=cifar10 --data_dir=DIR --npz=cifar10.npz

reads what TFDS has prepared under DIR (with --download, TFDS fetches it): about 20 seconds and
170 MB for CIFAR-10. Then, under JAX:

    KERAS_BACKEND=jax python -m launch.train --preset=cifar10 --npz=cifar10.npz --run_dir=runs/jax
"""

import dataclasses
import os

import numpy as np

from identity_matters.config import TrainConfig
from identity_matters.data.arrays import ArrayData
from identity_matters.data.loading import load
from identity_matters.errors import UserError
from identity_matters.fields import check_fields, require
from identity_matters.runs.files import replacing
from launch import launcher, terminal


@dataclasses.dataclass(frozen=True)
class ExportConfig:
    """Which data set to write, and to which file.

    Attributes:
      dataset: mnist_sample or any TFDS image-classification set that fits in memory.
      data_dir: Where TFDS keeps prepared data sets (empty: TFDS's default).
      download: Let TFDS download and prepare a data set that is not under data_dir.
      image_size: Resize every image to this many pixels a side (0: as in the data set).
      images: A folder of your own images in place of a dataset, as for launch.train.
      test_share: With images that have no train/ and test/: the share of them to test on, as for launch.train.
      train_split: Name of the split to write as training data (empty: train).
      test_split: Name of the split to write as test data (empty: test, or what the dataset has).
      npz: The file to write; it must not exist yet. Required.
    """

    dataset: str = "cifar10"
    data_dir: str = ""
    download: bool = False
    image_size: int = 0
    images: str = ""
    test_share: float = 0.0
    train_split: str = ""
    test_split: str = ""
    npz: str = ""

    def __post_init__(self) -> None:
        check_fields(self, at_least_0=("image_size",), at_most={"image_size": 2**13})


def main(config: ExportConfig) -> None:
    """Reads the data set and writes the file."""
    require(config.npz != "", "--npz is missing: the file to write, e.g. --npz=cifar10.npz")
    require(not os.path.exists(config.npz), f"{config.npz} exists; name another file")
    folder = os.path.dirname(config.npz)
    require(os.path.isdir(folder or "."), f"there is no folder {folder} to write {config.npz} to")
    with terminal.silenced_stderr():
        import keras  # noqa: F401  # before the data, whose lines are to be seen
    data = load(TrainConfig(**{name: value for name, value in vars(config).items() if name != "npz"}))
    if not isinstance(data, ArrayData):
        raise UserError(f"{data.name} does not fit in memory, or its images vary in size; no .npz can hold it")
    with replacing(config.npz) as temporary, open(temporary, "wb") as file:
        names = ("train_images", "test_images", "train_labels", "test_labels")
        np.savez_compressed(file, **{name: getattr(data, name) for name in names})
    print(
        f"{config.npz}: {data.num_train} training and {data.num_test} test images {list(data.image_shape)}, "
        f"{data.num_classes} classes"
    )


cli = launcher.command(main, {"": ExportConfig()}, manual=__doc__, has_run_dir=False)

if __name__ == "__main__":
    cli()
