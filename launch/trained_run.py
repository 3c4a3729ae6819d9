"""Reads a run of launch.train, or a network that comes with the package, for other launchers.

It gives the config that the network was trained with, the network and its training examples.
"""

import dataclasses
import hashlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import numpy as np

from identity_matters.config import TrainConfig
from identity_matters.data import loading
from identity_matters.data.arrays import MNIST_SAMPLE, ArrayData, examples_summary, note
from identity_matters.errors import UserError
from identity_matters.fields import from_json, require
from identity_matters.runs.config_json import data_places, read_config_json
from identity_matters.runs.directory import require_unchanged

if TYPE_CHECKING:
    import keras

    from identity_matters.runs.directory import RunDirectory

DIGEST = "weights_digest"  # in config.json: a continued run must have the same weights


def read_config(saved_run: str, pretrained: str = "", at_step: int = -1, data_dir: str = "") -> TrainConfig:
    """Returns the config of a training run or, as far as the data go, of a network that ships.

    Args:
      saved_run: str. A run directory.
      pretrained: str. A key of identity_matters.pretrained.NETWORKS, in place of saved_run.
      at_step: int. If not negative, the run need not be finished.
      data_dir: str. In place of the run's; a line says where the data of a run are read without it.

    Raises:
      UserError: there is no such run or network, it is not finished, both are given, or its data have changed.
    """
    require(not (saved_run and pretrained), "--saved_run and --pretrained are both given; give one of them")
    if pretrained and at_step >= 0:
        raise UserError(f"--at_step={at_step} needs --saved_run, a run of launch.train; --pretrained has no steps")
    if pretrained:
        from identity_matters import pretrained as shipped

        return TrainConfig(dataset=shipped.find(pretrained).dataset, data_dir=data_dir)
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
    require_unchanged(config, record, f"saved_run {saved_run}")
    loading.say_named_by(os.path.join(saved_run, "config.json"), vars(config), data_dir)
    return dataclasses.replace(config, data_dir=data_dir or config.data_dir)


def first_examples(
    run_config: TrainConfig, count: int, split: Literal["train", "test"] = "train"
) -> tuple[np.ndarray, np.ndarray, str]:
    """Returns a run's first examples of a split, without augmentation: standardised images, labels, a line naming them.

    Returns:
      images float32 [m, h, w, c], labels int32 [m], m at most count, and their `examples_summary`.
    """
    from identity_matters.model import standardize

    if split == "test":
        batches = loading.raw_test_batches(run_config, 100)
    else:
        batches = raw_batches(run_config, min(count, run_config.train_examples or count))
    images, raw, labels = [], [], []
    while sum(map(len, labels)) < count and (batch := next(batches, None)):
        raw.append(batch[0])
        labels.append(batch[1])
        images.append(np.asarray(standardize(batch[0])))
    first_images, first_raw, first_labels = (np.concatenate(parts)[:count] for parts in (images, raw, labels))
    summary = examples_summary(first_raw, first_labels, are_resized=run_config.image_size > 0)
    return first_images, first_labels.astype(np.int32), summary


def raw_batches(run_config: TrainConfig, count: int, size: int = 500) -> Iterator:
    """Yields uint8 images and labels, without augmentation: where they vary in size the central crop."""
    if run_config.npz or run_config.images or run_config.dataset == MNIST_SAMPLE:
        arrays = loading.load(run_config)
        if not isinstance(arrays, ArrayData):
            yield from arrays.raw_train_batches(size)
            return
        for start in range(0, min(count, arrays.num_train), size):
            batch = slice(start, min(start + size, count))
            yield arrays.train_images[batch], arrays.train_labels[batch]
        return
    from identity_matters.data.tfds import TfdsSource, prepared_builder

    builder = prepared_builder(run_config.dataset, run_config.data_dir)
    split = run_config.train_split or "train"
    count = min(count, builder.info.splits[split].num_examples - run_config.validation_examples)
    source = TfdsSource(builder, split, image_size=run_config.image_size, eval_examples=count, train_split=split)
    yield from source.raw_test_batches(size)


def load_model(
    config: TrainConfig, saved_run: str, pretrained: str = "", at_step: int = -1, kept: str = ""
) -> "tuple[keras.Model, str]":
    """Returns the network, and the path of the checkpoint that its weights are from and that is not kept yet, or "".

    Args:
      config, saved_run, pretrained: As from and of `read_config`.
      at_step: int. The weights after that many updates: the initial ones, or a checkpoint's (-1: of the finished run).
      kept: str. The path of a copy of that checkpoint, where there is one.

    Raises:
      UserError: the network is damaged, the step has no checkpoint, or the network that the run began with is gone.
    """
    if at_step < 0 and pretrained:
        from identity_matters.pretrained import load

        return load(pretrained, standardized=False), ""
    if at_step < 0:
        return _exported(config, os.path.join(saved_run, "model.keras")), ""
    from identity_matters.comparators import build_network
    from identity_matters.runs import checkpoint
    from identity_matters.starting_weights import take_weights

    network = build_network(dataclasses.replace(config.model, mixed_precision=False), config.seed)
    if not at_step:
        if config.init_from:
            note(take_weights(network, config.init_from))
        return network, ""
    is_kept = os.path.exists(kept)
    path = kept if is_kept else checkpoint.find(os.path.join(saved_run, "checkpoints"), at_step)
    checkpoint.load_weights(path, at_step, network)
    return network, "" if is_kept else path


def _exported(config: TrainConfig, path: str) -> "keras.Model":
    """Returns the network in a run's model.keras as trained, on standardised images."""
    from identity_matters.comparators import build_network
    from identity_matters.model import takes_raw_images
    from identity_matters.safe_loading import load_network

    exported = load_network(path)
    if not takes_raw_images(exported):
        return exported
    network = build_network(config.model, config.seed)
    try:
        network.set_weights(exported.get_weights())
    except ValueError as error:
        raise UserError(f"{path} is not the network that config.json beside it describes") from error
    return network


def weights_digest(model: "keras.Model") -> str:
    """Returns a digest of all weights, those that are not trained included."""
    digest = hashlib.blake2b(digest_size=8)
    for array in model.get_weights():
        digest.update(f"{array.dtype} {array.shape}".encode() + array.tobytes())
    return digest.hexdigest()


def require_same_weights(run: "RunDirectory", digest: str, saved_run: str) -> None:
    """Raises UserError where a continued run began with weights of another digest."""
    other = f"{run.path} was computed for other weights than {saved_run or 'the network'} has now"
    require(run.contents.get(DIGEST, digest) == digest, f"{other}; choose another run_dir")
