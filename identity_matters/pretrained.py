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

    name: str
    model: ModelConfig
    dataset: str


NETWORKS = {
    "digits": Pretrained("digits", MODEL_PRESETS["mnist"], "mnist_sample"),
    "cifar10_fast": Pretrained("cifar10_fast", MODEL_PRESETS["cifar10_fast"], "cifar10"),
}


def find(name: str) -> Pretrained:
    """Returns the shipped network of a name, its own or its preset's; raises UserError where there is none."""
    key = {"mnist": "digits"}.get(name, name)  # the one preset of another name
    if key not in NETWORKS:
        raise UserError(f"there is no pretrained network {name!r}, only {', '.join(NETWORKS)}")
    return NETWORKS[key]


def load(name: str) -> keras.Model:
    """Returns a shipped network, from standardised images (see `identity_matters.model.standardize`) to logits.

    >>> load("digits").output_shape
    (None, 10)

    Raises:
      UserError: the name is neither a key of NETWORKS nor that of its preset.
    """
    shipped = find(name)
    network = build_network(shipped.model)
    file = importlib.resources.files("identity_matters") / "weights" / f"{shipped.name}.npz"
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
