"""Networks whose weights are part of the package: `load("digits")`.

Each is evaluated by default on images that it was not trained on: digits on mnist_sample's test digits, cifar10_fast on
CIFAR-10's. A network is found by the name of its preset too: `load("mnist")` is `load("digits")`.

docs/results.md has the commands that trained them and their errors. The weights are float16 in NumPy's .npz format,
which holds no code; a network computes with them in float32.
"""

import dataclasses
import importlib.resources

import keras
import numpy as np

from identity_matters.comparators import build_network
from identity_matters.config import ModelConfig
from identity_matters.errors import UserError
from identity_matters.presets import MODEL_PRESETS


@dataclasses.dataclass(frozen=True)
class Pretrained:
    """A shipped network, whose weights are in identity_matters/weights/NAME.npz.

    By default it is evaluated on the test images of `dataset`, none of which it was trained on.
    """

    model: ModelConfig
    dataset: str


NETWORKS = {
    "digits": Pretrained(MODEL_PRESETS["mnist"], "mnist_sample"),
    "cifar10_fast": Pretrained(MODEL_PRESETS["cifar10_fast"], "cifar10"),
}
_NAME_OF_PRESET = {"mnist": "digits"}  # where the preset has another name


def find(name: str) -> Pretrained:
    """Returns what is known of a shipped network; raises UserError where there is none of that name."""
    return NETWORKS[_key(name)]


def _key(name: str) -> str:
    """Returns the key of NETWORKS that a name, perhaps of a preset, stands for; raises UserError for any other."""
    key = _NAME_OF_PRESET.get(name, name)
    if key not in NETWORKS:
        raise UserError(f"there is no pretrained network {name!r}, only {', '.join(NETWORKS)}")
    return key


def load(name: str) -> keras.Model:
    """Returns a shipped network, from standardised images (see `identity_matters.model.standardize`) to logits.

    >>> load("digits").output_shape
    (None, 10)

    Raises:
      UserError: the name is neither a key of NETWORKS nor that of its preset.
    """
    network = build_network(find(name).model)
    file = importlib.resources.files("identity_matters") / "weights" / f"{_key(name)}.npz"
    with file.open("rb") as stream, np.load(stream, allow_pickle=False) as weights:
        for variable in network.variables:
            variable.assign(weights[variable.path].astype(np.float32))
    return network


def save(network: keras.Model, path: str) -> None:
    """Writes a network's weights to identity_matters/weights/NAME.npz; raises ValueError beyond float16's range."""
    with np.errstate(over="ignore"):
        arrays = {v.path: keras.ops.convert_to_numpy(v).astype(np.float16) for v in network.variables}
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise ValueError(f"{name} holds weights beyond the range of float16")
    np.savez_compressed(path, **arrays)
