"""What other launchers take from a run of launch.train, or from a network that comes with the package.

That is the config it was trained with, the network and its training examples.
"""

import dataclasses
import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from identity_matters.config import TrainConfig
from identity_matters.data import loading
from identity_matters.data.arrays import MNIST_SAMPLE, examples_summary
from identity_matters.data.user_arrays import has_changed
from identity_matters.errors import UserError
from identity_matters.fields import from_json
from identity_matters.runs.config_json import data_places, read_config_json
from identity_matters.runs.files import replacing

if TYPE_CHECKING:
    import keras


def read_config(saved_run: str, pretrained: str = "", at_step: int = -1) -> TrainConfig:
    """Returns the config of a training run or, as far as the data go, of a network that ships.

    Args:
      saved_run: str. A run directory.
      pretrained: str. A key of identity_matters.pretrained.NETWORKS, in place of saved_run.
      at_step: int. If not negative, the run need not be finished.

    Raises:
      UserError: there is no such run or network, it is not finished, both are given, or its .npz file has changed.
    """
    if saved_run and pretrained:
        raise UserError("--saved_run and --pretrained are both given; give one of them")
    if pretrained and at_step >= 0:
        raise UserError(f"--at_step={at_step} is of a run of launch.train: it goes with --saved_run, not --pretrained")
    if pretrained:
        from identity_matters import pretrained as shipped

        return TrainConfig(dataset=shipped.find(pretrained).dataset)
    if not saved_run:
        raise UserError("--saved_run is missing: the directory of a finished run of launch.train, e.g. runs/first")
    record = read_config_json(saved_run)
    if record is None or "model" not in record["config"]:
        raise UserError(f"saved_run {saved_run} is not the directory of a run of launch.train")
    if at_step < 0 and record["status"] != "done":
        raise UserError(f"saved_run {saved_run} is not finished: its status is {record['status']}; give --at_step")
    if at_step < 0 and not os.path.isfile(os.path.join(saved_run, "model.keras")):
        raise UserError(f"saved_run {saved_run} has no model.keras")
    try:
        config = from_json(TrainConfig(), record["config"])
    except UserError as error:
        raise UserError(f"saved_run {saved_run} is damaged, or was written by another version: {error}") from error
    config = dataclasses.replace(config, **data_places(record))
    if has_changed(config.npz, record.get("npz_digest", "")):
        raise UserError(f"{config.npz} is not as saved_run {saved_run} was trained on it; give the file as it was")
    return config


def training_examples(run_config: TrainConfig, count: int) -> tuple[np.ndarray, np.ndarray, str]:
    """Returns the first examples that a run was trained on: standardised images, labels, and a line that names them.

    Args:
      run_config: TrainConfig.
      count: int. Fewer where the run was trained on fewer.

    Returns:
      images float32 [m, h, w, c], labels int32 [m], and their `examples_summary`.
    """
    from identity_matters.model import standardize

    batches = list(raw_batches(run_config, min(count, run_config.train_examples or count)))
    images = np.concatenate([np.asarray(standardize(raw)) for raw, _ in batches])
    raw, labels = map(np.concatenate, zip(*batches))
    return images, labels.astype(np.int32), examples_summary(raw, labels, are_resized=run_config.image_size > 0)


def raw_batches(run_config: TrainConfig, count: int, size: int = 500) -> Iterator:
    """Yields uint8 images and labels, without augmentation: where they vary in size the central crop."""
    if run_config.npz or run_config.dataset == MNIST_SAMPLE:
        arrays = loading.load(run_config)
        for start in range(0, min(count, arrays.num_train), size):
            batch = slice(start, min(start + size, count))
            yield arrays.train_images[batch], arrays.train_labels[batch]
        return
    from identity_matters.data.tfds import TfdsSource, prepared_builder

    builder = prepared_builder(run_config.dataset, run_config.data_dir)
    count = min(count, builder.info.splits["train"].num_examples - run_config.validation_examples)
    source = TfdsSource(builder, "train", image_size=run_config.image_size, eval_examples=count)
    yield from source.raw_test_batches(size)


def load_model(saved_run: str, pretrained: str = "", at_step: int = -1, kept: str = "") -> "keras.Model":
    """Returns the network.

    Args:
      saved_run, pretrained: As of `read_config`.
      at_step: int. The weights after that many updates: the initial ones, or a checkpoint's (-1: of the finished run).
      kept: str. Where `keep_checkpoint` has copied that checkpoint to, perhaps.

    Raises:
      UserError: the network is damaged, or the step has no checkpoint.
    """
    if at_step >= 0:
        return _at_step(saved_run, at_step, kept)
    from identity_matters.pretrained import load
    from identity_matters.safe_loading import load_network

    return load(pretrained) if pretrained else load_network(os.path.join(saved_run, "model.keras"))


def _at_step(saved_run: str, step: int, kept: str) -> "keras.Model":
    """The network as it began, or with the weights of a checkpoint."""
    from identity_matters.comparators import build_network
    from identity_matters.runs.checkpoint import find, load_weights

    config = read_config(saved_run, at_step=step)
    network = build_network(dataclasses.replace(config.model, mixed_precision=False), config.seed)
    if step:
        path = kept if os.path.exists(kept) else find(os.path.join(saved_run, "checkpoints"), step)
        load_weights(path, step, network)
    return network


def keep_checkpoint(saved_run: str, step: int, kept: str) -> None:
    """Copies the checkpoint of a step, which a run that goes on removes sooner or later; does nothing where it is kept.

    Args:
      saved_run: str.
      step: int. At most 0: nothing to keep.
      kept: str. The path of the copy.
    """
    if step > 0 and not os.path.exists(kept):
        from identity_matters.runs.checkpoint import find

        with replacing(kept) as temporary:
            shutil.copyfile(find(os.path.join(saved_run, "checkpoints"), step), temporary)
