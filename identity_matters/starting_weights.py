"""What fine-tuning begins with: the weights of another network as far as they fit, some layers frozen."""

import os

import keras

from identity_matters.fields import require, split_names
from identity_matters.pretrained import load
from identity_matters.safe_loading import load_network


def take_weights(network: keras.Model, source: str) -> str:
    """Gives a network the weights of another one that have the name and the shape of its own; the rest stays as it is.

    Args:
      network: keras.Model.
      source: The directory of a run, the path of a model.keras, or the name of a network that ships with the package.

    Returns:
      A line that says how many weights were taken and which variables are new.

    Raises:
      UserError: there is no such network, or nothing of it fits.
    """
    found = {variable.path: variable for variable in load_source(source).variables}
    taken, new = 0, []
    for variable in network.variables:
        other = found.get(variable.path)
        if other is not None and other.shape == variable.shape:
            variable.assign(keras.ops.cast(other, variable.dtype))
            taken += 1
        else:
            new.append(f"{variable.path} {list(variable.shape)}")
    require(taken > 0, f"init_from {source} has no weights of the names and shapes that this network has")
    rest = f"new: {', '.join(new)}" if new else "none is new"
    return f"{taken} of the network's {taken + len(new)} variables begin with the weights of {source}; {rest}"


def load_source(source: str) -> keras.Model:
    """Returns the network that `take_weights` takes them from."""
    path = os.path.join(source, "model.keras") if os.path.isdir(source) else source
    if os.path.lexists(path) or path.endswith(".keras"):
        return load_network(path)
    return load(source)


def freeze(network: keras.Model, prefixes: str) -> None:
    """Keeps the layers whose names begin with one of the prefixes, which have commas between them, as they are.

    Raises:
      UserError: no layer's name begins with one of them, or nothing is left to train.
    """
    for prefix in split_names(prefixes):
        layers = [layer for layer in network.layers if layer.name.startswith(prefix) and layer.weights]
        names = ", ".join(dict.fromkeys(layer.name.split("_")[0] for layer in network.layers if layer.weights))
        require(len(layers) > 0, f"freeze names {prefix!r}, with which no layer begins that has weights; try {names}")
        for layer in layers:
            layer.trainable = False
    require(len(network.trainable_variables) > 0, f"freeze {prefixes} leaves nothing to train")
