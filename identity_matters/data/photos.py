"""Images without labels, named as files or as folders: found, decoded and resized as those of a FolderSource."""

import os
from collections.abc import Sequence

import numpy as np

from identity_matters.data.folder import SUFFIXES, decode, read_header, walk
from identity_matters.errors import UserError


def find(paths: Sequence[str]) -> list[str]:
    """Returns the files that paths name, and the PNG and JPEG files in the folders that they name, sorted in each.

    Raises:
      UserError: there is no such file or folder, or a folder holds none.
    """
    files = []
    for path in paths:
        if os.path.isdir(path):
            images = sorted(name for name in walk(path) if name.lower().endswith(SUFFIXES))
            if not images:
                raise UserError(f"{path} holds no PNG or JPEG file")
            files += images
        else:
            if not os.path.exists(path):
                raise UserError(f"there is no file or folder {path}")
            files.append(path)
    return files


def read(files: Sequence[str], shape: tuple[int, int, int]) -> np.ndarray:
    """Returns images, uint8 [n, h, w, c], of the shape that a network takes; `decode` says how they are resized.

    As in training, a grey image becomes a colour one for a network of colours.

    Raises:
      UserError: a file is no image that can be read, or has colours for a network of grey images; the message names it.
    """
    images = np.empty((len(files), *shape), np.uint8)
    for i, path in enumerate(files):
        is_grey = read_header(path).is_grey
        if shape[2] == 1 and not is_grey:
            raise UserError(
                f"{path} has 3 channels, but the network takes images of 1, grey; "
                "PIL.Image.open(file).convert('L').save(file) converts it"
            )
        images[i] = decode(path, shape)
    return images
