"""The trained network that other launchers take: that of a run of launch.train, or one that comes with the package."""

import dataclasses
import hashlib
import os
from typing import TYPE_CHECKING

import numpy as np

from identity_matters.config import DataConfig, TrainConfig
from identity_matters.data.arrays import examples_summary
from identity_matters.data.base import Split
from identity_matters.data.folder import check_run_dir_outside_images
from identity_matters.data.source import check_data_is_unchanged, note_data_location, open_source
from identity_matters.errors import UserError, note
from identity_matters.fields import Checked, check_fields, option
from identity_matters.runs.record import read_record

if TYPE_CHECKING:
    import keras

    from identity_matters.runs.directory import RunDirectory


@dataclasses.dataclass(frozen=True)
class NetworkFlags:
    """A network that a run exported, and how its answers are printed: what launch.evaluate and launch.classify take.

    Attributes:
      saved_model: Directory of a SavedModel or of the run that exported it, or path of a run's model.keras. Required,
        unless pretrained is given.
      pretrained: Name of a network that comes with the package, e.g. digits.
      json: Print lines of JSON.
      trust_saved_model: Load a SavedModel that you did not export on this machine, or that was changed since. Loading
        one can run code, which can do anything that you may do. Those that you exported are signed and need no flag.
    """

    saved_model: str = option("", path=True)
    pretrained: str = ""
    json: bool = False
    trust_saved_model: bool = False

    def __post_init__(self) -> None:
        check_fields(self)  # before TensorFlow is imported
        if self.saved_model and self.pretrained:
            raise UserError("--saved_model and --pretrained are both given; give one of them")

    def require_named(self) -> None:
        """Raises UserError if no network is named."""
        if not self.saved_model and not self.pretrained:
            raise UserError("--saved_model is missing: the directory of a run, e.g. runs/first")


@dataclasses.dataclass(frozen=True)
class SavedRunFlags(Checked):
    """A network at some step of its training, and its data: what launch.hessian_spectrum and near_identity measure.

    Attributes:
      saved_run: Directory of a finished run of launch.train. Required, unless pretrained is given.
      pretrained: Name of a network that comes with the package, e.g. digits.
      at_step: Take the run's weights after N updates: 0, the initial ones, or the step of a checkpoint that still
        exists; the run need not be finished (-1: the weights of the finished run).
      data_dir: The folder of prepared TFDS data sets (empty: as in the run).
      npz: The file of images, as launch.export_npz writes it (empty: as in the run).
    """

    saved_run: str = option("", path=True)
    pretrained: str = ""
    at_step: int = option(-1, at_least=-1)
    data_dir: str = option("", path=True)
    npz: str = option("", path=True)


def read_config(chosen: SavedRunFlags, run_dir: str = "") -> TrainConfig:
    """Returns the config of a training run or, as far as the network and the data go, of a network that ships.

    A note names the data of a run, unless `chosen` does. Results will be written to run_dir.

    Raises:
      UserError: there is no such run or network, it is not finished, both are given, its data have changed, or run_dir
        lies among its images.
    """
    saved_run = chosen.saved_run
    pretrained = chosen.pretrained
    at_step = chosen.at_step
    data_dir = chosen.data_dir
    npz = chosen.npz
    if saved_run and pretrained:
        raise UserError("--saved_run and --pretrained are both given; give one of them")
    if pretrained and at_step > 0:
        raise UserError(f"--at_step={at_step} needs --saved_run, a run of launch.train; --pretrained has its start, 0")
    if pretrained:
        from identity_matters import pretrained as shipped

        network = shipped.find(pretrained)
        return TrainConfig(model=network.model, data=DataConfig(network.dataset, data_dir=data_dir, npz=npz))
    if not saved_run:
        raise UserError("--saved_run is missing: the directory of a finished run of launch.train, e.g. runs/first")
    record = read_record(saved_run)
    if record is None or "model" not in record.config:
        raise UserError(f"saved_run {saved_run} is not the directory of a run of launch.train")
    if at_step < 0 and record.status != "done":
        raise UserError(f"saved_run {saved_run} is not finished: its status is {record.status}; give --at_step")
    if at_step < 0 and not os.path.isfile(os.path.join(saved_run, "model.keras")):
        raise UserError(f"saved_run {saved_run} has no model.keras")
    try:
        config = record.config_as(TrainConfig())
    except UserError as error:
        raise UserError(f"saved_run {saved_run} is damaged, or was written by another version: {error}") from error
    data = dataclasses.replace(config.data, data_dir=data_dir or config.data.data_dir, npz=npz or config.data.npz)
    if run_dir:
        check_run_dir_outside_images(data, run_dir)
    if record.data_digest:
        check_data_is_unchanged(open_source(data), data, record, f"saved_run {saved_run}")
    if not npz:
        note_data_location(os.path.join(saved_run, "config.json"), config.data, data_dir)
    return dataclasses.replace(config, data=data)


