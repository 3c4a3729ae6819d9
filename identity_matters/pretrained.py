"""Networks whose weights are part of the package: `load("digits")`.

Each is evaluated by default on images that it was not trained on: digits on mnist_sample's test digits, cifar10_fast
and cifar10, the paper's network, on CIFAR-10's. The name of a network's preset works too: `load("mnist")`
is `load("digits")`.

docs/papers/results.md has their errors, docs/appendix/runs.md how they were trained. The weights are in NumPy's .npz
format, which holds no code; a network computes with them in float32. They are float16, but the convolution kernels of
cifar10 are 8-bit: array PATH of integers, which array PATH/scale multiplies, one number an output channel.

To ship another network, `save` it there, and add a row to NETWORKS and its error to
tests/identity_matters/test_pretrained.py.
"""

import dataclasses
import importlib.resources
from typing import Any

import keras
import numpy as np

from identity_matters import networks
from identity_matters.config import ModelConfig
from identity_matters.fields import require
from identity_matters.model import with_standardization
from identity_matters.presets import MODEL_PRESETS


@dataclasses.dataclass(frozen=True)
class Pretrained:
    """A shipped network, whose weights are in identity_matters/weights/NAME.npz.

    By default it is evaluated on the test images of `dataset`, which were not used in training. class_names are the
    names of its classes, if their numbers do not identify them.
    """

    name: str
    model: ModelConfig
    dataset: str
    class_names: tuple[str, ...] = ()


_CIFAR10 = tuple("airplane automobile bird cat deer dog frog horse ship truck".split())
NETWORKS = {
    "digits": Pretrained("digits", MODEL_PRESETS["mnist"], "mnist_sample"),
    "cifar10_fast": Pretrained("cifar10_fast", MODEL_PRESETS["cifar10_fast"], "cifar10", _CIFAR10),
    "cifar10": Pretrained("cifar10", MODEL_PRESETS["cifar10"], "cifar10", _CIFAR10),
}

LARGEST_CODE = 127  # of an 8-bit weight; −128 is not used, so that a kernel and its negative are stored alike


def find(name: str) -> Pretrained:
    """Returns the shipped network with this name or preset; raises UserError if there is none."""
    key = {"mnist": "digits"}.get(name, name)  # the one preset of another name
    require(key in NETWORKS, f"there is no pretrained network {name!r}, only {', '.join(NETWORKS)}")
    return NETWORKS[key]


def load(name: str, standardized: bool = True) -> keras.Model:
    """Returns a shipped network, from images [n, h, w, c] in 0–255 to logits.

    It standardises the images itself; with standardized=False it is the bare network, which takes what
    `identity_matters.model.standardize` gives.

    >>> load("digits").output_shape
    (None, 10)

    Raises:
      UserError: the name is neither a key of NETWORKS nor the preset of one.
    """
    shipped = find(name)
    network = networks.build(shipped.model)
    file = importlib.resources.files("identity_matters") / "weights" / f"{shipped.name}.npz"
    with file.open("rb") as stream, np.load(stream, allow_pickle=False) as weights:
        for variable in network.variables:
            scale = f"{variable.path}/scale"
            is_scaled = f"{variable.path}/scale" in weights
            variable.assign(weights[variable.path].astype(np.float32) * (weights[scale] if is_scaled else 1))
    return with_standardization(network) if standardized else network


def save(network: keras.Model, path: str, in_8_bits: bool = False) -> None:
    """Writes a network's weights to identity_matters/weights/NAME.npz, as the head of this module describes.

    Args:
      network: The network, as `load` returns it.
      path: The file to write.
      in_8_bits: Store convolution kernels in 8 bits. A weight is then off by at most 1/254 of the largest magnitude
        among the weights of its output channel; in float16 by 1/2048 of its magnitude.

    Raises:
      ValueError: a weight is NaN or beyond the range of float16.
    """
    arrays: dict[str, Any] = {}
    for variable in network.variables:
        weights = keras.ops.convert_to_numpy(variable).astype(np.float32)
        if not np.abs(weights).max() <= np.finfo(np.float16).max:
            raise ValueError(f"{variable.path} holds weights beyond the range of float16")
        if in_8_bits and weights.ndim == 4:
            scale = np.abs(weights).max(axis=(0, 1, 2)) / LARGEST_CODE
            codes = np.rint(weights / np.where(scale > 0, scale, 1)).astype(np.int8)
            arrays |= {variable.path: codes, f"{variable.path}/scale": scale}
        else:
            arrays[variable.path] = weights.astype(np.float16)
    np.savez_compressed(path, **arrays)
