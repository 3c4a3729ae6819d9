"""The start of fine-tuning: matching weights of another network, and frozen layers."""

import hashlib
import os

import keras
from keras import ops

from identity_matters.errors import UserError
from identity_matters.fields import require, split_names
from identity_matters.pretrained import load
from identity_matters.untrusted import load_network


def load_matching_weights(
    network: keras.Model, source: str, known_digest: str = "", fresh: str = ""
) -> tuple[str, str]:
    """Copies to a network the weights of another one that have the same name and shape; the others stay as they are.

    If only the other network takes colour images, its first kernel is summed over the colours: this network then gives
    for a grey image what the other gives for the same image in three equal channels.

    Args:
      network: keras.Model.
      source: The directory of a run, the path of a model.keras, or the name of a network that ships with the package.
      known_digest: The digest of the other network's weights when the run first began, if it did.
      fresh: Prefixes of the names of layers that keep their own weights, with commas between them.

    Returns:
      (note, digest): a note of how many weights were copied and which variables are new; and the digest of the
      other network's weights.

    Raises:
      UserError: there is no such network, none of its weights fit, it has another digest, or no
        layer's name begins with a prefix.
    """
    sources = {variable.path: variable for variable in load_source(source).variables}
    digest = _digest(sources)
    if known_digest not in ("", digest):
        raise UserError(
            f"init_from {source} has changed since the run began with its weights: their digest was {known_digest}, "
            f"now {digest}; put the network of that time there, or choose another run_dir"
        )
    taken = 0
    new = []
    summed = ""
    kept = {variable.path for layer in _named(network, "fresh", fresh) for variable in layer.variables}
    for variable in network.variables:
        shape = tuple(variable.shape)
        other = None if variable.path in kept else sources.get(variable.path)
        if other is not None and tuple(other.shape) == shape:
            variable.assign(ops.cast(other, variable.dtype))
        elif other is not None and network.input_shape[-1] == 1 and _is_rgb_kernel_for(tuple(other.shape), shape):
            variable.assign(ops.cast(ops.sum(other, axis=2, keepdims=True), variable.dtype))
            summed = f"; {variable.path} is summed over the colours, as the images are grey"
        else:
            new.append(f"{variable.path} {list(variable.shape)}")
            continue
        taken += 1
    require(taken > 0, f"init_from {source} has no weights of the names and shapes that this network has")
    rest = f"new: {', '.join(new)}" if new else "none is new"
    count = taken + len(new)
    return f"{taken} of the network's {count} variables begin with the weights of {source}{summed}; {rest}", digest


def _digest(variables: dict[str, keras.Variable]) -> str:
    """Returns a digest of variables by path: of their names, shapes and values, not of the file that holds them."""
    digest = hashlib.blake2b(digest_size=8)
    for path, variable in variables.items():
        array = ops.convert_to_numpy(variable)
        digest.update(f"{path} {array.dtype} {array.shape}".encode() + array.tobytes())
    return digest.hexdigest()


def _is_rgb_kernel_for(shape: tuple[int, ...], grey: tuple[int, ...]) -> bool:
    """Returns whether a kernel [k, k, 3, c] is for colour images and the other, [k, k, 1, c], for grey ones."""
    return len(grey) == 4 and grey[2] == 1 and shape == (*grey[:2], 3, grey[3])


def load_source(source: str) -> keras.Model:
    """Returns the network that `load_matching_weights` takes weights from."""
    path = os.path.join(source, "model.keras") if os.path.isdir(source) else source
    if os.path.lexists(path) or path.endswith(".keras"):
        return load_network(path)
    require(os.sep not in source, f"there is no run or file {source} to take weights from")
    return load(source)


def freeze(network: keras.Model, prefixes: str) -> None:
    """Makes layers untrainable if their names begin with one of the prefixes, which have commas between them.

    Raises:
      UserError: no layer's name begins with one of them, or nothing is left to train.
    """
    for layer in _named(network, "freeze", prefixes):
        layer.trainable = False
    require(len(network.trainable_variables) > 0, f"freeze {prefixes} leaves nothing to train")


def _named(network: keras.Model, option: str, prefixes: str) -> list[keras.Layer]:
    """Returns the layers with weights whose names begin with one of the prefixes that an option names."""
    chosen = []
    for prefix in split_names(prefixes):
        layers = [layer for layer in network.layers if layer.name.startswith(prefix) and layer.weights]
        names = ", ".join(dict.fromkeys(layer.name.split("_")[0] for layer in network.layers if layer.weights))
        require(len(layers) > 0, f"{option} names {prefix!r}, but no layer with weights has such a name; try {names}")
        chosen += layers
    return chosen