def first_examples(run_config: TrainConfig, count: int, split: Split = "train") -> tuple[np.ndarray, np.ndarray, str]:
    """Returns a run's first examples of a split, unaugmented: standardised images, labels, their description.

    Images of varying size are cropped to the central windows.

    Returns:
      images float32 [m, h, w, c], labels int32 [m], m at most count, and their `examples_summary`.
    """
    from identity_matters.model import standardize

    source = open_source(run_config.data)
    raw, labels = source.read(split, np.arange(min(count, source.num(split))))
    parts = (raw[start : start + 500] for start in range(0, len(raw), 500))
    images = np.concatenate([np.asarray(standardize(part)) for part in parts])
    return images, labels, examples_summary(raw, labels, are_resized=run_config.data.image_size > 0)


def load_model(config: TrainConfig, chosen: SavedRunFlags, kept: str = "") -> "tuple[keras.Model, str]":
    """Returns the network, and the path of the checkpoint that its weights are from and that is not kept yet, or "".

    Networks that ship have the initial weights of seed 0, as they were trained.

    Args:
      config: TrainConfig. As `read_config` returns it.
      chosen: SavedRunFlags.
      kept: str. The path of a copy of the step's checkpoint, if there is one.

    Raises:
      UserError: the network is damaged, the step has no checkpoint, or the network that the run began with is gone or
        has changed.
    """
    at_step = chosen.at_step
    if at_step < 0 and chosen.pretrained:
        from identity_matters.pretrained import load

        return load(chosen.pretrained, standardized=False), ""
    if at_step < 0:
        return _exported(config, os.path.join(chosen.saved_run, "model.keras")), ""
    from identity_matters import networks
    from identity_matters.runs import checkpoint
    from identity_matters.starting_weights import load_matching_weights

    network = networks.build(dataclasses.replace(config.model, mixed_precision=False), config.seed)
    if not at_step:
        if config.init_from:
            digest = read_record(chosen.saved_run).init_digest
            line, _ = load_matching_weights(network, config.init_from, digest, config.fresh)
            note(line)
        return network, ""
    is_kept = os.path.exists(kept)
    path = kept if is_kept else checkpoint.find(os.path.join(chosen.saved_run, "checkpoints"), at_step)
    checkpoint.load_weights(path, at_step, network)
    return network, "" if is_kept else path


def _exported(config: TrainConfig, path: str) -> "keras.Model":
    """Returns the network in a run's model.keras as trained, on standardised images."""
    from identity_matters import networks
    from identity_matters.model import has_standardization
    from identity_matters.untrusted import load_network

    exported = load_network(path)
    if not has_standardization(exported):
        return exported
    network = networks.build(config.model, config.seed)
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
    """Raises UserError if a resumed run began with weights of another digest."""
    if run.record.weights_digest not in ("", digest):
        name = saved_run or "the network"
        raise UserError(f"{run.path} was computed for other weights than {name} has now; choose another run_dir")
