"""The trust boundary: files that may come from a stranger, loaded so that they run no code.

    .keras file        load_network: only the layers of this project's networks, in Keras's safe mode
    .npz file          open_npz: arrays of numbers, without pickle
    PNG, JPEG          open_image: no other format, and a limit on the pixels
    features.json      check_features: only the classes of TFDS itself

A SavedModel is a program, and no check shows what it does: `identity_matters.classifier` runs it only on request. Files
that a run wrote itself are trusted.
"""

import contextlib
import io
import json
import os
import zipfile
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from identity_matters.errors import UserError, reason_of, truncated_repr
from identity_matters.runs.files import open_file, read_text

if TYPE_CHECKING:
    import keras

# Keras's safe mode refuses Lambda and TFSMLayer as layers, not wherever a callable may stand.
_LAYERS = {
    "__keras_tensor__", "Add", "AveragePooling2D", "BatchNormalization", "Cast", "Concatenate", "Conv2D",
    "ConvertToTensor", "Dense", "Dropout", "DTypePolicy", "Functional", "GlobalAveragePooling2D", "InputLayer", "L2",
    "Maximum", "Mean", "Ones", "Pad", "RandomNormal", "ReLU", "Sqrt", "Square", "Subtract", "TrueDivide",
    "VarianceScaling", "ZeroPadding2D", "Zeros", "ScalarBias", "ScalarMultiplier",
}  # fmt: skip
_MAX_PIXELS = 2**26  # of an image: 8192², decoded by each core at once
_BIT_DEPTH = 24  # the byte of a PNG with the number of bits of a channel
_TFDS_FEATURES = "tensorflow_datasets.core.features."
_CLASS_KEYS = ("type", "pythonClassName", "python_class_name")


def load_network(path: str) -> "keras.Model":
    """Returns the network of a .keras file, not compiled; raises UserError if it is none of this project's."""
    import keras  # here: readers of images need not wait for TensorFlow

    from identity_matters import scalars  # noqa: F401  (it registers two layers)
    from identity_matters.convolutions import check_mixed_precision

    try:
        with open_file(path) as file, zipfile.ZipFile(file) as archive:
            config = json.loads(archive.read("config.json")) | {"compile_config": None}  # which is not loaded
        foreign = sorted(set(_values(config, ("class_name",))) - _LAYERS)
        if foreign:
            raise UserError(f"it holds {truncated_repr(foreign)}, which no network of this project has")
        network = keras.models.load_model(path, compile=False, safe_mode=True)
    except Exception as error:  # Keras, HDF5 and zipfile raise almost any on a damaged file
        is_clear = isinstance(error, UserError | OSError) and not isinstance(error, zipfile.BadZipFile)
        reason = reason_of(error) if is_clear else "it is damaged, or not a network of this project"
        raise UserError(f"cannot load {path}: {reason}") from error
    if any(layer.compute_dtype == "bfloat16" for layer in network.layers):
        check_mixed_precision()
    return network


@contextlib.contextmanager
def open_npz(path: str) -> Iterator[np.lib.npyio.NpzFile]:
    """Context manager: an .npz file, whose arrays are read as they are asked for; raises UserError if damaged."""
    try:
        with open_file(path) as file, np.load(file, allow_pickle=False) as archive:
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise UserError("it is a single array; numpy.savez writes several")
            yield archive
    except (OSError, EOFError, ValueError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"cannot read {path} as an .npz file: {reason_of(error)}") from error


def open_image(content: bytes) -> Image.Image:
    """Returns the image of a PNG or JPEG file of 8 bits, not decoded yet; raises UserError for any other content."""
    try:
        image = Image.open(io.BytesIO(content), formats=("PNG", "JPEG"))
    except UnidentifiedImageError as error:
        raise UserError("it is not a PNG or JPEG, or is damaged") from error
    except Image.DecompressionBombError as error:
        raise UserError(f"it declares far more than the {_MAX_PIXELS:,} pixels that are decoded") from error
    if image.width * image.height > _MAX_PIXELS:
        raise UserError(f"it has {image.height}x{image.width} pixels, more than the {_MAX_PIXELS:,} that are decoded")
    # Pillow keeps the upper half of each 16 bits of a colour PNG, which is nearly black for a camera of 12 bits.
    if image.mode.startswith("I") or (image.format == "PNG" and content[_BIT_DEPTH] == 16):
        raise UserError("its pixels have 16 bits; only those of 8 are read")
    return image


def check_features(folder: str) -> None:
    """Raises UserError if a TFDS set in a folder names a feature class that is not TFDS's: TFDS would import it."""
    for parent, _, names in os.walk(folder):
        if "features.json" not in names:
            continue
        path = os.path.join(parent, "features.json")
        foreign = [name for name in _values(json.loads(read_text(path)), _CLASS_KEYS) if not _is_tfds_feature(name)]
        if foreign:
            raise UserError(f"{path} names the class {truncated_repr(foreign[0])}, which is not TFDS's own")


def _is_tfds_feature(name: str) -> bool:
    return name.startswith(_TFDS_FEATURES) or "." not in name


def _values(value: Any, keys: tuple[str, ...]) -> Iterator[str]:
    """Yields the texts under some keys of a JSON value, at any depth."""
    if isinstance(value, dict):
        yield from (str(value[key]) for key in keys if isinstance(value.get(key), str))
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _values(part, keys)
