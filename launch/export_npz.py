"""Write a data set to one .npz file, to train on without TensorFlow.

    python -m launch.export_npz --dataset=cifar10 --data_dir=DIR --npz=cifar10.npz

reads what TFDS has prepared under DIR (with --download, TFDS fetches it): about 20 seconds and
170 MB for CIFAR-10. Then, under JAX:

    KERAS_BACKEND=jax python -m launch.train --preset=cifar10 --npz=cifar10.npz --run_dir=runs/jax
"""

import dataclasses
import os

import numpy as np

from identity_matters.config import DataConfig
from identity_matters.data.base import SPLITS, fits_in_memory, read_all
from identity_matters.data.source import open_source
from identity_matters.errors import UserError
from identity_matters.fields import Checked, option
from identity_matters.runs.files import replacing
from launch import launcher, terminal


@dataclasses.dataclass(frozen=True)
class ExportConfig(Checked):
    """Which data set to write, and to which file.

    Attributes:
      dataset: mnist_sample or any TFDS image-classification set that fits in memory.
      data_dir: The folder of prepared TFDS data sets (empty: TFDS's default).
      download: Let TFDS download and prepare a data set that is not under data_dir.
      image_size: Resize every image to this many pixels a side (0: as in the data set).
      images: A folder of your own images in place of a dataset, as for launch.train.
      test_share: With images that have no train/ and test/: the share of them to test on, as for launch.train.
      train_split: Name of the split to write as training data (empty: train).
      test_split: Name of the split to write as test data (empty: test, or what the dataset has).
      npz: The file to write; it must not exist yet. Required.
    """

    dataset: str = "cifar10"
    data_dir: str = option("", path=True)
    download: bool = False
    image_size: int = option(0, at_least=0, at_most=8_192)
    images: str = option("", path=True)
    test_share: float = 0.0
    train_split: str = ""
    test_split: str = ""
    npz: str = option("", path=True)


def main(config: ExportConfig) -> None:
    """Reads the data set and writes the file."""
    if not config.npz:
        raise UserError("--npz is missing: the file to write, e.g. --npz=cifar10.npz")
    if os.path.exists(config.npz):
        raise UserError(f"{config.npz} exists; name another file")
    folder = os.path.dirname(config.npz)
    if not os.path.isdir(folder or "."):
        raise UserError(f"there is no folder {folder} to write {config.npz} to")
    with terminal.silenced_stderr():
        import keras  # noqa: F401  # before the data, whose lines are to be seen
    source = open_source(DataConfig(**{name: value for name, value in vars(config).items() if name != "npz"}))
    if not fits_in_memory(source):
        raise UserError(f"{source.name} does not fit in memory, or its images vary in size; no .npz can hold it")
    arrays = {}
    for split in SPLITS:
        arrays[f"{split}_images"], arrays[f"{split}_labels"] = read_all(source, [split])
    with replacing(config.npz) as temporary, open(temporary, "wb") as file:
        np.savez_compressed(file, **arrays)
    numbers = f"{source.num('train')} training and {source.num('test')} test images {list(source.image_shape)}"
    print(f"{config.npz}: {numbers}, {source.num_classes} classes")


cli = launcher.command(main, {"": ExportConfig()}, manual=__doc__, run_dir="none")

if __name__ == "__main__":
    cli()
