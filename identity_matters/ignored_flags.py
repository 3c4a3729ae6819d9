"""Finds the fields of a training run that nothing reads, given its other fields; launchers say so of their flags."""

import dataclasses

from identity_matters.config import ModelConfig, TrainConfig

_OF_EVERY_NETWORK = {"image_shape", "num_classes", "network", "weight_decay", "mixed_precision"}


def ignored_fields(config: TrainConfig) -> dict[str, str]:
    """Returns the fields of a run and of its network that are not read, and why.

    >>> ignored_fields(TrainConfig(schedule="cosine", decay_steps=()))["decay_factor"]
    'schedule is cosine'

    Args:
      config: TrainConfig.
    """
    unread = {}
    if config.schedule not in ("piecewise", "exponential"):
        unread |= dict.fromkeys(("decay_steps", "decay_factor"), f"schedule is {config.schedule}")
    if config.optimizer != "muon":
        unread["newton_schulz_steps"] = f"optimizer is {config.optimizer}"
    if config.npz:
        unread |= dict.fromkeys(("dataset", "data_dir", "download"), "npz has the data")
    elif config.dataset == "mnist_sample":
        unread["download"] = "dataset is mnist_sample, which comes with a package"
    if config.model.network != "all_conv_resnet":
        names = {field.name for field in dataclasses.fields(ModelConfig)} - _OF_EVERY_NETWORK
        unread |= dict.fromkeys(sorted(names), f"network is {config.model.network}")
    return unread
