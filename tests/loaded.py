"""A data set as arrays, read through its source."""

import types

from identity_matters.config import DataConfig
from identity_matters.data.base import SPLITS, read_all
from identity_matters.data.source import open_source


def load(config: DataConfig, given=None) -> types.SimpleNamespace:
    """Returns the source, and train_images, train_labels, test_images and test_labels of it."""
    source = open_source(config, given)
    arrays = {}
    for split in SPLITS:
        arrays[f"{split}_images"], arrays[f"{split}_labels"] = read_all(source, [split])
    return types.SimpleNamespace(source=source, **arrays)


def load_npz(path) -> types.SimpleNamespace:
    """Returns the arrays of an .npz file, as `load` does."""
    return load(DataConfig(npz=path))


def npz_digest(path) -> str:
    return open_source(DataConfig(npz=path)).digest
